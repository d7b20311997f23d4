"""A model of the Hopper kernel's ring of stages: two CTAs that load for each other, in random orders.

Threads are generators that yield the condition for which they wait. A loaded box arrives at any later time, at each CTA
at its own time. The model knows the right content and the readers of each box. It finds boxes that are overwritten or
read too early, stages that are never released, and loads before the flag is set. It finds each mutant of the protocol.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Mutant = str
MUTANTS: tuple[Mutant, ...] = ("own empty", "own bytes", "early release", "parity", "no empty", "next stage")

CTAS = CONSUMERS = A_BOXES = 2
B_BOXES = 4
CONFIRM_AFTER, KEPT = 4, 3


def always() -> bool:
    return True


class ProtocolError(Exception):
    """The protocol is violated."""


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all announced boxes have come.

    Args:
        arrivals: of a phase.
    """

    def __init__(self, arrivals: int) -> None:
        self._arrivals = self._pending = arrivals
        self._boxes = 0  # announced and not yet arrived; negative while the other CTA's are early
        self._parity = 0  # of the current phase

    def arrive(self, boxes: int = 0) -> None:
        self._pending -= 1
        self._boxes += boxes
        if self._pending < 0:
            raise ProtocolError("more arrivals than a phase has")
        self._end()

    def receive(self) -> None:
        self._boxes -= 1
        self._end()

    def is_over(self, parity: int) -> bool:
        return self._parity != parity

    def _end(self) -> None:
        if self._pending == self._boxes == 0:
            self._pending, self._parity = self._arrivals, 1 - self._parity


class Flags:
    """Flags of A's tiles, which peers set at any time, and the threads that watch them.

    Args:
        count: tiles.
        seed: of all choices.
        mutant: the error of the protocol; None: none.
        lost: whether one of the flags never comes.
    """

    def __init__(self, count: int, seed: int, mutant: Mutant | None = None, *, lost: bool = False) -> None:
        self._count, self._mutant = count, mutant
        chance = random.Random(seed)
        self._coming = [tile for tile in range(count) if chance.random() < 0.7]  # the others' flags are set
        chance.shuffle(self._coming)
        self._lost = self._coming.pop() if lost and self._coming else None
        self._missing = {*self._coming, self._lost}
        self._seen, self._gave_up = [0] * CTAS, [False] * CTAS  # flags that each has seen, or given up

    def threads(self) -> list[Iterator[Callable[[], bool]]]:
        """The flag watchers of both CTAs, and all peers."""
        return [*map(self._flag_watcher, range(CTAS)), *map(self._peer, self._coming)]

    def _peer(self, tile: int) -> Iterator[Callable[[], bool]]:
        yield always
        self._missing.remove(tile)

    def _flag_watcher(self, cta: int) -> Iterator[Callable[[], bool]]:
        """Wait for the flags of a CTA's tiles, one after the other.

        After a timeout it waits for no other flag: the result is meaningless then, but all threads must end.
        """
        for tile in range(self._count):
            self._seen[cta] += self._mutant == "seen early"
            yield partial(self._is_over, cta, tile)
            self._gave_up[cta] |= tile == self._lost
            if self._gave_up[cta] and self._mutant == "stops":
                return
            self._seen[cta] += self._mutant != "seen early"

    def _is_over(self, cta: int, tile: int) -> bool:
        """Whether the watcher stops waiting for a flag; the lost one may time out at any time."""
        return tile not in self._missing or tile == self._lost or self._gave_up[cta]

    def are_seen(self, cta: int, tile: int) -> bool:
        """Whether a CTA may load boxes of a tile."""
        return self._mutant == "no flag" or self._seen[cta] > tile

    def load(self, cta: int, tile: int) -> None:
        """Check the load of a box."""
        if not self._gave_up[cta] and tile in self._missing:
            raise ProtocolError("a box is loaded before its flag is set")


