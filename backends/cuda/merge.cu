// Divide and conquer of a real symmetric tridiagonal matrix: leaves, and the parts of a merge that are no products.
//
// A merge takes two blocks of `half` eigenvalues d and vectors, S1 and S2, to those of 2 * half rows. With the last row
// of S1 and the first one of S2 in z it is the eigenproblem of diag(d) + rho z z^T. Eigenvalues with a negligible z are
// known, and of two close ones z is rotated into one (`deflate`). The others, the poles, give the roots of a secular
// equation, from which z is computed anew, so that the vectors U are orthogonal. The caller multiplies S1 and S2 with U.
//
// Source: Cuppen, A divide and conquer method for the symmetric tridiagonal eigenproblem, 1981; Gu, Eisenstat, A stable
//     and efficient algorithm for the rank-one modification of the symmetric eigenproblem, 1994; LAPACK, xLAED4; Tisseur,
//     Dongarra, A parallel divide and conquer algorithm for the symmetric eigenvalue problem, 1999.

enum { LANES = 32, THREADS = 256, WARPS = THREADS / LANES, CHUNK = 512, LEAF = 32, ROTATIONS = 60, STEPS = 80 };

__device__ __forceinline__ float epsilon(float) { return 5.9604645e-8f; }
__device__ __forceinline__ double epsilon(double) { return 1.1102230246251565e-16; }

