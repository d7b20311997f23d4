// target = beta source, and target = conj(source), of a block.
#include "common.cuh"

struct ElementwiseArguments {
    byte* target;
    const byte* source;
    integer rows, columns, target_ld, source_ld;
    Factor beta;
};

// If beta is 0 the source is not read, so that its NaNs do not spread.
struct Scale {
    template <class T>
    __device__ __forceinline__ static T apply(const Factor& beta, T x) {
        typedef typename Accumulator<T>::type A;
        narrow(beta.of(A(widen(x))), x);
        return x;
    }

    __device__ __forceinline__ static bool reads(const Factor& beta) { return !beta.is_zero(); }
};

struct Conjugate {
    template <class T>
    __device__ __forceinline__ static T apply(const Factor&, T x) {
        return {x.re, negative(x.im)};
    }

    __device__ __forceinline__ static bool reads(const Factor&) { return true; }
};

template <class Operation, class T, int LENGTH>
__device__ __forceinline__ void apply_all(const ElementwiseArguments& a) {
    const integer packs = (a.rows + LENGTH - 1) / LENGTH;
    const LinePosition stride = LinePosition::stride<LENGTH>(a.rows);
    const bool reads = Operation::reads(a.beta);
    for (LinePosition at = LinePosition::start<LENGTH>(a.rows); at.line < a.columns; at.advance(stride, packs)) {
        const integer row = at.position * LENGTH, n = a.rows - row;
        Pack<T, LENGTH> pack = {};
        if (reads) {
            pack = load<LENGTH>(reinterpret_cast<const T*>(a.source) + at.line * a.source_ld + row, n);
#pragma unroll
            for (int i = 0; i < LENGTH; i++) pack.x[i] = Operation::apply(a.beta, pack.x[i]);
        }
        store(reinterpret_cast<T*>(a.target) + at.line * a.target_ld + row, pack, n);
    }
}

#define ELEMENTWISE(NAME, OPERATION, T)                        \
    extern "C" __global__ void __launch_bounds__(256)          \
        NAME(const __grid_constant__ ElementwiseArguments a) { \
        apply_all<OPERATION, T, 16 / sizeof(T)>(a);            \
    }

ELEMENTWISE(scale_float8_e4m3fn, Scale, float8_e4m3fn)  // with a factor of 1 only: a copy
ELEMENTWISE(scale_float8_e5m2, Scale, float8_e5m2)
ELEMENTWISE(scale_float16, Scale, float16)
ELEMENTWISE(scale_bfloat16, Scale, bfloat16)
ELEMENTWISE(scale_float32, Scale, float)
ELEMENTWISE(scale_float64, Scale, double)
ELEMENTWISE(scale_complex64, Scale, complex<float>)
ELEMENTWISE(scale_complex128, Scale, complex<double>)
ELEMENTWISE(conjugate_complex64, Conjugate, complex<float>)
ELEMENTWISE(conjugate_complex128, Conjugate, complex<double>)
