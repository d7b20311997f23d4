// Copies blocks into the memory of peers by stores of the multiprocessors, and tells each peer when its blocks are there.
#include "common.cuh"

constexpr int MAX_BLOCKS = MAX_RANKS;

struct PushArguments {
    integer blocks, members, signals;  // `members` CTAs copy each block
    word* counter;                     // of each signal: CTAs that have finished; 0 before and after
    const byte* source[MAX_BLOCKS];
    byte* target[MAX_BLOCKS];
    integer nbytes[MAX_BLOCKS];  // of a line
    integer lines[MAX_BLOCKS], source_pitch[MAX_BLOCKS], target_pitch[MAX_BLOCKS];
    integer signal[MAX_BLOCKS];   // what is told when this block is there; -1: nothing
    word* flag[MAX_RANKS];        // of each signal, at the peer
    integer expected[MAX_RANKS];  // blocks of each signal
};

// What one of the members copies of a block: Ts, four in flight in each thread, and the bytes that are left of each line.
template <class T>
__device__ __forceinline__ void copy(const PushArguments& a, int block, word member) {
    constexpr int UNROLL = 4;
    constexpr integer WIDTH = sizeof(T);
    const byte* source = a.source[block];
    byte* target = a.target[block];
    const integer lines = a.lines[block], packs = a.nbytes[block] / WIDTH;
    const integer source_pitch = a.source_pitch[block], target_pitch = a.target_pitch[block];
    const word thread = member * blockDim.x + threadIdx.x, threads = static_cast<word>(a.members) * blockDim.x;
    const Walk stride = Walk::at(threads, packs);
    for (Walk walk = Walk::at(thread, packs); packs && walk.line < lines;) {
        T pack[UNROLL];
        byte* to[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            to[k] = nullptr;
            if (walk.line < lines) {
                to[k] = target + walk.line * target_pitch + walk.position * WIDTH;
                pack[k] = *reinterpret_cast<const T*>(source + walk.line * source_pitch + walk.position * WIDTH);
            }
            walk.advance(stride, packs);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (to[k]) *reinterpret_cast<T*>(to[k]) = pack[k];
    }
    if (packs * WIDTH < a.nbytes[block])
        for (integer line = thread; line < lines; line += threads)
            for (integer i = packs * WIDTH; i < a.nbytes[block]; i++)
                target[line * target_pitch + i] = source[line * source_pitch + i];
}

// CTAs are dealt to the blocks in turn, so that all peers are written to at once.
extern "C" __global__ void __launch_bounds__(512) push(const __grid_constant__ PushArguments a) {
    // A signal without blocks is given at once.
    if (blockIdx.x == 0 && threadIdx.x < a.signals && a.expected[threadIdx.x] == 0) release(a.flag[threadIdx.x], 1);
    if (a.blocks == 0) return;
    const int block = static_cast<int>(blockIdx.x % static_cast<word>(a.blocks));
    const word member = blockIdx.x / static_cast<word>(a.blocks);
    const unsigned long long places = reinterpret_cast<unsigned long long>(a.source[block])
        | reinterpret_cast<unsigned long long>(a.target[block])
        | static_cast<unsigned long long>(a.lines[block] > 1 ? a.source_pitch[block] | a.target_pitch[block] : 0);
    if (places % 16 == 0)
        copy<uint4>(a, block, member);
    else if (places % 4 == 0)
        copy<word>(a, block, member);
    else if (places % 2 == 0)
        copy<half_word>(a, block, member);
    else
        copy<byte>(a, block, member);

    const integer signal = a.signal[block];
    if (signal < 0) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        // The last CTA of a signal has seen the counts of the others, hence their stores, and releases them with its own.
        __threadfence_system();
        const word all = static_cast<word>(a.expected[signal] * a.members);
        if (atomicAdd(&a.counter[signal], 1) == all - 1) {
            a.counter[signal] = 0;
            __threadfence_system();
            release(a.flag[signal], 1);
        }
    }
}
