"""Laws of the Hopper kernel on one GPU: any order, size and variant, the same bits every time, and late parts.

The GPU is its own peer: a stream beside the kernel makes the copies and flags of the other ranks.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.common.gauge import THRESHOLD, Array, dtype_of, entries, eps_of, gauge

cupy = pytest.importorskip("cupy")
pytest.importorskip("cuda.core")

if not cupy.cuda.is_available() or cupy.cuda.Device().compute_capability != "90":
    pytest.skip("no Hopper GPU", allow_module_level=True)

from cuda.bindings import driver  # noqa: E402

from pblas.backends.cpu.pointwise import evaluate  # noqa: E402
from pblas.backends.cuda import streams  # noqa: E402
from pblas.backends.cuda.gemm_problem import read  # noqa: E402
from pblas.backends.engine_limits import Shape  # noqa: E402
from pblas.backends.nvshmem.hopper import gemm as hopper_module  # noqa: E402
from pblas.backends.nvshmem.hopper.compile import Part, Place, Term, supports  # noqa: E402
from pblas.backends.nvshmem.hopper.gemm import Hopper, TreeGemm  # noqa: E402
from pblas.backends.nvshmem.kernels import Kernels  # noqa: E402
from pblas.backends.nvshmem.kernels.arguments import ABORTED, LATE, RECORD, Watch  # noqa: E402
from pblas.backends.push_engine import Finish  # noqa: E402
from pblas.epilogues import parse  # noqa: E402

pytestmark = pytest.mark.gpu

POISON = -99
LINE = 8  # elements to which leading dimensions are rounded up: 16 bytes
SIZES = ((8, 8, 1), (8, 16, 9), (16, 520, 64), (136, 264, 65), (600, 72, 200), (296, 520, 133))
SCALARS = ((1.0, 0.0), (-1.0, 1.0), (0.75, -0.5))
SHAPES = (Shape(), Shape(256, 2), Shape(128, 1), Shape(128, 2), Shape(64, 1), Shape(64, 2))
SECOND = 10**9
TOLERANCE = 2.0**-10
"""Tolerance for float16, relative to the largest element: twice the rounding error."""


class Stored:
    """A matrix in poisoned device memory, in an order, its lines padded so that TMA can read them."""

    def __init__(self, x: Array, order: str = "C", padding: int = 0) -> None:
        lines, length = x.shape if order == "C" else x.shape[::-1]
        self._ld = -(-length // LINE) * LINE + padding
        self._order, self._shape = order, x.shape
        self._host = np.full((lines + 1, self._ld), POISON, x.dtype)
        self._view(self._host)[...] = x
        self._memory = cupy.asarray(self._host.view(np.uint16))
        strides = (2 * self._ld, 2) if order == "C" else (2, 2 * self._ld)
        self.array = cupy.ndarray(x.shape, x.dtype, self._memory.data, strides=strides)

    def _view(self, host: Array) -> Array:
        rows, columns = self._shape
        return host[:rows, :columns] if self._order == "C" else host[:columns, :rows].T

    def read(self) -> Array:
        """The current elements; the memory around them is checked."""
        cupy.cuda.runtime.deviceSynchronize()
        host = self._memory.get().view(self._host.dtype)
        values: Array = self._view(host).copy()
        around, before = host.copy(), self._host.copy()
        self._view(around)[...] = self._view(before)[...] = 0
        assert np.array_equal(around.view(np.uint16), before.view(np.uint16)), "memory around the matrix was touched"
        return values


@pytest.fixture(scope="module")
def hopper() -> Hopper:
    return Hopper()


@pytest.fixture
def stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True)


@pytest.fixture
def record() -> Array:
    memory = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
    result: Array = np.frombuffer(memory, RECORD, 1)
    result[0] = 0
    return result


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [(520, 8), (16, 72), (264, 3000), (5000, 1536)], ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_products_of_pieces_are_added_along_a_tree(stream: Any, name: str, size: tuple[int, int], pieces: int) -> None:
    """The sum of a piece is one product, which is exact; other trees give other sums of some elements."""
    (m, n), dtype, width, gemm = size, dtype_of(name), 6 * 64, TreeGemm()
    rng = np.random.default_rng(pieces)
    k = width * pieces - 24  # the last piece is narrower
    x, y, first = np.zeros((m, k), dtype), np.zeros((k, n), dtype), np.arange(pieces) * width
    x[:, first] = rng.integers(-127, 128, (m, pieces)) * 2.0 ** rng.choice([-12, 0], (m, pieces))
    y[first] = rng.integers(-127, 128, (pieces, n)) * 2.0 ** rng.choice([-12, 0], (pieces, n))
    sums = [np.outer(x[:, i].astype(np.float32), y[i].astype(np.float32)) for i in first]
    while len(sums) > 1:
        sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
    gemm.reserve(pieces)
    for order in "CF":
        x_, y_, z_ = Stored(x), Stored(y, "F"), Stored(np.zeros((m, n), dtype), order)
        cupy.cuda.runtime.deviceSynchronize()
        assert gemm.serves(x_.array, y_.array, z_.array)
        gemm.matmul(stream.ptr, x_.array, y_.array, z_.array, width)
        assert np.array_equal(z_.read(), sums[0].astype(dtype))


def check_product(
    hopper: Hopper,
    stream: Any,
    case: tuple[int, int, int],
    orders: str,
    name: str,
    scalars: tuple[float, float],
    shape: Shape,
) -> None:
    m, n, k = case
    alpha, beta = scalars
    dtype = dtype_of(name)
    x, y, z = entries((m, k), dtype, 1), entries((k, n), dtype, 2), entries((m, n), dtype, 3)
    if beta == 0:
        z = np.full_like(z, np.nan)
    x_, y_, z_ = (Stored(w, order, padding) for w, order, padding in zip((x, y, z), orders, (8, 0, 16), strict=True))
    assert supports(read(x_.array, y_.array, z_.array).problem)
    cupy.cuda.runtime.deviceSynchronize()
    hopper.matmul(stream.ptr, alpha, [Part(x_.array, y_.array, z_.array)], beta, shape=shape)
    result = z_.read()
    assert gauge(result, x, y, z, alpha=alpha, beta=beta) <= THRESHOLD
    assert np.array_equal(x_.read(), x)
    assert np.array_equal(y_.read(), y)


@pytest.mark.parametrize("case", SIZES)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_product_in_every_order(hopper: Hopper, stream: Any, name: str, case: tuple[int, int, int]) -> None:
    for orders, scalars in zip(itertools.product("CF", repeat=3), itertools.cycle(SCALARS), strict=False):
        shape = SHAPES[("CF".index(orders[0]) + 2 * "CF".index(orders[1]) + 3 * (name == "float16")) % len(SHAPES)]
        check_product(hopper, stream, case, "".join(orders), name, scalars, shape)


@pytest.mark.parametrize(("m", "n"), [(5000, 3000), (4096, 1792), (16896, 256)])
def test_every_width_and_the_same_bits_every_time(hopper: Hopper, stream: Any, m: int, n: int) -> None:
    rng = np.random.default_rng(0)
    k = 520
    x, y = (cupy.asarray(rng.standard_normal(size), cupy.float16) for size in ((m, k), (k, n)))
    exact = x.astype(cupy.float32) @ y.astype(cupy.float32)
    results = [cupy.full((m, n), cupy.nan, cupy.float16) for _ in range(5)]
    cupy.cuda.runtime.deviceSynchronize()
    for z in results:
        hopper.matmul(stream.ptr, 1.0, [Part(x, y, z)], 0.0)
    stream.synchronize()
    # An element's error is at most half a unit in its last place, and float32's in a sum of k terms.
    assert float(cupy.abs(results[0] - exact).max() / cupy.abs(exact).max()) < 2.0**-11 + k * 2.0**-24
    assert all((z.view(cupy.uint16) == results[0].view(cupy.uint16)).all() for z in results)


def placed(x: Array, order: str, offset: int = 0) -> Any:
    """A copy on the GPU, `offset` elements into its memory."""
    memory = cupy.empty(x.size + offset, np.uint16)[offset:]
    copy = cupy.ndarray(x.shape, x.dtype, memory.data, order=order)
    copy.view(np.uint16)[...] = cupy.asarray(x.view(np.uint16))
    return copy


@pytest.mark.parametrize(
    ("name", "shape", "order", "offset"),
    [
        ("bfloat16", Shape(), "C", 0),
        ("float16", Shape(256, 2), "F", 0),
        ("bfloat16", Shape(128, 1), "C", 1),
        ("float16", Shape(64, 2), "F", 1),
    ],
)
def test_epilogues_apply_to_the_sums(
    hopper: Hopper, stream: Any, name: str, shape: Shape, order: str, offset: int
) -> None:
    """To all parts but a partial one; with operands along lines, across lines, and of D's shape, in both orders."""
    (m, n, k), dtype, tree = (
        (600, 520, 200),
        dtype_of(name),
        parse("relu(x - s) * row + column / 4 - h * turned + wide"),
    )
    sizes = {"x": (m, k), "y": (k, n), "z": (m, n), "row": (1, n), "column": (m, 1), "h": (m, n), "turned": (m, n)}
    rng = np.random.default_rng(0)
    host = {name: rng.integers(1, 4, size).astype(dtype) for name, size in sizes.items()}
    host["wide"] = rng.standard_normal((m, n)).astype(np.float32)
    orders = {"z": order, "y": "F", "turned": "F" if order == "C" else "C"}
    on_device = {
        name: placed(w, orders.get(name, "C"), offset * (name == "h")) for name, w in host.items() if w.itemsize == 2
    }
    X, Y, Z = (on_device.pop(name) for name in "xyz")
    operands = {name: cupy.broadcast_to(w, (m, n)) for name, w in on_device.items()}
    operands["wide"] = cupy.asarray(host["wide"], order=order)
    blocks = [(slice(*a), slice(*b)) for a in [(0, 264), (264, m)] for b in [(0, 136), (136, n)]]
    parts = [Part(X[a], Y[:, b], Z[a, b], origin=(a.start, b.start), partial=i == 1) for i, (a, b) in enumerate(blocks)]
    exact = {name: w.astype(float) for name, w in host.items()}
    for s in (40.0, 20.0):
        Z.view(np.uint16)[...] = cupy.asarray(host["z"].view(np.uint16))
        product = 0.5 * (exact["x"] @ exact["y"])
        expected = evaluate(tree, product - exact["z"], exact | {"s": s})
        expected[blocks[1]] = product[blocks[1]]
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 0.5, parts, -1.0, finish=Finish(tree, operands | {"s": s}), shape=shape)
        stream.synchronize()
        result = Z.view(np.uint16).get().view(dtype).astype(float)
        bound = 0.51 * eps_of(dtype) * np.abs(expected) + 2.0**-18 * (1 + np.abs(expected))
        assert (np.abs(result - expected) <= bound).all()


