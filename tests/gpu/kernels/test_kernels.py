"""Laws of the kernels on one GPU that is its own peer: a rank is a piece of memory, and a stream if ranks wait.

Under compute-sanitizer (without API errors, since cuda-bindings looks for symbols that older drivers lack):
compute-sanitizer --report-api-errors no --error-exitcode 9 python -m pytest tests/gpu/kernels/test_kernels.py
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
import pytest

from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.nvshmem.kernels import Kernels, Reduction, Strided, compiled_epilogue
from pblas.backends.nvshmem.kernels.arguments import (
    ABORTED,
    LATE,
    MAX_CTAS,
    NO_STEP,
    RECORD,
    Block,
    Slots,
    Watch,
    all_reduce_flags_nbytes,
    barrier_flags_nbytes,
    pulling_ctas,
    push_counter_nbytes,
)
from pblas.backends.nvshmem.kernels.sources import ALWAYS, FILES
from pblas.backends.push_engine import Finish
from pblas.epilogues import parse
from pblas.plans.partition import flat_share
from tests.common.gauge import NAMES, Array, dtype_of, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.gpu

EMPTY = 0xFF  # in every byte of an empty slot
POISON = 0xFE  # in every byte: a large negative number in most dtypes, and no sum of small numbers in any dtype
SECOND = 10**9
FLOAT32 = np.dtype(np.float32)
HALVES = ("float16", "bfloat16")
WIRES = [(name, name) for name in NAMES] + [(name, "float32") for name in HALVES]
SHAPES = ((1, 1), (7, 1), (8, 3), (9, 8), (257, 5), (1024, 33))
PADDINGS = ((0, 0), (8, 0), (3, 0), (8, 1), (0, 1))  # of the lines, and before the first


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    library = Kernels()
    library.load(0)
    for file in FILES:
        if file not in ALWAYS:
            library.require(0, file)
    cupy.cuda.runtime.deviceSynchronize()
    return library


@pytest.fixture
def stream() -> Iterator[Any]:
    created = cupy.cuda.Stream(non_blocking=True)
    yield created
    created.synchronize()


@pytest.fixture(scope="module")
def streams() -> list[Any]:
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(8)]


class Lines:
    """Lines of elements in poisoned device memory, `padding` elements between them and `offset` before them."""

    def __init__(self, x: Array, padding: int = 0, offset: int = 0) -> None:
        self.shape, self.dtype, self.offset = x.shape, x.dtype, offset
        self.rows, self.columns = x.shape
        self.ld = self.rows + padding
        memory = np.full((offset + self.ld * self.columns) * x.itemsize, POISON, np.uint8)
        self._view(memory)[...] = x
        self.memory = cupy.asarray(memory)
        self.before = memory
        cupy.cuda.runtime.deviceSynchronize()

    def _view(self, memory: Array) -> Array:
        lines = memory.view(self.dtype)[self.offset :].reshape(self.columns, self.ld)
        return lines[:, : self.rows].T

    @property
    def address(self) -> int:
        return int(self.memory.data.ptr) + self.offset * self.dtype.itemsize

    def read(self) -> Array:
        """The elements; the memory around them must be unchanged."""
        memory = self.memory.get()
        values = self._view(memory).copy()
        self._view(memory)[...] = self._view(self.before)
        assert np.array_equal(memory, self.before)
        return values


def same_bits(x: Array, y: Array) -> bool:
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.dtype == y.dtype and np.array_equal(x.view(np.uint8), y.view(np.uint8))


def times(beta: complex, x: Array) -> Array:
    """Beta x, real and imaginary parts separately, in the precision of x."""
    if x.dtype.kind != "c":
        return (x.real.dtype.type(beta.real) * x).astype(x.dtype)
    a, b = x.real.dtype.type(beta.real), x.real.dtype.type(beta.imag)
    product = np.empty_like(x)
    product.real = a * x.real - b * x.imag if beta.imag else a * x.real
    product.imag = a * x.imag + b * x.real if beta.imag else a * x.imag
    return product


def added(parts: Sequence[Array], beta: complex, old: Array | None, dtype: np.dtype[Any]) -> Array:
    """The sum in the order of the parts, rounded once."""
    wide = accumulator_dtype(dtype)
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = total + part.astype(wide)
    if beta and old is not None:
        total = total + times(complex(beta), old.astype(wide))
    result: Array = total.astype(dtype)
    return result


def block_of(source: Lines, target: Lines) -> Block:
    """The block that copies lines to other lines of the same length."""
    itemsize = target.dtype.itemsize
    pitches = source.ld * itemsize, target.ld * itemsize
    return Block(source.address, target.address, target.rows * itemsize, -1, target.columns, *pitches)


def strided(x: Lines) -> Strided:
    return Strided(x.address, x.ld)


def run_sum(
    kernels: Kernels,
    stream: Any,
    parts: list[Lines],
    out: Lines,
    old: Lines | None = None,
    beta: complex = 0,
    **options: Any,
) -> Array:
    kernels.sum(
        stream.ptr, out.dtype, out.shape, [strided(part) for part in parts], strided(out),
        old=None if old is None else strided(old), beta=beta, wire=parts[0].dtype, **options,
    )  # fmt: skip
    stream.synchronize()
    return out.read()


@pytest.mark.parametrize(("name", "wire"), WIRES)
@pytest.mark.parametrize("nparts", [1, 2, 3, 4, 7, 8, 9, 17, 64])
def test_sums_have_the_bits_of_the_order(kernels: Kernels, stream: Any, name: str, wire: str, nparts: int) -> None:
    dtype = dtype_of(name)
    for number, shape in enumerate(SHAPES if nparts < 17 else SHAPES[2:4]):
        terms = [entries(shape, dtype_of(wire), 100 * number + k) for k in range(nparts)]
        old = entries(shape, dtype, 99)
        for padding, offset in PADDINGS:
            parts = [Lines(term, padding, offset) for term in terms]
            for beta in (0.0, 1.0, -0.7, 0.3 - 1.1j) if dtype.kind == "c" else (0.0, 1.0, -0.7):
                out, kept = Lines(np.zeros(shape, dtype), padding, offset), Lines(old, padding)
                assert same_bits(run_sum(kernels, stream, parts, out, kept, beta), added(terms, beta, old, dtype))
            assert all(same_bits(part.read(), term) for part, term in zip(parts, terms, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_sums_are_close_to_those_of_float64(kernels: Kernels, stream: Any, name: str) -> None:
    dtype, shape = dtype_of(name), (2000, 301)
    wide = np.complex128 if dtype.kind == "c" else np.float64
    terms = [entries(shape, dtype, k) for k in range(8)]
    exact = np.sum([term.astype(wide) for term in terms], axis=0)
    bound = np.sum([abs(term.astype(wide)) for term in terms], axis=0) * 8 * np.finfo(accumulator_dtype(dtype)).eps
    bound += abs(exact) * {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(name, 0.0)
    result = run_sum(kernels, stream, [Lines(term) for term in terms], Lines(np.zeros(shape, dtype)))
    assert np.all(abs(result.astype(wide) - exact) <= bound)


@pytest.mark.parametrize("name", NAMES)
def test_sums_in_place(kernels: Kernels, stream: Any, name: str) -> None:
    dtype, shape = dtype_of(name), (130, 9)
    terms, old = [entries(shape, dtype, k) for k in range(3)], entries(shape, dtype, 9)
    out = Lines(old, 3)
    assert same_bits(
        run_sum(kernels, stream, [Lines(term) for term in terms], out, out, 0.5), added(terms, 0.5, old, dtype)
    )
    parts = [Lines(term) for term in terms]
    assert same_bits(run_sum(kernels, stream, parts, parts[1]), added(terms, 0, None, dtype))


@pytest.mark.parametrize("name", NAMES)
def test_unread_memory_may_be_nan(kernels: Kernels, stream: Any, name: str) -> None:
    dtype, shape = dtype_of(name), (65, 3)
    terms, nan = [entries(shape, dtype, k) for k in range(2)], np.full(shape, np.nan, dtype)
    result = run_sum(kernels, stream, [Lines(term) for term in terms], Lines(nan), Lines(nan), 0.0)
    assert same_bits(result, added(terms, 0, None, dtype))
    target = Lines(nan)
    kernels.scale(stream.ptr, dtype, 0.0, block_of(Lines(nan), target))
    stream.synchronize()
    assert same_bits(target.read(), np.zeros(shape, dtype))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64"])
def test_subnormal_numbers_stay(kernels: Kernels, stream: Any, name: str) -> None:
    dtype, tiny = dtype_of(name), np.full((33, 2), 1e-39, dtype_of(name))
    assert abs(complex(tiny[0, 0])) > 0
    out = Lines(np.zeros(tiny.shape, dtype))
    assert same_bits(
        run_sum(kernels, stream, [Lines(tiny)] * 2, out, Lines(tiny), 2.0), added([tiny] * 2, 2, tiny, dtype)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_scale_and_conjugate(kernels: Kernels, stream: Any, name: str, shape: tuple[int, int]) -> None:
    dtype, wide = dtype_of(name), accumulator_dtype(dtype_of(name))
    x = entries(shape, dtype, 1)
    for padding, offset in PADDINGS:
        source = Lines(x, padding, offset)
        for beta in (0.0, 1.0, -0.3, 0.2 + 3j) if dtype.kind == "c" else (0.0, 1.0, -0.3):
            target = Lines(np.full(shape, np.nan, dtype), 5)
            kernels.scale(stream.ptr, dtype, beta, block_of(source, target))
            stream.synchronize()
            expected = times(complex(beta), x.astype(wide)).astype(dtype) if beta else np.zeros(shape, dtype)
            assert same_bits(target.read(), expected)
        if dtype.kind == "c":
            for target in (Lines(np.full(shape, np.nan, dtype), 1), source):
                kernels.conjugate(stream.ptr, dtype, block_of(source, target))
                stream.synchronize()
                assert same_bits(target.read(), x.conj())


@pytest.mark.parametrize(("lines", "width"), [(1, 16), (1, 3 << 20), (5, 8192), (3, 8208), (700, 48), (3, 25600)])
@pytest.mark.parametrize("gap", [0, 32])
def test_blocks_are_copied_during_products(kernels: Kernels, stream: Any, lines: int, width: int, gap: int) -> None:
    source = cupy.random.default_rng(lines).integers(0, 256, (lines + 1, width + gap), cupy.uint8)
    target, pitch = cupy.full((lines + 1, width + 3 * gap), POISON, cupy.uint8), width + gap
    block = Block(source.data.ptr, target.data.ptr, width, -1, lines, pitch, width + 3 * gap)
    cupy.cuda.runtime.deviceSynchronize()
    kernels.copy(stream.ptr, block.flat())
    stream.synchronize()
    assert (target[:lines, :width] == source[:lines, :width]).all()
    assert (target[:lines, width:] == POISON).all()
    assert (target[lines] == POISON).all()


def in_packs(count: int, itemsize: int) -> int:
    """Bytes of `count` elements, rounded up to 16."""
    return -(-count * itemsize // 16) * 16


class Rank:
    """The memory of one rank: slots, partial product, flags, results of both parities; a record and an abort word.

    Shots are 1, 2, or 3 for a two-shot all-reduce that pulls.
    """

    def __init__(self, nranks: int, count: int, dtype: np.dtype[Any], wire: np.dtype[Any]) -> None:
        self.slot_nbytes = in_packs(count, wire.itemsize)
        self.slots = [cupy.full(2 * nranks * self.slot_nbytes, EMPTY, cupy.uint8) for _ in range(2)]
        self.partials = [cupy.full(self.slot_nbytes, POISON, cupy.uint8) for _ in range(2)]
        self.flags = [cupy.zeros(all_reduce_flags_nbytes(nranks) // 4, cupy.uint32) for _ in range(2)]
        self.results = [cupy.full(count * dtype.itemsize, POISON, cupy.uint8) for _ in range(2)]
        self.out = cupy.full(count * dtype.itemsize, POISON, cupy.uint8)
        self.abort = cupy.zeros(1, cupy.uint32)
        self._pinned = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
        self.record = np.frombuffer(self._pinned, RECORD, 1)
        self.record[...] = np.zeros((), RECORD)

    def watch(self, timeout: int = 5 * SECOND) -> Watch:
        return Watch(timeout, self.abort.data.ptr, self._pinned.ptr)

    def slot(self, parity: int, source: int, nbytes: int) -> Any:
        return self.slots[parity][source * self.slot_nbytes :][:nbytes]


def launch(
    kernels: Kernels, stream: Any, ranks: list[Rank], rank: int, shots: Any, parity: int, source: Any,
    dtype: np.dtype[Any], *, direct: bool = False, timeout: int = 5 * SECOND, **keep: Any,
) -> None:  # fmt: skip
    """Launch one rank's all-reduce; if it pulls, a copy of the partial product before it stands for the GEMM."""
    me = ranks[rank]
    slots = Slots([r.slots[parity].data.ptr for r in ranks], me.slot_nbytes)
    bounds = [start for start, _ in shares(source.size, len(ranks))] + [source.size]
    call = Reduction(dtype, source.dtype, bounds, me.out.data.ptr, rank, me.watch(timeout), **keep)
    if shots == 3:
        me.partials[parity].data.copy_from_device_async(source.data, source.nbytes, stream)
        kernels.two_shot_pull(
            stream.ptr, call, [r.partials[parity].data.ptr for r in ranks], [r.flags[parity].data.ptr for r in ranks],
            [(r.out if direct else r.results[parity]).data.ptr for r in ranks],
        )  # fmt: skip
    else:
        kernels.reduce(stream.ptr, "one_shot" if shots == 1 else "two_shot", call, source.data.ptr, slots)


