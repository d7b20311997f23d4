// The two warpgroups of a CTA that multiply ("consumers"), each 64 rows of the tile by all its columns.
//
// Each warp of a consumer passes its results through stripes of its own, 16 lines of 64 elements, to memory: no warp waits for
// another. All but the first stripe it keeps, rounded, until the next tile's products have begun. What it stores at peers it
// spreads over these: links are slower than tiles that end together, and who waits for them multiplies nothing.

constexpr int AT_ONCE = SPLIT > 1 ? WIDTH / LINE : 1;  // stripes of a tile that are not kept
constexpr int KEPT = WIDTH / LINE > AT_ONCE ? WIDTH / LINE - AT_ONCE : 1;
constexpr int CONFIRM_AFTER = 4;  // steps of the next tile in which the last one's boxes reach memory of this GPU

// What a consumer knows of itself.
struct Consumer {
    const HopperArguments& arguments;
    Memory memory;
    int index, thread;
    word staged = 0, round = 0;  // stripes, mod STAGING; loads of C or of terms, mod 2
    word given = 0;              // tiles of which sums were exchanged, mod 2
    bool unconfirmed = false;    // whether somebody waits for what this warp has stored last
    Place place;
    Walker walker{arguments};
    Tile next;                 // the tile after this one; width 0: there is none
    word kept[KEPT][LINE / 4];  // stripes of the last tile's results, in pairs
    int unstored = 0;           // how many of them are left
    Tile made;

