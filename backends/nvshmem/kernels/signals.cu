// Kernels of one CTA around flags: a barrier of all ranks, a delay, and a wait for flags.
#include "common.cuh"

struct BarrierArguments {
    word* epoch;  // calls so far, counted here so that a captured launch can be replayed
    integer rank, nranks;
    Watch watch;
    word* flags[MAX_RANKS];  // of each rank: the epochs that the others have reached
};

extern "C" __global__ void __launch_bounds__(MAX_RANKS) barrier(const __grid_constant__ BarrierArguments a) {
    __shared__ word epoch;
    if (a.nranks == 0) return;
    if (threadIdx.x == 0) epoch = *a.epoch += 1;
    __syncthreads();
    const int peer = threadIdx.x;
    if (peer >= a.nranks || peer == a.rank) return;
    const word reached = epoch;
    release(a.flags[peer] + a.rank, reached);
    // A peer may be one epoch ahead already; the difference is cyclic.
    a.watch.wait(a.flags[a.rank] + peer, peer, [reached](word value) { return static_cast<int>(value - reached) >= 0; });
}

struct DelayArguments {
    time_ns nanoseconds;
};

extern "C" __global__ void delay(const __grid_constant__ DelayArguments a) {
    constexpr time_ns LONGEST = 1000000000;
    const time_ns start = now(), duration = a.nanoseconds < LONGEST ? a.nanoseconds : LONGEST;
    while (elapsed(start) < static_cast<integer>(duration)) __nanosleep(100);
}

struct WaitArguments {
    integer count, tells;
    Watch watch;
    word* flag[MAX_RANKS];
    integer source[MAX_RANKS];  // the rank that sets it
    word* told[MAX_RANKS];      // flags to set at peers
};

// Sets flags at peers, waits until all those of this rank are 1, and makes them 0. It may look for them while the kernel before
// is still at work, which is over when this one is.
extern "C" __global__ void __launch_bounds__(MAX_RANKS) wait(const __grid_constant__ WaitArguments a) {
    const int i = threadIdx.x;
    if (a.tells) follow();
    if (i < a.tells) release(a.told[i], 1);
    if (i < a.count && a.watch.wait(a.flag[i], static_cast<int>(a.source[i]), [](word value) { return value == 1; }))
        *a.flag[i] = 0;
    if (!a.tells) follow();
}
