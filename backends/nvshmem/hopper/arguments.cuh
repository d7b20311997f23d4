// Arguments of the Hopper kernel, and sizes that depend on its macros. tile_scheduler.py has the same structs.

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
// Of each SM 4096 registers and 2 KiB of shared memory stay free: for two warps in which lanes may wait beside this kernel, or
// for a CTA that copies.
constexpr int ANY_REGISTERS = 160, PRODUCER_REGISTERS = 48, CONSUMER_REGISTERS = 216;
static_assert(ANY_REGISTERS * THREADS >= 128 * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS));
constexpr int MOST_BARRIERS_NBYTES = 1024;
static_assert(8 * (2 * STAGES + 2 * WARPS + 2 + CONSUMERS) <= MOST_BARRIERS_NBYTES, "barriers follow the stripes");
constexpr integer MOST_AWAITED = TERMS > 1 ? TERMS : 1;  // flags, one after the other, while somebody waits for boxes
constexpr integer PATIENCE = 10'000'000'000;  // a wait in a cluster that takes longer is an error of this file

struct alignas(64) TensorMap {
    byte opaque[128];
};

// Rows from `row` on and `width` columns from `column` on of a part. Width 0: no more.
struct alignas(16) Tile {
    int row, column, width, part;
};

// Operands and result; what `flag` tells of, rank `source` sends. `signal` is to be set when D is stored, which `tiles` of CTAs
// are, and so are those of its places; without signals `tiles` is 0.
struct Part {
    TensorMap a, b, wide_b, d;  // of A boxes of 128 lines along K, unless they are shared, and of B of 64 and of 128
    word* flag;
    integer source;
    word* signal;
    integer tiles;
    integer beside;  // whether the tiles of a cluster lie beside each other
    integer lines, length;    // of D
    integer line, position;   // where D begins in the operands of the epilogue
    integer partial;  // whether D is alpha A B alone
    integer terms;   // index of the first of its terms, -1: it has none
    integer places, end;  // indices of the further places where D is stored too
    integer late;    // whether its terms come when its tiles are multiplied
    integer rest;    // the row from which on tiles lie beside each other in any case
};

// What rank `source` has computed of a part.
struct PartTerm {
    TensorMap map;
    word* flag;
    integer source;
};

struct HopperArguments {
    const Tile* tiles;  // of the CTAs of a cluster one after the other
    integer count, steps;  // tiles of a cluster; boxes along K, of those of a CTA
    double alpha, beta;
    word* counters;  // of CTAs that have ended, and of each part's tiles that are stored; 0 between launches
    integer pace;  // steps of the next tile between two stripes of the last one; more than 1 where peers are stored to
    Watch watch;
    Part parts[PARTS];
    PartTerm terms[LISTED ? LISTED : 1];
    TensorMap places[PLACES ? PLACES : 1];
    word* told[PLACES ? PLACES : 1];  // for each of them, the word to set once the part is stored, or 0
#if FINISHES
    alignas(64) Terms operands;  // of the epilogue
#endif
};
