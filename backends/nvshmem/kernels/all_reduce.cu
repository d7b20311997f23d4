// The reductions of partial products: their sums + beta C.
#include "all_reduce.cuh"

ALL_REDUCE(float16, float16, float16, Add, AddScaled)
ALL_REDUCE(float16_float32, float16, float, Add, AddScaled)
ALL_REDUCE(bfloat16, bfloat16, bfloat16, Add, AddScaled)
ALL_REDUCE(bfloat16_float32, bfloat16, float, Add, AddScaled)
ALL_REDUCE(float32, float, float, Add, AddScaled)
ALL_REDUCE(float64, double, double, Add, AddScaled)
ALL_REDUCE(complex64, complex<float>, complex<float>, Add, AddScaled)
ALL_REDUCE(complex128, complex<double>, complex<double>, Add, AddScaled)
