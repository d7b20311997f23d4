// Elements at lists of rows and columns; reductions.py defines W, words of the size of an element. An element is at the
// positions of a fast and of a slow index, each from a list or the index itself, times the stride of that dimension.
enum { THREADS = 256, LOADS = 8 };

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

// The same for a list of fast indices of x. A CTA copies whole lines, so that the parts of a line that several elements
// share come from its L1 cache, which the list bypasses.
extern "C" __global__ void __launch_bounds__(1024) copy_lines(
    const W* x, W* z, long long x_fast, long long x_slow, long long z_fast, long long z_slow, const long long* x_fasts,
    const long long* x_slows, const long long* z_fasts, const long long* z_slows, long long fast, long long slow) {
    enum { LINES = 2, EACH = 4 };
    for (long long start = blockIdx.y * LINES; start < slow; start += gridDim.y * LINES) {
        const W* from[LINES];
        W* to[LINES];
#pragma unroll
        for (int l = 0; l < LINES; l++) {
            const long long line = start + l < slow ? start + l : start;
            from[l] = x + (x_slows ? x_slows[line] : line) * x_slow;
            to[l] = z + (z_slows ? z_slows[line] : line) * z_slow;
        }
        for (long long first = threadIdx.x; first < fast; first += blockDim.x * EACH) {
            W loaded[EACH][LINES];
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const long long i = first + e * blockDim.x;
                if (i >= fast) continue;
                const long long at = __ldcg(x_fasts + i) * x_fast;
#pragma unroll
                for (int l = 0; l < LINES; l++) loaded[e][l] = from[l][at];
            }
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                const long long i = first + e * blockDim.x;
                if (i >= fast) continue;
                const long long at = (z_fasts ? z_fasts[i] : i) * z_fast;
#pragma unroll
                for (int l = 0; l < LINES; l++)
                    if (start + l < slow) to[l][at] = loaded[e][l];
            }
        }
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
