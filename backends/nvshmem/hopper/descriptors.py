"""Arguments of the Hopper kernel: the parts of a product, and their descriptors."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from cuda.bindings import driver

from pblas.backends.cuda.gemm_problem import Problem, Reading, read
from pblas.backends.nvshmem.hopper.tile_scheduler import STRIPE
from pblas.backends.tile_shapes import LINE, is_side_by_side
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ALIGNMENT = 16  # of addresses and leading dimensions that TMA reads, bytes
TYPES: dict[str, tuple[str, Any]] = {
    "bfloat16": ("bf16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    "float16": ("f16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
}
MOST_FLAGS = 32  # most parts, and most terms of all parts: the kernel has a bit for each in words of arrived flags
_CAPACITIES = (0, 1, 8, MOST_FLAGS)  # of lists of arguments: few, so that few variants are compiled


def supports(problem: Problem) -> bool:
    """Whether the kernel can multiply this: 16-bit operands and result whose lines TMA can address.

    Lines of Z have to end at a multiple of 16 bytes too: TMA writes the last 16 bytes of a line whole.
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
    """A partial result of another rank for a Z.

    Args:
        z: m x n, in the storage order of that Z (local).
        flag: address of a word that is not 0 once the term is complete; the kernel resets it; 0: complete already.
        source: rank that sets the flag.
    """

    z: Any
    flag: int = 0
    source: int = 0


class Place(NamedTuple):
    """A further place where a Z is stored.

    Args:
        z: m x n, in the storage order of that Z; may be in a peer's memory (local).
        signal: address of a word, perhaps a peer's, that the kernel sets to 1 after the stores; or 0.
    """

    z: Any
    signal: int = 0


class Part(NamedTuple):
    """A part of Z, and the operands that make it: Z := alpha X Y + terms + beta Z, in float32, rounded once.

    Args:
        x: m x k (local).
        y: k x n (local).
        z: m x n, of a layout that `supports` accepts (local). It may be in a peer's memory.
        flag: address of a word that is not 0 once X and Y are complete; the kernel resets it; 0: complete already.
        source: rank that sets the flag.
        ready: expected arrival of X and Y, microseconds after the start; not before the arrivals of preceding parts.
        signal: address of a word, perhaps a peer's, that the kernel sets to 1 after it has stored Z; or 0.
        partial: whether Z is alpha X Y alone.
        terms: terms, added in this order during the product; the first ones should arrive first.
        places: further places where Z is stored.
        terms_late: whether the terms are added after X Y, and not during the product.
        interleaved: number of directly preceding parts with whose tiles those of this part alternate.
        origin: row and column of Z in the operands of the epilogue.
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
    terms_late: bool = False
    interleaved: int = 0
    origin: tuple[int, int] = (0, 0)

    @property
    def has_signal(self) -> bool:
        """Whether the kernel signals its stores."""
        return bool(self.signal) or any(place.signal for place in self.places)


def place_signals(parts: Sequence[Part], capacity: int) -> bytes:
    """The signals of the places of all parts, padded to a multiple of 64 bytes."""
    words = [place.signal for part in parts for place in part.places]
    packed = struct.pack(f"={capacity}q", *words, *[0] * (capacity - len(words)))
    return packed.ljust(len(packed) + -len(packed) % 64, bytes(1))


def readings_of(part: Part) -> list[Reading]:
    """The readings of a part's product with its Z, its terms and its further places as results."""
    results = (*(term.z for term in part.terms), *(place.z for place in part.places))
    return [read(part.x, part.y, z) for z in (part.z, *results)]


def stored_as(reading: Reading) -> tuple[Any, ...]:
    """Properties that all parts of one launch share."""
    problem, swapped = reading
    return problem.transa, problem.transb, problem.k, problem.dtype, swapped


def list_capacity(count: int) -> int:
    """The smallest capacity of a list that holds `count` entries."""
    return next(capacity for capacity in _CAPACITIES if capacity >= count)


def key_of(part: Part) -> tuple[Any, ...]:
    """The key of this part for the cache of launches."""
    x, y, z, *words, terms, places, terms_late, interleaved, origin = part
    results = (*(term.z for term in terms), *(place.z for place in places))
    arrays = tuple((w.data.ptr, w.shape, w.strides) for w in (x, y, z, *results))
    signals = *((term.flag, term.source) for term in terms), *(place.signal for place in places)
    return (*arrays, z.dtype, *words, terms_late, interleaved, *origin, *signals)


def maps_of(part: Part, problem: Problem, swapped: bool) -> bytes:
    """The maps of the kernel's A, B and D; D is Z^T if Z is stored by columns, so A and B change places."""
    y, x = (part.y, part.x) if swapped else (part.x, part.y)
    a, b = (x, problem.dtype, *problem.stored_b, problem.ldb), (y, problem.dtype, *problem.stored_a, problem.lda)
    box, wide = (LINE, LINE), (LINE, 2 * LINE)
    boxes = ((a, box if problem.transb != "N" or is_side_by_side(problem.n) else wide), (b, box), (b, wide))
    maps = [map_of(*operand, box) for operand, box in boxes]
    return b"".join((*maps, map_of(part.z, problem.dtype, problem.m, problem.n, problem.ldz)))


def map_of(matrix: Any, dtype: str, length: int, lines: int, ld: int, box: tuple[int, int] = (LINE, STRIPE)) -> bytes:
    """A CUtensorMap of boxes; boxes with lines of LINE elements are swizzled in shared memory."""
    size, count = driver.cuuint64_t, driver.cuuint32_t
    names = driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion
    tensor_map = checked(
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
    return struct.pack("=16Q", *(int(word) for word in tensor_map.opaque))


def checked(result: tuple[Any, ...], action: str) -> Any:
    """The result of a driver call; raises BackendError if its status is an error."""
    status, *values = result
    if int(status):
        raise BackendError(f"the driver cannot {action} the Hopper kernel: {status.name}")
    return values[0] if values else None
