// out = an expression of x and operands, element by element. pointwise.py defines X, O, the dtype A of the computation,
// NBYTES of the widest element, and Expression.
struct PointwiseArguments {
    byte* out;
    integer lines, fast, slow;  // strides of out in elements along a line and from line to line
    Terms terms;                // the first term is x
};

extern "C" __global__ void __launch_bounds__(256) pointwise_all(const __grid_constant__ PointwiseArguments a) {
    constexpr int LENGTH = 16 / NBYTES;
    const integer length = a.terms.length, packs = (length + LENGTH - 1) / LENGTH;
    const LinePosition stride = LinePosition::stride<LENGTH>(length);
    for (LinePosition at = LinePosition::start<LENGTH>(length); at.line < a.lines; at.advance(stride, packs)) {
        const integer first = at.position * LENGTH, n = length - first;
        const Pack<X, LENGTH> x = fetch<X, LENGTH, ANY>(a.terms.term[0], length, at.line, first, n);
        const Expression<A, LENGTH> expression(a.terms, at.line, first, n);
        A wide[LENGTH];
#pragma unroll
        for (int i = 0; i < LENGTH; i++) wide[i] = As<A>::of(widen(x.x[i]));
        expression.apply(wide);
        Pack<O, LENGTH> out;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) Result<O>::of(wide[i], out.x[i]);
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