def test_operands_with_another_memory_layout_need_no_compiler(stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (m, n, k), dtype, tree, hopper = (264, 136, 72), dtype_of("float16"), parse("x + h"), Hopper()
    rng = np.random.default_rng(0)
    x, y, h = (rng.integers(1, 4, size).astype(dtype) for size in ((m, k), (k, n), (m, n)))
    X, Y, Z = placed(x, "C"), placed(y, "F"), placed(np.full((m, n), np.nan, dtype), "C")
    hopper.prepare([Part(X, Y, Z)], reads_z=False, finish=Finish(tree, {"h": placed(h, "C")}))
    monkeypatch.setattr(hopper_module, "Kernel", None)
    for order, offset in (("C", 0), ("C", 1), ("F", 0)):
        H = placed(h, order, offset)
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, [Part(X, Y, Z)], 0.0, finish=Finish(tree, {"h": H}))
        stream.synchronize()
        result = Z.view(np.uint16).get().view(dtype)
        assert np.array_equal(result, (x.astype(float) @ y.astype(float) + h.astype(float)).astype(dtype))


def pinned(x: Array) -> Array:
    """A copy in pinned memory, from which copy engines copy asynchronously."""
    copy: Array = np.frombuffer(cupy.cuda.alloc_pinned_memory(x.nbytes), x.dtype, x.size).reshape(x.shape)
    copy[...] = x
    return copy


