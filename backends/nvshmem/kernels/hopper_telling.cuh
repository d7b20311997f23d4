// The threads whose work peers wait for: those that send an operand, and the one that tells what is stored.

// Stores this rank's operand at the peers, slice after slice, and tells them of each; a thread of each of some warps. A box is
// loaded once, while the one before is on its way. Few boxes are under way at a time, so that slices arrive in order.
struct Sender {
    const HopperArguments& arguments;
    Memory memory;
    int warp;
    const Sending& sending = arguments.sending;
    int boxes = sending.boxes_along * sending.boxes_across, count = arguments.slices * boxes;  // of a slice, and of all
    int ctas = CLUSTER * arguments.senders;

    __device__ __forceinline__ void run() const {
        for (int i = 0; i < 2; i++) initialise(full(i), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        load(0);
        for (int i = 0; box(i) < count; i++) {
            load(i + 1);
            memory.await(full(i), i / 2 % 2);
            int inner, outer;
            find(box(i), inner, outer);
            for (int peer = 0; peer < sending.peers; peer++)
                store_box(arguments.peers[peer].target, inner, outer, held(i));
            commit_stores();
            await_stores();
            tell(box(i) / boxes);
        }
    }

    // The number of this warp's i-th box.
    __device__ __forceinline__ int box(int i) const { return blockIdx.x + (warp + i * SENDING_WARPS) * ctas; }
    __device__ __forceinline__ word held(int i) const { return memory.held(2 * warp + i % 2); }
    __device__ __forceinline__ word full(int i) const { return memory.held_full(2 * warp + i % 2); }

    // Of a box, in the matrix that is sent.
    __device__ __forceinline__ void find(int box, int& inner, int& outer) const {
        const int across = static_cast<int>(sending.boxes_across), j = box % across, k = box / across;
        inner = (sending.lines_along_k ? k : j) * SENT_LENGTH;
        outer = (sending.lines_along_k ? j : k) * SENT_LINES;
    }

    __device__ __forceinline__ void load(int i) const {
        if (box(i) >= count) return;
        int inner, outer;
        find(box(i), inner, outer);
        arrive_expecting(full(i), SENT_NBYTES);
        load_box(held(i), sending.source, inner, outer, full(i));
    }

    // A box of this slice is there; who brings the last one sets the flags.
    __device__ __forceinline__ void tell(int slice) const {
        word* const counter = sending.counters + slice;
        if (count_at(counter) != boxes - 1) return;
        *counter = 0;
        __threadfence_system();  // for all peers
        for (int peer = 0; peer < sending.peers; peer++) ::tell(arguments.peers[peer].flag + slice * arguments.flag_pitch);
    }
};

// Tells that parts are stored; one thread. Stores are over when the threads that began them have waited for that; they count
// so here, each consumer apart: one may be as many steps ahead as there are stages, tiles of a short K. The last CTA of a part
// sets the signal.
struct Clerk {
    const HopperArguments& arguments;
    Memory memory;

    __device__ __forceinline__ void run() const {
        Walker walker{arguments};
        word confirmed = 0;
        for (Task task; walker.take(task);) {
            const int index = task.of[0].part;
            const Part& part = arguments.parts[index];
            if (!part.tiles) continue;
            confirmed += WARPS / CONSUMERS;
            const time_ns start = now();
            for (int consumer = 0; consumer < CONSUMERS; consumer++)
                while (keeps(consumer) && load_counter(memory.stored(consumer)) < confirmed) {
                    __nanosleep(200);
                    memory.check_patience(start);
                }
            word* const counter = arguments.counters + 1 + index;
            if (count_at(counter) != part.tiles - 1) continue;
            *counter = 0;
            __threadfence_system();
            if (part.signal) tell(part.signal);
            for (integer i = part.places; PLACES && i < part.end; i++)
                if (arguments.told[i]) tell(arguments.told[i]);
        }
    }
};
