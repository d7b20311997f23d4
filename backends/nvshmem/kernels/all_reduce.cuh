// Sums, or other reductions, of all ranks' arrays, each by one kernel that exchanges data with its peers: all-reduces
// in one or two shots, and reduce-scatters.
//
// Elements first[r]..stop[r]-1 are the shard of rank r, its owner. They are added in the order of ranks r+1, r+2, ...,
// r (cyclic). In one shot every rank sends its whole array to all ranks, and every rank adds all elements, in the order
// of owner 0. In a reduce-scatter each rank sends the owners their elements. In two shots it does the same, and each
// owner sends the sums to all ranks.
//
// Data is sent as LL packets (packets.cuh) into slots in the receiver's memory. A packet shows by itself whether it has
// arrived. So there are no flags, a thread waits only for the packets that it reads, and no thread waits for the
// completion of stores. The reader clears the packet's memory. Calls alternate between two halves of the slots, so that
// a call sends into memory that the call before the last one cleared: each rank receives from every other rank in each
// call, so all ranks have finished that call when this one begins.
//
// A two-shot all-reduce may also pull (`two_shot_pull`). Each owner reads its elements of the partial products in the
// peers' symmetric memory. It stores the sums into the peers' `out` if that is in symmetric memory; otherwise the peers
// read them. The flags of the first barrier show that the sender's stream has reached this kernel. Then the kernel
// before it, which wrote the product, has ended, and the product is in that GPU's memory. So these flags need no
// release semantics, as in torch's symmetric memory. The flags of the second barrier are set after the reads of the
// CTAs that set them, so a product may be overwritten as soon as this kernel has ended on its rank. Sums that peers
// read may be overwritten once the peers' next call has begun.
//
// `all_gather_ll` is the second shot alone: each rank sends its shard to all ranks.
//
// CTA i of a rank communicates with the CTAs i of the other ranks only. It sends, adds and receives the same slice of
// every shard, so results may overwrite the sources. The grid is the same on all ranks. Its CTAs need not all be
// resident: they start in the order of their indices, and no CTA waits for one that starts later.
//
// The host chooses the half of the slots for each call. Or the kernels count the calls in `epoch` and choose it
// themselves.
#include "packets.cuh"

constexpr int MAX_CTAS = 512;
constexpr int UNROLL = 4;
#if NORMALISED  // each thread holds one pack of a row of 4096 16-bit elements
constexpr int THREADS = 512, PER_SM = 1;
#elif __CUDA_ARCH__ >= 900  // two CTAs fit the registers of a multiprocessor
constexpr int THREADS = 384, PER_SM = 2;
#else  // on older GPUs the compiler needs more registers
constexpr int THREADS = 384, PER_SM = 1;
#endif

struct AllReduceArguments {
    byte* out;  // `out`, `source` and `normalised` have the same element indices
    const byte* source;
    const byte* old;
    integer slot_nbytes, rank, nranks;  // slot_nbytes: distance of slots in bytes
    integer contributing;               // bit r: rank r has a partial product
    Factor beta;
    Watch watch;
    word* epoch;  // number of calls in this workspace times 2^16; 0 if the host chooses the half
    integer partials_pitch, flags_pitch, results_pitch;  // bytes from one half to the other
    integer base;  // index of element 0 in the operands of the epilogue and in `old`
    byte* normalised;  // result of the normalisation
    const byte* weight;
    integer columns;  // length of a normalised row
    Terms terms;
    // Of each rank: slots for terms from each rank, then for sums; or the pulled partial product.
    byte* partials[MAX_RANKS];
    word* flags[MAX_RANKS];  // of each rank: 2 x nranks x MAX_CTAS words
    // Of each rank: its `out` if peers can write there, else memory in which peers read its sums.
    byte* results[MAX_RANKS];
    integer first[MAX_RANKS], stop[MAX_RANKS];
};

// Elements first..stop-1 of a shard that this CTA processes, in whole units.
struct Slice {
    integer first, stop;

    __device__ __forceinline__ Slice(integer first, integer stop) : first(first), stop(stop) {}

    __device__ __forceinline__ static Slice of(integer count, integer unit) {
        const integer each = ceil_div(ceil_div(count, unit), gridDim.x) * unit;
        return {each * blockIdx.x, each * blockIdx.x + each};
    }

