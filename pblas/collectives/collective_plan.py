"""Plans of collectives: the cut of arrays into shards and rounds, and the algorithm of an all-reduce. Integers only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

CollectiveAlgorithm = Literal["naive", "one_shot", "two_shot"]
ALGORITHMS: tuple[CollectiveAlgorithm, ...] = ("naive", "one_shot", "two_shot")
SLOT_NBYTES = 1 << 20
"""Bytes that a rank stages for its peers in one round: few enough to be in the caches when the peers read them."""
MESSAGE_NBYTES = 8 << 20  # bytes that a rank sends in one round of messages
LARGE_NBYTES = 4 << 20
"""From this size on, an array outside shared memory travels in messages, even within a node: MPI copies it once, from
array to array. Staging in shared memory takes two copies."""
_LINE_NBYTES = 64

_ONE_SHOT_NBYTES = {"shared": 768 << 10, "message": 512 << 10, "gpus": 2 << 20}
"""Largest all-reduce in one shot, in bytes summed over the ranks, by transport. In one shot each rank adds all arrays,
which saves a round of waiting. CPUs: crossover for arrays in shared memory, 2 and 4 ranks on 2 cores of an Intel Xeon,
float32 (benchmarks/cpu/allreduce.py); arrays in private memory cross at 2 MiB. GPUs: the limit for epilogues on whole
rows, where two shots take one more kernel."""

APART_NBYTES = 512 << 10
"""Largest tokens or sums, in bytes, for which a layer on CPUs runs a collective and one local GEMM instead of a plan.
Crossover between 512 KiB (to gather: 284 us, by a plan 414; to scatter sums: 438 and 423) and 1 MiB (714 and 595), on
2 ranks, 2 cores of an Intel Xeon, float32."""

_FINISHED_NBYTES = 128 << 10
"""Largest all-reduce in one shot on CPUs with an epilogue, in bytes summed over the ranks: in one shot every rank
applies the epilogue to all elements. One shot and two shots on 2 ranks, us: with relu 232 and 286 at 64 KiB per rank,
269 and 264 at 256 KiB; with gelu 492 and 413, 1008 and 639."""

_RECEIVED_NBYTES = 1 << 20
"""Largest all-reduce in one shot on GPUs without whole rows, in bytes that each rank receives. Crossover: between 1 and
2 MiB on 2 H200, between 384 and 768 KiB on 4 H200, bfloat16 (benchmarks/gpu/allreduce.py)."""


def choose(
    nbytes: int, nprocs: int, transport: str, nunits: int, *, whole: bool = False, finished: bool = False
) -> CollectiveAlgorithm:
    """Choose the algorithm of an all-reduce with algorithm="auto".

    >>> choose(4096, 4, "shared", 1024), choose(1 << 20, 4, "shared", 1 << 18), choose(1 << 20, 4, "shared", 3)
    ('one_shot', 'two_shot', 'one_shot')
    """
    if transport == "gpus" and not whole:
        small = nbytes * (nprocs - 1) <= _RECEIVED_NBYTES
    else:
        limit = _ONE_SHOT_NBYTES.get(transport, _ONE_SHOT_NBYTES["shared"])
        small = nbytes * nprocs <= (min(limit, _FINISHED_NBYTES) if finished and transport != "gpus" else limit)
    return "one_shot" if small or nunits < nprocs else "two_shot"


@lru_cache(1024)
def shares(n: int, nparts: int, unit: int) -> tuple[int, ...]:
    """Cut n elements into `nparts` nearly equal shares that start at multiples of `unit`: their starts, then n.

    >>> shares(10, 3, 1), shares(10, 3, 4)
    ((0, 4, 7, 10), (0, 4, 8, 10))
    """
    quotient, remainder = divmod(-(-n // unit), nparts)
    return tuple(min(n, unit * (i * quotient + min(i, remainder))) for i in range(nparts + 1))


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of a collective: a flat array is cut into one shard per rank, and a round moves a piece of each shard.

    >>> rounds = Rounds((0, 4, 7), 3)
    >>> len(rounds), [rounds.piece(0, i) for i in range(2)], rounds.piece(1, 1)
    (2, [(0, 3), (3, 4)], (7, 7))
    """

    bounds: tuple[int, ...]  # the first element of each shard, then the end of the last shard (global)
    width: int  # largest piece, elements (global)
    # every rank's shard is the whole array; `bounds` are then 0 and the number of elements (global)
    whole: bool = False

    def __len__(self) -> int:
        if self.bounds[-1] <= self.width:
            return 1
        largest = max(stop - start for start, stop in zip(self.bounds, self.bounds[1:], strict=False))
        return max(1, -(-largest // self.width))

    def part(self, rank: int) -> tuple[int, int]:
        """Start and stop of a rank's shard, elements."""
        shard = 0 if self.whole else rank
        return self.bounds[shard], self.bounds[shard + 1]

    def piece(self, rank: int, number: int) -> tuple[int, int]:
        """Start and stop of the piece of a rank's shard that round `number` moves, elements."""
        start, stop = self.part(rank)
        first = min(start + number * self.width, stop)
        return first, min(first + self.width, stop)

    def place(self, rank: int) -> int:
        """Offset of a rank's piece in a slot, elements."""
        return 0 if self.whole else rank * self.width

    @property
    def slot_nelements(self) -> int:
        """Elements of a slot: all pieces that a rank stages in one round."""
        return self.width * (1 if self.whole else len(self.bounds) - 1)


def aligned(itemsize: int) -> int:
    """Elements per cache line: pieces start on cache lines, so that no two ranks write to the same line."""
    return max(1, _LINE_NBYTES // itemsize)


def width_of(nparts: int, itemsize: int, unit: int, *, by_messages: bool = False) -> int:
    """Elements that one round moves of each of `nparts` shards: whole units, at least one."""
    nbytes = MESSAGE_NBYTES if by_messages else SLOT_NBYTES
    return max(1, nbytes // itemsize // nparts // unit) * unit


def goes_by_messages(nbytes: int, *, shared: bool) -> bool:
    """Whether an array of `nbytes` bytes outside shared memory travels in messages, even within a node."""
    return not shared or nbytes >= LARGE_NBYTES
