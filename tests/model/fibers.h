// CUDA's words for a C++ compiler: the threads of a CTA are fibers of one thread of the CPU, a rank runs its CTAs one after
// the other, and ranks are threads. What the kernels say in PTX, tests/model/fibers.py translates.
#include <sched.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <functional>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local

using std::max;
using std::min;

struct Index {
    unsigned x;
};

namespace fibers {

constexpr size_t STACK_NBYTES = 65536;

thread_local std::vector<ucontext_t> contexts;
thread_local std::vector<char> ended;
thread_local ucontext_t scheduler;
thread_local unsigned current, running, arrived, meetings, any, any_before;
thread_local std::function<void()> body;

void pause() { swapcontext(&contexts[current], &scheduler); }

void start() {
    body();
    ended[current] = 1;
    running--;
    pause();
}

// Word after word, so that others may see the first ones alone.
template <class Word, size_t N>
void post_to(void* at, const Word (&x)[N]) {
    for (size_t i = 0; i < N; i++) __atomic_store_n(static_cast<Word*>(at) + i, x[i], __ATOMIC_RELAXED);
}

template <class Word, size_t N>
void look_at(const void* at, Word (&x)[N]) {
    for (size_t i = 0; i < N; i++) x[i] = __atomic_load_n(static_cast<const Word*>(at) + i, __ATOMIC_RELAXED);
    pause();
}

}  // namespace fibers

struct ThreadIndex {
    struct {
        operator unsigned() const { return fibers::current; }
    } x;
};

static ThreadIndex threadIdx;
static thread_local Index blockIdx, gridDim, blockDim;

static void __syncthreads() {
    const unsigned meeting = fibers::meetings;
    if (++fibers::arrived == blockDim.x) {
        fibers::arrived = 0;
        fibers::any_before = fibers::any;
        fibers::any = 0;
        fibers::meetings++;
    }
    while (fibers::meetings == meeting) fibers::pause();
}

static int __syncthreads_or(int value) {
    fibers::any |= value != 0;
    __syncthreads();
    const int any = fibers::any_before;
    __syncthreads();
    return any;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int lane) {
    static thread_local T values[1024];
    values[fibers::current] = value;
    __syncthreads();
    const T received = values[fibers::current ^ lane];
    __syncthreads();
    return received;
}

template <class To, class From>
To bits_of(From from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static float __uint_as_float(unsigned x) { return bits_of<float>(x); }
static unsigned __float_as_uint(float x) { return bits_of<unsigned>(x); }
static double __longlong_as_double(long long x) { return bits_of<double>(x); }
static double __dadd_rn(double x, double y) { return x + y; }
static double __dmul_rn(double x, double y) { return x * y; }
static double __ddiv_rn(double x, double y) { return x / y; }
static double __dsqrt_rn(double x) { return std::sqrt(x); }
static unsigned atomicAdd(unsigned* x, unsigned y) { return __atomic_fetch_add(x, y, __ATOMIC_ACQ_REL); }
static void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// To nearest, ties to even.
static unsigned short to_bfloat16(float x) {
    if (x != x) return 0x7fc0;
    const unsigned all = bits_of<unsigned>(x);
    return static_cast<unsigned short>((all + 0x7fff + (all >> 16 & 1)) >> 16);
}

static unsigned long long clock_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void launch(unsigned ctas, unsigned threads, std::function<void()> kernel) {
    using namespace fibers;
    std::vector<char> stacks(threads * STACK_NBYTES);
    body = kernel;
    gridDim.x = ctas;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < ctas; blockIdx.x++) {
        contexts.assign(threads, ucontext_t());
        ended.assign(threads, 0);
        running = threads;
        arrived = meetings = any = 0;
        for (unsigned i = 0; i < threads; i++) {
            getcontext(&contexts[i]);
            contexts[i].uc_stack.ss_sp = stacks.data() + i * STACK_NBYTES;
            contexts[i].uc_stack.ss_size = STACK_NBYTES;
            makecontext(&contexts[i], start, 0);
        }
        while (running) {
            const unsigned before = meetings + running;
            for (current = 0; current < threads; current++)
                if (!ended[current]) swapcontext(&scheduler, &contexts[current]);
            if (meetings + running == before) usleep(10);  // it waits for another rank
        }
    }
}
