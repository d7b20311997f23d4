// Elements in messages between CTAs and between the threads of a warp, and one Householder reflector.

// A line is 8 bytes of data, each 4 of them with a flag that is stored with them. Source: NCCL, protocol LL.
__device__ __forceinline__ void write_line(uint4* line, uint4 x) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
}
__device__ __forceinline__ uint4 read_line(const uint4* line) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(line));
    return x;
}

// An element as lines.
template <class T>
struct Lines {
    enum { COUNT = (sizeof(T) + 7) / 8 };
    uint4 lines[COUNT];
    __device__ __forceinline__ void send(uint4* to, T x, unsigned flag) {
        unsigned words[2 * COUNT] = {};
        memcpy(words, &x, sizeof(T));
#pragma unroll
        for (int i = 0; i < COUNT; ++i) write_line(to + i, make_uint4(words[2 * i], flag, words[2 * i + 1], flag));
    }
    // Whether the element has arrived.
    __device__ __forceinline__ bool receive(const uint4* from, unsigned flag) {
        bool complete = true;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            lines[i] = read_line(from + i);
            complete = complete && lines[i].y == flag && lines[i].w == flag;
        }
        return complete;
    }
    __device__ __forceinline__ T element() const {
        unsigned words[2 * COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) words[2 * i] = lines[i].x, words[2 * i + 1] = lines[i].z;
        T x;
        memcpy(&x, words, sizeof(T));
        return x;
    }
};

template <class T>
__device__ __forceinline__ T shifted(T x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
__device__ __forceinline__ float2 shifted(float2 x, int mask) {
    return make_float2(shifted(x.x, mask), shifted(x.y, mask));
}
__device__ __forceinline__ double2 shifted(double2 x, int mask) {
    return make_double2(shifted(x.x, mask), shifted(x.y, mask));
}
__device__ __forceinline__ float2 complex_of(float x, float y, float2) { return make_float2(x, y); }
__device__ __forceinline__ double2 complex_of(double x, double y, double2) { return make_double2(x, y); }
__device__ __forceinline__ float complex_of(float x, float, float) { return x; }
__device__ __forceinline__ double complex_of(double x, double, double) { return x; }

// Below this sum of squares a column that began with elements of size 1 is taken as 0.
__device__ __forceinline__ float negligible(float) { return 1e-30f; }
__device__ __forceinline__ double negligible(double) { return 1e-280; }
// H^H [alpha; x] = [beta; 0] with H = I - tau [1; scale x] [1; scale x]^H; `tail` is norm(x)^2. Source: LAPACK, xLARFG.
template <class T, class Real>
__device__ void reflector(T alpha, Real tail, Real& beta, T& tau, T& scale) {
    Real re = real(alpha), im = imaginary(alpha), square = tail + re * re + im * im;
    beta = re, tau = scale = zero(T());
    if ((tail == 0 && im == 0) || square < negligible(Real())) return;
    beta = re > 0 ? -sqrt(square) : sqrt(square);
    tau = complex_of((beta - re) / beta, -im / beta, T());
    re -= beta;
    Real inverse = 1 / (re * re + im * im);
    scale = complex_of(re * inverse, -im * inverse, T());
}

__device__ __forceinline__ unsigned long long now() {
    unsigned long long time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

#define LIMIT 2000000000ull  // ns of a wait
enum { PATIENCE = 1 << 12 };  // tries between two looks at the time
// The time of a wait, which counts its tries.
struct Wait {
    unsigned tries = 0;
    unsigned long long start = 0;
    __device__ __forceinline__ bool is_over() {
        if (++tries % PATIENCE) return false;
        unsigned long long time = now();
        start = start ? start : time;
        return time - start > LIMIT;
    }
};
