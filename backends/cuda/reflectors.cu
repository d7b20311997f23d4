// Householder reflectors of a panel by one kernel, and kernels that make the triangle T of a block of reflectors.
//
// The CTAs of `factor_panel` wait for each other, so all of them must be resident: there are fewer than multiprocessors.
// A block of WIDTH columns at most is factored at a time, in shared memory, each CTA with its rows. A column takes one
// wait: the sums of conj(x[r, j]) x[r, c] over the rows r > j give the reflector of column j, its products with the
// columns c > j, and those with the reflectors c < j. Then the block is multiplied with the other columns of the panel:
// with those before it for T, with those after it to update them.
//
// Sums have one order: over the rows of a CTA, then over the CTAs. A wait of more than LIMIT ns ends the kernel by a
// trap: the CTAs are not resident together.

enum { LANES = 32, THREADS = 256, WARPS = THREADS / LANES, WIDTH = 32, STAGE = 32, PAD = 33, GROUPS = 4, ROWS = 128 };
enum { NARROW = 64, EDGE = NARROW + 1, STEP = 8 };  // columns of a panel that products factor
enum { OWNED = WIDTH / WARPS, BATCH = 8 };  // columns of a warp; CTAs whose sums are awaited at once

__device__ __forceinline__ void arrive(unsigned* arrived) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}
__device__ __forceinline__ unsigned arrivals(const unsigned* arrived) {
    unsigned count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(arrived) : "memory");
    return count;
}
// Return when all CTAs have called it as often as this one.
__device__ void wait_for_all(unsigned* arrived, unsigned& expected) {
    expected += gridDim.x;
    __syncthreads();
    if (threadIdx.x == 0) {
        arrive(arrived);
        for (Wait wait; arrivals(arrived) < expected;)
            if (wait.is_over()) __trap();
    }
    __syncthreads();
}

template <class T>
__device__ __forceinline__ T negative(T x, T y) {
    T r = zero(T());
    subtract(r, x, y);
    return r;
}

__device__ __forceinline__ int largest_exponent(float) { return 120; }
__device__ __forceinline__ int largest_exponent(double) { return 1000; }

// The sums of the elements of all CTAs with rows in `lines`, an element for each lane, and the element of a last line.
// All warps take part, and each gets the sums. `parts` are WARPS * LANES elements of shared memory.
template <class T>
__device__ T sum_of_ctas(const uint4* lines, int ctas, const uint4* last, unsigned flag, bool is_sent, T* parts, T& row) {
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    T sum = row = zero(T());
    const int size = Lines<T>::COUNT;
    for (int first = warp; is_sent && first < ctas; first += BATCH * WARPS) {
        Lines<T> batch[BATCH];
        bool complete;
        Wait wait;
        do {
            if (wait.is_over()) __trap();
            complete = true;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                int b = first + i * WARPS;
                if (b < ctas) complete = batch[i].receive(lines + (b * WIDTH + lane) * size, flag) && complete;
            }
        } while (!complete);
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
            if (first + i * WARPS < ctas) add(sum, batch[i].element());
    }
    if (is_sent) {
        Lines<T> top;
        for (Wait wait; !top.receive(last + lane * size, flag);)
            if (wait.is_over()) __trap();
        row = top.element();
    }
    parts[warp * LANES + lane] = sum;
    __syncthreads();
    sum = zero(T());
#pragma unroll
    for (int w = 0; w < WARPS; ++w) add(sum, parts[w * LANES + lane]);
    return sum;
}

