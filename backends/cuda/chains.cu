// Products of the blocks of reflectors of one group of sweeps with vectors, in float64: Z := H_0 .. H_{count-1} Z in the
// order of their rows, H = I + Y V^H. Block k has the rows first + k * WIDTH.. of Z, so it shares half of them with the
// next one: a CTA keeps them in shared memory, for its COLUMNS columns of Z. For Hopper: tensor cores of 16 x 8 x 16.
//
// Column c of V has its elements in the rows c..c+WIDTH-1, and Y = -V T has those of column c in the rows 0..c+WIDTH-1. Of
// fragments of 16 rows and columns V has 20 of 32, and Y 26: the others, of zeros, are neither loaded nor multiplied.
//
// An element of row r and column c of a tile is at c * rows + (r ^ 4 (c % 4)), so that no two lanes of a fragment use the
// same bank.

enum { LANES = 32, THREADS = 256, WIDTH = 64, ROWS = 2 * WIDTH, COLUMNS = 64, DEPTH = 16 };

__device__ __forceinline__ void copy_8(double* to, const double* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_16(double* to, const double* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int COUNT>
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory"); }
// C += A B for fragments of 16 x 16, 16 x 8 and 8 columns.
__device__ __forceinline__ void multiply_tiles(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
}

__device__ __forceinline__ int place(int r, int c, int rows) { return c * rows + (r ^ c % 4 * 4); }

// The fragments of a block of V or Y, by columns; those of V begin at the diagonal.
template <bool IS_V>
__device__ __forceinline__ void load_block(double* to, const double* from) {
    for (int i = 2 * threadIdx.x; i < ROWS * WIDTH; i += 2 * THREADS) {
        int r = i % ROWS, c = i / ROWS, below = r - c / DEPTH * DEPTH;
        if (below < WIDTH + DEPTH && (!IS_V || below >= 0)) copy_16(to + place(r, c, ROWS), from + i);
    }
    commit();
}

// Half of the rows of Z's tile; 0 in columns that it lacks.
__device__ __forceinline__ void load_rows(double* tile, const double* z, integer ld, int half, int columns) {
    for (int i = threadIdx.x; i < WIDTH * COLUMNS; i += THREADS) {
        int r = i % WIDTH, c = i / WIDTH;
        double* to = tile + place(half * WIDTH + r, c, ROWS);
        if (c < columns) copy_8(to, z + r + c * ld);
        else *to = 0;
    }
}

template <class T>
__global__ void __launch_bounds__(THREADS)
    multiply_chain(const T* v, const T* y, int count, T* z, integer ld, int n) {
    extern __shared__ double2 memory[];
    double *left = (double*)memory, *right = left + ROWS * WIDTH, *tile = right + ROWS * WIDTH, *w = tile + ROWS * COLUMNS;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, g = lane / 4, t = lane % 4;
    const int m0 = warp / 2, n0 = warp % 2 * 32, start = blockIdx.x * COLUMNS;
    // A warp multiplies two fragments of rows of Y, so that all schedulers have as many products
    const int upper = m0 == 0 ? 3 : m0 == 1 ? 1 : m0 == 2 ? 0 : 2, fragments[2] = {upper, 7 - upper};
    const int columns = n - start < COLUMNS ? n - start : COLUMNS;
    z += start * ld;
    load_rows(tile, z, ld, 0, columns);
    load_rows(tile, z + WIDTH, ld, 1, columns);
    load_block<true>(left, v);
    for (int k = 0; k < count; ++k, z += WIDTH) {
        const int flip = k % 2 * WIDTH;  // row r of the block is row r ^ flip of the tile
        load_block<false>(right, y + (integer)k * ROWS * WIDTH);
        wait_for_copies<1>();
        __syncthreads();
        // W = V^H Z
        double c[4][4] = {};
#pragma unroll
        for (int depth = 0; depth < WIDTH + DEPTH; depth += DEPTH) {
            const int d = m0 * DEPTH + depth;
            double a[8], b[4];
#pragma unroll
            for (int i = 0; i < 8; ++i) a[i] = left[place(d + t + i / 2 * 4, m0 * 16 + g + i % 2 * 8, ROWS)];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) b[i] = tile[place((d + t + i * 4) ^ flip, n0 + j * 8 + g, ROWS)];
                multiply_tiles(c[j], a, b);
            }
        }
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) w[place(m0 * 16 + g + i / 2 * 8, n0 + j * 8 + 2 * t + i % 2, WIDTH)] = c[j][i];
        __syncthreads();
        const bool is_last = k == count - 1;
        if (!is_last) load_block<true>(left, v + (k + 1ll) * ROWS * WIDTH);
        else commit();
        wait_for_copies<1>();
        __syncthreads();
        // Z += Y W; the upper half of its rows is done, and the rows after the lower half take its place
        double x[2][4][4];
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    x[h][j][i] = tile[place((fragments[h] * DEPTH + g + i / 2 * 8) ^ flip, n0 + j * 8 + 2 * t + i % 2, ROWS)];
#pragma unroll
        for (int d = 0; d < WIDTH; d += DEPTH) {
            const bool has_lower = fragments[1] * DEPTH < d + WIDTH + DEPTH;  // all columns have the upper one
            double a[2][8], b[4];
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (h == 0 || has_lower) a[h][i] = right[place(fragments[h] * DEPTH + g + i % 2 * 8, d + t + i / 2 * 4, ROWS)];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) b[i] = w[place(d + t + i * 4, n0 + j * 8 + g, WIDTH)];
                multiply_tiles(x[0][j], a[0], b);
                if (has_lower) multiply_tiles(x[1][j], a[1], b);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int r = fragments[h] * DEPTH + g + i / 2 * 8, column = n0 + j * 8 + 2 * t + i % 2;
                    if (h && !is_last) tile[place(r ^ flip, column, ROWS)] = x[h][j][i];
                    else if (column < columns) z[r + column * ld] = x[h][j][i];
                }
        __syncthreads();
        if (!is_last) load_rows(tile, z + ROWS, ld, k % 2, columns);
        commit();
    }
}
