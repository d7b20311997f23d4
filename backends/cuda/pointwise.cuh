// The functions of expressions, and loads of operands, which are numbers or arrays. pointwise.py prints an expression
// as calls of these functions, by the names of pblas/epilogues.py.
#ifndef PBLAS_POINTWISE
#define PBLAS_POINTWISE
#ifndef SHORT_RESULTS
#define SHORT_RESULTS 0  // whether results are rounded to 16 bits
#endif
#include "packets.cuh"

template <class A>
struct Constant {
    __device__ __forceinline__ static A of(double re, double) {
        A x;
        round_to(re, x);
        return x;
    }
};

template <class Real>
struct Constant<complex<Real>> {
    __device__ __forceinline__ static complex<Real> of(double re, double im) {
        return {Constant<Real>::of(re, 0), Constant<Real>::of(im, 0)};
    }
};

template <class A>
__device__ __forceinline__ A number(const Term& term) {
    return Constant<A>::of(__longlong_as_double(term.address), __longlong_as_double(term.fast));
}

// A real number of one precision as one of another; subnormal numbers stay.
__device__ __forceinline__ void convert(float x, float& y) { y = x; }
__device__ __forceinline__ void convert(float x, double& y) { asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x)); }
__device__ __forceinline__ void convert(double x, double& y) { y = x; }
__device__ __forceinline__ void convert(double x, float& y) { round_to(x, y); }

// Operands of any dtype in the precision of the computation.
template <class A>
struct As {
    template <class T>
    __device__ __forceinline__ static A of(T x) {
        A y;
        convert(x, y);
        return y;
    }
};

template <class Real>
struct As<complex<Real>> {
    template <class T>
    __device__ __forceinline__ static complex<Real> of(T x) {
        return {As<Real>::of(x), Real(0)};
    }
    template <class T>
    __device__ __forceinline__ static complex<Real> of(complex<T> x) {
        return {As<Real>::of(x.re), As<Real>::of(x.im)};
    }
};

// A result, rounded to its dtype. The value of a real expression of complex operands has no imaginary part to lose.
template <class O>
struct Result {
    template <class A>
    __device__ __forceinline__ static void of(A x, O& y) {
        narrow(As<typename Accumulator<O>::type>::of(x), y);
    }
    template <class Real>
    __device__ __forceinline__ static void of(complex<Real> x, O& y) {
        of(x.re, y);
    }
};

template <class Real>
struct Result<complex<Real>> {
    template <class A>
    __device__ __forceinline__ static void of(A x, complex<Real>& y) {
        y = As<complex<Real>>::of(x);
    }
};

enum { ANY = -1 };

// Loads at most n elements from a position of a line on, in C order of lines and positions. STEP is the stride of
// elements along a line if it is known when this is compiled, 0 or 1; then packs are aligned, are whole or empty, and
// are of one line.
template <class E, int LENGTH, int STEP>
__device__ __forceinline__ Pack<E, LENGTH> fetch(
    const Term& term, integer length, integer line, integer position, integer n) {
    const E* x = reinterpret_cast<const E*>(term.address);
    __builtin_assume(__isGlobal(x));
    Pack<E, LENGTH> pack = {};
    const integer stop = n < LENGTH ? n : LENGTH;
    if (STEP == 1) {
        if (n > 0) pack = load<LENGTH>(x + line * term.slow + position);
    } else if (STEP == 0) {
        const E all = n > 0 ? x[line * term.slow] : E{};
#pragma unroll
        for (int i = 0; i < LENGTH; i++) pack.x[i] = all;
    } else if (term.fast == 1 && position + stop <= length) {
        pack = load<LENGTH>(x + line * term.slow + position, n);
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            if (i < n) {
                pack.x[i] = x[line * term.slow + position * term.fast];
                if (++position == length) position = 0, line++;
            }
    }
    return pack;
}