// P := V^H C for the rows of this CTA, WIDTH x `columns` elements of P, of which columns are `LANES` elements apart.
// Four groups of threads each take a quarter of the rows of a stage, 4 x 4 elements of P for each thread.
template <class T>
__device__ void multiply_rows(const T* v, int ldv, int count, const T* c, integer ld, int columns, T* stage, T* p) {
    int group = threadIdx.x / 64, i0 = threadIdx.x % 8, j0 = threadIdx.x % 64 / 8;
    int row = threadIdx.x % STAGE, column = threadIdx.x / STAGE;
    T sums[4][4], next[4];
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int b = 0; b < 4; ++b) sums[a][b] = zero(T());
    for (int r = 0; r < count + STAGE; r += STAGE) {  // a stage is loaded while the one before is multiplied
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            int k = column + 8 * a;
            next[a] = r + row < count && k < columns ? __ldcg(c + r + row + k * ld) : zero(T());
        }
        if (r) {
            int first = r - STAGE + group * (STAGE / GROUPS);
#pragma unroll
            for (int k = 0; k < STAGE / GROUPS; ++k) {
                T left[4], right[4];
#pragma unroll
                for (int a = 0; a < 4; ++a) {
                    left[a] = conj(v[(i0 + 8 * a) * ldv + first + k]);
                    right[a] = stage[(j0 + 8 * a) * PAD + first + k - (r - STAGE)];
                }
#pragma unroll
                for (int a = 0; a < 4; ++a)
#pragma unroll
                    for (int b = 0; b < 4; ++b) add(sums[a][b], left[a], right[b]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int a = 0; a < 4; ++a) stage[(column + 8 * a) * PAD + row] = next[a];
        __syncthreads();
    }
    for (int g = 0; g < GROUPS; ++g) {
        if (group == g)
#pragma unroll
            for (int a = 0; a < 4; ++a)
#pragma unroll
                for (int b = 0; b < 4; ++b) {
                    T& sum = stage[(j0 + 8 * b) * PAD + i0 + 8 * a];
                    if (g) add(sums[a][b], sum);
                    sum = sums[a][b];
                }
        __syncthreads();
    }
    for (int k = column; k < columns; k += WARPS) p[k * LANES + row] = stage[k * PAD + row];
    __syncthreads();
}

// C -= V W for the rows of this CTA; W is WIDTH x `columns`, of which columns are LANES elements apart.
template <class T>
__device__ void update_rows(const T* v, int ldv, int count, int width, const T* w, int columns, T* c, integer ld,
                            T* stage) {
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, j0 = warp % 4 * 8;
    for (int k = warp; k < LANES; k += WARPS) stage[k * PAD + lane] = k < columns ? __ldcg(w + k * LANES + lane) : zero(T());
    __syncthreads();
    for (int r = warp / 4 * 64 + lane; r < count; r += ROWS) {
        bool both = r + LANES < count;
        T sums[2][8];
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int b = 0; b < 8; ++b) sums[a][b] = (a == 0 || both) && j0 + b < columns ? __ldcg(c + r + a * LANES + (j0 + b) * ld) : zero(T());
        for (int k = 0; k < width; ++k) {
            T upper = v[k * ldv + r], lower = both ? v[k * ldv + r + LANES] : zero(T());
#pragma unroll
            for (int b = 0; b < 8; ++b) {
                T y = stage[(j0 + b) * PAD + k];
                subtract(sums[0][b], upper, y);
                subtract(sums[1][b], lower, y);
            }
        }
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int b = 0; b < 8; ++b)
                if ((a == 0 || both) && j0 + b < columns) c[r + a * LANES + (j0 + b) * ld] = sums[a][b];
    }
    __syncthreads();
}

