// Sums of all ranks' partial products, or other reductions of their arrays, by one kernel that waits for its peers: to all
// ranks in one shot or in two, or each rank's part to that rank alone (a reduce-scatter).
//
// Elements first[r]..stop[r]-1 belong to rank r. They are added in the order of the ranks r+1, r+2, ..., r (cyclic). In
// one shot every rank sends everything to all, and all add in the order of owner 0. In a reduce-scatter each rank sends the
// owners their elements. In two shots it does the same, and each owner sends the sums to all.
//
// What is sent goes into slots of the receiver, in packs that say themselves whether they are there (Post): no flag follows
// them, no thread waits for more than it reads, and nobody for stores to end. Who has read a pack clears its place. Calls
// alternate between two halves of the slots, so that a call sends into places that were cleared in the call before the last
// one: as each rank hears from every other one in each call, all have ended that call when this one begins.
//
// Two shots may pull, too (`pulled`): each owner reads its elements where the others' products have left them, in their
// symmetric memory, and stores the sums into the others' `out` where that is symmetric memory, else the others read them.
// A flag of the first meeting says that the sender's stream has come to this kernel, hence that the kernel before has ended,
// which wrote the product: it lies in that GPU's memory then, where peers read it. So this flag releases nothing, as torch's
// does not. The flags of the second meeting follow the reads of the CTAs that send them, so that a product may be overwritten as soon
// as the kernel of its rank has ended. Sums that others read may be overwritten when their next call has begun.
//
// What two shots do with sums, `gather` does with what each rank has: it is sent to all, and nothing is added.
//
// CTA i of a rank talks to the CTAs i of the others only. Of every part it sends, adds and takes the same slice, so that
// results may lie where the sources do. The grid is the same on all ranks. It need not be resident at once: CTAs start in
// the order of their indices, and i waits for no CTA that starts later.
//
// The host chooses the half of a call, or the kernels do, which then count the calls on the GPU.
#include "packets.cuh"

constexpr int MAX_CTAS = 512;
constexpr int UNROLL = 4;
#if NORMALISED  // a row of 4096 elements of 16 bits is a pack of each thread
constexpr int THREADS = 512, PER_SM = 1;
#elif __CUDA_ARCH__ >= 900  // two CTAs share the registers of a multiprocessor
constexpr int THREADS = 384, PER_SM = 2;
#else  // for older ones the compiler takes more of them
constexpr int THREADS = 384, PER_SM = 1;
#endif

struct AllReduceArguments {
    byte* out;           // elements have the same numbers in `out`, `source` and `normalised`
    const byte* source;
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
    byte* partials[MAX_RANKS];  // of each rank: slots for what each other one sends, then for its sums; or what is pulled
    word* flags[MAX_RANKS];     // of each rank: 2 x nranks x MAX_CTAS words
    byte* results[MAX_RANKS];   // of each rank: its out, if all can write there, or where it leaves what others read
    integer first[MAX_RANKS], stop[MAX_RANKS];
};

// Elements first..stop-1 of a part are this CTA's, in whole units.
struct Slice {
    integer first, stop;

    __device__ __forceinline__ Slice(integer first, integer stop) : first(first), stop(stop) {}

    __device__ __forceinline__ static Slice of(integer count, integer unit) {
        const integer each = shares(shares(count, unit), gridDim.x) * unit;
        return {each * blockIdx.x, each * blockIdx.x + each};
    }

    // x / y, rounded up: a division of 32 bits is quick.
    __device__ __forceinline__ static integer shares(integer x, integer y) {
        const integer sum = x + y - 1;
        if ((sum | y) >> 32 == 0) return static_cast<word>(sum) / static_cast<word>(y);
        return sum / y;
    }
};

// What a kernel needs that talks to its peers.
struct Peers {
    const AllReduceArguments& a;
    const int rank, nranks;
    const integer half;
    mutable bool failed = false;  // this thread has given up

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

    // The rank that is some steps after another one.
    __device__ __forceinline__ int after(int r, int steps) const { return r + steps < nranks ? r + steps : r + steps - nranks; }

