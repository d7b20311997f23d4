// D := alpha A B + beta C on Hopper: one persistent kernel of TMA loads, wgmma products and TMA stores.
//
// D is M x N, its rows contiguous. A is M x K and B is K x N, each stored either way: along K, or along M and N. All that is
// loaded is boxes of 64 x 64 elements in TMA's 128-byte swizzle, 8 KB; elements outside of the matrices are zero.
//
// D consists of parts, each the product of its own A and B: of one part, or of many whose operands arrive one after the
// other, each with a flag that is set when they are there. Clusters of two CTAs take tiles of the parts from a table. The
// two tiles of a cluster lie one below the other and share B, of which each CTA loads half of the boxes for both: 64 KB
// from the L2 cache for 96 KB in shared memory. In a part that has the rows of one tile only they lie beside each other
// and share A.
//
// A part may be a partial product that a peer adds up. A signal tells when it is stored: the copy engine that brings it
// there, or the peer, if D lies in its memory. And some parts have terms: what peers have sent of them, each with a flag,
// is added to the sums of their tiles while they grow. Each cluster takes its tiles in the order of the parts, and nothing is
// waited for that a peer makes of a later part: so nobody waits for ever. A part may be stored at further places, too, from
// where peers fetch it for instance. Another thread loads terms into the stripes through which sums go to memory later: in the
// ring they would hold up operands.
//
// A part's operands may come in slices along K, each with a flag of its own: then tiles begin with the first slice. And the
// first clusters may do nothing but send: they store this rank's operand at the peers, slice after slice, and set the flags
// there. So a product of few tiles is multiplied while its operands travel.
//
// In a CTA one thread loads boxes into a ring of stages, and two warpgroups ("consumers") multiply them, each 64 rows of the
// tile by all its columns. Each stage has two barriers. "full" waits for the loading thread, which announces how many bytes
// will come, and for the bytes, from both CTAs. "empty" waits for the consumers of both CTAs, since both write here. A
// barrier's phases alternate; a wait names the parity of the phase that must be over, and on a barrier that has not been
// used yet the phase of parity 1 is, so the ring begins empty.
//
// Each warp of a consumer passes its sums through stripes of its own, 16 lines of 64 elements, to memory: no warp waits for
// another, and the next products begin while TMA still reads and stores. Meanwhile the next tile's first stages are loaded.
//
// Registers: 3 warpgroups of 168 are launched; the loading one gives all but 40 away and each consumer has 232, 128 of which
// are sums. The compiler believes that only if no path in the roles' branches ends the kernel: a trap there costs spills.
//
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "cp.async.bulk.tensor".
#include "common.cuh"

// What a compilation chooses; these are for compilers that are told nothing.
#ifndef TYPE
#define TYPE "bf16"  // of A, B, C and D; or "f16"
#define A_ALONG_M 0  // how A is stored: rows of A, or columns
#define B_ALONG_N 0  // how B is stored: columns of B, or rows
#define READS_C 0    // whether beta is not 0
#define PARTS 8      // of D, at most
#define WAITS 1      // whether parts have flags
#define SIGNALS 1    // whether parts have signals
#define TERMS 7      // of each part that has any
#define LISTED 8     // terms of all parts, at most
#define PLACES 8     // further ones where parts are stored, at most
#define WIDTH 256    // columns of the widest tile: narrow ones leave room for more stages
#define PEERS 8      // to which an operand is sent, at most
#define SPLIT 1      // CTAs of a cluster that share a tile, each with a part of K: 1 or 2
#endif

constexpr int LINE = 64, BOX_NBYTES = LINE * LINE * 2;
constexpr int STRIPE = 16, STRIPE_NBYTES = STRIPE * LINE * 2;
constexpr int CLUSTER = 2, CONSUMERS = 2, WARPS = 4 * CONSUMERS, THREADS = 128 * (CONSUMERS + 1);
constexpr int ROWS = CONSUMERS * LINE;  // of a tile of a CTA
constexpr int A_BOXES = ROWS / LINE, B_BOXES = WIDTH / LINE;
constexpr int SHARING = CLUSTER / SPLIT;  // CTAs of a cluster that share operands
constexpr int STAGE_NBYTES = (A_BOXES + B_BOXES) * BOX_NBYTES, STAGES = 24 * BOX_NBYTES / STAGE_NBYTES;
constexpr int STAGING = 2;  // stripes of each warp on their way to memory, or with a piece of a term
constexpr int PIECE = STAGING * LINE;
constexpr int PASSED = WIDTH < PIECE ? WIDTH : PIECE;  // columns of sums or terms that a stage holds
static_assert(ROWS * PASSED * 2 <= STAGE_NBYTES && LINE * PASSED * 4 <= STAGE_NBYTES, "a stage holds them");
template <int COLUMNS>
constexpr int PIECES_OF_TERM = (COLUMNS + PIECE - 1) / PIECE;
constexpr int STAGING_AT = STAGES * STAGE_NBYTES, BARRIERS_AT = STAGING_AT + WARPS * STAGING * STRIPE_NBYTES;
// Of each SM 4096 registers and 2 KiB of shared memory stay free: for two warps in which lanes wait beside this kernel.
constexpr int ANY_REGISTERS = 160, PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 216;
static_assert(ANY_REGISTERS * THREADS >= 128 * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS));
constexpr int SENT_LENGTH = 256, SENT_LINES = 16, SENT_NBYTES = SENT_LENGTH * SENT_LINES * 2;  // of boxes that are sent
constexpr int SENDING_WARPS = 4;
constexpr int MOST_BARRIERS_NBYTES = 1024;
static_assert(8 * (2 * STAGES + 2 * WARPS + 3 + 2 * SENDING_WARPS) <= MOST_BARRIERS_NBYTES, "barriers lie behind the stripes");
constexpr time_ns PATIENCE = 10'000'000'000;  // a wait in a cluster that takes longer is an error of this file