// X := R and V of an m x n panel, WIDTH columns at a time; tau, and L = I + the lower triangle of V^H V diag(conj(tau))
// below its diagonal, of order min(m, n).
//
// `ldv` is the odd number of rows that the tile of a CTA has; shared memory holds WIDTH * (ldv + 2 * PAD + WIDTH) + THREADS
// elements. `exchange` has WIDTH * ((n + 1) * gridDim.x + n) elements, and `lines`, which are 0 before, 2 * WIDTH * (gridDim.x + 1) of
// an element. With `wanted` nothing is done where it is 0.
template <class T, class Real = real_of<T>>
__global__ void __launch_bounds__(THREADS)
    factor_panel(T* x, integer ld, int m, int n, int ldv, T* tau, T* l, integer ldl, T* exchange, uint4* lines,
                 unsigned* arrived, const int* wanted) {
    extern __shared__ double2 memory[];
    if (wanted && !*wanted) return;
    T *v = (T*)memory, *stage = v + WIDTH * ldv, *t = stage + WIDTH * PAD, *gram = t + WIDTH * PAD, *parts = gram + WIDTH * WIDTH;
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, grid = gridDim.x, cta = blockIdx.x;
    // Largest elements, and products with the other columns, of each CTA; T^H V^H C
    T *largest = exchange, *products = largest + grid * WIDTH, *w = products + (integer)grid * WIDTH * n;
    unsigned expected = 0;
    int k = m < n ? m : n;
    for (int start = 0; start < k; start += WIDTH) {
        int columns = k - start < WIDTH ? k - start : WIDTH, rows = m - start;
        int height = (rows + grid - 1) / grid < WIDTH ? WIDTH : (rows + grid - 1) / grid;
        int ctas = (rows + height - 1) / height, begin = cta * height;
        int count = rows - begin < height ? (rows - begin > 0 ? rows - begin : 0) : height;
        T* own = x + start + begin;  // the first row of this CTA
        // The block, with each column scaled by a power of 2, so that no square overflows or underflows
        for (int c = warp; c < WIDTH; c += WARPS) {
            Real most = 0;
            for (int r = lane; r < ldv; r += LANES) {
                T element = c < columns && r < count ? __ldcg(own + r + (start + c) * ld) : zero(T());
                v[c * ldv + r] = element;
                most = fmax(most, fmax(fabs(real(element)), fabs(imaginary(element))));
            }
            for (int mask = LANES / 2; mask; mask /= 2) most = fmax(most, shifted(most, mask));
            if (lane == 0) largest[cta * WIDTH + c] = complex_of(most, Real(0), T());
        }
        wait_for_all(arrived, expected);
        Real most = 0;
        for (int b = warp; b < ctas; b += WARPS) most = fmax(most, real(__ldcg(largest + b * WIDTH + lane)));
        parts[warp * LANES + lane] = complex_of(most, Real(0), T());
        __syncthreads();
        for (int b = 0; b < WARPS; ++b) most = fmax(most, real(parts[b * LANES + lane]));
        int limit = largest_exponent(Real()), exponent = most > 0 && isfinite(most) ? ilogb(most) : 0;
        exponent = exponent > limit ? limit : exponent < -limit ? -limit : exponent;
        Real down = ldexp(Real(1), -exponent), up = ldexp(Real(1), exponent);
        for (int c = warp; c < columns; c += WARPS) {
            Real factor = lane_of(down, c);
            for (int r = lane; r < count; r += LANES) v[c * ldv + r] = times(v[c * ldv + r], factor);
        }
        __syncthreads();
        T own_tau = zero(T()), own_scale = zero(T());  // of the reflector with the number of this lane
        for (int j = 0; j < columns; ++j) {
            // The sums of this CTA, and row j, go to all CTAs, in one of two buffers
            uint4* sums = lines + j % 2 * (grid + 1) * WIDTH * Lines<T>::COUNT;
            unsigned flag = start + j + 1;
            int first = cta == 0 ? j + 1 : 0;
            T own_sums[OWNED];
#pragma unroll
            for (int i = 0; i < OWNED; ++i) own_sums[i] = zero(T());
#pragma unroll 2
            for (int r = first + lane; r < count; r += LANES) {
                T left = conj(v[j * ldv + r]);
#pragma unroll
                for (int i = 0; i < OWNED; ++i) add(own_sums[i], left, v[(warp + i * WARPS) * ldv + r]);
            }
#pragma unroll
            for (int mask = LANES / 2; mask; mask /= 2)
#pragma unroll
                for (int i = 0; i < OWNED; ++i) add(own_sums[i], shifted(own_sums[i], mask));
#pragma unroll
            for (int i = 0; i < OWNED; ++i) {
                int c = warp + i * WARPS;
                if (lane == i && cta < ctas) Lines<T>().send(sums + (cta * WIDTH + c) * Lines<T>::COUNT, own_sums[i], flag);
                if (lane == OWNED + i && cta == 0)
                    Lines<T>().send(sums + (grid * WIDTH + c) * Lines<T>::COUNT, v[c * ldv + j], flag);
            }
            T row, sum = sum_of_ctas(sums, ctas, sums + grid * WIDTH * Lines<T>::COUNT, flag, lane < columns, parts, row);
            Real beta;
            T tau_j, scale;
            reflector(lane_of(row, j), real(lane_of(sum, j)), beta, tau_j, scale);
            T product_j = row;  // v[j]^H x[c], for the columns c > j
            add(product_j, conj(scale), sum);
            product_j = times(conj(tau_j), product_j);
            T change = times(scale, product_j);
            T changes[OWNED];
#pragma unroll
            for (int i = 0; i < OWNED; ++i) {
                int c = warp + i * WARPS;
                T top_change = lane_of(product_j, c);
                changes[i] = lane_of(change, c);
                if (cta == 0 && lane == 0 && c > j) subtract(v[c * ldv + j], top_change, one(T()));
            }
#pragma unroll 2
            for (int r = first + lane; r < count; r += LANES) {
                T left = v[j * ldv + r];
#pragma unroll
                for (int i = 0; i < OWNED; ++i)
                    if (warp + i * WARPS > j) subtract(v[(warp + i * WARPS) * ldv + r], left, changes[i]);
            }
            if (warp == 0) {
                T inner = conj(row);  // v[c]^H v[j], for the reflectors c < j
                add(inner, scale, conj(sum));
                gram[lane * WIDTH + j] = times(conj(own_scale), inner);
                if (cta == 0 && lane == 0) v[j * ldv + j] = complex_of(beta, Real(0), T());
            }
            if (lane == j) own_tau = tau_j, own_scale = scale;
            __syncthreads();
        }
        // V and R in their places; V with its ones and zeros in shared memory
        for (int c = warp; c < columns; c += WARPS) {
            T scale = lane_of(own_scale, c);
            Real factor = lane_of(up, c);
            for (int r = lane; r < count; r += LANES) {
                T element = v[c * ldv + r];
                bool is_v = begin + r > c;
                element = is_v ? times(element, scale) : times(element, factor);
                own[r + (start + c) * ld] = element;
                v[c * ldv + r] = is_v ? element : begin + r == c ? one(T()) : zero(T());
            }
        }
        if (warp == 0) {
            T sums[WIDTH];  // row `lane` of T times the columns of `gram` from i on; source: LAPACK, xLARFT
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sums[j] = zero(T());
#pragma unroll 1
            for (int i = 0; i < WIDTH; ++i) {
                T tau_i = lane_of(own_tau, i), element = i == lane ? own_tau : i > lane ? negative(sums[0], tau_i) : zero(T());
                t[lane * PAD + i] = element;
#pragma unroll
                for (int j = 1; j < WIDTH; ++j) {
                    sums[j - 1] = sums[j];
                    add(sums[j - 1], element, gram[i * WIDTH + (i + j) % WIDTH]);
                }
            }
            if (cta == 0 && lane < columns) {
                tau[start + lane] = own_tau;
                for (int j = lane + 1; j < columns; ++j)
                    l[start + j + (start + lane) * ldl] = conj(times(own_tau, gram[lane * WIDTH + j]));
            }
        }
        __syncthreads();
        // V^H C for the other columns of the panel
        int others = n - columns;
        for (int q = 0; count && q < others;) {
            int end = q < start ? start : others, wide = end - q < LANES ? end - q : LANES;
            const T* c = own + (q < start ? q : q + columns) * ld;
            multiply_rows(v, ldv, count, c, ld, wide, stage, products + ((integer)cta * others + q) * LANES);
            q += wide;
        }
        wait_for_all(arrived, expected);
        for (int q = cta * WARPS + warp; q < others; q += grid * WARPS) {
            T sum = zero(T());
            for (int b = 0; b < ctas; ++b) add(sum, __ldcg(products + ((integer)b * others + q) * LANES + lane));
            if (q < start) {  // a reflector before the block
                if (lane < columns) l[start + lane + q * ldl] = times(conj(__ldcg(tau + q)), sum);
                continue;
            }
            T transformed = zero(T());  // T^H V^H C
            for (int i = 0; i < columns; ++i) add(transformed, i <= lane && lane < columns ? conj(t[i * PAD + lane]) : zero(T()), lane_of(sum, i));
            w[(q - start) * LANES + lane] = transformed;
        }
        wait_for_all(arrived, expected);
        for (int q = start; q < others; q += LANES) {
            int wide = others - q < LANES ? others - q : LANES;
            update_rows(v, ldv, count, columns, w + (q - start) * LANES, wide, own + (q + columns) * ld, ld, stage);
        }
        wait_for_all(arrived, expected);
    }
}

