// LL packets (the name is NCCL's): data that kernels exchange with peers without flags. And waiting for peers.
#ifndef PBLAS_PACKETS
#define PBLAS_PACKETS
#include "common.cuh"

// Prefetches this address into the L2 cache.
__device__ __forceinline__ void prefetch(const void* address) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// The receiver's memory has all bits set before a packet is sent there: a word with all bits set has not arrived. A
// number with these bits, a NaN, is sent as another NaN. A word is a single access of PTX's memory model, of 32 bits,
// or of 64 for numbers that need them, so no other ordering is needed.
template <class T>
struct PacketWord {
    typedef word type;
};

template <>
struct PacketWord<double> {
    typedef double_word type;
};

template <>
struct PacketWord<complex<double>> {
    typedef double_word type;
};

__device__ __forceinline__ void load_words(const void* at, word (&x)[2]) {
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "l"(at));
}

__device__ __forceinline__ void load_words(const void* at, word (&x)[4]) {
    word &a = x[0], &b = x[1], &c = x[2], &d = x[3];
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(at));
}

__device__ __forceinline__ void load_words(const void* at, double_word (&x)[2]) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x[0]), "=l"(x[1]) : "l"(at));
}

__device__ __forceinline__ void store_words(void* at, const word (&x)[2]) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(x[0]), "r"(x[1]));
}

__device__ __forceinline__ void store_words(void* at, const word (&x)[4]) {
    const word a = x[0], b = x[1], c = x[2], d = x[3];
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(a), "r"(b), "r"(c), "r"(d));
}

__device__ __forceinline__ void store_words(void* at, const double_word (&x)[2]) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(x[0]), "l"(x[1]));
}

template <class T, int LENGTH>
union LLPacket {
    typedef typename PacketWord<T>::type W;
    enum { WORDS = sizeof(T) * LENGTH / sizeof(W) };

    Pack<T, LENGTH> pack;
    W words[WORDS];

    __device__ __forceinline__ LLPacket() {}

    __device__ __forceinline__ LLPacket(const Pack<T, LENGTH>& pack) : pack(pack) {}

    __device__ __forceinline__ bool has_arrived() const {
        bool arrived = true;
#pragma unroll
        for (int i = 0; i < WORDS; i++) arrived = arrived && words[i] != ~W(0);
        return arrived;
    }

    __device__ __forceinline__ void send(T* to) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) words[i] -= words[i] == ~W(0);
        store_words(to, words);
    }

    // Sets all bits again, as before the packet was sent.
    __device__ __forceinline__ static void clear(T* at) {
        W empty[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS; i++) empty[i] = ~W(0);
        store_words(at, empty);
    }
};

// As `store`, but as a volatile access: the compiler must not split it, nor merge it with the element-wise stores of the
// other branch.
template <class T, int LENGTH>
__device__ __forceinline__ void store_vector(T* address, const Pack<T, LENGTH>& pack) {
    if constexpr (sizeof(pack) > sizeof(typename PacketWord<T>::type))
        store_words(address, LLPacket<T, LENGTH>(pack).words);
    else
        store(address, pack);
}

template <class T, int LENGTH>
__device__ __forceinline__ void store_vector(T* address, const Pack<T, LENGTH>& pack, integer n) {
    if constexpr (sizeof(pack) > sizeof(typename PacketWord<T>::type))
        if (n >= LENGTH && is_aligned<T, LENGTH>(address)) return store_vector(address, pack);
    store(address, pack, n);
}

// Sets a flag without ordering it after this thread's writes.
__device__ __forceinline__ void set_relaxed(word* flag, word value) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// Waits for done(), which depends on `rank`. Returns false after the deadline, or once the abort word is set. With a
// timeout_factor above 1 other kernels, which know better which rank is late, give up first.
template <class Done>
__device__ __forceinline__ bool wait_until(const Watch& watch, int rank, Done done, int timeout_factor = 1) {
    const time_ns start = now();
    for (word polls = 1; !done(); polls++) {
        if (polls % 16) continue;
        if (watch.abort && acquire(watch.abort)) return watch.give_up(ABORTED, rank), false;
        if (elapsed(start) / timeout_factor > static_cast<integer>(watch.timeout))
            return watch.give_up(LATE, rank), false;
    }
    return true;
}

#endif
