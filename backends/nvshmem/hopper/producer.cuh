// The threads of the producer's warpgroup: the producer loads operands into the ring. The term loader loads terms into
// the consumers' stripe buffers, which later hold results; in the ring, terms would delay operands. The flag watcher
// waits for the flags of both, ahead of the loads.

// The flags that a thread knows to be set.
struct SeenFlags {
    const Watch& watch;
    word seen_mask = 0;  // bit i: flag i is set

    // Waits for a flag, and makes the data that it signals visible to TMA. After a timeout or an abort D has no meaning
    // and the thread waits for no other flag, but it goes on: if one CTA stopped, boxes could arrive in CTAs that have
    // exited.
    __device__ __forceinline__ void wait(int index, const word* flag, int source) {
        if (seen_mask >> index & 1) return;
        const bool came = watch.wait(flag, source, [](word value) { return value != 0; });
        asm volatile("fence.proxy.async;" ::: "memory");
        seen_mask |= came ? 1u << index : ~0u;
    }
};

// Waits for the flags of this CTA's tiles in their order, ahead of the producer; one thread. It counts the flags that
// it has seen.
struct FlagWatcher {
    const HopperArguments& arguments;
    SharedMemory smem;
    SeenFlags operands, terms;

    __device__ __forceinline__ void run() {
        TileScheduler scheduler{arguments};
        for (Tile tile; scheduler.next(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (has_flag(part)) {
                operands.wait(tile.part, part.flag, part.source);
                increment(smem.seen_count());
            }
            for (int i = part.terms; has_late_terms(part) && i < part.terms + TERMS; i++) {
                const PartTerm& term = arguments.terms[i];
                if (term.flag) terms.wait(i, term.flag, term.source);
                increment(smem.seen_count());
            }
        }
    }
};

// Loads operands, and late terms, into the ring; one thread.
struct Producer {
    const HopperArguments& arguments;
    SharedMemory smem;
    PipelineState state;
    word seen_flags = 0;  // flags that the loads so far needed
    TileScheduler scheduler{arguments};
    Tile next;
    bool has_next = scheduler.next(next);

    __device__ __forceinline__ void load_tile(const Tile& tile) {
        const Part& part = arguments.parts[tile.part];
        const int steps = arguments.steps, first = SPLIT > 1 ? steps * cta_rank() : 0;
        if (has_flag(part)) wait_for_flag();
        for (int i = 0; i < steps; i++) {
            load_step(tile, first + i);
            if (i == 0) fetch_next_tile();
        }
        if (SPLIT > 1) expect_accumulators(tile);
        if (has_late_terms(part)) load_terms(tile, part);
    }

    __device__ __forceinline__ void fetch_next_tile() {
        has_next = scheduler.next(next);
        if (has_next) prefetch(arguments.parts[next.part]);
    }

    // Waits until the watcher has seen the next flag, and makes the data visible to TMA.
    __device__ __forceinline__ void wait_for_flag() {
        seen_flags++;
        while (load_acquire(smem.seen_count()) < seen_flags) {
        }
        asm volatile("fence.proxy.async;" ::: "memory");
    }

    // Announces the accumulators that the other CTA sends, of its half of K, through stages of this ring.
    __device__ __forceinline__ void expect_accumulators(const Tile& tile) {
        for (int offset = 0; offset < tile.width; offset += STAGE_COLUMNS) {
            acquire_stage_nbytes(LINE * min(tile.width - offset, STAGE_COLUMNS) * 4);
            state.advance();
        }
        mbarrier_arrive_remote(smem.exchange_ready(), 1 - cta_rank());
    }

    // Loads the pieces of each term, for each consumer that adds one; a consumer's boxes are below those of the
    // preceding consumer.
    __device__ __forceinline__ void load_terms(const Tile& tile, const Part& part) {
        const int first = SPLIT > 1 ? cta_rank() : 0, end = SPLIT > 1 ? first + 1 : CONSUMERS;
        for (int index = part.terms; index < part.terms + TERMS; index++) {
            wait_for_flag();
            for (int offset = 0; offset < tile.width; offset += STAGE_COLUMNS) {
                const int boxes = min(tile.width - offset, STAGE_COLUMNS) / LINE;
                const word full = acquire_stage((end - first) * boxes);
                for (int i = first; i < end; i++)
                    for (int j = 0; j < boxes; j++)
                        tma_load(
                            smem.term(state.stage, i) + j * BOX_NBYTES, arguments.terms[index].map,
                            tile.column + offset + j * LINE, tile.row + i * LINE, full);
                state.advance();
            }
        }
    }