// Arithmetic keeps subnormal numbers and rounds as on CPUs; other functions are those of CUDA. If results are rounded
// to 16 bits, faster versions are used: divisions and roots with errors up to two units in the last place of 32 bits,
// sigmoid and gelu with relative errors up to 2^-16. They need a tenth of the instructions, and no branch.
namespace pointwise {

#if SHORT_RESULTS
__device__ __forceinline__ float divide(float x, float y) {
    asm("div.full.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
__device__ __forceinline__ float sqrt(float x) {
    asm("sqrt.approx.f32 %0, %0;" : "+f"(x));
    return x;
}
#else
__device__ __forceinline__ float divide(float x, float y) {
    asm("div.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
__device__ __forceinline__ float sqrt(float x) {
    asm("sqrt.rn.f32 %0, %0;" : "+f"(x));
    return x;
}
#endif
__device__ __forceinline__ double divide(double x, double y) { return __ddiv_rn(x, y); }
__device__ __forceinline__ double sqrt(double x) { return __dsqrt_rn(x); }
__device__ __forceinline__ float abs(float x) {
    asm("abs.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ __forceinline__ double abs(double x) { return ::fabs(x); }
__device__ __forceinline__ float maximum(float x, float y) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
__device__ __forceinline__ double maximum(double x, double y) { return x > y || x != x ? x : y; }
__device__ __forceinline__ float minimum(float x, float y) {
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}
__device__ __forceinline__ double minimum(double x, double y) { return x < y || x != x ? x : y; }

#define BY_CUDA(NAME, FLOAT, DOUBLE)                                      \
    __device__ __forceinline__ float NAME(float x) { return ::FLOAT(x); } \
    __device__ __forceinline__ double NAME(double x) { return ::DOUBLE(x); }
BY_CUDA(exp, expf, exp)
BY_CUDA(log, logf, log)
BY_CUDA(tanh, tanhf, tanh)
BY_CUDA(erf, erff, erf)
BY_CUDA(erfc, erfcf, erfc)
BY_CUDA(sin, sinf, sin)
BY_CUDA(cos, cosf, cos)
BY_CUDA(tan, tanf, tan)
BY_CUDA(sinh, sinhf, sinh)
BY_CUDA(cosh, coshf, cosh)
BY_CUDA(floor, floorf, floor)
BY_CUDA(ceil, ceilf, ceil)
#define BY_CUDA_OF_TWO(NAME, FLOAT, DOUBLE)                                           \
    __device__ __forceinline__ float NAME(float x, float y) { return ::FLOAT(x, y); } \
    __device__ __forceinline__ double NAME(double x, double y) { return ::DOUBLE(x, y); }
BY_CUDA_OF_TWO(power, powf, pow)
BY_CUDA_OF_TWO(atan2, atan2f, atan2)
BY_CUDA_OF_TWO(hypot, hypotf, hypot)
BY_CUDA_OF_TWO(copysign, copysignf, copysign)
BY_CUDA_OF_TWO(fmod, fmodf, fmod)

template <class A>
__device__ __forceinline__ A negative(A x) {
    return ::negative(x);
}

template <class Real>
__device__ __forceinline__ complex<Real> negative(complex<Real> x) {
    return {::negative(x.re), ::negative(x.im)};
}

template <class A>
__device__ __forceinline__ A add(A x, A y) {
    return plus(x, y);
}

template <class A>
__device__ __forceinline__ A subtract(A x, A y) {
    return plus(x, negative(y));
}

template <class Real>
__device__ __forceinline__ Real multiply(Real x, Real y) {
    return times(x, y);
}

template <class Real>
__device__ __forceinline__ complex<Real> multiply(complex<Real> x, complex<Real> y) {
    return {
        plus(times(x.re, y.re), ::negative(times(x.im, y.im))),
        plus(times(x.re, y.im), times(x.im, y.re)),
    };
}

// R. L. Smith, "Algorithm 116: Complex division" (1962).
template <class Real>
__device__ __forceinline__ complex<Real> divide(complex<Real> x, complex<Real> y) {
    if (abs(y.re) >= abs(y.im)) {
        if (y.re == 0 && y.im == 0) return {divide(x.re, abs(y.re)), divide(x.im, abs(y.re))};
        const Real ratio = divide(y.im, y.re), scale = divide(Real(1), y.re + y.im * ratio);
        return {(x.re + x.im * ratio) * scale, (x.im - x.re * ratio) * scale};
    }
    const Real ratio = divide(y.re, y.im), scale = divide(Real(1), y.im + y.re * ratio);
    return {(x.re * ratio + x.im) * scale, (x.im * ratio - x.re) * scale};
}

template <class Real>
__device__ __forceinline__ complex<Real> exp(complex<Real> x) {
    const Real size = exp(x.re);
    if (x.im == 0) return {size, x.im};
    return {size * cos(x.im), size * sin(x.im)};
}

template <class Real>
__device__ __forceinline__ complex<Real> log(complex<Real> x) {
    return {log(hypot(x.re, x.im)), atan2(x.im, x.re)};
}

template <class Real>
__device__ __forceinline__ complex<Real> sqrt(complex<Real> x) {
    if (x.re == 0 && x.im == 0) return {Real(0), x.im};
    const Real large = sqrt((abs(x.re) + hypot(x.re, x.im)) * Real(0.5)), small = divide(abs(x.im), large * 2);
    return x.re >= 0 ? complex<Real>{large, copysign(small, x.im)} : complex<Real>{small, copysign(large, x.im)};
}

// (sinh 2 re + i sin 2 im) / (cosh 2 re + cos 2 im), both parts divided by e^|2 re|.
template <class Real>
__device__ __forceinline__ complex<Real> tanh(complex<Real> x) {
    const Real e = exp(Real(-2) * abs(x.re)), s = sin(x.im), c = cos(x.im), t = tanh(x.re);
    const Real below = (1 - e) * (1 - e) + 4 * e * c * c;
    return {divide((1 + e) * (1 + e) * t, below), divide(4 * e * s * c, below)};
}

template <class Real>
__device__ __forceinline__ complex<Real> sin(complex<Real> x) {
    return {times(sin(x.re), cosh(x.im)), times(cos(x.re), sinh(x.im))};
}

template <class Real>
__device__ __forceinline__ complex<Real> cos(complex<Real> x) {
    return {times(cos(x.re), cosh(x.im)), ::negative(times(sin(x.re), sinh(x.im)))};
}

// -i tanh(i x)
template <class Real>
__device__ __forceinline__ complex<Real> tan(complex<Real> x) {
    const complex<Real> t = tanh(complex<Real>{::negative(x.im), x.re});
    return {t.im, ::negative(t.re)};
}

// The remainder has the sign of y, and the quotient is rounded down, both as in NumPy.
template <class A>
__device__ __forceinline__ A remainder(A x, A y) {
    const A rest = fmod(x, y);
    if (rest == 0) return copysign(rest, y);
    return (rest < 0) != (y < 0) ? plus(rest, y) : rest;
}

template <class A>
__device__ __forceinline__ A floor_divide(A x, A y) {
    if (y == 0) return divide(x, y);
    const A rest = fmod(x, y);
    A quotient = divide(plus(x, ::negative(rest)), y);
    if (rest != 0 && (rest < 0) != (y < 0)) quotient = plus(quotient, A(-1));
    if (quotient == 0) return copysign(A(0), divide(x, y));
    const A whole = floor(quotient);
    return plus(quotient, ::negative(whole)) > A(0.5) ? plus(whole, A(1)) : whole;
}

template <class A>
__device__ __forceinline__ A sign(A x) {
    return x > 0 ? A(1) : x < 0 ? A(-1) : x == 0 ? A(0) : x;
}

template <class A>
__device__ __forceinline__ A isnan(A x) {
    return A(x != x);
}

template <class A>
__device__ __forceinline__ A isfinite(A x) {
    return A(plus(x, ::negative(x)) == 0);
}

template <class Real>
__device__ __forceinline__ complex<Real> isnan(complex<Real> x) {
    return {maximum(isnan(x.re), isnan(x.im)), Real(0)};
}

template <class Real>
__device__ __forceinline__ complex<Real> isfinite(complex<Real> x) {
    return {minimum(isfinite(x.re), isfinite(x.im)), Real(0)};
}

template <class A>
__device__ __forceinline__ A conj(A x) {
    return x;
}

template <class Real>
__device__ __forceinline__ complex<Real> conj(complex<Real> x) {
    return {x.re, ::negative(x.im)};
}

template <class A>
__device__ __forceinline__ A real(A x) {
    return x;
}

template <class Real>
__device__ __forceinline__ complex<Real> real(complex<Real> x) {
    return {x.re, Real(0)};
}

template <class A>
__device__ __forceinline__ A imag(A) {
    return A(0);
}

template <class Real>
__device__ __forceinline__ complex<Real> imag(complex<Real> x) {
    return {x.im, Real(0)};
}

template <class Real>
__device__ __forceinline__ complex<Real> abs(complex<Real> x) {
    return {hypot(x.re, x.im), Real(0)};
}

template <class Real>
__device__ __forceinline__ complex<Real> power(complex<Real> x, complex<Real> y) {
    if (y.re == 0 && y.im == 0) return {Real(1), Real(0)};
    if (x.re == 0 && x.im == 0 && y.re > 0) return {Real(0), Real(0)};
    return exp(multiply(y, log(x)));
}

template <class A>
__device__ __forceinline__ A square(A x) {
    return multiply(x, x);
}

template <class A>
__device__ __forceinline__ A rsqrt(A x) {
    return divide(Constant<A>::of(1, 0), sqrt(x));
}

template <class A>
__device__ __forceinline__ A sigmoid(A x) {
    return divide(A(1), plus(A(1), exp(negative(x))));
}

#if SHORT_RESULTS
__device__ __forceinline__ float power_of_2(float x) {
    asm("ex2.approx.f32 %0, %0;" : "+f"(x));
    return x;
}

__device__ __forceinline__ float reciprocal(float x) {
    asm("rcp.approx.f32 %0, %0;" : "+f"(x));
    return x;
}

__device__ __forceinline__ float sigmoid(float x) {
    return reciprocal(plus(1, power_of_2(times(-1.44269504088896340736f, x))));
}

// x P(x), where P(-|x|) = exp(-x^2 / 2) erfcx(|x| / sqrt 2) / 2; erfcx is approximated by a polynomial in t with a
// relative error of at most 5e-6.
__device__ __forceinline__ float gelu(float x) {
    const float t = reciprocal(fmaf(0.31f, ::fabsf(x), 1));
    float tail = fmaf(-0.07394210751f, t, 0.1804878532f);
    tail = fmaf(tail, t, 0.01570402578f);
    tail = fmaf(tail, t, 0.1334503143f);
    tail = fmaf(tail, t, 0.1204364993f);
    tail = times(times(fmaf(tail, t, 0.1238611092f), t), power_of_2(times(-0.72134752044448170368f, times(x, x))));
    return times(x, x < 0 ? tail : plus(1, negative(tail)));
}
#endif

template <class A>
__device__ __forceinline__ A relu(A x) {
    return maximum(x, A(0));
}

template <class A>
__device__ __forceinline__ A silu(A x) {
    return times(x, sigmoid(x));
}

// erfc keeps its relative accuracy where x is far below 0.
template <class A>
__device__ __forceinline__ A gelu(A x) {
    return times(times(x, A(0.5)), erfc(times(x, A(-0.70710678118654752440))));
}

// 1 + tanh(u) = 2 sigmoid(2 u), for the same reason.
template <class A>
__device__ __forceinline__ A gelu_tanh(A x) {
    const A rate = plus(times(times(x, x), A(0.07135481627260025)), A(1.5957691216057308));
    return times(x, sigmoid(times(rate, x)));
}

template <class A>
__device__ __forceinline__ A where(bool condition, A x, A y) {
    return condition ? x : y;
}

template <class A>
__device__ __forceinline__ bool less(A x, A y) {
    return x < y;
}

template <class A>
__device__ __forceinline__ bool less_equal(A x, A y) {
    return x <= y;
}

template <class A>
__device__ __forceinline__ bool greater(A x, A y) {
    return x > y;
}

template <class A>
__device__ __forceinline__ bool greater_equal(A x, A y) {
    return x >= y;
}

template <class A>
__device__ __forceinline__ bool equal(A x, A y) {
    return x == y;
}

template <class A>
__device__ __forceinline__ bool not_equal(A x, A y) {
    return x != y;
}

template <class Real>
__device__ __forceinline__ bool equal(complex<Real> x, complex<Real> y) {
    return x.re == y.re && x.im == y.im;
}

template <class Real>
__device__ __forceinline__ bool not_equal(complex<Real> x, complex<Real> y) {
    return !equal(x, y);
}

}  // namespace pointwise

// The shared memory of a CTA that normalises rows: packs of each thread, and sums of squares of each warp.
template <class T, int THREADS>
struct NormaliseBuffer {
    enum { LENGTH = 16 / sizeof(T), HELD = 5, WARPS = THREADS / 32 };

    Pack<T, LENGTH> held[HELD][THREADS];
    typename Accumulator<T>::type squares[WARPS];

    // One buffer for all calls in a kernel.
    __device__ __forceinline__ static NormaliseBuffer& of_cta() {
        static_assert(sizeof(NormaliseBuffer) <= 48 << 10, "the limit of static shared memory");
        __shared__ NormaliseBuffer buffer;
        return buffer;
    }
};

// RMS normalisation: rows of `columns` elements, divided by the square root of the mean of their squares + eps, times
// the weight, if there is one. All THREADS threads of a CTA take part; its warps are divided among as many rows as
// shared memory can hold. issue(row, at) issues the loads of a pack of a row, BATCH of them in sequence. complete(row,
// at, loads) returns the pack, with zeros after the row's end, and may store it. reload(row, at) returns a pack that
// shared memory did not hold. write(row, at, pack) takes the result.
template <class T, class E, int THREADS, int BATCH, class Issue, class Complete, class Reload, class Write>
__device__ __forceinline__ void normalise(
    int rows, int columns, const E* weight, typename Accumulator<T>::type eps, Issue issue, Complete complete,
    Reload reload, Write write) {
    typedef typename Accumulator<T>::type A;
    typedef NormaliseBuffer<T, THREADS> Buffer;
    constexpr int LENGTH = Buffer::LENGTH, WARPS = Buffer::WARPS, HELD = Buffer::HELD;
    constexpr word ALL = 0xFFFFFFFF;
    Buffer& buffer = Buffer::of_cta();
    const int packs = (columns + LENGTH - 1) / LENGTH;
    const int full = min((packs + 32 * HELD - 1) / (32 * HELD), WARPS);
    const int together = max(min(rows, WARPS / full), 1), warps = WARPS / together;
    const int warp = threadIdx.x / 32, group = warp / warps, stride = warps * 32;
    for (int first = 0; first < rows; first += together) {
        const int row = first + group;
        const bool mine = group < together && row < rows;
        const int start = mine ? threadIdx.x - group * stride : packs;
        A sum = 0;
        for (int i = start, k = 0; i < packs; i += BATCH * stride, k += BATCH) {
            decltype(issue(0, 0)) loads[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                if (i + j * stride < packs) {
                    const int at = (i + j * stride) * LENGTH;
                    loads[j] = issue(row, at);
                    if (weight) prefetch(weight + at);
                }
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                if (i + j * stride < packs) {
                    const Pack<T, LENGTH> x = complete(row, (i + j * stride) * LENGTH, loads[j]);
                    if (k + j < HELD) buffer.held[k + j][threadIdx.x] = x;
#pragma unroll
                    for (int l = 0; l < LENGTH; l++) sum += widen(x.x[l]) * widen(x.x[l]);
                }
        }
#pragma unroll
        for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(ALL, sum, lane);
        if (threadIdx.x % 32 == 0) buffer.squares[warp] = sum;
        __syncthreads();
        sum = 0;
        for (int i = 0; mine && i < warps; i++) sum += buffer.squares[group * warps + i];
        const A scale = pointwise::rsqrt(sum / A(columns) + eps);
        for (int i = start, k = 0; i < packs; i += stride, k++) {
            const int at = i * LENGTH;
            const Pack<T, LENGTH> x = k < HELD ? buffer.held[k][threadIdx.x] : reload(row, at);
            Pack<E, LENGTH> factor;
            if (weight) factor = load<LENGTH>(weight + at, columns - at);
            Pack<T, LENGTH> y;
#pragma unroll
            for (int l = 0; l < LENGTH; l++) {
                const A normal = times(widen(x.x[l]), scale);
                narrow(weight ? times(normal, widen(factor.x[l])) : normal, y.x[l]);
            }
            write(row, at, y);
        }
        __syncthreads();  // before the sums of the next rows are written
    }
}

#endif
