"""The argument structs of the kernels, as the .cu files declare them, constants of both sides, and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.backends.cuda.kernels import Struct

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


MAX_RANKS = 32  # most ranks of one kernel; also most blocks of one push

MAX_PARTS = 64  # most terms of one sum

MAX_CTAS = 512  # most CTAs of an all-reduce; each has its own flags

MAX_TERMS, TERM_WORDS = 12, 3  # most terms of one expression, and words of each

PART_ALIGNMENT = 16  # elements; the shards of a two-shot all-reduce begin at multiples of it

NO_STEP = 0xFFFFFFFF  # the step in the record of a kernel that has no step

RECORD = np.dtype([("code", "u4"), ("rank", "u4"), ("step", "u4"), ("pad", "u4"), ("time", "u8")])
"""Record of a kernel that gives up: the reason, the awaited rank, the step, the GPU's clock in ns."""

ABORTED, LATE = 1, 2  # codes of a record: the abort word was set; the deadline passed. 0: nothing happened


class Block(NamedTuple):
    """A block to copy: `lines` lines of `nbytes` bytes, `source_pitch` and `target_pitch` bytes apart.

    The struct of the kernel that pushes has the same fields.


    """

    source: int  # address, as mapped here
    target: int  # address, as mapped here; a push has its source or its target in a peer's memory
    nbytes: int  # bytes of one line
    signal: int = -1  # index of the flag that signals this block; -1: none
    lines: int = 1  # 1 for a contiguous block
    source_pitch: int = 0  # bytes from line to line of the source; unused for one line
    target_pitch: int = 0  # bytes from line to line of the target; unused for one line

    @property
    def is_in_packets(self) -> bool:
        """Whether it can be copied 16 bytes at a time.

        >>> Block(16, 32, 48).is_in_packets, Block(16, 32, 48, -1, 2, 48, 56).is_in_packets
        (True, False)
        """
        words = self.source | self.target | self.nbytes | self.source_pitch | self.target_pitch
        return words % 16 == 0

    def flat(self) -> Block:
        """The same block as one line, if it has no gaps between its lines."""
        if self.lines > 1 and self.source_pitch == self.target_pitch == self.nbytes:
            return Block(self.source, self.target, self.nbytes * self.lines, self.signal)
        return self


class EpilogueTerms(NamedTuple):
    """The epilogue of a reduction kernel that `add` has compiled."""

    key: Hashable
    length: int
    terms: Sequence[int]


class Slots(NamedTuple):
    """Memory that receives terms as LL packets; a packet with all bits set, as initially, has not arrived."""

    # for each rank, as mapped here, the address of P slots, one for each sender, multiples of 16; a two-shot all-reduce
    # has P more slots after them, for the sums of each rank
    addresses: Sequence[int]
    nbytes: int  # bytes from slot to slot, a multiple of 16 (global)
    # address of the word that counts calls; calls alternate between two halves of the slots; 0: the caller passes slots
    # of the other parity in each call
    epoch: int = 0
    pitch: int = 0  # bytes from one half to the other (global)


LONGEST = 1 << 56
"""The longest timeout of a kernel in nanoseconds: two years. Multiples that kernels use still fit 63 bits."""


class Watch(NamedTuple):
    """Deadline of waiting kernels, the abort word that they check, and the record of a kernel that gives up."""

    timeout: int  # nanoseconds, at most `LONGEST`
    abort: int = 0  # address of this rank's abort word; 0: none
    record: int = 0  # address of a RECORD in pinned memory of the host; 0: none