struct alignas(64) TensorMap {
    byte opaque[128];
};

// Rows from `row` on and columns from `column` on of a part, of all CTAs of a cluster; `width` columns each. Width 0: no more.
struct alignas(16) Tile {
    int row, column, width, part;
};

// Operands and result; what `flag` tells of, rank `source` sends. `signal` is to be set when D is stored, which `tiles` of CTAs
// are.
struct Part {
    TensorMap a, b, c, d;
    word* flag;
    integer source;
    word* signal;
    integer tiles;
    integer beside;  // whether the tiles of a cluster are
    integer partial;  // whether D is alpha A B alone
    integer terms;   // index of the first of its terms, -1: it has none
    integer places, end;  // indices of the further places where D is stored too
    integer late;    // whether its terms come when its tiles are multiplied
};

// What rank `source` has computed of a part.
struct PartTerm {
    TensorMap map;
    word* flag;
    integer source;
};

// Where what is sent goes: the flag is that of the first slice.
struct Peer {
    TensorMap target;
    word* flag;
};

// What is sent, as a matrix whose lines are along K or across it. A slice is some boxes along K by some across it.
struct Sending {
    TensorMap source;
    integer lines_along_k, boxes_along, boxes_across, peers;
    word* counters;  // of each slice: boxes that are there; 0 between launches
};

struct HopperArguments {
    const Tile* tiles;
    integer count, steps;  // tiles; boxes along K
    double alpha, beta;
    word* counters;  // of CTAs that have ended, and of each part's tiles that are stored; 0 between launches
    integer confirm_after;  // steps of the next tile, in which the last one's boxes reach memory
    integer slices, slice_steps, flag_pitch;  // of parts with flags; boxes along K of each; words from flag to flag
    integer own_steps;  // of a CTA for each tile
    integer senders;  // clusters that send
    Watch watch;
    Part parts[PARTS];
    PartTerm terms[LISTED ? LISTED : 1];
    TensorMap places[PLACES ? PLACES : 1];
    Sending sending;
    Peer peers[PEERS ? PEERS : 1];
};

// ---- barriers in shared memory: addresses are those of the shared window

__device__ __forceinline__ void initialise(word barrier, word arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ bool has_passed(word barrier, word parity) {
    word passed;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
    return passed;
}

__device__ __forceinline__ void arrive_expecting(word barrier, word nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(nbytes) : "memory");
}