def copy_from_host(stream: Any, source: Array, target: Any, flag: int) -> None:
    """Copy with the copy engine, since no SM may be free, then set the flag."""
    cupy.cuda.runtime.memcpyAsync(
        target.data.ptr, source.ctypes.data, source.nbytes, cupy.cuda.runtime.memcpyHostToDevice, stream.ptr
    )
    (status,) = driver.cuStreamWriteValue32(stream.ptr, flag, 1, 0)
    assert not int(status)


class Parts:
    """Z in parts; a peer still has to bring the X of all parts but the first."""

    def __init__(self, count: int, rows: int, n: int, k: int) -> None:
        rng = np.random.default_rng(count)
        self.x = pinned(rng.standard_normal((count, rows, k)).astype(np.float16))
        self.arriving = cupy.full(self.x.shape, cupy.nan, cupy.float16)
        self.arriving[0] = cupy.asarray(self.x[0])
        self.y = cupy.asarray(rng.standard_normal((k, n)), cupy.float16)
        self.z = cupy.full((count, rows, n), cupy.nan, cupy.float16)
        self.flags = cupy.zeros(count, cupy.uint32)
        self.parts = [
            Part(self.arriving[i], self.y, self.z[i], self.flags[i].data.ptr if i else 0, i) for i in range(count)
        ]
        cupy.cuda.runtime.deviceSynchronize()

    def bring(self, stream: Any, *parts: int) -> None:
        for part in parts:
            copy_from_host(stream, self.x[part], self.arriving[part], self.flags[part].data.ptr)

    def check(self) -> None:
        exact = cupy.asarray(self.x).astype(cupy.float32) @ self.y.astype(cupy.float32)
        assert float(cupy.abs(self.z - exact).max() / cupy.abs(exact).max()) < TOLERANCE
        assert not self.flags.any()


