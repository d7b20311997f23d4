// The clusters that move what lies in memory while the others multiply: parts to the ranks that add them, sums from there.
//
// They run errands, in the order of a list: one may wait for a word, copy lines, and set a word behind them, perhaps a peer's.
// In each CTA one thread waits for words, ahead of those that copy; another one counts what these have copied, and sets words.
// Of what is copied each copying thread takes every so-manieth chunk: TMA loads it into a ring of buffers, from which TMA stores
// it. It loads ahead, of the next errands too as far as they need not wait.

constexpr word CHUNK_NBYTES = 16384, HANDS = 2, BUFFERS = 7, AHEAD = 5;  // of a CTA: copying threads; of each: buffers, loads
static_assert(!ERRANDS || HANDS * BUFFERS * CHUNK_NBYTES <= BARRIERS_AT, "the barriers lie behind the buffers");
static_assert(8 * (2 * STAGES + 2 * WARPS + 2 + CONSUMERS + HANDS * BUFFERS) <= MOST_BARRIERS_NBYTES && HANDS <= CONSUMERS);
constexpr word STORING = 4;  // stores of a thread that may not be over yet when it looks how many are

// The list, as a CTA sees it.
struct Errands {
    const Moving& moving;
    word ctas;

    __device__ __forceinline__ explicit Errands(const HopperArguments& arguments)
        : moving(arguments.moving), ctas(CLUSTER * static_cast<word>(arguments.senders)) {}

    __device__ __forceinline__ word count() const { return static_cast<word>(moving.count); }
    __device__ __forceinline__ word width(word i) const { return static_cast<word>(moving.errands[i].size); }
    __device__ __forceinline__ word chunks_of_line(word i) const { return (width(i) + CHUNK_NBYTES - 1) / CHUNK_NBYTES; }
    __device__ __forceinline__ word chunks(word i) const {
        return static_cast<word>(moving.errands[i].size >> 32) * chunks_of_line(i);
    }
    __device__ __forceinline__ static word worker(word hand) { return blockIdx.x * HANDS + hand; }
    __device__ __forceinline__ word workers() const { return ctas * HANDS; }

    // Chunks that a thread of this CTA takes.
    __device__ __forceinline__ word share(word i, word hand) const {
        const word all = chunks(i), first = worker(hand);
        return all > first ? (all - 1 - first) / workers() + 1 : 0;
    }
};

// Waits for words, one after the other, and counts those that it has seen; one thread.
struct Lookout {
    const HopperArguments& arguments;
    Memory memory;

    __device__ __forceinline__ void run() const {
        bool late = false;  // nothing is waited for any more, and D has no meaning
        for (integer i = 0; i < arguments.moving.count; i++) {
            const Errand& errand = arguments.moving.errands[i];
            Watch watch = arguments.watch;
            watch.timeout *= 2;  // the tiles may give up first, and know for whom
            watch.step = errand.who >> 32;
            const int source = static_cast<int>(errand.who & ~0u);
            late = late || (errand.awaited && !watch.wait(errand.awaited, source, [](word value) { return value == 1; }));
            count(memory.seen());
        }
    }
};

// Copies; some threads.
struct Mover {
    const HopperArguments& arguments;
    Memory memory;
    word hand;
    Errands errands{arguments};
    word count = errands.count(), worker = errands.worker(hand), workers = errands.workers();
    word loaded = 0, stored = 0, published = 0, seen = 0;

    // A chunk of an errand.
    struct Place {
        word errand, chunk, chunks, of_line, width;
        byte* begin;  // of the lines
        integer pitch;
    };

