// The threads that load: operands into the ring, terms into the stripes through which sums go to memory later (in the ring they
// would hold up operands). And the one that looks ahead for the flags of both.

// What a thread knows to be there.
struct Arrivals {
    const Watch& watch;
    word known = 0;  // one bit for each flag

    // Until what a flag tells of is there, for TMA too. When the watch has given up, D has no meaning and no flag is awaited any
    // more, but all go on: a cluster that stopped halfway would leave boxes on their way to CTAs that have ended.
    __device__ __forceinline__ void await(int index, const word* flag, int source) {
        if (known >> index & 1) return;
        const bool came = watch.wait(flag, source, [](word value) { return value != 0; });
        asm volatile("fence.proxy.async;" ::: "memory");
        known |= came ? 1u << index : ~0u;
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
            if (is_awaited(part)) {
                operands.await(tile.part, part.flag, part.source);
                count(memory.seen());
            }
            for (int i = part.terms; is_late_sum(part) && i < part.terms + TERMS; i++) {
                const PartTerm& term = arguments.terms[i];
                if (term.flag) terms.await(i, term.flag, term.source);
                count(memory.seen());
            }
        }
    }
};

// Loads stages; one thread.
struct Producer {
    const HopperArguments& arguments;
    Memory memory;
    Place place;
    word seen = 0;  // flags
    Walker walker{arguments};
    Tile next;
    bool has_next = walker.take(next);

    __device__ __forceinline__ void load_tile(const Tile& tile) {
        const Part& part = arguments.parts[tile.part];
        const int steps = arguments.steps, first = SPLIT > 1 ? steps * cta_of_cluster() : 0;
        if (is_awaited(part)) await_flag();
        for (int i = 0; i < steps; i++) {
            load_step(tile, first + i);
            if (i == 0) look_ahead();
        }
        if (SPLIT > 1) expect_sums(tile);
        if (is_late_sum(part)) load_terms(tile, part);
    }

    __device__ __forceinline__ void look_ahead() {
        has_next = walker.take(next);
        if (has_next) prefetch(arguments.parts[next.part]);
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
        const bool apart = part.beside || tile.row >= part.rest;  // the CTAs' columns are not the same
        const bool wide_a = !A_ALONG_M && !part.beside, wide_b = !B_ALONG_N && !part.beside && boxes == 4;
        const TensorMap& map_b = wide_b ? part.wide_b : part.b;
        const word full = begin_stage(A_BOXES + boxes), stage = place.stage;
        load_operand<!A_ALONG_M, A_BOXES>(part.beside, wide_a, A_BOXES, memory.a(stage), part.a, tile.row, k, full);
        load_operand<!B_ALONG_N, B_BOXES>(!apart, wide_b, boxes, memory.b(stage), map_b, tile.column, k, full);
        place.advance();
    }

    // The boxes of an operand in a stage, one or two at a time. Of what CTAs share, each loads some for all.
    template <bool ALONG_K, int BOXES>
    __device__ __forceinline__ void load_operand(
        bool shared, bool wide, int boxes, word begin, const TensorMap& map, int line, int k, word full) const {
#pragma unroll
        for (int i = 0; i < BOXES; i++) {
            const int box = wide ? 2 * i : i, along = line + box * LINE;
            if (box >= boxes || (SHARING > 1 && shared && i % CLUSTER != cta_of_cluster())) continue;
            const int inner = ALONG_K ? k * LINE : along, outer = ALONG_K ? along : k * LINE;
            if (SHARING == 1 || !shared) {
                load_box(begin + box * BOX_NBYTES, map, inner, outer, full);
            } else {
                load_box_for_all(begin + box * BOX_NBYTES, map, inner, outer, full);
            }
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
        while (has_next) load_tile(Tile{next});
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