__device__ __forceinline__ void arrive(word barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At the barrier with the same address in a CTA of this cluster. What was read has been read: by wgmma, whose end was awaited,
// or into registers. The form with .release.cluster would order all memory of the GPU here, 0.5 us in every step (H200).
__device__ __forceinline__ void arrive_at(word barrier, word cta) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(cta)
        : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Of a place in shared memory, in a CTA of this cluster.
__device__ __forceinline__ word address_at(word address, word cta) {
    word there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
    return there;
}

// To another CTA, whose barrier counts the bytes that have come.
__device__ __forceinline__ void give_floats(word there, word barrier, float a, float b, float c, float d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void load_floats(float (&x)[4], word address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
}

// As a trap, but not the end of a path.
__device__ __forceinline__ void end_in_error() { asm volatile("st.volatile.global.u32 [%0], 0;" ::"l"(0ull) : "memory"); }

__device__ __forceinline__ word cta_of_cluster() {
    word rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// ---- boxes

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void load_box(word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// To the same place in all CTAs of the cluster; each one's barrier counts what arrives there.
__device__ __forceinline__ void load_box_for_all(word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier), "h"(static_cast<half_word>((1 << CLUSTER) - 1))
        : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int inner, int outer, word source) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(inner), "r"(outer), "r"(source)
        : "memory");
}

// Those since the last call are a group.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the last `pending` groups of boxes have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void await_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What this thread has written to shared memory by ordinary stores is there for TMA.
__device__ __forceinline__ void publish_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- products

// Where wgmma finds boxes that lie one behind the other. Within a box 8 lines of 128 bytes follow each other at once;
// lines along K leave nothing more to say, lines along M or N go on in the next box. Above its 18 bits an address says
// which CTA of the cluster it belongs to.
template <bool ALONG_K>
__device__ __forceinline__ time_ns descriptor(word address) {
    const time_ns next_box = ALONG_K ? 1 : BOX_NBYTES >> 4, next_lines = 8 * 128 >> 4, swizzle_128 = 1;
    return (address & 0x3FFFF) >> 4 | next_box << 16 | next_lines << 32 | swizzle_128 << 62;
}

// From 16 elements along K to the next 16, in the unit of descriptors.
template <bool ALONG_K>
constexpr int NEXT_16 = (ALONG_K ? 16 * 2 : 16 * 128) >> 4;

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_1 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_2 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_3 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define R8(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define R32(C, i) R8(C, i), R8(C, i + 8), R8(C, i + 16), R8(C, i + 24)
#define R64(C) R32(C, 0), R32(C, 32)
#define R96(C) R64(C), R32(C, 64)
#define R128(C) R96(C), R32(C, 96)

// d = or += the product of 64 x 16 elements at `a` and 16 x COLUMNS elements at `b`. The first product of a tile has d as a
// result only: were it read, if only to be ignored, the sums of all widths would be alive all the time.
#define MULTIPLY(FUNCTION, C, KEEP, COLUMNS, NAMES, REGISTERS, A, B)                                                   \
    __device__ __forceinline__ void FUNCTION(float(&d)[COLUMNS / 2], time_ns a, time_ns b) {                           \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                                           \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, " A ", " B   \
                     ", keep, 1, 1, " TEXT_OF(A_ALONG_M) ", " TEXT_OF(B_ALONG_N) ";\n}"                                \
                     : REGISTERS(C)                                                                                    \
                     : "l"(a), "l"(b));                                                                                \
    }
#define MULTIPLY_BOTH(...)                        \
    MULTIPLY(begin_product, "=f", "0", __VA_ARGS__) \
    MULTIPLY(add_product, "+f", "1", __VA_ARGS__)

#define R32_ONLY(C) R32(C, 0)
MULTIPLY_BOTH(64, NAMES_0, R32_ONLY, "%32", "%33")
MULTIPLY_BOTH(128, NAMES_0 ", " NAMES_1, R64, "%64", "%65")
MULTIPLY_BOTH(192, NAMES_0 ", " NAMES_1 ", " NAMES_2, R96, "%96", "%97")
MULTIPLY_BOTH(256, NAMES_0 ", " NAMES_1 ", " NAMES_2 ", " NAMES_3, R128, "%128", "%129")

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// ---- the ring of stages

// A place in the ring: which stage, and how often the ring has gone round, mod 2.
struct Place {
    word stage = 0, round = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, round ^= 1;
    }
};

// Shared memory of a CTA.
struct Memory {
    const HopperArguments& arguments;
    word begin;

    __device__ __forceinline__ word a(word stage) const { return begin + stage * STAGE_NBYTES; }
    __device__ __forceinline__ word b(word stage) const { return a(stage) + A_BOXES * BOX_NBYTES; }
    // Lines of a term for a consumer.
    __device__ __forceinline__ word term(word stage, int consumer) const {
        return a(stage) + consumer * (PASSED / LINE) * BOX_NBYTES;
    }
    __device__ __forceinline__ word staging(int warp, int stripe) const {
        return begin + STAGING_AT + (warp * STAGING + stripe) * STRIPE_NBYTES;
    }
    __device__ __forceinline__ word full(word stage) const { return begin + BARRIERS_AT + 8 * stage; }
    __device__ __forceinline__ word empty(word stage) const { return full(STAGES + stage); }
    __device__ __forceinline__ word loaded(int warp) const { return full(2 * STAGES + warp); }
    __device__ __forceinline__ word offered(int warp) const { return full(2 * STAGES + WARPS + warp); }
    __device__ __forceinline__ word stored() const { return full(2 * STAGES + 2 * WARPS); }  // warps, counted, of all tiles

    __device__ __forceinline__ word granted() const { return full(2 * STAGES + 2 * WARPS + 1); }
    __device__ __forceinline__ word seen() const { return full(2 * STAGES + 2 * WARPS + 2); }  // flags, counted, of all tiles
    __device__ __forceinline__ word held(int box) const { return begin + box * SENT_NBYTES; }
    __device__ __forceinline__ word held_full(int box) const { return full(2 * STAGES + 2 * WARPS + 3 + box); }

    // Until the barrier's phase of this parity is over.
    __device__ __forceinline__ void await(word barrier, word parity) const {
        if (has_passed(barrier, parity)) return;
        const time_ns start = now();
        while (!has_passed(barrier, parity)) check_patience(start);
    }

    // Who waits for boxes may wait as long as who loads them waits for a flag.
    __device__ __forceinline__ void check_patience(time_ns start) const {
        if (now() - start > PATIENCE + (WAITS || TERMS ? arguments.watch.timeout : 0)) end_in_error();
    }
};

// A word in shared memory in which other threads count.
__device__ __forceinline__ word load_counter(word counter) {
    word value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(counter) : "memory");
    return value;
}

// The tiles of this cluster, one after the other. The loading thread is ahead of the others, so they find theirs in the L1
// cache.
struct Walker {
    const HopperArguments& arguments;
    int at = blockIdx.x / CLUSTER - senders();

    __device__ __forceinline__ bool take(Tile& tile) {
        if (at >= arguments.count) return false;
        tile = arguments.tiles[at];
        if (tile.width == 0) return false;
        const bool beside = arguments.parts[tile.part].beside;
        if (SHARING > 1 && beside) tile.column += cta_of_cluster() * tile.width;
        if (SHARING > 1 && !beside) tile.row += cta_of_cluster() * ROWS;
        at += gridDim.x / CLUSTER - senders();
        return true;
    }

