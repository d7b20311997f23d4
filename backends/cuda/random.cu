// X[i, j] = the random number at global row rows[i] and column columns[j]; random.py defines T and the tables.
//
// The numbers are those of backends/cpu/random.py, bit by bit: no sum is fused with a product.
struct Distribution {
    integer is_normal;
    double largest;  // uniform number
};

__device__ __forceinline__ double_word mixed(double_word x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

template <int LENGTH>
__device__ __forceinline__ double polynomial(const double (&coefficients)[LENGTH], double r) {
    double value = coefficients[0];
#pragma unroll
    for (int k = 1; k < LENGTH; k++) value = plus(times(value, r), coefficients[k]);
    return value;
}

template <int LENGTH>
__device__ __forceinline__ double ratio(const double (&polynomials)[2][LENGTH], double r) {
    return __ddiv_rn(polynomial(polynomials[0], r), polynomial(polynomials[1], r));
}

__device__ double logarithm(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752440) m = plus(m, m), e--;
    const double s = __ddiv_rn(m - 1.0, plus(m, 1.0));
    return plus(times(double(e), 0.69314718055994530942), times(plus(s, s), polynomial(SERIES, times(s, s))));
}

__device__ double quantile(double_word bits) {
    const double p = times(double((bits >> 12) * 2 + 1), 0x1p-53), q = p - 0.5;
    if (fabs(q) <= 0.425) return times(ratio(CENTRE, plus(times(0.425, 0.425), -times(q, q))), q);
    const double r = __dsqrt_rn(-logarithm(fmin(p, 1.0 - p)));
    return copysign(r <= 5.0 ? ratio(MIDDLE, plus(r, -1.6)) : ratio(FAR, plus(r, -5.0)), q);
}

__device__ __forceinline__ double number(const Distribution& a, double_word bits) {
    if (a.is_normal) return quantile(bits);
    return fmin(plus(times(double(bits >> 11), 0x1p-52), -1.0), a.largest);
}

// A shorter number than a float is rounded from a float.
template <class Element>
__device__ __forceinline__ void put(Element& x, const Distribution& a, double_word bits) {
    float single;
    round_to(number(a, bits), single);
    narrow(single, x);
}
__device__ __forceinline__ void put(double& x, const Distribution& a, double_word bits) { x = number(a, bits); }
template <class Real>
__device__ __forceinline__ void put(complex<Real>& x, const Distribution& a, double_word bits) {
    put(x.re, a, bits);
    put(x.im, a, mixed(bits + GOLDEN));
}

// X by lines, which are its columns or its rows: `fast` elements in each of `slow` lines, `ld` elements apart. The
// elements of a line have the global numbers along[], the lines across[].
extern "C" __global__ void __launch_bounds__(256) fill_random(
    T* x, integer ld, integer fast, integer slow, const integer* along, const integer* across, integer by_columns,
    double_word start, integer is_normal, double largest) {
    const Distribution distribution = {is_normal, largest};
    for (integer line = blockIdx.y; line < slow; line += gridDim.y)
        for (integer at = blockIdx.x * 256ll + threadIdx.x; at < fast; at += gridDim.x * 256ll) {
            const integer row = by_columns ? along[at] : across[line], column = by_columns ? across[line] : along[at];
            put(x[line * ld + at], distribution, mixed(mixed(row * GOLDEN + start) + (column + 1) * GOLDEN));
        }
}
