// A Hermitian band matrix to a real tridiagonal one, T = Q^H A Q, by one kernel: bulge chasing on a chain of CTAs.
//
// Sweep s makes column s of A tridiagonal: a reflector of the rows s+1..s+BAND, which fills a block below the band, whose
// first column takes a reflector of the next BAND rows, and so on. CTA k has the rows and columns s+1+k*BAND.. of the
// block D on the diagonal, and the block B below it, in registers, for each sweep in turn. It receives the reflector
// that its columns take from CTA k-1, and sends the one of the rows of B to CTA k+1. Between two sweeps the blocks move
// by one row and column: their first column goes to CTA k-1, and the first row of B becomes the last one of D. An
// element of row i and column j is in slot (i mod BAND, j mod BAND), so that no other elements move.
//
// A CTA waits for its neighbours at a sweep, so all CTAs must be resident: the launch is cooperative. A wait ends after
// LIMIT ns, or if another one has ended so: `failed` is set. Of a longer band each CTA has two pieces k, one after the
// other in each sweep; the blocks of the one that waits are in shared memory. A sweep begins two steps after the one
// before it, so that the second piece takes time in which a CTA would wait.
//
// The largest element of the matrix has the size 1 before it is reduced to the band (`RunBandReduction`). So a column whose
// squares underflow may be taken as 0 (`reflector`): it is below eps times the norm.
//
// Source: Lang, A parallel algorithm for reducing symmetric banded matrices to tridiagonal form, 1993.

#ifndef BAND
#define BAND 64
#endif
enum { LANES = 32, GROUPS = 4, THREADS = GROUPS * BAND, WARPS = THREADS / LANES };
enum { OWNED = BAND / GROUPS, PER_LANE = BAND / LANES, PIECES = 2 };

// Whether the elements of these lines have arrived, in `x`; the lanes of a warp have every LANES-th one.
template <class T, int COUNT>
__device__ bool receive(const uint4* lines, int count, unsigned flag, T (&x)[COUNT], int* failed) {
    int lane = threadIdx.x % LANES;
    for (Wait wait;;) {
        bool complete = true;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            int j = lane + i * LANES;
            Lines<T> message;
            if (j < count) {
                complete = message.receive(lines + j * Lines<T>::COUNT, flag) && complete;
                x[i] = message.element();
            }
        }
        if (complete) return true;
        if (wait.is_over()) *(volatile int*)failed = 1;
        if (wait.tries % PATIENCE == 0 && *(volatile int*)failed) return false;
    }
}

// The sum over the lanes of a warp.
template <class Real>
__device__ __forceinline__ Real sum_of_lanes(Real x) {
#pragma unroll
    for (int mask = LANES / 2; mask; mask /= 2) x += shifted(x, mask);
    return x;
}

// The reflector of x, of which lanes have every LANES-th element, with its first element in slot p: x := v, with tau in
// place of the 1.
template <class T, class Real>
__device__ void reflect(T (&x)[PER_LANE], T alpha, Real tail, int p, Real& beta) {
    T tau, scale;
    reflector(alpha, tail, beta, tau, scale);
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) x[i] = (int)(threadIdx.x % LANES) + i * LANES == p ? tau : times(scale, x[i]);
}

template <class T, class Real>
__device__ __forceinline__ Real square(T x) {
    return real(x) * real(x) + imaginary(x) * imaginary(x);
}

// The sums of z over the lanes of a group with its number, COUNT of 2 * COUNT columns for one half of the lanes, and so on.
template <int COUNT, int MASK, class T>
__device__ __forceinline__ void add_rows(T (&z)[OWNED], int& start) {
    if constexpr (MASK >= GROUPS) {
        bool is_upper = threadIdx.x & MASK;
        if (is_upper) start += COUNT;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            T sent = is_upper ? z[i] : z[i + COUNT];
            z[i] = is_upper ? z[i + COUNT] : z[i];
            add(z[i], shifted(sent, MASK));
        }
        add_rows<COUNT / 2, MASK / 2>(z, start);
    }
}

