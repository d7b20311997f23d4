// out = parts[0] + parts[1] + ... + beta old, in this order, rounded once.
#include "common.cuh"

constexpr int MAX_PARTS = 64;

struct SumArguments {
    byte* out;
    const byte* old;
    integer rows, columns, out_ld, old_ld;
    Factor beta;
    integer parts;
    const byte* part[MAX_PARTS];
    integer part_ld[MAX_PARTS];
};

// One pack, at a row of a line. All parts of a batch are loaded before any is added.
template <class T, class W, int LENGTH, int BATCH>
__device__ __forceinline__ void add_pack(const SumArguments& a, integer line, integer row) {
    typedef typename Accumulator<T>::type Sum;
    const bool scaled = !a.beta.is_zero();
    Sum sum[LENGTH] = {};
    Pack<T, LENGTH> old;
    if (scaled) old = load<LENGTH>(reinterpret_cast<const T*>(a.old) + line * a.old_ld + row);
#pragma unroll 1
    for (int first = 0; first < a.parts; first += BATCH) {
        Pack<W, LENGTH> part[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (first + k < a.parts)
                part[k] = load<LENGTH>(reinterpret_cast<const W*>(a.part[first + k]) + line * a.part_ld[first + k] + row);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (first + k < a.parts)
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const Sum term = widen(part[k].x[i]);
                    sum[i] = first + k ? plus(sum[i], term) : term;
                }
    }
    Pack<T, LENGTH> result;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) {
        if (scaled) sum[i] = plus(sum[i], a.beta.of(Sum(widen(old.x[i]))));
        narrow(sum[i], result.x[i]);
    }
    store(reinterpret_cast<T*>(a.out) + line * a.out_ld + row, result);
}

template <class T, class W, int LENGTH, int BATCH>
__device__ __forceinline__ void add_all(const SumArguments& a) {
    const integer packs = (a.rows + LENGTH - 1) / LENGTH;
    const Walk stride = Walk::stride<LENGTH>(a.rows);
#pragma unroll 1
    for (Walk walk = Walk::start<LENGTH>(a.rows); walk.line < a.columns; walk.advance(stride, packs)) {
        integer row = walk.position * LENGTH;
        if (row + LENGTH <= a.rows)
            add_pack<T, W, LENGTH, BATCH>(a, walk.line, row);
        else
#pragma unroll 1
            for (; row < a.rows; row++) add_pack<T, W, 1, 1>(a, walk.line, row);
    }
}

// By the number of parts, of which as many are in flight in each thread; `scalar` takes any address.
#define SUM(NAME, T, W)                                                                                \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        sum_##NAME##_2(const __grid_constant__ SumArguments a) { add_all<T, W, 16 / sizeof(W), 2>(a); } \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        sum_##NAME##_4(const __grid_constant__ SumArguments a) { add_all<T, W, 16 / sizeof(W), 4>(a); } \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        sum_##NAME##_8(const __grid_constant__ SumArguments a) { add_all<T, W, 16 / sizeof(W), 8>(a); } \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        sum_##NAME##_scalar(const __grid_constant__ SumArguments a) { add_all<T, W, 1, 8>(a); }

SUM(float16, float16, float16)
SUM(float16_float32, float16, float)
SUM(bfloat16, bfloat16, bfloat16)
SUM(bfloat16_float32, bfloat16, float)
SUM(float32, float, float)
SUM(float64, double, double)
SUM(complex64, complex<float>, complex<float>)
SUM(complex128, complex<double>, complex<double>)
