// D := alpha A B + beta C on Hopper: one persistent, warp-specialised kernel of TMA loads, wgmma and TMA stores.
//
// D is M x N with contiguous rows. A is M x K and B is K x N; each is contiguous either along K or along the other
// dimension. TMA loads boxes of 64 x 64 elements, 8 KB, with the 128-byte swizzle. Elements outside of the matrices are
// zero.
//
// D consists of parts, each the product of its own A and B. There is one part, or many whose operands arrive one after
// the other. Each part may have a flag, which is set when its operands have arrived. Clusters of two CTAs take tiles of
// the parts from a table. Usually the two tiles of a cluster are one below the other and share B: each CTA loads half
// of B's boxes and multicasts them, so that 64 KB from the L2 cache fill 96 KB of shared memory. In a part no taller
// than one tile, the two tiles are side by side and share A. If the last rows of a taller part need one tile only, the
// two tiles are side by side and share nothing.
//
// A part may be a partial product that another rank adds up. The kernel sets the part's signal after the part's last
// tile is stored. The copy engine waits for the signal before it sends the part; if D is in a peer's memory, the peer
// waits for it. A part may have terms: partial products from peers, each with a flag, which the consumers add to their
// accumulators during the K loop or after it. A part may also be stored at further places, for peers to read or in the
// peers' memory, each with a signal.
//
// A symmetric D has tiles below and on the diagonal only, and those below are stored above it too.
//
// Deadlock is impossible: each cluster takes its tiles in the order of the parts, except that tiles of a part with
// terms may be interleaved with tiles of the preceding parts. Its terms are parts that the peers compute before all of
// these.
//
// The epilogue of D, if any, is an `Expression` in front of this file.
//
// In each CTA one producer thread loads operands into a ring of stages (pipeline.cuh, producer.cuh). Two consumer
// warpgroups multiply them (consumer.cuh). Other threads of the producer's warpgroup wait for flags, load terms and set
// signals.
//
// Registers: the kernel is launched with 3 warpgroups of 160 registers a thread. The producer's warpgroup keeps 48 of
// them and each consumer gets 216, 128 of which are accumulators. The compiler accepts these limits only if no path in
// the branches of the roles ends the kernel: a trap there causes spills.
//
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "cp.async.bulk.tensor".
#include "common.cuh"

// Compile-time parameters (compile.py). The values here are for compilers without command-line macros, such as editors'
// and tests'.
#ifndef EPILOGUE
#define EPILOGUE 0  // 1: an Expression in front of this file; 2: one that is too long to be unrolled
#endif
#ifndef TYPE
#define TYPE "bf16"      // of A, B, C and D; or "f16"
#define A_ALONG_M 0      // whether A is contiguous along M; else along K
#define B_ALONG_N 0      // whether B is contiguous along N; else along K
#define READS_C 0        // whether beta is not 0
#define PARTS 8          // capacity of the list of parts
#define WAITS 1          // whether parts have flags
#define SIGNALS 1        // whether parts have signals
#define TERMS 7          // of each part that has any
#define TERM_CAPACITY 8  // capacity of the list of terms of all parts
#define PLACES 8         // capacity of the list of further places
#define WIDTH 256        // columns of the widest tile; narrower tiles leave room for more stages
#define SPLIT 1          // split-K: CTAs of a cluster that compute a tile together, each over half of K: 1 or 2
#define TREE 0           // whether K has several pieces, whose products are added along a binary tree
#define SYMMETRIC 0      // whether D is symmetric; its first place is then D as it is mirrored, its second C
#endif

#include "arguments.cuh"
#include "ptx.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "consumer.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __maxnreg__(LAUNCH_REGISTERS)
    hopper_gemm(const __grid_constant__ HopperArguments arguments) {
    extern __shared__ __align__(1024) byte shared[];
    const SharedMemory smem{arguments, static_cast<word>(__cvta_generic_to_shared(shared))};
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(smem.full(stage), 1);
            mbarrier_init(smem.empty(stage), CONSUMERS * CTAS_SHARING);
        }
        for (int warp = 0; warp < WARPS; warp++) {
            mbarrier_init(smem.term_full(warp), 1);
            mbarrier_init(smem.term_empty(warp), 1);
        }
        mbarrier_init(smem.exchange_ready(), 1);
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
            asm volatile("st.shared.u32 [%0], 0;" ::"r"(smem.stored_count(consumer)) : "memory");
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(smem.seen_count()) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch(arguments.parts[0]);
        TileScheduler{arguments}.prefetch();
    }
    cluster_sync();
    grid_dependency_sync();
    if (warpgroup == CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 128 * CONSUMERS) Producer{arguments, smem}.run();
        if (SIGNALS && threadIdx.x == 128 * CONSUMERS + 32) SignalThread{arguments, smem}.run();
        if (TERMS && threadIdx.x == 128 * CONSUMERS + 64) TermLoader{arguments, smem, {arguments.watch}}.run();
        if ((WAITS || TERMS) && threadIdx.x == 128 * CONSUMERS + 96)
            FlagWatcher{arguments, smem, {arguments.watch}, {arguments.watch}}.run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        Consumer{arguments, smem, warpgroup, static_cast<int>(threadIdx.x % 128)}.run();
    }
    __syncwarp();
    cluster_sync();  // a CTA must not exit while the other one may access its shared memory
    // All CTAs have seen the flags.
    if ((WAITS || TERMS) && threadIdx.x == 0 && atomicAdd(arguments.counters, 1) == gridDim.x - 1) {
        *arguments.counters = 0;
        for (const Part& part : arguments.parts)
            if (part.flag) *part.flag = 0;
        for (const PartTerm& term : arguments.terms)
            if (term.flag) *term.flag = 0;
    }
}
