"""What the Hopper kernel is told: parts of a product, what it sends and moves meanwhile; how its arguments say so."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from cuda.bindings import driver

from pblas.backends.cuda.problem import Problem, Reading, read
from pblas.backends.nvshmem.kernels import NO_STEP
from pblas.backends.nvshmem.kernels.hopper import (
    ERRAND,
    MAP_NBYTES,
    MOVING,
    PEER,
    SENDING,
    SENT_LENGTH,
    SENT_LINES,
    STRIPE,
)
from pblas.backends.shapes import LINE, beside
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 16  # bytes, of what TMA reads: addresses and leading dimensions
TYPES = {
    "bfloat16": ("bf16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    "float16": ("f16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
}
MOST_FLAGS = 32  # of parts, and of terms of all: bits of the words in which the kernel keeps which have arrived
FEW_PLACES = 8
_ROOMS = (0, 1, FEW_PLACES, MOST_FLAGS)  # of lists of arguments: few, so that few variants are compiled
ERRAND_ROOMS = (0, 32, 84)  # with these, and few places, arguments are less than 32 KB


def supports(problem: Problem) -> bool:
    """Whether the kernel can multiply this: 16-bit operands and result whose lines TMA can address.

    Lines of Z have to end at a multiple of 16 bytes too: TMA writes the last 16 bytes of a line whole.

    Args:
        problem: what is multiplied (see `pblas.backends.cuda.problem.read`).
    """
    lds = (problem.lda, problem.ldb, problem.ldz)
    aligned = (problem.aligna, problem.alignb, problem.alignz)
    return (
        problem.dtype in TYPES
        and problem.dtype_z == problem.dtype
        and problem.batch == 1
        and all(2 * length % _ALIGNMENT == 0 for length in (*lds, problem.m))
        and all(alignment == _ALIGNMENT for alignment in aligned)
    )


class Term(NamedTuple):
    """What another rank has computed of a Z.

    Args:
        z: m x n, stored as that Z (local).
        flag: address of a word that is not 0 once it is there, and that is made 0 again; 0: it is there.
        source: rank that sets the flag.
    """

    z: Any
    flag: int = 0
    source: int = 0


class Place(NamedTuple):
    """Where a Z is stored too.

    Args:
        z: m x n, stored as that Z; perhaps a peer's memory (local).
        signal: address of a word, perhaps a peer's, that becomes 1 once it is there; or 0.
    """

    z: Any
    signal: int = 0


class Part(NamedTuple):
    """A part of Z, and the operands that make it: Z := alpha X Y + terms + beta Z, in float32, rounded once.

    Args:
        x: m x k (local).
        y: k x n (local).
        z: m x n; `supports` says which (local). It may lie in a peer's memory.
        flag: address of a word that is not 0 once X and Y are there, and that is made 0 again; 0: they are there.
        source: rank that sets the flag.
        ready: microseconds after the start at which X and Y are expected, not sooner than those of parts before.
        signal: address of a word, perhaps a peer's, that becomes 1 once Z is there; or 0.
        partial: whether Z is alpha X Y alone.
        terms: added in this order while the product grows, so those that come first should be there first.
        places: where it is stored too.
        late: whether the terms come when X Y is there, and not sooner.
        among: parts before it among whose tiles its own come, evenly.
        at: row and column of Z in the operands of what follows it.
    """

    x: Any
    y: Any
    z: Any
    flag: int = 0
    source: int = 0
    ready: float = 0.0
    signal: int = 0
    partial: bool = False
    terms: tuple[Term, ...] = ()
    places: tuple[Place, ...] = ()
    late: bool = False
    among: int = 0
    at: tuple[int, int] = (0, 0)

    @property
    def tells(self) -> bool:
        """Whether somebody is told that it is there."""
        return bool(self.signal) or any(place.signal for place in self.places)


class Sent(NamedTuple):
    """An operand of this rank that some clusters store at the peers, in slices along K, with a flag behind each.

    The flags of parts are those of slices, too, then.

    Args:
        operand: X or Y (local).
        axis: along which K lies.
        targets: arrays like it, at the peers.
        flags: there, addresses of those of the first slice.
        length: of a slice along K, a multiple of SLICE.
        pitch: bytes from the flag of a slice to the next one's, here and at the peers.
    """

    operand: Any
    axis: int
    targets: tuple[Any, ...]
    flags: tuple[int, ...]
    length: int
    pitch: int


class Errand(NamedTuple):
    """Lines that are copied when a word says so, and the word that is set behind them; each may be missing.

    Args:
        source: address of the first line, a multiple of 16.
        target: likewise.
        nbytes: of a line, a multiple of 16.
        lines: how many.
        awaited: address of a word of this GPU that becomes 1, and is made 0 again when the kernel ends.
        told: address of a word, perhaps a peer's.
        by: rank that sets what is awaited.
        step: what is recorded if it does not.
    """

    source: int = 0
    target: int = 0
    nbytes: int = 0
    lines: int = 0
    awaited: int = 0
    told: int = 0
    by: int = 0
    step: int = NO_STEP


class Moved(NamedTuple):
    """What some clusters move while the others multiply, one thing after the other.

    Args:
        errands: in order; what one waits for, no later one may bring.
        pitches: bytes from line to line, at sources and targets, of those that have several lines; 0: they are tight.
        clusters: how many.
    """

    errands: tuple[Errand, ...]
    pitches: tuple[int, int]
    clusters: int

    @property
    def fits(self) -> bool:
        """Whether the kernel can do it."""
        words = (word for errand in self.errands for word in errand[:3])
        short = len(self.errands) <= ERRAND_ROOMS[-1] and all((e.nbytes | e.lines) >> 31 == 0 for e in self.errands)
        return short and not any(word % _ALIGNMENT for word in (*words, *self.pitches))


SENDING_NBYTES = MAP_NBYTES + SENDING.size + MAP_NBYTES + PEER.size


def told_of(parts: Sequence[Part], room: int) -> bytes:
    """The words of the places of all parts; arguments go on at a multiple of 64 bytes."""
    words = [place.signal for part in parts for place in part.places]
    found = struct.pack(f"={room}q", *words, *[0] * (room - len(words)))
    return found.ljust(len(found) + -len(found) % 64, bytes(1))


def sending_of(sent: Sent, dtype: str, counters: int) -> bytes:
    """The descriptions of what is sent, and of the peers.

    Args:
        sent: operand and targets.
        dtype: of their elements.
        counters: address of a word for each slice.
    """
    operand = sent.operand
    along_k = operand.strides[sent.axis] < operand.strides[1 - sent.axis]
    axes = (sent.axis, 1 - sent.axis) if along_k else (1 - sent.axis, sent.axis)
    box = SENT_LENGTH, SENT_LINES
    (of_k, of_lines), lines = box if along_k else box[::-1], operand.shape[1 - sent.axis]

    def described(x: Any) -> bytes:
        inner, outer = (x.shape[axis] for axis in axes)
        return map_of(x, dtype, inner, outer, x.strides[axes[1]] // x.itemsize, box)

    words = (along_k, sent.length // of_k, -(-lines // of_lines), len(sent.targets), counters)
    peers = [described(x) + PEER.pack(flag) for x, flag in zip(sent.targets, sent.flags, strict=True)]
    room = max(1, room_for(len(peers))) * (MAP_NBYTES + PEER.size)
    return described(operand) + SENDING.pack(*words) + b"".join(peers).ljust(room, bytes(1))


def moving_of(moved: Moved, counters: int) -> bytes:
    """The description of what is moved; arguments end at a multiple of 64 bytes."""
    errands = [
        ERRAND.pack(*of[:2], of.awaited, of.told, of.lines << 32 | of.nbytes, of.step << 32 | of.by)
        for of in moved.errands
    ]
    room = max(1, room_for(len(errands), ERRAND_ROOMS)) * ERRAND.size
    found = MOVING.pack(len(errands), *moved.pitches, counters) + b"".join(errands).ljust(room, bytes(1))
    return found.ljust(len(found) + -len(found) % 64, bytes(1))


def key_of_sent(sent: Sent) -> tuple[Any, ...]:
    """By what launches are known that send this."""
    return (*((w.data.ptr, w.shape, w.strides) for w in (sent.operand, *sent.targets)), *sent[1:2], *sent[3:])


def readings_of(part: Part) -> list[Reading]:
    """A part's product, and those that would have its terms, and its further places, as results."""
    others = (*(term.z for term in part.terms), *(place.z for place in part.places))
    return [read(part.x, part.y, z) for z in (part.z, *others)]


