// Sums of all ranks' partial products, or other reductions of their arrays, by one kernel that waits for its peers: to all
// ranks in one shot or in two, or each rank's part to that rank alone (a reduce-scatter).
//
// Elements first[r]..stop[r]-1 belong to rank r. They are added in the order of the ranks r+1, r+2, ..., r (cyclic). In
// one shot every rank sends everything to all, and all add in the order of owner 0. In a reduce-scatter each rank sends the
// owners their elements. In two shots it does the same, or each owner reads its elements where the others' products have
// left them, in their symmetric memory; the sums it stores into the others' `out` where that is symmetric memory too, else
// the others read them.
//
// A flag of the first meeting says that the sender's stream has come to this kernel. That is enough to read the product that
// an earlier kernel of that stream has written: the end of a task of a stream synchronizes with the start of the next one,
// the start of a kernel with that of all its threads (PTX ISA, memory consistency model, API synchronization), or with
// `follow` where a kernel starts early, and what precedes a release of system scope is seen behind the acquire of its flag.
// The flags of the second meeting follow the reads of the CTAs that send them, so that a product may be overwritten as soon
// as the kernel of its rank has ended. Sums that others read may be overwritten when their next call has begun.
//
// CTA i of a rank talks to the CTAs i of the others only, through flags that are set to 1 and that the waiting side resets.
// Of every part it sends, adds and reads the same slice, so that results may lie where the sources do. The grid is the same
// on all ranks. It need not be resident at once: CTAs start in the order of their indices, and i waits for no CTA that
// starts later.
//
// What is sent in a call must not meet what a peer still reads of the one before: calls alternate between two halves of the
// workspaces. The host chooses the half, or the kernels do, which then count the calls on the GPU.
#include "common.cuh"

constexpr int MAX_CTAS = 512;
constexpr int UNROLL = 4;
constexpr int THREADS = 384;  // two CTAs share the registers of a multiprocessor

struct AllReduceArguments {
    byte* out;           // elements have the same numbers in `out`, `source` and `normalised`
    const byte* source;  // in two shots 0: it is read where it lies, at `partials`
    const byte* old;
    integer slot_nbytes, rank, nranks;  // slot_nbytes: from slot to slot
    integer contributing;  // bit r: rank r has a partial product
    Factor beta;
    Watch watch;
    word* epoch;  // the calls so far in this workspace, times 2^16; 0 if the host has chosen the half
    integer partials_pitch, flags_pitch, results_pitch;  // bytes from one half to the other
    integer base;  // of element 0 of the parts: its number among the operands of the epilogue, and in `old`
    byte* normalised;  // where normalised rows go
    const byte* weight;
    integer columns;  // of a row that is normalised
    Terms terms;
    byte* partials[MAX_RANKS];  // of each rank: slots for the others' elements, or its partial product in two shots
    word* flags[MAX_RANKS];     // of each rank: 2 x nranks x MAX_CTAS words
    byte* results[MAX_RANKS];   // of each rank: its out, if all can write there, or where it leaves what others read
    integer first[MAX_RANKS], stop[MAX_RANKS];
};

// Elements first..stop-1 of a part are this CTA's, in whole units.
struct Slice {
    integer first, stop;

    __device__ __forceinline__ Slice(integer count, integer unit) {
        const integer units = (count + unit - 1) / unit, each = (units + gridDim.x - 1) / gridDim.x * unit;
        first = each * blockIdx.x;
        stop = first + each;
    }
};

// What a kernel needs that talks to its peers.
struct Peers {
    const AllReduceArguments& a;
    const int rank, nranks;
    const integer half;

    __device__ __forceinline__ explicit Peers(const AllReduceArguments& a)
        : a(a), rank(static_cast<int>(a.rank)), nranks(static_cast<int>(a.nranks)), half(a.epoch ? *a.epoch >> 16 & 1 : 0) {}

    __device__ __forceinline__ byte* partials(int r) const { return a.partials[r] + half * a.partials_pitch; }

    __device__ __forceinline__ byte* results(int r) const { return a.results[r] + half * a.results_pitch; }

    __device__ __forceinline__ word* flags(int r, int phase, int sender) const {
        byte* words = reinterpret_cast<byte*>(a.flags[r]) + half * a.flags_pitch;
        return reinterpret_cast<word*>(words) + (phase * nranks + sender) * MAX_CTAS + blockIdx.x;
    }

    __device__ __forceinline__ integer count(int r) const { return a.stop[r] - a.first[r]; }

    __device__ __forceinline__ integer largest_part() const {
        integer largest = 0;
        for (int r = 0; r < nranks; r++) largest = max(largest, count(r));
        return largest;
    }

