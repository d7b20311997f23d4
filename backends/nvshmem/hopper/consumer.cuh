// The two consumer warpgroups of a CTA. Each multiplies 64 rows of the tile by all of its columns.
//
// Each warp stores its results through its own stripe buffers, of 16 rows of 64 elements, so no warp waits for another
// one. It stores the first stripe at once, and keeps the others in registers, rounded, until the next tile's K loop has
// begun. Stores to peers are spread over that loop: tiles that end at the same time would saturate the links, and a
// warp that waits for its stores multiplies nothing.

// Stripes of a tile that are stored at the tile's end: with mirror images more, since they need registers.
constexpr int IMMEDIATE = SPLIT > 1 ? WIDTH / LINE : 1 + SYMMETRIC;
constexpr int DEFERRED = WIDTH / LINE > IMMEDIATE ? WIDTH / LINE - IMMEDIATE : 1;
constexpr int CONFIRM_AFTER = 4;  // steps of the next tile after which stores to this GPU's memory have completed

// The state of one thread of a consumer.
struct Consumer {
    const HopperArguments& arguments;
    SharedMemory smem;
    int index, thread;
    word next_buffer = 0, load_phase = 0;  // next stripe buffer; parity of the next load of C or of a term
    word exchange_phase = 0;               // parity of the number of exchanges of accumulators
    bool unconfirmed = false;              // whether this warp's last stores must still be counted for a signal
    PipelineState state;
    TileScheduler scheduler{arguments};
    Tile next;                          // the tile after the current one; width 0: none
    word deferred[DEFERRED][LINE / 4];  // stripes of the previous tile's results, in pairs of elements
    int deferred_count = 0;             // how many of them are not stored yet
    Tile previous;

    // The K loop of a tile, for this consumer's rows.
    template <int COLUMNS>
    __device__ __forceinline__ void run_k_loop(float (&acc)[COLUMNS / 2], int steps) {
        const int store_interval = arguments.store_interval;
        issue_stage<true, COLUMNS>(acc);
        fetch_next_tile();
        int k = 1;
        while (deferred_count && k < steps) {
            for (const int last = min(k + store_interval, steps) - 1; k < last; k++) run_step<false, COLUMNS>(acc);
            run_step<true, COLUMNS>(acc);
            k++;
        }
        for (; k < steps; k++) {
            run_step<false, COLUMNS>(acc);
            if (SIGNALS && store_interval == 1 && k == CONFIRM_AFTER + DEFERRED - 1) confirm_stored();
        }
        store_all_deferred();
        finish_products();
        if (SIGNALS) confirm_stored();
    }

    // The K loop of a tile with several pieces of K: the products of pieces 0 and 1, 2 and 3, ... are added, then pairs
    // of pairs.
    template <int COLUMNS>
    __device__ __forceinline__ void run_pieces(float (&acc)[COLUMNS / 2]) {
        const int steps = arguments.steps, piece_steps = arguments.piece_steps;
        run_k_loop<COLUMNS>(acc, piece_steps);
        for (int piece = 0, begin = piece_steps; begin < steps; begin += piece_steps) {
            keep_sum<COLUMNS>(acc, piece++);
            issue_stage<true, COLUMNS>(acc);
            for (int k = begin + 1; k < min(begin + piece_steps, steps); k++) run_step<false, COLUMNS>(acc);
            finish_products();
            for (int level = 0; piece >> level & 1; level++) add_sum<COLUMNS>(acc, level);
        }
    }

    // Stores the sum that ends with a piece until the next sum of as many pieces is complete. Each thread has its own
    // memory, which stays in the L2 cache.
    template <int COLUMNS>
    __device__ __forceinline__ void keep_sum(const float (&acc)[COLUMNS / 2], int piece) const {
        float4* const sum = sum_of(__ffs(~piece) - 1);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i += 4)
            __stcg(sum + i * 32, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    }

