"""Products on Hopper by the kernel of pblas (`gemm.cu`): its compilation, arguments and launch.

The kernel computes D := alpha A B + beta C with the rows of D contiguous. A problem of `backends.cuda.gemm_problem` has
its Z stored by columns, so D is Z^T, A is op(B)^T and B is op(A)^T: operands change places, nothing is copied.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy
import numpy as np

from pblas import errors
from pblas.backends.cuda.gemm_problem import read
from pblas.backends.cuda.kernels import Stream, give
from pblas.backends.engine_limits import (
    LINE,
    ROWS,
    WIDEST,
    WIDTH,
    Shape,
    choose_shape,
    is_side_by_side,
    side_by_side_rows,
)
from pblas.backends.nvshmem.hopper.compile import (
    MOST_FLAGS,
    Kernel,
    KernelEpilogue,
    Part,
    Variant,
    compiled,
    key_of,
    list_capacity,
    map_of,
    maps_of,
    mirrored_maps,
    place_signals,
    readings_of,
    stored_as,
    supports,
)
from pblas.backends.nvshmem.hopper.tile_scheduler import (
    CLUSTER,
    MAP_NBYTES,
    PART,
    PARTS_AT,
    SCALARS,
    STRIPE,
    TERM,
    TERMS_NBYTES,
    TILE_US,
    are_dense,
    tiles_of_ctas,
)
from pblas.backends.nvshmem.kernels.arguments import LONGEST, NO_STEP, Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import GpuArray
    from pblas.backends.push_engine import Finish

_MOST_CALLS = 4096  # prepared calls: about a KB each

FOR_EVER = Watch(LONGEST)


class Pieces(NamedTuple):
    """Pieces of K whose products are added along a binary tree, and memory for their sums."""

    width: int  # elements of K in each piece but the last, a multiple of LINE or all
    sums: int  # address of `Hopper.sums_nbytes` bytes (local)


class Call:
    """A product with prepared kernel arguments."""

    def __init__(
        self,
        hopper: Hopper,
        parts: Sequence[Part],
        *,
        reads_z: bool,
        epilogue: KernelEpilogue | None = None,
        shape: Shape | None = None,
        pieces: Pieces | None = None,
        planned: bool = False,
    ) -> None:
        assert hopper.serves(parts), "see `serves`"
        readings = [read(part.x, part.y, part.z) for part in parts]
        problem, stores = readings[0].problem, any(part.terms_late for part in parts)
        sizes = tuple((reading.problem.n, reading.problem.m) for reading in readings)
        steps = -(-problem.k // LINE)
        if are_dense(max(len(part.terms) for part in parts), steps):
            parts = [part._replace(terms_late=True) for part in parts]
        if shape is None and stores:
            shape, _ = choose_shape(sizes, problem.k, hopper.clusters)
        shape = (shape or WIDEST).fitting(steps)
        variant = Variant(
            problem.dtype,
            a_along_m=problem.transb != "N",
            b_along_n=problem.transa == "N",
            reads_c=reads_z,
            waits=any(part.flag for part in parts),
            signals=any(part.has_signal for part in parts),
            parts=list_capacity(len(parts)),
            terms=max(len(part.terms) for part in parts),
            term_capacity=list_capacity(sum(len(part.terms) for part in parts)),
            places=list_capacity(sum(map(_places, parts))),
            width=shape.width,
            split=shape.split,
            tree=pieces is not None,
            symmetric=parts[0].symmetric,
            epilogue=epilogue,
        )
        self._kernel = hopper.kernel(variant, planned=planned)
        ready = tuple(round(part.ready / (TILE_US * problem.k), 2) for part in parts)
        interleaved = tuple(part.interleaved for part in parts)
        self._table, counts = hopper.table(sizes, ready, shape, interleaved, symmetric=variant.symmetric)
        self._clusters, self._steps = min(len(self._table), hopper.clusters), -(-steps // shape.split)
        store_interval = self._steps // (shape.width // LINE) if stores else 1
        self._scalars = (hopper.counters.data.ptr, max(1, store_interval))
        self._pieces = (0, 0) if pieces is None else (-(-pieces.width // LINE), pieces.sums)
        described, terms, places = list[bytes](), list[bytes](), list[bytes]()
        for part, reading, count in zip(parts, readings, counts, strict=True):
            rows, length = reading.problem.n, reading.problem.m
            words = (part.flag, part.source, part.signal, count if part.has_signal else 0, is_side_by_side(rows))
            extents = (rows, length, *(part.origin if reading.swapped else part.origin[::-1]), part.partial)
            first = (len(terms) if part.terms else -1, len(places), len(places) + len(part.places))
            packed = PART.pack(*words, *extents, *first, part.terms_late, rows - side_by_side_rows(rows))
            described.append(maps_of(part, *reading) + packed)
            results = readings_of(part)[1:]
            terms += [
                map_of(term.z, w.dtype, w.m, w.n, w.ldz, (LINE, LINE if part.terms_late else STRIPE))
                + TERM.pack(term.flag, term.source)
                for term, (w, _) in zip(part.terms, results, strict=False)
            ]
            places += [
                map_of(place.z, w.dtype, w.m, w.n, w.ldz)
                for place, (w, _) in zip(part.places, results[len(part.terms) :], strict=True)
            ]
            if part.symmetric:
                places += mirrored_maps(part, reading.problem)
        part_nbytes, term_nbytes = len(described[0]), MAP_NBYTES + TERM.size
        lists = (
            (described, variant.parts, part_nbytes),
            (terms, max(variant.term_capacity, 1), term_nbytes),
            (places, max(variant.places, 1), MAP_NBYTES),
        )
        listed = [b"".join(entries).ljust(capacity * nbytes, bytes(1)) for entries, capacity, nbytes in lists]
        listed.append(place_signals(parts, max(variant.places, 1)))
        listed.insert(0, bytes(PARTS_AT))
        self._operands_at = sum(map(len, listed))
        listed.append(bytes(TERMS_NBYTES if epilogue is not None else 0))
        self._memory = ctypes.create_string_buffer(b"".join(listed))
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))

    def launch(self, stream: Stream, alpha: float, beta: float, watch: Watch, operands: Sequence[int] = ()) -> None:
        """Launch or record the call."""
        table, watched = (self._table.data.ptr, len(self._table)), (watch.abort, watch.record, watch.timeout, NO_STEP)
        scalars = (self._steps, alpha, beta, *self._scalars)
        SCALARS.pack_into(self._memory, 0, *table, *scalars, *watched, *self._pieces)
        struct.pack_into(f"={len(operands)}q", self._memory, self._operands_at, *operands)
        words = memoryview(self._memory).cast("B")[:-1].cast("q")

        def start(handle: int) -> None:
            self._kernel.launch(handle, self._clusters, ctypes.addressof(self._pointer))

        give(stream, start, words)


class Hopper:
    """Products on the current device, a Hopper GPU.

    One thread at a time. Products whose parts have flags, signals or terms must run one after the other. A call
    with new arrays makes tables and perhaps compiles a kernel, so make a call once before it is captured.
    """

    def __init__(self) -> None:
        self.clusters: int = int(cupy.cuda.Device().attributes["MultiProcessorCount"]) // CLUSTER
        self.counters: GpuArray = cupy.zeros(1 + MOST_FLAGS, cupy.uint32)
        cupy.cuda.get_current_stream().synchronize()
        self._kernels: dict[Variant, Kernel] = {}
        self._tables: dict[object, Any] = {}
        self._calls: dict[Any, Call] = {}

    def sums_nbytes(self, pieces: int) -> int:
        """Bytes of memory for the sums of so many pieces of K, a power of two: of each level of the tree below D."""
        return (pieces.bit_length() - 1) * self.clusters * ROWS * WIDTH * 4

    def serves(self, parts: Sequence[Part]) -> bool:
        """Whether one launch can compute these parts: few, fit for TMA, of one storage order and number of terms."""
        readings = [reading for part in parts for reading in readings_of(part)]
        fit = all(supports(reading.problem) for reading in readings) and len({stored_as(w) for w in readings}) == 1
        terms, places = [len(part.terms) for part in parts if part.terms], sum(map(_places, parts))
        return fit and max(len(parts), sum(terms), places) <= MOST_FLAGS and len({*terms}) <= 1

    def prepare(self, parts: Sequence[Part], *, reads_z: bool, finish: Finish | None = None) -> None:
        """Compile and load kernels and make tables of `matmul` for parts of these sizes and storage orders."""
        epilogue = None if finish is None else KernelEpilogue.of(finish, parts)[0]
        Call(self, parts, reads_z=reads_z, epilogue=epilogue, planned=True)

    def matmul(
        self,
        stream: Stream,
        alpha: float,
        parts: Sequence[Part],
        beta: float,
        *,
        finish: Finish | None = None,
        shape: Shape | None = None,
        pieces: Pieces | None = None,
        watch: Watch = FOR_EVER,
    ) -> None:
        """Z := alpha X Y + terms + beta Z for each part, and its epilogue, in stream order."""
        epilogue, operands = (None, []) if finish is None else KernelEpilogue.of(finish, parts)
        key = (*(key_of(part) for part in parts), beta != 0, epilogue, shape, pieces)
        call = self._calls.get(key) if isinstance(stream, int) else None  # a recording changes its arguments
        if call is None:
            call = Call(self, parts, reads_z=beta != 0, epilogue=epilogue, shape=shape, pieces=pieces)
            if isinstance(stream, int):
                if len(self._calls) >= _MOST_CALLS:
                    self._calls.clear()
                self._calls[key] = call
        call.launch(stream, alpha, beta, watch, operands)

    def kernel(self, variant: Variant, *, planned: bool) -> Kernel:
        """The kernel of a variant, or the general kernel if only that was planned."""
        kernels = self._kernels
        lacking = [x for x in dict.fromkeys((variant, variant.general)) if x not in kernels] if planned else []
        if not lacking and variant not in kernels and variant.general not in kernels:
            lacking = [variant]
        kernels.update(zip(lacking, compiled(lacking), strict=True))
        return kernels.get(variant) or kernels[variant.general]

    def table(
        self,
        sizes: tuple[tuple[int, int], ...],
        ready: tuple[float, ...],
        shape: Shape,
        interleaved: tuple[int, ...],
        *,
        symmetric: bool,
    ) -> tuple[Any, list[int]]:
        """The tiles of `cover` on the device, and their number in each part; arguments as in `cover`."""
        key = (sizes, ready, shape, interleaved, symmetric)
        if key not in self._tables:
            tiles = tiles_of_ctas(sizes, self.clusters, ready, shape, interleaved, symmetric=symmetric)
            counts = Counter(tile.part for cta_tiles in tiles for tile in cta_tiles if tile.width)
            places = cupy.asarray(np.array(tiles, np.int32))
            self._tables[key] = places, [counts[part] for part in range(len(sizes))]
            cupy.cuda.get_current_stream().synchronize()
        return self._tables[key]


def _places(part: Part) -> int:
    """Number of the maps of a part's places."""
    return 2 if part.symmetric else len(part.places)


