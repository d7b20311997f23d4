// Exact products by integers of 8 bits. Rows are scaled and rounded to integers of BITS bits, which are multiplied modulo
// numbers p <= 256 that have no common factor: the Chinese remainder theorem gives the exact sum.
//
// `exact.py` defines T, BITS, COUNT, the tables of moduli, and the product of all moduli in words, MODULUS.
#include "common.cuh"

enum { WORDS = 5, ROWS = 32, DEPTH = 64, THREADS = 256 };

__device__ inline double wide(double x) { return x; }
__device__ inline double wide(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));  // assembly: CuPy flushes subnormal numbers to zero
    return y;
}
__device__ inline void narrow(double x, double &y) { y = x; }
__device__ inline void narrow(double x, float &y) { asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x)); }

__device__ inline bool is_finite(double_word bits) { return bits < 0x7ff0000000000000ull; }

// The least e with x < 2^e, from the bits of x >= 0; 0 for x = 0.
__device__ inline int exponent(double_word bits) { return bits ? ilogb(__longlong_as_double(bits)) + 1 : 0; }

// t mod p
__device__ inline word reduced(word t, word p, word magic) {
    word r = t - p * __umulhi(t, magic);
    return r >= p ? r - p : r;
}

// q mod p, next to 0
__device__ inline int residue(integer q, int i) {
    double_word u = double_word(q) + (1ull << 62);
    word p = P[i], high = word(u >> 32), low = word(u);
    high -= p * __umulhi(high, MAGIC[i]);  // below 2 p
    low -= p * __umulhi(low, MAGIC[i]);
    int r = reduced(high * HIGH[i] + low + OFFSET[i], p, MAGIC[i]);
    return r > 127 ? r - int(p) : r;
}

// The sum whose residues are those of COUNT products, as a number rounded once, times 2^scale.
__device__ inline T restored(const int *products, integer stride, int scale) {
    double_word sums[WORDS] = {};
    float quotient = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        word r = reduced(products[i * stride] + BIAS[i], P[i], MAGIC[i]);
        r = reduced(r * INVERSE[i], P[i], MAGIC[i]);
        quotient += float(r) * RECIPROCAL[i];
#pragma unroll
        for (int l = 0; l < WORDS; ++l) sums[l] += double_word(r) * WEIGHT[i][l];
    }
    integer times = __float2int_rn(quotient), carry = 0;
    word w[WORDS];
#pragma unroll
    for (int l = 0; l < WORDS; ++l) {
        integer t = integer(sums[l]) - times * integer(MODULUS[l]) + carry;
        w[l] = word(t), carry = t >> 32;
    }
    bool negative = carry < 0;
    word borrow = negative;
#pragma unroll
    for (int l = 0; l < WORDS; ++l) {
        if (negative) w[l] = ~w[l] + borrow, borrow = borrow && !w[l];
    }
    int lowest = 32 * (WORDS - 2);  // the power of two of the last bit of w[WORDS - 2]
    word rest = 0;
#pragma unroll
    for (int shift = 1; shift < WORDS; ++shift) {
        if (w[WORDS - 1] == 0) {
#pragma unroll
            for (int l = WORDS - 1; l > 0; --l) w[l] = w[l - 1];
            w[0] = 0, lowest -= 32;
        }
    }
    if (w[WORDS - 1] == 0) return 0;
#pragma unroll
    for (int l = 0; l < WORDS - 3; ++l) rest |= w[l];
    int zeros = __clz(w[WORDS - 1]);
    double_word top = double_word(w[WORDS - 1]) << 32 | w[WORDS - 2];
    word next = w[WORDS - 3];
    if (zeros) top = top << zeros | next >> (32 - zeros), next <<= zeros;
    bool inexact = next | rest;
    word cut = word(top) & 0x7ff;
    top >>= 11;
    if (sizeof(T) == 8)
        top += cut > 0x400 || (cut == 0x400 && (inexact || (top & 1)));
    else
        top |= cut || inexact;  // to odd, before it is rounded to 32 bits
    double value = ldexp(double(top), 11 + lowest - zeros + scale);
    T out;
    narrow(negative ? -value : value, out);
    return out;
}

