// Kernels beside cuSOLVER's factorizations: triangles with zeros beside them, and exchanges of rows.

// The lower triangle of X: 0 above the diagonal, real elements on it. A CTA takes a column.
template <class T>
__global__ void lower(T* x, integer ld) {
    integer j = blockIdx.x;
    T* column = x + j * ld;
    for (integer i = threadIdx.x; i < j; i += blockDim.x) column[i] = zero(T());
    if (threadIdx.x == 0) make_real(column[j]);
}

// Above the diagonal X := the adjoint of its lower triangle. A CTA takes a tile below the diagonal, by way of shared memory.
template <class T>
__global__ void mirror(T* x, integer ld, int n) {
    enum { TILE = 32 };
    __shared__ T tile[TILE][TILE + 1];
    int tiles = (n + TILE - 1) / TILE, i0 = blockIdx.x % tiles * TILE, j0 = blockIdx.x / tiles * TILE;
    if (i0 < j0) return;
    int lane = threadIdx.x % TILE, step = blockDim.x / TILE;
    for (int j = threadIdx.x / TILE; j < TILE; j += step)
        if (i0 + lane < n && j0 + j < n) tile[j][lane] = x[i0 + lane + (j0 + j) * ld];
    __syncthreads();
    for (int i = threadIdx.x / TILE; i < TILE; i += step)
        if (i0 + i < n && j0 + lane < i0 + i) x[j0 + lane + (i0 + i) * ld] = conj(tile[lane][i]);
}

// INFO counts a NaN on the diagonal of a Cholesky factor, which cuSOLVER may let pass. One CTA.
template <class T>
__global__ void find_nan(const T* x, integer ld, int n, int* info) {
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
// Equal for all T.
template <class T>
__global__ void list_exchanges(const integer* pivots, integer before, int count, int backward, int* to, int* from) {
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
__global__ void move_rows(T* x, integer ld, const int* to, const int* from, int count) {
    extern __shared__ double2 rows[];
    T *moved = (T*)rows, *column = x + blockIdx.x * ld;
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        if (to[t] >= 0) moved[t] = column[from[t]];
    __syncthreads();
    for (int t = threadIdx.x; t < count; t += blockDim.x)
        if (to[t] >= 0) column[to[t]] = moved[t];
}

__device__ __forceinline__ float size_of(float x) { return fabsf(x); }
__device__ __forceinline__ double size_of(double x) { return fabs(x); }
template <class T>
__device__ __forceinline__ real_of<T> size_of(T x) { return hypot(x.x, x.y); }
__device__ __forceinline__ float divided(float x, float y) { return x / y; }
__device__ __forceinline__ double divided(double x, double y) { return x / y; }
__device__ __forceinline__ float2 divided(float2 x, float y) { return make_float2(x.x / y, x.y / y); }
__device__ __forceinline__ double2 divided(double2 x, double y) { return make_double2(x.x / y, x.y / y); }

// Multiplies each column of X so that the first of its largest elements is real and positive. A CTA takes a column.
template <class T, class Real = real_of<T>>
__global__ void fix_signs(T* x, integer ld, int m) {
    enum { LANES = 32, MOST = 32 };
    __shared__ Real sizes[MOST];
    __shared__ int places[MOST];
    T* column = x + blockIdx.x * ld;
    Real size = 0;
    int place = 0;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        Real other = size_of(column[i]);
        if (other > size) size = other, place = i;
    }
    for (int round = 0; round < 2; ++round) {  // of the lanes of a warp, and of the warps
        for (int mask = LANES / 2; mask; mask /= 2) {
            Real other = __shfl_xor_sync(~0u, size, mask);
            int at = __shfl_xor_sync(~0u, place, mask);
            if (other > size || (other == size && at < place)) size = other, place = at;
        }
        if (round) break;
        int w = threadIdx.x % LANES;
        if (w == 0) sizes[threadIdx.x / LANES] = size, places[threadIdx.x / LANES] = place;
        __syncthreads();
        size = w < blockDim.x / LANES ? sizes[w] : Real(0);
        place = w < blockDim.x / LANES ? places[w] : 0;
    }
    T largest = column[place];
    if (!(size > 0) || (real(largest) > 0 && imaginary(largest) == 0)) return;
    T factor = divided(conj(largest), size);
    __syncthreads();
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        T element = times(column[i], factor);
        if (i == place) make_real(element);
        column[i] = element;
    }
}
