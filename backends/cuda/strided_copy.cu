// out = alpha x + beta out for elements of two matrices in any memory layout: runs of rows and columns of a cyclic
// layout, strides in either order, contiguous as in a message, or on one side of a diagonal.
#include "common.cuh"

enum { TILE = 32, LINES = 8, PER_THREAD = TILE / LINES };

// The position of element (i, j) is rows[i] * down + columns[j] * across; without an array, i or j itself.
struct ElementIndex {
    const integer *rows, *columns;
    integer down, across;

    // Positions of a row, or of a column, to which those of its elements in the other dimension are added.
    __device__ __forceinline__ integer row(integer i) const { return (rows ? rows[i] : i) * down; }
    __device__ __forceinline__ integer column(integer j) const { return (columns ? columns[j] : j) * across; }
};

struct MoveArguments {
    const byte* source;
    byte* target;
    ElementIndex from, to;
    integer m, n, side, diagonal;            // side 1: j - i >= diagonal, -1: j - i <= diagonal, 0: all elements
    integer from_by_columns, to_by_columns;  // whether columns are contiguous
    Factor alpha, beta;
    integer conjugates;

    __device__ __forceinline__ bool has(integer i, integer j) const {
        if (i >= m || j >= n) return false;
        return !side || (side > 0 ? j - i >= diagonal : j - i <= diagonal);
    }
};

// Copies elements without conversion.
struct Copy {
    template <class T>
    __device__ __forceinline__ static T read(const MoveArguments&, T x) {
        return x;
    }

    template <class T>
    __device__ __forceinline__ static void write(const MoveArguments&, T x, T& out) {
        out = x;
    }
};

template <class T>
__device__ __forceinline__ T conjugated(T x) {
    return x;
}

template <class Real>
__device__ __forceinline__ complex<Real> conjugated(complex<Real> x) {
    return {x.re, negative(x.im)};
}

// Adds in 32 bits or more. Neither x nor out is read if its factor is 0.
struct Combine {
    template <class X>
    __device__ __forceinline__ static typename Accumulator<X>::type read(const MoveArguments& a, X x) {
        typename Accumulator<X>::type wide = widen(x);
        return a.alpha.of(a.conjugates ? conjugated(wide) : wide);
    }

    template <class A, class O>
    __device__ __forceinline__ static void write(const MoveArguments& a, A x, O& out) {
        if (!a.beta.is_zero()) {
            A old = widen(out);
            old = a.beta.of(old);
            x = a.alpha.is_zero() ? old : plus(old, x);
        }
        narrow(x, out);
    }
};

// A CTA takes tiles of 32 x 32 elements, 4 of them in each thread. If source and target have different storage orders,
// a tile is transposed in shared memory, so that accesses to both are coalesced.
template <class Operation, class X, class O>
__global__ void __launch_bounds__(256) move(const __grid_constant__ MoveArguments a) {
    typedef decltype(Operation::read(a, X())) A;
    __shared__ alignas(16) byte memory[sizeof(A) * TILE * (TILE + 1)];
    A(*tile)[TILE + 1] = reinterpret_cast<A(*)[TILE + 1]>(memory);
    const X* source = reinterpret_cast<const X*>(a.source);
    O* target = reinterpret_cast<O*>(a.target);
    const bool transposes = a.from_by_columns != a.to_by_columns, reads = !a.alpha.is_zero();
    const word down = (a.m + TILE - 1) / TILE, tiles = down * ((a.n + TILE - 1) / TILE);
    for (word t = blockIdx.x; t < tiles; t += gridDim.x) {
        const word tile_column = t / down;  // 32 bits: a division of 64 takes longer than the copy of an element
        const integer i0 = integer(t - tile_column * down) * TILE, j0 = integer(tile_column) * TILE;
        A elements[PER_THREAD] = {};
        if (a.from_by_columns) {
            const integer i = i0 + threadIdx.x, row = i < a.m ? a.from.row(i) : 0;
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const integer j = j0 + threadIdx.y + e * LINES;
                if (reads && a.has(i, j)) elements[e] = Operation::read(a, source[row + a.from.column(j)]);
            }
        } else {
            const integer j = j0 + threadIdx.x, column = j < a.n ? a.from.column(j) : 0;
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const integer i = i0 + threadIdx.y + e * LINES;
                if (reads && a.has(i, j)) elements[e] = Operation::read(a, source[a.from.row(i) + column]);
            }
        }
        if (transposes) {
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const int line = threadIdx.y + e * LINES;
                tile[threadIdx.x][line] = elements[e];
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const int line = threadIdx.y + e * LINES;
                elements[e] = tile[line][threadIdx.x];
            }
            __syncthreads();
        }
        if (a.to_by_columns) {
            const integer i = i0 + threadIdx.x, row = i < a.m ? a.to.row(i) : 0;
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const integer j = j0 + threadIdx.y + e * LINES;
                if (a.has(i, j)) Operation::write(a, elements[e], target[row + a.to.column(j)]);
            }
        } else {
            const integer j = j0 + threadIdx.x, column = j < a.n ? a.to.column(j) : 0;
#pragma unroll
            for (int e = 0; e < PER_THREAD; e++) {
                const integer i = i0 + threadIdx.y + e * LINES;
                if (a.has(i, j)) Operation::write(a, elements[e], target[a.to.row(i) + column]);
            }
        }
    }
}

