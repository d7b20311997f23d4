// Sums of partial products + beta C.
#include "sum.cuh"

SUM(float16, float16, float16, NoEpilogue)
SUM(float16_float32, float16, float, NoEpilogue)
SUM(bfloat16, bfloat16, bfloat16, NoEpilogue)
SUM(bfloat16_float32, bfloat16, float, NoEpilogue)
SUM(float32, float, float, NoEpilogue)
SUM(float64, double, double, NoEpilogue)
SUM(complex64, complex<float>, complex<float>, NoEpilogue)
SUM(complex128, complex<double>, complex<double>, NoEpilogue)
