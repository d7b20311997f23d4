// The place of an extreme; reductions.py defines E, the elements, and IS_MAX. Lines are as in reductions.cu.
enum { THREADS = 256, WARP = 32, LOADS = 4 };
typedef typename Accumulator<E>::type A;

// An element, and its place in the order of rows.
struct Candidate {
    A value;
    integer place;

    __device__ __forceinline__ void consider(A x, integer at) {
        const bool exceeds = IS_MAX ? x > value : x < value;
        if (exceeds || (x != x && value == value)) {
            value = x, place = at;
        } else if ((x == value || (x != x && value != value)) && at < place) {
            place = at;
        }
    }
};

__device__ __forceinline__ Candidate of_cta(Candidate best) {
    __shared__ Candidate of_warps[THREADS / WARP];
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int distance = WARP / 2; distance; distance /= 2)
            best.consider(__shfl_down_sync(~0u, best.value, distance), __shfl_down_sync(~0u, best.place, distance));
        if (round) break;
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        best = of_warps[threadIdx.x % (THREADS / WARP)];
    }
    return best;
}

// Element i of line l has place l * slow + i * fast. The CTA that ends last, by `ended`, writes the result behind the
// `candidates` of all, and leaves 0 in `ended`.
template <int LENGTH>
__device__ __forceinline__ void find(
    const E* x, integer length, integer lines, integer ld, integer slow, integer fast, Candidate* candidates,
    word* ended) {
    constexpr int STRIDE = THREADS * LOADS;
    const integer packs = (length + LENGTH - 1) / LENGTH, chunks = (packs + STRIDE - 1) / STRIDE;
    Candidate best = {Constant<A>::of(IS_MAX ? -1.0 / 0.0 : 1.0 / 0.0, 0), ~0ull >> 1};
    for (integer chunk = blockIdx.x; chunk < chunks * lines; chunk += gridDim.x) {
        const integer line = lines == 1 ? 0 : chunk / chunks;
        const integer first = (chunk - line * chunks) * STRIDE + threadIdx.x;
        Pack<E, LENGTH> loaded[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (first + l * THREADS < packs) loaded[l] = load<LENGTH>(x + line * ld + (first + l * THREADS) * LENGTH);
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
    if (threadIdx.x == 0) candidates[gridDim.x] = best;
}

// `whole`: all packs of 16 bytes are whole and aligned.
extern "C" __global__ void __launch_bounds__(THREADS) find_extreme(
    const E* x, integer length, integer lines, integer ld, integer slow, integer fast, integer whole,
    Candidate* candidates, word* ended) {
    if (whole)
        find<16 / sizeof(E)>(x, length, lines, ld, slow, fast, candidates, ended);
    else
        find<1>(x, length, lines, ld, slow, fast, candidates, ended);
}
