// out[first[r]..stop[r]-1] = rank r's shard, on every rank. Here an element is a word of 2, 4 or 8 bytes.
#include "all_reduce.cuh"

template <class T>
__device__ __forceinline__ void all_gather(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(T);
    const Communicator comm(a);
    const int rank = comm.rank;
    if (comm.nranks == 0) return;
    const Slice slice = Slice::of(comm.largest_shard(), LENGTH);
    const integer stop = min(slice.stop, comm.count(rank));
    const T* source = reinterpret_cast<const T*>(a.source) + a.first[rank];
    T* own = reinterpret_cast<T*>(comm.results(rank)) + a.first[rank];
    T* out = reinterpret_cast<T*>(a.out) + a.first[rank];
    const bool in_place = own == source;  // peers read the source itself
    for (integer at = slice.first + threadIdx.x * LENGTH; at < stop; at += THREADS * LENGTH) {
        const Pack<T, LENGTH> pack = load<LENGTH>(source + at, stop - at);
        if (!in_place) store_vector(own + at, pack, stop - at);
        if (out != source) store_vector(out + at, pack, stop - at);
    }
    if (!comm.barrier(0, true)) return;
    comm.count_call();
    const auto left = [&](int owner, integer at) { return min(comm.count(owner), slice.stop) - at; };
    comm.for_each_peer<LLPacket<T, LENGTH>>(
        static_cast<word>((slice.stop - slice.first + LENGTH - 1) / LENGTH),
        [&](int owner, word pack, LLPacket<T, LENGTH>& x) {
            const integer at = slice.first + integer(pack) * LENGTH;
            if (left(owner, at) > 0)  // the pack is whole and aligned
                load_words(reinterpret_cast<const T*>(comm.results(owner)) + a.first[owner] + at, x.words);
        },
        [&](int owner, word pack, LLPacket<T, LENGTH>& x) {
            const integer at = slice.first + integer(pack) * LENGTH;
            store_vector(reinterpret_cast<T*>(a.out) + a.first[owner] + at, x.pack, left(owner, at));
        });
    if (in_place) comm.barrier(1, true);
}

#define ALL_GATHER(NAME, T)                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, PER_SM) \
        NAME(const __grid_constant__ AllReduceArguments a) {      \
        grid_dependency_sync();                                   \
        all_gather<T>(a);                                         \
    }

ALL_GATHER(all_gather_2, half_word)
ALL_GATHER(all_gather_4, word)
ALL_GATHER(all_gather_8, integer)

// All-gathers by LL packets, of numbers of 2, 4 or 8 bytes.
ALL_REDUCE_KERNEL(all_gather_ll, 2, float16, float16, Add, AddScaled)
ALL_REDUCE_KERNEL(all_gather_ll, 4, float, float, Add, AddScaled)
ALL_REDUCE_KERNEL(all_gather_ll, 8, double, double, Add, AddScaled)
