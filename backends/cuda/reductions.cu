// Reductions of a matrix across its lines, or along each of them. reductions.py defines E, the elements, R, the dtype of
// the results, and KIND. X has `lines` lines of `length` elements, `ld` elements apart. The elements of a line are
// neighbours, or `step` elements apart. Each sum has one order, which depends on the shape alone.
enum { THREADS = 256, WARP = 32, LOADS = 8, PACKS = 4 };
enum { SUM, ABS_SUM, SQUARES, MAX, MIN, ABS_MAX };

template <class Real>
__device__ __forceinline__ R size_of(Real x) {
    return pointwise::abs(As<R>::of(x));
}
template <class Real>
__device__ __forceinline__ R size_of(complex<Real> x) {
    return pointwise::abs(As<complex<R>>::of(x)).re;
}
// The square of x / scale, which is computed by parts, so that no infinity becomes NaN.
template <class Real>
__device__ __forceinline__ R square_of(Real x, R scale) {
    return pointwise::square(pointwise::divide(As<R>::of(x), scale));
}
template <class Real>
__device__ __forceinline__ R square_of(complex<Real> x, R scale) {
    return pointwise::add(square_of(x.re, scale), square_of(x.im, scale));
}
template <class Real>
__device__ __forceinline__ R square_of(Real x) {
    return pointwise::square(As<R>::of(x));
}
template <class Real>
__device__ __forceinline__ R square_of(complex<Real> x) {
    return pointwise::add(square_of(x.re), square_of(x.im));
}

// What an element contributes; `scale` may be 0, which stands for 1.
template <class T>
__device__ __forceinline__ R contribution(T x, const R* scale = 0) {
    if constexpr (KIND == SQUARES)
        return scale ? square_of(x, *scale) : square_of(x);
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

// What changes no result, but that a sum of -0 is 0, as in NumPy.
__device__ __forceinline__ R neutral() {
    return Constant<R>::of(KIND == MAX ? -1.0 / 0.0 : KIND == MIN ? 1.0 / 0.0 : 0.0, 0);
}

template <class Real>
__device__ __forceinline__ Real shifted(Real x, int lanes) {
    return __shfl_down_sync(~0u, x, lanes);
}
template <class Real>
__device__ __forceinline__ complex<Real> shifted(complex<Real> x, int lanes) {
    return {shifted(x.re, lanes), shifted(x.im, lanes)};
}

// results[c, i] := the reduction of X[start + l, i] over the l of the c-th part of `height` lines, for LENGTH neighbours i.
template <int LENGTH>
__global__ void __launch_bounds__(THREADS)
    reduce_across(const E* x, integer length, integer lines, integer ld, integer height, R* results) {
    const integer i = (integer(blockIdx.x) * THREADS + threadIdx.x) * LENGTH, start = integer(blockIdx.y) * height;
    const integer count = start + height < lines ? height : lines - start;
    if (i >= length) return;
    x += i + start * ld;
    R sums[LENGTH];
    const Pack<E, LENGTH> first = load<LENGTH>(x);
#pragma unroll
    for (int k = 0; k < LENGTH; k++) sums[k] = combined(neutral(), contribution(widen(first.x[k])));
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

// The reduction of the sums of `group` threads, a warp or a CTA, in its first thread.
__device__ __forceinline__ R of_group(R sum, integer group) {
    __shared__ R of_warps[THREADS / WARP];
#pragma unroll
    for (int lanes = WARP / 2; lanes; lanes /= 2) sum = combined(sum, shifted(sum, lanes));
    if (group == WARP) return sum;
    __syncthreads();
    if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < THREADS / WARP; w++) sum = combined(sum, of_warps[w]);
    return sum;
}

// What another CTA has written.
__device__ __forceinline__ R fresh(const R& x) {
    R copy;
#pragma unroll
    for (int w = 0; w < sizeof(R) / sizeof(word); w++)
        reinterpret_cast<word*>(&copy)[w] = reinterpret_cast<const volatile word*>(&x)[w];
    return copy;
}

// results[c, l] := the reduction of the c-th part of `height` elements of line l, by `group` threads: a warp or a CTA.
// Packs of LENGTH > 1 neighbours are whole. The scale of line l is scales[l * scale_step]. With `ended` there is one
// line, whose CTA that ends last reduces all parts, writes the result to `total`, and leaves 0 in `ended`.
template <int LENGTH>
__global__ void __launch_bounds__(THREADS)
    reduce_along(const E* x, integer length, integer step, integer lines, integer ld, integer height, integer group,
                 const R* scales, integer scale_step, R* results, R* total, word* ended) {
    const integer line = blockIdx.x * (THREADS / group) + threadIdx.x / group, start = integer(blockIdx.y) * height;
    const integer stop = line >= lines ? 0 : start + height < length ? start + height : length;
    const R* scale = scales ? scales + (line < lines ? line * scale_step : 0) : 0;
    x += line * ld;
    R sums[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) sums[p] = neutral();
    for (integer i = start + threadIdx.x % group * LENGTH; i < stop; i += group * LENGTH * PACKS) {
        Pack<E, LENGTH> packs[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++) {
            const integer at = i + p * group * LENGTH;
            if (at < stop) packs[p] = load<LENGTH>(x + at * step, LENGTH);
        }
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            if (i + p * group * LENGTH < stop)
#pragma unroll
                for (int k = 0; k < LENGTH; k++)
                    sums[p] = combined(sums[p], contribution(widen(packs[p].x[k]), scale));
    }
#pragma unroll
    for (int p = 1; p < PACKS; p++) sums[0] = combined(sums[0], sums[p]);
    sums[0] = of_group(sums[0], group);
    if (threadIdx.x % group == 0 && line < lines) results[blockIdx.y * lines + line] = sums[0];
    if (!ended) return;
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        __threadfence();
        is_last = atomicInc(ended, gridDim.y - 1) == gridDim.y - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    R sum = neutral();
    for (word part = threadIdx.x; part < gridDim.y; part += THREADS) sum = combined(sum, fresh(results[part]));
    sum = of_group(sum, THREADS);
    if (threadIdx.x == 0) *total = sum;
}