// d and e of T; the lower triangle of A is read, down to BAND rows below the diagonal. If they are kept, the reflectors
// of sweep s are in row s of A, to the right of its diagonal, with tau in place of their 1. `lines` are 0 before:
// BAND + 1 elements to each of two neighbours, from each CTA.
template <class T, class Real = real_of<T>>
__global__ void __launch_bounds__(THREADS, sizeof(T) > sizeof(double) ? 1 : 2)
    chase(T* a, integer ld, int n, int pieces, Real* d, Real* e, int keeps, uint4* lines, int* failed) {
    extern __shared__ double2 kept[];
    __shared__ T arrived[BAND], column[BAND + 1], product_d[BAND], product_b[BAND];
    __shared__ T firsts_d[PIECES][BAND], firsts_b[PIECES][BAND];
    __shared__ T w[BAND], next[BAND], row_b[BAND], parts[WARPS * BAND], sums[BAND];
    __shared__ int is_late;
    const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, group = threadIdx.x % GROUPS;
    const int r = threadIdx.x / GROUPS, begin = blockIdx.x * pieces, size = (BAND + 1) * Lines<T>::COUNT;
    // D and B: row r, and the columns group + GROUPS * i
    T block_d[OWNED], block_b[OWNED], *place = (T*)kept + threadIdx.x;
    for (int piece = pieces - 1; piece >= 0; --piece) {
        const int k = begin + piece, row = k * BAND + (r ? r : BAND);
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            int c = group + GROUPS * i, col = k * BAND + (c ? c : BAND);
            block_d[i] = block_b[i] = zero(T());
            if (row < n && col < n) block_d[i] = row >= col ? a[row + col * ld] : conj(a[col + row * ld]);
            if (row == col) make_real(block_d[i]);
            if (row + BAND < n && row <= col) block_b[i] = a[row + BAND + col * ld];
            if (c == 1 % BAND) firsts_d[piece][r] = block_d[i], firsts_b[piece][r] = block_b[i];
            if (piece) place[2 * i * THREADS] = block_d[i], place[(2 * i + 1) * THREADS] = block_b[i];
        }
    }
    T head[PER_LANE];  // column s, of the first CTA
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        int j = lane + i * LANES, below = j ? j : BAND;
        head[i] = below < n ? a[below] : zero(T());
    }
    if (threadIdx.x == 0) is_late = 0;
    if (blockIdx.x == 0 && threadIdx.x == 0) d[0] = real(a[0]);
    __syncthreads();
    for (int s = 0, piece = 0, here = 0; s + 1 + begin * BAND < n;
         piece = piece + 1 < pieces && s + 1 + (begin + piece + 1) * BAND < n ? piece + 1 : 0, s += piece == 0) {
        const int k = begin + piece, q = s % BAND, p = (s + 1) % BAND, first = s + 1 + k * BAND;
        uint4 *from_left = lines + 2 * k * size, *from_right = from_left + size;
        uint4 *to_right = from_left + 2 * size, *to_left = from_left - size;
        T *first_d = firsts_d[piece], *first_b = firsts_b[piece];
        if (piece != here) {
            here = piece;
#pragma unroll
            for (int i = 0; i < OWNED; ++i) {
                T x = block_d[i], y = block_b[i];
                block_d[i] = place[2 * i * THREADS], block_b[i] = place[(2 * i + 1) * THREADS];
                place[2 * i * THREADS] = x, place[(2 * i + 1) * THREADS] = y;
            }
        }
        // The reflector of this sweep, and the column that has come into the blocks
        if (warp == 0) {
            bool is_here = true;
            T received[PER_LANE];
            if (k == 0) {
                Real tail = 0, beta;
                T alpha = zero(T());
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) {
                    T element = lane_of(head[i], p % LANES);
                    if (p / LANES == i) alpha = element;
                    if (lane + i * LANES != p) tail += square<T, Real>(head[i]);
                }
                reflect(head, alpha, sum_of_lanes(tail), p, beta);
                if (lane == 0) e[s] = beta;
            } else {
                is_here = receive(from_left, BAND, s + 1, received, failed);
            }
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) arrived[lane + i * LANES] = k ? received[i] : head[i];
            if (!is_here) is_late = 1;
        } else if (warp == 1) {
            T x[PER_LANE + 1];
#pragma unroll
            for (int i = 0; i <= PER_LANE; ++i) x[i] = zero(T());
            if (s && first + BAND - 1 < n && !receive(from_right, BAND + 1, s, x, failed)) is_late = 1;
#pragma unroll
            for (int i = 0; i <= PER_LANE; ++i)
                if (lane + i * LANES <= BAND) column[lane + i * LANES] = x[i];
        }
        __syncthreads();
        if (is_late) return;
        const T tau = arrived[p];
        if (s)
#pragma unroll
            for (int i = 0; i < OWNED; ++i)
                if (group + GROUPS * i == q) {
                    block_b[i] = column[r == q ? BAND : r];
                    if (r == q) block_d[i] = column[q];
                }
        // D v and B v
        T sum_d = zero(T()), sum_b = zero(T());
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            int c = group + GROUPS * i;
            T x = c == p ? one(T()) : arrived[c];
            add(sum_d, block_d[i], x);
            add(sum_b, block_b[i], x);
        }