    __device__ __forceinline__ void run() {
        for (word i = 0; i < BUFFERS; i++) initialise(full(i), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        Place next, behind;
        find<true>(next, 0);
        find<false>(behind, 0);
        while (behind.errand < count) {
            while (loaded - stored < AHEAD && next.errand < count && is_there(next.errand)) load(next);
            if (loaded > stored) {
                store(behind);
                await_stores<STORING>();
                if (stored > STORING) publish(stored - STORING);
            } else {
                await_stores();
                publish(stored);
            }
        }
        await_stores();
        publish(stored);
    }

    __device__ __forceinline__ word buffer(word i) const { return memory.begin + (hand * BUFFERS + i) * CHUNK_NBYTES; }
    __device__ __forceinline__ word full(word i) const { return memory.held_full(hand * BUFFERS + i); }

    // The beginning of this thread's part of an errand, or of the next one of which it has a part.
    template <bool FROM>
    __device__ __forceinline__ void find(Place& place, word i) const {
        while (i < count && worker >= errands.chunks(i)) i++;
        place.errand = i;
        place.chunk = worker;
        if (i == count) return;
        const Errand& errand = errands.moving.errands[i];
        const integer pitch = FROM ? errands.moving.from_pitch : errands.moving.to_pitch;
        place.chunks = errands.chunks(i);
        place.of_line = errands.chunks_of_line(i);
        place.width = errands.width(i);
        place.begin = FROM ? const_cast<byte*>(errand.from) : errand.to;
        place.pitch = pitch ? pitch : place.width;
    }

    // Where a chunk lies, and its bytes; the next one of this thread.
    template <bool FROM>
    __device__ __forceinline__ byte* take(Place& place, word& nbytes) const {
        const word line = place.of_line == place.chunks ? 0 : place.chunk / place.of_line;
        const word begin = (place.chunk - line * place.of_line) * CHUNK_NBYTES;
        nbytes = min(place.width - begin, CHUNK_NBYTES);
        byte* const found = place.begin + line * place.pitch + begin;
        place.chunk += workers;
        if (place.chunk >= place.chunks) find<FROM>(place, place.errand + 1);
        return found;
    }

    // Whether what an errand waits for has been seen; it may be read by TMA then, too.
    __device__ __forceinline__ bool is_there(word i) {
        if (i < seen) return true;
        seen = load_counter(memory.seen());
        if (i >= seen) return false;
        asm volatile("fence.proxy.async;" ::: "memory");
        return true;
    }

    // So many chunks of this thread are where they belong.
    __device__ __forceinline__ void publish(word chunks) {
        if (chunks <= published) return;
        published = chunks;
        asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(memory.stored(hand)), "r"(chunks) : "memory");
    }

    __device__ __forceinline__ void load(Place& place) {
        word nbytes;
        const byte* const from = take<true>(place, nbytes);
        const word i = loaded++ % BUFFERS;
        arrive_expecting(full(i), nbytes);
        load_bytes(buffer(i), from, nbytes, full(i));
    }

    __device__ __forceinline__ void store(Place& place) {
        word nbytes;
        byte* const to = take<false>(place, nbytes);
        const word i = stored % BUFFERS;
        memory.await(full(i), stored / BUFFERS % 2);
        store_bytes(to, buffer(i), nbytes);
        commit_stores();
        await_reads<BUFFERS - AHEAD>();
        stored++;
    }
};

// Sets the words of errands that are done; one thread. The last CTA that has a part of what is copied sets it, and one of all
// where nothing is.
struct Herald {
    const HopperArguments& arguments;
    Memory memory;

    __device__ __forceinline__ void run() const {
        const Errands errands(arguments);
        word ends[HANDS] = {};  // chunks of each copying thread up to the end of an errand
        for (word i = 0; i < errands.count(); i++) {
            const word chunks = errands.chunks(i), sharing = min(errands.ctas, (chunks + HANDS - 1) / HANDS);
#pragma unroll
            for (word hand = 0; hand < HANDS; hand++) ends[hand] += errands.share(i, hand);
            word* const told = errands.moving.errands[i].told;
            if (!told || (chunks ? blockIdx.x >= sharing : i % errands.ctas != blockIdx.x)) continue;
            if (chunks) {
#pragma unroll
                for (word hand = 0; hand < HANDS; hand++) await(memory.stored(hand), ends[hand]);
                if (count_at(errands.moving.counters + i) != sharing - 1) continue;
            } else {
                await(memory.seen(), i + 1);
            }
            __threadfence_system();
            tell(told);
        }
    }

    // Others count there, and end.
    __device__ __forceinline__ static void await(word counter, word value) {
        while (load_counter(counter) < value) __nanosleep(100);
    }
};
