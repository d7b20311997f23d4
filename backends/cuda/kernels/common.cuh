// Common to all kernels: numbers, packs of numbers, flags and waiting. It includes no header, so NVRTC needs no include
// path.
//
// Every kernel takes its argument struct by value. A launch with zeros as arguments does nothing; it loads the kernel
// ahead of time.
#ifndef PBLAS_COMMON
#define PBLAS_COMMON

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int word;
typedef long long integer;
typedef unsigned long long double_word;
typedef unsigned long long time_ns;

enum { MAX_RANKS = 32 };

// Numbers: storage types, and the types in which they are accumulated.

struct float16 {
    half_word bits;
};

struct bfloat16 {
    half_word bits;
};

// Numbers of 8 bits, as in ml_dtypes: 4 bits of exponent and 3 of mantissa, no infinity; 5 and 2, as the first byte of a
// float16.
struct float8_e4m3fn {
    byte bits;
};

struct float8_e5m2 {
    byte bits;
};

template <class Real>
struct complex {
    Real re, im;
};

template <class T>
struct Accumulator {
    typedef T type;
};

template <>
struct Accumulator<float16> {
    typedef float type;
};

template <>
struct Accumulator<bfloat16> {
    typedef float type;
};

template <>
struct Accumulator<float8_e4m3fn> {
    typedef float type;
};

template <>
struct Accumulator<float8_e5m2> {
    typedef float type;
};

template <class T>
__device__ __forceinline__ T widen(T x) {
    return x;
}

__device__ __forceinline__ float widen(float16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}

__device__ __forceinline__ float widen(bfloat16 x) { return __uint_as_float(static_cast<word>(x.bits) << 16); }

// Rounds to nearest even, once.
template <class T, class A>
__device__ __forceinline__ void narrow(A x, T& narrow_x) {
    narrow_x = x;
}

__device__ __forceinline__ void narrow(float x, float16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

__device__ __forceinline__ void narrow(float x, bfloat16& y) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}

// Arithmetic that rounds as on CPUs with any compiler options: without fused multiply-add or flushed subnormal numbers
// (CuPy compiles with -ftz=true).
__device__ __forceinline__ float plus(float x, float y) {
    asm("add.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}

__device__ __forceinline__ double plus(double x, double y) { return __dadd_rn(x, y); }

template <class Real>
__device__ __forceinline__ complex<Real> plus(complex<Real> x, complex<Real> y) {
    return {plus(x.re, y.re), plus(x.im, y.im)};
}

__device__ __forceinline__ float times(float x, float y) {
    asm("mul.rn.f32 %0, %0, %1;" : "+f"(x) : "f"(y));
    return x;
}

__device__ __forceinline__ double times(double x, double y) { return __dmul_rn(x, y); }

__device__ __forceinline__ float negative(float x) {
    asm("neg.f32 %0, %0;" : "+f"(x));
    return x;
}

__device__ __forceinline__ double negative(double x) { return -x; }

__device__ __forceinline__ void round_to(double x, float& y) { asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x)); }

__device__ __forceinline__ void round_to(double x, double& y) { y = x; }