    __device__ __forceinline__ void load_step(const Tile& tile, int k) {
        const Part& part = arguments.parts[tile.part];
        const int boxes = tile.width / LINE;
        // The two CTAs have different columns, so they do not share B.
        const bool other_columns = part.side_by_side || tile.row >= part.rest_row;
        const bool wide_a = !A_ALONG_M && !part.side_by_side, wide_b = !B_ALONG_N && !part.side_by_side && boxes == 4;
        const TensorMap& map_b = wide_b ? part.wide_b : part.b;
        const word full = acquire_stage(A_BOXES + boxes), stage = state.stage;
        load_operand<!A_ALONG_M, A_BOXES>(part.side_by_side, wide_a, A_BOXES, smem.a(stage), part.a, tile.row, k, full);
        load_operand<!B_ALONG_N, B_BOXES>(!other_columns, wide_b, boxes, smem.b(stage), map_b, tile.column, k, full);
        state.advance();
    }

    // Loads the boxes of an operand in a stage, one or two at a time. Each CTA loads part of a shared operand and
    // multicasts it.
    template <bool ALONG_K, int BOXES>
    __device__ __forceinline__ void load_operand(
        bool shared, bool wide, int boxes, word begin, const TensorMap& map, int line, int k, word full) const {
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int box = wide ? 2 * i : i, along = line + box * LINE;
            if (box >= boxes || (CTAS_SHARING > 1 && shared && i % CLUSTER != cta_rank())) continue;
            const int inner = ALONG_K ? k * LINE : along, outer = ALONG_K ? along : k * LINE;
            if (CTAS_SHARING == 1 || !shared) {
                tma_load(begin + box * BOX_NBYTES, map, inner, outer, full);
            } else {
                tma_load_multicast(begin + box * BOX_NBYTES, map, inner, outer, full);
            }
        }
    }

    // Waits until the next stage is empty, announces the boxes on its full barrier, and returns that barrier.
    __device__ __forceinline__ word acquire_stage(int boxes) const { return acquire_stage_nbytes(boxes * BOX_NBYTES); }

    __device__ __forceinline__ word acquire_stage_nbytes(int nbytes) const {
        const word full = smem.full(state.stage);
        smem.wait(smem.empty(state.stage), state.phase ^ 1);
        mbarrier_arrive_expect_tx(full, nbytes);
        return full;
    }

    __device__ __forceinline__ void run() {
        while (has_next) load_tile(Tile{next});
    }
};

// Loads terms; one thread. A warp releases its stripe buffers when it needs them for nothing else. Then one piece of a
// term is loaded: the warp's 16 rows and as many columns as the buffers hold.
struct TermLoader {
    const HopperArguments& arguments;
    SharedMemory smem;
    SeenFlags arrivals;

    __device__ __forceinline__ void run() {
        TileScheduler scheduler{arguments};
        word phase = 0;
        for (Tile tile; scheduler.next(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!has_terms(part) || part.late_terms) continue;
            for (int index = part.terms; index < part.terms + TERMS; index++) {
                const PartTerm& term = arguments.terms[index];
                smem.wait(smem.term_empty(0), phase);  // so the flag's timeout starts with its tile
                if (term.flag) arrivals.wait(index, term.flag, term.source);
                for (int offset = 0; offset < tile.width; offset += PIECE_COLUMNS, phase ^= 1)
                    for (int warp = 0; warp < WARPS; warp++) load_piece(tile, term, offset, warp, phase);
            }
        }
    }

    __device__ __forceinline__ void load_piece(
        const Tile& tile, const PartTerm& term, int offset, int warp, word phase) const {
        const word loaded = smem.term_full(warp);
        const int stripes = min(tile.width - offset, PIECE_COLUMNS) / LINE;
        smem.wait(smem.term_empty(warp), phase);
        mbarrier_arrive_expect_tx(loaded, stripes * STRIPE_NBYTES);
        for (int i = 0; i < stripes; i++)
            tma_load(smem.stripe(warp, i), term.map, tile.column + offset + i * LINE, tile.row + warp * STRIPE, loaded);
    }
};

// Sets the signals of parts; one thread. A TMA store is complete when the thread that issued it has waited for its bulk
// group; then the thread's warp counts here, in a counter of its consumer. Each consumer needs its own counter: with a
// short K one consumer may be several tiles ahead of the other, up to the number of stages. The last CTA of a part sets
// the part's signals.
struct SignalThread {
    const HopperArguments& arguments;
    SharedMemory smem;

    __device__ __forceinline__ void run() const {
        TileScheduler scheduler{arguments};
        word expected = 0;
        for (Tile tile; scheduler.next(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!part.tiles) continue;
            expected += WARPS / CONSUMERS;
            const time_ns start = now();
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                while (stores_rows_of(consumer) && load_acquire(smem.stored_count(consumer)) < expected) {
                    __nanosleep(200);
                    smem.check_timeout(start);
                }
            word* const counter = arguments.counters + 1 + tile.part;
            if (fetch_add(counter) != part.tiles - 1) continue;
            *counter = 0;
            __threadfence_system();
            if (part.signal) set_signal(part.signal);
            for (integer i = part.places; PLACES && i < part.places_end; i++)
                if (arguments.place_signals[i]) set_signal(arguments.place_signals[i]);
        }
    }
};
