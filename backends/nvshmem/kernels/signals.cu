// Kernels of one CTA: a barrier of all ranks, a delay, and a wait for flags.
#include "common.cuh"

struct BarrierArguments {
    word* epoch;  // number of calls, counted on the GPU so that a captured launch can be replayed
    integer rank, nranks;
    Watch watch;
    word* flags[MAX_RANKS];  // of each rank: the epochs that the other ranks have reached
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
    // A peer may already be one epoch ahead; the difference is cyclic.
    const auto has_reached = [reached](word value) { return static_cast<int>(value - reached) >= 0; };
    a.watch.wait(a.flags[a.rank] + peer, peer, has_reached);
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
    integer count, signals;
    Watch watch;
    word* flag[MAX_RANKS];
    integer source[MAX_RANKS];  // the rank that sets the flag
    word* signal[MAX_RANKS];    // flags to set in peers' memory
};

// Sets flags in peers' memory, waits until all flags of this rank are 1, and resets them to 0. Without signals it polls
// the flags while the previous kernel still runs, and ends after that kernel.
extern "C" __global__ void __launch_bounds__(MAX_RANKS) wait(const __grid_constant__ WaitArguments a) {
    const int i = threadIdx.x;
    if (a.signals) grid_dependency_sync();
    if (i < a.signals) release(a.signal[i], 1);
    if (i < a.count && a.watch.wait(a.flag[i], static_cast<int>(a.source[i]), [](word value) { return value == 1; }))
        *a.flag[i] = 0;
    if (!a.signals) grid_dependency_sync();
}
