"""The Hopper kernel's arguments, and its compilation for dtypes, storage orders, list capacities and the epilogue."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from pblas.backends.cuda.gemm_problem import Problem, Reading, read
from pblas.backends.cuda.kernels import configured
from pblas.backends.cuda.pointwise import ANY_STEP, TERM_WORDS, check_count, functions, printed
from pblas.backends.cuda.programs import unbound_threads
from pblas.backends.engine_limits import LINE, is_side_by_side
from pblas.backends.nvshmem.hopper import machine_code, source
from pblas.backends.nvshmem.hopper.tile_scheduler import CLUSTER, SHARED_NBYTES, STRIPE, THREADS
from pblas.backends.nvshmem.kernels import terms_of
from pblas.epilogues import Apply, Node, nodes
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Dtype, GpuArray
    from pblas.backends.push_engine import Finish


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
    """A partial result of another rank for a Z."""

    z: GpuArray  # m x n, in the storage order of that Z (local)
    # address of a word that is not 0 once the term is complete; the kernel resets it; 0: complete already
    flag: int = 0
    source: int = 0  # rank that sets the flag


class Place(NamedTuple):
    """A further place where a Z is stored."""

    z: GpuArray  # m x n, in the storage order of that Z; may be in a peer's memory (local)
    signal: int = 0  # address of a word, perhaps a peer's, that the kernel sets to 1 after the stores; or 0


class Part(NamedTuple):
    """A part of Z, and the operands that make it: Z := alpha X Y + terms + beta Z, in float32, rounded once."""

    x: GpuArray  # m x k (local)
    y: GpuArray  # k x n (local)
    z: GpuArray  # m x n, of a layout that `supports` accepts (local). It may be in a peer's memory
    # address of a word that is not 0 once X and Y are complete; the kernel resets it; 0: complete already
    flag: int = 0
    source: int = 0  # rank that sets the flag
    # expected arrival of X and Y, microseconds after the start; not before the arrivals of preceding parts
    ready: float = 0.0
    signal: int = 0  # address of a word, perhaps a peer's, that the kernel sets to 1 after it has stored Z; or 0
    partial: bool = False  # whether Z is alpha X Y alone
    terms: tuple[Term, ...] = ()  # terms, added in this order during the product; the first ones should arrive first
    places: tuple[Place, ...] = ()  # further places where Z is stored
    terms_late: bool = False  # whether the terms are added after X Y, and not during the product
    interleaved: int = 0  # number of directly preceding parts with whose tiles those of this part alternate
    origin: tuple[int, int] = (0, 0)  # row and column of Z in the operands of the epilogue
    # whether X Y is symmetric, so that half of it is computed; without further places, and if so in all parts
    symmetric: bool = False
    c: GpuArray | None = None  # of a symmetric product: Z := alpha X Y + beta C, and C has the strides of Z (local)

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


def stored_as(reading: Reading) -> tuple[object, ...]:
    """Properties that all parts of one launch share."""
    problem, swapped = reading
    return problem.transa, problem.transb, problem.k, problem.dtype, swapped


def list_capacity(count: int) -> int:
    """The smallest capacity of a list that holds `count` entries."""
    return next(capacity for capacity in _CAPACITIES if capacity >= count)


def key_of(part: Part) -> tuple[object, ...]:
    """The key of this part for the cache of launches."""
    x, y, z, *words, terms, places, terms_late, interleaved, origin, symmetric, c = part
    results = (*(term.z for term in terms), *(place.z for place in places), *(() if c is None else (c,)))
    arrays = tuple((w.data.ptr, w.shape, w.strides) for w in (x, y, z, *results))
    signals = *((term.flag, term.source) for term in terms), *(place.signal for place in places)
    return (*arrays, z.dtype, *words, terms_late, interleaved, *origin, symmetric, *signals)


def maps_of(part: Part, problem: Problem, swapped: bool) -> bytes:
    """The maps of the kernel's A, B and D; D is Z^T if Z is stored by columns, so A and B change places."""
    y, x = (part.y, part.x) if swapped else (part.x, part.y)
    a, b = (x, problem.dtype, *problem.stored_b, problem.ldb), (y, problem.dtype, *problem.stored_a, problem.lda)
    box, wide = (LINE, LINE), (LINE, 2 * LINE)
    boxes = ((a, box if problem.transb != "N" or is_side_by_side(problem.n) else wide), (b, box), (b, wide))
    maps = [map_of(*operand, box) for operand, box in boxes]
    return b"".join((*maps, map_of(part.z, problem.dtype, problem.m, problem.n, problem.ldz)))


def mirrored_maps(part: Part, problem: Problem) -> list[bytes]:
    """The places of a symmetric part: D as its mirror image is stored there, and C, whose rows may be its columns."""
    places = (part.z, (STRIPE, LINE)), (part.z if part.c is None else part.c, (LINE, STRIPE))
    return [map_of(w, problem.dtype, problem.m, problem.n, problem.ldz, box) for w, box in places]


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


_LONG = {"gelu", "erf", "log", "power"}  # functions of more than 20 instructions
_MOST_NBYTES = 12  # bytes of the elements of array operands that are loaded together
_ENDLESS = 1 << 62  # elements of a line of operands: the parts bound it