    __device__ __forceinline__ int senders() const { return PEERS ? arguments.senders : 0; }
};

// Whether a part has terms.
__device__ __forceinline__ bool is_sum(const Part& part) { return TERMS && part.terms >= 0; }

// Whether these come when its tiles are multiplied.
__device__ __forceinline__ bool is_late_sum(const Part& part) { return is_sum(part) && part.late; }

// What a thread knows to be there.
struct Arrivals {
    const Watch& watch;
    time_ns known = 0;  // one bit for each flag

    // Until what a flag tells of is there, for TMA too. When the watch has given up, D has no meaning and no flag is awaited any
    // more, but all go on: a cluster that stopped halfway would leave boxes on their way to CTAs that have ended.
    __device__ __forceinline__ void await(int index, const word* flag, int source) {
        if (known >> index & 1) return;
        const bool came = watch.wait(flag, source, [](word value) { return value != 0; });
        asm volatile("fence.proxy.async;" ::: "memory");
        known |= came ? 1ull << index : ~0ull;
    }
};

// Waits for the flags of tiles, ahead of who loads what they tell of; one thread. It counts those that it has seen.
struct Scout {
    const HopperArguments& arguments;
    Memory memory;
    Arrivals operands, terms;

    __device__ __forceinline__ void run() {
        Walker walker{arguments};
        for (Tile tile; walker.take(tile);) {
            const Part& part = arguments.parts[tile.part];
            for (int slice = 0; WAITS && part.flag && slice < arguments.slices; slice++) {
                word* const flag = part.flag + slice * arguments.flag_pitch;
                operands.await(tile.part * arguments.slices + slice, flag, part.source);
                count();
            }
            for (int i = part.terms; is_late_sum(part) && i < part.terms + TERMS; i++) {
                const PartTerm& term = arguments.terms[i];
                if (term.flag) terms.await(i, term.flag, term.source);
                count();
            }
        }
    }

    __device__ __forceinline__ void count() const {
        asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(memory.seen()) : "memory");
    }
};

// Loads stages; one thread.
struct Producer {
    const HopperArguments& arguments;
    Memory memory;
    Place place;
    word seen = 0;  // flags

    __device__ __forceinline__ void load_tile(const Tile& tile) {
        const Part& part = arguments.parts[tile.part];
        const int steps = arguments.steps, slice_steps = arguments.slice_steps;
        for (int k = 0; k < steps; k += slice_steps) {
            if (WAITS && part.flag) await_flag();
            const int count = (min(slice_steps, steps - k) + SPLIT - 1) / SPLIT;
            const int first = SPLIT > 1 ? k + count * cta_of_cluster() : k;
            for (int i = 0; i < count; i++) load_step(tile, first + i);
        }
        if (SPLIT > 1) expect_sums(tile);
        if (is_late_sum(part)) load_terms(tile, part);
    }

    // What the next flag tells of is there, for TMA too.
    __device__ __forceinline__ void await_flag() {
        seen++;
        while (load_counter(memory.seen()) < seen) {
        }
        asm volatile("fence.proxy.async;" ::: "memory");
    }

    // Stages for sums of the other CTA, over its part of K.
    __device__ __forceinline__ void expect_sums(const Tile& tile) {
        for (int left = 0; left < tile.width; left += PASSED) {
            begin_stage_of(LINE * min(tile.width - left, PASSED) * 4);
            place.advance();
        }
        arrive_at(memory.granted(), 1 - cta_of_cluster());
    }

    // Pieces of each term, one box below the other, for the consumers that need them.
    __device__ __forceinline__ void load_terms(const Tile& tile, const Part& part) {
        const int first = SPLIT > 1 ? cta_of_cluster() : 0, end = SPLIT > 1 ? first + 1 : CONSUMERS;
        for (int index = part.terms; index < part.terms + TERMS; index++) {
            await_flag();
            for (int left = 0; left < tile.width; left += PASSED) {
                const int boxes = min(tile.width - left, PASSED) / LINE;
                const word full = begin_stage((end - first) * boxes);
                for (int i = first; i < end; i++)
                    for (int j = 0; j < boxes; j++)
                        load_box(
                            memory.term(place.stage, i) + j * BOX_NBYTES, arguments.terms[index].map,
                            tile.column + left + j * LINE, tile.row + i * LINE, full);
                place.advance();
            }
        }
    }

    __device__ __forceinline__ void load_step(const Tile& tile, int k) {
        const Part& part = arguments.parts[tile.part];
        const int boxes = tile.width / LINE;
        const word full = begin_stage(A_BOXES + boxes);
#pragma unroll
        for (int i = 0; i < A_BOXES; i++) {
            const int row = tile.row + i * LINE;
            const int inner = A_ALONG_M ? row : k * LINE, outer = A_ALONG_M ? k * LINE : row;
            load_operand(part.beside, i, memory.a(place.stage), part.a, inner, outer, full);
        }
#pragma unroll
        for (int i = 0; i < B_BOXES; i++) {
            if (i >= boxes) continue;
            const int column = tile.column + i * LINE;
            const int inner = B_ALONG_N ? column : k * LINE, outer = B_ALONG_N ? k * LINE : column;
            load_operand(!part.beside, i, memory.b(place.stage), part.b, inner, outer, full);
        }
        place.advance();
    }

