"""Laws of products on one GPU: any order, address and stream, captured or not, the same bits every time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu.pointwise import evaluate
from pblas.backends.dtypes import accumulator_dtype
from pblas.backends.push_engine import Finish, GemmModes
from pblas.epilogues import NAMED, parse, substituted
from pblas.errors import BackendError, PblasWarning
from tests.common.gauge import NAMES, THRESHOLD, Array, dtype_of, eps_of, gauge

cupy = pytest.importorskip("cupy")
pytest.importorskip("nvmath.bindings")

if not cupy.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from pblas.backends.cuda.cublaslt import Product  # noqa: E402
from pblas.backends.cuda.gemm import Gemm, needs_copy, read  # noqa: E402
from pblas.backends.cuda.gemm_problem import Choice  # noqa: E402
from pblas.backends.cuda.reproducible import UniformGemm  # noqa: E402

pytestmark = pytest.mark.gpu

POISON = -99
# Order "F" or "C", and elements of padding after each column or row.
LAYOUTS = (("F", 0), ("F", 3), ("C", 0), ("C", 2))
SHAPES = ((7, 8, 9), (1, 8, 9), (7, 1, 9), (7, 8, 1), (1, 1, 1), (1, 40, 333), (65, 130, 257), (64, 128, 256))
MARKS = ((False, False), (False, True), (True, False), (True, True))


class Stored:
    """A matrix, or a batch of them, in poisoned device memory: an order, a padding, an offset in elements."""

    def __init__(self, x: Array, order: str = "C", padding: int = 0, offset: int = 0) -> None:
        matrices = x if order == "C" else x.swapaxes(-1, -2)
        *batch, rows, columns = matrices.shape
        pitch = columns + padding
        self._host = np.full(offset + max(1, *batch, 1) * (rows * pitch + padding), POISON, x.dtype)
        self._item, self._offset = x.dtype.itemsize, offset
        strides = (*((rows * pitch + padding,) if batch else ()), pitch, 1)
        self._strides = tuple(self._item * s for s in (strides if order == "C" else (*strides[:-2], 1, pitch)))
        self._shape = x.shape
        self._view(self._host)[...] = x
        self._memory = cupy.asarray(self._host.view(np.uint8))
        self.array = cupy.ndarray(x.shape, x.dtype, self._memory.data + offset * self._item, strides=self._strides)

    def _view(self, host: Array) -> Array:
        return np.ndarray(self._shape, host.dtype, host.view(np.uint8).data, self._offset * self._item, self._strides)

    def read(self) -> Array:
        """The current elements; the poison between and around them is checked."""
        cupy.cuda.runtime.deviceSynchronize()
        host = self._memory.get().view(self._host.dtype)
        values: Array = self._view(host).copy()
        around, before = host.copy(), self._host.copy()
        self._view(around)[...] = self._view(before)[...] = 0
        assert np.array_equal(around.view(np.uint8), before.view(np.uint8)), "memory around the matrix was touched"
        return values

    def set(self, x: Array) -> None:
        """Set new elements; the device is idle before and after."""
        cupy.cuda.runtime.deviceSynchronize()
        self._view(self._host)[...] = x
        self._memory.set(self._host.view(np.uint8))
        cupy.cuda.runtime.deviceSynchronize()


@pytest.fixture(scope="module")
def gemm() -> Any:
    with Gemm(lanes=("main", "side")) as library:
        yield library


@pytest.fixture(scope="module")
def stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True)


def entries(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    values: Array = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.0, shape)
    if dtype.kind == "c":
        values = values + 1j * rng.choice([-1.0, 1.0], shape) * rng.uniform(0.1, 1.0, shape)
    return values.astype(dtype)


def scalars(dtype: np.dtype[Any]) -> itertools.cycle[tuple[complex, complex]]:
    pairs = [(1.0, 0.0), (-1.0, 1.0), (0.75, -0.5)]
    return itertools.cycle((*pairs, (0.5 - 2j, 1.5 + 0.5j)) if dtype.kind == "c" else pairs)


def results(dtype: np.dtype[Any]) -> set[np.dtype[Any]]:
    """The dtypes that Z may have."""
    return {dtype, accumulator_dtype(dtype)}


def run(
    gemm: Gemm, stream: Any, alpha: complex, x: Stored, y: Stored, beta: complex, z: Stored, **options: Any
) -> Array:
    gemm.matmul(stream.ptr, alpha, x.array, y.array, beta, z.array, **options)
    return z.read()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_in_every_order(gemm: Gemm, stream: Any, name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y = entries((m, k), dtype, 1), entries((k, n), dtype, 2)
    pairs = scalars(dtype)
    for dtype_z in results(dtype):
        z = entries((m, n), dtype_z, 3)
        for layout_x, layout_y, layout_z in itertools.product(LAYOUTS, repeat=3):
            alpha, beta = next(pairs)
            stored = Stored(x, *layout_x), Stored(y, *layout_y), Stored(z, *layout_z)
            result = run(gemm, stream, alpha, *stored[:2], beta, stored[2])
            assert gauge(result, x, y, z, alpha=alpha, beta=beta) <= THRESHOLD
            assert np.array_equal(stored[0].read(), x)
            assert np.array_equal(stored[1].read(), y)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), [(65, 130, 257), (64, 128, 256), (8, 40, 333)])
def test_epilogues_are_fused_or_left_to_the_caller(gemm: Gemm, stream: Any, name: str, m: int, n: int, k: int) -> None:
    """cuBLASLt's own epilogues are fused and rounded once; with other epilogues Z is the plain product."""
    dtype, wide = dtype_of(name), accumulator_dtype(dtype_of(name))
    x, y, z, h = (entries(shape, dtype, seed) for seed, shape in enumerate([(m, k), (k, n), (m, n), (m, n)]))
    row, column = Stored(entries((1, n), dtype, 4)), Stored(entries((m, 1), dtype, 5))
    arrays = {"row": row.array, "column": column.array, "h": Stored(h).array}
    texts = ["relu(x)", "silu(x)", NAMED["gelu_tanh"], "gelu(x)", "x + s", "x + h", "relu(x * 2)"]
    for vector in ("row", "column"):
        texts += [f"x + {vector}", f"relu({vector} + x)", substituted(NAMED["gelu_tanh"], f"x + {vector}")]
    for layout, text, (alpha, beta) in itertools.product(LAYOUTS, texts, ((1.0, 0.0), (0.75, -0.5))):
        stored, tree = Stored(z, *layout), parse(text)
        finish = Finish(tree, {key: cupy.broadcast_to(v, z.shape) for key, v in arrays.items()} | {"s": 2.0})
        done = gemm.matmul(stream.ptr, alpha, Stored(x).array, Stored(y).array, beta, stored.array, finish=finish)
        across = "column" if layout[0] == "C" else "row"  # a vector in the direction that cuBLASLt does not add
        wide_gelu = "tanh" in text and dtype.itemsize > 2
        if name == "float64" or wide_gelu or text in texts[3:7] or text == "silu(x)" or across in text:
            assert not done, text
        elif dtype.itemsize == 2 and not layout[1] and m % 64 == 0:
            assert done, text
        exact = alpha * (x.astype(float) @ y.astype(float)) + beta * z.astype(float)
        operands = {key: v.get().astype(float) for key, v in finish.operands.items() if key != "s"}
        expected = evaluate(tree, exact, operands) if done else exact
        result = stored.read().astype(float)
        assert np.abs(result - expected).max() <= eps_of(dtype) * np.abs(expected).max() + 2 * k * eps_of(wide), text