// Rows of V := their product with U^-1, for an upper triangle U of NARROW rows with these reciprocals on its diagonal. A
// thread takes a row, STEP elements at a time.
template <class T>
__device__ void divide_rows(T* v, int ldv, int first, int count, const T* u, const T* reciprocals) {
    for (int r = first + threadIdx.x; r < count; r += THREADS)
        for (int j = 0; j < NARROW; j += STEP) {
            T x[STEP];
#pragma unroll
            for (int i = 0; i < STEP; ++i) x[i] = v[(j + i) * ldv + r];
            for (int i = 0; i < j; ++i) {
                T left = v[i * ldv + r];
#pragma unroll
                for (int k = 0; k < STEP; ++k) subtract(x[k], left, u[i * EDGE + j + k]);
            }
#pragma unroll
            for (int i = 0; i < STEP; ++i) {
                x[i] = times(x[i], reciprocals[j + i]);
#pragma unroll
                for (int k = i + 1; k < STEP; ++k) subtract(x[k], x[i], u[(j + i) * EDGE + j + k]);
                v[(j + i) * ldv + r] = x[i];
            }
        }
}

// G := the sum of V^H V over all CTAs. `parts` are NARROW^2 elements of each CTA, and as many for the sums.
template <class T>
__device__ void gram_of_all(const T* v, int ldv, int count, T* g, T* parts, unsigned* arrived, unsigned& expected) {
    const int grid = gridDim.x, cta = blockIdx.x, area = NARROW * NARROW;
    int i0 = threadIdx.x % 16, j0 = threadIdx.x / 16;
    T sums[4][4];
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int b = 0; b < 4; ++b) sums[a][b] = zero(T());
    for (int r = 0; r < count; ++r) {
        T left[4], right[4];
#pragma unroll
        for (int a = 0; a < 4; ++a) left[a] = conj(v[(i0 + 16 * a) * ldv + r]), right[a] = v[(j0 + 16 * a) * ldv + r];
#pragma unroll
        for (int a = 0; a < 4; ++a)
#pragma unroll
            for (int b = 0; b < 4; ++b) add(sums[a][b], left[a], right[b]);
    }
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int b = 0; b < 4; ++b) parts[cta * area + (j0 + 16 * b) * NARROW + i0 + 16 * a] = sums[a][b];
    wait_for_all(arrived, expected);
    T* total = parts + (integer)grid * area;
    for (int e = cta * THREADS + threadIdx.x; e < area; e += grid * THREADS) {
        T sum = zero(T());
#pragma unroll 16
        for (int b = 0; b < grid; ++b) add(sum, __ldcg(parts + b * area + e));
        total[e] = sum;
    }
    wait_for_all(arrived, expected);
    for (int e = threadIdx.x; e < area; e += THREADS) g[e % NARROW * EDGE + e / NARROW] = __ldcg(total + e);
    __syncthreads();
}