template <class Real>
__device__ __forceinline__ Real sum_of_lanes(Real x) {
    for (int mask = LANES / 2; mask; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}

// Eigenvalues d, ascending, and vectors S of blocks of `size` rows of T on the diagonal of S, by QL iterations. T is
// torn: abs(e) is subtracted from d on both sides of each cut. Rows from n on have no others, and more than all
// eigenvalues on the diagonal. A warp takes a block, a lane a row of S.
template <class Real>
__global__ void __launch_bounds__(4 * LANES)
    solve_leaves(const Real* diagonal, const Real* off, int n, int size, int blocks, Real* values, Real* s, integer ld, int* failed) {
    __shared__ Real memory[4][LEAF * (LEAF + 1) + 2 * LEAF];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, block = blockIdx.x * (blockDim.x / LANES) + warp;
    if (block >= blocks) return;
    Real beyond = 0;
    for (int i = lane; i < n; i += LANES)
        beyond = fmax(beyond, fabs(diagonal[i]) + (i ? fabs(off[i - 1]) : 0) + (i + 1 < n ? fabs(off[i]) : 0));
    for (int mask = LANES / 2; mask; mask /= 2) beyond = fmax(beyond, __shfl_xor_sync(~0u, beyond, mask));
    beyond = beyond > 0 ? Real(1.25) * beyond : 1;
    const Real least = epsilon(Real()) * beyond;  // iterations of much smaller elements end as well, where these underflow
    Real *z = memory[warp], *d = z + LEAF * (LEAF + 1), *e = d + LEAF;
    integer first = (integer)block * size, i = first + lane;
    if (lane < size) {
        Real before = i && i < n ? off[i - 1] : 0, after = i + 1 < n ? off[i] : 0;
        d[lane] = i < n ? diagonal[i] : beyond;
        if (lane == 0) d[lane] -= fabs(before);
        if (lane == size - 1) d[lane] -= fabs(after);
        e[lane] = lane < size - 1 ? after : 0;
        for (int j = 0; j < size; ++j) z[lane * (LEAF + 1) + j] = j == lane;
    }
    __syncwarp();
    for (int l = 0; l < size; ++l)
        for (int count = 0;; ++count) {
            int m = l;
            for (; m < size - 1; ++m)
                if (fabs(e[m]) <= epsilon(Real()) * (fabs(d[m]) + fabs(d[m + 1]) + least)) break;
            if (m == l) break;
            if (count == ROTATIONS) {
                if (lane == 0) *failed = 1;
                break;
            }
            Real g = (d[l + 1] - d[l]) / (2 * e[l]), r = hypot(g, Real(1));
            g = d[m] - d[l] + e[l] / (g + copysign(r, g));
            Real sine = 1, cosine = 1, p = 0;
            int k = m - 1;
            for (; k >= l; --k) {
                Real f = sine * e[k], b = cosine * e[k], next = d[k + 1], own = d[k];
                r = hypot(f, g);
                __syncwarp();
                if (lane == 0) e[k + 1] = r;
                if (r == 0) {
                    if (lane == 0) d[k + 1] = next - p, e[m] = 0;
                    break;
                }
                sine = f / r, cosine = g / r;
                g = next - p;
                r = (own - g) * sine + 2 * cosine * b;
                p = sine * r;
                if (lane == 0) d[k + 1] = g + p;
                g = cosine * r - b;
                if (lane < size) {
                    Real *x = z + lane * (LEAF + 1) + k, left = x[0], right = x[1];
                    x[1] = sine * left + cosine * right;
                    x[0] = cosine * left - sine * right;
                }
                __syncwarp();
            }
            __syncwarp();
            if (lane == 0 && k < l) d[l] -= p, e[l] = g, e[m] = 0;
            __syncwarp();
        }
    // In ascending order
    int place = 0;
    for (int j = 0; lane < size && j < size; ++j) place += d[j] < d[lane] || (d[j] == d[lane] && j < lane);
    __syncwarp();
    if (lane < size) {
        values[first + place] = d[lane];
        for (int j = 0; j < size; ++j) s[first + j + (first + place) * ld] = z[j * (LEAF + 1) + lane];
    }
}

// z, and both halves of d in one ascending order: `order` has the numbers of eigenvalues within the merge.
template <class Real>
__global__ void sort_halves(const Real* d, const Real* s, integer ld, const Real* off, int n, int half, integer total,
                            Real* sorted, Real* z, int* order) {
    integer i = (integer)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    int size = 2 * half, within = i % size;
    integer start = i - within, middle = start + half;
    const Real* other = d + (within < half ? middle : start);
    int low = 0, high = half;
    while (low < high) {
        int mid = (low + high) / 2;
        bool is_before = within < half ? other[mid] < d[i] : other[mid] <= d[i];
        low = is_before ? mid + 1 : low;
        high = is_before ? high : mid;
    }
    integer place = start + within % half + low;
    Real rho = middle < n ? off[middle - 1] : 0;
    Real element = within < half ? s[middle - 1 + i * ld] : s[middle + i * ld];
    sorted[place] = d[i];
    z[place] = element * Real(0.70710678118654752440) * (within >= half && rho < 0 ? -1 : 1);
    order[place] = within;
}

// What merges leave: the poles with their z and numbers in front, the known eigenvalues with theirs at the end, and
// rotations of two vectors. counts: of poles and rotations. 4 * total reals, and 5 * total integers.
template <class Real>
struct Deflated {
    Real *poles, *weights, *cosines, *sines;
    int *numbers, *firsts, *seconds, *counts;
    __device__ Deflated(Real* reals, int* integers, integer total)
        : poles(reals), weights(reals + total), cosines(reals + 2 * total), sines(reals + 3 * total), numbers(integers),
          firsts(integers + total), seconds(integers + 2 * total), counts(integers + 3 * total) {}
};

// A CTA takes a merge; one thread goes through the eigenvalues, which come and go in chunks.
template <class Real>
__global__ void deflate(const Real* sorted, const Real* z, const int* order, const Real* off, int n, int half,
                        Real* reals, int* integers, integer total) {
    const Deflated<Real> x(reals, integers, total);
    __shared__ Real chunk_d[CHUNK], chunk_z[CHUNK], most[WARPS];
    __shared__ int chunk_order[CHUNK];
    int size = 2 * half;
    integer start = (integer)blockIdx.x * size, middle = start + half;
    Real largest = 0;
    for (int i = threadIdx.x; i < size; i += THREADS) largest = fmax(largest, fmax(fabs(sorted[start + i]), fabs(z[start + i])));
    for (int mask = LANES / 2; mask; mask /= 2) largest = fmax(largest, __shfl_xor_sync(~0u, largest, mask));
    if (threadIdx.x % LANES == 0) most[threadIdx.x / LANES] = largest;
    __syncthreads();
    for (int i = 0; i < WARPS; ++i) largest = fmax(largest, most[i]);
    Real rho = middle < n ? 2 * fabs(off[middle - 1]) : 0, tolerance = 8 * epsilon(Real()) * largest;
    // A pole that the next one may be close to, and where the others are written
    bool has = false;
    Real last_d = 0, last_z = 0;
    int last = 0, poles = 0, known = size, rotations = 0;
    for (int begin = 0; begin < size; begin += CHUNK) {
        int count = size - begin < CHUNK ? size - begin : CHUNK;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            chunk_d[i] = sorted[start + begin + i], chunk_z[i] = z[start + begin + i];
            chunk_order[i] = order[start + begin + i];
        }
        __syncthreads();
        if (threadIdx.x) continue;
        for (int i = 0; i < count; ++i) {
            Real own_d = chunk_d[i], own_z = chunk_z[i];
            int number = chunk_order[i];
            if (rho * fabs(own_z) <= tolerance) {
                --known;
                x.poles[start + known] = own_d, x.numbers[start + known] = number;
                continue;
            }
            if (has) {
                Real length = hypot(own_z, last_z), cosine = own_z / length, sine = -last_z / length;
                if (fabs((own_d - last_d) * cosine * sine) <= tolerance) {
                    integer place = start + rotations++;
                    x.firsts[place] = last, x.seconds[place] = number, x.cosines[place] = cosine, x.sines[place] = sine;
                    Real c2 = cosine * cosine, s2 = sine * sine, value = last_d * c2 + own_d * s2;
                    own_d = last_d * s2 + own_d * c2, own_z = length;
                    --known;
                    x.poles[start + known] = value, x.numbers[start + known] = last;
                } else {
                    x.poles[start + poles] = last_d, x.weights[start + poles] = last_z, x.numbers[start + poles] = last;
                    ++poles;
                }
            }
            has = true, last_d = own_d, last_z = own_z, last = number;
        }
    }
    if (threadIdx.x) return;
    if (has) {
        x.poles[start + poles] = last_d, x.weights[start + poles] = last_z, x.numbers[start + poles] = last;
        ++poles;
    }
    x.counts[2 * blockIdx.x] = poles, x.counts[2 * blockIdx.x + 1] = rotations;
}

