// What the kernels share: numbers, packs of them, flags and waiting. No header is included, so NVRTC needs no include path.
//
// Every argument struct is passed by value. A launch whose arguments are all zero does nothing: that is how kernels are
// loaded before they are needed.
#ifndef PBLAS_COMMON
#define PBLAS_COMMON

typedef unsigned char byte;
typedef unsigned short half_word;
typedef unsigned int word;
typedef long long integer;
typedef unsigned long long time_ns;

enum { MAX_RANKS = 32 };

// ---- numbers: storage types, and the types in which they are added

struct float16 {
    half_word bits;
};

struct bfloat16 {
    half_word bits;
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

// Arithmetic that is rounded as on CPUs, with any compiler options: nothing is fused, and subnormal numbers stay (CuPy
// compiles with -ftz=true).
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

// A factor as the host gives it, and times an element. A real factor scales both parts, so that an infinite part of an
// element makes no NaN in the other; 1 changes no bit.
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

// ---- operands of expressions

enum { MAX_TERMS = 12 };

// A number, as the bits of two doubles, or an array whose element `position` of line `line` is position fast + line slow
// elements after its address.
struct Term {
    integer address, fast, slow;

    // Lets an array of elements of some bytes begin there.
    __device__ __forceinline__ void advance(integer line, integer position, integer nbytes) {
        address += (line * slow + position * fast) * nbytes;
    }
};

struct Terms {
    integer length;  // elements of a line
    Term term[MAX_TERMS];
};

// ---- packs: LENGTH neighbours that are loaded or stored by one instruction

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

// The first n of a pack: by one instruction if it is whole and its address allows it.
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

// The grid's threads, dealt to the packs of a block of `lines` lines of `length` elements.
struct Walk {
    integer line, position;

    template <int LENGTH>
    __device__ __forceinline__ static Walk start(integer length) {
        return at(blockIdx.x * blockDim.x + threadIdx.x, (length + LENGTH - 1) / LENGTH);
    }

    template <int LENGTH>
    __device__ __forceinline__ static Walk stride(integer length) {
        return at(gridDim.x * blockDim.x, (length + LENGTH - 1) / LENGTH);
    }

    // 32 bits hold the threads of every grid here, and a division of 32 bits is quick.
    __device__ __forceinline__ static Walk at(word index, integer packs) {
        if (packs > index) return {0, index};
        if (packs == 0) return {0, 0};
        return {index / static_cast<word>(packs), index % static_cast<word>(packs)};
    }

    // The place of an element.
    __device__ __forceinline__ static Walk of(integer index, integer length) {
        if ((index | length) >> 32 == 0) return at(static_cast<word>(index), length);
        return {index / length, index % length};
    }

    __device__ __forceinline__ void advance(Walk stride, integer packs) {
        line += stride.line;
        position += stride.position;
        if (position >= packs) {
            position -= packs;
            line++;
        }
    }
};

// ---- flags and waiting

__device__ __forceinline__ word acquire(const word* flag) {
    word value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    return value;
}

// What this thread has written or seen written, also by others before a __syncthreads(), is there once the flag is.
__device__ __forceinline__ void release(word* flag, word value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ __forceinline__ time_ns now() {
    time_ns time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Nanoseconds since then. The timer is the system's and may be set back: less than 0 then, and nothing is late for that.
__device__ __forceinline__ integer elapsed(time_ns since) { return static_cast<integer>(now() - since); }

// The next kernel may be launched when all CTAs have come here, if it waits for the end of this one by itself.
__device__ __forceinline__ void be_followed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits for the end of the kernel before, and sees what it has written: this one is launched early, as the next one may be.
__device__ __forceinline__ void follow() {
    be_followed();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Why a kernel gave up; in pinned memory of the host.
struct Record {
    word code, rank, step, pad;
    time_ns time;
};

enum Code : word { ABORTED = 1, LATE = 2 };

// How long a kernel waits, and where it looks and writes. Addresses may be 0.
struct Watch {
    const word* abort;
    Record* record;
    time_ns timeout;
    integer step;

    // The first to give up is recorded. Those that give up with it, of the same kernel or on another lane, may mix: the rank
    // is one that is waited for, the step perhaps another one's.
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

    // Whether done(value of the flag) came true before the deadline and before the abort word was set.
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
