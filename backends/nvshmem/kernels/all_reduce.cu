// Sums of all ranks' partial products, by one kernel that waits for its peers: to all ranks in one shot or in two, or each
// rank's part to that rank alone (a reduce-scatter).
//
// Elements first[r]..first[r+1]-1 belong to rank r. They are added in the order of the ranks r+1, r+2, ..., r (cyclic). In
// one shot every rank sends everything to all, and all add in the order of owner 0. In a reduce-scatter each rank sends the
// owners their elements. In two shots each owner reads its elements where the others' products have left them, in their
// symmetric memory; the sums it stores into the others' `out` where that is symmetric memory too, else the others read them.
//
// A flag of the first meeting says that the sender's stream has come to this kernel. That is enough to read the product that
// an earlier kernel of that stream has written: the end of a task of a stream synchronizes with the start of the next one,
// the start of a kernel with that of all its threads (PTX ISA, memory consistency model, API synchronization), or with
// `follow` where a kernel starts early, and what precedes a release of system scope is seen behind the acquire of its flag.
// The flags of the second meeting follow the reads of the CTAs that send them, so that a product may be overwritten as soon
// as the kernel of its rank has ended. Sums that others read may be overwritten when their next call has begun.
//
// CTA i of a rank talks to the CTAs i of the others only, through flags that are set to 1 and that the waiting side resets.
// The grid is the same on all ranks. It need not be resident at once: CTAs start in the order of their indices, and i waits
// for no CTA that starts later.
#include "common.cuh"

constexpr int MAX_CTAS = 512;
constexpr int BATCH = 4;
constexpr int UNROLL = 4;
constexpr int THREADS = 384;  // two CTAs share the registers of a multiprocessor