    // The sums of a tile, of this consumer's rows.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_tile(float (&sums)[COLUMNS / 2]) {
        const int steps = arguments.steps, pace = arguments.pace;
        multiply_stage<true, COLUMNS>(sums);
        take_next();
        int k = 1;
        while (unstored && k < steps) {
            for (const int last = min(k + pace, steps) - 1; k < last; k++) step<false, COLUMNS>(sums);
            step<true, COLUMNS>(sums);
            k++;
        }
        for (; k < steps; k++) {
            step<false, COLUMNS>(sums);
            if (SIGNALS && pace == 1 && k == CONFIRM_AFTER + KEPT - 1) confirm_stored();
        }
        store_rest();
        end_products();
        if (SIGNALS) confirm_stored();
    }

    __device__ __forceinline__ void take_next() {
        if (!walker.take(next)) next.width = 0;
    }

    // The next stage's products, behind those of the last one, which end.
    template <bool STORES, int COLUMNS>
    __device__ __forceinline__ void step(float (&sums)[COLUMNS / 2]) {
        const word last = place.stage;
        place.advance();
        multiply_stage<false, COLUMNS>(sums);
        if (STORES) store_kept();
        await_products<1>();
        release_stage(last);
    }

    // The same with terms between products, piece by piece, unless sums have to be multiplied before. The other consumer's turns
    // lie between this one's: while one adds the other one multiplies. Who waits for a term holds the other one up after as many
    // steps as there are stages, so by then both have to have confirmed what they stored before: a peer's term may wait for it.
    template <int COLUMNS>
    __device__ __forceinline__ void multiply_sum_tile(float (&sums)[COLUMNS / 2]) {
        constexpr int PIECES = TERMS * PIECES_OF_TERM<COLUMNS>;
        const int steps = arguments.steps;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 0;
        int piece = 0;
        for (int k = 0; k < steps;) {
            const bool more = piece < PIECES && arguments.alpha == 1;
            const int turn = more ? (2 * piece + 2 + index) * steps / (2 * PIECES + 2) : steps;
            multiply_stage<false, COLUMNS>(sums);
            if (k == 0) {
                take_next();
                store_rest();
                offer_stripes();
            }
            for (k++; k < turn; k++) {
                step<false, COLUMNS>(sums);
                if (SIGNALS && k == CONFIRM_AFTER) confirm_stored();
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

    __device__ __forceinline__ bool keeps() const { return ::keeps(index); }

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

    // Sums from column LEFT on += factor times what lies in stripes that are so many bytes apart.
    template <int LEFT, int COLUMNS>
    __device__ __forceinline__ void add_columns(
        float (&sums)[COLUMNS / 2], word stripes, int pitch, float factor = 1) const {
#pragma unroll
        for (int column = LEFT; column < min(LEFT + PIECE, COLUMNS); column += 16) {
            word pairs[4];
            load_fragments(pairs, fragment(stripes + (column - LEFT) / LINE * pitch, column % LINE / 16));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float low, high;
                widen_pair(pairs[j], low, high);
                sums[column / 2 + 2 * j] += factor * low;
                sums[column / 2 + 2 * j + 1] += factor * high;
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
        if (alpha == 1) return;
#pragma unroll
        for (int i = 0; i < COUNT; i++) sums[i] *= alpha;
    }

    // What this warp has stored is there, and the clerk knows.
    __device__ __forceinline__ void confirm_stored() {
        if (unconfirmed && thread % 32 == 0) {
            await_stores();
            count(memory.stored(index));
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

    // Sums += beta C, as many columns at a time as there are stripes.
    template <int LEFT, int COLUMNS>
    __device__ __forceinline__ void add_c(float (&sums)[COLUMNS / 2], const Tile& tile) {
        const word loaded = memory.loaded(warp()), stripes = memory.staging(warp(), 0);
        if (thread % 32 == 0) {
            await_reads<0>();
            arrive_expecting(loaded, min(COLUMNS - LEFT, PIECE) / LINE * STRIPE_NBYTES);
            for (int i = 0; i < min(COLUMNS - LEFT, PIECE) / LINE; i++)
                load_box(
                    stripes + i * STRIPE_NBYTES, arguments.parts[tile.part].d, tile.column + LEFT + i * LINE,
                    tile.row + warp() * STRIPE, loaded);
        }
        memory.await(loaded, round);
        round ^= 1;
        add_columns<LEFT, COLUMNS>(sums, stripes, STRIPE_NBYTES, arguments.beta);
        __syncwarp();
    }

#if FINISHES
    typedef Expression<float, 2> Finish;
    static constexpr int STRIPES_UNROLLED = FINISHES == 1 ? WIDTH / LINE : 1;

    // Sums := what follows them. Of 8 columns a thread has two neighbours in each of two lines; D ends behind 8 of them. Below its
    // last line are others, which nobody stores. A stripe's sums are the first in their turn, and the last then: in a loop that
    // is unrolled these moves are none. The branch keeps the stripes' instructions apart, which together need too many registers.
    template <int COLUMNS>
    __device__ __forceinline__ void finish(float (&sums)[COLUMNS / 2], const Tile& tile) const {
        const Part& part = arguments.parts[tile.part];
        const int row = tile.row + warp() * STRIPE + thread % 32 / 4, last = static_cast<int>(part.lines) - 1;
        const integer first = part.position + tile.column + thread % 4 * 2;
        const Terms operands[2] = {
            Finish::from(arguments.operands, part.line + min(row, last), first),
            Finish::from(arguments.operands, part.line + min(row + STRIPE / 2, last), first)};
#pragma unroll STRIPES_UNROLLED
        for (int left = 0; left < COLUMNS; left += LINE) {
            const int end = static_cast<int>(part.length) - tile.column - left;
            if (end > 0)
#pragma unroll
                for (int i = 0; i < LINE / 2; i += 2) {
                    float pair[2] = {sums[i], sums[i + 1]};
                    Finish(operands[i / 2 % 2], 0, left + i / 4 * 8, i / 4 * 8 < end ? 2 : 0).apply(pair);
                    sums[i] = pair[0], sums[i + 1] = pair[1];
                }
#pragma unroll
            for (int i = 0; i < LINE / 2; i++) {
                const float finished = sums[i];
#pragma unroll
                for (int j = i; j < COLUMNS / 2; j += LINE / 2)
                    sums[j] = j + LINE / 2 < COLUMNS / 2 ? sums[j + LINE / 2] : finished;
            }
        }
    }
#endif

    // Store a stripe of a tile; elements outside of D are not written.
    __device__ __forceinline__ void store_stripe(const Tile& tile, int number, const word (&results)[LINE / 4]) {
        const Part& part = arguments.parts[tile.part];
        const int lane = thread % 32, column = tile.column + number * LINE, row = tile.row + warp() * STRIPE;
        const word staging = memory.staging(warp(), staged);
        staged = (staged + 1) % STAGING;
        if (lane == 0) await_reads<STAGING - 1>();  // of the stripe that was here before
        __syncwarp();
#pragma unroll
        for (int i = 0; i < LINE / 4; i += 4)
            store_fragments(fragment(staging, i / 4), {results[i], results[i + 1], results[i + 2], results[i + 3]});
        publish_to_tma();
        __syncwarp();
        if (lane == 0) {
            store_box(part.d, column, row, staging);
            for (int i = part.places; PLACES && i < part.end; i++) store_box(arguments.places[i], column, row, staging);
            commit_stores();
        }
    }

    // The first of those that were kept, if any is left.
    __device__ __forceinline__ void store_kept() {
        store_stripe(made, made.width / LINE - unstored, kept[0]);
        unstored--;
#pragma unroll
        for (int i = 1; i < KEPT; i++)
#pragma unroll
            for (int j = 0; j < LINE / 4; j++) kept[i - 1][j] = kept[i][j];
    }

    __device__ __forceinline__ void store_rest() {
        while (unstored) store_kept();
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
        if (!keeps()) return;
        if (READS_C && !part.partial) {
            add_c<0, COLUMNS>(sums, tile);
            if (COLUMNS > PIECE) add_c<PIECE, COLUMNS>(sums, tile);
        }
#if FINISHES
        if (!part.partial) finish<COLUMNS>(sums, tile);
#endif
#pragma unroll
        for (int i = 0; i < COLUMNS / LINE; i++) {
            word results[LINE / 4];
#pragma unroll
            for (int j = 0; j < LINE / 4; j++) results[j] = packed(sums[i * LINE / 2 + 2 * j], sums[i * LINE / 2 + 2 * j + 1]);
            if (i < AT_ONCE) {
                store_stripe(tile, i, results);
            } else {
#pragma unroll
                for (int j = 0; j < LINE / 4; j++) kept[i - AT_ONCE][j] = results[j];
            }
        }
        made = tile, unstored = max(COLUMNS / LINE - AT_ONCE, 0);
        if (SIGNALS) unconfirmed = part.tiles;
    }

    __device__ __forceinline__ void run() {
        take_next();
        while (next.width) {
            const Tile tile = next;
            if (WIDTH >= 256 && tile.width == 256) take_tile<256>(tile);
            if (WIDTH >= 192 && tile.width == 192) take_tile<192>(tile);
            if (WIDTH >= 128 && tile.width == 128) take_tile<128>(tile);
            if (tile.width == 64) take_tile<64>(tile);
        }
        store_rest();
        if (SIGNALS) confirm_stored();
        if (thread % 32 == 0) await_reads<0>();  // the end of the kernel is that of its stores
    }
};