// Root j of 1 + rho sum_i z_i^2 / (d_i - x) = 0, as the distance `shift` from the closer one of its poles, `origin`. A
// warp takes a root. Steps solve for the root of c + A / (d_j - x) + B / (d_{j+1} - x), which has the values and the
// derivatives of both halves of the sum, or halve the interval.
template <class Real>
__device__ void find_root(const Real* d, const Real* z, int k, Real rho, int j, int& origin, Real& shift) {
    int lane = threadIdx.x % LANES;
    bool is_last = j == k - 1;
    Real total = 0;
    if (is_last) {
        for (int i = lane; i < k; i += LANES) total += z[i] * z[i];
        total = rho * sum_of_lanes(total);
    }
    Real gap = is_last ? total : d[j + 1] - d[j], low = 0, high = gap, x = gap / 2;
    origin = j;
    for (int step = 0; step < STEPS; ++step) {
        Real left = 0, left_slope = 0, right = 0, right_slope = 0, base = d[origin];
        for (int i = lane; i < k; i += LANES) {
            Real term = z[i] / ((d[i] - base) - x), slope = term * term;
            term *= z[i];
            if (i <= j) left += term, left_slope += slope;
            else right += term, right_slope += slope;
        }
        left = rho * sum_of_lanes(left), left_slope = rho * sum_of_lanes(left_slope);
        right = rho * sum_of_lanes(right), right_slope = rho * sum_of_lanes(right_slope);
        Real f = 1 + left + right;
        if (f < 0) low = x;
        else high = x;
        if (step == 0 && !is_last && f < 0) {  // the root is closer to the next pole
            origin = j + 1;
            low -= gap, high = 0, x -= gap;
        }
        Real limit = 16 * epsilon(Real());
        if (fabs(f) <= limit * (1 + right - left) || high - low <= limit / 4 * fmin(fabs(low), fabs(high))) break;
        Real first = (d[j] - d[origin]) - x, move;
        if (is_last) {
            Real c = f - first * left_slope;
            move = first + first * first * left_slope / c;
        } else {
            Real second = (d[j + 1] - d[origin]) - x;
            Real c = f - first * left_slope - second * right_slope;
            Real a = (first + second) * f - first * second * (left_slope + right_slope), b = first * second * f;
            Real root = sqrt(fmax(a * a - 4 * b * c, Real(0)));
            move = c == 0 ? b / a : a <= 0 ? (a - root) / (2 * c) : 2 * b / (a + root);
        }
        Real next = x + move;
        bool is_inside = next > low && next < high && step % 8 != 7;
        Real middle = low * high > 0 ? copysign(sqrt(fabs(low)) * sqrt(fabs(high)), low) : (low + high) / 32;
        if (!(middle > low && middle < high)) middle = low + (high - low) / 2;
        next = is_inside ? next : middle;
        if (next == x) break;
        x = next;
    }
    shift = x;
}

