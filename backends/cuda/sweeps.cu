// Blocks of the reflectors that `chase` keeps, so that they are multiplied with vectors by products.
//
// The reflectors of BAND sweeps that begin in the same piece of the band are a block of 2 * BAND rows, in which each
// begins a row below the one before: H_1 H_2 ... = I + Y V^H with Y = -V T. CTA i makes V and Y of the block of the
// sweeps (first + i * move) * BAND.. and of the piece `piece` + i.

#ifndef BAND
#define BAND 64
#endif
enum { THREADS = 256, ROWS = 2 * BAND, LD = BAND + 1, PARTS = THREADS / BAND, TILE = 16 };

template <class T>
__global__ void __launch_bounds__(THREADS)
    make_blocks(const T* a, integer ld, int n, int first, int move, int piece, T* v, T* y) {
    extern __shared__ double2 memory[];
    T *block = (T*)memory, *gram = block + ROWS * LD, *t = gram + BAND * LD;
    __shared__ T taus[BAND], parts[THREADS];
    integer start = (integer)(first + blockIdx.x * move) * BAND, below = start + 1 + (integer)(piece + blockIdx.x) * BAND;
    v += (integer)blockIdx.x * ROWS * BAND, y += (integer)blockIdx.x * ROWS * BAND;
    for (int i = threadIdx.x; i < ROWS * BAND; i += THREADS) {
        int c = i % BAND, r = i / BAND;
        T x = zero(T());
        if (r >= c && r < c + BAND && below + r < n) x = a[start + c + (below + r) * ld];
        if (r == c) {
            taus[c] = x;
            x = below + r < n ? one(T()) : zero(T());
        }
        block[r * LD + c] = x;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * BAND; i += THREADS) v[i] = block[i % ROWS * LD + i / ROWS];
    // V^H V
    int i0 = threadIdx.x % TILE, j0 = threadIdx.x / TILE;
    for (int i = i0; i < BAND; i += TILE)
        for (int j = j0; j < BAND; j += TILE) {
            T sum = zero(T());
            for (int r = j; i < j && r < i + BAND; ++r) add(sum, conj(block[r * LD + i]), block[r * LD + j]);
            gram[i * LD + j] = sum;
            t[i * LD + j] = zero(T());
        }
    __syncthreads();
    // Column j of T is -tau_j T V^H v_j above its diagonal
    int i = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    for (int j = 0; j < BAND; ++j) {
        T sum = zero(T());
        if (i < BAND)
            for (int l = i + part; l < j; l += PARTS) add(sum, t[i * LD + l], gram[l * LD + j]);
        parts[threadIdx.x] = sum;
        __syncthreads();
        if (i < BAND && part == 0 && i <= j) {
            for (int l = 1; l < PARTS; ++l) add(sum, parts[threadIdx.x + l]);
            T element = zero(T());
            subtract(element, taus[j], sum);
            t[i * LD + j] = i == j ? taus[j] : element;
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < ROWS * BAND; i += THREADS) {
        int r = i % ROWS, c = i / ROWS;
        T sum = zero(T());
        for (int l = 0; l <= c; ++l) subtract(sum, block[r * LD + l], t[l * LD + c]);
        y[i] = sum;
    }
}

// Z := X in blocks of BAND rows, every step_x-th one of X and every step_z-th one of Z. A CTA takes 4 * THREADS rows of a
// column.
template <class T>
__global__ void __launch_bounds__(THREADS)
    copy_blocks(const T* x, integer ldx, int step_x, T* z, integer ldz, int step_z, int rows, int columns) {
    integer column = blockIdx.x % columns;
    int start = blockIdx.x / columns * 4 * THREADS + threadIdx.x;
#pragma unroll
    for (int i = start; i < start + 4 * THREADS; i += THREADS) {
        int block = i / BAND * BAND, inside = i % BAND;
        if (i < rows) z[block * step_z + inside + column * ldz] = x[block * step_x + inside + column * ldx];
    }
}
