// out = an expression of x and operands, element by element. X, O and Expression come from pointwise.py.
struct PointwiseArguments {
    byte* out;
    integer lines, fast, slow;  // of out
    Terms terms;                // the first is x
};

extern "C" __global__ void __launch_bounds__(256) pointwise_all(const __grid_constant__ PointwiseArguments a) {
    typedef typename Accumulator<X>::type A;
    constexpr int LENGTH = 16 / (sizeof(X) > sizeof(O) ? sizeof(X) : sizeof(O));
    const integer length = a.terms.length, packs = (length + LENGTH - 1) / LENGTH;
    const Walk stride = Walk::stride<LENGTH>(length);
    for (Walk walk = Walk::start<LENGTH>(length); walk.line < a.lines; walk.advance(stride, packs)) {
        const integer first = walk.position * LENGTH, n = length - first;
        const Pack<X, LENGTH> x = fetch<X, LENGTH, ANY>(a.terms.term[0], length, walk.line, first, n);
        const Expression<A, LENGTH> expression(a.terms, walk.line, first, n);
        A wide[LENGTH];
#pragma unroll
        for (int i = 0; i < LENGTH; i++) wide[i] = widen(x.x[i]);
        expression.apply(wide);
        Pack<O, LENGTH> out;
#pragma unroll
        for (int i = 0; i < LENGTH; i++) narrow(wide[i], out.x[i]);
        O* target = reinterpret_cast<O*>(a.out) + walk.line * a.slow + first * a.fast;
        if (a.fast == 1) {
            store(target, out, n);
        } else {
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (i < n) target[i * a.fast] = out.x[i];
        }
    }
}