    // x / y, rounded up; a division of 32 bits is much faster than one of 64.
    __device__ __forceinline__ static integer ceil_div(integer x, integer y) {
        const integer sum = x + y - 1;
        if ((sum | y) >> 32 == 0) return static_cast<word>(sum) / static_cast<word>(y);
        return sum / y;
    }
};

// Communication of a kernel with its peers.
struct Communicator {
    const AllReduceArguments& a;
    const int rank, nranks;
    const integer half;
    mutable bool failed = false;  // this thread has given up waiting

    __device__ __forceinline__ explicit Communicator(const AllReduceArguments& a)
        : a(a),
          rank(static_cast<int>(a.rank)),
          nranks(static_cast<int>(a.nranks)),
          half(a.epoch ? *a.epoch >> 16 & 1 : 0) {}

    __device__ __forceinline__ byte* partials(int r) const { return a.partials[r] + half * a.partials_pitch; }

    __device__ __forceinline__ byte* results(int r) const { return a.results[r] + half * a.results_pitch; }

    __device__ __forceinline__ word* flags(int r, int phase, int sender) const {
        byte* words = reinterpret_cast<byte*>(a.flags[r]) + half * a.flags_pitch;
        return reinterpret_cast<word*>(words) + (phase * nranks + sender) * MAX_CTAS + blockIdx.x;
    }

    __device__ __forceinline__ integer count(int r) const { return a.stop[r] - a.first[r]; }

    __device__ __forceinline__ integer largest_shard() const {
        integer largest = 0;
        for (int r = 0; r < nranks; r++) largest = max(largest, count(r));
        return largest;
    }

    // The rank that is `steps` ranks after r, cyclically.
    __device__ __forceinline__ int rank_after(int r, int steps) const {
        return r + steps < nranks ? r + steps : r + steps - nranks;
    }

    // A barrier with the same CTA of all peers; with release_stores the CTA's stores are visible to peers after it.
    // Returns whether all peers arrived in time, the same in all threads.
    __device__ __forceinline__ bool barrier(int phase, bool release_stores) const {
        __syncthreads();
        const int peer = threadIdx.x;
        if (peer < nranks && peer != rank) {
            release_stores ? release(flags(peer, phase, rank), 1) : set_relaxed(flags(peer, phase, rank), 1);
            word* flag = flags(rank, phase, peer);
            failed = !wait_until(a.watch, peer, [&] { return acquire(flag) == 1; });
            if (!failed) *flag = 0;
        }
        return !__syncthreads_or(failed);
    }

    // Counts the call, once in each kernel, which ends the use of this half. All CTAs together add 2^16, and each one
    // reads the epoch before it adds its share, so all see the same half.
    __device__ __forceinline__ void count_call() const {
        __syncthreads();  // all threads have read the epoch
        if (a.epoch && threadIdx.x == 0) atomicAdd(a.epoch, blockIdx.x ? 1 : (1 << 16) - (gridDim.x - 1));
    }

    // Waits until a packet from a peer has arrived in a slot, and clears the slot. The caller has loaded `packet` once
    // already.
    template <class T, int LENGTH>
    __device__ __forceinline__ void receive(
        int peer, T* at, LLPacket<T, LENGTH>& packet, int timeout_factor = 1) const {
        const auto reload = [&] {
            load_words(at, packet.words);
            return packet.has_arrived();
        };
        if (!packet.has_arrived() && !failed) failed = !wait_until(a.watch, peer, reload, timeout_factor);
        packet.clear(at);
    }

    // Calls begin(peer, item, state) and finish(peer, item, state) for `items` items of each peer, one peer after the
    // other, beginning with the next rank. The CTA's threads take THREADS items at a time. Each thread begins UNROLL
    // items before it finishes the first one.
    template <class State, class Begin, class Finish>
    __device__ __forceinline__ void for_each_peer(word items, Begin begin, Finish finish) const {
        const word work = items * static_cast<word>(nranks - 1);
        for (word start = threadIdx.x; start < work; start += UNROLL * THREADS) {
            State state[UNROLL];
            int peer[UNROLL];
            word item[UNROLL];
#pragma unroll
            for (int k = 0; k < UNROLL; k++) {
                const word i = start + k * THREADS, steps = i / items;
                item[k] = i - steps * items;
                peer[k] = i < work ? rank_after(rank, static_cast<int>(steps) + 1) : -1;
                if (peer[k] >= 0) begin(peer[k], item[k], state[k]);
            }
#pragma unroll
            for (int k = 0; k < UNROLL; k++)
                if (peer[k] >= 0) finish(peer[k], item[k], state[k]);
        }
    }
};