@pytest.mark.parametrize(("count", "rows"), [(2, 8), (4, 1000), (8, 512)])
def test_the_kernel_waits_for_parts(hopper: Hopper, stream: Any, count: int, rows: int) -> None:
    watch = Watch(20 * SECOND)
    beside = cupy.cuda.Stream(non_blocking=True)
    for order in ("before", "after", "after"):
        parts = Parts(count, rows, 1104, 336 if rows == 8 else 520)
        if order == "before":
            parts.bring(beside, *range(1, count))
            beside.synchronize()
        hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=watch)
        if order == "after":
            parts.bring(beside, *range(1, count))
        stream.synchronize()
        parts.check()


class Shares:
    """Products of several ranks, all on this GPU: all ranks but the last send theirs to slots of the last one.

    Args:
        ranks: number of ranks.
        rows: rows of each Z.
        n: columns of each Z.
        k: inner length of each product.
        orders: orders of X, of Y, and of Z with its slots.
    """

    def __init__(self, ranks: int, rows: int, n: int, k: int, orders: str = "CFC") -> None:
        rng = np.random.default_rng(rows)

        def matrix(m: int, n: int, order: str) -> Any:
            return cupy.asarray(rng.standard_normal((m, n)), cupy.float16, order=order)

        self.x = [matrix(rows, k, orders[0]) for _ in range(ranks)]
        self.y = matrix(k, n, orders[1])
        self.slots = [cupy.full_like(matrix(rows, n, orders[2]), cupy.nan) for _ in range(ranks - 1)]
        self.old = matrix(rows, n, orders[2])
        self.z = self.old.copy(order="K")
        self.flags = cupy.zeros(ranks - 1, cupy.uint32)
        cupy.cuda.runtime.deviceSynchronize()

    def flag(self, rank: int) -> int:
        return int(self.flags[rank].data.ptr)

    def terms(self) -> tuple[Term, ...]:
        return tuple(Term(slot, self.flag(i), i) for i, slot in enumerate(self.slots))

    def sent(self) -> list[Part]:
        """The parts of the sending ranks; their signals are the flags of the terms."""
        pairs = enumerate(zip(self.x[:-1], self.slots, strict=True))
        return [Part(x, self.y, z, signal=self.flag(i), partial=True) for i, (x, z) in pairs]

    def own(self, signal: int = 0, places: tuple[Any, ...] = (), *, late: bool = False) -> Part:
        return Part(self.x[-1], self.y, self.z, signal=signal, terms=self.terms(), places=places, terms_late=late)

    def check(self, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Check that slots hold products, Z their sum rounded once, and that flags are 0 again."""
        wide = self.y.astype(cupy.float32)
        exact = [alpha * (x.astype(cupy.float32) @ wide) for x in self.x]
        total = exact[-1] + beta * self.old.astype(cupy.float32)
        for slot, product in zip(self.slots, exact, strict=False):
            assert float(cupy.abs(slot - product).max() / cupy.abs(product).max()) < TOLERANCE
            total += slot.astype(cupy.float32)
        assert float(cupy.abs(self.z - total).max() / cupy.abs(total).max()) < TOLERANCE
        assert not self.flags.any()


@pytest.mark.parametrize(
    ("ranks", "rows", "n", "k", "orders", "alpha", "beta", "late", "shape"),
    [
        (2, 8, 72, 40, "CCF", 1.0, 0.0, False, Shape(128)),
        (3, 264, 200, 64, "CFC", 0.75, -0.5, True, Shape(256, 2)),
        (4, 1000, 1104, 520, "FCF", 1.0, -1.0, True, Shape(64, 2)),
        (4, 1000, 1104, 520, "FCF", 1.0, -1.0, False, Shape()),  # terms are dense here
        (4, 1000, 1104, 1656, "FCF", 1.0, -1.0, False, Shape()),
        (3, 264, 200, 1088, "CFC", 0.75, -0.5, False, Shape()),
        (8, 512, 2048, 1792, "CFC", 1.0, 0.0, False, Shape()),
        (8, 256, 2048, 3648, "CFC", 1.0, 0.0, False, Shape()),
        (2, 2048, 2560, 320, "CFC", 1.0, 0.0, False, Shape()),  # each cluster has tiles of both parts
        (2, 2048, 2560, 640, "CFC", 1.0, 0.0, False, Shape()),
        (2, 2048, 2560, 320, "CFC", 1.0, 0.0, True, Shape(128)),
        (4, 128, 4096, 1792, "CFC", 1.0, 0.0, True, Shape(256, 2)),
        (4, 264, 4096, 72, "CFC", 1.0, 0.0, True, Shape()),
        (4, 2048, 4096, 1792, "CFC", 1.0, 0.0, True, Shape()),  # stripes are spread over later tiles
        (8, 1024, 4096, 840, "FCF", 0.75, -0.5, True, Shape()),
    ],
)
def test_products_are_sent_and_added(
    hopper: Hopper,
    stream: Any,
    ranks: int,
    rows: int,
    n: int,
    k: int,
    orders: str,
    alpha: float,
    beta: float,
    late: bool,
    shape: Shape,
) -> None:
    shares, results = Shares(ranks, rows, n, k, orders), list[Any]()
    for _ in range(5):
        shares.z[...] = shares.old if beta else cupy.nan
        for slot in shares.slots:
            slot[...] = cupy.nan
        cupy.cuda.runtime.deviceSynchronize()
        parts = [*shares.sent(), shares.own(late=late)]
        hopper.matmul(stream.ptr, alpha, parts, beta, shape=shape, watch=Watch(20 * SECOND))
        stream.synchronize()
        shares.check(alpha, beta)
        results.append(shares.z.copy().view(cupy.uint16))
    assert all((z == results[0]).all() for z in results)


@pytest.mark.parametrize("k", [520, 1600])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_pieces_are_summed_between_products(hopper: Hopper, stream: Any, beta: float, k: int) -> None:
    """The sums of a piece come after the next piece's products, with their own signal; the last have more places."""
    pieces = [Shares(4, rows, 2048, k) for rows in (512, 264, 264, 72)]
    stored, place_signal = cupy.zeros(len(pieces), cupy.uint32), cupy.zeros(1, cupy.uint32)
    first = cupy.full_like(pieces[0].z, cupy.nan)
    kept = [piece.own(stored[i].data.ptr, () if i else (Place(first),)) for i, piece in enumerate(pieces[:-1])]
    after = [[], *([own] for own in kept)]
    parts = [part for piece, own in zip(pieces, after, strict=True) for part in (*piece.sent(), *own)]
    places = tuple(cupy.full_like(pieces[-1].z, cupy.nan) for _ in range(3))
    flags = [0, stored[-1].data.ptr, place_signal.data.ptr]
    parts.append(pieces[-1].own(places=tuple(map(Place, places, flags))))
    for _ in range(5):
        for piece in pieces:
            piece.z[...] = piece.old if beta else cupy.nan
        stored[...] = place_signal[...] = 0
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, parts, beta, watch=Watch(20 * SECOND))
        stream.synchronize()
        for piece in pieces:
            piece.check(1.0, beta)
        assert stored.tolist() == [1, 1, 1, 1]
        assert place_signal == 1
        for place, z in ((first, pieces[0].z), *((place, pieces[-1].z) for place in places)):
            assert (place.view(cupy.uint16) == z.view(cupy.uint16)).all()
            place[...] = cupy.nan


