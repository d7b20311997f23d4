// Exact sums: numbers are cut at fixed powers of two into integers, which bins add. exact_sums.py defines BINS, FIRST,
// THREADS, KIND, PART, OF (the dtype of real parts), COMPLEX, CONJ and RESULTS.
//
// Each thread has bins of its own in shared memory: bin b of thread t is bins[b][t], so that no two threads of a warp
// use one bank. Sums of integers are the same in any order, also those that atomic additions make.
typedef long long integer;
enum { SUM, ABS_SUM, SQUARES, DOT };             // KIND
enum { FLOAT64, FLOAT32, FLOAT16, BFLOAT16 };    // OF
enum { ALL, LINES, COLUMNS };                    // RESULTS: one; one for each line; one for each element of a line
enum { BITS = 26, OTHERS = 3, SHIFT = 23 };
constexpr integer MASK = (1ll << BITS) - 1;

__shared__ integer bins[BINS + OTHERS][THREADS];

// 2^exponent, a normal number.
__device__ __forceinline__ double power(int exponent) { return __longlong_as_double(integer(exponent + 1023) << 52); }

__device__ __forceinline__ double wide(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}

// The absolute value of a complex number, rounded to the precision of its parts.
__device__ __forceinline__ double size(double re, double im) {
    const double exact = hypot(re, im);
    if constexpr (OF == FLOAT64) return exact;
    float rounded;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(rounded) : "d"(exact));
    return wide(rounded);
}

// Real part i of a matrix as float64, without flushing subnormal numbers.
__device__ __forceinline__ double element(const void* x, integer i) {
    if constexpr (OF == FLOAT64) return static_cast<const double*>(x)[i];
    float value;
    if constexpr (OF == FLOAT32) value = static_cast<const float*>(x)[i];
    if constexpr (OF == BFLOAT16) value = __uint_as_float(unsigned(static_cast<const unsigned short*>(x)[i]) << 16);
    if constexpr (OF == FLOAT16)
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<const unsigned short*>(x)[i]));
    return wide(value);
}

// Adds x 2^(26 shift).
__device__ __forceinline__ void add(double x, int shift = 0) {
    const integer word = __double_as_longlong(x);
    const int exponent = word >> 52 & 0x7ff, t = threadIdx.x;
    integer mantissa = word & (1ll << 52) - 1;
    if (exponent == 0x7ff) {
        bins[BINS + (mantissa ? 2 : word < 0 ? 1 : 0)][t]++;
        return;
    }
    if (exponent) mantissa |= 1ll << 52;
    if (!mantissa) return;
    // x = mantissa 2^(position + 26 FIRST)
    int position = max(exponent, 1) - 1075 + BITS * (shift - FIRST);
    if (position < 0) mantissa >>= -position, position = 0;  // these bits are 0
    const int b = position / BITS, offset = position % BITS;
    const integer above = mantissa >> BITS - offset, parts[3] = {mantissa << offset & MASK, above & MASK, above >> BITS};
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (parts[i]) bins[b + i][t] += word < 0 ? -parts[i] : parts[i];
}

// Adds the square of x, which may be huge or tiny.
__device__ __forceinline__ void add_square(double x) {
    const double size = fabs(x);
    if (size > power(500) && size <= 1.7976931348623157e308) {
        const double y = x * power(-SHIFT * BITS);
        add(__dmul_rn(y, y), 2 * SHIFT);
    } else if (size < power(-450)) {
        const double y = x * power(SHIFT * BITS);
        add(__dmul_rn(y, y), -2 * SHIFT);
    } else {
        add(__dmul_rn(x, x));
    }
}

// Adds the term of an element of X, at real part i, and of Y, at j.
__device__ __forceinline__ void add_term(const void* x, integer i, const void* y, integer j) {
    const double re = element(x, i), im = COMPLEX ? element(x, i + 1) : 0;
    if constexpr (KIND == SUM) add(PART ? im : re);
    if constexpr (KIND == ABS_SUM) add(COMPLEX ? size(re, im) : fabs(re));
    if constexpr (KIND == SQUARES) {
        add_square(re);
        if (COMPLEX) add_square(im);
    }
    if constexpr (KIND == DOT) {
        const double sign = CONJ ? -1 : 1, re_y = element(y, j), im_y = COMPLEX ? element(y, j + 1) : 0;
        add(__dmul_rn(re, PART ? im_y : re_y));
        if (COMPLEX) add(PART ? __dmul_rn(sign * im, re_y) : __dmul_rn(-sign * im, im_y));
    }
}

__device__ __forceinline__ void add_to(integer* result, integer count) {
    if (count) atomicAdd(reinterpret_cast<unsigned long long*>(result), static_cast<unsigned long long>(count));
}

// Adds the bins of all threads to those of a result, and clears them.
__device__ __forceinline__ void flush(integer* results, integer count, integer index) {
    __syncthreads();
    for (int b = threadIdx.x; b < BINS + OTHERS; b += THREADS) {
        integer sum = 0;
        for (int t = 0; t < THREADS; t++) {
            const int turn = (t + b) % THREADS;  // so that threads use different banks
            sum += bins[b][turn];
            bins[b][turn] = 0;
        }
        add_to(results + b * count + index, sum);
    }
    __syncthreads();
}

// X has `lines` lines, `pitch` real parts apart, of `length` elements that are `step` real parts apart; like Y. Results
// have `count` columns of bins.
extern "C" __global__ void __launch_bounds__(THREADS) add_exactly(
    const void* x, integer step, integer pitch, const void* y, integer y_step, integer y_pitch, integer length,
    integer lines, integer* results, integer count) {
    const integer first = integer(blockIdx.x) * THREADS + threadIdx.x, stride = integer(gridDim.x) * THREADS;
    for (int b = 0; b < BINS + OTHERS; b++) bins[b][threadIdx.x] = 0;
    for (integer line = blockIdx.y; line < lines; line += gridDim.y) {
        if (RESULTS == COLUMNS) {
            if (first < length)
                add_term(x, first * step + line * pitch, y, first * y_step + line * y_pitch);
        } else {
            for (integer i = first; i < length; i += stride)
                add_term(x, i * step + line * pitch, y, i * y_step + line * y_pitch);
        }
        if (RESULTS == LINES) flush(results, count, line);
    }
    if (RESULTS == ALL) flush(results, count, 0);
    if (RESULTS == COLUMNS && first < length)
        for (int b = 0; b < BINS + OTHERS; b++) add_to(results + b * count + first, bins[b][threadIdx.x]);
}