    // A box, the i-th of an operand in a stage. Of what CTAs share, each loads some for all.
    __device__ __forceinline__ void load_operand(
        bool shared, int i, word begin, const TensorMap& map, int inner, int outer, word full) const {
        const word target = begin + i * BOX_NBYTES;
        if (SHARING == 1 || !shared) {
            load_box(target, map, inner, outer, full);
        } else if (i % CLUSTER == cta_of_cluster()) {
            load_box_for_all(target, map, inner, outer, full);
        }
    }

    // The barrier of the next stage, once that is empty; so many boxes will come.
    __device__ __forceinline__ word begin_stage(int boxes) const { return begin_stage_of(boxes * BOX_NBYTES); }

    __device__ __forceinline__ word begin_stage_of(int nbytes) const {
        const word full = memory.full(place.stage);
        memory.await(memory.empty(place.stage), place.round ^ 1);
        arrive_expecting(full, nbytes);
        return full;
    }

    __device__ __forceinline__ void run() {
        Walker walker{arguments};
        for (Tile tile; walker.take(tile);) load_tile(tile);
    }
};

// Loads terms; one thread. A warp offers its stripes when it needs them for nothing else, and a piece of a term comes: the
// warp's lines, as many columns as there are stripes.
struct Fetcher {
    const HopperArguments& arguments;
    Memory memory;
    Arrivals arrivals;

    __device__ __forceinline__ void run() {
        Walker walker{arguments};
        word round = 0;
        for (Tile tile; walker.take(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!is_sum(part) || part.late) continue;
            for (int index = part.terms; index < part.terms + TERMS; index++) {
                const PartTerm& term = arguments.terms[index];
                memory.await(memory.offered(0), round);  // nobody's patience is tried before its tile begins
                if (term.flag) arrivals.await(index, term.flag, term.source);
                for (int left = 0; left < tile.width; left += PIECE, round ^= 1)
                    for (int warp = 0; warp < WARPS; warp++) load_piece(tile, term, left, warp, round);
            }
        }
    }

    __device__ __forceinline__ void load_piece(const Tile& tile, const PartTerm& term, int left, int warp, word round) const {
        const word loaded = memory.loaded(warp);
        const int stripes = min(tile.width - left, PIECE) / LINE;
        memory.await(memory.offered(warp), round);
        arrive_expecting(loaded, stripes * STRIPE_NBYTES);
        for (int i = 0; i < stripes; i++)
            load_box(memory.staging(warp, i), term.map, tile.column + left + i * LINE, tile.row + warp * STRIPE, loaded);
    }
};

// Stores this rank's operand at the peers, slice after slice, and tells them of each; a thread of each of some warps. A box is
// loaded once, while the one before is on its way. Few boxes are under way at a time, so that slices arrive in order.
struct Sender {
    const HopperArguments& arguments;
    Memory memory;
    int warp;
    const Sending& sending = arguments.sending;
    int boxes = sending.boxes_along * sending.boxes_across, count = arguments.slices * boxes;  // of a slice, and of all
    int ctas = CLUSTER * arguments.senders;

    __device__ __forceinline__ void run() const {
        for (int i = 0; i < 2; i++) initialise(full(i), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        load(0);
        for (int i = 0; box(i) < count; i++) {
            load(i + 1);
            memory.await(full(i), i / 2 % 2);
            int inner, outer;
            find(box(i), inner, outer);
            for (int peer = 0; peer < sending.peers; peer++)
                store_box(arguments.peers[peer].target, inner, outer, held(i));
            commit_stores();
            await_stores();
            tell(box(i) / boxes);
        }
    }

    // The number of this warp's i-th box.
    __device__ __forceinline__ int box(int i) const { return blockIdx.x + (warp + i * SENDING_WARPS) * ctas; }
    __device__ __forceinline__ word held(int i) const { return memory.held(2 * warp + i % 2); }
    __device__ __forceinline__ word full(int i) const { return memory.held_full(2 * warp + i % 2); }

    // Of a box, in the matrix that is sent.
    __device__ __forceinline__ void find(int box, int& inner, int& outer) const {
        const int across = static_cast<int>(sending.boxes_across), j = box % across, k = box / across;
        inner = (sending.lines_along_k ? k : j) * SENT_LENGTH;
        outer = (sending.lines_along_k ? j : k) * SENT_LINES;
    }

    __device__ __forceinline__ void load(int i) const {
        if (box(i) >= count) return;
        int inner, outer;
        find(box(i), inner, outer);
        arrive_expecting(full(i), SENT_NBYTES);
        load_box(held(i), sending.source, inner, outer, full(i));
    }

    // A box of this slice is there; who brings the last one sets the flags.
    __device__ __forceinline__ void tell(int slice) const {
        word* const counter = sending.counters + slice;
        word before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        if (before != boxes - 1) return;
        *counter = 0;
        __threadfence_system();  // for all peers
        for (int peer = 0; peer < sending.peers; peer++)
            asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(
                             arguments.peers[peer].flag + slice * arguments.flag_pitch)
                         : "memory");
    }
};

