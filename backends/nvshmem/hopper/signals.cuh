// Tells that parts are stored; one thread. Stores are over when the threads that began them have waited for that; they count
// so here, each consumer apart: one may be as many steps ahead as there are stages, tiles of a short K. The last CTA of a part
// sets the signal.
struct Clerk {
    const HopperArguments& arguments;
    Memory memory;

    __device__ __forceinline__ void run() const {
        Walker walker{arguments};
        word confirmed = 0;
        for (Tile tile; walker.take(tile);) {
            const Part& part = arguments.parts[tile.part];
            if (!part.tiles) continue;
            confirmed += WARPS / CONSUMERS;
            const time_ns start = now();
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                while (keeps(consumer) && load_counter(memory.stored(consumer)) < confirmed) {
                    __nanosleep(200);
                    memory.check_patience(start);
                }
            word* const counter = arguments.counters + 1 + tile.part;
            if (count_at(counter) != part.tiles - 1) continue;
            *counter = 0;
            __threadfence_system();
            if (part.signal) tell(part.signal);
            for (integer i = part.places; PLACES && i < part.end; i++)
                if (arguments.told[i]) tell(arguments.told[i]);
        }
    }
};