class TreeGemm:
    """Z := X Y by the kernel, with the products of pieces of K added along a binary tree in float32, and rounded once.

    One launch at a time: all of them use the same memory for sums. Also symmetric products, by half of the operations.
    """

    def __init__(self) -> None:
        self._hopper = Hopper()
        self._memory: list[cupy.cuda.Memory] = []  # for sums, the largest one last; captured launches keep theirs

    def serves(self, x: GpuArray, y: GpuArray, z: GpuArray) -> bool:
        """Whether the kernel can form this product."""
        return self._hopper.serves([Part(x, y, z)])

    def reserve(self, pieces: int) -> None:
        """Reserve memory for the sums of so many pieces."""
        nbytes = max(self._hopper.sums_nbytes(pieces), 1)
        if not self._memory or self._memory[-1].size < nbytes:
            try:
                self._memory.append(cupy.cuda.Memory(nbytes))
            except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError) as caught:
                raise errors.BackendError(f"{nbytes} bytes for sums of pieces: {caught}") from None

    def matmul(self, stream: Stream, x: GpuArray, y: GpuArray, z: GpuArray, width: int) -> None:
        """Z := X Y with pieces of `width` elements of K, in stream order."""
        pieces = Pieces(width, int(self._memory[-1].ptr))
        self._hopper.matmul(stream, 1.0, [Part(x, y, z)], 0.0, pieces=pieces)

    def multiply_symmetric(
        self, stream: Stream, alpha: float, x: GpuArray, y: GpuArray, beta: float, c: GpuArray | None, z: GpuArray
    ) -> bool:
        """Z := alpha X Y + beta C in stream order, where X Y is symmetric; false if the kernel cannot form it."""
        part = Part(x, y, z, symmetric=True, c=c)
        if not self._hopper.serves([part]):
            return False
        self._hopper.matmul(stream, alpha, [part], beta)
        return True
