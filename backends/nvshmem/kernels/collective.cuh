// An operation between two elements, and an Expression after the last one; of products perhaps + beta C before it. Rows may
// be normalised then. OPERATION, SCALED, NORMALISED, Weight and Expression come from reduction_epilogues.py.
struct Operation {
    template <class A>
    __device__ __forceinline__ static A of(A x, A y) {
        return pointwise::OPERATION(x, y);
    }
};

template <class T, int LENGTH>
struct Finished {
    typedef typename Accumulator<T>::type A;
    enum { NORMALISES = NORMALISED };

#if SCALED
    const Scaled<T, LENGTH> scaled;
#endif
    const Expression<A, LENGTH> expression;

    template <class Arguments>
    __device__ __forceinline__ Finished(const Arguments& a, integer index, integer n)
        : Finished(a, Walk::of(index, a.terms.length), index, n) {}

    template <class Arguments>
    __device__ __forceinline__ Finished(const Arguments& a, Walk place, integer index, integer n)
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
    template <class Begin, class Finish, class Again, class Put>
    __device__ __forceinline__ static void normalise_rows(
        const AllReduceArguments& a, int rows, Begin begin, Finish finish, Again again, Put put) {
        const Weight* weight = reinterpret_cast<const Weight*>(a.weight);
        normalise<T, Weight, THREADS, 1>(
            rows, static_cast<int>(a.columns), weight, number<A>(a.terms.term[0]), begin, finish, again, put);
    }
#endif
};
