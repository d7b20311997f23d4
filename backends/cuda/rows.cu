// Rows of a matrix, each divided by the root of the mean of its squares: a CTA takes a row at a time, adds the residual,
// keeps the sums in shared memory while it squares them, and multiplies by the weight. X, the dtype of x, of the residual
// and of out, and W, that of the weight, come from rows.py.
struct RowsArguments {
    integer lines, columns;
    Term out, x, residual, weight;  // without address: none
    double eps;
};

enum { ROW_THREADS = 512, ROW_WARPS = ROW_THREADS / 32 };

template <class A>
__device__ __forceinline__ A sum_of_all(A x) {
    __shared__ A sums[ROW_WARPS];
    for (int distance = 16; distance; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    __syncthreads();  // the sums of the row before have been read
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    A all = 0;
    for (int warp = 0; warp < ROW_WARPS; warp++) all += sums[warp];
    return all;
}

// Elements of a line from a place on, at most n.
template <class E, class A, int LENGTH>
__device__ __forceinline__ void take(A (&x)[LENGTH], const Term& term, integer line, integer first, integer n) {
    const E* source = reinterpret_cast<const E*>(term.address) + line * term.slow + first * term.fast;
    Pack<E, LENGTH> found = {};
    if (term.fast == 1) {
        found = load<LENGTH>(source, n);
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            if (i < n) found.x[i] = source[i * term.fast];
    }
#pragma unroll
    for (int i = 0; i < LENGTH; i++) x[i] = widen(found.x[i]);
}

template <class E, class A, int LENGTH>
__device__ __forceinline__ void put(const A (&x)[LENGTH], const Term& term, integer line, integer first, integer n) {
    Pack<E, LENGTH> narrow_x;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) narrow(x[i], narrow_x.x[i]);
    E* target = reinterpret_cast<E*>(term.address) + line * term.slow + first * term.fast;
    if (term.fast == 1) {
        store(target, narrow_x, n);
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            if (i < n) target[i * term.fast] = narrow_x.x[i];
    }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS) rows_normalised(const __grid_constant__ RowsArguments a) {
    typedef typename Accumulator<X>::type A;
    constexpr int LENGTH = 16 / (sizeof(X) > sizeof(W) ? sizeof(X) : sizeof(W));
    extern __shared__ byte memory[];
    A* const row = reinterpret_cast<A*>(memory);
    for (integer line = blockIdx.x; line < a.lines; line += gridDim.x) {
        A squares = 0;
        for (integer first = threadIdx.x * LENGTH; first < a.columns; first += ROW_THREADS * LENGTH) {
            const integer n = a.columns - first;
            A x[LENGTH], old[LENGTH];
            take<X>(x, a.x, line, first, n);
            if (a.residual.address) {
                take<X>(old, a.residual, line, first, n);
#pragma unroll
                for (int i = 0; i < LENGTH; i++) x[i] += old[i];
                put<X>(x, a.residual, line, first, n);
            }
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (i < n) {
                    row[first + i] = x[i];  // read by this thread only
                    squares += x[i] * x[i];
                }
        }
        const A root = pointwise::sqrt(A(sum_of_all(squares) / A(a.columns) + A(a.eps)));
        const A scale = pointwise::divide(A(1), root);
        for (integer first = threadIdx.x * LENGTH; first < a.columns; first += ROW_THREADS * LENGTH) {
            const integer n = a.columns - first;
            A x[LENGTH], weight[LENGTH];
#pragma unroll
            for (int i = 0; i < LENGTH; i++) x[i] = i < n ? row[first + i] * scale : A(0);
            if (a.weight.address) {
                take<W>(weight, a.weight, 0, first, n);
#pragma unroll
                for (int i = 0; i < LENGTH; i++) x[i] *= weight[i];
            }
            put<X>(x, a.out, line, first, n);
        }
    }
}
