// The inverse of a triangle, which solves with many right-hand sides multiply by.

enum { WARP = 32, COLUMNS = 4 };  // COLUMNS of a CTA

// The rows of column k of T that a lane holds; a column after the last one is 0.
template <int COUNT, class T>
__device__ __forceinline__ void load_column(T* piece, const T* __restrict__ t, integer down, integer across, int k,
                                            int n, int lane) {
#pragma unroll
    for (int p = 0; p < COUNT; ++p) {
        int row = p * WARP + lane;
        piece[p] = row > k && row < n ? t[row * down + k * across] : zero(T());
    }
}

// Column j of X := T^-1 for a lower triangle T of order n <= WARP * COUNT, perhaps with a diagonal of ones; 0 above it.
// Element (i, k) of T is i * down + k * across after the first. A warp solves T x = e[j] by columns of T: its lanes hold
// x, and what is left of the right-hand side. The next column of T is loaded meanwhile.
template <int COUNT, class T>
__device__ __forceinline__ void invert_pieces(const T* __restrict__ t, integer down, integer across, T* __restrict__ x,
                                              integer ldx, int n, int unit, int j) {
    int lane = threadIdx.x % WARP;
    T rest[COUNT], column[COUNT], next[COUNT];
#pragma unroll
    for (int p = 0; p < COUNT; ++p) rest[p] = p * WARP + lane == j ? one(T()) : zero(T());
    load_column<COUNT>(next, t, down, across, j / WARP * WARP, n, lane);
#pragma unroll
    for (int p = 0; p < COUNT; ++p) {
        if (p * WARP + WARP <= j) continue;  // x is 0 before row j
        int row = p * WARP + lane;
        T inverse = unit || row >= n ? one(T()) : reciprocal(t[row * (down + across)]);
        for (int l = 0; l < WARP; ++l) {
            int k = p * WARP + l;
            if (k >= n) break;
#pragma unroll
            for (int q = p; q < COUNT; ++q) column[q] = next[q];
            load_column<COUNT>(next, t, down, across, k + 1, n, lane);
            T solved = lane_of(times(rest[p], inverse), l);
            if (lane == l) rest[p] = solved;
#pragma unroll
            for (int q = p; q < COUNT; ++q) subtract(rest[q], column[q], solved);
        }
    }
#pragma unroll
    for (int p = 0; p < COUNT; ++p)
        if (p * WARP + lane < n) x[p * WARP + lane + j * ldx] = rest[p];
}

// The inverses of the blocks on the diagonal of a triangle of order n, side by side: blocks of `order` rows, of WARP *
// COUNT at most, and a shorter last one. A warp takes a column. The common case, `down` = 1, has instances of its own.
template <class T, int COUNT, bool HAS_COLUMNS>
__global__ void __launch_bounds__(COLUMNS * WARP)
    invert(const T* t, integer down, integer across, T* x, integer ldx, int n, int order, int unit) {
    int j = blockIdx.x * COLUMNS + threadIdx.x / WARP, first = j / order * order;
    if (j >= n) return;
    t += first * (down + across), x += first * ldx, n = min(order, n - first), j -= first;
    invert_pieces<COUNT>(t, HAS_COLUMNS ? 1 : down, across, x, ldx, n, unit, j);
}