struct Add {
    template <class A>
    __device__ __forceinline__ static A of(A x, A y) {
        return plus(x, y);
    }
};

// Epilogue of plain sums: + beta old.
template <class T, int LENGTH>
struct AddScaled {
    typedef typename Accumulator<T>::type A;
    enum { NORMALISES = 0 };

    const Factor& beta;
    Pack<T, LENGTH> old = {};

    __device__ __forceinline__ AddScaled(const AllReduceArguments& a, integer index, integer n) : beta(a.beta) {
        if (!beta.is_zero()) old = load<LENGTH>(reinterpret_cast<const T*>(a.old) + index, n);
    }

    __device__ __forceinline__ void apply(A (&x)[LENGTH]) const {
        if (beta.is_zero()) return;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) x[i] = plus(x[i], beta.of(A(widen(old.x[i]))));
    }
};

// A reduction of elements of type T, which are sent as type W, by an Operation, with an Epilogue.
template <class T, class W, class Operation, template <class, int> class Epilogue>
struct Reduction : Communicator {
    static constexpr int LENGTH = 16 / sizeof(W), BATCH = 4;
    static constexpr int CHUNK = 4096 / sizeof(T);  // elements of a CTA's chunk in two shots
    // Up to this shard size each sum is sent to all peers at once.
    static constexpr int DIRECT = (512 << 10) / sizeof(T);
    typedef typename Accumulator<T>::type A;
    typedef Epilogue<T, LENGTH> FusedEpilogue;
    typedef LLPacket<W, LENGTH> TermPacket;
    typedef LLPacket<T, LENGTH> SumPacket;

    __device__ __forceinline__ explicit Reduction(const AllReduceArguments& a) : Communicator(a) {}

    // A pack of a shard: its first element, and the number of elements, at most 0 after the end of the shard.
    struct Span {
        integer at, n;

        // The first pack is sent even if the shard is empty, since every rank must receive from all ranks.
        __device__ __forceinline__ bool is_sent() const { return n > 0 || at == 0; }
    };

    __device__ __forceinline__ Span span_of(const Slice& slice, word pack, int r) const {
        const integer at = slice.first + integer(pack) * LENGTH;
        return {at, min(count(r), slice.stop) - at};
    }

    __device__ __forceinline__ static word packs(const Slice& slice) {
        return static_cast<word>((slice.stop - slice.first + LENGTH - 1) / LENGTH);
    }

    __device__ __forceinline__ bool contributes(int r) const { return a.contributing >> r & 1; }

    // Slots of rank r: for a sender's terms of its shard, and for an owner's sums.
    __device__ __forceinline__ W* term_slot(int r, int sender, integer at) const {
        return reinterpret_cast<W*>(partials(r) + sender * a.slot_nbytes) + at;
    }

    __device__ __forceinline__ T* sum_slot(int r, int owner, integer at) const {
        return reinterpret_cast<T*>(partials(r) + (nranks + owner) * a.slot_nbytes) + at;
    }

    // Packets of BATCH ranks, whose loads are in flight together.
    struct TermPackets {
        TermPacket packet[BATCH];
    };

    template <class LoadTerm>
    __device__ __forceinline__ void load_terms(int owner, int step, TermPackets& packets, LoadTerm load_term) const {
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (step + k <= nranks) load_term(rank_after(owner, step + k), packets.packet[k]);
    }

