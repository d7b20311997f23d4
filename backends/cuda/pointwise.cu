// out = an expression of x and operands, element by element. pointwise.py defines X, O, the dtype A of the computation,
// NBYTES of the widest element, PACKS, and Expression.
struct PointwiseArguments {
    byte* out;
    integer lines, fast, slow;  // strides of out in elements along a line and from line to line
    Terms terms;                // the first term is x
};

constexpr int THREADS = 256, LENGTH = 16 / NBYTES;

// Neighbours of the result, and what they are computed from.
struct Piece {
    Pack<X, LENGTH> x;
    Expression<A, LENGTH> expression;

    __device__ __forceinline__ Piece(const PointwiseArguments& a, integer line, integer first)
        : x(fetch<X, LENGTH, PACKS ? 1 : ANY>(a.terms.term[0], a.terms.length, line, first, a.terms.length - first)),
          expression(a.terms, line, first, a.terms.length - first) {}

    __device__ __forceinline__ Pack<O, LENGTH> value() const {
        A wide[LENGTH];
#pragma unroll
        for (int i = 0; i < LENGTH; i++) wide[i] = As<A>::of(widen(x.x[i]));
        expression.apply(wide);
        Pack<O, LENGTH> out;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) Result<O>::of(wide[i], out.x[i]);
        return out;
    }
};

#if PACKS
// Of arrays whose packs are whole and aligned, COUNT pieces that are THREADS packs apart: all are loaded first.
template <int COUNT>
struct Pieces {
    Piece first;
    Pieces<COUNT - 1> rest;

    __device__ __forceinline__ Pieces(const PointwiseArguments& a, integer line, integer pack)
        : first(a, line, pack * LENGTH), rest(a, line, pack + THREADS) {}

    __device__ __forceinline__ void write(O* target, integer packs) const {
        if (packs > 0) store_vector(target, first.value());
        rest.write(target + THREADS * LENGTH, packs - THREADS);
    }
};

template <>
struct Pieces<0> {
    __device__ __forceinline__ Pieces(const PointwiseArguments&, integer, integer) {}
    __device__ __forceinline__ void write(O*, integer) const {}
};

extern "C" __global__ void __launch_bounds__(THREADS) pointwise_all(const __grid_constant__ PointwiseArguments a) {
    constexpr int STRIDE = THREADS * PACKS;
    const integer packs = a.terms.length / LENGTH;
    const word chunks = (packs + STRIDE - 1) / STRIDE, line = a.lines == 1 ? 0 : blockIdx.x / chunks;
    if (line >= a.lines) return;
    const integer pack = integer(blockIdx.x - line * chunks) * STRIDE + threadIdx.x;
    O* target = reinterpret_cast<O*>(a.out) + line * a.slow + pack * LENGTH;
    Pieces<PACKS>(a, line, pack).write(target, packs - pack);
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) pointwise_all(const __grid_constant__ PointwiseArguments a) {
    const integer length = a.terms.length, packs = (length + LENGTH - 1) / LENGTH;
    const LinePosition stride = LinePosition::stride<LENGTH>(length);
    for (LinePosition at = LinePosition::start<LENGTH>(length); at.line < a.lines; at.advance(stride, packs)) {
        const integer first = at.position * LENGTH, n = length - first;
        const Pack<O, LENGTH> out = Piece(a, at.line, first).value();
        O* target = reinterpret_cast<O*>(a.out) + at.line * a.slow + first * a.fast;
        if (a.fast == 1) {
            store(target, out, n);
        } else {
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (i < n) target[i * a.fast] = out.x[i];
        }
    }
}
#endif
