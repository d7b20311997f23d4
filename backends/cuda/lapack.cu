// Kernels beside cuSOLVER's factorizations: triangles with zeros beside them, and exchanges of rows.

// The lower triangle of X: 0 above the diagonal, real elements on it. A CTA takes a column.
template <class T>
__device__ void lower(T* x, integer ld) {
    integer j = blockIdx.x;
    T* column = x + j * ld;
    for (integer i = threadIdx.x; i < j; i += blockDim.x) column[i] = zero(T());
    if (threadIdx.x == 0) make_real(column[j]);
}

// Columns of a CTA; pieces of 32 rows that a warp holds in registers: at most, and for a small triangle.
enum { WARP = 32, COLUMNS = 4, PIECES = 16, FEW_PIECES = 4 };

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

// X := T^-1 for a lower triangle T of order n <= WARP * COUNT, perhaps with a diagonal of ones; 0 above it. Element
// (i, j) of T is i * down + j * across after the first. A warp solves T x = e[j] by columns of T: its lanes hold x, and
// what is left of the right-hand side. The next column of T is loaded meanwhile.
template <int COUNT, class T>
__device__ __forceinline__ void invert_pieces(const T* __restrict__ t, integer down, integer across, T* __restrict__ x,
                                              integer ldx, int n, int unit) {
    int j = blockIdx.x * COLUMNS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (j >= n) return;
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

// The inverse of a triangle of any order up to WARP * PIECES; the common case of columns has an instance of its own.
template <class T>
__device__ void invert(const T* t, integer down, integer across, T* x, integer ldx, int n, int unit) {
    if (n <= WARP * FEW_PIECES && down == 1)
        invert_pieces<FEW_PIECES>(t, 1, across, x, ldx, n, unit);
    else if (n <= WARP * FEW_PIECES)
        invert_pieces<FEW_PIECES>(t, down, across, x, ldx, n, unit);
    else if (down == 1)
        invert_pieces<PIECES>(t, 1, across, x, ldx, n, unit);
    else
        invert_pieces<PIECES>(t, down, across, x, ldx, n, unit);
}

// INFO counts a NaN on the diagonal of a Cholesky factor, which cuSOLVER may let pass. One CTA.
template <class T>
__device__ void find_nan(const T* x, integer ld, int n, int* info) {
    __shared__ int first;
    int limit = *info > 0 ? *info - 1 : n;
    if (threadIdx.x == 0) first = limit;
    __syncthreads();
    for (int j = threadIdx.x; j < limit; j += blockDim.x) {
        auto pivot = real(x[j * (ld + 1)]);
        if (pivot != pivot) atomicMin(&first, j);
    }
    __syncthreads();
    if (threadIdx.x == 0 && first < limit) *info = first + 1;
}

// Which row each exchanged row comes from, after all exchanges of row i with row pivots[i] - 1, i = 0..count-1. One CTA.
// to[t] = -1 if entry t moves nothing; count * 4 integers of shared memory.
extern "C" __global__ void list_exchanges(const integer* pivots, integer before, int count, int backward, int* to,
                                          int* from) {
    extern __shared__ int memory[];
    int *other = memory, *slot = other + count, *content = slot + count;
    for (int t = threadIdx.x; t < count; t += blockDim.x) other[t] = (int)(pivots[t] - 1 - before);
    __syncthreads();
    for (int t = threadIdx.x; t < count; t += blockDim.x) {  // a row after the first `count` has the slot of its first use
        int k = 0;
        if (other[t] >= count)
            while (other[k] != other[t]) ++k;
        slot[t] = other[t] < count ? other[t] : count + k;
        content[t] = t;
        content[count + t] = other[t];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int s = 0; s < count; ++s) {
            int i = backward ? count - 1 - s : s, k = slot[i], row = content[i];
            content[i] = content[k];
            content[k] = row;
        }
    __syncthreads();
    for (int t = threadIdx.x; t < 2 * count; t += blockDim.x) {
        int row = t < count ? t : other[t - count];
        bool moves = (t < count || slot[t - count] == t) && content[t] != row;
        to[t] = moves ? row : -1;
        from[t] = content[t];
    }
}

// Moves the listed rows of X. A CTA takes a column: it reads all of them before it writes one.
template <class T>
__device__ void move_rows(T* x, integer ld, const int* to, const int* from, int count) {
    extern __shared__ double2 rows[];
    T *moved = (T*)rows, *column = x + blockIdx.x * ld;
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        if (to[t] >= 0) moved[t] = column[from[t]];
    __syncthreads();
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        if (to[t] >= 0) column[to[t]] = moved[t];
}

#define OF_DTYPE(letter, T)                                                                              \
    extern "C" __global__ void lower_##letter(T* x, integer ld) { lower(x, ld); }                        \
    extern "C" __global__ void find_nan_##letter(const T* x, integer ld, int n, int* info) {             \
        find_nan(x, ld, n, info);                                                                        \
    }                                                                                                    \
    extern "C" __global__ void __launch_bounds__(COLUMNS * WARP)                                          \
        invert_##letter(const T* t, integer down, integer across, T* x, integer ldx, int n, int unit) {   \
        invert(t, down, across, x, ldx, n, unit);                                                         \
    }                                                                                                    \
    extern "C" __global__ void move_rows_##letter(T* x, integer ld, const int* to, const int* from,      \
                                                  int count) {                                           \
        move_rows(x, ld, to, from, count);                                                               \
    }

OF_DTYPE(f, float)
OF_DTYPE(d, double)
OF_DTYPE(F, float2)
OF_DTYPE(D, double2)
