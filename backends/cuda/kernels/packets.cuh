// LL packets: kernels send packs to their peers, or receive them, without flags.
#ifndef PBLAS_PACKS
#define PBLAS_PACKS
#include "common.cuh"

// Prefetches this address into the L2 cache.
__device__ __forceinline__ void prefetch(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// ---- packs that say themselves whether they are there

// What a peer sends into memory in which all bits were set: as long as a word has all of them, it is not there yet. Numbers
// that would look so, NaNs of one kind, are sent as other ones. A word is one access of PTX's memory model, of 32 bits, or
// of 64 where numbers have as many, so that nothing else need be ordered.
template <class T>
struct Word {
    typedef word type;
};

template <>
struct Word<double> {
    typedef time_ns type;
};

template <>
struct Word<complex<double>> {
    typedef time_ns type;
};

__device__ __forceinline__ void look(const void* at, word (&x)[2]) {
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(at));
}

__device__ __forceinline__ void look(const void* at, word (&x)[4]) {
    word &a = x[0], &b = x[1], &c = x[2], &d = x[3];
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(at));
}

__device__ __forceinline__ void look(const void* at, time_ns (&x)[2]) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(at));
}

__device__ __forceinline__ void post(void* at, const word (&x)[2]) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(x[0]), "r"(x[1]));
}

__device__ __forceinline__ void post(void* at, const word (&x)[4]) {
    const word a = x[0], b = x[1], c = x[2], d = x[3];
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d));
}

__device__ __forceinline__ void post(void* at, const time_ns (&x)[2]) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(x[0]), "l"(x[1]));
}

template <class T, int LENGTH>
union Post {
    typedef typename Word<T>::type W;
    enum { WORDS = sizeof(T) * LENGTH / sizeof(W) };

    Pack<T, LENGTH> pack;
    W words[WORDS];

    __device__ __forceinline__ Post() {}

    __device__ __forceinline__ Post(const Pack<T, LENGTH>& pack) : pack(pack) {}

    __device__ __forceinline__ bool is_there() const {
        bool there = true;
#pragma unroll
        for (int i = 0; i < WORDS; i++) there = there && words[i] != ~W(0);
        return there;
    }

    __device__ __forceinline__ void send(T* to) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) words[i] -= words[i] == ~W(0);
        post(to, words);
    }

    // Makes a place as it was before something was sent there.
    __device__ __forceinline__ static void clear(T* at) {
        W none[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; i++) none[i] = ~W(0);
        post(at, none);
    }
};

// The first n of a pack, as `store`, but that the compiler does not store elements of whole ones together with those of the
// other branch, one by one.
template <class T, int LENGTH>
__device__ __forceinline__ void write(T* address, const Pack<T, LENGTH>& pack, integer n) {
    if constexpr (sizeof(pack) > sizeof(typename Word<T>::type))
        if (n >= LENGTH && is_aligned<T, LENGTH>(address)) return post(address, Post<T, LENGTH>(pack).words);
    store(address, pack, n);
}

// ---- waiting

// Sets a flag without a word on what this thread has written.
__device__ __forceinline__ void announce(word* flag, word value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// Whether done() came true before the deadline and before the abort word was set; `rank` is waited for. With more patience
// others give up first, who know better for whom they wait.
template <class Done>
__device__ __forceinline__ bool until(const Watch& watch, int rank, Done done, int patience = 1) {
    const time_ns start = now();
    for (word polls = 1; !done(); polls++) {
        if (polls % 16) continue;
        if (watch.abort && acquire(watch.abort)) return watch.give_up(ABORTED, rank), false;
        if (elapsed(start) / patience > static_cast<integer>(watch.timeout)) return watch.give_up(LATE, rank), false;
    }
    return true;
}

#endif
