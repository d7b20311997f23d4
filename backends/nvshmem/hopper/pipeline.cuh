// The ring of stages in shared memory through which operands pass, and the tiles of a CTA.
//
// Each stage has two mbarriers. The phase of "full" ends when the producer thread has arrived, which announces the
// number of bytes, and all these bytes have come, from the loads of both CTAs. The phase of "empty" ends when the
// consumers of both CTAs have arrived, since both CTAs load into this stage. A wait names the parity of the phase that
// must have ended. On a new mbarrier a wait for parity 1 succeeds at once, so the ring begins empty.

// A position in the ring: the stage, and the parity of its phase, which changes with each round.
struct PipelineState {
    word stage = 0, phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// The layout of a CTA's shared memory; addresses are of the shared window.
struct SharedMemory {
    const HopperArguments& arguments;
    word begin;

    __device__ __forceinline__ word a(word stage) const { return begin + stage * STAGE_NBYTES; }
    __device__ __forceinline__ word b(word stage) const { return a(stage) + A_BOXES * BOX_NBYTES; }
    // The rows of a term's piece that this consumer adds.
    __device__ __forceinline__ word term(word stage, int consumer) const {
        return a(stage) + consumer * (STAGE_COLUMNS / LINE) * BOX_NBYTES;
    }
    __device__ __forceinline__ word stripe(int warp, int buffer) const {
        return begin + STRIPES_AT + (warp * STRIPE_BUFFERS + buffer) * STRIPE_NBYTES;
    }
    __device__ __forceinline__ word full(word stage) const { return begin + BARRIERS_AT + 8 * stage; }
    __device__ __forceinline__ word empty(word stage) const { return full(STAGES + stage); }
    __device__ __forceinline__ word term_full(int warp) const { return full(2 * STAGES + warp); }
    __device__ __forceinline__ word term_empty(int warp) const { return full(2 * STAGES + WARPS + warp); }
    __device__ __forceinline__ word exchange_ready() const { return full(2 * STAGES + 2 * WARPS); }
    // Counter of the flags that the flag watcher has seen.
    __device__ __forceinline__ word seen_count() const { return full(2 * STAGES + 2 * WARPS + 1); }
    // Counter of a consumer's warps whose stores of a tile are complete, over all tiles.
    __device__ __forceinline__ word stored_count(int consumer) const {
        return full(2 * STAGES + 2 * WARPS + 2 + consumer);
    }

    // Waits until the phase of this parity has ended.
    __device__ __forceinline__ void wait(word barrier, word parity) const {
        if (mbarrier_try_wait(barrier, parity)) return;
        const time_ns start = now();
        while (!mbarrier_try_wait(barrier, parity)) check_timeout(start);
    }

    // A wait within the cluster may last as long as the flags that the producer awaits: while one consumer waits for
    // terms, the other one's next stage is not loaded.
    __device__ __forceinline__ void check_timeout(time_ns start) const {
        const integer timeout = WAITS || TERMS ? static_cast<integer>(arguments.watch.timeout) : 0;
        if (elapsed(start) > PIPELINE_TIMEOUT + MOST_FLAG_WAITS * timeout) fail();
    }
};

// This CTA's tiles in the order of the table. The producer thread is ahead of the other threads, which therefore find
// their entries in the L1 cache.
struct TileScheduler {
    const HopperArguments& arguments;
    int index = blockIdx.x / CLUSTER;

    __device__ __forceinline__ bool next(Tile& tile) {
        if (index >= arguments.count) return false;
        tile = *entry();
        index += gridDim.x / CLUSTER;
        return tile.width;
    }

    // Prefetches the first entry into the L2 cache.
    __device__ __forceinline__ void prefetch() const {
        if (index < arguments.count) asm volatile("prefetch.global.L2 [%0];" ::"l"(entry()));
    }

    __device__ __forceinline__ const Tile* entry() const { return arguments.tiles + index * CLUSTER + cta_rank(); }
};

// Whether this CTA stores the rows of a consumer: always, except that with split-K CTA i stores those of consumer i.
__device__ __forceinline__ bool stores_rows_of(int consumer) { return SPLIT == 1 || consumer == cta_rank(); }

__device__ __forceinline__ void prefetch(const Part& part) {
    prefetch(part.a);
    prefetch(part.b);
    prefetch(part.wide_b);
    prefetch(part.d);
}

// Whether the operands of a part may arrive after the start of the kernel.
__device__ __forceinline__ bool has_flag(const Part& part) { return WAITS && part.flag; }

// Whether a part has terms.
__device__ __forceinline__ bool has_terms(const Part& part) { return TERMS && part.terms >= 0; }

// Whether its terms are added after the K loop of its tiles.
__device__ __forceinline__ bool has_late_terms(const Part& part) { return has_terms(part) && part.late_terms; }
