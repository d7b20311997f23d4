// Collectives of plain arrays: an operation between two elements, and an Expression behind the last one. Rows may be
// normalised then. OPERATION, NORMALISED, Weight and Expression come from collective.py.
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

    const Expression<A, LENGTH> expression;

    __device__ __forceinline__ Finished(const AllReduceArguments& a, integer index, integer n)
        : Finished(a.terms, Walk::of(index, a.terms.length), n) {}

    __device__ __forceinline__ Finished(const Terms& terms, Walk place, integer n)
        : expression(terms, place.line, place.position, n) {}

    __device__ __forceinline__ void apply(A (&x)[LENGTH]) const { expression.apply(x); }

    __device__ __forceinline__ static void normalise_row(const AllReduceArguments& a, const T* row, T* to, T* copy) {
        const Weight* weight = reinterpret_cast<const Weight*>(a.weight);
        normalise<T, Weight, THREADS>(row, to, copy, a.columns, weight, number<A>(a.terms.term[0]));
    }
};
