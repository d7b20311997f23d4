"""A model of the CTAs of the Hopper kernel that move things: copies end at any later time, in orders that chance finds.

Threads are generators that yield what they wait for. What a word tells of is looked at when it is set, and all of it at
the end; mutants of the protocol are found, each of them.
"""

from __future__ import annotations

import random
import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from pblas.backends.nvshmem.kernels import FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Thread = Iterator[Callable[[], bool]]

TEXT, NAMES = (FOLDER / "hopper_moving.cuh").read_text(), ("CHUNK_NBYTES", "HANDS", "BUFFERS", "AHEAD", "STORING")
NBYTES, HANDS, BUFFERS, AHEAD, STORING = (int(re.findall(rf"\b{name} = (\d+)", TEXT)[0]) for name in NAMES)
CHUNK = NBYTES // 16  # elements here: TMA moves multiples of 16 bytes
PITCH = 3 * CHUNK  # of sources; of targets twice as much
ALWAYS = partial(bool, 1)
FREE = -1  # what lies in memory where nothing has been written

COPYING = ["one load more", "no wait for reads", "no wait for stores", "one parity", "idle", "unseen", "no stores"]
TELLING = ["stops", "no count", "few", "many", "share", "one hand", "all tell"]
ENDING = ["first resets", "no reset", "no zero"]


class Wrong(Exception):
    """The protocol is."""