    // Tells all peers that this CTA has come to a phase, with its stores if there are any, and waits for them. The same
    // answer in all threads.
    __device__ __forceinline__ bool meet(int phase, bool stored) const {
        __syncthreads();
        const int peer = threadIdx.x;
        if (peer < nranks && peer != rank) {
            stored ? release(flags(peer, phase, rank), 1) : announce(flags(peer, phase, rank), 1);
            word* flag = flags(rank, phase, peer);
            failed = !until(a.watch, peer, [&] { return acquire(flag) == 1; });
            if (!failed) *flag = 0;
        }
        return !__syncthreads_or(failed);
    }

    // Ends the half, once in each kernel. The CTAs add 2^16 together, of which none sees all before it has added its share.
    __device__ __forceinline__ void count_call() const {
        __syncthreads();  // all threads know the half
        if (a.epoch && threadIdx.x == 0) atomicAdd(a.epoch, blockIdx.x ? 1 : (1 << 16) - (gridDim.x - 1));
    }

    // What a peer sends to a place, when it is there; that it was not yet, `found` says. The place is as it was, then.
    template <class T, int LENGTH>
    __device__ __forceinline__ void receive(int peer, T* at, Post<T, LENGTH>& found, int patience = 1) const {
        const auto look_again = [&] {
            look(at, found.words);
            return found.is_there();
        };
        if (!found.is_there() && !failed) failed = !until(a.watch, peer, look_again, patience);
        found.clear(at);
    }

