// Real and complex scalars of the kernels of factorizations.
typedef long long integer;

__device__ __forceinline__ float real(float x) { return x; }
__device__ __forceinline__ double real(double x) { return x; }
__device__ __forceinline__ float real(float2 x) { return x.x; }
__device__ __forceinline__ double real(double2 x) { return x.x; }
template <class T>
using real_of = decltype(real(T()));
__device__ __forceinline__ void make_real(float&) {}
__device__ __forceinline__ void make_real(double&) {}
__device__ __forceinline__ void make_real(float2& x) { x.y = 0; }
__device__ __forceinline__ void make_real(double2& x) { x.y = 0; }
__device__ __forceinline__ float zero(float) { return 0; }
__device__ __forceinline__ double zero(double) { return 0; }
__device__ __forceinline__ float2 zero(float2) { return make_float2(0, 0); }
__device__ __forceinline__ double2 zero(double2) { return make_double2(0, 0); }

template <class T>
__device__ __forceinline__ T lane_of(T x, int lane) { return __shfl_sync(~0u, x, lane); }
__device__ __forceinline__ float2 lane_of(float2 x, int lane) {
    return make_float2(lane_of(x.x, lane), lane_of(x.y, lane));
}
__device__ __forceinline__ double2 lane_of(double2 x, int lane) {
    return make_double2(lane_of(x.x, lane), lane_of(x.y, lane));
}
__device__ __forceinline__ float one(float) { return 1; }
__device__ __forceinline__ double one(double) { return 1; }
__device__ __forceinline__ float2 one(float2) { return make_float2(1, 0); }
__device__ __forceinline__ double2 one(double2) { return make_double2(1, 0); }
__device__ __forceinline__ float times(float x, float y) { return x * y; }
__device__ __forceinline__ double times(double x, double y) { return x * y; }
__device__ __forceinline__ float2 times(float2 x, float y) { return make_float2(x.x * y, x.y * y); }
__device__ __forceinline__ double2 times(double2 x, double y) { return make_double2(x.x * y, x.y * y); }
__device__ __forceinline__ float2 times(float2 x, float2 y) {
    return make_float2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
}
__device__ __forceinline__ double2 times(double2 x, double2 y) {
    return make_double2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
}
__device__ __forceinline__ float reciprocal(float x) { return 1 / x; }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }
// Divides by the larger part, so that no square overflows (Smith's method).
template <class T>
__device__ __forceinline__ T reciprocal(T z) {
    bool swap = abs(z.x) < abs(z.y);
    auto ratio = swap ? z.x / z.y : z.y / z.x, large = swap ? z.y + z.x * ratio : z.x + z.y * ratio;
    T x;
    x.x = (swap ? ratio : 1) / large;
    x.y = (swap ? -1 : -ratio) / large;
    return x;
}
__device__ __forceinline__ void subtract(float& r, float x, float y) { r -= x * y; }
__device__ __forceinline__ void subtract(double& r, double x, double y) { r -= x * y; }
__device__ __forceinline__ void subtract(float2& r, float2 x, float2 y) {
    r.x -= x.x * y.x - x.y * y.y;
    r.y -= x.x * y.y + x.y * y.x;
}
__device__ __forceinline__ void subtract(double2& r, double2 x, double2 y) {
    r.x -= x.x * y.x - x.y * y.y;
    r.y -= x.x * y.y + x.y * y.x;
}

__device__ __forceinline__ float imaginary(float) { return 0; }
__device__ __forceinline__ double imaginary(double) { return 0; }
__device__ __forceinline__ float imaginary(float2 x) { return x.y; }
__device__ __forceinline__ double imaginary(double2 x) { return x.y; }
__device__ __forceinline__ float conj(float x) { return x; }
__device__ __forceinline__ double conj(double x) { return x; }
__device__ __forceinline__ float2 conj(float2 x) { return make_float2(x.x, -x.y); }
__device__ __forceinline__ double2 conj(double2 x) { return make_double2(x.x, -x.y); }
__device__ __forceinline__ void add(float& r, float x) { r += x; }
__device__ __forceinline__ void add(double& r, double x) { r += x; }
__device__ __forceinline__ void add(float2& r, float2 x) { r.x += x.x, r.y += x.y; }
__device__ __forceinline__ void add(double2& r, double2 x) { r.x += x.x, r.y += x.y; }
__device__ __forceinline__ void add(float& r, float x, float y) { r += x * y; }
__device__ __forceinline__ void add(double& r, double x, double y) { r += x * y; }
__device__ __forceinline__ void add(float2& r, float2 x, float2 y) {
    r.x += x.x * y.x - x.y * y.y;
    r.y += x.x * y.y + x.y * y.x;
}
__device__ __forceinline__ void add(double2& r, double2 x, double2 y) {
    r.x += x.x * y.x - x.y * y.y;
    r.y += x.x * y.y + x.y * y.x;
}
