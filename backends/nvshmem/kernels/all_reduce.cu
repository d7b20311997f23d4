// out = the sum of all ranks' partial products + beta old, on every rank, by one kernel of few CTAs.
//
// Elements are dealt to owners, ceil(count / P) each, rounded up to PART_ALIGNMENT. Owner r's are added in the order of the
// ranks r+1, r+2, ..., r (cyclic). In two shots each rank sends the owners their elements, adds its own, and sends the sums
// to all. In one shot every rank sends everything to all, and all add in the order of owner 0.
//
// CTA i of a rank talks to the CTAs i of the others only, through flags that are set to 1 and that the waiting side resets.
// The grid depends on count, dtype and P alone and is always resident.
#include "common.cuh"

constexpr int MAX_CTAS = 32;
constexpr int PART_ALIGNMENT = 16;
constexpr int BATCH = 8;

struct AllReduceArguments {
    byte* out;
    const byte* source;
    const byte* old;
    integer count, slot_nbytes, rank, nranks;
    integer contributing;  // bit r: rank r has a partial product
    Factor beta;
    Watch watch;
    byte* slots[MAX_RANKS];    // of each rank: where the others' partial products go, slot_nbytes apart
    word* flags[MAX_RANKS];    // of each rank: 2 x nranks x MAX_CTAS words
    byte* results[MAX_RANKS];  // of each rank: where the sums go in two shots; its out, or a buffer of count elements
};

// Packs first..stop of a part of `packs` packs are this CTA's.
struct Slice {
    integer first, size;

    __device__ __forceinline__ explicit Slice(integer packs) {
        const integer each = (packs + gridDim.x - 1) / gridDim.x;
        first = each * blockIdx.x < packs ? each * blockIdx.x : packs;
        size = first + each < packs ? each : packs - first;
    }
};

// Tells all peers that this CTA's stores of a phase are there, and waits for theirs. The same answer in all threads.
__device__ __forceinline__ bool meet(const AllReduceArguments& a, int phase) {
    bool failed = false;
    __syncthreads();
    const int peer = threadIdx.x;
    if (peer < a.nranks && peer != a.rank) {
        const integer base = phase * a.nranks;
        release(a.flags[peer] + (base + a.rank) * MAX_CTAS + blockIdx.x, 1);
        word* flag = a.flags[a.rank] + (base + peer) * MAX_CTAS + blockIdx.x;
        failed = !a.watch.wait(flag, peer, [](word value) { return value == 1; });
        if (!failed) *flag = 0;
    }
    return !__syncthreads_or(failed);
}

// The sum of n elements from `first` on, in the order of an owner; `offset` is where they lie in a slot.
template <class T, class W, int LENGTH>
__device__ __forceinline__ Pack<T, LENGTH> sum(
    const AllReduceArguments& a, int owner, integer first, integer offset, integer n) {
    typedef typename Accumulator<T>::type Sum;
    const int rank = static_cast<int>(a.rank), nranks = static_cast<int>(a.nranks);
    Sum sum[LENGTH] = {};
    Pack<T, LENGTH> old = {};
    const bool scaled = !a.beta.is_zero();
    if (scaled) old = load<LENGTH>(reinterpret_cast<const T*>(a.old) + first, n);
    bool any = false;
#pragma unroll 1
    for (int begin = 1; begin <= nranks; begin += BATCH) {
        Pack<W, LENGTH> part[BATCH];
        bool there[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int turn = owner + begin + k, source = turn < nranks ? turn : turn - nranks;
            there[k] = begin + k <= nranks && (a.contributing >> source & 1);
            if (!there[k]) continue;
            if (source == rank)
                part[k] = load<LENGTH>(reinterpret_cast<const W*>(a.source) + first, n);
            else  // slots are padded to whole packs
                part[k] = load<LENGTH>(reinterpret_cast<const W*>(a.slots[rank] + source * a.slot_nbytes) + offset);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (there[k]) {
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const Sum term = widen(part[k].x[i]);
                    sum[i] = any ? plus(sum[i], term) : term;
                }
                any = true;
            }
    }
    Pack<T, LENGTH> result;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) {
        if (scaled) sum[i] = plus(sum[i], a.beta.of(Sum(widen(old.x[i]))));
        narrow(sum[i], result.x[i]);
    }
    return result;
}