// Tells that parts are stored; one thread. Stores are over when the threads that began them have waited for that;
// they count so here, and the last CTA of a part sets the signal.
struct Clerk {
    const HopperArguments& arguments;
    Memory memory;

    __device__ __forceinline__ void run() const {
        Walker walker{arguments};
        word confirmed = 0;
        for (Tile tile; walker.take(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!part.signal) continue;
            confirmed += WARPS / SPLIT;
            const time_ns start = now();
            while (load_counter(memory.stored()) < confirmed) {
                __nanosleep(200);
                memory.check_patience(start);
            }
            word* const counter = arguments.counters + 1 + tile.part;
            word before;
            asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
            if (before != part.tiles - 1) continue;
            *counter = 0;
            release(part.signal, 1);
        }
    }
};

// ---- consumers

__device__ __forceinline__ word packed(float low, float high) {
    word pair;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void load_fragments(word (&x)[4], word address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_fragments(word address, const word (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

// A pair of 16-bit elements as float32.
__device__ __forceinline__ void widen_pair(word pair, float& low, float& high) {
    if (TYPE[0] == 'b') {
        low = __uint_as_float(pair << 16);
        high = __uint_as_float(pair & 0xFFFF0000u);
    } else {
        low = widen(float16{static_cast<half_word>(pair)});
        high = widen(float16{static_cast<half_word>(pair >> 16)});
    }
}

// What a consumer knows of itself.
struct Consumer {
    const HopperArguments& arguments;
    Memory memory;
    int index, thread;
    word staged = 0, round = 0;  // stripes, mod STAGING; loads of C or of terms, mod 2
    word given = 0;              // tiles of which sums were exchanged, mod 2
    bool unconfirmed = false;    // whether somebody waits for what this warp has stored last
    Place place;

    // The sums of a tile, of this consumer's rows.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_tile(float (&sums)[COLUMNS / 2]) {
        multiply_stage<true, COLUMNS>(sums);
        for (int k = 1; k < arguments.own_steps; k++) {
            const word last = place.stage;
            place.advance();
            multiply_stage<false, COLUMNS>(sums);
            await_products<1>();
            release_stage(last);
            if (SIGNALS && k == arguments.confirm_after) confirm_stored();
        }
        end_products();
        if (SIGNALS) confirm_stored();
    }

    // The same with terms between products, piece by piece, unless sums have to be multiplied before. The other consumer's turns
    // lie between this one's: while one adds the other one multiplies. Who waits for a term holds the other one up after as many
    // steps as there are stages, so by then both have to have confirmed what they stored before: a peer's term may wait for it.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_sum_tile(float (&sums)[COLUMNS / 2]) {
        constexpr int PIECES = TERMS * PIECES_OF_TERM<COLUMNS>;
        const int steps = arguments.own_steps;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
        int piece = 0;
        for (int k = 0; k < steps;) {
            const bool more = piece < PIECES && arguments.alpha == 1;
            const int turn = more ? (2 * piece + 2 + index) * steps / (2 * PIECES + 2) : steps;
            multiply_stage<false, COLUMNS>(sums);
            if (k == 0) offer_stripes();
            for (k++; k < turn; k++) {
                const word last = place.stage;
                place.advance();
                multiply_stage<false, COLUMNS>(sums);
                await_products<1>();
                release_stage(last);
                if (SIGNALS && k == arguments.confirm_after) confirm_stored();
            }
            end_products();
            if (SIGNALS) confirm_stored();
            if (k < steps) add_piece<COLUMNS>(sums, piece++);
        }
        scale(sums);
        while (piece < PIECES) add_piece<COLUMNS>(sums, piece++);
    }

    // This warp's stripes, whose last contents TMA has read, for the next piece of a term.
    __device__ __forceinline__ void offer_stripes() {
        if (thread % 32 == 0) {
            await_reads<0>();
            arrive(memory.offered(warp()));
        }
    }

    template <int COLUMNS>
    __device__ __forceinline__ void add_piece(float (&sums)[COLUMNS / 2], int piece) {
        memory.await(memory.loaded(warp()), round);
        round ^= 1;
        const word stripes = memory.staging(warp(), 0);
        if (piece % PIECES_OF_TERM<COLUMNS> == 0) {
            add_columns<0, COLUMNS>(sums, stripes, STRIPE_NBYTES);
        } else {
            add_columns<PIECE, COLUMNS>(sums, stripes, STRIPE_NBYTES);
        }
        __syncwarp();
        if (piece + 1 < TERMS * PIECES_OF_TERM<COLUMNS>) offer_stripes();
    }

    // Terms that come late, through the ring.
    template <int COLUMNS>
    __device__ __forceinline__ void add_terms(float (&sums)[COLUMNS / 2]) {
        for (int i = 0; i < TERMS; i++) {
            add_late<0, COLUMNS>(sums);
            if (COLUMNS > PASSED) add_late<PASSED, COLUMNS>(sums);
        }
    }

    template <int LEFT, int COLUMNS>
    __device__ __forceinline__ void add_late(float (&sums)[COLUMNS / 2]) {
        memory.await(memory.full(place.stage), place.round);
        const word lines = memory.term(place.stage, index) + thread / 32 * STRIPE_NBYTES;
        if (keeps()) add_columns<LEFT, COLUMNS>(sums, lines, BOX_NBYTES);
        leave_stage();
    }

    // Whether it is this CTA that stores this consumer's rows.
    __device__ __forceinline__ bool keeps() const { return SPLIT == 1 || index == cta_of_cluster(); }

    // This consumer needs the stage no more, which all of its threads have read.
    __device__ __forceinline__ void leave_stage() {
        asm volatile("bar.sync %0, 128;" ::"r"(1 + index) : "memory");
        release_stage(place.stage);
        place.advance();
    }

    // Sums over all of K: those of this CTA's rows += those of the other CTA's, and the other way round.
    template <int COLUMNS>
    __device__ __forceinline__ void exchange(float (&sums)[COLUMNS / 2]) {
        if (!keeps()) memory.await(memory.granted(), given);
        given ^= 1;
        exchange_columns<0, COLUMNS>(sums);
        if (COLUMNS > PASSED) exchange_columns<PASSED, COLUMNS>(sums);
    }

    template <int LEFT, int COLUMNS>
    __device__ __forceinline__ void exchange_columns(float (&sums)[COLUMNS / 2]) {
        const word lines = memory.a(place.stage) + thread * 16, full = memory.full(place.stage);
        if (keeps()) {
            memory.await(full, place.round);
#pragma unroll
            for (int i = LEFT / 2; i < min(LEFT + PASSED, COLUMNS) / 2; i += 4) {
                float x[4];
                load_floats(x, lines + (i - LEFT / 2) * 512);
#pragma unroll
                for (int j = 0; j < 4; j++) sums[i + j] += x[j];
            }
        } else {
            const word other = 1 - cta_of_cluster(), there = address_at(lines, other), full_there = address_at(full, other);
#pragma unroll
            for (int i = LEFT / 2; i < min(LEFT + PASSED, COLUMNS) / 2; i += 4)
                give_floats(there + (i - LEFT / 2) * 512, full_there, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
            memory.await(full, place.round);
        }
        leave_stage();
    }

    // Sums from column LEFT on += what lies in stripes that are so many bytes apart.
    template <int LEFT, int COLUMNS>
    __device__ __forceinline__ void add_columns(float (&sums)[COLUMNS / 2], word stripes, int pitch) const {
#pragma unroll
        for (int column = LEFT; column < min(LEFT + PIECE, COLUMNS); column += 16) {
            word pairs[4];
            load_fragments(pairs, fragment(stripes + (column - LEFT) / LINE * pitch, column % LINE / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low, high;
                widen_pair(pairs[j], low, high);
                sums[column / 2 + 2 * j] += low;
                sums[column / 2 + 2 * j + 1] += high;
            }
        }
    }

    // Of all consumers.
    __device__ __forceinline__ int warp() const { return index * 4 + thread / 32; }

    __device__ __forceinline__ void end_products() {
        await_products<0>();
        release_stage(place.stage);
        place.advance();
    }

    // A warp's lines of 16 x 16 elements, where TMA's swizzle exchanges 16 bytes with others by the line's number mod 8: lane l
    // names line l % 16 and the (2 i + l / 16)-th 16 bytes.
    __device__ __forceinline__ word fragment(word lines, int i) const {
        const int lane = thread % 32;
        return lines + lane % 16 * 128 + ((2 * i + lane / 16 ^ lane % 8) << 4);
    }

    template <int COUNT>
    __device__ __forceinline__ void scale(float (&sums)[COUNT]) const {
        const float alpha = arguments.alpha;
#pragma unroll
        for (int i = 0; i < COUNT; i++) sums[i] *= alpha;
    }

    // What this warp has stored is there, and the clerk knows.
    __device__ __forceinline__ void confirm_stored() {
        if (unconfirmed && thread % 32 == 0) {
            await_stores();
            asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(memory.stored()) : "memory");
        }
        unconfirmed = false;
    }

    // The next stage's part of the sums; the products may still be under way at the end.
    template <bool FIRST, int COLUMNS>
    __device__ __forceinline__ void multiply_stage(float (&sums)[COLUMNS / 2]) const {
        const time_ns a = descriptor<!A_ALONG_M>(memory.a(place.stage) + index * BOX_NBYTES);
        const time_ns b = descriptor<!B_ALONG_N>(memory.b(place.stage));
        memory.await(memory.full(place.stage), place.round);
        begin_products();
#pragma unroll
        for (int i = 0; i < LINE / 16; i++) {
            const time_ns a_i = a + i * NEXT_16<!A_ALONG_M>, b_i = b + i * NEXT_16<!B_ALONG_N>;
            if (FIRST && i == 0) {
                begin_product(sums, a_i, b_i);
            } else {
                add_product(sums, a_i, b_i);
            }
        }
        commit_products();
    }

    // The boxes of a stage may be written over, by this CTA's producer and, those of B, by the others'.
    __device__ __forceinline__ void release_stage(word stage) const {
        if (SHARING == 1) {
            if (thread == 0) arrive(memory.empty(stage));
        } else if (thread < CLUSTER) {
            arrive_at(memory.empty(stage), thread);
        }
    }

    // D := sums + beta C, stripe by stripe; elements outside of D are not written.
    template <int COLUMNS>
    __device__ __forceinline__ void store_tile(const Tile& tile, const float (&sums)[COLUMNS / 2]) {
        const Part& part = arguments.parts[tile.part];
        const float beta = arguments.beta;
        const bool reads_c = READS_C && !part.partial;
        const int lane = thread % 32, warp = this->warp(), row = tile.row + warp * STRIPE;
        const word loaded = memory.loaded(warp);
#pragma unroll
        for (int box = 0; box < COLUMNS / LINE; box++) {
            const int column = tile.column + box * LINE;
            const word staging = memory.staging(warp, staged);
            staged = (staged + 1) % STAGING;
            if (lane == 0) {
                await_reads<STAGING - 1>();  // of the stripe that was here before
                if (reads_c) {
                    arrive_expecting(loaded, STRIPE_NBYTES);
                    load_box(staging, part.c, column, row, loaded);
                }
            }
            __syncwarp();
            if (reads_c) {
                memory.await(loaded, round);
                round ^= 1;
            }
#pragma unroll
            for (int i = 0; i < LINE / 16; i++) {
                const word address = fragment(staging, i);
                float y[8];
#pragma unroll
                for (int j = 0; j < 8; j++) y[j] = sums[box * (LINE / 2) + i * 8 + j];
                if (reads_c) {
                    word old[4];
                    load_fragments(old, address);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float low, high;
                        widen_pair(old[j], low, high);
                        y[2 * j] += beta * low;
                        y[2 * j + 1] += beta * high;
                    }
                }
                store_fragments(address, {packed(y[0], y[1]), packed(y[2], y[3]), packed(y[4], y[5]), packed(y[6], y[7])});
            }
            publish_to_tma();
            __syncwarp();
            if (lane == 0) {
                store_box(part.d, column, row, staging);
                for (int i = part.places; PLACES && i < part.end; i++)
                    store_box(arguments.places[i], column, row, staging);
                commit_stores();
            }
        }
        if (SIGNALS) unconfirmed = part.signal;
    }

    template <int COLUMNS>
    __device__ __forceinline__ void take_tile(const Tile& tile) {
        float sums[COLUMNS / 2];
        const Part& part = arguments.parts[tile.part];
        if (is_sum(part) && !part.late) {
            multiply_sum_tile<COLUMNS>(sums);
        } else {
            multiply_tile<COLUMNS>(sums);
            if (SPLIT > 1) exchange<COLUMNS>(sums);
            scale(sums);
            if (is_late_sum(part)) add_terms<COLUMNS>(sums);
        }
        if (keeps()) store_tile<COLUMNS>(tile, sums);
    }

    __device__ __forceinline__ void run() {
        Walker walker{arguments};
        for (Tile tile; walker.take(tile);) {
            if (WIDTH >= 256 && tile.width == 256) take_tile<256>(tile);
            if (WIDTH >= 192 && tile.width == 192) take_tile<192>(tile);
            if (WIDTH >= 128 && tile.width == 128) take_tile<128>(tile);
            if (tile.width == 64) take_tile<64>(tile);
        }
        if (SIGNALS) confirm_stored();
        if (thread % 32 == 0) await_stores();
    }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __maxnreg__(ANY_REGISTERS)
    hopper(const __grid_constant__ HopperArguments arguments) {
    extern __shared__ __align__(1024) byte shared[];
    const Memory memory{arguments, static_cast<word>(__cvta_generic_to_shared(shared))};
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            initialise(memory.full(stage), 1);
            initialise(memory.empty(stage), CONSUMERS * SHARING);
        }
        for (int warp = 0; warp < WARPS; warp++) {
            initialise(memory.loaded(warp), 1);
            initialise(memory.offered(warp), 1);
        }
        initialise(memory.granted(), 1);
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(memory.stored()) : "memory");
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(memory.seen()) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch(arguments.parts[0].a);
        prefetch(arguments.parts[0].b);
        prefetch(arguments.parts[0].d);
    }
    meet_cluster();
    if (PEERS && blockIdx.x / CLUSTER < arguments.senders) {
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0 && warp < SENDING_WARPS) Sender{arguments, memory, warp}.run();
    } else if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 128 * CONSUMERS) Producer{arguments, memory}.run();
        if (SIGNALS && threadIdx.x == 128 * CONSUMERS + 32) Clerk{arguments, memory}.run();
        if (TERMS && threadIdx.x == 128 * CONSUMERS + 64) Fetcher{arguments, memory, {arguments.watch}}.run();
        if ((WAITS || TERMS) && threadIdx.x == 128 * CONSUMERS + 96)
            Scout{arguments, memory, {arguments.watch}, {arguments.watch}}.run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        Consumer{arguments, memory, warpgroup, static_cast<int>(threadIdx.x % 128)}.run();
    }
    __syncwarp();
    meet_cluster();  // nobody leaves while others may write into its memory
    if ((WAITS || TERMS) && threadIdx.x == 0 && atomicAdd(arguments.counters, 1) == gridDim.x - 1) {  // all have seen the flags
        *arguments.counters = 0;
        for (const Part& part : arguments.parts)
            for (int slice = 0; part.flag && slice < arguments.slices; slice++)
                part.flag[slice * arguments.flag_pitch] = 0;
        for (const PartTerm& term : arguments.terms)
            if (term.flag) *term.flag = 0;
    }
}