STRUCTS = {
    "sum": Struct(
        "SumArguments",
        "out old rows columns out_ld old_ld beta.re beta.im parts terms.length",
        {"terms.term": TERM_WORDS * MAX_TERMS, "part": MAX_PARTS, "part_ld": MAX_PARTS},
    ),
    "elementwise": Struct("ElementwiseArguments", "target source rows columns target_ld source_ld beta.re beta.im", {}),
    "copy": Struct("CopyArguments", "target source nbytes lines target_pitch source_pitch", {}),
    "push": Struct(
        "PushArguments", "blocks members signals counter", {"block": 7 * MAX_RANKS, "signal": 2 * MAX_RANKS}
    ),
    "all_reduce": Struct(
        "AllReduceArguments",
        "out source old slot_nbytes rank nranks contributing beta.re beta.im "
        "watch.abort watch.record watch.timeout watch.step epoch partials_pitch flags_pitch results_pitch base "
        "normalised weight columns terms.length",
        {"terms.term": TERM_WORDS * MAX_TERMS}
        | dict.fromkeys(("partials", "flags", "results", "first", "stop"), MAX_RANKS),
    ),
    "barrier": Struct(
        "BarrierArguments", "epoch rank nranks watch.abort watch.record watch.timeout watch.step", {"flags": MAX_RANKS}
    ),
    "wait": Struct(
        "WaitArguments",
        "count signals watch.abort watch.record watch.timeout watch.step",
        dict.fromkeys(("flag", "source", "signal"), MAX_RANKS),
    ),
    "delay": Struct("DelayArguments", "nanoseconds", {}),
}
"""The struct of each family of kernels."""


def all_reduce_arguments(
    *,
    out: int,
    first: Sequence[int],
    stop: Sequence[int],
    rank: int,
    partials: Sequence[int],
    watch: Watch,
    source: int = 0,
    slot_nbytes: int = 0,
    flags: Sequence[int] = (),
    results: Sequence[int] = (),
    old: int = 0,
    beta: complex = 0.0,
    contributing: Sequence[int] | None = None,
    epoch: int = 0,
    pitches: tuple[int, int, int] = (0, 0, 0),
    base: int = 0,
    normalised: int = 0,
    weight: int = 0,
    columns: int = 0,
    length: int = 1,
    terms: Sequence[int] = (),
) -> tuple[tuple[float, ...], tuple[Sequence[int], ...]]:
    """Scalars and tables of a kernel of all_reduce.cuh; that file describes them."""
    beta, nranks = complex(beta), len(partials)
    mask = (1 << nranks) - 1 if contributing is None else sum(1 << r for r in contributing)
    scalars = (
        *(out, source, old, slot_nbytes, rank, nranks, mask, beta.real, beta.imag),
        *(watch.abort, watch.record, watch.timeout, NO_STEP, epoch, *pitches, base),
        *(normalised, weight, columns, length),
    )
    return scalars, (terms, partials, flags, results, first, stop)


_SENT_NBYTES, _MOST_CTAS = 2048, 256  # least bytes that a CTA sends; most CTAs
_PULLED_NBYTES, _PULLING_CTAS = 8192, 128  # least bytes that a CTA pulls; most CTAs


def push_counter_nbytes() -> int:
    """Bytes of the counters of pushes in device memory, zeroed once; each pushing stream has its own."""
    return 4 * MAX_RANKS


def barrier_flags_nbytes(nranks: int) -> int:
    """Bytes of a barrier's flags on each rank, zeroed once."""
    return 4 * nranks


def all_reduce_flags_nbytes(nranks: int) -> int:
    """Bytes of an all-reduce's flags on each rank, of one parity, zeroed once.

    >>> all_reduce_flags_nbytes(8)
    32768
    """
    return 4 * 2 * nranks * MAX_CTAS


def sending_ctas(nbytes: int) -> int:
    """CTAs of a kernel whose ranks send `nbytes` bytes each, of one shot to each other rank: the same on all.

    On 2 H200, one shot of 1 MiB took 9.6 us with 64 CTAs, 7.7 with 128 and 6.2 with 256; of 256 KiB 4.0 from 64 on. Two
    shots of 4 MiB took 19.9 with 128 CTAs and 17.6 with 256, of 256 KiB 6.0 from 64 on.

    >>> sending_ctas(0), sending_ctas(16384), sending_ctas(10**6)
    (1, 8, 256)
    """
    return min(max(-(-nbytes // _SENT_NBYTES), 1), _MOST_CTAS)


def pulling_ctas(nbytes: int) -> int:
    """CTAs of a kernel that pulls arrays of `nbytes` bytes.

    On 4 H200, 16 MiB took 91 us with 128 CTAs and 100 with 512, 32 MiB 166 and 176.

    >>> pulling_ctas(0), pulling_ctas(2**18), pulling_ctas(2**25)
    (1, 32, 128)
    """
    return min(max(-(-nbytes // _PULLED_NBYTES), 1), _PULLING_CTAS)
