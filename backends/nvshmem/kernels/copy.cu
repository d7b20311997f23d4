// Copies lines within a GPU's memory while a GEMM occupies all multiprocessors. One CTA fits into the registers and
// shared memory that the Hopper kernel leaves free on each: one warp of 32 registers a thread for each of the four
// schedulers.
#include "common.cuh"

constexpr int COPYING_THREADS = 128, IN_FLIGHT = 4;  // packs of 16 bytes in each thread
constexpr integer NEXT_NBYTES = COPYING_THREADS * 16, CHUNK_NBYTES = IN_FLIGHT * NEXT_NBYTES;

// All addresses and sizes are multiples of 16.
struct CopyArguments {
    byte* target;
    const byte* source;
    integer nbytes, lines, target_pitch, source_pitch;  // nbytes: of a line
};

extern "C" __global__ void __launch_bounds__(COPYING_THREADS, 16) copy(const __grid_constant__ CopyArguments a) {
    const word of_line = (a.nbytes + CHUNK_NBYTES - 1) / CHUNK_NBYTES, chunks = of_line * static_cast<word>(a.lines);
    for (word chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const integer line = chunk / of_line, first = chunk % of_line * CHUNK_NBYTES + threadIdx.x * 16;
        const byte* const source = a.source + line * a.source_pitch + first;
        byte* const target = a.target + line * a.target_pitch + first;
        uint4 packs[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++)
            if (first + i * NEXT_NBYTES < a.nbytes)
                packs[i] = *reinterpret_cast<const uint4*>(source + i * NEXT_NBYTES);
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++)
            if (first + i * NEXT_NBYTES < a.nbytes)
                *reinterpret_cast<uint4*>(target + i * NEXT_NBYTES) = packs[i];
    }
}