// largest[i] := bits of the largest finite element of row i of X, special[i] := whether it has others; both are zeros.
extern "C" __global__ void measure(
    const T *x, integer along_m, integer along_k, integer m, integer k, double_word *largest, word *special) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    integer i0 = integer(blockIdx.x) * ROWS, k0 = integer(blockIdx.y) * 1024, k1 = min(k0 + 1024, k);
    bool by_columns = along_m == 1;
    for (int r = by_columns ? lane : warp; r < ROWS; r += by_columns ? ROWS : THREADS / 32) {
        integer i = i0 + r;
        double_word most = 0;
        bool other = false;
        if (i < m)
#pragma unroll 8
            for (integer j = k0 + (by_columns ? warp : lane); j < k1; j += by_columns ? THREADS / 32 : 32) {
                double_word bits = __double_as_longlong(fabs(wide(x[i * along_m + j * along_k])));
                if (is_finite(bits))
                    most = max(most, bits);
                else
                    other = true;
            }
        if (!by_columns)
            for (int lanes = 16; lanes; lanes /= 2) most = max(most, __shfl_xor_sync(~0u, most, lanes));
        if (i < m && (by_columns || lane == 0) && most) atomicMax(largest + i, most);
        if (other) special[i] = 1;
    }
}

// residues[p][i][k] := the integers of X modulo p; of `rows` rows and `depth` columns, multiples of 16, beyond X zeros.
extern "C" __global__ void cut(
    const T *x, integer along_m, integer along_k, integer m, integer k, const double_word *largest, char *residues,
    integer rows, integer depth) {
    __shared__ integer tile[ROWS][DEPTH + 1];
    integer i0 = integer(blockIdx.y) * ROWS, k0 = integer(blockIdx.x) * DEPTH;
    for (int e = threadIdx.x; e < ROWS * DEPTH; e += THREADS) {
        int r = along_m == 1 ? e % ROWS : e / DEPTH, c = along_m == 1 ? e / ROWS : e % DEPTH;
        integer i = i0 + r, j = k0 + c, q = 0;
        if (i < m && j < k) {
            double value = wide(x[i * along_m + j * along_k]);
            if (is_finite(__double_as_longlong(fabs(value))))
                q = __double2ll_rn(ldexp(value, BITS - exponent(largest[i])));
        }
        tile[r][c] = q;
    }
    __syncthreads();
    int r = threadIdx.x / 8, c = threadIdx.x % 8 * 8;
    integer i = i0 + r, j = k0 + c;
    if (i >= rows || j >= depth) return;
    integer q[8];
    for (int n = 0; n < 8; ++n) q[n] = tile[r][c + n];
#pragma unroll
    for (int p = 0; p < COUNT; ++p) {
        double_word bytes = 0;
        for (int n = 0; n < 8; ++n) bytes |= double_word(residue(q[n], p) & 255) << 8 * n;
        *(double_word *)(residues + (p * rows + i) * depth + j) = bytes;
    }
}

// Z := the sums that the products modulo p are the residues of. `products` has `rows` rows, stored by columns, and
// `columns` columns. Elements of rows and columns with infinities or NaNs are those of IEEE 754.
extern "C" __global__ void restore(
    const int *products, integer rows, integer columns, integer m, integer k, const double_word *largest_x,
    const double_word *largest_y, const word *special_x, const word *special_y, const T *x, integer x_m, integer x_k,
    const T *y, integer y_n, integer y_k, T *z, integer z_m, integer z_n) {
    integer i = integer(blockIdx.x) * THREADS + threadIdx.x, j = blockIdx.y;
    if (i >= m) return;
    T out;
    if (special_x[i] || special_y[j]) {
        word signs = 0;  // 1: there is a term +infinity; 2: -infinity; 4: NaN
        for (integer l = 0; l < k; ++l) {
            double a = wide(x[i * x_m + l * x_k]), b = wide(y[j * y_n + l * y_k]);
            bool is_special = !is_finite(__double_as_longlong(fabs(a))) || !is_finite(__double_as_longlong(fabs(b)));
            double sign = (double(a > 0) - double(a < 0)) * (double(b > 0) - double(b < 0));
            if (is_special) signs |= a != a || b != b || sign == 0 ? 4 : sign > 0 ? 1 : 2;
        }
        double value = __longlong_as_double(signs == 1 ? 0x7ff0000000000000ll : 0xfff0000000000000ull);
        narrow(signs == 1 || signs == 2 ? value : __longlong_as_double(0x7ff8000000000000ll), out);
    } else {
        int scale = exponent(largest_x[i]) + exponent(largest_y[j]) - 2 * BITS;
        out = restored(products + j * rows + i, rows * columns, scale);
    }
    z[i * z_m + j * z_n] = out;
}