    // The reduction of all ranks' elements in the order of an owner. load_term(rank, packet) issues the load of a term;
    // wait_term(rank, packet) waits for its arrival. The caller has called load_terms for the first batch.
    template <class LoadTerm, class WaitTerm>
    __device__ __forceinline__ Pack<T, LENGTH> reduce(
        int owner, integer first, integer n, TermPackets& packets, LoadTerm load_term, WaitTerm wait_term) const {
        A acc[LENGTH] = {};
        const FusedEpilogue epilogue(a, a.base + first, n);
        bool started = false;
#pragma unroll 1
        for (int step = 1; step <= nranks; step += BATCH) {
            if (step > 1) load_terms(owner, step, packets, load_term);
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                if (step + k > nranks) continue;
                const int source = rank_after(owner, step + k);
                wait_term(source, packets.packet[k]);
                if (!contributes(source)) continue;
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const A x = widen(packets.packet[k].pack.x[i]);
                    acc[i] = started ? Operation::of(acc[i], x) : x;
                }
                started = true;
            }
        }
        epilogue.apply(acc);
        Pack<T, LENGTH> result;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) narrow(acc[i], result.x[i]);
        return result;
    }

    // Loads the terms of a span of this rank's shard from the slots.
    __device__ __forceinline__ void load_received_terms(int owner, const Span& span, TermPackets& packets) const {
        load_terms(owner, 1, packets, received_term_loader(span));
    }

    __device__ __forceinline__ auto received_term_loader(const Span& span) const {
        return [=](int source, TermPacket& packet) {
            const W* x = reinterpret_cast<const W*>(a.source) + a.first[rank] + span.at;
            if (source == rank)
                packet.pack = load<LENGTH>(x, contributes(rank) ? span.n : 0);
            else
                load_words(term_slot(rank, source, span.at), packet.words);
        };
    }

    __device__ __forceinline__ Pack<T, LENGTH> reduce_received_terms(
        int owner, const Span& span, TermPackets& packets) const {
        const auto wait_term = [&](int source, TermPacket& packet) {
            if (source != rank) receive(source, term_slot(rank, source, span.at), packet);
        };
        return reduce(owner, a.first[rank] + span.at, span.n, packets, received_term_loader(span), wait_term);
    }

    // Calls write(span, pack) with the reduced packs of a slice of this rank's shard.
    template <class Write>
    __device__ __forceinline__ void reduce_slice(const Slice& slice, int owner, Write write) const {
        const word size = packs(slice);
        for (word pack = threadIdx.x; pack < size; pack += THREADS) {
            const Span span = span_of(slice, pack, rank);
            if (!span.is_sent()) break;
            TermPackets packets;
            load_received_terms(owner, span, packets);
            write(span, reduce_received_terms(owner, span, packets));
        }
    }

    // slots[rank] of owner r = partial[shard r]
    __device__ __forceinline__ void send_terms(const Slice& slice) const {
        const bool contributes = this->contributes(rank);
        for_each_peer<TermPacket>(
            packs(slice),
            [&](int owner, word pack, TermPacket& packet) {
                const Span from = span_of(slice, pack, owner);
                const W* x = reinterpret_cast<const W*>(a.source) + a.first[owner] + from.at;
                packet.pack = load<LENGTH>(x, contributes ? from.n : 0);
            },
            [&](int owner, word pack, TermPacket& packet) {
                const Span to = span_of(slice, pack, owner);
                if (to.is_sent()) packet.send(term_slot(owner, rank, to.at));
            });
    }

    __device__ __forceinline__ void one_shot() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(count(rank), FusedEpilogue::NORMALISES ? a.columns : LENGTH);
        send_terms(slice);
        count_call();  // its __syncthreads() also makes sure that the slice is sent: results may overwrite it
        if constexpr (FusedEpilogue::NORMALISES)
            reduce_and_normalise_rows(slice);
        else
            reduce_shard(slice, 0);
    }

    __device__ __forceinline__ void reduce_scatter() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_shard(), LENGTH);
        send_terms(slice);
        count_call();
        reduce_shard(slice, rank);
    }

    // out[shard rank] = the reduction of the terms in this rank's slots, in the order of an owner
    __device__ __forceinline__ void reduce_shard(const Slice& slice, int owner) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        reduce_slice(slice, owner, [&](const Span& span, const Pack<T, LENGTH>& x) {
            store_vector(out + span.at, x, span.n);
        });
    }

    // As reduce_shard, of whole rows, and normalised = the normalised rows. Rows consist of whole packs.
    __device__ __forceinline__ void reduce_and_normalise_rows(const Slice& slice) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        T* const normalised = reinterpret_cast<T*>(a.normalised) + a.first[rank];
        const auto row_span = [&](int row, integer at) { return Span{slice.first + row * a.columns + at, LENGTH}; };
        const integer nelements = max(min(count(rank), slice.stop) - slice.first, integer(0));
        FusedEpilogue::normalise_rows(
            a, static_cast<int>(Slice::ceil_div(nelements, a.columns)),
            [&](int row, integer at) {
                TermPackets packets;
                load_received_terms(0, row_span(row, at), packets);
                return packets;
            },
            [&](int row, integer at, TermPackets& packets) {
                const Span span = row_span(row, at);
                const Pack<T, LENGTH> x = reduce_received_terms(0, span, packets);
                store_vector(out + span.at, x, LENGTH);
                return x;
            },
            [&](int row, integer at) { return load<LENGTH>(out + row_span(row, at).at, LENGTH); },
            [&](int row, integer at, const Pack<T, LENGTH>& x) {
                store_vector(normalised + row_span(row, at).at, x, LENGTH);
            });
    }

    // In chunks, so that links and memory are busy at the same time: the next chunk is sent, then this one is reduced,
    // then the sums of the chunk before are received.
    __device__ __forceinline__ void two_shot() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_shard(), LENGTH);
        const auto chunk = [&](integer first) { return Slice(first, min(first + CHUNK, slice.stop)); };
        const bool at_once = (slice.stop - slice.first) * gridDim.x <= DIRECT;