    // So many things for, or of, each other rank, one rank after the other, from the next one on: THREADS of them at a time,
    // of which each thread begins UNROLL before it finishes the first one.
    template <class Begun, class Begin, class Finish>
    __device__ __forceinline__ void for_others(word things, Begin begin, Finish finish) const {
        const word work = things * static_cast<word>(nranks - 1);
        for (word start = threadIdx.x; start < work; start += UNROLL * THREADS) {
            Begun begun[UNROLL];
            int other[UNROLL];
            word thing[UNROLL];
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                const word i = start + k * THREADS, steps = i / things;
                thing[k] = i - steps * things;
                other[k] = i < work ? after(rank, static_cast<int>(steps) + 1) : -1;
                if (other[k] >= 0) begin(other[k], thing[k], begun[k]);
            }
#pragma unroll
            for (int k = 0; k < UNROLL; k++)
                if (other[k] >= 0) finish(other[k], thing[k], begun[k]);
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

// A reduction of Ts, which travel as Ws, by an Operation, with a Finish after it.
template <class T, class W, class Operation, template <class, int> class Finish>
struct Reduction : Peers {
    static constexpr int LENGTH = 16 / sizeof(W), BATCH = 4;
    static constexpr int CHUNK = 4096 / sizeof(T);          // elements that a CTA takes at a time in two shots
    static constexpr int DIRECT = (512 << 10) / sizeof(T);  // of a part, whose sums go to all peers one after the other
    typedef typename Accumulator<T>::type A;
    typedef Finish<T, LENGTH> End;
    typedef Post<W, LENGTH> Part;
    typedef Post<T, LENGTH> Sum;

    __device__ __forceinline__ explicit Reduction(const AllReduceArguments& a) : Peers(a) {}

    // A pack of a part: its first element, and how many there are, none if the part ends before.
    struct Place {
        integer at, n;

        // The first pack is sent even if the part is empty: every rank hears from all.
        __device__ __forceinline__ bool is_sent() const { return n > 0 || at == 0; }
    };

    __device__ __forceinline__ Place place(const Slice& slice, word pack, int r) const {
        const integer at = slice.first + integer(pack) * LENGTH;
        return {at, min(count(r), slice.stop) - at};
    }

    __device__ __forceinline__ static word packs(const Slice& slice) {
        return static_cast<word>((slice.stop - slice.first + LENGTH - 1) / LENGTH);
    }

    __device__ __forceinline__ bool contributes(int r) const { return a.contributing >> r & 1; }

    // Slots of a rank: what others send of its part, and their sums.
    __device__ __forceinline__ W* part_at(int r, int sender, integer at) const {
        return reinterpret_cast<W*>(partials(r) + sender * a.slot_nbytes) + at;
    }

    __device__ __forceinline__ T* sum_at(int r, int owner, integer at) const {
        return reinterpret_cast<T*>(partials(r) + (nranks + owner) * a.slot_nbytes) + at;
    }

    // The sum of what the ranks have, in the order of an owner: ask(rank, part) makes a load of it, settle(rank, part) waits.
    struct Asked {
        Part part[BATCH];
    };

    template <class Ask>
    __device__ __forceinline__ void ask_for(int owner, int turn, Asked& asked, Ask ask) const {
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (turn + k <= nranks) ask(after(owner, turn + k), asked.part[k]);
    }

    template <class Ask, class Settle>
    __device__ __forceinline__ Pack<T, LENGTH> sum(
        int owner, integer first, integer n, Asked& asked, Ask ask, Settle settle) const {
        A sum[LENGTH] = {};
        const End end(a, a.base + first, n);
        bool any = false;
#pragma unroll 1
        for (int turn = 1; turn <= nranks; turn += BATCH) {
            if (turn > 1) ask_for(owner, turn, asked, ask);
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                if (turn + k > nranks) continue;
                const int source = after(owner, turn + k);
                settle(source, asked.part[k]);
                if (!contributes(source)) continue;
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const A x = widen(asked.part[k].pack.x[i]);
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

    // Asks for what was sent of a place of this rank's part, and adds it.
    __device__ __forceinline__ void ask_for_sent(int owner, const Place& place, Asked& asked) const {
        ask_for(owner, 1, asked, sent(place));
    }

    __device__ __forceinline__ auto sent(const Place& place) const {
        return [=](int source, Part& part) {
            const W* x = reinterpret_cast<const W*>(a.source) + a.first[rank] + place.at;
            if (source == rank)
                part.pack = load<LENGTH>(x, contributes(rank) ? place.n : 0);
            else
                look(part_at(rank, source, place.at), part.words);
        };
    }

    __device__ __forceinline__ Pack<T, LENGTH> sum_sent(int owner, const Place& place, Asked& asked) const {
        return sum(owner, a.first[rank] + place.at, place.n, asked, sent(place), [&](int source, Part& part) {
            if (source != rank) receive(source, part_at(rank, source, place.at), part);
        });
    }

    // put(place, pack) = sums of the places of a slice of this rank's part.
    template <class Put>
    __device__ __forceinline__ void add_sent(const Slice& slice, int owner, Put put) const {
        const word size = packs(slice);
        for (word pack = threadIdx.x; pack < size; pack += THREADS) {
            const Place here = place(slice, pack, rank);
            if (!here.is_sent()) break;
            Asked asked;
            ask_for_sent(owner, here, asked);
            put(here, sum_sent(owner, here, asked));
        }
    }

    // slots[rank] of owner r = partial[part r]
    __device__ __forceinline__ void send(const Slice& slice) const {
        const bool contributes = this->contributes(rank);
        for_others<Part>(
            packs(slice),
            [&](int owner, word pack, Part& part) {
                const Place from = place(slice, pack, owner);
                const W* x = reinterpret_cast<const W*>(a.source) + a.first[owner] + from.at;
                part.pack = load<LENGTH>(x, contributes ? from.n : 0);
            },
            [&](int owner, word pack, Part& part) {
                const Place to = place(slice, pack, owner);
                if (to.is_sent()) part.send(part_at(owner, rank, to.at));
            });
    }

    __device__ __forceinline__ void one_shot() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(count(rank), End::NORMALISES ? a.columns : LENGTH);
        send(slice);
        count_call();  // and all of the slice is sent: results may lie where it does
        if constexpr (End::NORMALISES)
            add_rows(slice);
        else
            add_part(slice, 0);
    }

    __device__ __forceinline__ void scatter() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_part(), LENGTH);
        send(slice);
        count_call();
        add_part(slice, rank);
    }

    // out[part rank] = the sum of what was sent of this rank's part, in the order of an owner
    __device__ __forceinline__ void add_part(const Slice& slice, int owner) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        add_sent(slice, owner, [&](const Place& place, const Pack<T, LENGTH>& x) { write(out + place.at, x, place.n); });
    }

