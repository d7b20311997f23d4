"""Products on Hopper by a kernel of our own: compiled, described to TMA, launched (`kernels/hopper.cu`).

The kernel computes D := alpha A B + beta C with the rows of D contiguous. A problem of `backends.cuda.problem` has
its Z stored by columns, so D is Z^T, A is op(B)^T and B is op(A)^T there: operands change places, nothing is copied.
"""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy
import numpy as np
from cuda.bindings import driver

from pblas.backends.cuda.launches import configured, give
from pblas.backends.cuda.problem import Problem, Reading, read
from pblas.backends.engine import MAX_FLAGS, MAX_SLICES
from pblas.backends.nvshmem.cubins import machine_code
from pblas.backends.nvshmem.kernels import LONGEST, Watch, source
from pblas.backends.nvshmem.kernels.hopper import (
    CLUSTER,
    CONFIRM_AFTER,
    ERRAND,
    MAP_NBYTES,
    MOVING,
    PART,
    PARTS_AT,
    PEER,
    SCALARS,
    SENDING,
    SENT_LENGTH,
    SENT_LINES,
    SHARED_NBYTES,
    STRIPE,
    TERM,
    THREADS,
    TILE_US,
    are_dense,
    tasks,
)
from pblas.backends.nvshmem.workspace import FLAG_NBYTES
from pblas.backends.shapes import LINE, WIDEST, Shape, beside, shaped
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.cuda.launches import Stream

_ALIGNMENT = 16  # bytes, of what TMA reads: addresses and leading dimensions
_TYPES = {
    "bfloat16": ("bf16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16),
    "float16": ("f16", driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16),
}
_MOST_FLAGS = 32  # of parts, and of terms of all: bits of the words in which the kernel keeps which have arrived
_FEW = 8
_ROOMS = (0, 1, _FEW, _MOST_FLAGS)  # of lists of arguments: few, so that few variants are compiled
_ERRAND_ROOMS = (0, 32, 90)  # with these, and few places, arguments are less than 32 KB
_MOST_CALLS = 4096  # prepared at a time: about a KB each

FOR_EVER = Watch(LONGEST)


def supports(problem: Problem) -> bool:
    """Whether the kernel can multiply this: 16-bit operands and result whose lines TMA can address.

    Lines of Z have to end at a multiple of 16 bytes too: TMA writes the last 16 bytes of a line whole.

    Args:
        problem: what is multiplied (see `pblas.backends.cuda.problem.read`).
    """
    lds = (problem.lda, problem.ldb, problem.ldz)
    aligned = (problem.aligna, problem.alignb, problem.alignz)
    return (
        problem.dtype in _TYPES
        and problem.dtype_z == problem.dtype
        and problem.batch == 1
        and all(2 * length % _ALIGNMENT == 0 for length in (*lds, problem.m))
        and all(alignment == _ALIGNMENT for alignment in aligned)
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """A compilation of the kernel.

    Args:
        dtype: of all matrices.
        a_along_m: whether A is stored by columns.
        b_along_n: whether B is stored by rows.
        reads_c: whether beta is not 0.
        waits: whether parts have flags.
        signals: whether parts have signals.
        parts: of D, at most.
        terms: of each part that has any.
        listed: terms of all parts, at most.
        places: further ones where parts are stored, at most.
        width: of the widest tile.
        peers: to which an operand is sent, at most.
        errands: of clusters that move things, at most.
        split: CTAs that share a tile.
        stacked: whether a CTA's rows may belong to several parts.
    """

    dtype: str
    a_along_m: bool
    b_along_n: bool
    reads_c: bool
    waits: bool
    signals: bool
    parts: int
    terms: int
    listed: int
    places: int
    width: int
    peers: int
    errands: int
    split: int
    stacked: bool

    @property
    def macros(self) -> list[tuple[str, str]]:
        """What the source is told."""
        told = {
            "TYPE": f'"{_TYPES[self.dtype][0]}"',
            "A_ALONG_M": int(self.a_along_m),
            "B_ALONG_N": int(self.b_along_n),
            "READS_C": int(self.reads_c),
            "WAITS": int(self.waits),
            "SIGNALS": int(self.signals),
            "PARTS": self.parts,
            "TERMS": self.terms,
            "LISTED": self.listed,
            "PLACES": self.places,
            "WIDTH": self.width,
            "PEERS": self.peers,
            "ERRANDS": self.errands,
            "SPLIT": self.split,
            "STACKED": int(self.stacked),
        }
        return [(name, str(value)) for name, value in told.items()]


class Kernel:
    """A variant on the current device.

    Args:
        variant: which.
    """

    def __init__(self, variant: Variant) -> None:
        text, macros = source("hopper"), variant.macros
        status, self._module = driver.cuModuleLoadData(machine_code(text, macros))
        if int(status):  # a file that was damaged since
            self._module = _checked(driver.cuModuleLoadData(machine_code(text, macros, anew=True)), "load")
        self._function = _checked(driver.cuModuleGetFunction(self._module, b"hopper"), "find")
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._function, attribute, SHARED_NBYTES), "size")
        self._configs: dict[int, Any] = {}  # of launches, by clusters
        _checked(driver.cuFuncLoad(self._function), "load")  # not at the first launch: something may be spinning then

    def launch(self, stream: int, clusters: int, arguments: int) -> None:
        """Start it.

        Args:
            stream: handle.
            clusters: that take tiles, send or move.
            arguments: address of the array of one pointer to the arguments.
        """
        config = self._configs.get(clusters)
        if config is None:
            config = configured(0, CLUSTER * clusters, THREADS, early=True, shared_nbytes=SHARED_NBYTES)
            self._configs[clusters] = config
        config.hStream = driver.CUstream(stream)
        _checked(driver.cuLaunchKernelEx(config, self._function, arguments, 0), "launch")


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
        places: arrays like Z, perhaps of peers, into which it is stored too.
        late: whether the terms come when X Y is there, and not sooner.
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
    places: tuple[Any, ...] = ()
    late: bool = False


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
    step: int = 0


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
        short = len(self.errands) <= _ERRAND_ROOMS[-1] and all((e.nbytes | e.lines) >> 31 == 0 for e in self.errands)
        return short and not any(word % _ALIGNMENT for word in (*words, *self.pitches))


