// out = rows of x, or of x + residual, which is stored, normalised. X and Weight come from pointwise.py.
struct NormaliseArguments {
    const byte* x;
    byte* out;
    byte* residual;  // 0: none
    const byte* weight;
    integer rows, columns, x_ld, out_ld, residual_ld;
    Term eps;
};

extern "C" __global__ void __launch_bounds__(256) normalise_rows(const __grid_constant__ NormaliseArguments a) {
    typedef typename Accumulator<X>::type A;
    constexpr int LENGTH = 16 / sizeof(X), THREADS = 256;
    for (integer i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const X* row = reinterpret_cast<const X*>(a.x) + i * a.x_ld;
        X* out = reinterpret_cast<X*>(a.out) + i * a.out_ld;
        if (a.residual) {
            X* sums = reinterpret_cast<X*>(a.residual) + i * a.residual_ld;
            for (integer at = threadIdx.x * LENGTH; at < a.columns; at += THREADS * LENGTH) {
                const Pack<X, LENGTH> x = load<LENGTH>(row + at, a.columns - at);
                Pack<X, LENGTH> sum = load<LENGTH>(sums + at, a.columns - at);
#pragma unroll
                for (int k = 0; k < LENGTH; k++) narrow(plus(A(widen(x.x[k])), A(widen(sum.x[k]))), sum.x[k]);
                store(sums + at, sum, a.columns - at);
            }
            row = sums;  // what a thread reads there, it has written itself
        }
        normalise<X, Weight, THREADS>(
            row, out, out, a.columns, reinterpret_cast<const Weight*>(a.weight), number<A>(a.eps));
    }
}