    // The same of everything, and normalised = its rows, which are whole packs.
    __device__ __forceinline__ void add_rows(const Slice& slice) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        T* const normalised = reinterpret_cast<T*>(a.normalised) + a.first[rank];
        const auto place_of = [&](int row, integer at) { return Place{slice.first + row * a.columns + at, LENGTH}; };
        const integer there = max(min(count(rank), slice.stop) - slice.first, integer(0));
        End::normalise_rows(
            a, static_cast<int>(Slice::shares(there, a.columns)),
            [&](int row, integer at) {
                Asked asked;
                ask_for_sent(0, place_of(row, at), asked);
                return asked;
            },
            [&](int row, integer at, Asked& asked) {
                const Place place = place_of(row, at);
                const Pack<T, LENGTH> x = sum_sent(0, place, asked);
                write(out + place.at, x, LENGTH);
                return x;
            },
            [&](int row, integer at) { return load<LENGTH>(out + place_of(row, at).at, LENGTH); },
            [&](int row, integer at, const Pack<T, LENGTH>& x) { write(normalised + place_of(row, at).at, x, LENGTH); });
    }

    // In chunks, so that links and memory are busy at the same time: the next one is sent before this one is added, and the
    // others' sums of the one before are taken after that.
    __device__ __forceinline__ void two_shot() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_part(), LENGTH);
        const auto chunk = [&](integer first) { return Slice(first, min(first + CHUNK, slice.stop)); };
        const bool at_once = (slice.stop - slice.first) * gridDim.x <= DIRECT;
