// Sums of partial products, + beta C.
#include "sum.cuh"

SUM(float16, float16, float16, Nothing)
SUM(float16_float32, float16, float, Nothing)
SUM(bfloat16, bfloat16, bfloat16, Nothing)
SUM(bfloat16_float32, bfloat16, float, Nothing)
SUM(float32, float, float, Nothing)
SUM(float64, double, double, Nothing)
SUM(complex64, complex<float>, complex<float>, Nothing)
SUM(complex128, complex<double>, complex<double>, Nothing)