class Cluster:
    """Two CTAs with their rings, and the boxes under way to them.

    Args:
        stages: of a ring.
        tiles: number of B's boxes, and steps along K, of each.
        seed: of all choices.
        mutant: the error of the protocol; None: none.
        pieces: of terms that are added to the last tile; a peer sends them after the signal of the tile before.
        late: number of stages after the last tile through which late terms come instead.
        confirm_after: steps of a tile after which the previous tile is confirmed, plus KEPT with deferred stripes.
        flags: flags of A; None: A is complete from the start.
    """

    def __init__(
        self,
        stages: int,
        tiles: list[tuple[int, int]],
        seed: int,
        mutant: Mutant | None = None,
        pieces: int = 0,
        late: int = 0,
        confirm_after: int = CONFIRM_AFTER,
        flags: Flags | None = None,
    ) -> None:
        self._flags = flags
        self._stages, self._tiles, self._mutant, self._pieces, self._late = stages, tiles, mutant, pieces, late
        self._confirm_after = confirm_after
        self._confirmed: set[tuple[int, int, int]] = set()  # CTA, consumer and tile of completed stores
        self._counts = [[0] * CONSUMERS for _ in range(CTAS)]  # confirmations of each consumer
        self._keep = [[*range(CONSUMERS)] for _ in range(CTAS)]  # consumers whose rows each CTA stores
        self._signalled = [0] * len(tiles)  # signal threads that have seen their tile stored
        self._random = random.Random(seed)
        self._full = [[Barrier(1) for _ in range(stages)] for _ in range(CTAS)]
        releases = CONSUMERS if mutant == "own empty" else CONSUMERS * CTAS
        self._empty = [[Barrier(releases) for _ in range(stages)] for _ in range(CTAS)]
        self._boxes: dict[tuple[int, int, str], Any] = {}  # content of a box: the tile and the step
        self._readers: dict[tuple[int, int, str], int] = {}
        self._arriving: list[Callable[[], None]] = []
        self._multiplied = 0

    def run(self) -> int:
        """Steps that consumers have multiplied, when all threads have ended."""
        threads = [*map(self._producer, range(CTAS)), *map(self._signal_thread, range(CTAS))]
        threads += [self._consumer(cta, consumer) for cta in range(CTAS) for consumer in range(CONSUMERS)]
        threads += self._flags.threads() if self._flags else []
        waits, slow = {thread: next(thread) for thread in threads}, self._random.choice([None, *threads])
        while waits:
            ready: list[Any] = [thread for thread, may_go in waits.items() if may_go()] + self._arriving
            if not ready:
                raise ProtocolError("deadlock")
            chosen = self._random.choice([thread for thread in ready if thread is not slow] or ready)
            if chosen in waits:
                try:
                    waits[chosen] = next(chosen)
                except StopIteration:
                    del waits[chosen]
            else:
                self._arriving.remove(chosen)
                chosen()
        if self._arriving:
            raise ProtocolError("boxes arrive after the end of the kernel")
        return self._multiplied

    def _places(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Tile, B's boxes, step along K (after the last step: late terms), stage and phase, one after the other."""
        count = 0
        for tile, (boxes, steps) in enumerate(self._tiles):
            for k in range(steps + (self._late if tile == len(self._tiles) - 1 else 0)):
                yield tile, boxes if k < steps else 0, k, count % self._stages, count // self._stages % 2
                count += 1

    def _producer(self, cta: int) -> Iterator[Callable[[], bool]]:
        for tile, boxes, k, stage, phase in self._places():
            parity = phase if self._mutant == "parity" else 1 - phase
            empty = self._empty[cta][stage]
            if k >= self._tiles[tile][1]:
                yield partial(self._is_signalled, tile - 1)
            if self._flags:
                yield partial(self._flags.are_seen, cta, tile)
            yield always if self._mutant == "no empty" else partial(empty.is_over, parity)
            own_boxes = [box for box in range(boxes) if box % CTAS == cta]
            self._full[cta][stage].arrive(A_BOXES + (len(own_boxes) if self._mutant == "own bytes" else boxes))
            for box in range(A_BOXES):
                self._load(cta, stage, box, tile, k)
            for box in own_boxes:
                for target in range(CTAS):
                    self._send(target, stage, f"B{box}", (tile, k))

    def _load(self, cta: int, stage: int, box: int, tile: int, k: int) -> None:
        """A box of A."""
        if self._flags:
            self._flags.load(cta, tile)
        self._send(cta, stage, f"A{box}", (tile, k))

    def _send(self, cta: int, stage: int, box: str, content: tuple[int, int]) -> None:
        def arrive() -> None:
            if self._readers.get((cta, stage, box)):
                raise ProtocolError(f"{box} is overwritten while it is read")
            self._boxes[cta, stage, box] = content
            self._full[cta][stage].receive()

        self._arriving.append(arrive)

    def _consumer(self, cta: int, consumer: int) -> Iterator[Callable[[], bool]]:
        last: tuple[int, list[str]] | None = None
        steps, is_late, slow = self._tiles[-1][1], False, self._mutant == "late confirmation"
        turns = {max(1, (2 * i + 2 + consumer) * steps // (2 * self._pieces + 2)) for i in range(self._pieces)}
        for tile, boxes, k, stage, phase in self._places():
            is_last = tile == len(self._tiles) - 1
            is_sum = self._pieces > 0 and is_last
            if k == self._confirm_after + (1 if is_sum else KEPT) and not slow:
                yield always
                self._confirm(cta, consumer, tile - 1)
            if is_sum and k in turns:
                if last:
                    yield always
                    self._end(cta, *last)
                    last = None
                self._confirm(cta, consumer, tile - 1)
                yield partial(self._is_signalled, tile - 1)
            full = self._full[cta][(stage + 1) % self._stages if self._mutant == "next stage" else stage]
            yield partial(full.is_over, phase)
            is_late = k >= steps and is_last
            needed = [f"A{consumer}", *(f"B{box}" for box in range(boxes))]
            for box in needed:
                if self._boxes.get((cta, stage, box)) != (tile, k):
                    raise ProtocolError(f"{box} holds something else")
                self._read(cta, stage, box, 1)
            self._multiplied += not is_late
            if self._mutant == "early release":
                self._release(cta, stage)
            yield always  # the products of two steps are under way
            if last:
                self._end(cta, *last)
            last = stage, needed
            if is_late or k == self._tiles[tile][1] - 1:  # the tile's last products are awaited
                yield always
                self._end(cta, *last)
                last = None
            if k == self._tiles[tile][1] - 1 and not (slow and self._late and is_last):
                yield always
                self._confirm(cta, consumer, tile - 1)
        self._confirm(cta, consumer, len(self._tiles) - 1)

    def _confirm(self, cta: int, consumer: int, tile: int) -> None:
        """Confirm that this consumer's stores of a tile are complete, unless it has done so before."""
        if tile >= 0 and (cta, consumer, tile) not in self._confirmed:
            self._confirmed.add((cta, consumer, tile))
            self._counts[cta][consumer] += 1

    def _signal_thread(self, cta: int) -> Iterator[Callable[[], bool]]:
        for tile in range(len(self._tiles)):
            yield partial(self._are_counted, cta, tile + 1)
            if any((cta, consumer, tile) not in self._confirmed for consumer in self._keep[cta]):
                raise ProtocolError("a tile is signalled that is not stored")
            self._signalled[tile] += 1

    def _are_counted(self, cta: int, tiles: int) -> bool:
        counts = [self._counts[cta][consumer] for consumer in self._keep[cta]]
        return sum(counts) >= tiles * len(counts) if self._mutant == "one count" else min(counts) >= tiles

    def _is_signalled(self, tile: int) -> bool:
        return self._signalled[tile] == CTAS

    def _end(self, cta: int, stage: int, boxes: list[str]) -> None:
        for box in boxes:
            self._read(cta, stage, box, -1)
        if self._mutant != "early release":
            self._release(cta, stage)

    def _read(self, cta: int, stage: int, box: str, change: int) -> None:
        self._readers[cta, stage, box] = self._readers.get((cta, stage, box), 0) + change

    def _release(self, cta: int, stage: int) -> None:
        for target in [cta] if self._mutant == "own empty" else range(CTAS):
            self._empty[target][stage].arrive()


class Pair(Cluster):
    """Two CTAs that compute each tile together, over half of K each, then exchange accumulators through some stages.

    CTA i stores the rows of consumer i. The other CTA sends its accumulators for these rows once it knows that the
    stages there are empty.

    Args:
        stages: of a ring.
        steps: along K, of each tile and CTA.
        passes: stages of each tile through which accumulators come.
        seed: of all choices.
        mutant: the error of the protocol; None: none.
        flags: flags of A; None: A is complete from the start.
    """

    def __init__(
        self,
        stages: int,
        steps: list[int],
        passes: int,
        seed: int,
        mutant: Mutant | None = None,
        flags: Flags | None = None,
    ) -> None:
        super().__init__(stages, [(B_BOXES, count) for count in steps], seed, mutant, flags=flags)
        self._empty = [[Barrier(CONSUMERS) for _ in range(stages)] for _ in range(CTAS)]
        self._granted, self._passes = [Barrier(1) for _ in range(CTAS)], passes
        self._keep = [[cta] for cta in range(CTAS)]

    def _stages_of(self) -> Iterator[tuple[int, int, int, int]]:
        """Tile, step (after the last step: accumulators), stage and phase."""
        count = 0
        for tile, (_, steps) in enumerate(self._tiles):
            for k in range(steps + self._passes):
                yield tile, k - steps, count % self._stages, count // self._stages % 2
                count += 1

    def _producer(self, cta: int) -> Iterator[Callable[[], bool]]:
        for tile, k, stage, phase in self._stages_of():
            if self._flags and k < 0:
                yield partial(self._flags.are_seen, cta, tile)
            yield partial(self._empty[cta][stage].is_over, 1 - phase)
            self._full[cta][stage].arrive(A_BOXES)
            for box in range(A_BOXES if k < 0 else 0):
                self._load(cta, stage, box, tile, k)
            if k == self._passes - 1:
                self._granted[1 - cta].arrive()

    def _consumer(self, cta: int, consumer: int) -> Iterator[Callable[[], bool]]:
        keeps = consumer in self._keep[cta]
        for tile, k, stage, phase in self._stages_of():
            if k == 0 and not keeps and self._mutant != "no grant":
                yield partial(self._granted[cta].is_over, tile % 2)
            if k >= 0 and not keeps:
                for box in range(A_BOXES):
                    self._send(1 - cta, stage, f"A{box}", (tile, k))
            if k < 0 or keeps or self._mutant != "no wait":
                yield partial(self._full[cta][stage].is_over, phase)
            own = f"A{consumer}"
            if k < 0 or keeps:
                if self._boxes.get((cta, stage, own)) != (tile, k):
                    raise ProtocolError(f"{own} holds something else")
                self._read(cta, stage, own, 1)
                yield always
                self._read(cta, stage, own, -1)
                self._multiplied += k < 0
            self._empty[cta][stage].arrive()
            if keeps and k == -1:
                yield always
                self._confirm(cta, consumer, tile - 1)
        if keeps:
            self._confirm(cta, consumer, len(self._tiles) - 1)


def tiles(seed: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    return [(chance.randint(1, B_BOXES), chance.randint(1, 6)) for _ in range(chance.randint(1, 5))]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_ring_is_safe_and_ends(stages: int) -> None:
    for seed in range(200):
        steps = sum(steps for _, steps in tiles(seed))
        assert Cluster(stages, tiles(seed), seed).run() == CTAS * CONSUMERS * steps


@pytest.mark.parametrize(("steps", "pieces"), [(1, 1), (5, 6), (28, 6), (56, 6), (104, 6), (104, 1), (40, 14)])
def test_a_tile_that_waits_for_terms_blocks_no_store_that_they_need(steps: int, pieces: int) -> None:
    """A consumer that waits stops the other one after as many steps as there are stages."""
    for seed in range(20):
        assert Cluster(4, [(2, 3), (2, steps)], seed, pieces=pieces).run() == CTAS * CONSUMERS * (3 + steps)
    if (steps, pieces) == (104, 6):
        with pytest.raises(ProtocolError, match="deadlock"):
            Cluster(4, [(2, 3), (2, steps)], 0, "late confirmation", pieces).run()


@pytest.mark.parametrize("stages", [4, 6, 8])
def test_tiles_are_signalled_after_both_consumers_have_stored_them(stages: int) -> None:
    """One consumer may be ahead by as many steps as the ring has stages, and end two tiles before the other one.

    So one count for both would be enough only if tiles had more steps than that after their confirmation.
    """

    def search(steps: int, confirm_after: int, mutant: Mutant | None = None) -> None:
        for seed in range(20):
            Cluster(stages, [(1, steps)] * 3, seed, mutant, confirm_after=confirm_after).run()

    enough = stages + CONFIRM_AFTER + KEPT
    for steps, confirm_after in (*((i, CONFIRM_AFTER) for i in (1, stages, enough - 1, enough)), (enough, enough)):
        search(steps, confirm_after)
        with (
            pytest.raises(ProtocolError, match="not stored")
            if steps < enough or confirm_after == steps
            else nullcontext()
        ):
            search(steps, confirm_after, "one count")


@pytest.mark.parametrize(("stages", "steps", "late"), [(2, 1, 1), (4, 3, 6), (4, 9, 2), (6, 8, 7), (4, 28, 14)])
@pytest.mark.parametrize("many", [True, False], ids=["many tiles", "few tiles"])
def test_late_terms_pass_through_the_ring(stages: int, steps: int, late: int, many: bool) -> None:
    confirm_after = CONFIRM_AFTER if many else steps
    for seed in range(50):
        stored = Cluster(stages, [(B_BOXES, 3), (2, steps)], seed, late=late, confirm_after=confirm_after).run()
        assert stored == CTAS * CONSUMERS * (3 + steps)
    for mutant in ("late confirmation", "early release", "own empty"):
        clusters = (
            Cluster(stages, [(B_BOXES, 3), (2, steps)], seed, mutant, late=late, confirm_after=confirm_after)
            for seed in range(100)
        )
        with pytest.raises(ProtocolError):
            [cluster.run() for cluster in clusters]


@pytest.mark.parametrize(("stages", "passes"), [(4, 2), (6, 1), (2, 2)])
def test_two_ctas_exchange_their_accumulators(stages: int, passes: int) -> None:
    for seed in range(100):
        steps = [stages + count for _, count in tiles(seed)]
        assert Pair(stages, steps, passes, seed).run() == CTAS * CONSUMERS * sum(steps)
    with pytest.raises(ProtocolError, match="deadlock"):  # two grants of stages before the first one is seen
        [Pair(4, [1, 1, 1], 1, seed).run() for seed in range(100)]
    for mutant in ("no grant", "no wait")[:passes]:
        with pytest.raises(ProtocolError):
            [Pair(stages, [stages, stages + 2, stages], passes, seed, mutant).run() for seed in range(300)]


@pytest.mark.parametrize("pair", [False, True], ids=["two tiles", "one tile"])
def test_operands_may_arrive_in_any_order(pair: bool) -> None:
    """If a flag is never set, all threads continue after its timeout."""

    def search(mutant: Mutant | None = None, *, lost: bool = False) -> None:
        for seed in range(100):
            steps = [4 + count for _, count in tiles(seed)]
            flags, wide = Flags(len(steps), seed, mutant, lost=lost), [(B_BOXES, count) for count in steps]
            cluster = Pair(4, steps, 2, seed, flags=flags) if pair else Cluster(4, wide, seed, flags=flags)
            assert cluster.run() == CTAS * CONSUMERS * sum(steps)

    search()
    search(lost=True)
    for mutant in ("no flag", "seen early"):
        with pytest.raises(ProtocolError, match="before its flag"):
            search(mutant)
    with pytest.raises(ProtocolError, match="deadlock"):
        search("stops", lost=True)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant: Mutant) -> None:
    def search() -> None:
        for seed in range(200):
            Cluster(4, [(B_BOXES, 12), (1, 12)], seed, mutant).run()

    with pytest.raises(ProtocolError):
        search()