// The upper triangle of G := R with G = R^H R, and reciprocals of its diagonal. False if a pivot is not positive.
template <class T, class Real>
__device__ bool cholesky(T* g, T* reciprocals) {
    int i0 = threadIdx.x % 16, j0 = threadIdx.x / 16;
    for (int k = 0; k < NARROW; ++k) {
        Real pivot = real(g[k * EDGE + k]);
        if (!(pivot > negligible(Real())) || !isfinite(pivot)) return false;
        Real factor = 1 / sqrt(pivot), square = 1 / pivot;
        for (int i = k + 1 + i0; i < NARROW; i += 16) {
            T left = times(conj(g[k * EDGE + i]), square);
            for (int j = k + 1 + j0; j < NARROW; j += 16) subtract(g[i * EDGE + j], left, g[k * EDGE + j]);
        }
        __syncthreads();
        // row k is not read before the end
        if (threadIdx.x == 0) reciprocals[k] = complex_of(factor, Real(0), T());
    }
    __syncthreads();
    for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
        int i = e / NARROW, j = e % NARROW;
        if (j > i) g[i * EDGE + j] = times(g[i * EDGE + j], real(reciprocals[i]));
        if (j == i) g[i * EDGE + i] = complex_of(1 / real(reciprocals[i]), Real(0), T());
    }
    __syncthreads();
    return true;
}