// The roots of merges, with their distances from poles.
template <class Real>
__global__ void find_roots(Real* reals, int* integers, integer total, const Real* off, int n, int half, int* origins,
                           Real* shifts) {
    const Deflated<Real> x(reals, integers, total);
    integer i = (integer)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (i >= total) return;
    int size = 2 * half, j = i % size, merge = i / size, k = x.counts[2 * merge];
    if (j >= k) return;
    integer start = i - j;
    Real rho = 2 * fabs(off[start + half - 1]), shift;
    int origin;
    find_root(x.poles + start, x.weights + start, k, rho, j, origin, shift);
    if (threadIdx.x % LANES == 0) origins[i] = origin, shifts[i] = shift;
}

// z whose secular equation has exactly the computed roots; a warp takes a pole.
template <class Real>
__global__ void correct(Real* reals, int* integers, integer total, int half, const int* origins, const Real* shifts,
                        Real* z) {
    const Deflated<Real> x(reals, integers, total);
    integer i = (integer)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (i >= total) return;
    int lane = threadIdx.x % LANES, size = 2 * half, j = i % size, k = x.counts[2 * (i / size)];
    if (j >= k) return;
    integer start = i - j;
    const Real* d = x.poles + start;
    Real product = 1;
    for (int l = lane; l < k; l += LANES) {
        Real distance = (d[origins[start + l]] - d[j]) + shifts[start + l];
        product *= l == j ? distance : distance / (d[l] - d[j]);
    }
    for (int mask = LANES / 2; mask; mask /= 2) product *= __shfl_xor_sync(~0u, product, mask);
    if (lane == 0) z[i] = copysign(sqrt(fabs(product)), x.weights[i]);
}

// U and the eigenvalues of merges, ascending. A CTA takes a column of U.
template <class Real>
__global__ void make_vectors(Real* reals, int* integers, integer total, int half, const int* origins, const Real* shifts,
                             const Real* z, Real* values, Real* u, integer ld) {
    const Deflated<Real> x(reals, integers, total);
    __shared__ Real parts[WARPS];
    __shared__ int places[WARPS];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES, size = 2 * half, j = blockIdx.x % size;
    integer start = (integer)blockIdx.x - j;
    int k = x.counts[2 * (blockIdx.x / size)];
    const Real* d = x.poles + start;
    bool is_root = j < k;
    Real base = d[is_root ? origins[start + j] : j], shift = is_root ? shifts[start + j] : 0, value = base + shift;
    // Its place among all of the merge, and the square of its length
    int place = 0;
    Real square = 0;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        Real other = i < k ? d[origins[start + i]] + shifts[start + i] : d[i];
        place += other < value || (other == value && i < j);
        if (is_root && i < k) {
            Real element = z[start + i] / ((d[i] - base) - shift);
            square += element * element;
        }
    }
    square = sum_of_lanes(square), place = sum_of_lanes(place);
    if (lane == 0) parts[warp] = square, places[warp] = place;
    __syncthreads();
    square = 0, place = 0;
    for (int i = 0; i < WARPS; ++i) square += parts[i], place += places[i];
    Real factor = 1 / sqrt(square), *column = u + start + (start + place) * ld;
    if (threadIdx.x == 0) values[start + place] = value;
    for (int i = threadIdx.x; i < size; i += THREADS) {
        Real element = i == j;
        if (is_root) element = i < k ? z[start + i] / ((d[i] - base) - shift) * factor : 0;
        column[x.numbers[start + i]] = element;
    }
}

// U := G U for the rotations G of vectors. A thread takes a column.
template <class Real>
__global__ void rotate(Real* reals, int* integers, integer total, int half, Real* u, integer ld) {
    const Deflated<Real> x(reals, integers, total);
    integer i = (integer)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    int size = 2 * half, merge = i / size;
    integer start = (integer)merge * size;
    Real* column = u + start + i * ld;
    for (int r = x.counts[2 * merge + 1] - 1; r >= 0; --r) {
        Real c = x.cosines[start + r], s = x.sines[start + r];
        Real *first = column + x.firsts[start + r], *second = column + x.seconds[start + r], left = *first, right = *second;
        *first = c * left - s * right, *second = s * left + c * right;
    }
}