// A complex number with the alignment of its parts.
template <class Part>
struct Pair {
    Part x[2];
};

// Transposes elements of 16 bits by pairs of neighbours: m, n and the distances of lines are even.
template <class Element, class Two>
__global__ void __launch_bounds__(256) transpose_pairs(const __grid_constant__ MoveArguments a) {
    enum { SIDE = 2 * TILE, PAIRS = SIDE / LINES };
    __shared__ alignas(Two) Element tile[SIDE][SIDE + 2];
    const integer length = a.from_by_columns ? a.m : a.n, lines = a.from_by_columns ? a.n : a.m;
    const integer from = a.from_by_columns ? a.from.across : a.from.down;
    const integer to = a.from_by_columns ? a.to.down : a.to.across;
    const Element* source = reinterpret_cast<const Element*>(a.source);
    Element* target = reinterpret_cast<Element*>(a.target);
    const integer along = (length + SIDE - 1) / SIDE, tiles = along * ((lines + SIDE - 1) / SIDE);
    const int pair = 2 * threadIdx.x;
    for (integer t = blockIdx.x; t < tiles; t += gridDim.x) {
        const integer i0 = t % along * SIDE, j0 = t / along * SIDE;
        Two pairs[PAIRS] = {};
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            const int line = threadIdx.y + e * LINES;
            if (i0 + pair < length && j0 + line < lines)
                pairs[e] = *reinterpret_cast<const Two*>(source + (j0 + line) * from + i0 + pair);
        }
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            const int line = threadIdx.y + e * LINES;
            tile[pair][line] = static_cast<Element>(pairs[e]);
            tile[pair + 1][line] = static_cast<Element>(pairs[e] >> 8 * sizeof(Element));
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            const int line = threadIdx.y + e * LINES;
            if (i0 + line < length && j0 + pair < lines)
                *reinterpret_cast<Two*>(target + (i0 + line) * to + j0 + pair) =
                    *reinterpret_cast<const Two*>(&tile[line][pair]);
        }
        __syncthreads();
    }
}

// Converts lines of matrices of the same storage order between 32 and 16 bits, eight neighbours at a time.
struct LinesArguments {
    const byte* source;
    byte* target;
    integer length, lines, from_pitch, to_pitch;  // elements
};

template <class X, class O>
__global__ void __launch_bounds__(256) convert(const __grid_constant__ LinesArguments a) {
    enum { EIGHT = 8 };
    const X* source = reinterpret_cast<const X*>(a.source);
    O* target = reinterpret_cast<O*>(a.target);
    const integer packs = (a.length + EIGHT - 1) / EIGHT;
    const LinePosition stride = LinePosition::stride<EIGHT>(a.length);
    for (LinePosition at = LinePosition::start<EIGHT>(a.length); at.line < a.lines; at.advance(stride, packs)) {
        const integer first = at.position * EIGHT, n = a.length - first;
        const Pack<X, EIGHT> x = load<EIGHT>(source + at.line * a.from_pitch + first, n);
        Pack<O, EIGHT> z;
#pragma unroll
        for (int e = 0; e < EIGHT; e++) narrow(widen(x.x[e]), z.x[e]);
        store(target + at.line * a.to_pitch + first, z, n);
    }
}