#pragma unroll
        for (int mask = 1; mask < GROUPS; mask *= 2) {
            add(sum_d, shifted(sum_d, mask));
            add(sum_b, shifted(sum_b, mask));
        }
        if (group == 0) product_d[r] = sum_d;
        if (group == 1) product_b[r] = sum_b;
        __syncthreads();
        // The first columns of H^H D H and B H, and the reflector of the latter: each warp computes all of them
        Real dot = 0, tail = 0, beta;
        T x[PER_LANE], u[PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            int j = lane + i * LANES;
            u[i] = j == p ? one(T()) : arrived[j];
            dot += real(times(conj(u[i]), product_d[j]));
            x[i] = first_b[j];
            subtract(x[i], tau, product_b[j]);
            if (j != p) tail += square<T, Real>(x[i]);
        }
        T alpha = first_b[p];
        subtract(alpha, tau, product_b[p]);
        reflect(x, alpha, sum_of_lanes(tail), p, beta);
        const bool is_sent = first + BAND < n;
        if (warp == 0 && is_sent)
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                int j = lane + i * LANES;
                Lines<T>().send(to_right + j * Lines<T>::COUNT, x[i], s + 1);
            }
        // w = tau D v - |tau|^2 / 2 (v^H D v) v, so that H^H D H = D - v w^H - w v^H
        const Real factor = Real(0.5) * square<T, Real>(tau) * sum_of_lanes(dot);
        T w_p = times(tau, product_d[p]);
        subtract(w_p, one(T()), complex_of(factor, Real(0), T()));
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            int j = lane + i * LANES;
            T w_j = times(tau, product_d[j]), element = first_d[j];
            subtract(w_j, u[i], complex_of(factor, Real(0), T()));
            subtract(element, u[i], conj(w_p));
            subtract(element, w_j, one(T()));
            if (j == p) make_real(element);
            if (warp == 0 && k == 0) {
                head[i] = element;
                if (j == p) d[s + 1] = real(element), head[i] = complex_of(beta, Real(0), T());
            }
            if (warp == 1 && k) Lines<T>().send(to_left + j * Lines<T>::COUNT, element, s + 1);
            if (warp == 2) w[j] = w_j;
            if (warp == 3) next[j] = j == p ? one(T()) : x[i];
            if (warp == 3 && j == p) sums[p] = x[i];  // tau of the next reflector, until the next barrier but one
        }
        if (warp == 1 && k && lane == 0)
            Lines<T>().send(to_left + BAND * Lines<T>::COUNT, complex_of(beta, Real(0), T()), s + 1);
        __syncthreads();
        const T next_tau = sums[p];
        if (keeps && warp == 2)
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                int j = lane + i * LANES, target = first + (j - p + BAND) % BAND;
                if (target < n) a[s + target * ld] = arrived[j];
            }
        // D -= v w^H + w v^H, B -= tau (B v) v^H
        const T v_r = r == p ? one(T()) : arrived[r], w_r = w[r], y_r = times(tau, product_b[r]), next_r = conj(next[r]);
        T z[OWNED];
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            int c = group + GROUPS * i;
            T v_c = conj(c == p ? one(T()) : arrived[c]);
            subtract(block_d[i], v_r, conj(w[c]));
            subtract(block_d[i], w_r, v_c);
            subtract(block_b[i], y_r, v_c);
            z[i] = times(next_r, block_b[i]);
            if (r == p) row_b[c] = block_b[i];
        }
        // z = next^H B: a lane adds the rows of a warp for OWNED / 8 of its columns
        int start = 0;
        add_rows<OWNED / 2, LANES / 2>(z, start);
#pragma unroll
        for (int i = 0; i < OWNED / 8; ++i) parts[warp * BAND + group + GROUPS * (start + i)] = z[i];
        __syncthreads();
        if (threadIdx.x < BAND) {
            T sum = zero(T());
#pragma unroll
            for (int i = 0; i < WARPS; ++i) add(sum, parts[i * BAND + threadIdx.x]);
            sum = times(conj(next_tau), sum);
            sums[threadIdx.x] = sum;
            subtract(row_b[threadIdx.x], one(T()), sum);
        }
        __syncthreads();
        // B -= next conj(next_tau) z; the first row of B becomes the last one of D
        const T next_v = next[r];
#pragma unroll
        for (int i = 0; i < OWNED; ++i) {
            int c = group + GROUPS * i;
            subtract(block_b[i], next_v, sums[c]);
            if (r == p && c != p) block_d[i] = row_b[c];
            if (r != p && c == p) block_d[i] = conj(row_b[r]);
            if (r == p) block_b[i] = zero(T());
            if (c == (p + 1) % BAND) first_d[r] = block_d[i], first_b[r] = block_b[i];
        }
    }
}
