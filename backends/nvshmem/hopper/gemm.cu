// D := alpha A B + beta C on Hopper: one persistent kernel of TMA loads, wgmma products and TMA stores.
//
// D is M x N, its rows contiguous. A is M x K and B is K x N, each stored either way: along K, or along M and N. All that is
// loaded is boxes of 64 x 64 elements in TMA's 128-byte swizzle, 8 KB; elements outside of the matrices are zero.
//
// D consists of parts, each the product of its own A and B: of one part, or of many whose operands arrive one after the
// other, each with a flag that is set when they are there. Clusters of two CTAs take tiles of the parts from a table. The
// two tiles of a cluster lie one below the other and share B, of which each CTA loads half of the boxes for both: 64 KB
// from the L2 cache for 96 KB in shared memory. In a part that has the rows of one tile only they lie beside each other
// and share A, and where one's rows are left of a larger part they lie beside each other and share nothing.
//
// A part may be a partial product that a peer adds up. A signal tells when it is stored: the copy engine that brings it
// there, or the peer, if D lies in its memory. And some parts have terms: what peers have sent of them, each with a flag,
// is added to the sums of their tiles while they grow. Each cluster takes its tiles in the order of the parts, but for sums
// that come among those of parts before them; what these wait for peers make of parts before all of those. So nobody waits
// for ever. A part may be stored at further places, too: from where peers fetch it, or at the peers themselves, each with a
// word that says so.
//
// What follows D, an expression of it and of operands, comes before this file, and is compiled into the end of tiles.
//
// In a CTA one thread loads boxes into a ring of stages (pipeline.cuh), and two warpgroups multiply them
// (consumer.cuh).
//
// Registers: 3 warpgroups of 160 are launched; the loading one gives all but 48 away and each consumer has 216, 128 of which
// are sums. The compiler believes that only if no path in the roles' branches ends the kernel: a trap there costs spills.
//
// Source: PTX ISA, "Asynchronous warpgroup level matrix instructions" and "cp.async.bulk.tensor".
#include "common.cuh"

// What a compilation chooses; these are for compilers that are told nothing.
#ifndef FINISHES
#define FINISHES 0  // whether an Expression follows D, which comes before this file; 2: so long that it stays in a loop
#endif
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
#define SPLIT 1      // CTAs of a cluster that share a tile, each with a part of K: 1 or 2
#endif

#include "arguments.cuh"
#include "ptx.cuh"
#include "pipeline.cuh"
#include "producer.cuh"
#include "signals.cuh"
#include "consumer.cuh"

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
        for (int consumer = 0; consumer < CONSUMERS; consumer++)
            asm volatile("st.shared.u32 [%0], 0;" ::"r"(memory.stored(consumer)) : "memory");
        asm volatile("st.shared.u32 [%0], 0;" ::"r"(memory.seen()) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        prefetch(arguments.parts[0]);
        Walker{arguments}.prefetch();
    }
    meet_cluster();
    follow();
    if (warpgroup == CONSUMERS) {
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
            if (part.flag) *part.flag = 0;
        for (const PartTerm& term : arguments.terms)
            if (term.flag) *term.flag = 0;
    }
}