    // Tells all peers that this CTA's stores of a phase are there, and waits for theirs. The same answer in all threads.
    __device__ __forceinline__ bool meet(int phase) const {
        bool failed = false;
        __syncthreads();
        const int peer = threadIdx.x;
        if (peer < nranks && peer != rank) {
            release(flags(peer, phase, rank), 1);
            word* flag = flags(rank, phase, peer);
            failed = !a.watch.wait(flag, peer, [](word value) { return value == 1; });
            if (!failed) *flag = 0;
        }
        // All threads know the half. The CTAs add 2^16 together, of which none sees all before it has added its share.
        if (phase == 0 && a.epoch && peer == THREADS - 1) atomicAdd(a.epoch, blockIdx.x ? 1 : (1 << 16) - (gridDim.x - 1));
        return !__syncthreads_or(failed);
    }

    // Packs of a part for, or of, each other rank, one rank after the other, from the next one on: THREADS of them at a
    // time, UNROLL loads in flight in each thread. `copy` says how many elements go from where to where.
    template <class From, int LENGTH, class Copy>
    __device__ __forceinline__ void for_others(const Slice& slice, Copy copy) const {
        const word size = static_cast<word>((slice.stop - slice.first + LENGTH - 1) / LENGTH);
        const word work = size * static_cast<word>(nranks - 1);
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
                const integer offset = slice.first + integer(i - (step - 1) * size) * LENGTH;
                const From* from;
                From* target;
                const integer n = min(copy(other, offset, from, target), slice.stop) - offset;
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
};

struct Add {
    template <class A>
    __device__ __forceinline__ static A of(A x, A y) {
        return plus(x, y);
    }
};

// What follows the last addition: + beta old.
template <class T, int LENGTH>
struct Scaled {
    typedef typename Accumulator<T>::type A;
    enum { NORMALISES = 0 };

    const Factor& beta;
    Pack<T, LENGTH> old = {};

    __device__ __forceinline__ Scaled(const AllReduceArguments& a, integer index, integer n) : beta(a.beta) {
        if (!beta.is_zero()) old = load<LENGTH>(reinterpret_cast<const T*>(a.old) + index, n);
    }

    __device__ __forceinline__ void apply(A (&x)[LENGTH]) const {
        if (beta.is_zero()) return;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) x[i] = plus(x[i], beta.of(A(widen(old.x[i]))));
    }
};

// A reduction of Ts, which travel as Ws, by an Operation, with a Finish behind it.
template <class T, class W, class Operation, template <class, int> class Finish>
struct Reduction : Peers {
    static constexpr int LENGTH = 16 / sizeof(W), BATCH = 4;
    typedef typename Accumulator<T>::type A;
    typedef Finish<T, LENGTH> End;

    __device__ __forceinline__ explicit Reduction(const AllReduceArguments& a) : Peers(a) {}

    // Rows that are normalised stay whole.
    __device__ __forceinline__ integer unit() const { return End::NORMALISES ? a.columns : LENGTH; }

    // Parts of whole packs are aligned, others may not be.
    __device__ __forceinline__ static Pack<W, LENGTH> load_part(const W* x, integer n) {
        return End::NORMALISES ? load<LENGTH>(x, n) : load<LENGTH>(x);
    }

    __device__ __forceinline__ byte* slot(int r, int sender) const { return partials(r) + sender * a.slot_nbytes; }

