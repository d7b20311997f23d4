// Barriers in shared memory, boxes that TMA moves and products by wgmma: a name for each instruction. Addresses in shared
// memory are those of its window.

// ---- barriers

__device__ __forceinline__ void initialise(word barrier, word arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ bool has_passed(word barrier, word parity) {
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

__device__ __forceinline__ void arrive_expecting(word barrier, word nbytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(nbytes) : "memory");
}

__device__ __forceinline__ void arrive(word barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// At the barrier with the same address in a CTA of this cluster. What was read has been read: by wgmma, whose end was awaited,
// or into registers. The form with .release.cluster would order all memory of the GPU here, 0.5 us in every step (H200).
__device__ __forceinline__ void arrive_at(word barrier, word cta) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(cta)
        : "memory");
}

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Of a place in shared memory, in a CTA of this cluster.
__device__ __forceinline__ word address_at(word address, word cta) {
    word there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
    return there;
}

// To another CTA, whose barrier counts the bytes that have come.
__device__ __forceinline__ void give_floats(word there, word barrier, float a, float b, float c, float d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
                 "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void load_floats(float (&x)[4], word address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "r"(address)
                 : "memory");
}

// As a trap, but not the end of a path.
__device__ __forceinline__ void end_in_error() { asm volatile("st.volatile.global.u32 [%0], 0;" ::"l"(0ull) : "memory"); }

__device__ __forceinline__ word cta_of_cluster() {
    word rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// ---- counters

// In shared memory: of what other threads have done.
__device__ __forceinline__ word load_counter(word counter) {
    word value;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(value) : "r"(counter) : "memory");
    return value;
}

__device__ __forceinline__ void count(word counter) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(counter) : "memory");
}

// In memory of this GPU; how many there were before.
__device__ __forceinline__ word count_at(word* counter) {
    word before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// Perhaps a peer's, behind a fence.
__device__ __forceinline__ void tell(word* told) {
    asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(told) : "memory");
}

// ---- boxes

__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ __forceinline__ void load_box(word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier)
        : "memory");
}

// To the same place in all CTAs of the cluster; each one's barrier counts what arrives there.
__device__ __forceinline__ void load_box_for_all(word target, const TensorMap& map, int inner, int outer, word barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
        "l"(&map), "r"(inner), "r"(outer), "r"(barrier), "h"(static_cast<half_word>((1 << CLUSTER) - 1))
        : "memory");
}

__device__ __forceinline__ void store_box(const TensorMap& map, int inner, int outer, word source) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
        "r"(inner), "r"(outer), "r"(source)
        : "memory");
}

// Those since the last call are a group.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all but the last `pending` groups of boxes have been read from shared memory.
template <int PENDING>
__device__ __forceinline__ void await_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Until they are stored.
__device__ __forceinline__ void await_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// What this thread has written to shared memory by ordinary stores is there for TMA.
__device__ __forceinline__ void publish_to_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- products

// Where wgmma finds boxes that lie one behind the other. Within a box 8 lines of 128 bytes follow each other at once;
// lines along K leave nothing more to say, lines along M or N go on in the next box. Above its 18 bits an address says
// which CTA of the cluster it belongs to.
template <bool ALONG_K>
__device__ __forceinline__ time_ns descriptor(word address) {
    const time_ns next_box = ALONG_K ? 1 : BOX_NBYTES >> 4, next_lines = 8 * 128 >> 4, swizzle_128 = 1;
    return (address & 0x3FFFF) >> 4 | next_box << 16 | next_lines << 32 | swizzle_128 << 62;
}

// From 16 elements along K to the next 16, in the unit of descriptors.
template <bool ALONG_K>
constexpr int NEXT_16 = (ALONG_K ? 16 * 2 : 16 * 128) >> 4;

#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_1 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_2 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_3 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define R8(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define R32(C, i) R8(C, i), R8(C, i + 8), R8(C, i + 16), R8(C, i + 24)
#define R64(C) R32(C, 0), R32(C, 32)
#define R96(C) R64(C), R32(C, 64)
#define R128(C) R96(C), R32(C, 96)

// d = or += the product of 64 x 16 elements at `a` and 16 x COLUMNS elements at `b`. The first product of a tile has d as a
// result only: were it read, if only to be ignored, the sums of all widths would be alive all the time.
#define MULTIPLY(FUNCTION, C, KEEP, COLUMNS, NAMES, REGISTERS, A, B)                                                   \
    __device__ __forceinline__ void FUNCTION(float(&d)[COLUMNS / 2], time_ns a, time_ns b) {                           \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " KEEP ", 0;\n"                                           \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32." TYPE "." TYPE " {" NAMES "}, " A ", " B   \
                     ", keep, 1, 1, " TEXT_OF(A_ALONG_M) ", " TEXT_OF(B_ALONG_N) ";\n}"                                \
                     : REGISTERS(C)                                                                                    \
                     : "l"(a), "l"(b));                                                                                \
    }
#define MULTIPLY_BOTH(...)                        \
    MULTIPLY(begin_product, "=f", "0", __VA_ARGS__) \
    MULTIPLY(add_product, "+f", "1", __VA_ARGS__)

#define R32_ONLY(C) R32(C, 0)
MULTIPLY_BOTH(64, NAMES_0, R32_ONLY, "%32", "%33")
MULTIPLY_BOTH(128, NAMES_0 ", " NAMES_1, R64, "%64", "%65")
MULTIPLY_BOTH(192, NAMES_0 ", " NAMES_1 ", " NAMES_2, R96, "%96", "%97")
MULTIPLY_BOTH(256, NAMES_0 ", " NAMES_1 ", " NAMES_2 ", " NAMES_3, R128, "%128", "%129")

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// ---- sums, as wgmma spreads them over the registers of a warp

__device__ __forceinline__ word packed(float low, float high) {
    word pair;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void load_fragments(word (&x)[4], word address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_fragments(word address, const word (&x)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
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