def shares(count: int, nranks: int) -> list[tuple[int, int]]:
    """The elements that each rank adds in two shots."""
    return [flat_share(count, rank, nranks) for rank in range(nranks)]


def reduced(
    terms: list[Array], beta: complex, old: Array, dtype: np.dtype[Any], shots: int, ranks: Sequence[int] | None = None
) -> Array:
    """The result of an all-reduce on every rank, in the order of each owner, which comes last."""
    nranks, count = len(terms), terms[0].size
    pieces = []
    for owner, share in enumerate(shares(count, nranks) if shots > 1 else [(0, count)]):
        elements = slice(*share)
        order = [r for r in ((owner + i) % nranks for i in range(1, nranks + 1)) if ranks is None or r in ranks]
        pieces.append(added([terms[r][elements] for r in order], beta, old[elements], dtype))
    return np.concatenate(pieces)


def vectors(nranks: int, count: int, dtype: np.dtype[Any], seed: int) -> list[Array]:
    return [entries((count, 1), dtype, 10 * seed + r)[:, 0] for r in range(nranks)]


@pytest.mark.parametrize(("name", "wire"), WIRES)
@pytest.mark.parametrize("nranks", [1, 2, 3, 4, 8])
def test_all_reduce_on_streams(kernels: Kernels, streams: list[Any], name: str, wire: str, nranks: int) -> None:
    dtype, travelling = dtype_of(name), dtype_of(wire)
    for count in (1, 7, 1000, 65536 // travelling.itemsize + 5):
        ranks = [Rank(nranks, count, dtype, travelling) for _ in range(nranks)]
        old = entries((count, 1), dtype, 77)[:, 0]
        kept = cupy.asarray(old.view(np.uint8))
        for call, (shots, direct, beta) in enumerate(
            [(1, False, 0.0), (3, False, 0.5), (3, True, -1.0), (2, False, 0.25)]
        ):
            terms = vectors(nranks, count, travelling, call)
            sources = [cupy.asarray(term.view(np.uint8)).view(travelling) for term in terms]
            cupy.cuda.runtime.deviceSynchronize()
            for rank in range(nranks):
                kernels.delay(streams[rank].ptr, 20000 * (rank * 5 % nranks))
                launch(
                    kernels, streams[rank], ranks, rank, shots, call % 2, sources[rank], dtype, direct=direct,
                    beta=beta, old=kept.data.ptr,
                )  # fmt: skip
            cupy.cuda.runtime.deviceSynchronize()
            expected = reduced(terms, beta, old, dtype, shots)
            for memory in ranks:
                assert memory.record[0]["code"] == 0
                assert same_bits(memory.out.get().view(dtype), expected)
                assert not memory.flags[0].any()
                assert not memory.flags[1].any()
                assert all((slots == EMPTY).all() for slots in memory.slots)
                memory.out.fill(POISON)


def finished(total: Array, operands: dict[str, Any], old: Array, beta: float, dtype: np.dtype[Any]) -> Array:
    """The epilogue of a sum in 32 bits, rounded once."""
    wide = {key: z.astype(np.float32) for key, z in operands.items()}
    total = total + np.float32(beta) * old.astype(np.float32) if beta else total
    result: Array = (np.maximum(total * np.float32(0.75) + wide["row"], 0) - wide["full"]).astype(dtype)
    return result


@pytest.mark.parametrize(("name", "wire"), [("bfloat16", "float32"), ("float32", "float32")])
def test_epilogues_after_the_last_addition(kernels: Kernels, streams: list[Any], name: str, wire: str) -> None:
    """Of sums with any memory layout, and of reductions, after + beta C: NumPy's bits."""
    dtype, travelling, nranks, tree = dtype_of(name), dtype_of(wire), 3, parse("relu(x * s + row) - full")
    for number, (shape, padding) in enumerate(itertools.product([(37, 23), (64, 8)], [0, 3, 8])):
        full, row, old = entries(shape, dtype, 1), entries((1, shape[1]), dtype, 2), entries(shape, dtype, 3)
        if number % 2:
            row = entries((shape[0], 1), dtype, 2)
        operands = {"row": np.broadcast_to(row, shape), "full": full}
        on_device = {key: device(z, padding) for key, z in {"row": row, "full": full}.items()}
        finish = Finish(tree, {key: cupy.broadcast_to(z, shape) for key, z in on_device.items()} | {"s": 0.75})
        terms = [entries(shape, travelling, 10 + r) for r in range(nranks)]
        for beta in (0.0, 0.5):
            options: dict[str, Any] = {"wire": travelling, "scaled": beta != 0}
            out, kept = Lines(np.zeros(shape, dtype), padding), Lines(old)
            empty = cupy.empty(shape, dtype, "F")
            epilogue = compiled_epilogue(kernels, streams[0].ptr, finish, empty, "F", **options, family="sum")
            result = run_sum(
                kernels, streams[0], [Lines(term, 8) for term in terms], out, kept, beta, epilogue=epilogue
            )
            assert same_bits(result, finished(added(terms, 0, None, FLOAT32), operands, old, beta, dtype))
            epilogue = compiled_epilogue(kernels, streams[0].ptr, finish, empty, "F", **options, family="all_reduce")
            vectors = [term.reshape(-1, order="F") for term in terms]
            sources = [cupy.asarray(vector.view(np.uint8)).view(travelling) for vector in vectors]
            flat = {key: z.reshape(-1, order="F") for key, z in operands.items()}
            for shots in (1, 2, 3):
                ranks = [Rank(nranks, old.size, dtype, travelling) for _ in range(nranks)]
                cupy.cuda.runtime.deviceSynchronize()
                for rank in range(nranks):
                    keep: dict[str, Any] = {"beta": beta, "old": kept.address, "epilogue": epilogue}
                    launch(kernels, streams[rank], ranks, rank, shots, 0, sources[rank], dtype, **keep)
                cupy.cuda.runtime.deviceSynchronize()
                total = reduced(vectors, 0, vectors[0], FLOAT32, shots)
                expected = finished(total, flat, old.reshape(-1, order="F"), beta, dtype)
                assert all(same_bits(rank.out.get().view(dtype), expected) for rank in ranks)


def device(x: Array, padding: int) -> Any:
    """The same elements on the GPU, by columns, with padding."""
    lines = Lines(x, padding)
    memory = lines.memory.view(x.dtype).reshape(lines.columns, lines.ld)
    return memory[:, : lines.rows].T


@pytest.mark.parametrize("parities", [1, 2])
def test_successive_all_reduces_on_streams(kernels: Kernels, streams: list[Any], parities: int) -> None:
    # No rank waits for the host between calls: only the packets and both parities separate the calls. Two-shot calls
    # need no second parity, and the next call may overwrite their partial products.
    dtype, nranks, count, calls = dtype_of("bfloat16"), 4, 3001, 150
    rng = np.random.default_rng(4)
    ranks = [Rank(nranks, count, dtype, dtype) for _ in range(nranks)]
    shots = rng.integers(3 - parities, 4, calls).tolist()
    terms = [vectors(nranks, count, dtype, call) for call in range(calls)]
    sources = [[cupy.asarray(term.view(np.uint8)).view(dtype) for term in row] for row in terms]
    outs = cupy.full((nranks, calls, count * dtype.itemsize), POISON, cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    for call in range(calls):
        for rank, memory in enumerate(ranks):
            if rng.random() < 0.3:
                kernels.delay(streams[rank].ptr, int(rng.integers(0, 30_000)))
            memory.out = outs[rank, call]
            launch(kernels, streams[rank], ranks, rank, shots[call], call % parities, sources[call][rank], dtype)
    cupy.cuda.runtime.deviceSynchronize()
    assert all(memory.record[0]["code"] == 0 for memory in ranks)
    for call in range(calls):
        expected = reduced(terms[call], 0.0, terms[call][0], dtype, shots[call])
        assert all(same_bits(out.get().view(dtype), expected) for out in outs[:, call])


@pytest.mark.parametrize("shots", [1, 2, 3])
def test_ranks_without_partial_products_on_streams(kernels: Kernels, streams: list[Any], shots: int) -> None:
    count, dtype = 3001, dtype_of("bfloat16")
    ranks, terms = [Rank(4, count, dtype, dtype) for _ in range(4)], vectors(4, count, dtype, 3)
    terms[1][:] = terms[3][:] = np.nan
    sources = [cupy.asarray(term.view(np.uint8)).view(dtype) for term in terms]
    cupy.cuda.runtime.deviceSynchronize()
    for rank in range(4):
        launch(kernels, streams[rank], ranks, rank, shots, 0, sources[rank], dtype, contributing=(0, 2))
    cupy.cuda.runtime.deviceSynchronize()
    expected = reduced(terms, 0.0, terms[0], dtype, shots, (0, 2))
    assert all(same_bits(rank.out.get().view(dtype), expected) for rank in ranks)


@pytest.mark.parametrize("name", ["bfloat16", "float64"])
@pytest.mark.parametrize("shots", [1, 3])
def test_all_reduce_of_one_rank_alone(kernels: Kernels, stream: Any, name: str, shots: Any) -> None:
    # The peers' flags and data are set before it starts, so nothing runs beside it: for compute-sanitizer.
    dtype, nranks, rank, count = dtype_of(name), 4, 1, 20011
    ranks, terms = [Rank(nranks, count, dtype, dtype) for _ in range(nranks)], vectors(nranks, count, dtype, 5)
    me, nbytes = ranks[rank], count * dtype.itemsize
    ctas, last = pulling_ctas(nbytes), in_packs(count, dtype.itemsize)
    expected = reduced(terms, 0.0, terms[0], dtype, shots)
    own = slice(*shares(count, nranks)[rank])
    for peer in (0, 2, 3):
        if shots == 1:
            me.slot(0, peer, last)[...] = 0  # the last pack is sent whole
            me.slot(0, peer, nbytes)[...] = cupy.asarray(terms[peer].view(np.uint8))
        else:
            ranks[peer].partials[0][:nbytes] = cupy.asarray(terms[peer].view(np.uint8))
            me.flags[0].reshape(2, nranks, MAX_CTAS)[:, peer, :ctas] = 1
        ranks[peer].results[0][...] = cupy.asarray(expected.view(np.uint8))  # the kernel reads the peer's shard of it
    source = cupy.asarray(terms[rank].view(np.uint8)).view(dtype)
    cupy.cuda.runtime.deviceSynchronize()
    launch(kernels, stream, ranks, rank, shots, 0, source, dtype)
    stream.synchronize()
    assert same_bits(me.out.get().view(dtype), expected)
    assert not me.flags[0].any()
    assert (me.slots[0] == EMPTY).all()
    for peer in (0, 2, 3):
        flags = ranks[peer].flags[0].get().reshape(2, nranks, MAX_CTAS)
        assert flags.sum() == flags[:, rank, :ctas].sum() == (0 if shots == 1 else 2 * ctas)
        if shots == 1:
            assert np.array_equal(ranks[peer].slot(0, rank, nbytes).get(), terms[rank].view(np.uint8))
        else:
            assert np.array_equal(ranks[peer].partials[0].get()[:nbytes], terms[peer].view(np.uint8))
            assert np.array_equal(ranks[peer].results[0].get(), expected.view(np.uint8))
    if shots == 3:
        got = me.results[0].get()[own.start * dtype.itemsize : own.stop * dtype.itemsize]
        assert np.array_equal(got, expected[own].view(np.uint8))


@pytest.mark.parametrize("shots", [1, 2, 3])
@pytest.mark.parametrize("code", [ABORTED, LATE])
def test_an_all_reduce_times_out(kernels: Kernels, stream: Any, shots: Any, code: int) -> None:
    dtype, nranks, rank, count = FLOAT32, 4, 2, 5000
    ranks = [Rank(nranks, count, dtype, dtype) for _ in range(nranks)]
    me, source = ranks[rank], cupy.ones(count, dtype)
    me.flags[0].reshape(2, nranks, MAX_CTAS)[0, 0] = 1  # only rank 0 has arrived
    me.slot(0, 0, me.slot_nbytes)[...] = 0
    me.abort.fill(code == ABORTED)
    cupy.cuda.runtime.deviceSynchronize()
    timeout = 2_000_000 if code == LATE else 30 * SECOND
    launch(kernels, stream, ranks, rank, shots, 0, source, dtype, timeout=timeout)
    stream.synchronize()
    fault = me.record[0]
    assert (fault["code"], fault["step"]) == (code, NO_STEP)
    assert fault["rank"] in ((0, 1, 3) if (shots, code) == (2, ABORTED) else (1, 3))  # rank 0 cannot have sent sums
    assert fault["time"] > 0
    if shots == 3:
        assert np.all(me.out.get() == POISON)
    assert np.all(ranks[0].results[0].get() == POISON)
    assert not ranks[0].flags[0].reshape(2, nranks, MAX_CTAS)[1].any()


class Halves:
    """The memory of one rank in collectives of plain arrays: both halves, and the word that counts calls."""

    def __init__(self, nranks: int, share: int) -> None:
        self.share, flags = share, all_reduce_flags_nbytes(nranks)
        self.pitch = flags + (2 * nranks + 1) * share
        self.memory, self.epoch = cupy.zeros(2 * self.pitch, cupy.uint8), cupy.zeros(1, cupy.uint32)
        self.memory.reshape(2, self.pitch)[:, flags:-share] = EMPTY
        self.flags: int = self.memory.data.ptr
        self.slots = self.flags + flags
        self.left = self.slots + 2 * nranks * share
        self.rank = Rank(1, 1, FLOAT32, FLOAT32)


def collective(kernels: Kernels, ranks: list[Halves], rank: int, kind: str, x: Any, out: Any, ctas: int) -> Any:
    """A launch whose kernel counts calls; shards are as even as possible, except in one shot."""
    nranks, me, itemsize = len(ranks), ranks[rank], x.itemsize
    gathers, scatters = kind in {"all_gather", "all_gather_ll"}, kind == "reduce_scatter"
    bounds = [x.size * r if gathers else x.size * r // nranks for r in range(nranks + 1)]
    first, stop = (bounds[:-1], bounds[1:]) if kind != "one_shot" else ([0] * nranks, [x.size] * nranks)
    return kernels.ready(
        kind,
        itemsize if gathers else x.dtype,
        ctas,
        out=out.data.ptr - scatters * first[rank] * itemsize,
        source=x.data.ptr - gathers * first[rank] * itemsize,
        first=first,
        stop=stop,
        rank=rank,
        partials=[r.slots for r in ranks],
        slot_nbytes=me.share,
        flags=[r.flags for r in ranks],
        results=[r.left - start * itemsize for r, start in zip(ranks, first, strict=True)],
        watch=me.rank.watch(),
        epoch=me.epoch.data.ptr,
        pitches=(me.pitch, me.pitch, me.pitch),
    )


def test_collectives_with_device_call_counters_on_streams(kernels: Kernels, streams: list[Any]) -> None:
    """Launches and replays of graphs alternate, with all sizes and numbers of CTAs; the host waits for none."""
    nranks, calls, kinds = 4, 200, ("one_shot", "two_shot", "reduce_scatter", "all_gather", "all_gather_ll")
    rng = np.random.default_rng(6)
    ranks = [Halves(nranks, 1 << 15) for _ in range(nranks)]
    sizes, chosen = rng.integers(1, 6000, calls), rng.integers(0, 5, calls)
    sizes[::2], chosen[::2] = 4001, np.arange(calls // 2) % 5
    x = [[cupy.asarray(rng.integers(-9, 9, size).astype(np.float32)) for _ in range(nranks)] for size in sizes]
    length = [int(size) * (nranks if kind >= 3 else 1) for size, kind in zip(sizes, chosen, strict=True)]
    outs = [[cupy.full(n, 99, np.float32) for _ in range(nranks)] for n in length]
    fixed = [[cupy.zeros(4001, np.float32), cupy.zeros(4001 * nranks, np.float32)] for _ in range(nranks)]
    cupy.cuda.runtime.deviceSynchronize()
    graphs = {}
    for rank, stream in enumerate(streams[:nranks]):
        for number, kind in enumerate(kinds):
            source, target = fixed[rank]
            launch_ = collective(kernels, ranks, rank, kind, source, target, 5)
            stream.begin_capture()
            launch_.launch(stream.ptr)
            graphs[rank, number] = stream.end_capture()
            graphs[rank, number].upload(stream)
    cupy.cuda.runtime.deviceSynchronize()
    for call in range(calls):
        for rank, stream in enumerate(streams[:nranks]):
            if rng.random() < 0.3:
                kernels.delay(stream.ptr, int(rng.integers(0, 30_000)))
            which, ctas = int(chosen[call]), 1 + call * 7 % 40
            if call % 2:
                arguments = collective(kernels, ranks, rank, kinds[which], x[call][rank], outs[call][rank], ctas)
                arguments.launch(stream.ptr)
                continue
            source, target = fixed[rank]
            source.data.copy_from_device_async(x[call][rank].data, source.nbytes, stream)
            graphs[rank, which].launch(stream)
            outs[call][rank].data.copy_from_device_async(target.data, outs[call][rank].nbytes, stream)
    cupy.cuda.runtime.deviceSynchronize()
    assert all(memory.rank.record[0]["code"] == 0 for memory in ranks)
    assert {int(memory.epoch[0]) for memory in ranks} == {calls << 16}
    for call, size in enumerate(sizes):
        terms = [term.get() for term in x[call]]
        for rank in range(nranks):
            expected = np.concatenate(terms) if chosen[call] >= 3 else np.sum(terms, axis=0)
            if chosen[call] == 2:
                expected = expected[size * rank // nranks : size * (rank + 1) // nranks]
            assert np.array_equal(outs[call][rank].get()[: expected.size], expected), (call, rank)


@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("counts", [(1,), (5, 0, 3), (1000, 1000), (0, 901, 4, 7001), (33,) * 8])
def test_shards_are_gathered_on_streams(
    kernels: Kernels, streams: list[Any], name: str, counts: tuple[int, ...]
) -> None:
    """Uneven and empty shards at any offset; NaNs with all bits set, which mark an empty slot, stay NaNs."""
    dtype, nranks, first = dtype_of(name), len(counts), [sum(counts[:r]) for r in range(len(counts) + 1)]
    ranks = [Rank(nranks, max(counts), dtype, dtype) for _ in counts]
    outs = [cupy.full((first[-1] + 1) * dtype.itemsize, POISON, cupy.uint8) for _ in counts]
    for call in range(4):
        shards = [entries((count, 1), dtype, 10 * call + r)[:, 0] for r, count in enumerate(counts)]
        shards[0].view(np.uint8)[: 2 * dtype.itemsize] = 255
        sources = [cupy.asarray(np.append(shard, shard[:1]).view(np.uint8)) for shard in shards]
        cupy.cuda.runtime.deviceSynchronize()
        for rank, (stream, source, out) in enumerate(zip(streams, sources, outs, strict=False)):
            kernels.delay(stream.ptr, 20000 * (rank * 5 % nranks))
            slots = Slots([r.slots[call % 2].data.ptr for r in ranks], ranks[0].slot_nbytes)
            where = first, source.data.ptr, out.data.ptr
            kernels.gather(stream.ptr, dtype.itemsize, *where, rank=rank, slots=slots, watch=ranks[rank].watch())
        cupy.cuda.runtime.deviceSynchronize()
        expected = np.concatenate(shards)
        for memory, out in zip(ranks, outs, strict=True):
            result = out.get()[: expected.nbytes].view(dtype)
            assert memory.record[0]["code"] == 0
            assert np.array_equal(result.astype(np.float64), expected.astype(np.float64), equal_nan=True)
            assert (out[expected.nbytes :] == POISON).all()
            assert all((slots == EMPTY).all() for slots in memory.slots)


def test_barrier_on_streams(kernels: Kernels, streams: list[Any]) -> None:
    nranks, rounds = 8, 20
    flags = [cupy.zeros(barrier_flags_nbytes(nranks) // 4, cupy.uint32) for _ in range(nranks)]
    epochs = [cupy.full(1, 2**32 - 5, cupy.uint32) for _ in range(nranks)]  # epochs wrap around
    for row in flags:
        row.fill(2**32 - 5)
    ranks = [Rank(1, 1, FLOAT32, FLOAT32) for _ in range(nranks)]
    counts, seen = cupy.zeros(nranks, cupy.uint8), cupy.zeros((nranks, rounds, nranks), cupy.uint8)
    rng = np.random.default_rng(0)
    addresses = [row.data.ptr for row in flags]
    cupy.cuda.runtime.deviceSynchronize()
    for turn in range(rounds):
        for rank, stream in enumerate(streams):
            kernels.delay(stream.ptr, int(rng.integers(0, 50_000)))
            cupy.cuda.runtime.memsetAsync(counts.data.ptr + rank, turn + 1, 1, stream.ptr)
            kernels.barrier(stream.ptr, rank, addresses, epochs[rank].data.ptr, watch=ranks[rank].watch())
            seen[rank, turn].data.copy_from_device_async(counts.data, counts.nbytes, stream)
    cupy.cuda.runtime.deviceSynchronize()
    assert all(rank.record[0]["code"] == 0 for rank in ranks)
    assert np.all(seen.get() >= np.arange(1, rounds + 1)[None, :, None])
    assert all(int(epoch[0]) == rounds - 5 for epoch in epochs)


def test_a_captured_barrier_is_replayed(kernels: Kernels, streams: list[Any]) -> None:
    nranks, replays = 4, 25
    flags = [cupy.zeros(nranks, cupy.uint32) for _ in range(nranks)]
    epochs, rank_memory = cupy.zeros(nranks, cupy.uint32), [Rank(1, 1, FLOAT32, FLOAT32) for _ in range(nranks)]
    graphs = []
    cupy.cuda.runtime.deviceSynchronize()
    for rank in range(nranks):
        streams[rank].begin_capture()
        kernels.barrier(
            streams[rank].ptr, rank, [row.data.ptr for row in flags], epochs.data.ptr + 4 * rank,
            watch=rank_memory[rank].watch(),
        )  # fmt: skip
        graphs.append(streams[rank].end_capture())
        graphs[-1].upload(streams[rank])
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(replays):
        for rank in range(nranks):
            graphs[rank].launch(streams[rank])
    cupy.cuda.runtime.deviceSynchronize()
    assert all(rank.record[0]["code"] == 0 for rank in rank_memory)
    assert epochs.get().tolist() == [replays] * nranks


@pytest.mark.parametrize("code", [ABORTED, LATE])
def test_a_barrier_times_out(kernels: Kernels, stream: Any, code: int) -> None:
    flags, epoch = [cupy.zeros(3, cupy.uint32) for _ in range(3)], cupy.zeros(1, cupy.uint32)
    me = Rank(1, 1, FLOAT32, FLOAT32)
    me.abort.fill(code == ABORTED)
    flags[1][0] = 1
    cupy.cuda.runtime.deviceSynchronize()
    timeout = 2_000_000 if code == LATE else 30 * SECOND
    kernels.barrier(stream.ptr, 1, [row.data.ptr for row in flags], epoch.data.ptr, watch=me.watch(timeout))
    stream.synchronize()
    assert (me.record[0]["code"], me.record[0]["rank"], me.record[0]["step"]) == (code, 2, NO_STEP)


@pytest.mark.parametrize("count", [0, 2, 5])
def test_a_wait_signals_and_resets(kernels: Kernels, stream: Any, count: int) -> None:
    flags, peers = cupy.ones(3, cupy.uint32), cupy.zeros(6, cupy.uint32)
    cupy.cuda.runtime.deviceSynchronize()
    kernels.wait(
        stream.ptr,
        [flags.data.ptr + 4 * i for i in (0, 2)],
        [1, 2],
        watch=Watch(SECOND),
        signals=[peers.data.ptr + 4 * i for i in range(count)],
    )
    stream.synchronize()
    assert flags.tolist() == [0, 1, 0]
    assert peers.tolist() == count * [1] + (6 - count) * [0]


@pytest.mark.parametrize("sizes", [(1,), (16, 0, 3), (4096, 100, 7, 8192), (1 << 20, 65521, 3 << 20), (5,) * 8])
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 8])
def test_push(kernels: Kernels, stream: Any, sizes: tuple[int, ...], offset: int) -> None:
    rng = np.random.default_rng(1)
    data = [rng.integers(0, 256, size, np.uint8) for size in sizes]
    sources = [cupy.asarray(np.concatenate([np.zeros(offset, np.uint8), x])) for x in data]
    targets = [cupy.full(size + 64, POISON, cupy.uint8) for size in sizes]
    flags = cupy.zeros(len(sizes) + 1, cupy.uint32)  # the last flag has no block
    counter = cupy.zeros(push_counter_nbytes() // 4, cupy.uint32)
    blocks = [
        Block(source.data.ptr + offset, target.data.ptr + 16 + offset, size, signal)
        for signal, (source, target, size) in enumerate(zip(sources, targets, sizes, strict=True))
    ]
    own = cupy.full(sizes[0] + 64, POISON, cupy.uint8)  # a copy to this rank itself, without a signal
    blocks.append(blocks[0]._replace(target=own.data.ptr + 16 + offset, signal=-1))
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(3):
        kernels.push(stream.ptr, blocks, [flags.data.ptr + 4 * i for i in range(len(sizes) + 1)], counter.data.ptr)
        stream.synchronize()
        for target, x in zip([*targets, own], [*data, data[0]], strict=True):
            result = target.get()
            assert np.array_equal(result[16 + offset :][: x.size], x)
            assert np.all(result[: 16 + offset] == POISON)
            assert np.all(result[16 + offset + x.size :] == POISON)
            target.fill(POISON)
        assert flags.get().tolist() == [1] * (len(sizes) + 1)
        assert not counter.any()
        flags.fill(0)
        cupy.cuda.runtime.deviceSynchronize()


@pytest.mark.parametrize(("width", "lines"), [(1, 9), (48, 33), (50, 7), (4096, 129)])
@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (16, 32), (3, 6)])
def test_push_of_lines(kernels: Kernels, stream: Any, width: int, lines: int, gap: int, offset: int) -> None:
    source = cupy.asarray(np.random.default_rng(2).integers(0, 256, (lines, width + gap), np.uint8))
    target = cupy.full((lines, width + offset), POISON, cupy.uint8)
    flag, counter = cupy.zeros(1, cupy.uint32), cupy.zeros(push_counter_nbytes() // 4, cupy.uint32)
    block = Block(source.data.ptr, target.data.ptr, width, 0, lines, width + gap, width + offset)
    cupy.cuda.runtime.deviceSynchronize()
    kernels.push(stream.ptr, [block, block._replace(lines=0)], [flag.data.ptr], counter.data.ptr)
    stream.synchronize()
    result = target.get()
    assert np.array_equal(result[:, :width], source.get()[:, :width])
    assert np.all(result[:, width:] == POISON)
    assert int(flag[0]) == 1


def test_launches_can_be_captured(kernels: Kernels, stream: Any) -> None:
    dtype, shape = dtype_of("bfloat16"), (100, 7)
    terms = [entries(shape, dtype, k) for k in range(8)]
    parts, out = [Lines(term) for term in terms], Lines(np.zeros(shape, dtype))
    copy, flag = Lines(np.zeros(shape, dtype)), cupy.zeros(1, cupy.uint32)
    counter = cupy.zeros(push_counter_nbytes() // 4, cupy.uint32)
    cupy.cuda.runtime.deviceSynchronize()
    stream.begin_capture()
    kernels.sum(stream.ptr, dtype, shape, [strided(part) for part in parts], strided(out))
    kernels.push(
        stream.ptr, [Block(out.address, copy.address, out.memory.nbytes, 0)], [flag.data.ptr], counter.data.ptr
    )
    graph = stream.end_capture()
    for factor in (1, 2):
        for part in parts:
            part.memory.view(cupy.uint16)[...] = part.memory.view(cupy.uint16)  # written again, as callers do
        terms = [(term.astype(np.float32) * factor).astype(dtype) for term in terms]
        parts_now = [Lines(term) for term in terms]
        for part, now in zip(parts, parts_now, strict=True):
            part.memory[...] = now.memory
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        assert same_bits(copy.read(), added(terms, 0, None, dtype))


def test_a_delay_takes_its_time(kernels: Kernels, stream: Any) -> None:
    for nanoseconds in (10_000, 3_000_000, 100 * SECOND):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        kernels.delay(stream.ptr, nanoseconds)
        end.record(stream)
        end.synchronize()
        elapsed_ns = cupy.cuda.get_elapsed_time(start, end) * 1e6
        assert min(nanoseconds, SECOND) - 2000 <= elapsed_ns <= min(nanoseconds, SECOND) + SECOND // 10