class Call:
    """A product whose arguments are ready for its kernel.

    Args:
        hopper: kernels and tables.
        parts: of Z, in the order in which they are computed; all with the same k and storage orders.
        reads_z: whether beta is not 0.
        sent: what the kernel sends meanwhile, if anything.
        moved: what it moves meanwhile, if anything.
        shape: of the work; None: what suits the parts.
    """

    def __init__(
        self,
        hopper: Hopper,
        parts: Sequence[Part],
        *,
        reads_z: bool,
        sent: Sent | None = None,
        moved: Moved | None = None,
        shape: Shape | None = None,
    ) -> None:
        assert hopper.serves(parts, sent, moved), "see `serves`"
        readings = [read(part.x, part.y, part.z) for part in parts]
        problem, few_tiles = readings[0].problem, any(part.late for part in parts)
        sizes = tuple((reading.problem.n, reading.problem.m) for reading in readings)
        steps = -(-problem.k // LINE)
        common = len({_key(part)[int(readings[0].swapped)] for part in parts}) == 1  # whether all have the kernel's B
        if are_dense(max(len(part.terms) for part in parts), steps):
            parts = [part._replace(late=True) for part in parts]
        if shape is None and (sent or few_tiles):
            shape, _ = shaped(sizes, problem.k, hopper.clusters, sends=sent is not None, common=common)
        shape = (shape or WIDEST).fitting(steps)
        if moved is not None:
            shape = shape._replace(senders=moved.clusters)
        variant = Variant(
            problem.dtype,
            a_along_m=problem.transb != "N",
            b_along_n=problem.transa == "N",
            reads_c=reads_z,
            waits=any(part.flag for part in parts),
            signals=any(part.signal for part in parts),
            parts=_room(len(parts)),
            terms=max(len(part.terms) for part in parts),
            listed=_room(sum(len(part.terms) for part in parts)),
            places=_room(sum(len(part.places) for part in parts)),
            width=shape.width,
            peers=_room(len(sent.targets)) if sent else 0,
            errands=_room(len(moved.errands), _ERRAND_ROOMS) if moved else 0,
            split=shape.split,
            stacked=shape.stacked,
        )
        told = variant.signals or variant.terms
        assert not shape.stacked or (common and not told), "several parts in a tile: they share B, nobody waits for one"
        self._kernel = hopper.kernel(variant)
        ready = tuple(round(part.ready / (TILE_US * problem.k), 2) for part in parts)
        self._table, counts = hopper.table(sizes, ready, hopper.clusters - shape.senders, shape)
        self._clusters = min(len(self._table), hopper.clusters - shape.senders) + shape.senders
        slice_steps = sent.length // LINE if sent else steps
        confirm_after = steps if few_tiles else CONFIRM_AFTER
        own_steps = sum(-(-min(slice_steps, steps - k) // shape.split) for k in range(0, steps, slice_steps))
        pitch = sent.pitch // FLAG_NBYTES if sent else 0
        slicing = (-(-steps // slice_steps), slice_steps, pitch, own_steps, shape.senders)
        self._scalars = (hopper.counters.data.ptr, confirm_after, *slicing)
        self._steps = steps
        described, terms, places = list[bytes](), list[bytes](), list[bytes]()
        for part, reading, count in zip(parts, readings, counts, strict=True):
            abreast = not shape.stacked and beside(reading.problem.n)
            words = (part.flag, part.source, part.signal, count, abreast, part.partial)
            first = (len(terms) if part.terms else -1, len(places), len(places) + len(part.places))
            described.append(_described(part, *reading, stacked=shape.stacked) + PART.pack(*words, *first, part.late))
            others = _readings(part)[1:]
            terms += [
                _map_of(term.z, w.dtype, w.m, w.n, w.ldz, (LINE, LINE if part.late else STRIPE))
                + TERM.pack(term.flag, term.source)
                for term, (w, _) in zip(part.terms, others, strict=False)
            ]
            places += [
                _map_of(place, w.dtype, w.m, w.n, w.ldz)
                for place, (w, _) in zip(part.places, others[len(part.terms) :], strict=True)
            ]
        part_nbytes, term_nbytes = len(described[0]), MAP_NBYTES + TERM.size
        lists = ((described, variant.parts, part_nbytes), (terms, max(variant.listed, 1), term_nbytes))
        listed = [b"".join(entries).ljust(room * nbytes, bytes(1)) for entries, room, nbytes in lists]
        listed.append(b"".join(places).ljust(max(variant.places, 1) * MAP_NBYTES, bytes(1)))
        listed.append(_sending(sent, problem.dtype, hopper.sent.data.ptr) if sent else bytes(_SENDING_NBYTES))
        listed.append(_moving(moved or Moved((), (0, 0), 0), hopper.moved.data.ptr))
        self._memory = ctypes.create_string_buffer(bytes(PARTS_AT) + b"".join(listed))
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))

    def launch(self, stream: Stream, alpha: float, beta: float, watch: Watch) -> None:
        """Start it, or let it be kept, with its arguments.

        Args:
            stream: handle.
            alpha: scalar.
            beta: scalar.
            watch: when to give up waiting for flags.
        """
        table, watched = (self._table.data.ptr, len(self._table)), (watch.abort, watch.record, watch.timeout, 0)
        scalars = (self._steps, alpha, beta, *self._scalars)
        SCALARS.pack_into(self._memory, 0, *table, *scalars, *watched)
        words = memoryview(self._memory).cast("B")[:-1].cast("q")

        def start(handle: int) -> None:
            self._kernel.launch(handle, self._clusters, ctypes.addressof(self._pointer))

        give(stream, start, words)


class Hopper:
    """Products on the current device, a Hopper GPU.

    Not for several threads at once; products whose parts have flags, signals or terms run one after the other. A call
    with new arrays makes tables and perhaps compiles, so a call that is captured has to be made once before.
    """

    def __init__(self) -> None:
        self.clusters = int(cupy.cuda.Device().attributes["MultiProcessorCount"]) // CLUSTER
        self.counters = cupy.zeros(1 + _MOST_FLAGS, cupy.uint32)
        self.sent = cupy.zeros(MAX_SLICES, cupy.uint32)
        self.moved = cupy.zeros(_ERRAND_ROOMS[-1], cupy.uint32)
        cupy.cuda.get_current_stream().synchronize()
        self._kernels: dict[Variant, Kernel] = {}
        self._tables: dict[Any, Any] = {}
        self._calls: dict[Any, Call] = {}

    def serves(self, parts: Sequence[Part], sent: Sent | None = None, moved: Moved | None = None) -> bool:
        """Whether one launch can make these parts: not too many, all fit for TMA and stored alike, sums of as many."""
        readings = [reading for part in parts for reading in _readings(part)]
        fit = all(supports(reading.problem) for reading in readings) and len({_stored(w) for w in readings}) == 1
        terms, places = [len(part.terms) for part in parts if part.terms], sum(len(part.places) for part in parts)
        if sent is not None and len(parts) * -(-readings[0].problem.k // sent.length) > MAX_FLAGS:
            return False
        if moved is not None and not (moved.fits and moved.clusters < self.clusters and places <= _FEW):
            return False
        return fit and max(len(parts), sum(terms), places) <= _MOST_FLAGS and len({*terms}) <= 1

    def prepare(
        self, parts: Sequence[Part], *, reads_z: bool, sent: Sent | None = None, moved: Moved | None = None
    ) -> None:
        """Compile, load and make what `matmul` needs for parts of these sizes and storage orders; launches nothing."""
        Call(self, parts, reads_z=reads_z, sent=sent, moved=moved)

    def matmul(
        self,
        stream: Stream,
        alpha: float,
        parts: Sequence[Part],
        beta: float,
        *,
        sent: Sent | None = None,
        moved: Moved | None = None,
        shape: Shape | None = None,
        watch: Watch = FOR_EVER,
    ) -> None:
        """Z := alpha X Y + terms + beta Z for each part, in stream order.

        Args:
            stream: handle.
            alpha: scalar.
            parts: of Z, in the order in which they are computed; all with the same k, dtype and storage orders, none
                empty.
            beta: scalar; Z is not read when it is 0.
            sent: what is sent meanwhile.
            moved: what is moved meanwhile; then nothing is sent.
            shape: of the work; None: what suits the parts.
            watch: when to give up waiting for flags; Z has no meaning then.
        """
        key = (*(_key(part) for part in parts), beta != 0, shape, sent and _key_of_sent(sent), moved)
        call = self._calls.get(key)
        if not isinstance(stream, int):  # whoever keeps it changes its arguments
            call = Call(self, parts, reads_z=beta != 0, sent=sent, moved=moved, shape=shape)
        elif call is None:
            if len(self._calls) >= _MOST_CALLS:
                self._calls.clear()
            call = self._calls[key] = Call(self, parts, reads_z=beta != 0, sent=sent, moved=moved, shape=shape)
        call.launch(stream, alpha, beta, watch)

    def kernel(self, variant: Variant) -> Kernel:
        """The kernel of a variant."""
        if variant not in self._kernels:
            self._kernels[variant] = Kernel(variant)
        return self._kernels[variant]

    def table(
        self, sizes: tuple[tuple[int, int], ...], ready: tuple[float, ...], clusters: int, shape: Shape
    ) -> tuple[Any, list[int]]:
        """Tasks that cover parts of these sizes, on the device, and tiles of each part; arguments as of `tasks`."""
        key = (sizes, ready, clusters, shape)
        if key not in self._tables:
            found = tasks(sizes, clusters, ready, shape)
            counts = Counter(tile.part for tiles in found for tile in tiles if tile.width)
            places = cupy.asarray(np.array(found, np.int32))
            self._tables[key] = places, [counts[part] for part in range(len(sizes))]
            cupy.cuda.get_current_stream().synchronize()
        return self._tables[key]


_SENDING_NBYTES = MAP_NBYTES + SENDING.size + MAP_NBYTES + PEER.size


def _sending(sent: Sent, dtype: str, counters: int) -> bytes:
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
        return _map_of(x, dtype, inner, outer, x.strides[axes[1]] // x.itemsize, box)

    words = (along_k, sent.length // of_k, -(-lines // of_lines), len(sent.targets), counters)
    peers = [described(x) + PEER.pack(flag) for x, flag in zip(sent.targets, sent.flags, strict=True)]
    room = max(1, _room(len(peers))) * (MAP_NBYTES + PEER.size)
    return described(operand) + SENDING.pack(*words) + b"".join(peers).ljust(room, bytes(1))


def _moving(moved: Moved, counters: int) -> bytes:
    """The description of what is moved; arguments end at a multiple of 64 bytes."""
    errands = [
        ERRAND.pack(*of[:2], of.awaited, of.told, of.lines << 32 | of.nbytes, of.step << 32 | of.by)
        for of in moved.errands
    ]
    room = max(1, _room(len(errands), _ERRAND_ROOMS)) * ERRAND.size
    found = MOVING.pack(len(errands), *moved.pitches, counters) + b"".join(errands).ljust(room, bytes(1))
    return found.ljust(len(found) + -len(found) % 64, bytes(1))


def _key_of_sent(sent: Sent) -> tuple[Any, ...]:
    return (*((w.data.ptr, w.shape, w.strides) for w in (sent.operand, *sent.targets)), *sent[1:2], *sent[3:])


def _readings(part: Part) -> list[Reading]:
    """A part's product, and those that would have its terms, and its further places, as results."""
    return [read(part.x, part.y, z) for z in (part.z, *(term.z for term in part.terms), *part.places)]


def _stored(reading: Reading) -> tuple[Any, ...]:
    """What parts of one launch have in common."""
    problem, swapped = reading
    return problem.transa, problem.transb, problem.k, problem.dtype, swapped


def _room(count: int, rooms: tuple[int, ...] = _ROOMS) -> int:
    """Entries of a list that so many fit into."""
    return next(room for room in rooms if room >= count)


def _key(part: Part) -> tuple[Any, ...]:
    x, y, z, *words, terms, places, late = part
    arrays = tuple((w.data.ptr, w.shape, w.strides) for w in (x, y, z, *(term.z for term in terms), *places))
    return (*arrays, z.dtype, *words, late, *((term.flag, term.source) for term in terms))


def _described(part: Part, problem: Problem, swapped: bool, *, stacked: bool) -> bytes:
    """The maps of the kernel's A, B and D; its D is Z^T where Z is stored by columns, so A and B change places."""
    y, x = (part.y, part.x) if swapped else (part.x, part.y)
    a, b = (x, problem.dtype, *problem.stored_b, problem.ldb), (y, problem.dtype, *problem.stored_a, problem.lda)
    box, wide = (LINE, LINE), (LINE, 2 * LINE)
    boxes = ((a, box if problem.transb != "N" or stacked or beside(problem.n) else wide), (b, box), (b, wide))
    maps = [_map_of(*operand, box) for operand, box in boxes]
    return b"".join((*maps, _map_of(part.z, problem.dtype, problem.m, problem.n, problem.ldz)))


def _map_of(matrix: Any, dtype: str, length: int, lines: int, ld: int, box: tuple[int, int] = (LINE, STRIPE)) -> bytes:
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
    found = _checked(
        driver.cuTensorMapEncodeTiled(
            _TYPES[dtype][1],
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


def _checked(result: tuple[Any, ...], what: str) -> Any:
    """What a driver call returned behind its status."""
    status, *values = result
    if int(status):
        raise BackendError(f"the driver cannot {what} the Hopper kernel: {status.name}")
    return values[0] if values else None