// X := R and V of an m x NARROW panel, and the triangle T of its reflectors, by products: twice Q := X R^-1 for the
// Cholesky factor R of X^H X, then an LU factorization of I - Q D with signs D. If X is too ill-conditioned, which the
// second X^H X shows, X stays as it is, and `far` is 1 afterwards: `factor_panel` finds its reflectors, a kernel of its own,
// since both in one take as long again to compile. `parts` are NARROW^2 elements for each CTA, and two times as many.
//
// Source: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, Roundoff error analysis of the CholeskyQR2 algorithm, 2015; Ballard
//     et al., Reconstructing Householder vectors from tall-skinny QR, 2014.
template <class T, class Real = real_of<T>>
__global__ void __launch_bounds__(THREADS)
    factor_narrow(T* x, integer ld, int m, int ldv, int height, T* t, integer ldt, T* parts, unsigned* arrived, int* far) {
    extern __shared__ double2 memory[];
    __shared__ T reciprocals[NARROW], signs[NARROW];
    __shared__ int is_far;
    T *v = (T*)memory, *g = v + NARROW * ldv, *r = g + NARROW * EDGE, *s = r + NARROW * EDGE;
    const int cta = blockIdx.x, begin = cta * height, count = m - begin < height ? (m - begin > 0 ? m - begin : 0) : height;
    T *own = x + begin, *shared_u = parts + (gridDim.x + 1ll) * NARROW * NARROW;
    unsigned expected = 0;
    if (threadIdx.x == 0) is_far = 0;
    for (int c = threadIdx.x / LANES; c < NARROW; c += WARPS)
        for (int i = threadIdx.x % LANES; i < count; i += LANES) v[c * ldv + i] = __ldcg(own + i + c * ld);
    __syncthreads();
    bool is_done = true;
    for (int pass = 0; pass < 2 && is_done; ++pass) {
        gram_of_all(v, ldv, count, g, parts, arrived, expected);
        if (pass)
            for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
                T element = g[e / NARROW * EDGE + e % NARROW];
                Real distance = fmax(fabs(real(element) - (e / NARROW == e % NARROW)), fabs(imaginary(element)));
                if (!(distance < Real(1) / (2 * NARROW))) is_far = 1;
            }
        __syncthreads();
        is_done = !is_far && cholesky<T, Real>(g, reciprocals);
        if (!is_done) break;
        divide_rows(v, ldv, 0, count, g, reciprocals);
        if (pass == 0) {
            for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) r[e / NARROW * EDGE + e % NARROW] = g[e / NARROW * EDGE + e % NARROW];
        } else if (cta == 0) {  // R := R2 R1
            for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
                int i = e / NARROW, j = e % NARROW;
                T sum = zero(T());
                for (int k = i; k <= j; ++k) add(sum, g[i * EDGE + k], r[k * EDGE + j]);
                s[i * EDGE + j] = sum;
            }
        }
        __syncthreads();
    }
    if (cta == 0 && threadIdx.x == 0) *far = !is_done;
    if (!is_done) return;
    if (cta == 0) {  // I - Q D = L U, in place of Q
        for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) g[e % NARROW * EDGE + e / NARROW] = v[e / NARROW * ldv + e % NARROW];
        __syncthreads();
        int i0 = threadIdx.x % 16, j0 = threadIdx.x / 16;
        for (int k = 0; k < NARROW; ++k) {
            T q = g[k * EDGE + k];
            Real size = sqrt(real(q) * real(q) + imaginary(q) * imaginary(q));
            T sign = size > 0 ? times(conj(q), -1 / size) : complex_of(Real(-1), Real(0), T());
            T factor = times(sign, -1 / (1 + size));
            for (int i = k + 1 + i0; i < NARROW; i += 16) {
                T left = times(g[i * EDGE + k], factor);
                for (int j = k + 1 + j0; j < NARROW; j += 16) subtract(g[i * EDGE + j], left, g[k * EDGE + j]);
            }
            if (threadIdx.x == 0) signs[k] = sign, reciprocals[k] = complex_of(1 + size, Real(0), T());
            __syncthreads();
        }
        for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
            int i = e / NARROW, j = e % NARROW;
            T& element = g[i * EDGE + j];
            if (i > j) element = times(times(element, signs[j]), -1 / real(reciprocals[j]));
            else element = i == j ? reciprocals[i] : negative(element, signs[j]);
            shared_u[e] = element;
        }
        if (threadIdx.x < NARROW) shared_u[NARROW * NARROW + threadIdx.x] = signs[threadIdx.x];
    }
    wait_for_all(arrived, expected);
    for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) g[e / NARROW * EDGE + e % NARROW] = __ldcg(shared_u + e);
    if (threadIdx.x < NARROW) signs[threadIdx.x] = __ldcg(shared_u + NARROW * NARROW + threadIdx.x);
    __syncthreads();
    if (threadIdx.x < NARROW) reciprocals[threadIdx.x] = complex_of(1 / real(g[threadIdx.x * EDGE + threadIdx.x]), Real(0), T());
    for (int c = threadIdx.x / LANES; c < NARROW; c += WARPS)
        for (int i = threadIdx.x % LANES; i < count; i += LANES) v[c * ldv + i] = negative(v[c * ldv + i], signs[c]);
    __syncthreads();
    int top = cta == 0 ? NARROW : 0;
    divide_rows(v, ldv, top, count, g, reciprocals);
    __syncthreads();
    for (int c = threadIdx.x / LANES; c < NARROW; c += WARPS)
        for (int i = threadIdx.x % LANES; i < count; i += LANES) {
            T element = v[c * ldv + i];
            if (i < top) element = i > c ? g[i * EDGE + c] : times(conj(signs[i]), s[i * EDGE + c]);
            own[i + c * ld] = element;
        }
    if (cta == 0)  // the rows of U, of which T is made
        for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
            int i = e % NARROW, j = e / NARROW;
            r[j * EDGE + i] = i <= j ? g[i * EDGE + j] : zero(T());
        }
    if (cta) return;
    // T := U L^-H
    __syncthreads();
    for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS) {
        int i = e / NARROW, j = e % NARROW;
        if (i < j) s[i * EDGE + j] = conj(g[j * EDGE + i]);
    }
    if (threadIdx.x < NARROW) reciprocals[threadIdx.x] = one(T());
    __syncthreads();
    divide_rows(r, EDGE, 0, NARROW, s, reciprocals);
    __syncthreads();
    for (int e = threadIdx.x; e < NARROW * NARROW; e += THREADS)
        t[e % NARROW + e / NARROW * ldt] = e % NARROW <= e / NARROW ? r[e / NARROW * EDGE + e % NARROW] : zero(T());
}

