// X in two numbers of TF32: Y := [hi, hi, lo] by columns, or with `rows` [hi; lo; hi]. A CTA takes a column of X.
//
// hi is X rounded to 11 bits, and X - hi is exact; what TF32 leaves of it is X to 22 bits.
__device__ __forceinline__ float rounded(float x) {
    unsigned bits = __float_as_uint(x);
    if ((bits & 0x7f800000) == 0x7f800000) return x;
    return __uint_as_float((bits + 0xfff + ((bits >> 13) & 1)) & 0xffffe000);
}
__device__ __forceinline__ float2 rounded(float2 x) { return make_float2(rounded(x.x), rounded(x.y)); }
__device__ __forceinline__ float rest(float x, float hi) { return isfinite(x) ? x - hi : 0; }
__device__ __forceinline__ float2 rest(float2 x, float2 hi) { return make_float2(rest(x.x, hi.x), rest(x.y, hi.y)); }

template <class T>
__global__ void split(const T* x, integer down, integer across, int m, T* y, integer ld, integer second, integer third,
                      int rows, int conjugates) {
    const T* column = x + blockIdx.x * across;
    T* out = y + blockIdx.x * ld;
    for (int i = threadIdx.x; i < m; i += blockDim.x) {
        T value = conjugates ? conj(column[i * down]) : column[i * down], hi = rounded(value), lo = rest(value, hi);
        out[i] = hi;
        out[i + second] = rows ? lo : hi;
        out[i + third] = rows ? hi : lo;
    }
}
