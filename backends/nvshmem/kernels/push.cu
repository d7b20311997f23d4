// Copies blocks into the memory of peers, or from it, with the multiprocessors, and signals each peer when its blocks
// are complete.
#include "common.cuh"

constexpr int MAX_BLOCKS = MAX_RANKS;

struct Block {
    const byte* source;
    byte* target;
    integer nbytes;  // of a line
    integer signal;  // index of the flag that signals this block; -1: none
    integer lines, source_pitch, target_pitch;
};

struct Signal {
    word* flag;        // in the peer's memory
    integer expected;  // number of blocks that it waits for
};

struct PushArguments {
    integer blocks, members, signals;  // `members` CTAs copy each block
    word* counter;                     // of each signal: CTAs that have finished; 0 before and after
    Block block[MAX_BLOCKS];
    Signal signal[MAX_RANKS];
};

// Copies one member's share of a block as elements of type T, four in flight in each thread, then the remaining bytes
// of each line.
template <class T>
__device__ __forceinline__ void copy(const Block& block, word member, word members) {
    constexpr int UNROLL = 4;
    constexpr integer WIDTH = sizeof(T);
    const byte* source = block.source;
    byte* target = block.target;
    const integer lines = block.lines, packs = block.nbytes / WIDTH;
    const integer source_pitch = block.source_pitch, target_pitch = block.target_pitch;
    const word thread = member * blockDim.x + threadIdx.x, threads = members * blockDim.x;
    const LinePosition stride = LinePosition::at(threads, packs);
    for (LinePosition at = LinePosition::at(thread, packs); packs && at.line < lines;) {
        T pack[UNROLL];
        byte* to[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            to[k] = nullptr;
            if (at.line < lines) {
                to[k] = target + at.line * target_pitch + at.position * WIDTH;
                pack[k] = *reinterpret_cast<const T*>(source + at.line * source_pitch + at.position * WIDTH);
            }
            at.advance(stride, packs);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++)
            if (to[k]) *reinterpret_cast<T*>(to[k]) = pack[k];
    }
    if (packs * WIDTH < block.nbytes)
        for (integer line = thread; line < lines; line += threads)
            for (integer i = packs * WIDTH; i < block.nbytes; i++)
                target[line * target_pitch + i] = source[line * source_pitch + i];
}

// CTAs take the blocks in turn, so that all peers are written to at once.
extern "C" __global__ void __launch_bounds__(512) push(const __grid_constant__ PushArguments a) {
    launch_dependents();
    // A signal without blocks is set at once.
    const int thread = threadIdx.x;
    if (blockIdx.x == 0 && thread < a.signals && a.signal[thread].expected == 0) release(a.signal[thread].flag, 1);
    if (a.blocks == 0) return;
    const Block& block = a.block[blockIdx.x % static_cast<word>(a.blocks)];
    const word member = blockIdx.x / static_cast<word>(a.blocks), members = static_cast<word>(a.members);
    const unsigned long long places = reinterpret_cast<unsigned long long>(block.source)
        | reinterpret_cast<unsigned long long>(block.target)
        | static_cast<unsigned long long>(block.lines > 1 ? block.source_pitch | block.target_pitch : 0);
    if (places % 16 == 0)
        copy<uint4>(block, member, members);
    else if (places % 4 == 0)
        copy<word>(block, member, members);
    else if (places % 2 == 0)
        copy<half_word>(block, member, members);
    else
        copy<byte>(block, member, members);

    if (block.signal < 0) return;
    __syncthreads();
    if (thread == 0) {
        // The last CTA of a signal has observed the counts of the other CTAs, hence their stores, and releases them
        // with its own.
        const Signal& signal = a.signal[block.signal];
        word* counter = a.counter + block.signal;
        __threadfence_system();
        if (atomicAdd(counter, 1) == static_cast<word>(signal.expected) * members - 1) {
            *counter = 0;
            __threadfence_system();
            release(signal.flag, 1);
        }
    }
}