@pytest.mark.parametrize("name", ["complex64", "complex128"])
@pytest.mark.parametrize(("m", "n", "k"), [(7, 8, 9), (1, 8, 9), (7, 1, 9), (7, 8, 1)])
def test_conjugation(gemm: Gemm, stream: Any, name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y, z = entries((m, k), dtype, 1), entries((k, n), dtype, 2), entries((m, n), dtype, 3)
    alpha, beta = 0.5 - 2j, 1.5 + 0.5j
    flags = 0
    for layout_x, layout_y, layout_z in itertools.product(LAYOUTS, repeat=3):
        for conj in MARKS:
            x_, y_, z_ = Stored(x, *layout_x), Stored(y, *layout_y), Stored(z, *layout_z)
            copy_x, copy_y = needs_copy(x_.array, y_.array, z_.array, conj)
            if copy_x or copy_y:
                with pytest.raises(AssertionError, match="conjugate it first"):
                    gemm.matmul(stream.ptr, alpha, x_.array, y_.array, beta, z_.array, conj=conj)
                assert np.array_equal(z_.read(), z)
            x_ = Stored(x.conj(), *layout_x) if copy_x else x_
            y_ = Stored(y.conj(), *layout_y) if copy_y else y_
            left = (conj[0] and not copy_x, conj[1] and not copy_y)
            flags += sum(left)
            result = run(gemm, stream, alpha, x_, y_, beta, z_, conj=left)
            exact = (x.conj() if conj[0] else x), (y.conj() if conj[1] else y)
            assert gauge(result, *exact, z, alpha=alpha, beta=beta) <= THRESHOLD
    assert flags


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 8, 9), (1, 8, 9), (64, 32, 48)])
def test_batches(gemm: Gemm, stream: Any, name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    pairs = scalars(dtype)
    for batch, layouts in itertools.product((1, 3), itertools.product(LAYOUTS, repeat=3)):
        shapes = [(batch, m, k), (batch, k, n), (batch, m, n)]
        alpha, beta = next(pairs)
        x, y, z = (entries(shape, dtype, seed) for seed, shape in enumerate(shapes))
        for shared in (None, 0, 1):  # the operand that all products share
            x_ = x[0] if shared == 0 else x
            y_ = y[0] if shared == 1 else y
            left, right, result = (Stored(w, *layout) for w, layout in zip((x_, y_, z), layouts, strict=True))
            actual = run(gemm, stream, alpha, left, right, beta, result)
            for i in range(batch):
                factors = x[0] if shared == 0 else x[i], y[0] if shared == 1 else y[i]
                assert gauge(actual[i], *factors, z[i], alpha=alpha, beta=beta) <= THRESHOLD


@pytest.mark.parametrize("name", NAMES)
def test_every_alignment_is_supported(gemm: Gemm, stream: Any, name: str) -> None:
    dtype = dtype_of(name)
    m, n, k = 48, 64, 96
    x, y, z = entries((m, k), dtype, 1), entries((k, n), dtype, 2), entries((m, n), dtype, 3)
    for offsets in itertools.product((0, 1, 2, 8), repeat=3):
        for order in "FC":
            left, right, result = (Stored(w, order, 0, offset) for w, offset in zip((x, y, z), offsets, strict=True))
            actual = run(gemm, stream, 0.75, left, right, -0.5, result)
            assert gauge(actual, x, y, z, alpha=0.75, beta=-0.5) <= THRESHOLD


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 8, 9), (1, 40, 333), (64, 128, 256), (32, 32, 4096)])
def test_beta_zero_never_reads_z(gemm: Gemm, stream: Any, name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y = entries((m, k), dtype, 1), entries((k, n), dtype, 2)
    for dtype_z, order in itertools.product(results(dtype), "FC"):
        z = Stored(np.full((m, n), np.nan, dtype_z), order, 2)
        result = run(gemm, stream, 0.75, Stored(x), Stored(y), 0.0, z)
        assert gauge(result, x, y, alpha=0.75) <= THRESHOLD


def test_empty_results_are_left_alone(gemm: Gemm, stream: Any) -> None:
    for m, n, k in ((0, 8, 9), (7, 0, 9), (0, 0, 0), (0, 8, 0)):
        x, y, z = (cupy.zeros(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z)
    x, y, z = (cupy.zeros(shape, np.float32) for shape in ((7, 0), (0, 8), (7, 8)))
    with pytest.raises(AssertionError, match="scaling of Z"):
        gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z)
    with pytest.raises(AssertionError, match="scaling of Z"):
        gemm.matmul(stream.ptr, 0.0, z.T, z, 0.0, cupy.zeros((8, 8), np.float32))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_products_are_added_in_32_bits(gemm: Gemm, stream: Any, name: str) -> None:
    # Beyond 256 bfloat16 cannot count, and float16 not beyond 2048; long sums are where K is split.
    dtype, k = dtype_of(name), 32768
    for dtype_z in results(dtype):
        z = Stored(np.zeros((2, 3), dtype_z))
        result = run(gemm, stream, 1.0, Stored(np.ones((2, k), dtype)), Stored(np.ones((k, 3), dtype)), 0.0, z)
        assert (result == k).all()


def test_tf32_is_taken_on_request_only(gemm: Gemm, stream: Any) -> None:
    dtype = np.dtype(np.float32)
    x, y, z = (entries(shape, dtype, seed) for seed, shape in enumerate(((128, 256), (256, 128), (128, 128))))
    exact = run(gemm, stream, 1.0, Stored(x), Stored(y), 0.0, Stored(z))
    rounded = run(gemm, stream, 1.0, Stored(x), Stored(y), 0.0, Stored(z), modes=GemmModes(tf32=True))
    assert gauge(exact, x, y) <= THRESHOLD
    assert THRESHOLD < gauge(rounded, x, y) <= THRESHOLD * 2**-10 / eps_of(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_in_every_run(gemm: Gemm, stream: Any, name: str) -> None:
    dtype = dtype_of(name)
    x, y = Stored(entries((96, 8192), dtype, 1)), Stored(entries((8192, 80), dtype, 2))  # few tiles: K is split
    z = Stored(np.zeros((96, 80), dtype))
    first = run(gemm, stream, 1.0, x, y, 0.0, z)
    for _ in range(30):
        assert np.array_equal(first.view(np.uint8), run(gemm, stream, 1.0, x, y, 0.0, z).view(np.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_no_algorithm_adds_in_the_order_of_arrival(gemm: Gemm, name: str) -> None:
    for m, n, k in ((64, 64, 16384), (4096, 64, 64), (7, 8, 9)):
        x, y, z = (cupy.empty(shape, dtype_of(name)) for shape in ((m, k), (k, n), (m, n)))
        product = Product(gemm._handle, gemm.workspace_nbytes, read(x, y, z).problem)
        algorithms = product.heuristics(64)
        assert all(algorithm.ordered for algorithm in algorithms)
        for algorithm in algorithms:
            copy = product.checked(algorithm.data)
            assert copy is not None
            assert copy.data == algorithm.data
        product.close()


@pytest.mark.parametrize("name", NAMES)
def test_captured_products_replay(gemm: Gemm, stream: Any, name: str) -> None:
    dtype = dtype_of(name)
    m, n, k = 33, 46, 515  # used by no other test, so that the first call is under capture
    x, y, z = Stored(entries((m, k), dtype, 1)), Stored(entries((k, n), dtype, 2), "F"), Stored(np.zeros((m, n), dtype))
    square, sum_ = Stored(np.zeros((m, m), dtype)), Stored(entries((m, n), dtype, 4))
    cupy.cuda.runtime.deviceSynchronize()
    stream.begin_capture(cupy.cuda.runtime.streamCaptureModeThreadLocal)
    try:
        gemm.matmul(stream.ptr, 1.0, x.array, y.array, 0.0, z.array)
        gemm.matmul(stream.ptr, 0.5, x.array, x.array.T, 0.0, square.array)
        gemm.matmul(stream.ptr, -1.0, x.array, y.array, 1.0, sum_.array)
    finally:
        graph = stream.end_capture()
    assert not z.read().any()  # nothing has run yet
    gemm.matmul(stream.ptr, 3.0, x.array, y.array, 0.0, Stored(np.zeros((m, n), dtype)).array)  # with another alpha
    for seed in range(3):
        new = entries((m, k), dtype, 10 + seed)
        addend = entries((m, n), dtype, 20 + seed)
        x.set(new)
        sum_.set(addend)
        graph.launch(stream)
        result = z.read()
        assert gauge(result, new, entries((k, n), dtype, 2)) <= THRESHOLD
        assert gauge(square.read(), new, new.T, alpha=0.5) <= THRESHOLD
        assert gauge(sum_.read(), new, entries((k, n), dtype, 2), addend, alpha=-1.0, beta=1.0) <= THRESHOLD
        eager = run(gemm, stream, 1.0, x, y, 0.0, Stored(np.zeros((m, n), dtype)))
        assert np.array_equal(result.view(np.uint8), eager.view(np.uint8))


def test_lanes_run_at_the_same_time(gemm: Gemm) -> None:
    dtype = np.dtype(np.float32)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    operands = [
        (
            Stored(entries((64, 16384), dtype, s)),
            Stored(entries((16384, 64), dtype, s + 9)),
            Stored(np.zeros((64, 64), dtype)),
        )
        for s in range(2)
    ]
    alone = [run(gemm, streams[0], 1.0, x, y, 0.0, z) for x, y, z in operands]
    for _ in range(20):
        for _ in range(10):
            for (x, y, z), stream, lane in zip(operands, streams, ("main", "side"), strict=True):
                gemm.matmul(stream.ptr, 1.0, x.array, y.array, 0.0, z.array, lane=lane)
        for (_, _, z), expected in zip(operands, alone, strict=True):
            assert np.array_equal(z.read(), expected)


def test_repeated_calls_take_no_memory(gemm: Gemm, stream: Any) -> None:
    x, y, z = (cupy.zeros(shape, np.float32) for shape in ((96, 8192), (8192, 80), (96, 80)))
    gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z)
    before = cupy.get_default_memory_pool().used_bytes(), cupy.cuda.runtime.memGetInfo()
    for _ in range(100):
        gemm.matmul(stream.ptr, 1.0, x, y, 0.0, z)
    assert before == (cupy.get_default_memory_pool().used_bytes(), cupy.cuda.runtime.memGetInfo())


def test_more_problems_than_the_cache_holds(gemm: Gemm, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pblas.backends.cuda.gemm._MOST_PRODUCTS", 4)
    dtype = np.dtype(np.float64)
    for m in (*range(1, 12), *range(1, 12)):
        x, y = entries((m, 9), dtype, 1), entries((9, 5), dtype, 2)
        assert gauge(run(gemm, stream, 1.0, Stored(x), Stored(y), 0.0, Stored(np.zeros((m, 5)))), x, y) <= THRESHOLD
        assert len(gemm._products) <= 4


@pytest.mark.parametrize("name", NAMES)
def test_tuned_algorithms_are_saved_and_loaded(gemm: Gemm, stream: Any, name: str, tmp_path: Path) -> None:
    dtype = dtype_of(name)
    x, y, z = entries((160, 2048), dtype, 1), entries((2048, 96), dtype, 2), np.zeros((160, 96), dtype)
    stored = Stored(x, "F"), Stored(y, "C"), Stored(z, "C", 0, 1)  # Z misaligned
    problem = read(*(part.array for part in stored)).problem
    with Gemm() as first, Gemm() as second, Gemm() as third:
        run(second, stream, 1.0, *stored[:2], 0.0, stored[2])  # prepared before it loads
        first.tune([problem, problem], stream.ptr)
        choices = first.choices.entries.copy()
        ((key, choice),) = choices.items()
        assert key == problem
        assert 0 < choice.seconds <= choice.default_seconds < 1
        first.tune([problem], stream.ptr)
        assert first.choices.entries == choices  # not tuned again
        for each in (first, second, third):
            each.choices.path = tmp_path / "gemm.json"
        first.choices.save()
        for each in (second, third):
            each.load()
        assert choices == second.choices.entries == third.choices.entries
        results = [run(gemm, stream, 1.0, *stored[:2], 0.0, stored[2]) for gemm in (first, second, third)]
        assert gauge(results[0], x, y) <= THRESHOLD
        assert np.array_equal(results[0].view(np.uint8), results[1].view(np.uint8))
        assert np.array_equal(results[0].view(np.uint8), results[2].view(np.uint8))


def test_an_algorithm_for_another_gpu_is_rejected(stream: Any) -> None:
    dtype = np.dtype(np.float32)
    x, y = entries((65, 130), dtype, 1), entries((130, 33), dtype, 2)
    stored = Stored(x), Stored(y), Stored(np.zeros((65, 33), dtype))
    problem = read(*(part.array for part in stored)).problem
    with Gemm() as fresh:
        fresh.choices.entries[problem] = Choice(b"\xff" * 64, 1e-6, 1e-6)
        with pytest.warns(PblasWarning, match="refuses the algorithm"):
            result = run(fresh, stream, 1.0, *stored[:2], 0.0, stored[2])
        assert gauge(result, x, y) <= THRESHOLD


def test_the_cache_file_is_named_after_the_gpu(gemm: Gemm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Gemm(workspace_nbytes=1 << 20) as fresh:
        path, usual = fresh.choices.path, gemm.choices.path
        assert path is not None
        assert usual is not None
        assert path.is_relative_to(tmp_path)
        assert str(fresh.version) in path.name
        assert path.name != usual.name
        fresh.load()
        assert not fresh.choices.entries


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "complex64"])
def test_refused_shapes_are_formed_in_halves(monkeypatch: pytest.MonkeyPatch, stream: Any, name: str) -> None:
    """Of a reproducible product: cuBLASLt may refuse what it took in the test of the algorithm, for another shape."""
    dtype = dtype_of(name)
    m, n, k = 96, 64, 256
    x, y = Stored(entries((m, k), dtype, 1)), Stored(entries((k, n), dtype, 2), "F")
    results = [Stored(np.zeros((m, n), accumulator_dtype(dtype))) for _ in range(2)]
    most = [1 << 30]
    heuristics, checked, formed = Product.heuristics, Product.checked, list[tuple[int, int]]()

    def fits(product: Product) -> bool:
        formed.append((product.problem.m, product.problem.n))
        return max(formed[-1]) <= most[0]

    with UniformGemm() as gemm:
        assert gemm.prepare(dtype, (m, n), k, accumulator_dtype(dtype))
        monkeypatch.setattr(Product, "heuristics", lambda p, count: heuristics(p, count) if fits(p) else [])
        monkeypatch.setattr(Product, "checked", lambda p, data: checked(p, data) if fits(p) else None)
        for most[0], z in zip((1 << 30, 32), results, strict=True):
            gemm._forget()
            gemm.multiply(stream.ptr, x.array, y.array, 0, z.array)
            stream.synchronize()
        most[0] = 8
        gemm._forget()
        with pytest.raises(BackendError, match="refuses a product of 16 x 16"):
            gemm.multiply(stream.ptr, x.array, y.array, 0, results[0].array)
    assert {(32, 32)} <= set(formed)
    whole, halves = (cupy.asnumpy(z.array) for z in results)
    assert whole.any()
    assert whole.tobytes() == halves.tobytes()
