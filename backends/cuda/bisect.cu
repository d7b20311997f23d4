// Eigenvalues of a real symmetric tridiagonal matrix, by bisection with GROUP points at a time: each eigenvalue has
// GROUP lanes, whose points cut its interval.
//
// The number of eigenvalues below x is that of changes of sign in p_i = (d_i - x) p_{i-1} - e_{i-1}^2 p_{i-2}. Elements
// are divided by a bound of all eigenvalues; where e_i^2 is less than LEAST, LEAST stands for it, which changes an
// eigenvalue by 2^-55 of the bound. So of two successive p the larger one changes by a factor of 2^-111 to 3, and
// they are scaled after each STEPS of them.
//
// Source: Barth, Martin, Wilkinson, Calculation of the eigenvalues of a symmetric tridiagonal matrix by the method of
//     bisection, 1967.

#ifndef GROUP
#define GROUP 4
#endif
enum { LANES = 32, THREADS = 256, TILE = 1024, STEPS = 8, BITS = 55 };
#define LEAST 7.703719777548943e-34  // 2^-110

template <class Real>
__global__ void __launch_bounds__(THREADS) bisect(const Real* d, const Real* e, int n, double* values) {
    __shared__ double2 tile[TILE];
    __shared__ double most[THREADS / LANES];
    const int lane = threadIdx.x % LANES, member = lane % GROUP;
    const integer number = ((integer)blockIdx.x * THREADS + threadIdx.x) / GROUP;
    double bound = 0;
    for (int i = threadIdx.x; i < n; i += THREADS)
        bound = fmax(bound, fabs((double)d[i]) + (i ? fabs((double)e[i - 1]) : 0) + (i + 1 < n ? fabs((double)e[i]) : 0));
    for (int mask = LANES / 2; mask; mask /= 2) bound = fmax(bound, __shfl_xor_sync(~0u, bound, mask));
    if (lane == 0) most[threadIdx.x / LANES] = bound;
    __syncthreads();
    for (int i = 0; i < THREADS / LANES; ++i) bound = fmax(bound, most[i]);
    if (bound == 0) {
        if (number < n && member == 0) values[number] = 0;
        return;
    }
    double low = -1.0625, high = 1.0625;
    for (double width = 1; width > 1.0 / (1ull << BITS); width /= GROUP + 1) {
        double x = low + (high - low) * (member + 1) / (GROUP + 1);
        double before = 1, p = 1;  // p_{i-2} and p_{i-1}
        int count = 0;
        for (int start = 0; start < n; start += TILE) {
            __syncthreads();
            for (int i = threadIdx.x; i < TILE; i += THREADS) {
                int j = start + i;
                double2 element = make_double2(2, 0);  // changes no sign
                if (j < n) {
                    double off = j ? e[j - 1] / bound : 0;
                    element = make_double2(d[j] / bound, j ? fmax(off * off, LEAST) : 0);
                }
                tile[i] = element;
            }
            __syncthreads();
            int rest = n - start < TILE ? (n - start + STEPS - 1) / STEPS * STEPS : TILE;
            for (int i = 0; i < rest; i += STEPS) {
#pragma unroll
                for (int j = 0; j < STEPS; ++j) {
                    double2 element = tile[i + j];
                    double after = fma(element.x - x, p, -(element.y * before));
                    count += (unsigned)(__double2hiint(after) ^ __double2hiint(p)) >> 31;
                    before = p, p = after;
                }
                int exponent = __double2hiint(fmax(fabs(p), fabs(before))) >> 20;
                double factor = __hiloint2double((2046 - exponent) << 20, 0);
                p *= factor, before *= factor;
            }
        }
        // The interval between the last point without enough eigenvalues below it and the next one
        unsigned enough = __ballot_sync(~0u, count > number) >> (lane - member) & ((1u << GROUP) - 1);
        int cell = enough ? __ffs(enough) - 1 : GROUP;
        double part = (high - low) / (GROUP + 1), from = low;
        low = cell ? from + (high - from) * cell / (GROUP + 1) : from;
        high = cell < GROUP ? from + part * (cell + 1) : high;
    }
    if (number < n && member == 0) values[number] = (low + high) / 2 * bound;
}