@pytest.mark.parametrize("k", [520, 1600])
def test_sums_are_stored_at_all_places_between_products(hopper: Hopper, stream: Any, k: int) -> None:
    """Tiles of the own shard of the second piece come after those of the peers' shards; each place has a flag."""
    pieces = [Shares(4, rows, 2048, k) for rows in (1024, 1024, 512, 264)]
    places = [[cupy.full_like(piece.z, cupy.nan) for _ in range(3)] for piece in pieces]
    flags = cupy.zeros((len(pieces), 3), cupy.uint32)
    own = [
        piece.own(places=tuple(Place(z, flags[i, j].data.ptr) for j, z in enumerate(places[i])), late=True)
        for i, piece in enumerate(pieces)
    ]
    parts = [*pieces[0].sent(), *pieces[1].sent()]
    for first, later in zip(own, pieces[2:], strict=False):
        parts += [*later.sent(), first._replace(interleaved=3)]
    parts += own[-2:]
    for _ in range(5):
        for piece in pieces:
            piece.z[...] = cupy.nan
        flags[...] = 0
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, parts, 0.0, watch=Watch(20 * SECOND))
        stream.synchronize()
        assert (flags == 1).all()
        for piece, stored in zip(pieces, places, strict=True):
            piece.check()
            for z in stored:
                assert (z.view(cupy.uint16) == piece.z.view(cupy.uint16)).all()
                z[...] = cupy.nan


