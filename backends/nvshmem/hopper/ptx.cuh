// PTX instructions as functions: mbarriers, TMA, wgmma. Addresses in shared memory are of the shared window.

// Barriers.

__device__ __forceinline__ void mbarrier_init(word barrier, word arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(word barrier, word parity) {
    word passed;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(passed)
        : "r"(barrier), "r"(parity)
        : "memory");
    return passed;
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(word barrier, word nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(nbytes) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(word barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier of the same address in a CTA of this cluster. The reads before it are complete, since they
// were wgmmas that were awaited or loads into registers, so it needs no release. With .release.cluster it would order
// all global memory accesses too: 0.5 us in every step (H200).
__device__ __forceinline__ void mbarrier_arrive_remote(word barrier, word cta) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(cta)
        : "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Maps an address of this CTA's shared memory to that of a CTA of this cluster.
__device__ __forceinline__ word address_in_cta(word address, word cta) {
    word remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(cta));
    return remote;
}

// Stores into another CTA's shared memory; its mbarrier counts the bytes that have arrived.
__device__ __forceinline__ void store_async(word remote, word barrier, float a, float b, float c, float d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(remote), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void load_shared(float (&x)[4], word address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
}

// Ends the kernel with an error by a store to address 0. A trap would end the control flow path, which costs spills
// (gemm.cu).
__device__ __forceinline__ void fail() { asm volatile("st.volatile.global.u32 [%0], 0;" ::"l"(0ull) : "memory"); }

__device__ __forceinline__ word cta_rank() {
    word rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Counters.

// Loads a counter in shared memory. Earlier writes of the threads that incremented it are visible afterwards.
__device__ __forceinline__ word load_acquire(word counter) {
    word value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(counter) : "memory");
    return value;
}

__device__ __forceinline__ void increment(word counter) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(counter) : "memory");
}

// Increments a counter in this GPU's memory and returns its value before.
__device__ __forceinline__ word fetch_add(word* counter) {
    word previous;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(previous) : "l"(counter) : "memory");
    return previous;
}

// Sets a signal, perhaps in a peer's memory; the caller has fenced the stores before.
__device__ __forceinline__ void set_signal(word* signal) {
    asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(signal) : "memory");
}

// TMA.

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void tma_load(word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// Loads a box to the same address in all CTAs of the cluster; the mbarrier of each CTA counts the bytes that arrive
// there.
__device__ __forceinline__ void tma_load_multicast(
    word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier), "h"(static_cast<half_word>((1 << CLUSTER) - 1))
        : "memory");
}

__device__ __forceinline__ void tma_store(const TensorMap& map, int inner, int outer, word source) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(inner), "r"(outer), "r"(source)
        : "memory");
}

// Makes the stores since the last call a group.
__device__ __forceinline__ void tma_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until TMA has read all but the last PENDING groups from shared memory.
template <int PENDING>
__device__ __forceinline__ void tma_wait_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until all stores of this thread are complete.
__device__ __forceinline__ void tma_wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Makes this thread's ordinary stores to shared memory visible to TMA.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products.

// The matrix descriptor of consecutive boxes in shared memory. The stride byte offset is from 8 rows of 128 bytes to
// the next 8. The leading byte offset matters along M or N only, where rows continue in the next box. The lower 18 bits
// of an address are those in the CTA; the others name the CTA of the cluster.
template <bool ALONG_K>
__device__ __forceinline__ double_word matrix_descriptor(word address) {
    const double_word leading_offset = ALONG_K ? 1 : BOX_NBYTES >> 4, stride_offset = 8 * 128 >> 4, swizzle_128 = 1;
    return (address & 0x3FFFF) >> 4 | leading_offset << 16 | stride_offset << 32 | swizzle_128 << 62;
}

// Offset of the next 16 elements along K, in the unit of descriptors, 16 bytes.
template <bool ALONG_K>
constexpr int NEXT_16 = (ALONG_K ? 16 * 2 : 16 * 128) >> 4;

#define STRING(x) #x
#define STRING_OF(x) STRING(x)
#define REGS_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGS_1 \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGS_2 \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define REGS_3 \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define R8(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define R32(C, i) R8(C, i), R8(C, i + 8), R8(C, i + 16), R8(C, i + 24)
#define R64(C) R32(C, 0), R32(C, 32)
#define R96(C) R64(C), R32(C, 64)
#define R128(C) R96(C), R32(C, 96)

// d = or += the product of 64 x 16 elements at `a` and 16 x COLUMNS elements at `b`. In the first product of a tile d
// is an output only ("=f"): as an input, even one that is ignored, it would keep the accumulators of all tile widths
// alive.
#define WGMMA(FUNCTION, C, ACCUMULATE, COLUMNS, REGS, REGISTERS, A, B)                                              \
    __device__ __forceinline__ void FUNCTION(float(&d)[COLUMNS / 2], double_word a, double_word b) {                \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " ACCUMULATE ", 0;\n"                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" REGS "}, " A ", " B \
                     ", keep, 1, 1, " STRING_OF(A_ALONG_M) ", " STRING_OF(B_ALONG_N) ";\n}"                         \
                     : REGISTERS(C)                                                                                 \
                     : "l"(a), "l"(b));                                                                             \
    }
#define WGMMA_OF_WIDTH(...)                    \
    WGMMA(wgmma_first, "=f", "0", __VA_ARGS__) \
    WGMMA(wgmma_accumulate, "+f", "1", __VA_ARGS__)

#define R32_ONLY(C) R32(C, 0)
WGMMA_OF_WIDTH(64, REGS_0, R32_ONLY, "%32", "%33")
WGMMA_OF_WIDTH(128, REGS_0 ", " REGS_1, R64, "%64", "%65")
WGMMA_OF_WIDTH(192, REGS_0 ", " REGS_1 ", " REGS_2, R96, "%96", "%97")
WGMMA_OF_WIDTH(256, REGS_0 ", " REGS_1 ", " REGS_2 ", " REGS_3, R128, "%128", "%129")

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Fragments: matrices as wgmma distributes them over the registers of a warp.

__device__ __forceinline__ word pack_pair(float low, float high) {
    word pair;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void ldmatrix(word (&x)[4], word address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void stmatrix(word address, const word (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// Stores the transposes.
__device__ __forceinline__ void stmatrix_transposed(word address, const word (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                 "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

// A pair of 16-bit elements as float32.
__device__ __forceinline__ void widen_pair(word pair, float& low, float& high) {
    if (TYPE[0] == 'b') {
        low = __uint_as_float(pair << 16);
        high = __uint_as_float(pair & 0xFFFF0000u);
    } else {
        low = widen(float16{static_cast<half_word>(pair)});
        high = widen(float16{static_cast<half_word>(pair >> 16)});
    }
}