#pragma unroll 1
        for (integer next = slice.first; next < slice.stop + 2 * CHUNK; next += CHUNK) {
            if (next < slice.stop) send_terms(chunk(next));
            if (next > slice.first && next < slice.stop + CHUNK) reduce_and_broadcast(chunk(next - CHUNK), at_once);
            if (next > slice.first + CHUNK) receive_sums(chunk(next - 2 * CHUNK));
        }
        count_call();
    }

    // out[shard rank] = slots[nranks + rank] of all ranks = the reduction of the terms in this rank's slots
    __device__ __forceinline__ void reduce_and_broadcast(const Slice& slice, bool at_once) const {
        T* const out = reinterpret_cast<T*>(a.out) + a.first[rank];
        reduce_slice(slice, rank, [&](const Span& span, const Pack<T, LENGTH>& x) {
            store_vector(out + span.at, x, span.n);
            if (!at_once) return;
            SumPacket sum(x);
#pragma unroll 1
            for (int steps = 1; steps < nranks; steps++) sum.send(sum_slot(rank_after(rank, steps), rank, span.at));
        });
        if (at_once) return;
        __syncthreads();
        broadcast_shard(slice, out);
    }

    // slots[nranks + rank] of all ranks = a slice of this rank's shard
    __device__ __forceinline__ void broadcast_shard(const Slice& slice, const T* shard) const {
        for_each_peer<SumPacket>(
            packs(slice),
            [&](int, word pack, SumPacket& sum) {
                const Span from = span_of(slice, pack, rank);
                sum.pack = load<LENGTH>(shard + from.at, from.n);
            },
            [&](int peer, word pack, SumPacket& sum) {
                const Span to = span_of(slice, pack, rank);
                if (to.is_sent()) sum.send(sum_slot(peer, rank, to.at));
            });
    }

    // out[shard r] = slots[nranks + r], a slice of the shards of all other ranks
    __device__ __forceinline__ void receive_sums(const Slice& slice, int timeout_factor = 2) const {
        for_each_peer<SumPacket>(
            packs(slice),
            [&](int owner, word pack, SumPacket& sum) {
                const Span from = span_of(slice, pack, owner);
                if (from.is_sent()) load_words(sum_slot(rank, owner, from.at), sum.words);
            },
            [&](int owner, word pack, SumPacket& sum) {
                const Span to = span_of(slice, pack, owner);
                if (!to.is_sent()) return;
                // The owner may itself be waiting for another rank.
                receive(owner, sum_slot(rank, owner, to.at), sum, timeout_factor);
                store_vector(reinterpret_cast<T*>(a.out) + a.first[owner] + to.at, sum.pack, to.n);
            });
    }

    // out = the shards of all ranks; each rank's own is in `source`, which may be part of out. The slots are those of
    // sums only.
    __device__ __forceinline__ void all_gather_ll() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_shard(), LENGTH);
        const T* const shard = reinterpret_cast<const T*>(a.source) + a.first[rank];
        T* const own = reinterpret_cast<T*>(a.out) + a.first[rank];
        broadcast_shard(slice, shard);
        count_call();
        for (word pack = threadIdx.x; own != shard && pack < packs(slice); pack += THREADS) {
            const Span span = span_of(slice, pack, rank);
            if (span.n > 0) store_vector(own + span.at, load<LENGTH>(shard + span.at, span.n), span.n);
        }
        receive_sums(slice, 1);
    }

    // A two-shot all-reduce that pulls.
    __device__ __forceinline__ void two_shot_pull() const {
        if (nranks == 0) return;
        const Slice slice = Slice::of(largest_shard(), LENGTH);
        if (!barrier(0, false)) return;
        count_call();
        // out[shard rank] = results[rank] = the sum of partial[shard rank] of all ranks
        const integer first = a.first[rank];
        T* const out = reinterpret_cast<T*>(a.out);
        T* const result = reinterpret_cast<T*>(results(rank));
        const bool pushes = result == out;
        const word size = packs(slice);
        for (word pack = threadIdx.x; pack < size; pack += THREADS) {
            const Span span = span_of(slice, pack, rank);
            if (span.n <= 0) break;
            const auto load_term = [&](int source, TermPacket& packet) {  // packs are whole and aligned
                load_words(reinterpret_cast<const W*>(partials(source)) + first + span.at, packet.words);
            };
            TermPackets packets;
            load_terms(rank, 1, packets, load_term);
            const auto no_wait = [](int, TermPacket&) {};
            const Pack<T, LENGTH> x = reduce(rank, first + span.at, span.n, packets, load_term, no_wait);
            store_vector(out + first + span.at, x, span.n);
            if (!pushes) store_vector(result + first + span.at, x, span.n);
        }
        if (pushes) {
            // A second loop sends it to the peers: stores to alternating peers in the first loop took twice as long.
            __syncthreads();
            copy_shards(slice, [&](int peer, T*& from, T*& to) {
                from = out;
                to = reinterpret_cast<T*>(results(peer));
                return rank;
            });
        }
        if (!barrier(1, true) || pushes) return;
        copy_shards(slice, [&](int owner, T*& from, T*& to) {
            from = reinterpret_cast<T*>(results(owner));
            to = out;
            return owner;
        });
    }

    // to[shard r] = from[shard r], a slice, for each other rank. copy(rank, from, to) sets the arrays and returns r.
    // Packs are whole and aligned.
    template <class Copy>
    __device__ __forceinline__ void copy_shards(const Slice& slice, Copy copy) const {
        for_each_peer<SumPacket>(
            packs(slice),
            [&](int peer, word pack, SumPacket& sum) {
                T *from, *to;
                const int shard = copy(peer, from, to);
                const Span span = span_of(slice, pack, shard);
                if (span.n > 0) load_words(from + a.first[shard] + span.at, sum.words);
            },
            [&](int peer, word pack, SumPacket& sum) {
                T *from, *to;
                const int shard = copy(peer, from, to);
                const Span span = span_of(slice, pack, shard);
                store_vector(to + a.first[shard] + span.at, sum.pack, span.n);
            });
    }
};

#define ALL_REDUCE_KERNEL(KIND, NAME, ...)                            \
    extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)     \
        KIND##_##NAME(const __grid_constant__ AllReduceArguments a) { \
        grid_dependency_sync();                                       \
        Reduction<__VA_ARGS__>(a).KIND();                             \
    }

#define ONE_SHOT(NAME, ...) ALL_REDUCE_KERNEL(one_shot, NAME, __VA_ARGS__)

#define ALL_REDUCE(NAME, ...)                            \
    ONE_SHOT(NAME, __VA_ARGS__)                          \
    ALL_REDUCE_KERNEL(two_shot, NAME, __VA_ARGS__)       \
    ALL_REDUCE_KERNEL(reduce_scatter, NAME, __VA_ARGS__) \
    ALL_REDUCE_KERNEL(two_shot_pull, NAME, __VA_ARGS__)
