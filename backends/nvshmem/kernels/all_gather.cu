// out[first[r]..stop[r]-1] = what rank r has, on every rank. Elements are words of some bytes here.
#include "all_reduce.cuh"

template <class T>
__device__ __forceinline__ void all_gather(const AllReduceArguments& a) {
    constexpr int LENGTH = 16 / sizeof(T);
    const Peers peers(a);
    const int rank = peers.rank;
    if (peers.nranks == 0) return;
    const Slice slice = Slice::of(peers.largest_part(), LENGTH);
    const integer stop = min(slice.stop, peers.count(rank));
    const T* source = reinterpret_cast<const T*>(a.source) + a.first[rank];
    T* own = reinterpret_cast<T*>(peers.results(rank)) + a.first[rank];
    T* out = reinterpret_cast<T*>(a.out) + a.first[rank];
    const bool in_place = own == source;  // the others read the source itself
    for (integer at = slice.first + threadIdx.x * LENGTH; at < stop; at += THREADS * LENGTH) {
        const Pack<T, LENGTH> pack = load<LENGTH>(source + at, stop - at);
        if (!in_place) write(own + at, pack, stop - at);
        if (out != source) write(out + at, pack, stop - at);
    }
    if (!peers.meet(0, true)) return;
    peers.count_call();
    const auto left = [&](int owner, integer at) { return min(peers.count(owner), slice.stop) - at; };
    peers.for_others<Post<T, LENGTH>>(
        static_cast<word>((slice.stop - slice.first + LENGTH - 1) / LENGTH),
        [&](int owner, word pack, Post<T, LENGTH>& x) {
            const integer at = slice.first + integer(pack) * LENGTH;
            if (left(owner, at) > 0)  // a whole pack, which is aligned
                look(reinterpret_cast<const T*>(peers.results(owner)) + a.first[owner] + at, x.words);
        },
        [&](int owner, word pack, Post<T, LENGTH>& x) {
            const integer at = slice.first + integer(pack) * LENGTH;
            write(reinterpret_cast<T*>(a.out) + a.first[owner] + at, x.pack, left(owner, at));
        });
    if (in_place) peers.meet(1, true);
}

#define ALL_GATHER(NAME, T)                                          \
    extern "C" __global__ void __launch_bounds__(THREADS, PER_SM)    \
        NAME(const __grid_constant__ AllReduceArguments a) {         \
        follow();                                                    \
        all_gather<T>(a);                                            \
    }

ALL_GATHER(all_gather_2, half_word)
ALL_GATHER(all_gather_4, word)
ALL_GATHER(all_gather_8, integer)

// The same by packs that say themselves whether they are there, of numbers of so many bytes.
ALL_REDUCE_KERNEL(gather, 2, float16, float16, Add, Scaled)
ALL_REDUCE_KERNEL(gather, 4, float, float, Add, Scaled)
ALL_REDUCE_KERNEL(gather, 8, double, double, Add, Scaled)