// L := I + the lower triangle of G diag(conj(tau)), below its diagonal, for a G = V^H V. A CTA takes a column.
template <class T>
__global__ void scale_columns(T* g, integer ld, int n, const T* tau) {
    int j = blockIdx.x;
    for (int i = j + 1 + threadIdx.x; i < n; i += blockDim.x) g[i + j * ld] = times(conj(tau[j]), g[i + j * ld]);
}

// T := diag(tau) of the columns, times the conjugate transpose of X = L^-1; 0 below the diagonal. A CTA takes a column.
// `wanted` is as in `factor_panel`.
template <class T>
__global__ void close_triangle(const T* x, integer ldx, int n, const T* tau, T* t, integer ldt, const int* wanted) {
    if (wanted && !*wanted) return;
    int j = blockIdx.x;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        t[i + j * ldt] = i > j ? zero(T()) : times(tau[j], conj(x[j + i * ldx]));
}

// Y := X below its diagonal, with ones on the diagonal and zeros above it. A CTA takes a column.
template <class T>
__global__ void unit_lower(const T* x, integer ldx, int m, T* y, integer ldy) {
    integer j = blockIdx.x;
    for (integer i = threadIdx.x; i < m; i += blockDim.x)
        y[i + j * ldy] = i > j ? x[i + j * ldx] : i == j ? one(T()) : zero(T());
}