#pragma unroll 1
        for (integer next = slice.first; next < slice.stop + 2 * CHUNK; next += CHUNK) {
            if (next < slice.stop) send(chunk(next));
            if (next > slice.first && next < slice.stop + CHUNK) give(chunk(next - CHUNK), at_once);
            if (next > slice.first + CHUNK) take(chunk(next - 2 * CHUNK));
        }
        count_call();
    }

    // out[part rank] = slots[nranks + rank] of all = the sum of what was sent of this rank's part
    __device__ __forceinline__ void give(const Slice& slice, bool at_once) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        add_sent(slice, rank, [&](const Place& place, const Pack<T, LENGTH>& x) {
            write(out + place.at, x, place.n);
            if (!at_once) return;
            Sum sum(x);
#pragma unroll 1
            for (int steps = 1; steps < nranks; steps++) sum.send(sum_at(after(rank, steps), rank, place.at));
        });
        if (at_once) return;
        __syncthreads();
        spread(slice, out);
    }

    // slots[nranks + rank] of all = this rank's part, of a slice
    __device__ __forceinline__ void spread(const Slice& slice, const T* part) const {
        for_others<Sum>(
            packs(slice),
            [&](int, word pack, Sum& sum) {
                const Place from = place(slice, pack, rank);
                sum.pack = load<LENGTH>(part + from.at, from.n);
            },
            [&](int peer, word pack, Sum& sum) {
                const Place to = place(slice, pack, rank);
                if (to.is_sent()) sum.send(sum_at(peer, rank, to.at));
            });
    }

    // out[part r] = slots[nranks + r], of the slice of all others' parts
    __device__ __forceinline__ void take(const Slice& slice, int patience = 2) const {
        for_others<Sum>(
            packs(slice),
            [&](int owner, word pack, Sum& sum) {
                const Place from = place(slice, pack, owner);
                if (from.is_sent()) look(sum_at(rank, owner, from.at), sum.words);
            },
            [&](int owner, word pack, Sum& sum) {
                const Place to = place(slice, pack, owner);
                if (!to.is_sent()) return;
                receive(owner, sum_at(rank, owner, to.at), sum, patience);  // who may wait itself for another one
                write(reinterpret_cast<T*>(a.out) + a.first[owner] + to.at, sum.pack, to.n);
            });
    }

    // out = the parts of all ranks, each of which has its own in `source` or there. There are slots for sums only.
    __device__ __forceinline__ void gather() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_part(), LENGTH);
        const T* const part = reinterpret_cast<const T*>(a.source) + a.first[rank];
        T* const own = reinterpret_cast<T*>(a.out) + a.first[rank];
        spread(slice, part);
        count_call();
        for (word pack = threadIdx.x; own != part && pack < packs(slice); pack += THREADS) {
            const Place here = place(slice, pack, rank);
            if (here.n > 0) write(own + here.at, load<LENGTH>(part + here.at, here.n), here.n);
        }
        take(slice, 1);
    }

    // Two shots that pull.
    __device__ __forceinline__ void pulled() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_part(), LENGTH);
        if (!meet(0, false)) return;
        count_call();
        // out[part rank] = results[rank] = the sum of partial[part rank] of all ranks
        const integer first = a.first[rank];
        T* const out = reinterpret_cast<T*>(a.out);
        T* const left = reinterpret_cast<T*>(results(rank));
        const bool puts = left == out;
        const word size = packs(slice);
        for (word pack = threadIdx.x; pack < size; pack += THREADS) {
            const Place here = place(slice, pack, rank);
            if (here.n <= 0) break;
            const auto ask = [&](int source, Part& part) {  // whole packs are there, and aligned
                look(reinterpret_cast<const W*>(partials(source)) + first + here.at, part.words);
            };
            Asked asked;
            ask_for(rank, 1, asked, ask);
            const Pack<T, LENGTH> x = sum(rank, first + here.at, here.n, asked, ask, [](int, Part&) {});
            write(out + first + here.at, x, here.n);
            if (!puts) write(left + first + here.at, x, here.n);
        }
        if (puts) {
            // all of it in a second loop: stores to peers that take turns in every thread took twice as long
            __syncthreads();
            copy_parts(slice, [&](int peer, T*& from, T*& to) {
                from = out;
                to = reinterpret_cast<T*>(results(peer));
                return rank;
            });
        }
        if (!meet(1, true) || puts) return;
        copy_parts(slice, [&](int owner, T*& from, T*& to) {
            from = reinterpret_cast<T*>(results(owner));
            to = out;
            return owner;
        });
    }

    // to[part r] = from[part r], of a slice, for each other rank; `copy` says from where, to where, and whose part r it is.
    // Whole packs are there, and aligned.
    template <class Copy>
    __device__ __forceinline__ void copy_parts(const Slice& slice, Copy copy) const {
        for_others<Sum>(
            packs(slice),
            [&](int other, word pack, Sum& sum) {
                T *from, *to;
                const int part = copy(other, from, to);
                const Place here = place(slice, pack, part);
                if (here.n > 0) look(from + a.first[part] + here.at, sum.words);
            },
            [&](int other, word pack, Sum& sum) {
                T *from, *to;
                const int part = copy(other, from, to);
                const Place here = place(slice, pack, part);
                write(to + a.first[part] + here.at, sum.pack, here.n);
            });
    }
};

#define ALL_REDUCE_KERNEL(KIND, NAME, ...)                             \
    extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)      \
        KIND##_##NAME(const __grid_constant__ AllReduceArguments a) {  \
        follow();                                                      \
        Reduction<__VA_ARGS__>(a).KIND();                              \
    }

#define ONE_SHOT(NAME, ...) ALL_REDUCE_KERNEL(one_shot, NAME, __VA_ARGS__)

#define ALL_REDUCE(NAME, ...)                        \
    ONE_SHOT(NAME, __VA_ARGS__)                      \
    ALL_REDUCE_KERNEL(two_shot, NAME, __VA_ARGS__)   \
    ALL_REDUCE_KERNEL(scatter, NAME, __VA_ARGS__)    \
    ALL_REDUCE_KERNEL(pulled, NAME, __VA_ARGS__)