def stored_as(reading: Reading) -> tuple[Any, ...]:
    """What parts of one launch have in common."""
    problem, swapped = reading
    return problem.transa, problem.transb, problem.k, problem.dtype, swapped


def room_for(count: int, rooms: tuple[int, ...] = _ROOMS) -> int:
    """Entries of a list that so many fit into."""
    return next(room for room in rooms if room >= count)


def key_of(part: Part) -> tuple[Any, ...]:
    """By what launches are known that make this part."""
    x, y, z, *words, terms, places, late, among, at = part
    others = (*(term.z for term in terms), *(place.z for place in places))
    arrays = tuple((w.data.ptr, w.shape, w.strides) for w in (x, y, z, *others))
    told = *((term.flag, term.source) for term in terms), *(place.signal for place in places)
    return (*arrays, z.dtype, *words, late, among, *at, *told)


def maps_of(part: Part, problem: Problem, swapped: bool, *, stacked: bool) -> bytes:
    """The maps of the kernel's A, B and D; its D is Z^T where Z is stored by columns, so A and B change places."""
    y, x = (part.y, part.x) if swapped else (part.x, part.y)
    a, b = (x, problem.dtype, *problem.stored_b, problem.ldb), (y, problem.dtype, *problem.stored_a, problem.lda)
    box, wide = (LINE, LINE), (LINE, 2 * LINE)
    boxes = ((a, box if problem.transb != "N" or stacked or beside(problem.n) else wide), (b, box), (b, wide))
    maps = [map_of(*operand, box) for operand, box in boxes]
    return b"".join((*maps, map_of(part.z, problem.dtype, problem.m, problem.n, problem.ldz)))


