// out = parts[0] + parts[1] + ... + beta old, in this order, and the epilogue, rounded once.
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

// Where nothing follows a last addition.
template <class T, int LENGTH>
struct Nothing {
    template <class Arguments>
    __device__ __forceinline__ Nothing(const Arguments&, integer, integer) {}

    template <class A>
    __device__ __forceinline__ void apply(A (&)[LENGTH]) const {}
};

// One pack, at a row of a line. All parts of a batch are loaded before any is added.
template <class T, class W, template <class, int> class Finish, int LENGTH, int BATCH>
__device__ __forceinline__ void add_pack(const SumArguments& a, integer line, integer row) {
    typedef typename Accumulator<T>::type Sum;
    const bool scaled = !a.beta.is_zero();
    const Finish<T, LENGTH> finish(a, line * a.rows + row, a.rows - row);
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
    if (scaled)
#pragma unroll
        for (int i = 0; i < LENGTH; i++) sum[i] = plus(sum[i], a.beta.of(Sum(widen(old.x[i]))));
    finish.apply(sum);
    Pack<T, LENGTH> result;
#pragma unroll
    for (int i = 0; i < LENGTH; i++) narrow(sum[i], result.x[i]);
    store(reinterpret_cast<T*>(a.out) + line * a.out_ld + row, result);
}

template <class T, class W, template <class, int> class Finish, int LENGTH, int BATCH>
__device__ __forceinline__ void add_all(const SumArguments& a) {
    const integer packs = (a.rows + LENGTH - 1) / LENGTH;
    const Walk stride = Walk::stride<LENGTH>(a.rows);
#pragma unroll 1
    for (Walk walk = Walk::start<LENGTH>(a.rows); walk.line < a.columns; walk.advance(stride, packs)) {
        integer row = walk.position * LENGTH;
        if (row + LENGTH <= a.rows)
            add_pack<T, W, Finish, LENGTH, BATCH>(a, walk.line, row);
        else
#pragma unroll 1
            for (; row < a.rows; row++) add_pack<T, W, Finish, 1, 1>(a, walk.line, row);
    }
}

// By the number of parts, of which as many are in flight in each thread; `scalar` takes any address.
#define SUM_KERNEL(KIND, NAME, ...)                                                                    \
    extern "C" __global__ void __launch_bounds__(256)                                                  \
        sum_##KIND##_##NAME(const __grid_constant__ SumArguments a) { add_all<__VA_ARGS__>(a); }

#define SUM(NAME, T, W, FINISH)                             \
    SUM_KERNEL(2, NAME, T, W, FINISH, 16 / sizeof(W), 2)    \
    SUM_KERNEL(4, NAME, T, W, FINISH, 16 / sizeof(W), 4)    \
    SUM_KERNEL(8, NAME, T, W, FINISH, 16 / sizeof(W), 8)    \
    SUM_KERNEL(scalar, NAME, T, W, FINISH, 1, 8)