__device__ __forceinline__ word nearest(float x) {
    word y;
    asm("cvt.rni.u32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// Numbers of 8 bits.

__device__ __forceinline__ float widen(float8_e5m2 x) {
    return widen(float16{static_cast<half_word>(x.bits << 8)});
}

// A float16 has the same bits with an exponent that is 8 larger.
__device__ __forceinline__ float widen(float8_e4m3fn x) {
    if ((x.bits & 0x7f) == 0x7f) return __uint_as_float(0x7fffffff);
    return times(256.0f, widen(float16{static_cast<half_word>((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)}));
}

// The bits of |x|, rounded to nearest even with MANTISSA bits and the exponent's BIAS. The result is larger than those of
// any finite number if x is too large.
template <int MANTISSA, int BIAS>
__device__ __forceinline__ word rounded_magnitude(float x) {
    enum { SHIFT = 23 - MANTISSA };
    const word magnitude = __float_as_uint(x) & 0x7fffffff;
    if (magnitude >> 23 < 128 - BIAS)  // below the normal numbers, whose distance is the smallest positive number
        return nearest(times(__uint_as_float(magnitude), float(1 << (BIAS - 1 + MANTISSA))));
    const word half = (1u << (SHIFT - 1)) - 1 + (magnitude >> SHIFT & 1);
    return ((magnitude + half) >> SHIFT) - ((127 - BIAS) << MANTISSA);
}

__device__ __forceinline__ void narrow(float x, float8_e4m3fn& y) {
    const word magnitude = rounded_magnitude<3, 7>(x);
    y.bits = static_cast<byte>(__float_as_uint(x) >> 24 & 0x80 | (magnitude > 0x7e ? 0x7f : magnitude));
}

__device__ __forceinline__ void narrow(float x, float8_e5m2& y) {
    const bool is_nan = (__float_as_uint(x) & 0x7fffffff) > 0x7f800000;
    const word magnitude = rounded_magnitude<2, 15>(x);
    y.bits = static_cast<byte>(
        __float_as_uint(x) >> 24 & 0x80 | (is_nan ? 0x7e : magnitude > 0x7b ? 0x7c : magnitude));
}

// A scalar from the host, which multiplies elements. A real factor scales both parts of a complex element separately,
// so that an infinite part makes no NaN in the other one. The factor 1 changes no bit.
struct Factor {
    double re, im;

    __device__ __forceinline__ bool is_zero() const { return re == 0 && im == 0; }

    template <class Real>
    __device__ __forceinline__ Real of(Real x) const {
        Real a;
        round_to(re, a);
        return times(a, x);
    }

    template <class Real>
    __device__ __forceinline__ complex<Real> of(complex<Real> x) const {
        if (im == 0) return {of(x.re), of(x.im)};
        Real a, b;
        round_to(re, a);
        round_to(im, b);
        return {plus(times(a, x.re), negative(times(b, x.im))), plus(times(a, x.im), times(b, x.re))};
    }
};

// Operands of expressions.

enum { MAX_TERMS = 12 };

// An operand: the bits of two doubles, or an array. Element `position` of line `line` of an array is position * fast +
// line * slow elements after its address.
struct Term {
    integer address, fast, slow;

    // Moves the beginning of an array with elements of `nbytes` bytes.
    __device__ __forceinline__ void advance(integer line, integer position, integer nbytes) {
        address += (line * slow + position * fast) * nbytes;
    }
};

struct Terms {
    integer length;  // elements of a line
    Term term[MAX_TERMS];
};

// Packs: LENGTH neighbours that one instruction loads or stores.

template <class T, int LENGTH>
struct alignas(sizeof(T) * LENGTH) Pack {
    T x[LENGTH];
};

template <class T>
struct Pack<T, 1> {
    T x[1];
};

template <int LENGTH, class T>
__device__ __forceinline__ Pack<T, LENGTH> load(const T* address) {
    return *reinterpret_cast<const Pack<T, LENGTH>*>(address);
}

template <class T, int LENGTH>
__device__ __forceinline__ void store(T* address, const Pack<T, LENGTH>& pack) {
    *reinterpret_cast<Pack<T, LENGTH>*>(address) = pack;
}

template <class T, int LENGTH>
__device__ __forceinline__ bool is_aligned(const T* address) {
    return (reinterpret_cast<unsigned long long>(address) & (sizeof(T) * LENGTH - 1)) == 0;
}

// Loads or stores the first n elements of a pack, by one instruction if the pack is whole and aligned.
template <int LENGTH, class T>
__device__ __forceinline__ Pack<T, LENGTH> load(const T* address, integer n) {
    if (n >= LENGTH && is_aligned<T, LENGTH>(address)) return load<LENGTH>(address);
    Pack<T, LENGTH> pack;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) pack.x[i] = i < n ? address[i] : T{};
    return pack;
}

template <class T, int LENGTH>
__device__ __forceinline__ void store(T* address, const Pack<T, LENGTH>& pack, integer n) {
    if (n >= LENGTH && is_aligned<T, LENGTH>(address)) return store(address, pack);
#pragma unroll
    for (int i = 0; i < LENGTH; i++)
        if (i < n) address[i] = pack.x[i];
}

// A grid-stride loop over the packs of a block of `lines` lines of `length` elements: the line, and the pack in the
// line.
struct LinePosition {
    integer line, position;

    template <int LENGTH>
    __device__ __forceinline__ static LinePosition start(integer length) {
        return at(blockIdx.x * blockDim.x + threadIdx.x, (length + LENGTH - 1) / LENGTH);
    }

    template <int LENGTH>
    __device__ __forceinline__ static LinePosition stride(integer length) {
        return at(gridDim.x * blockDim.x, (length + LENGTH - 1) / LENGTH);
    }

    // A thread's index has 32 bits; a division of 32 bits is much faster than one of 64.
    __device__ __forceinline__ static LinePosition at(word index, integer packs) {
        if (packs > index) return {0, index};
        if (packs == 0) return {0, 0};
        return {index / static_cast<word>(packs), index % static_cast<word>(packs)};
    }

    // The line and position of an element.
    __device__ __forceinline__ static LinePosition of(integer index, integer length) {
        if ((index | length) >> 32 == 0) return at(static_cast<word>(index), length);
        return {index / length, index % length};
    }

    __device__ __forceinline__ void advance(LinePosition stride, integer packs) {
        line += stride.line;
        position += stride.position;
        if (position >= packs) {
            position -= packs;
            line++;
        }
    }
};

// Flags and waiting.

__device__ __forceinline__ word acquire(const word* flag) {
    word value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// Sets a flag after all earlier writes of this thread, and those of others that it has observed, for instance before a
// __syncthreads().
__device__ __forceinline__ void release(word* flag, word value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ time_ns now() {
    time_ns time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Nanoseconds since a time. The system may set the timer back; then the result is negative, and no deadline passes.
__device__ __forceinline__ integer elapsed(time_ns since) { return static_cast<integer>(now() - since); }

// Programmatic dependent launch: the next kernel may start once all CTAs have called this.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits for the end of the previous kernel, whose writes are visible then, and lets the next kernel start early too.
__device__ __forceinline__ void grid_dependency_sync() {
    launch_dependents();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Why a kernel gave up waiting; in pinned host memory.
struct Record {
    word code, rank, step, pad;
    time_ns time;
};

enum Code : word { ABORTED = 1, LATE = 2 };

// The deadline of a wait, the abort word to poll (or 0), and the record of a kernel that gives up (or 0).
struct Watch {
    const word* abort;
    Record* record;
    time_ns timeout;
    integer step;

    // Records the first thread that gives up. Threads that give up at the same time, also in kernels on other lanes,
    // may mix their fields: then the rank is one of the awaited ranks, but the step may be another thread's.
    __device__ __forceinline__ void give_up(Code code, int rank) const {
        volatile Record* written = record;
        if (!record || written->code) return;
        written->rank = rank;
        written->step = static_cast<word>(step);
        written->time = now();
        __threadfence_system();
        written->code = code;
        __threadfence_system();
    }

    // Waits until done(flag) is true. Returns false after the deadline, or once the abort word is set.
    template <class Done>
    __device__ __forceinline__ bool wait(const word* flag, int rank, Done done) const {
        const time_ns start = now();
        for (word polls = 1; !done(acquire(flag)); polls++) {
            if (polls % 16) continue;
            if (abort && acquire(abort)) return give_up(ABORTED, rank), false;
            if (elapsed(start) > static_cast<integer>(timeout)) return give_up(LATE, rank), false;
        }
        return true;
    }
};

#endif
