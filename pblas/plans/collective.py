"""How a collective cuts its elements into shards and rounds, and the algorithm of an all-reduce; integers only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

CollectiveAlgorithm = Literal["naive", "one_shot", "two_shot"]
ALGORITHMS: tuple[CollectiveAlgorithm, ...] = ("naive", "one_shot", "two_shot")
SLOT_NBYTES = 1 << 20
"""Bytes that a rank lays out for its peers in one round: few enough to be in the caches when they read them."""
MESSAGE_NBYTES = 8 << 20
"""Bytes that a rank sends in one round of messages."""
LARGE_NBYTES = 4 << 20
"""From this size on, arrays outside shared memory travel in messages within a node too. MPI then copies them once, from
array to array. Shared memory would take two copies, in and out."""
_LINE_NBYTES = 64

_ONE_SHOT_NBYTES = {"shared": 768 << 10, "message": 512 << 10, "gpus": 2 << 20}
"""One shot up to so many bytes of all ranks together: each rank adds everything, which saves a round of waiting.
Measured with 2 and 4 ranks on 2 cores of an Intel Xeon, float32. Arrays in private memory are as fast in one shot up to
2 MiB, arrays in shared memory only up to this limit. On GPUs this is the limit where rows stay whole: there two shots
take one more kernel, which normalises the rows."""

APART_NBYTES = 512 << 10
"""Layers on CPUs whose tokens or sums have up to so many bytes run a collective and one local GEMM, without a plan. By
plans and so 2 ranks took, in us, float32, to gather 512 KiB 414 and 284, to scatter the sums of 512 KiB 423 and 438, of
1 MiB 595 and 714, and for those that all get 618 and 543, 809 and 835; 4 ranks, on as many cores, 1335 and 717, 831 and
758, 977 and 1136, 1146 and 1053, 1400 and 1447 (2 cores of an Intel Xeon)."""

_FINISHED_NBYTES = 128 << 10
"""The limit of one shot on CPUs with an epilogue, which every rank then applies to all elements. On 2 ranks 64 KiB with
relu took 232 us in one shot and 286 in two, with gelu 492 and 413; of 256 KiB 269 and 264, 1008 and 639."""

_RECEIVED_NBYTES = 1 << 20
"""The limit of one shot on GPUs where rows need not stay whole: bytes that each rank receives. One shot and two took,
in us, bfloat16, on 2 H200 of 1 MiB 6.3 and 7.1, of 2 MiB 11.0 and 10.6; on 4 H200 of 128 KiB 5.7 and 6.5, of 256 KiB
6.9 and 6.7, of 512 KiB 9.3 and 8.2 (`benchmarks/gpu/allreduce.py`)."""


def choose(
    nbytes: int, nprocs: int, transport: str, nunits: int, *, whole: bool = False, finished: bool = False
) -> CollectiveAlgorithm:
    """The algorithm of an all-reduce with algorithm="auto".

    Args:
        nbytes: of one rank's array (global).
        nprocs: ranks (global).
        transport: "shared" or "message", of the plans of this context; "gpus" that reach each other (global).
        nunits: units that the array can be cut into: rows, if rows must stay whole (global).
        whole: whether rows must stay whole (global).
        finished: whether there is an epilogue (global).

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
    """The first element of each share of n elements, as even as whole units allow, followed by n.

    >>> shares(10, 3, 1), shares(10, 3, 4)
    ((0, 4, 7, 10), (0, 4, 8, 10))
    """
    quotient, remainder = divmod(-(-n // unit), nparts)
    return tuple(min(n, unit * (i * quotient + min(i, remainder))) for i in range(nparts + 1))


@dataclass(frozen=True, slots=True)
class Rounds:
    """A flat array cut into one shard for each rank; a round moves at most `width` elements of each shard.

    Args:
        bounds: the first element of each shard, and the end of the last one (global).
        width: elements (global).
        whole: every rank's shard is the whole array; `bounds` are then 0 and the number of elements (global).

    >>> rounds = Rounds((0, 4, 7), 3)
    >>> len(rounds), [rounds.piece(0, i) for i in range(2)], rounds.piece(1, 1)
    (2, [(0, 3), (3, 4)], (7, 7))
    """

    bounds: tuple[int, ...]
    width: int
    whole: bool = False

    def __len__(self) -> int:
        if self.bounds[-1] <= self.width:
            return 1
        largest = max(stop - start for start, stop in zip(self.bounds, self.bounds[1:], strict=False))
        return max(1, -(-largest // self.width))

    def part(self, rank: int) -> tuple[int, int]:
        """First element of a rank's shard, and one past its last."""
        place = 0 if self.whole else rank
        return self.bounds[place], self.bounds[place + 1]

    def piece(self, rank: int, number: int) -> tuple[int, int]:
        """First element of the piece of a rank's shard that one round moves, and one past its last."""
        start, stop = self.part(rank)
        first = min(start + number * self.width, stop)
        return first, min(first + self.width, stop)

    def place(self, rank: int) -> int:
        """Offset of that piece in a slot, in elements."""
        return 0 if self.whole else rank * self.width

    @property
    def slot_nelements(self) -> int:
        """Elements that a rank lays out in one round."""
        return self.width * (1 if self.whole else len(self.bounds) - 1)


def aligned(itemsize: int) -> int:
    """Elements of a cache line: neighbouring ranks should not write to the same one."""
    return max(1, _LINE_NBYTES // itemsize)


def width_of(nparts: int, itemsize: int, unit: int, *, by_messages: bool = False) -> int:
    """Elements of each of `nparts` shards that one round moves: whole units, at least one."""
    nbytes = MESSAGE_NBYTES if by_messages else SLOT_NBYTES
    return max(1, nbytes // itemsize // nparts // unit) * unit


def goes_by_messages(nbytes: int, *, shared: bool) -> bool:
    """Whether arrays of so many bytes outside shared memory travel in messages, also within a node."""
    return not shared or nbytes >= LARGE_NBYTES
