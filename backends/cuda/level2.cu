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

// Two products in one pass. The second is of a part with rows other_first[j] <= i < other_stop[j], as one part without
// its diagonal. For the c-th WIDTH columns, and the c-th HEIGHT rows,
// row_sums[c, i] := the sum of X[i, j] v[j]
// column_sums[c, j] := the sum of X[i, j] w[i]
enum { ROWS = 4, COLUMNS = 4, WARPS = THREADS / WARP, HEIGHT = WARPS * ROWS * WARP, WIDTH = 128 };
extern "C" __global__ void __launch_bounds__(THREADS) multiply_both(
    ARGUMENTS, const integer* other_first, const integer* other_stop, const A* v, const A* w, A* row_sums,
    A* column_sums, integer mode, integer other_mode) {
    __shared__ A of_warps[WARPS][WIDTH];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const integer start = integer(blockIdx.y) * WIDTH, end = start + WIDTH < columns ? start + WIDTH : columns;
    const integer low = (integer(blockIdx.x) * WARPS + warp) * ROWS * WARP, high = low + ROWS * WARP;
    A sums[ROWS] = {}, of_rows[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const integer i = low + r * WARP + lane;
        if (i < rows) of_rows[r] = w[i];
    }
    const auto is_used = [&](integer j) {
        return j < end && (first[j] < high && stop[j] > low || other_first[j] < high && other_stop[j] > low);
    };
    bool meets = false;  // whether the rows of this warp have elements of the parts
    for (integer j = start + lane; j < end; j += WARP) {
        meets |= is_used(j);
        of_warps[warp][j - start] = {};
    }
    meets = __any_sync(~0u, meets);
    for (integer j0 = start; meets && j0 < end; j0 += COLUMNS) {
        E loaded[COLUMNS][ROWS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const integer j = j0 + c;
            if (!is_used(j)) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const integer i = low + r * WARP + lane;
                if (first[j] <= i && i < stop[j] || other_first[j] <= i && i < other_stop[j])
                    loaded[c][r] = x[i + j * ld];
            }
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const integer j = j0 + c;
            if (!is_used(j)) continue;
            A sum = {};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const integer i = low + r * WARP + lane;
                const bool is_real = diagonal[j] == i;
                if (first[j] <= i && i < stop[j])
                    add_product(sums[r], factor(loaded[c][r], is_real, mode), v[j]);
                if (other_first[j] <= i && i < other_stop[j])
                    add_product(sum, factor(loaded[c][r], is_real, other_mode), of_rows[r]);
            }
            sum = sum_of_warp(sum);
            if (lane == 0) of_warps[warp][j - start] = sum;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const integer i = low + r * WARP + lane;
        if (i < rows) row_sums[blockIdx.y * rows + i] = sums[r];
    }
    __syncthreads();
    if (start + threadIdx.x >= end) return;
    A sum = of_warps[0][threadIdx.x];
    for (int other = 1; other < WARPS; other++) sum = pointwise::add(sum, of_warps[other][threadIdx.x]);
    column_sums[blockIdx.x * columns + start + threadIdx.x] = sum;
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
