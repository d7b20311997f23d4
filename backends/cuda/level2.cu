// Products of a vector and a part of a matrix, and updates of the part; level2.py defines E, the elements, and A, the
// dtype of the sums. X has rows x columns elements in Fortran order. Of column j rows first[j] <= i < stop[j] belong to
// the part; diagonal[j] is the row whose imaginary part is not read, or -1.
#define ARGUMENTS                                                                                          \
    E *x, integer ld, integer rows, integer columns, const integer *first, const integer *stop, const integer *diagonal
enum { THREADS = 256, WARP = 32 };
enum { ELEMENTS, CONJUGATES, SIZES, SUMS_OF_SIZES };  // what multiplies the vector

template <class Real>
__device__ __forceinline__ Real size_of(Real x, bool) {
    return pointwise::abs(x);
}
template <class Real>
__device__ __forceinline__ Real size_of(complex<Real> x, bool sums) {
    return sums ? pointwise::add(pointwise::abs(x.re), pointwise::abs(x.im)) : pointwise::abs(x).re;
}
template <class Real>
__device__ __forceinline__ void make_real(Real&) {}
template <class Real>
__device__ __forceinline__ void make_real(complex<Real>& x) {
    x.im = 0;
}

// The factor that an element of X contributes.
__device__ __forceinline__ A factor(E x, bool is_real, integer mode) {
    auto wide = widen(x);
    if (is_real) make_real(wide);
    A value;
    if (mode >= SIZES)
        Result<A>::of(size_of(wide, mode == SUMS_OF_SIZES), value);
    else
        Result<A>::of(mode == CONJUGATES ? pointwise::conj(wide) : wide, value);
    return value;
}

template <class T>
__device__ __forceinline__ void add_product(T& sum, T x, T y) {
    sum = pointwise::add(sum, pointwise::multiply(x, y));
}

// sums[c, i] := the sum of X[i, j] v[j] over the c-th `width` columns
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_rows(ARGUMENTS, const A* v, A* sums, integer width, integer mode) {
    const integer i = integer(blockIdx.x) * THREADS + threadIdx.x, start = blockIdx.y * width;
    const integer end = start + width < columns ? start + width : columns;
    if (i >= rows) return;
    A sum = {};
#pragma unroll 8
    for (integer j = start; j < end; j++)
        if (first[j] <= i && i < stop[j]) add_product(sum, factor(x[i + j * ld], diagonal[j] == i, mode), v[j]);
    sums[blockIdx.y * rows + i] = sum;
}

template <class Real>
__device__ __forceinline__ Real shifted(Real x, int distance) {
    return __shfl_down_sync(~0u, x, distance);
}
template <class Real>
__device__ __forceinline__ complex<Real> shifted(complex<Real> x, int distance) {
    return {shifted(x.re, distance), shifted(x.im, distance)};
}
__device__ __forceinline__ A sum_of_warp(A sum) {
#pragma unroll
    for (int distance = WARP / 2; distance; distance /= 2) sum = pointwise::add(sum, shifted(sum, distance));
    return sum;
}

// sums[c, j] := the sum of X[i, j] v[i] over the c-th `width` rows
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply_columns(ARGUMENTS, const A* v, A* sums, integer width, integer mode) {
    __shared__ A of_warps[WARP];
    const integer j = blockIdx.x, start = blockIdx.y * width, end = start + width;
    const integer low = start < first[j] ? first[j] : start, high = end < stop[j] ? end : stop[j];
    A sum = {};
    // From a multiple of the threads on, so that loads are aligned.
#pragma unroll 4
    for (integer i = low / THREADS * THREADS + threadIdx.x; i < high; i += THREADS)
        if (i >= low) add_product(sum, factor(x[i + j * ld], diagonal[j] == i, mode), v[i]);
    sum = sum_of_warp(sum);
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    sum = sum_of_warp(threadIdx.x < THREADS / WARP ? of_warps[threadIdx.x] : A{});
    if (threadIdx.x == 0) sums[blockIdx.y * columns + j] = sum;
}

// X[i, j] += the sum of left[c, i] right[c, j] over c < count, in the part; the diagonal becomes real if it is given.
extern "C" __global__ void __launch_bounds__(THREADS)
    update_part(ARGUMENTS, const E* left, const E* right, integer count) {
    const integer i = integer(blockIdx.x) * THREADS + threadIdx.x;
    for (integer j = blockIdx.y; j < columns; j += gridDim.y) {
        if (i >= rows || i < first[j] || i >= stop[j]) continue;
        auto value = widen(x[i + j * ld]);
        for (integer c = 0; c < count; c++)
            add_product(value, widen(left[c * rows + i]), widen(right[c * columns + j]));
        if (diagonal[j] == i) make_real(value);
        narrow(value, x[i + j * ld]);
    }
}