def map_of(matrix: Any, dtype: str, length: int, lines: int, ld: int, box: tuple[int, int] = (LINE, STRIPE)) -> bytes:
    """A CUtensorMap of boxes; those of LINE elements are swizzled in shared memory.

    Args:
        matrix: where it begins.
        dtype: of its elements.
        length: contiguous elements of a line.
        lines: their number.
        ld: elements from line to line.
        box: 16-bit elements of a line of a box, and lines.

    Raises:
        BackendError: TMA cannot read such a matrix.
    """
    size, count = driver.cuuint64_t, driver.cuuint32_t
    names = driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion
    found = checked(
        driver.cuTensorMapEncodeTiled(
            TYPES[dtype][1],
            2,
            matrix.data.ptr,
            [size(length), size(lines)],
            [size(2 * ld)],
            [count(extent) for extent in box],
            [count(1), count(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            names[0].CU_TENSOR_MAP_SWIZZLE_128B if box[0] == LINE else names[0].CU_TENSOR_MAP_SWIZZLE_NONE,
            names[1].CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        "describe matrices to",
    )
    return struct.pack("=16Q", *(int(word) for word in found.opaque))


def checked(result: tuple[Any, ...], what: str) -> Any:
    """What a driver call returned behind its status."""
    status, *values = result
    if int(status):
        raise BackendError(f"the driver cannot {what} the Hopper kernel: {status.name}")
    return values[0] if values else None