struct AllReduceArguments {
    byte* out;
    const byte* source;
    const byte* old;
    integer count, slot_nbytes, rank, nranks;  // slot_nbytes: from slot to slot
    integer contributing;  // bit r: rank r has a partial product
    Factor beta;
    Watch watch;
    byte* partials[MAX_RANKS];  // of each rank: in two shots its partial product, else slots for those of the others
    word* flags[MAX_RANKS];     // of each rank: 2 x nranks x MAX_CTAS words
    byte* results[MAX_RANKS];   // of each rank: its out, if all can write there, or where it leaves its sums in two shots
    integer first[MAX_RANKS + 1];
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

// The sum of n elements, from `first` on, in the order of an owner; term(rank) loads those of a rank.
template <class T, class W, int LENGTH, class Term>
__device__ __forceinline__ Pack<T, LENGTH> sum(
    const AllReduceArguments& a, int owner, integer first, integer n, Term term) {
    typedef typename Accumulator<T>::type Sum;
    const int nranks = static_cast<int>(a.nranks);
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
            if (there[k]) part[k] = term(source);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (there[k]) {
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const Sum x = widen(part[k].x[i]);
                    sum[i] = any ? plus(sum[i], x) : x;
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

// Packs of a part for, or of, each other rank, one rank after the other, from the next one on: THREADS of them at a time,
// UNROLL loads in flight in each thread. `copy` says how many elements go from where to where.
template <class From, int LENGTH, class Copy>
__device__ __forceinline__ void for_others(const AllReduceArguments& a, const Slice& slice, Copy copy) {
    const int rank = static_cast<int>(a.rank), nranks = static_cast<int>(a.nranks);
    const word size = static_cast<word>(slice.size), work = size * static_cast<word>(nranks - 1);
    for (word begin = threadIdx.x; begin < work; begin += UNROLL * THREADS) {
        Pack<From, LENGTH> pack[UNROLL];
        From* to[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const word i = begin + k * THREADS;
            to[k] = nullptr;
            if (i >= work) continue;
            const int step = 1 + static_cast<int>(i / size);
            const int other = rank + step < nranks ? rank + step : rank + step - nranks;
            const integer offset = (slice.first + i - (step - 1) * size) * LENGTH;
            const From* from;
            From* target;
            const integer n = copy(other, offset, from, target) - offset;
            if (n <= 0) continue;
            if (n >= LENGTH && is_aligned<From, LENGTH>(from) && is_aligned<From, LENGTH>(target)) {
                pack[k] = load<LENGTH>(from);
                to[k] = target;
            } else {  // the last pack of a part, or all of them where parts are not aligned
                store(target, load<LENGTH>(from, n), n);
            }
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (to[k]) store(to[k], pack[k]);
    }
}

// out[i], and copy[i] if that is another place, = the sum of elements first + i of all ranks, in the order of an owner, for
// the i of a slice below n; term(rank, i) loads a pack of a rank from there on.
template <class T, class W, int LENGTH, class Term>
__device__ __forceinline__ void add_slice(
    const AllReduceArguments& a, const Slice& slice, int owner, integer first, integer n, T* out, T* copy, Term term) {
    for (integer i = threadIdx.x; i < slice.size; i += THREADS) {
        const integer at = (slice.first + i) * LENGTH;
        if (at >= n) continue;
        const auto term_at = [&](int source) { return term(source, at); };
        const Pack<T, LENGTH> total = sum<T, W, LENGTH>(a, owner, first + at, n - at, term_at);
        store(out + at, total, n - at);
        if (copy != out) store(copy + at, total, n - at);
    }
}

// The same of what was sent: the own elements, and those in the slots.
template <class T, class W, int LENGTH>
__device__ __forceinline__ void add_sent(
    const AllReduceArguments& a, const Slice& slice, int owner, integer first, integer n, T* out) {
    const int rank = static_cast<int>(a.rank);
    add_slice<T, W, LENGTH>(a, slice, owner, first, n, out, out, [&](int source, integer at) {
        if (source == rank) return load<LENGTH>(reinterpret_cast<const W*>(a.source) + first + at, n - at);
        // slots are padded to whole packs
        return load<LENGTH>(reinterpret_cast<const W*>(a.partials[rank] + source * a.slot_nbytes) + at);
    });
}

template <class T, class W>
__device__ __forceinline__ void one_shot(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(W);
    const int rank = static_cast<int>(a.rank);
    const Slice slice((a.count + LENGTH - 1) / LENGTH);
    if (a.contributing >> rank & 1)
        for_others<W, LENGTH>(a, slice, [&](int peer, integer offset, const W*& from, W*& to) {
            from = reinterpret_cast<const W*>(a.source) + offset;
            to = reinterpret_cast<W*>(a.partials[peer] + rank * a.slot_nbytes) + offset;
            return a.count;
        });
    if (!meet(a, 0)) return;
    add_sent<T, W, LENGTH>(a, slice, 0, 0, a.count, reinterpret_cast<T*>(a.out));
}

__device__ __forceinline__ integer largest_part(const AllReduceArguments& a) {
    integer largest = 0;
    for (int r = 0; r < a.nranks; r++) largest = max(largest, a.first[r + 1] - a.first[r]);
    return largest;
}

template <class T, class W>
__device__ __forceinline__ void two_shot(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(W);
    const int rank = static_cast<int>(a.rank), nranks = static_cast<int>(a.nranks);
    if (nranks == 0) return;
    const Slice slice((largest_part(a) + LENGTH - 1) / LENGTH);
    if (!meet(a, 0)) return;

    // out[part rank] = the sum of partials[r][part rank], whose memory is padded to whole packs
    const integer first = a.first[rank], n = a.first[rank + 1] - first;
    T* const out = reinterpret_cast<T*>(a.out);
    T* const result = reinterpret_cast<T*>(a.results[rank]);
    add_slice<T, W, LENGTH>(a, slice, rank, first, n, out + first, result + first, [&](int source, integer at) {
        return load<LENGTH>(reinterpret_cast<const W*>(a.partials[source]) + first + at);
    });
    if (result == out) {  // all of it in a second loop: stores to peers that take turns in every thread took twice as long
        __syncthreads();
        for_others<T, LENGTH>(a, slice, [&](int peer, integer offset, const T*& from, T*& to) {
            from = out + first + offset;
            to = reinterpret_cast<T*>(a.results[peer]) + first + offset;
            return n;
        });
        meet(a, 1);
        return;
    }
    if (!meet(a, 1)) return;

    // out[part r] = results[r][part r]
    for_others<T, LENGTH>(a, slice, [&](int owner, integer offset, const T*& from, T*& to) {
        from = reinterpret_cast<const T*>(a.results[owner]) + a.first[owner] + offset;
        to = out + a.first[owner] + offset;
        return a.first[owner + 1] - a.first[owner];
    });
}

// slots[rank] of owner r = partial[part r], and out[0..] = the sum of this rank's part
template <class T, class W>
__device__ __forceinline__ void scatter(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(W);
    const int rank = static_cast<int>(a.rank);
    if (a.nranks == 0) return;
    const Slice slice((largest_part(a) + LENGTH - 1) / LENGTH);
    if (a.contributing >> rank & 1)
        for_others<W, LENGTH>(a, slice, [&](int owner, integer offset, const W*& from, W*& to) {
            from = reinterpret_cast<const W*>(a.source) + a.first[owner] + offset;
            to = reinterpret_cast<W*>(a.partials[owner] + rank * a.slot_nbytes) + offset;
            return a.first[owner + 1] - a.first[owner];
        });
    if (!meet(a, 0)) return;
    const integer first = a.first[rank];
    add_sent<T, W, LENGTH>(a, slice, rank, first, a.first[rank + 1] - first, reinterpret_cast<T*>(a.out));
}

// Waits for the end of the kernel before, and sees what it has written: this one is launched early.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define ALL_REDUCE(NAME, T, W)                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                           \
        one_shot_##NAME(const __grid_constant__ AllReduceArguments a) { follow(); one_shot<T, W>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                           \
        two_shot_##NAME(const __grid_constant__ AllReduceArguments a) { follow(); two_shot<T, W>(a); } \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                           \
        scatter_##NAME(const __grid_constant__ AllReduceArguments a) { follow(); scatter<T, W>(a); }

ALL_REDUCE(float16, float16, float16)
ALL_REDUCE(float16_float32, float16, float)
ALL_REDUCE(bfloat16, bfloat16, bfloat16)
ALL_REDUCE(bfloat16_float32, bfloat16, float)
ALL_REDUCE(float32, float, float)
ALL_REDUCE(float64, double, double)
ALL_REDUCE(complex64, complex<float>, complex<float>)
ALL_REDUCE(complex128, complex<double>, complex<double>)