class Errand(NamedTuple):
    """Whether it waits for a word, which a peer sets that has been told of the earlier ones `after`, and sets one."""

    lines: int
    width: int
    awaits: bool
    tells: bool
    after: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        return self.lines * -(-self.width // CHUNK)


class Movers:
    """CTAs that run errands, and their peers, of whom one may not set a word: errand `lost` gives it up at any time."""

    def __init__(self, errands: list[Errand], ctas: int, seed: int, mutant: str = "", lost: int = -1) -> None:
        self._errands, self._ctas, self._workers, self._mutant, self._lost = errands, ctas, ctas * HANDS, mutant, lost
        sizes = [(e.lines, PITCH if e.lines > 1 else e.width) for e in errands]
        self._sources = [10**6 * i + np.arange(m * n).reshape(m, n) for i, (m, n) in enumerate(sizes)]
        self._targets = [np.full((m, n + PITCH * (m > 1)), FREE) for m, n in sizes]
        self._words, self._told, self._counters = ([0] * len(errands) for _ in range(3))
        self._seen, self._stored = [0] * ctas, [[0] * HANDS for _ in range(ctas)]
        self._coming: list[Callable[[], None]] = []  # loads and stores
        self._waits: dict[Thread, Callable[[], bool]] = {}
        self._random = random.Random(seed)

    def run(self) -> None:
        """Until all threads have ended."""
        movers = [[self._mover(cta, hand) for hand in range(HANDS)] for cta in range(self._ctas)]
        ctas = [[self._lookout(cta), self._herald(cta), *movers[cta]] for cta in range(self._ctas)]
        peers = [self._peer(i) for i, errand in enumerate(self._errands) if errand.awaits and i != self._lost]
        self._waits = dict.fromkeys([*chain(*ctas), *peers, self._end(ctas)], ALWAYS)
        slow, newest = self._random.choice([None, self._coming, *self._waits]), self._random.choice([0, -1])
        while self._waits:
            able = [thread for thread, may_go in self._waits.items() if may_go()]
            quick: list[Any] = [thread for thread in able if thread is not slow]
            quick += self._coming[newest:] if slow is not self._coming or not quick else []
            if not (quick or able):
                raise Wrong("nobody can go on")
            chosen = self._random.choice(quick or able)
            if chosen in self._coming:
                self._coming.remove(chosen)
                chosen()
            elif may_go := next(chosen, None):
                self._waits[chosen] = may_go
            else:
                del self._waits[chosen]
        if any(self._counters) or self._told != [errand.tells for errand in self._errands]:
            raise Wrong("not all are told once")
        for i in range(len(self._errands)):
            self._check(i)

    def _check(self, i: int) -> None:
        source, target, width = self._sources[i], self._targets[i], self._errands[i].width
        if np.any(target[:, width:] != FREE) or (self._lost < 0 and np.any(source[:, :width] != target[:, :width])):
            raise Wrong("something else has been copied")

    def _peer(self, i: int) -> Thread:
        yield lambda: all(self._told[before] for before in self._errands[i].after)
        self._words[i] = 1

    def _end(self, ctas: list[list[Thread]]) -> Thread:
        """The last CTA resets all that was awaited or counted."""
        all_of = any if self._mutant == "first resets" else all
        yield lambda: all_of(self._waits.keys().isdisjoint(threads) for threads in ctas)
        self._words = [word * (self._mutant == "no reset") for word in self._words]
        self._counters = [count * (self._mutant == "no zero") for count in self._counters]
        if self._coming or any(self._words):
            raise Wrong("the kernel leaves something")

    def _lookout(self, cta: int) -> Thread:
        late = False
        for i, errand in enumerate(self._errands):
            if errand.awaits and not late:
                yield ALWAYS if i == self._lost else partial(lambda i: self._words[i] > 0, i)
                late = i == self._lost
            self._seen[cta] += not late or self._mutant != "stops"

    def _places(self, worker: int) -> Iterator[tuple[int, int, slice]]:
        """Errand, line and elements of the chunks of a thread."""
        for i, errand in enumerate(self._errands):
            for chunk in range(worker, errand.chunks, self._workers):
                line, begin = divmod(chunk, errand.chunks // errand.lines)
                yield i, line, slice(begin * CHUNK, min((begin + 1) * CHUNK, errand.width))

    def _mover(self, cta: int, hand: int) -> Thread:
        mutant, places, loaded, stored = self._mutant, list(self._places(cta * HANDS + hand)), 0, 0
        buffers, phases = [np.full(0, FREE)] * BUFFERS, [0] * BUFFERS  # and those of their barriers that are over
        over: dict[str, set[int]] = {"reads": set(), "stores": set()}

        def load(number: int) -> None:
            i, line, part = places[number]
            there = self._words[i] or not self._errands[i].awaits
            buffers[number % BUFFERS] = self._sources[i][line, part] if there else np.full(0, FREE)
            phases[number % BUFFERS] += 1

        def read(number: int) -> None:
            over["reads"].add(number)
            self._coming.append(partial(store, number, buffers[number % BUFFERS]))

        def store(number: int, chunk: Any) -> None:
            i, line, part = places[number]
            self._targets[i][line, part] = chunk if len(chunk) == part.stop - part.start else FREE
            over["stores"].add(number)

        def are_over(what: str, pending: int = 0) -> Callable[[], bool]:
            return ALWAYS if mutant == f"no wait for {what}" else lambda: over[what] >= {*range(stored - pending)}

        def is_there() -> bool:
            return mutant == "unseen" or self._seen[cta] > places[loaded][0]

        while stored < len(places):
            while loaded - stored < AHEAD + (mutant == "one load more") and loaded < len(places) and is_there():
                self._coming.append(partial(load, loaded))
                loaded += 1
                yield ALWAYS
            if loaded > stored:
                parity = 0 if mutant == "one parity" else stored // BUFFERS % 2
                yield partial(lambda buffer, parity: phases[buffer] % 2 != parity, stored % BUFFERS, parity)
                self._coming.append(partial(read, stored))
                stored += 1
                yield are_over("reads", BUFFERS - AHEAD)
                yield are_over("stores", STORING)
                self._stored[cta][hand] = max(stored - (mutant != "no stores") * STORING, self._stored[cta][hand])
            else:
                yield are_over("stores")
                self._stored[cta][hand] = self._stored[cta][hand] if mutant == "idle" else stored
                yield is_there
        yield are_over("stores")
        self._stored[cta][hand] = stored

    def _herald(self, cta: int) -> Thread:
        ends, stored, mutant = [0] * HANDS, self._stored[cta], self._mutant
        for i, (chunks, tells) in enumerate((errand.chunks, errand.tells) for errand in self._errands):
            sharing, first = min(self._ctas, -(-chunks // HANDS)), cta * HANDS + (mutant == "share")
            ends = [end + max((chunks - 1 - first - hand) // self._workers + 1, 0) for hand, end in enumerate(ends)]
            if not tells or not (cta < sharing if chunks else i % self._ctas == cta or mutant == "all tell"):
                continue
            yield partial(lambda i, chunks: self._seen[cta] > i or chunks, i, chunks)
            for hand in range((1 if mutant == "one hand" else HANDS) if chunks else 0):
                yield partial(lambda hand, end: stored[hand] >= end, hand, ends[hand])
            self._counters[i] += chunks > 0
            last = sharing - (mutant == "few" and sharing > 1) + (mutant == "many")
            if not chunks or self._counters[i] == last or mutant == "no count":
                yield ALWAYS
                self._check(i)
                self._told[i] += 1


def search(count: int, ctas: int, mutant: str = "", *, lost: bool = False) -> None:
    """Errands of one line or of several, which some threads share, or of none."""
    for seed in range(count):
        chance, errands = random.Random(seed), list[Errand]()
        for i in range(chance.randint(1, 6)):
            size = chance.choice([(1, chance.randint(1, 70 * CHUNK)), (9, 2 * CHUNK + 1), (3, 5), (1, 0), (0, 0)])
            after = tuple(j for j in range(i) if errands[j].tells and chance.random() < 0.5)
            errands.append(Errand(*size, chance.random() < 0.6, chance.random() < 0.7, after))
        missing = [i for i, errand in enumerate(errands) if errand.awaits and lost][:1]
        Movers(errands, ctas, seed, mutant, *missing).run()


@pytest.mark.parametrize("ctas", [2, 4, 16])
def test_all_is_copied_once_and_told_when_it_is_there(ctas: int) -> None:
    search(400 // ctas, ctas)
    search(100 // ctas, ctas, lost=True)


@pytest.mark.parametrize("mutant", COPYING + TELLING + ENDING)
def test_mutants_are_found(mutant: str) -> None:
    with pytest.raises(Wrong):
        search(200, 4, mutant, lost=mutant == "stops")
