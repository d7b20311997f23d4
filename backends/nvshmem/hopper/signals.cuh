// Sets the signals of parts; one thread. A TMA store is complete when the thread that issued it has waited for its bulk
// group; then the thread's warp counts here, in a counter of its consumer. Each consumer needs its own counter: with a
// short K one consumer may be several tiles ahead of the other, up to the number of stages. The last CTA of a part sets
// the part's signals.
struct SignalThread {
    const HopperArguments& arguments;
    SharedMemory smem;

    __device__ __forceinline__ void run() const {
        TileScheduler scheduler{arguments};
        word expected = 0;
        for (Tile tile; scheduler.next(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!part.tiles) continue;
            expected += WARPS / CONSUMERS;
            const time_ns start = now();
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                while (stores_rows_of(consumer) && load_acquire(smem.stored_count(consumer)) < expected) {
                    __nanosleep(200);
                    smem.check_timeout(start);
                }
            word* const counter = arguments.counters + 1 + tile.part;
            if (fetch_add(counter) != part.tiles - 1) continue;
            *counter = 0;
            __threadfence_system();
            if (part.signal) set_signal(part.signal);
            for (integer i = part.places; PLACES && i < part.places_end; i++)
                if (arguments.place_signals[i]) set_signal(arguments.place_signals[i]);
        }
    }
};