class KernelEpilogue(NamedTuple):
    """The epilogue of D, and those properties of its operands that are compiled into the kernel."""

    tree: Node
    dtypes: tuple[Dtype | None, ...]
    steps: tuple[int, ...]

    @staticmethod
    def of(finish: Finish, parts: Sequence[Part]) -> tuple[KernelEpilogue, list[int]]:
        """The epilogue, and the words of its operands (local)."""
        fast = int(read(*parts[0][:3]).swapped)  # the axis of D's contiguous lines
        dtypes, words = terms_of(finish, fast)
        check_count(len(dtypes))
        even = all(part.origin[fast] % 2 == 0 for part in parts)

        def step(dtype: Dtype | None, address: int, along: int, across: int) -> int:
            if dtype is None or along not in (0, 1):
                return ANY_STEP
            pairs = along == 0 or (even and across % 2 == 0 and address % (2 * dtype.itemsize) == 0)
            return along if pairs else ANY_STEP

        terms = zip(*(words[i::TERM_WORDS] for i in range(TERM_WORDS)), strict=True)
        steps = (step(dtype, *term) for dtype, term in zip(dtypes, terms, strict=True))
        return KernelEpilogue(finish.tree, dtypes, tuple(steps)), [_ENDLESS, *words]

    @property
    def is_long(self) -> bool:
        """Whether its code, unrolled for all sums of a thread, is slow to fetch or needs too many registers."""
        called = {node.function for node in nodes(self.tree) if isinstance(node, Apply)}
        arrays = [
            (dtype.itemsize, step) for dtype, step in zip(self.dtypes, self.steps, strict=True) if dtype is not None
        ]
        nbytes = sum(itemsize for itemsize, _ in arrays)
        return not called.isdisjoint(_LONG) or nbytes > _MOST_NBYTES or any(step == ANY_STEP for _, step in arrays)

    @property
    def text(self) -> str:
        """CUDA C++ in front of the kernel's source."""
        return functions(np.dtype(np.float16)) + printed(self.tree, self.dtypes, steps=self.steps)


@dataclass(frozen=True, slots=True)
class Variant:
    """A compilation of the kernel."""

    dtype: str
    a_along_m: bool
    b_along_n: bool
    reads_c: bool
    waits: bool
    signals: bool
    parts: int
    terms: int
    term_capacity: int
    places: int
    width: int
    split: int
    tree: bool = False
    symmetric: bool = False
    epilogue: KernelEpilogue | None = None

    @property
    def general(self) -> Variant:
        """The variant for epilogue operands of any memory layout."""
        if self.epilogue is None:
            return self
        return replace(self, epilogue=self.epilogue._replace(steps=(ANY_STEP,) * len(self.epilogue.steps)))

    @property
    def text(self) -> str:
        """The source."""
        return source() if self.epilogue is None else self.epilogue.text + source()

    @property
    def macros(self) -> list[tuple[str, str]]:
        """Macros of the source, and their values."""
        values = {
            "TYPE": f'"{TYPES[self.dtype][0]}"',
            "A_ALONG_M": int(self.a_along_m),
            "B_ALONG_N": int(self.b_along_n),
            "READS_C": int(self.reads_c),
            "WAITS": int(self.waits),
            "SIGNALS": int(self.signals),
            "PARTS": self.parts,
            "TERMS": self.terms,
            "TERM_CAPACITY": self.term_capacity,
            "PLACES": self.places,
            "WIDTH": self.width,
            "SPLIT": self.split,
            "TREE": int(self.tree),
            "SYMMETRIC": int(self.symmetric),
            "EPILOGUE": 0 if self.epilogue is None else 1 + self.epilogue.is_long,
        }
        return [(name, str(value)) for name, value in values.items()]


class Kernel:
    """A variant on the current device, from its machine code."""

    def __init__(self, variant: Variant, code: bytes) -> None:
        status, self._module = driver.cuModuleLoadData(code)
        if int(status):  # the cached file is damaged
            code = machine_code(variant.text, variant.macros, anew=True)
            self._module = checked(driver.cuModuleLoadData(code), "load")
        self._function = checked(driver.cuModuleGetFunction(self._module, b"hopper_gemm"), "find")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self._function, attribute, SHARED_NBYTES), "size")
        self._configs: dict[int, Any] = {}  # of launches, by clusters
        # Symmetric products run beside others: CTAs that are early would wait on multiprocessors that these can use.
        self._early = not variant.symmetric
        checked(
            driver.cuFuncLoad(self._function), "load"
        )  # not at the first launch: another kernel may be waiting then

    def launch(self, stream: int, clusters: int, arguments: int) -> None:
        """Launch the kernel."""
        config = self._configs.get(clusters)
        if config is None:
            config = configured(0, CLUSTER * clusters, THREADS, early=self._early, shared_nbytes=SHARED_NBYTES)
            self._configs[clusters] = config
        config.hStream = driver.CUstream(stream)
        checked(driver.cuLaunchKernelEx(config, self._function, arguments, 0), "launch")


def compiled(variants: Sequence[Variant]) -> list[Kernel]:
    """The kernels of some variants, which are compiled at the same time."""
    if not variants:
        return []
    with unbound_threads(len(variants)) as threads:
        codes = list(threads.map(lambda variant: machine_code(variant.text, variant.macros), variants))
    return [Kernel(variant, code) for variant, code in zip(variants, codes, strict=True)]