    // The sum of n elements, from `first` on, in the order of an owner; term(rank) loads those of a rank.
    template <class Term>
    __device__ __forceinline__ Pack<T, LENGTH> sum(int owner, integer first, integer n, Term term) const {
        A sum[LENGTH] = {};
        const End end(a, a.base + first, n);
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
                        const A x = widen(part[k].x[i]);
                        sum[i] = any ? Operation::of(sum[i], x) : x;
                    }
                    any = true;
                }
        }
        end.apply(sum);
        Pack<T, LENGTH> result;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) narrow(sum[i], result.x[i]);
        return result;
    }

    // out[i], and copy[i] if that is another place, = the sum of elements first + i of all ranks, in the order of an owner,
    // for the i of a slice below n; term(rank, i) loads a pack of a rank from there on.
    template <class Term>
    __device__ __forceinline__ void add_slice(
        const Slice& slice, int owner, integer first, integer n, T* out, T* copy, Term term) const {
        const integer stop = min(n, slice.stop);
        for (integer at = slice.first + threadIdx.x * LENGTH; at < stop; at += THREADS * LENGTH) {
            const auto term_at = [&](int source) { return term(source, at); };
            const Pack<T, LENGTH> total = sum(owner, first + at, stop - at, term_at);
            store(out + at, total, stop - at);
            if (copy != out) store(copy + at, total, stop - at);
        }
    }

    // The same of what was sent: the own elements, and those in the slots.
    __device__ __forceinline__ void add_sent(
        const Slice& slice, int owner, integer first, integer n, T* out, T* copy) const {
        add_slice(slice, owner, first, n, out, copy, [&](int source, integer at) {
            if (source == rank) return load<LENGTH>(reinterpret_cast<const W*>(a.source) + first + at, n - at);
            // slots are padded to whole packs
            return load_part(reinterpret_cast<const W*>(slot(rank, source)) + at, n - at);
        });
    }

    // slots[rank] of owner r = partial[part r]
    __device__ __forceinline__ void send(const Slice& slice) const {
        if (a.contributing >> rank & 1)
            for_others<W, LENGTH>(slice, [&](int owner, integer offset, const W*& from, W*& to) {
                from = reinterpret_cast<const W*>(a.source) + a.first[owner] + offset;
                to = reinterpret_cast<W*>(slot(owner, rank)) + offset;
                return count(owner);
            });
    }

    // The rows of a slice of a part, normalised; `to` and `copy` may be where they are.
    __device__ __forceinline__ void normalise(const Slice& slice, integer n, const T* from, T* to, T* copy) const {
        if constexpr (End::NORMALISES) {
            __syncthreads();
            for (integer at = slice.first; at < min(n, slice.stop); at += a.columns)
                End::normalise_row(a, from + at, to + at, copy + at);
        }
    }

    // The same of the rows of a rank's part, whose sums are in `out`.
    __device__ __forceinline__ void finish(const Slice& slice, int r) const {
        T* to = reinterpret_cast<T*>(a.normalised) + a.first[r];
        normalise(slice, count(r), reinterpret_cast<const T*>(a.out) + a.first[r], to, to);
    }

    __device__ __forceinline__ void one_shot() const {
        if (nranks == 0) return;
        const Slice slice(count(rank), unit());
        send(slice);
        if (meet(0)) add_part(slice, 0);
    }

    __device__ __forceinline__ void two_shot() const {
        if (nranks == 0) return;
        const Slice slice(largest_part(), unit());
        if (a.source) send(slice);
        if (!meet(0)) return;

        const integer first = a.first[rank], n = count(rank);
        T* const out = reinterpret_cast<T*>(a.out);
        T* const result = reinterpret_cast<T*>(results(rank));
        // out[part rank] = the sum of x[part rank] of all ranks, which they have sent, or which is read where it lies
        if (a.source)
            add_sent(slice, rank, first, n, out + first, result + first);
        else
            add_slice(slice, rank, first, n, out + first, result + first, [&](int source, integer at) {
                return load_part(reinterpret_cast<const W*>(partials(source)) + first + at, n - at);
            });
        const bool in_place = a.normalised == a.out;
        if (in_place) normalise(slice, n, out + first, out + first, result + first);
        if (result == out) {
            // all of it in a second loop: stores to peers that take turns in every thread took twice as long
            __syncthreads();
            for_others<T, LENGTH>(slice, [&](int peer, integer offset, const T*& from, T*& to) {
                from = out + first + offset;
                to = reinterpret_cast<T*>(results(peer)) + first + offset;
                return n;
            });
        }
        if (!meet(1)) return;
        if (result != out)
            // out[part r] = results[r][part r]
            for_others<T, LENGTH>(slice, [&](int owner, integer offset, const T*& from, T*& to) {
                from = reinterpret_cast<const T*>(results(owner)) + a.first[owner] + offset;
                to = out + a.first[owner] + offset;
                return count(owner);
            });
        if (End::NORMALISES && !in_place)
            for (int r = 0; r < nranks; r++) finish(slice, r);
    }

    __device__ __forceinline__ void scatter() const {
        if (nranks == 0) return;
        const Slice slice(largest_part(), unit());
        send(slice);
        if (meet(0)) add_part(slice, rank);
    }

    // out[part rank] = the sum of what was sent of this rank's part, in the order of an owner
    __device__ __forceinline__ void add_part(const Slice& slice, int owner) const {
        T* out = reinterpret_cast<T*>(a.out) + a.first[rank];
        add_sent(slice, owner, a.first[rank], count(rank), out, out);
        finish(slice, rank);
    }
};

// Waits for the end of the kernel before, and sees what it has written: this one is launched early.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#define ALL_REDUCE_KERNEL(KIND, NAME, ...)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)               \
        KIND##_##NAME(const __grid_constant__ AllReduceArguments a) {      \
        follow();                                                          \
        Reduction<__VA_ARGS__>(a).KIND();                                  \
    }

#define ALL_REDUCE(NAME, ...)                        \
    ALL_REDUCE_KERNEL(one_shot, NAME, __VA_ARGS__)   \
    ALL_REDUCE_KERNEL(two_shot, NAME, __VA_ARGS__)   \
    ALL_REDUCE_KERNEL(scatter, NAME, __VA_ARGS__)