@pytest.mark.parametrize("k", [520, 1600])
def test_the_kernel_waits_for_terms(hopper: Hopper, stream: Any, k: int) -> None:
    shares = Shares(4, 1000, 1104, k)
    hopper.matmul(
        stream.ptr, 1.0, [Part(x, shares.y, z) for x, z in zip(shares.x[:-1], shares.slots, strict=False)], 0.0
    )
    stream.synchronize()
    sent = [pinned(slot.get()) for slot in shares.slots]
    beside = cupy.cuda.Stream(non_blocking=True)
    for slot in shares.slots:
        slot[...] = cupy.nan
    cupy.cuda.runtime.deviceSynchronize()
    hopper.matmul(stream.ptr, 1.0, [shares.own()], 0.0, watch=Watch(20 * SECOND))
    for i, term in enumerate(sent):
        copy_from_host(beside, term, shares.slots[i], shares.flag(i))
    stream.synchronize()
    shares.check()


def test_it_starts_beside_kernels_that_wait_for_its_signal(hopper: Hopper, stream: Any, record: Array) -> None:
    """The waiting kernels start first, on other streams, after a kernel with little shared memory."""
    kernels, watch = Kernels(), Watch(SECOND // 4, record=record.ctypes.data)
    kernels.load(stream.ptr)
    beside = [cupy.cuda.Stream(non_blocking=True, priority=-5) for _ in range(2)]
    pieces, busy = [Shares(2, 1024, 4096, 1024) for _ in beside], cupy.zeros(1 << 26, cupy.float32)
    made, forked = cupy.zeros(len(beside), cupy.uint32), cupy.cuda.Event(disable_timing=True)
    marks = [int(word.data.ptr) for word in made]
    sent = [Part(p.x[0], p.y, p.slots[0], signal=mark, partial=True) for p, mark in zip(pieces, marks, strict=True)]
    parts = [*sent, *(piece.own() for piece in pieces)]
    hopper.prepare(parts, reads_z=False)
    for _ in range(200):
        with stream:
            busy += 1
        forked.record(stream)
        for lane, piece, mark in zip(beside, pieces, marks, strict=True):
            lane.wait_event(forked)
            kernels.wait(lane.ptr, [mark], [0], watch=watch)
            streams.operate(lane.ptr, [streams.set_word(piece.flag(0))])
        hopper.matmul(stream.ptr, 1.0, parts, 0.0, watch=watch)
        cupy.cuda.runtime.deviceSynchronize()
        assert record["code"][0] == 0
    for piece in pieces:
        piece.check()


def test_operands_that_tma_cannot_address_are_rejected() -> None:
    def problem(m: int, n: int, k: int, offset: int = 0) -> Any:
        memory = cupy.zeros(4096, cupy.float16)
        x = memory[offset : offset + m * k].reshape(m, k)
        return read(x, cupy.zeros((n, k), cupy.float16).T, cupy.zeros((m, 24), cupy.float16)[:, :n]).problem

    assert supports(problem(9, 8, 16))
    assert not supports(problem(9, 8, 15))
    assert not supports(problem(9, 7, 16))
    assert not supports(problem(9, 8, 16, offset=4))
    single = [cupy.zeros((8, 8), cupy.float32) for _ in range(3)]
    assert not supports(read(*single).problem)


def test_the_kernel_ends_if_a_part_is_missing(hopper: Hopper, stream: Any, record: Array) -> None:
    # The last test of this file: a kernel that ends in an error destroys the CUDA context.
    parts = Parts(4, 1000, 1104, 520)
    beside = cupy.cuda.Stream(non_blocking=True)
    parts.bring(beside, 1)
    beside.synchronize()
    abort = cupy.zeros(1, cupy.uint32)
    for code in (LATE, ABORTED):
        timeout = SECOND // 4 if code == LATE else 20 * SECOND
        watch = Watch(timeout, abort.data.ptr, record.ctypes.data)
        abort[0] = code == ABORTED
        record[0] = 0
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=watch)
        stream.synchronize()
        assert record["code"][0] == code
        assert record["rank"][0] in ((2, 3) if code == LATE else (1, 2, 3))  # rank 1's flag was set and reset
    shares = Shares(4, 1000, 1104, 520)
    abort[0], record[0] = 0, 0
    shares.flags[:2] = 1
    cupy.cuda.runtime.deviceSynchronize()
    watch = Watch(SECOND // 4, abort.data.ptr, record.ctypes.data)
    hopper.matmul(stream.ptr, 1.0, [shares.own()], 0.0, watch=watch)
    stream.synchronize()
    assert (record["code"][0], record["rank"][0]) == (LATE, 2)
    parts = Parts(4, 1000, 1104, 520)  # the next product is right
    parts.bring(beside, 1, 2, 3)
    beside.synchronize()
    hopper.matmul(stream.ptr, 1.0, parts.parts, 0.0, watch=Watch(20 * SECOND))
    stream.synchronize()
    parts.check()
