// The place of an extreme, of all elements or of each line; reductions.py defines E, the elements, and IS_MAX. Lines are
// as in reductions.cu.
enum { THREADS = 256, WARP = 32, LOADS = 4 };
typedef typename Accumulator<E>::type A;

// An element, and its place in the order of rows.
struct Candidate {
    A value;
    integer place;

    // Whether an element may be taken: it is not less, or it is NaN.
    __device__ __forceinline__ bool may_precede(A x) const { return !(IS_MAX ? x < value : x > value); }

    __device__ __forceinline__ void consider(A x, integer at) {
        const bool exceeds = IS_MAX ? x > value : x < value;
        if (exceeds || (x != x && value == value)) {
            value = x, place = at;
        } else if ((x == value || (x != x && value != value)) && at < place) {
            place = at;
        }
    }
};

// What any element precedes.
__device__ __forceinline__ Candidate last() {
    return {Constant<A>::of(IS_MAX ? -1.0 / 0.0 : 1.0 / 0.0, 0), ~0ull >> 1};
}

// The best of a warp's candidates, in its first lane.
__device__ __forceinline__ Candidate of_warp(Candidate best) {
#pragma unroll
    for (int distance = WARP / 2; distance; distance /= 2)
        best.consider(__shfl_down_sync(~0u, best.value, distance), __shfl_down_sync(~0u, best.place, distance));
    return best;
}

__device__ __forceinline__ Candidate of_cta(Candidate best) {
    __shared__ Candidate of_warps[THREADS / WARP];
    for (int round = 0; round < 2; round++) {
        best = of_warp(best);
        if (round) break;
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        best = of_warps[threadIdx.x % (THREADS / WARP)];
    }
    return best;
}

// Element i of line l has place l * slow + i * fast. The CTA that ends last, by `ended`, writes the best of the
// `candidates` of all to `result`, and leaves 0 in `ended`.
template <int LENGTH>
__device__ __forceinline__ void find(
    const E* x, integer length, integer lines, integer ld, integer slow, integer fast, Candidate* candidates,
    Candidate* result, word* ended) {
    constexpr int STRIDE = THREADS * LOADS;
    const integer packs = (length + LENGTH - 1) / LENGTH, chunks = (packs + STRIDE - 1) / STRIDE;
    Candidate best = last();
    for (integer chunk = blockIdx.x; chunk < chunks * lines; chunk += gridDim.x) {
        const integer line = lines == 1 ? 0 : chunk / chunks;
        const integer first = (chunk - line * chunks) * STRIDE + threadIdx.x;
        Pack<E, LENGTH> loaded[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (first + l * THREADS < packs) loaded[l] = load<LENGTH>(x + line * ld + (first + l * THREADS) * LENGTH);
        bool may_be_best = false;  // one comparison of most elements
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (first + l * THREADS < packs)
#pragma unroll
                for (int k = 0; k < LENGTH; k++) may_be_best |= best.may_precede(widen(loaded[l].x[k]));
        if (!may_be_best) continue;
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (first + l * THREADS < packs)
#pragma unroll
                for (int k = 0; k < LENGTH; k++)
                    best.consider(
                        widen(loaded[l].x[k]), line * slow + ((first + l * THREADS) * LENGTH + k) * fast);
    }
    best = of_cta(best);
    __shared__ bool is_last;
    if (threadIdx.x == 0) {
        candidates[blockIdx.x] = best;
        __threadfence();
        is_last = atomicInc(ended, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    const volatile Candidate* all = candidates;
    for (word i = threadIdx.x; i < gridDim.x; i += THREADS) best.consider(all[i].value, all[i].place);
    best = of_cta(best);
    if (threadIdx.x == 0) *result = best;
}

// `whole`: all packs of 16 bytes are whole and aligned.
extern "C" __global__ void __launch_bounds__(THREADS) find_extreme(
    const E* x, integer length, integer lines, integer ld, integer slow, integer fast, integer whole,
    Candidate* candidates, Candidate* result, word* ended) {
    if (whole)
        find<16 / sizeof(E)>(x, length, lines, ld, slow, fast, candidates, result, ended);
    else
        find<1>(x, length, lines, ld, slow, fast, candidates, result, ended);
}

// The extreme of each line and its index there: a warp takes a line whose elements are neighbours, and a CTA WARP lines
// that are neighbours, `ld` = 1.
extern "C" __global__ void __launch_bounds__(THREADS) find_extremes(
    const E* x, integer length, integer step, integer lines, integer ld, A* values, integer* places) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ Candidate of_warps[WARPS][WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const bool abreast = ld == 1;
    const integer line = abreast ? blockIdx.x * integer(WARP) + lane : blockIdx.x * integer(WARPS) + warp;
    Candidate best = last();
    if (line < lines) {
#pragma unroll 4
        for (integer i = abreast ? warp : lane; i < length; i += abreast ? WARPS : WARP)
            best.consider(widen(x[line * ld + i * step]), i);
    }
    if (abreast) {
        of_warps[warp][lane] = best;
        __syncthreads();
        if (warp) return;
        for (int w = 1; w < WARPS; w++) best.consider(of_warps[w][lane].value, of_warps[w][lane].place);
    } else {
        best = of_warp(best);
        if (lane) return;
    }
    if (line < lines) values[line] = best.value, places[line] = best.place;
}