template <class T, class W>
__device__ __forceinline__ void one_shot(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(W);
    const int rank = static_cast<int>(a.rank), nranks = static_cast<int>(a.nranks);
    const Slice slice((a.count + LENGTH - 1) / LENGTH);
    if (a.contributing >> rank & 1)
        for (integer i = threadIdx.x; i < slice.size; i += blockDim.x) {
            const integer first = (slice.first + i) * LENGTH;
            const Pack<W, LENGTH> part = load<LENGTH>(reinterpret_cast<const W*>(a.source) + first, a.count - first);
            for (int step = 1; step < nranks; step++) {
                const int peer = rank + step < nranks ? rank + step : rank + step - nranks;
                store(reinterpret_cast<W*>(a.slots[peer] + rank * a.slot_nbytes) + first, part);
            }
        }
    if (!meet(a, 0)) return;
    for (integer i = threadIdx.x; i < slice.size; i += blockDim.x) {
        const integer first = (slice.first + i) * LENGTH, n = a.count - first;
        store(reinterpret_cast<T*>(a.out) + first, sum<T, W, LENGTH>(a, 0, first, first, n), n);
    }
}

template <class T, class W>
__device__ __forceinline__ void two_shot(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(W);
    const int rank = static_cast<int>(a.rank), nranks = static_cast<int>(a.nranks);
    if (nranks == 0) return;
    const integer even = (a.count + nranks - 1) / nranks;
    const integer part = (even + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
    const Slice slice(part / LENGTH);
    const integer work = slice.size * (nranks - 1);

    // slots[rank] of owner r = partial[part r]
    if (a.contributing >> rank & 1)
        for (integer i = threadIdx.x; i < work; i += blockDim.x) {
            const int step = 1 + static_cast<int>(static_cast<word>(i) / static_cast<word>(slice.size));
            const int peer = rank + step < nranks ? rank + step : rank + step - nranks;
            const integer offset = (slice.first + i - (step - 1) * slice.size) * LENGTH;
            const integer first = peer * part + offset;
            if (first >= a.count) continue;
            store(reinterpret_cast<W*>(a.slots[peer] + rank * a.slot_nbytes) + offset,
                load<LENGTH>(reinterpret_cast<const W*>(a.source) + first, a.count - first));
        }
    if (!meet(a, 0)) return;

    // results[part rank] of all = the sum
    for (integer i = threadIdx.x; i < slice.size; i += blockDim.x) {
        const integer offset = (slice.first + i) * LENGTH, first = rank * part + offset, n = a.count - first;
        if (n <= 0) continue;
        const Pack<T, LENGTH> result = sum<T, W, LENGTH>(a, rank, first, offset, n);
        for (int step = 1; step < nranks; step++) {
            const int peer = rank + step < nranks ? rank + step : rank + step - nranks;
            store(reinterpret_cast<T*>(a.results[peer]) + first, result, n);
        }
        store(reinterpret_cast<T*>(a.out) + first, result, n);
    }
    if (!meet(a, 1) || a.results[rank] == a.out) return;

    // out[part r] = results[part r], from owner r
    for (integer i = threadIdx.x; i < work; i += blockDim.x) {
        const int step = 1 + static_cast<int>(static_cast<word>(i) / static_cast<word>(slice.size));
        const int owner = rank + step < nranks ? rank + step : rank + step - nranks;
        const integer first = owner * part + (slice.first + i - (step - 1) * slice.size) * LENGTH, n = a.count - first;
        if (n <= 0) continue;
        store(reinterpret_cast<T*>(a.out) + first, load<LENGTH>(reinterpret_cast<const T*>(a.results[rank]) + first, n), n);
    }
}

#define ALL_REDUCE(NAME, T, W)                                                                      \
    extern "C" __global__ void __launch_bounds__(512, 1)                                            \
        one_shot_##NAME(const __grid_constant__ AllReduceArguments a) { one_shot<T, W>(a); }        \
    extern "C" __global__ void __launch_bounds__(512, 1)                                            \
        two_shot_##NAME(const __grid_constant__ AllReduceArguments a) { two_shot<T, W>(a); }

ALL_REDUCE(float16, float16, float16)
ALL_REDUCE(float16_float32, float16, float)
ALL_REDUCE(bfloat16, bfloat16, bfloat16)
ALL_REDUCE(bfloat16_float32, bfloat16, float)
ALL_REDUCE(float32, float, float)
ALL_REDUCE(float64, double, double)
ALL_REDUCE(complex64, complex<float>, complex<float>)
ALL_REDUCE(complex128, complex<double>, complex<double>)
