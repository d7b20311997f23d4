// The ring of stages in which operands lie, and the tiles of a cluster.
//
// Each stage has two barriers. "full" waits for the loading thread, which announces how many bytes will come, and for the
// bytes, from both CTAs. "empty" waits for the consumers of both CTAs, since both write here. A barrier's phases alternate; a
// wait names the parity of the phase that must be over, and on a barrier that has not been used yet the phase of parity 1 is,
// so the ring begins empty.

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
    __device__ __forceinline__ word granted() const { return full(2 * STAGES + 2 * WARPS); }
    __device__ __forceinline__ word seen() const { return full(2 * STAGES + 2 * WARPS + 1); }  // flags, counted, of all tiles
    // Warps of a consumer, counted, of all tiles.
    __device__ __forceinline__ word stored(int consumer) const { return full(2 * STAGES + 2 * WARPS + 2 + consumer); }

    // Until the barrier's phase of this parity is over.
    __device__ __forceinline__ void await(word barrier, word parity) const {
        if (has_passed(barrier, parity)) return;
        const time_ns start = now();
        while (!has_passed(barrier, parity)) check_patience(start);
    }

    // Who waits for boxes may wait as long as who loads them waits for flags: a consumer's next stage is not loaded while the
    // other one gets its terms.
    __device__ __forceinline__ void check_patience(time_ns start) const {
        const integer timeout = WAITS || TERMS ? static_cast<integer>(arguments.watch.timeout) : 0;
        if (elapsed(start) > PATIENCE + MOST_AWAITED * timeout) end_in_error();
    }
};

// The tiles of this CTA, one after the other. The loading thread is ahead of the others, so they find theirs in the L1 cache.
struct Walker {
    const HopperArguments& arguments;
    int at = blockIdx.x / CLUSTER;

    __device__ __forceinline__ bool take(Tile& tile) {
        if (at >= arguments.count) return false;
        tile = *place();
        at += gridDim.x / CLUSTER;
        return tile.width;
    }

    // The first tile, into the L2 cache.
    __device__ __forceinline__ void prefetch() const {
        if (at < arguments.count) asm volatile("prefetch.global.L2 [%0];" ::"l"(place()));
    }

    __device__ __forceinline__ const Tile* place() const { return arguments.tiles + at * CLUSTER + cta_of_cluster(); }
};

// Whether it is this CTA of its cluster that stores a consumer's rows.
__device__ __forceinline__ bool keeps(int consumer) { return SPLIT == 1 || consumer == cta_of_cluster(); }

__device__ __forceinline__ void prefetch(const Part& part) {
    prefetch(part.a);
    prefetch(part.b);
    prefetch(part.wide_b);
    prefetch(part.d);
}

// Whether operands of a part come later than the kernel.
__device__ __forceinline__ bool is_awaited(const Part& part) { return WAITS && part.flag; }

// Whether a part has terms.
__device__ __forceinline__ bool is_sum(const Part& part) { return TERMS && part.terms >= 0; }

// Whether these come when its tiles are multiplied.
__device__ __forceinline__ bool is_late_sum(const Part& part) { return is_sum(part) && part.late; }
