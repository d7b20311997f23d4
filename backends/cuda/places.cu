// Elements at lists of rows and columns; reductions.py defines W, words of the size of an element. An element is at the
// positions of a fast and of a slow index, each from a list or the index itself, times the stride of that dimension.
enum { THREADS = 256, LOADS = 8, LINE_THREADS = 512 };

extern "C" __global__ void __launch_bounds__(THREADS) copy_places(
    const W* x, W* z, long long x_fast, long long x_slow, long long z_fast, long long z_slow, const long long* x_fasts,
    const long long* x_slows, const long long* z_fasts, const long long* z_slows, long long fast, long long slow) {
    const long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (i >= fast) return;
    x += (x_fasts ? x_fasts[i] : i) * x_fast;
    z += (z_fasts ? z_fasts[i] : i) * z_fast;
    for (long long start = blockIdx.y * LOADS; start < slow; start += gridDim.y * LOADS) {
        W loaded[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (start + l < slow) loaded[l] = x[(x_slows ? x_slows[start + l] : start + l) * x_slow];
#pragma unroll
        for (int l = 0; l < LOADS; l++)
            if (start + l < slow) z[(z_slows ? z_slows[start + l] : start + l) * z_slow] = loaded[l];
    }
}

// The same for a list of fast indices of x, whose lines of `extent` elements are read whole and once, into shared memory.
extern "C" __global__ void __launch_bounds__(LINE_THREADS) copy_lines(
    const W* x, W* z, long long x_fast, long long x_slow, long long z_fast, long long z_slow, const long long* x_fasts,
    const long long* x_slows, const long long* z_fasts, const long long* z_slows, long long fast, long long slow,
    long long extent) {
    extern __shared__ __align__(16) unsigned char memory[];
    W* line = reinterpret_cast<W*>(memory);
    for (long long j = blockIdx.y; j < slow; j += gridDim.y) {
        const W* __restrict__ from = x + (x_slows ? x_slows[j] : j) * x_slow;
        W* to = z + (z_slows ? z_slows[j] : j) * z_slow;
#pragma unroll 8
        for (long long i = threadIdx.x; i < extent; i += LINE_THREADS) line[i] = from[i * x_fast];
        __syncthreads();
#pragma unroll 8
        for (long long i = threadIdx.x; i < fast; i += LINE_THREADS)
            to[(z_fasts ? __ldg(z_fasts + i) : i) * z_fast] = line[__ldg(x_fasts + i)];
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fill_places(
    unsigned long long first, unsigned long long second, W* z, long long z_fast, long long z_slow,
    const long long* z_fasts, const long long* z_slows, long long fast, long long slow) {
    const long long i = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x;
    if (i >= fast) return;
    union {
        unsigned long long bits[2];
        W value;
    } element = {{first, second}};
    z += (z_fasts ? z_fasts[i] : i) * z_fast;
    for (long long j = blockIdx.y; j < slow; j += gridDim.y) z[(z_slows ? z_slows[j] : j) * z_slow] = element.value;
}