    template <int COLUMNS>
    __device__ __forceinline__ void add_sum(float (&acc)[COLUMNS / 2], int level) const {
        const float4* const sum = sum_of(level);
        constexpr int TOGETHER = 8;  // loads in flight
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i += 4 * TOGETHER) {
            float4 terms[TOGETHER];
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) terms[j] = __ldcg(sum + (i + 4 * j) * 32);
#pragma unroll
            for (int j = 0; j < TOGETHER; j++) {
                acc[i + 4 * j] += terms[j].x, acc[i + 4 * j + 1] += terms[j].y;
                acc[i + 4 * j + 2] += terms[j].z, acc[i + 4 * j + 3] += terms[j].w;
            }
        }
    }

    // This thread's memory for a sum of 2^level pieces: one vector of four accumulators for each 128 threads.
    __device__ __forceinline__ float4* sum_of(int level) const {
        const int warpgroup = (level * gridDim.x + blockIdx.x) * CONSUMERS + index;
        return arguments.sums + warpgroup * (WIDTH / 8) * 128 + thread;
    }

    __device__ __forceinline__ void fetch_next_tile() {
        if (!scheduler.next(next)) next.width = 0;
    }

    // Issues the wgmmas of the next stage, then waits for those of the last stage and releases it.
    template <bool STORES, int COLUMNS>
    __device__ __forceinline__ void run_step(float (&acc)[COLUMNS / 2]) {
        const word last = state.stage;
        state.advance();
        issue_stage<false, COLUMNS>(acc);
        if (STORES) store_deferred();
        wgmma_wait_group<1>();
        release_stage(last);
    }

    // The K loop with terms, whose pieces are added between steps; if alpha is not 1 they are added after the loop. The
    // turns of the two consumers alternate: while one adds a piece the other one multiplies. A consumer that waits for
    // a term stops the other one after as many steps as the ring has stages. By then both must have confirmed their
    // earlier stores, because the peer that computes the term may wait for them.
    template <int COLUMNS>
    __device__ __forceinline__ void run_k_loop_with_terms(float (&acc)[COLUMNS / 2]) {
        constexpr int PIECES = TERMS * TERM_PIECES<COLUMNS>;
        const int steps = arguments.steps;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) acc[i] = 0;
        int piece = 0;
        for (int k = 0; k < steps;) {
            const bool more = piece < PIECES && arguments.alpha == 1;
            const int turn = more ? (2 * piece + 2 + index) * steps / (2 * PIECES + 2) : steps;
            issue_stage<false, COLUMNS>(acc);
            if (k == 0) {
                fetch_next_tile();
                store_all_deferred();
                release_stripes();
            }
            for (k++; k < turn; k++) {
                run_step<false, COLUMNS>(acc);
                if (SIGNALS && k == CONFIRM_AFTER) confirm_stored();
            }
            finish_products();
            if (SIGNALS) confirm_stored();
            if (k < steps) add_term_piece<COLUMNS>(acc, piece++);
        }
        scale(acc);
        while (piece < PIECES) add_term_piece<COLUMNS>(acc, piece++);
    }

    // Releases this warp's stripe buffers for the next piece of a term, once TMA has read their last contents.
    __device__ __forceinline__ void release_stripes() {
        if (thread % 32 == 0) {
            tma_wait_reads<0>();
            mbarrier_arrive(smem.term_empty(warp()));
        }
    }

    template <int COLUMNS>
    __device__ __forceinline__ void add_term_piece(float (&acc)[COLUMNS / 2], int piece) {
        smem.wait(smem.term_full(warp()), load_phase);
        load_phase ^= 1;
        const word stripes = smem.stripe(warp(), 0);
        if (piece % TERM_PIECES<COLUMNS> == 0) {
            add_columns<0, COLUMNS>(acc, stripes, STRIPE_NBYTES);
        } else {
            add_columns<PIECE_COLUMNS, COLUMNS>(acc, stripes, STRIPE_NBYTES);
        }
        __syncwarp();
        if (piece + 1 < TERMS * TERM_PIECES<COLUMNS>) release_stripes();
    }

    // Adds the terms that come through the ring after the K loop.
    template <int COLUMNS>
    __device__ __forceinline__ void add_terms(float (&acc)[COLUMNS / 2]) {
        for (int i = 0; i < TERMS; i++) {
            add_late_terms<0, COLUMNS>(acc);
            if (COLUMNS > STAGE_COLUMNS) add_late_terms<STAGE_COLUMNS, COLUMNS>(acc);
        }
    }

    template <int OFFSET, int COLUMNS>
    __device__ __forceinline__ void add_late_terms(float (&acc)[COLUMNS / 2]) {
        smem.wait(smem.full(state.stage), state.phase);
        const word lines = smem.term(state.stage, index) + thread / 32 * STRIPE_NBYTES;
        if (stores_own_rows()) add_columns<OFFSET, COLUMNS>(acc, lines, BOX_NBYTES);
        release_stage_after_reads();
    }

    __device__ __forceinline__ bool stores_own_rows() const { return stores_rows_of(index); }

    // Releases the stage once all threads of this consumer have read it.
    __device__ __forceinline__ void release_stage_after_reads() {
        asm volatile("bar.sync %0, 128;" ::"r"(1 + index) : "memory");
        release_stage(state.stage);
        state.advance();
    }

    // Reduction over the two halves of K: each CTA receives the other CTA's accumulators for the rows that it stores.
    template <int COLUMNS>
    __device__ __forceinline__ void exchange_accumulators(float (&acc)[COLUMNS / 2]) {
        if (!stores_own_rows()) smem.wait(smem.exchange_ready(), exchange_phase);
        exchange_phase ^= 1;
        exchange_columns<0, COLUMNS>(acc);
        if (COLUMNS > STAGE_COLUMNS) exchange_columns<STAGE_COLUMNS, COLUMNS>(acc);
    }

    template <int OFFSET, int COLUMNS>
    __device__ __forceinline__ void exchange_columns(float (&acc)[COLUMNS / 2]) {
        const word lines = smem.a(state.stage) + thread * 16, full = smem.full(state.stage);
        if (stores_own_rows()) {
            smem.wait(full, state.phase);
#pragma unroll
            for (int i = OFFSET / 2; i < min(OFFSET + STAGE_COLUMNS, COLUMNS) / 2; i += 4) {
                float x[4];
                load_shared(x, lines + (i - OFFSET / 2) * 512);
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i + j] += x[j];
            }
        } else {
            const word other_cta = 1 - cta_rank();
            const word remote = address_in_cta(lines, other_cta), remote_full = address_in_cta(full, other_cta);
#pragma unroll
            for (int i = OFFSET / 2; i < min(OFFSET + STAGE_COLUMNS, COLUMNS) / 2; i += 4)
                store_async(remote + (i - OFFSET / 2) * 512, remote_full, acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
            smem.wait(full, state.phase);
        }
        release_stage_after_reads();
    }

    // acc, from column OFFSET on, += factor times the contents of stripes that are `pitch` bytes apart.
    template <int OFFSET, int COLUMNS>
    __device__ __forceinline__ void add_columns(
        float (&acc)[COLUMNS / 2], word stripes, int pitch, float factor = 1) const {
#pragma unroll
        for (int column = OFFSET; column < min(OFFSET + PIECE_COLUMNS, COLUMNS); column += 16) {
            word pairs[4];
            ldmatrix(pairs, fragment(stripes + (column - OFFSET) / LINE * pitch, column % LINE / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low, high;
                widen_pair(pairs[j], low, high);
                acc[column / 2 + 2 * j] += factor * low;
                acc[column / 2 + 2 * j + 1] += factor * high;
            }
        }
    }

    // Index of this warp among those of all consumers.
    __device__ __forceinline__ int warp() const { return index * 4 + thread / 32; }

    __device__ __forceinline__ void finish_products() {
        wgmma_wait_group<0>();
        release_stage(state.stage);
        state.advance();
    }

    // The shared address at which this lane loads or stores a matrix fragment: 16 rows, columns 16 i to 16 i + 15. Lane
    // l addresses row l % 16 and the 16-byte chunk 2 i + l / 16. The 128-byte swizzle XORs the chunk's index with the
    // row mod 8.
    __device__ __forceinline__ word fragment(word lines, int i) const {
        const int lane = thread % 32;
        return lines + lane % 16 * 128 + ((2 * i + lane / 16 ^ lane % 8) << 4);
    }

    template <int COUNT>
    __device__ __forceinline__ void scale(float (&acc)[COUNT]) const {
        const float alpha = arguments.alpha;
        if (alpha == 1) return;
#pragma unroll
        for (int i = 0; i < COUNT; i++) acc[i] *= alpha;
    }

    // Waits for this warp's stores and counts them for the signal thread.
    __device__ __forceinline__ void confirm_stored() {
        if (unconfirmed && thread % 32 == 0) {
            tma_wait_stores();
            increment(smem.stored_count(index));
        }
        unconfirmed = false;
    }

    // Issues the wgmmas of the current stage; they may still run when this returns.
    template <bool FIRST, int COLUMNS>
    __device__ __forceinline__ void issue_stage(float (&acc)[COLUMNS / 2]) const {
        const double_word a = matrix_descriptor<!A_ALONG_M>(smem.a(state.stage) + index * BOX_NBYTES);
        const double_word b = matrix_descriptor<!B_ALONG_N>(smem.b(state.stage));
        smem.wait(smem.full(state.stage), state.phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < LINE / 16; i++) {
            const double_word a_i = a + i * NEXT_16<!A_ALONG_M>, b_i = b + i * NEXT_16<!B_ALONG_N>;
            if (FIRST && i == 0) {
                wgmma_first(acc, a_i, b_i);
            } else {
                wgmma_accumulate(acc, a_i, b_i);
            }
        }
        wgmma_commit_group();
    }

    // Lets the producers load into the stage again: this CTA's producer and, if operands are shared, the other CTA's.
    __device__ __forceinline__ void release_stage(word stage) const {
        if (CTAS_SHARING == 1) {
            if (thread == 0) mbarrier_arrive(smem.empty(stage));
        } else if (thread < CLUSTER) {
            mbarrier_arrive_remote(smem.empty(stage), thread);
        }
    }

    // acc += beta C, as many columns at a time as the stripe buffers hold.
    template <int OFFSET, int COLUMNS>
    __device__ __forceinline__ void add_c(float (&acc)[COLUMNS / 2], const Tile& tile) {
        const Part& part = arguments.parts[tile.part];
        const TensorMap& c = SYMMETRIC ? arguments.places[part.places + 1] : part.d;
        const word loaded = smem.term_full(warp()), stripes = smem.stripe(warp(), 0);
        if (thread % 32 == 0) {
            tma_wait_reads<0>();
            mbarrier_arrive_expect_tx(loaded, min(COLUMNS - OFFSET, PIECE_COLUMNS) / LINE * STRIPE_NBYTES);
            for (int i = 0; i < min(COLUMNS - OFFSET, PIECE_COLUMNS) / LINE; i++)
                tma_load(
                    stripes + i * STRIPE_NBYTES, c, tile.column + OFFSET + i * LINE, tile.row + warp() * STRIPE,
                    loaded);
        }
        smem.wait(loaded, load_phase);
        load_phase ^= 1;
        add_columns<OFFSET, COLUMNS>(acc, stripes, STRIPE_NBYTES, arguments.beta);
        __syncwarp();
    }

#if EPILOGUE
    typedef Expression<float, 2> Epilogue;
    static constexpr int STRIPES_UNROLLED = EPILOGUE == 1 ? WIDTH / LINE : 1;

    // acc := the epilogue of acc. Of 8 columns a thread holds two neighbours in each of two rows. The number of columns
    // of D is a multiple of 8. Rows after D's last row read the operands of the last row; they are not stored. The loop
    // rotates acc so that the current stripe always comes first; when the loop is unrolled the moves cost nothing. The
    // branch on `end` keeps the compiler from interleaving stripes, which would need too many registers.
    template <int COLUMNS>
    __device__ __forceinline__ void apply_epilogue(float (&acc)[COLUMNS / 2], const Tile& tile) const {
        const Part& part = arguments.parts[tile.part];
        const int row = tile.row + warp() * STRIPE + thread % 32 / 4, last = static_cast<int>(part.rows) - 1;
        const integer first = part.first_column + tile.column + thread % 4 * 2;
        const Terms operands[2] = {
            Epilogue::from(arguments.operands, part.first_row + min(row, last), first),
            Epilogue::from(arguments.operands, part.first_row + min(row + STRIPE / 2, last), first)};
#pragma unroll STRIPES_UNROLLED
        for (int offset = 0; offset < COLUMNS; offset += LINE) {
            const int end = static_cast<int>(part.columns) - tile.column - offset;
            if (end > 0)
#pragma unroll
                for (int i = 0; i < LINE / 2; i += 2) {
                    float pair[2] = {acc[i], acc[i + 1]};
                    Epilogue(operands[i / 2 % 2], 0, offset + i / 4 * 8, i / 4 * 8 < end ? 2 : 0).apply(pair);
                    acc[i] = pair[0], acc[i + 1] = pair[1];
                }
#pragma unroll
            for (int i = 0; i < LINE / 2; i++) {
                const float value = acc[i];
#pragma unroll
                for (int j = i; j < COLUMNS / 2; j += LINE / 2)
                    acc[j] = j + LINE / 2 < COLUMNS / 2 ? acc[j + LINE / 2] : value;
            }
        }
    }
#endif

    // Stores a stripe of a tile; TMA skips elements outside of D.
    __device__ __forceinline__ void store_stripe(const Tile& tile, int number, const word (&results)[LINE / 4]) {
        const Part& part = arguments.parts[tile.part];
        const int lane = thread % 32, column = tile.column + number * LINE, row = tile.row + warp() * STRIPE;
        const word staging = next_stripe();
#pragma unroll
        for (int i = 0; i < LINE / 4; i += 4)
            stmatrix(fragment(staging, i / 4), {results[i], results[i + 1], results[i + 2], results[i + 3]});
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(part.d, column, row, staging);
            for (int i = part.places; PLACES && i < part.places_end; i++)
                tma_store(arguments.places[i], column, row, staging);
            tma_commit_group();
        }
        // Tiles on the diagonal, of all rows of a cluster, have their mirror images themselves.
        if (SYMMETRIC && column < row / (CLUSTER * ROWS) * (CLUSTER * ROWS))
            store_mirrored(arguments.places[part.places], row, column, results);
    }

    // This warp's next stripe buffer, once its last contents are read.
    __device__ __forceinline__ word next_stripe() {
        const word staging = smem.stripe(warp(), next_buffer);
        next_buffer = (next_buffer + 1) % STRIPE_BUFFERS;
        if (thread % 32 == 0) tma_wait_reads<STRIPE_BUFFERS - 1>();
        __syncwarp();
        return staging;
    }

    // Stores the transpose of a stripe. The buffer has 64 lines of 16 elements, in two chunks of 16 bytes. Lane l
    // addresses line l % 8, and the chunk and the next 8 lines as the bits of l / 8 say.
    __device__ __forceinline__ void store_mirrored(
        const TensorMap& mirrored, int row, int column, const word (&results)[LINE / 4]) {
        const int lane = thread % 32;
        const word staging = next_stripe(), line = staging + (lane / 16 * 8 + lane % 8) * 2 * STRIPE + lane / 8 % 2 * 16;
#pragma unroll
        for (int i = 0; i < LINE / 4; i += 4)
            stmatrix_transposed(
                line + i * 4 * 2 * STRIPE, {results[i], results[i + 1], results[i + 2], results[i + 3]});
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(mirrored, row, column, staging);
            tma_commit_group();
        }
    }

    // Stores the first deferred stripe.
    __device__ __forceinline__ void store_deferred() {
        store_stripe(previous, previous.width / LINE - deferred_count, deferred[0]);
        deferred_count--;
#pragma unroll
        for (int i = 1; i < DEFERRED; i++)
#pragma unroll
            for (int j = 0; j < LINE / 4; j++) deferred[i - 1][j] = deferred[i][j];
    }

    __device__ __forceinline__ void store_all_deferred() {
        while (deferred_count) store_deferred();
    }

    template <int COLUMNS>
    __device__ __forceinline__ void run_tile(const Tile& tile) {
        float acc[COLUMNS / 2];
        const Part& part = arguments.parts[tile.part];
        if (has_terms(part) && !part.late_terms) {
            run_k_loop_with_terms<COLUMNS>(acc);
        } else {
            if (TREE) {
                run_pieces<COLUMNS>(acc);
            } else {
                run_k_loop<COLUMNS>(acc, arguments.steps);
            }
            if (SPLIT > 1) exchange_accumulators<COLUMNS>(acc);
            scale(acc);
            if (has_late_terms(part)) add_terms<COLUMNS>(acc);
        }
        if (!stores_own_rows()) return;
        if (READS_C && !part.partial) {
            add_c<0, COLUMNS>(acc, tile);
            if (COLUMNS > PIECE_COLUMNS) add_c<PIECE_COLUMNS, COLUMNS>(acc, tile);
        }
#if EPILOGUE
        if (!part.partial) apply_epilogue<COLUMNS>(acc, tile);
#endif
#pragma unroll
        for (int i = 0; i < COLUMNS / LINE; i++) {
            word results[LINE / 4];
#pragma unroll
            for (int j = 0; j < LINE / 4; j++)
                results[j] = pack_pair(acc[i * LINE / 2 + 2 * j], acc[i * LINE / 2 + 2 * j + 1]);
            if (i < IMMEDIATE) {
                store_stripe(tile, i, results);
            } else {
#pragma unroll
                for (int j = 0; j < LINE / 4; j++) deferred[i - IMMEDIATE][j] = results[j];
            }
        }
        previous = tile, deferred_count = max(COLUMNS / LINE - IMMEDIATE, 0);
        if (SIGNALS) unconfirmed = part.tiles;
    }

    __device__ __forceinline__ void run() {
        fetch_next_tile();
        while (next.width) {
            const Tile tile = next;
            if (WIDTH >= 256 && tile.width == 256) run_tile<256>(tile);
            if (WIDTH >= 192 && tile.width == 192) run_tile<192>(tile);
            if (WIDTH >= 128 && tile.width == 128) run_tile<128>(tile);
            if (tile.width == 64) run_tile<64>(tile);
        }
        store_all_deferred();
        if (SIGNALS) confirm_stored();
        // TMA must have read shared memory before the CTA exits; the kernel's end completes the stores.
        if (thread % 32 == 0) tma_wait_reads<0>();
    }
};
