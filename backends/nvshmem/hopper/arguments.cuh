// Arguments of the Hopper kernel, and sizes that depend on its macros. tile_scheduler.py has the same structs.

constexpr int LINE = 64, BOX_NBYTES = LINE * LINE * 2;
constexpr int STRIPE = 16, STRIPE_NBYTES = STRIPE * LINE * 2;
constexpr int CLUSTER = 2, CONSUMERS = 2, WARPS = 4 * CONSUMERS, THREADS = 128 * (CONSUMERS + 1);
constexpr int ROWS = CONSUMERS * LINE;  // of a CTA's tile
constexpr int A_BOXES = ROWS / LINE, B_BOXES = WIDTH / LINE;
constexpr int CTAS_SHARING = CLUSTER / SPLIT;  // CTAs that load operands for each other
constexpr int STAGE_NBYTES = (A_BOXES + B_BOXES) * BOX_NBYTES, STAGES = 24 * BOX_NBYTES / STAGE_NBYTES;
// Buffers of a stripe for each warp: results before the TMA store, or a piece of a term.
constexpr int STRIPE_BUFFERS = 2;
constexpr int PIECE_COLUMNS = STRIPE_BUFFERS * LINE;
// Columns of accumulators or terms in a stage.
constexpr int STAGE_COLUMNS = WIDTH < PIECE_COLUMNS ? WIDTH : PIECE_COLUMNS;
static_assert(ROWS * STAGE_COLUMNS * 2 <= STAGE_NBYTES, "a stage holds them");
static_assert(LINE * STAGE_COLUMNS * 4 <= STAGE_NBYTES, "a stage holds them");
template <int COLUMNS>
constexpr int TERM_PIECES = (COLUMNS + PIECE_COLUMNS - 1) / PIECE_COLUMNS;
constexpr int STRIPES_AT = STAGES * STAGE_NBYTES, BARRIERS_AT = STRIPES_AT + WARPS * STRIPE_BUFFERS * STRIPE_NBYTES;
// 4096 registers and 2 KiB of shared memory of each SM stay free: for two warps of waiting kernels on other lanes, or
// for one CTA of the copy kernel.
constexpr int LAUNCH_REGISTERS = 160, PRODUCER_REGISTERS = 48, CONSUMER_REGISTERS = 216;
static_assert(LAUNCH_REGISTERS * THREADS >= 128 * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS));
constexpr int MOST_BARRIERS_NBYTES = 1024;
static_assert(8 * (2 * STAGES + 2 * WARPS + 2 + CONSUMERS) <= MOST_BARRIERS_NBYTES, "barriers follow the stripes");
// Most flags that the producer awaits in sequence while a consumer waits for a stage.
constexpr integer MOST_FLAG_WAITS = TERMS > 1 ? TERMS : 1;
// Nanoseconds; a longer wait between threads of a cluster is a bug of this kernel.
constexpr integer PIPELINE_TIMEOUT = 10'000'000'000;

struct alignas(64) TensorMap {
    byte opaque[128];
};

// A CTA's tile: rows from `row` on and `width` columns from `column` on of a part. Width 0: the cluster has no more
// tiles.
struct alignas(16) Tile {
    int row, column, width, part;
};

// A part of D: its operands and result. Rank `source` sets `flag` when the operands have arrived. The kernel sets
// `signal` after all stores of D and of its further places, which `tiles` tiles of CTAs make; `tiles` is 0 if there is
// nothing to signal.
struct Part {
    // Boxes of A have 128 lines if A is K-major and not shared; b and wide_b have boxes of 64 and 128 lines.
    TensorMap a, b, wide_b, d;
    word* flag;
    integer source;
    word* signal;
    integer tiles;
    integer side_by_side;  // whether the tiles of a cluster are side by side
    integer rows, columns;  // rows and columns of D
    integer first_row, first_column;  // first row and column of D in the operands of the epilogue
    integer partial;  // whether D is alpha A B, without beta C and epilogue
    integer terms;  // index of its first term; -1: it has none
    integer places, places_end;  // range of its further places in `places`
    integer late_terms;  // whether the terms are added after the K loop, through the ring, and not during it
    integer rest_row;  // first row of the last tiles that are side by side and share nothing
};

// A term of a part: a partial product from rank `source`, which sets `flag` when it has arrived.
struct PartTerm {
    TensorMap map;
    word* flag;
    integer source;
};

struct HopperArguments {
    const Tile* tiles;     // for each tile of a cluster, the tiles of its CTAs
    integer count, steps;  // tiles of clusters; steps of 64 elements along K of each CTA
    double alpha, beta;
    word* counters;  // CTAs that have ended, then stored tiles of each part; 0 between launches
    // Steps of the next tile's K loop between the stores of two stripes; more than 1 for stores to peers.
    integer store_interval;
    Watch watch;
    integer piece_steps;  // steps of a piece of K; the last piece may have fewer
    float4* sums;         // memory for sums of pieces: of each level of the tree, thread and accumulator
    Part parts[PARTS];
    PartTerm terms[TERM_CAPACITY ? TERM_CAPACITY : 1];
    TensorMap places[PLACES ? PLACES : 1];
    word* place_signals[PLACES ? PLACES : 1];  // signal of each place, set after the stores; or 0
#if EPILOGUE
    alignas(64) Terms operands;  // operands of the epilogue
#endif
};
