// out = parts[0] + parts[1] + ... + beta old, in this order, and its epilogue; rounded once.
#include "common.cuh"

constexpr int MAX_PARTS = 64;

struct SumArguments {
    byte* out;
    const byte* old;
    integer rows, columns, out_ld, old_ld;
    Factor beta;
    integer parts;
    Terms terms;  // operands of the epilogue
    const byte* part[MAX_PARTS];
    integer part_ld[MAX_PARTS];
};

// The epilogue of plain sums.
template <class T, int LENGTH>
struct NoEpilogue {
    template <class Arguments>
    __device__ __forceinline__ NoEpilogue(const Arguments&, integer, integer) {}

    template <class A>
    __device__ __forceinline__ void apply(A (&)[LENGTH]) const {}
};

// Adds one pack, at a row of a line. All parts of a batch are loaded before the first addition, so that BATCH loads are
// in flight.
template <class T, class W, template <class, int> class Epilogue, int LENGTH, int BATCH>
__device__ __forceinline__ void add_pack(const SumArguments& a, integer line, integer row) {
    typedef typename Accumulator<T>::type Sum;
    const bool scaled = !a.beta.is_zero();
    const Epilogue<T, LENGTH> epilogue(a, line * a.rows + row, a.rows - row);
    Sum sum[LENGTH] = {};
    Pack<T, LENGTH> old;
    if (scaled) old = load<LENGTH>(reinterpret_cast<const T*>(a.old) + line * a.old_ld + row);
#pragma unroll 1
    for (int first = 0; first < a.parts; first += BATCH) {
        Pack<W, LENGTH> part[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (first + k < a.parts)
                part[k] = load<LENGTH>(
                    reinterpret_cast<const W*>(a.part[first + k]) + line * a.part_ld[first + k] + row);
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (first + k < a.parts)
#pragma unroll
                for (int i = 0; i < LENGTH; i++) {
                    const Sum term = widen(part[k].x[i]);
                    sum[i] = first + k ? plus(sum[i], term) : term;
                }
    }
    if (scaled)
#pragma unroll
        for (int i = 0; i < LENGTH; i++) sum[i] = plus(sum[i], a.beta.of(Sum(widen(old.x[i]))));
    epilogue.apply(sum);
    Pack<T, LENGTH> result;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) narrow(sum[i], result.x[i]);
    store(reinterpret_cast<T*>(a.out) + line * a.out_ld + row, result);
}

template <class T, class W, template <class, int> class Epilogue, int LENGTH, int BATCH>
__device__ __forceinline__ void add_all(const SumArguments& a) {
    const integer packs = (a.rows + LENGTH - 1) / LENGTH;
    const LinePosition stride = LinePosition::stride<LENGTH>(a.rows);
#pragma unroll 1
    for (LinePosition at = LinePosition::start<LENGTH>(a.rows); at.line < a.columns; at.advance(stride, packs)) {
        integer row = at.position * LENGTH;
        if (row + LENGTH <= a.rows)
            add_pack<T, W, Epilogue, LENGTH, BATCH>(a, at.line, row);
        else
#pragma unroll 1
            for (; row < a.rows; row++) add_pack<T, W, Epilogue, 1, 1>(a, at.line, row);
    }
}

// One kernel for each maximum number of parts, which are all in flight; `scalar` takes any alignment.
#define SUM_KERNEL(KIND, NAME, ...)                   \
    extern "C" __global__ void __launch_bounds__(256) \
        sum_##KIND##_##NAME(const __grid_constant__ SumArguments a) { add_all<__VA_ARGS__>(a); }

#define SUM(NAME, T, W, EPILOGUE)                          \
    SUM_KERNEL(2, NAME, T, W, EPILOGUE, 16 / sizeof(W), 2) \
    SUM_KERNEL(4, NAME, T, W, EPILOGUE, 16 / sizeof(W), 4) \
    SUM_KERNEL(8, NAME, T, W, EPILOGUE, 16 / sizeof(W), 8) \
    SUM_KERNEL(scalar, NAME, T, W, EPILOGUE, 1, 8)
