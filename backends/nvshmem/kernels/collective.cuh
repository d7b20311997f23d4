// The reduction operation and the epilogue of reduction kernels: optionally + beta C, then an Expression; then rows may
// be normalised. ReductionEpilogue defines OPERATION, SCALED, NORMALISED, Weight and Expression.
struct Operation {
    template <class A>
    __device__ __forceinline__ static A of(A x, A y) {
        return pointwise::OPERATION(x, y);
    }
};

template <class T, int LENGTH>
struct ReductionEpilogue {
    typedef typename Accumulator<T>::type A;
    enum { NORMALISES = NORMALISED };

#if SCALED
    const AddScaled<T, LENGTH> scaled;
#endif
    const Expression<A, LENGTH> expression;

    template <class Arguments>
    __device__ __forceinline__ ReductionEpilogue(const Arguments& a, integer index, integer n)
        : ReductionEpilogue(a, LinePosition::of(index, a.terms.length), index, n) {}

    template <class Arguments>
    __device__ __forceinline__ ReductionEpilogue(const Arguments& a, LinePosition place, integer index, integer n)
        :
#if SCALED
          scaled(a, index, n),
#endif
          expression(a.terms, place.line, place.position, n) {
    }

    __device__ __forceinline__ void apply(A (&x)[LENGTH]) const {
#if SCALED
        scaled.apply(x);
#endif
        expression.apply(x);
    }

#if NORMALISED
    template <class Issue, class Complete, class Reload, class Write>
    __device__ __forceinline__ static void normalise_rows(
        const AllReduceArguments& a, int rows, Issue issue, Complete complete, Reload reload, Write write) {
        const Weight* weight = reinterpret_cast<const Weight*>(a.weight);
        normalise<T, Weight, THREADS, 1>(
            rows, static_cast<int>(a.columns), weight, number<A>(a.terms.term[0]), issue, complete, reload, write);
    }
#endif
};
