// out = the normalised rows of x, or of x + residual, which is stored in residual. pointwise.py defines X and Weight.
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
    grid_dependency_sync();
    struct Loads {
        Pack<X, LENGTH> x, old;
    };
    for (integer i = blockIdx.x; i < a.rows; i += gridDim.x) {
        const X* row = reinterpret_cast<const X*>(a.x) + i * a.x_ld;
        X* out = reinterpret_cast<X*>(a.out) + i * a.out_ld;
        X* sums = reinterpret_cast<X*>(a.residual) + i * a.residual_ld;
        normalise<X, Weight, THREADS, 2>(
            1, static_cast<int>(a.columns), reinterpret_cast<const Weight*>(a.weight), number<A>(a.eps),
            [&](int, integer at) {
                Loads loads = {load<LENGTH>(row + at, a.columns - at)};
                if (a.residual) loads.old = load<LENGTH>(sums + at, a.columns - at);
                return loads;
            },
            [&](int, integer at, Loads& loads) {
                if (!a.residual) return loads.x;
#pragma unroll
                for (int k = 0; k < LENGTH; k++)
                    narrow(plus(A(widen(loads.x.x[k])), A(widen(loads.old.x[k]))), loads.x.x[k]);
                store_vector(sums + at, loads.x, a.columns - at);
                return loads.x;
            },
            [&](int, integer at) { return load<LENGTH>((a.residual ? sums : row) + at, a.columns - at); },
            [&](int, integer at, const Pack<X, LENGTH>& x) { store_vector(out + at, x, a.columns - at); });
    }
}
