// Reductions across lines, and places of extremes. reductions.py defines E, the elements, R, the dtype of the results, and
// KIND. X has `lines` lines of `length` neighbours, `ld` elements apart: columns in Fortran order, rows in C order.
enum { THREADS = 256, WARP = 32, LOADS = 8 };
enum { SUM, ABS_SUM, SQUARES, MAX, MIN, ABS_MAX };

template <class Real>
__device__ __forceinline__ R size_of(Real x) {
    return pointwise::abs(As<R>::of(x));
}
template <class Real>
__device__ __forceinline__ R size_of(complex<Real> x) {
    return pointwise::abs(As<complex<R>>::of(x)).re;
}
template <class Real>
__device__ __forceinline__ R square_of(Real x) {
    return pointwise::square(As<R>::of(x));
}
template <class Real>
__device__ __forceinline__ R square_of(complex<Real> x) {
    return pointwise::add(square_of(x.re), square_of(x.im));
}

// What an element contributes.
template <class T>
__device__ __forceinline__ R contribution(T x) {
    if constexpr (KIND == SQUARES)
        return square_of(x);
    else if constexpr (KIND == ABS_SUM || KIND == ABS_MAX)
        return size_of(x);
    else
        return As<R>::of(x);
}

template <class T>
__device__ __forceinline__ T combined(T x, T y) {
    if constexpr (KIND == MAX || KIND == ABS_MAX)
        return pointwise::maximum(x, y);
    else if constexpr (KIND == MIN)
        return pointwise::minimum(x, y);
    else
        return pointwise::add(x, y);
}

// results[c, i] := the reduction of X[start + l, i] over the l of the c-th part of `height` lines, for LENGTH neighbours i.
template <int LENGTH>
__device__ __forceinline__ void reduce_pack(
    const E* x, integer length, integer lines, integer ld, integer height, R* results) {
    const integer i = (integer(blockIdx.x) * THREADS + threadIdx.x) * LENGTH, start = integer(blockIdx.y) * height;
    const integer count = start + height < lines ? height : lines - start;
    if (i >= length) return;
    x += i + start * ld;
    R sums[LENGTH];
    const Pack<E, LENGTH> first = load<LENGTH>(x);
#pragma unroll
    for (int k = 0; k < LENGTH; k++) sums[k] = contribution(widen(first.x[k]));
    integer line = 1;
    for (; line + LOADS <= count; line += LOADS) {
        Pack<E, LENGTH> packs[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++) packs[l] = load<LENGTH>(x + (line + l) * ld);
#pragma unroll
        for (int l = 0; l < LOADS; l++)
#pragma unroll
            for (int k = 0; k < LENGTH; k++) sums[k] = combined(sums[k], contribution(widen(packs[l].x[k])));
    }
    for (; line < count; line++) {
        const Pack<E, LENGTH> pack = load<LENGTH>(x + line * ld);
#pragma unroll
        for (int k = 0; k < LENGTH; k++) sums[k] = combined(sums[k], contribution(widen(pack.x[k])));
    }
#pragma unroll
    for (int k = 0; k < LENGTH; k++) results[blockIdx.y * length + i + k] = sums[k];
}

// `whole`: all packs of 16 bytes are whole and aligned.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_across(const E* x, integer length, integer lines, integer ld, integer height, integer whole, R* results) {
    if (whole)
        reduce_pack<sizeof(E) < 16 ? 16 / sizeof(E) : 1>(x, length, lines, ld, height, results);
    else
        reduce_pack<1>(x, length, lines, ld, height, results);
}
