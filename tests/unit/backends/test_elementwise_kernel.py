"""The kernel of elementwise operations, compiled for this machine: its results are those of NumPy's evaluation."""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu import elementwise
from pblas.backends.cuda.pointwise import Pointwise, source
from pblas.backends.dtypes import FLOAT8
from pblas.epilogues import Name, nodes, parse
from tests.common.gauge import Array, dtype_of, entries, eps_of
from tests.model.fibers import Kernels

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on PATH")

POISON = -99
SHAPES = {"x": (9, 7), "y": (9, 7), "row": (1, 7), "column": (9, 1)}


class HostArray(np.ndarray[Any, Any]):
    """An array with the address as CuPy has it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


class HostPointwise(Pointwise):
    """The evaluator with kernels that run on this machine."""

    def __init__(self) -> None:
        self._cupy = SimpleNamespace(ndarray=HostArray)
        self._sms, self._launches = 1, {}
        self.packs: list[int] = []

    def _function(self, key: Any, packs: int) -> Any:
        kernels: Any = Kernels(source(*key, packs=packs), ["pointwise_all"], "PointwiseArguments")
        kernels.packs = packs
        return kernels

    def _launch(self, function: Any, stream: Any, words: list[int], ctas: int, *, early: bool = False) -> None:
        del stream, early
        # CTAs have a quarter of the threads here; they share the elements, unless each has its own packs.
        self.packs.append(function.packs)
        function.start_words("pointwise_all", 4 * ctas if function.packs else min(ctas, 2), words)


def placed(x: Array, order: str) -> tuple[Any, Any]:
    """(array, memory): the elements amid poison, in a storage order."""
    rows, columns = x.shape if order == "F" else x.shape[::-1]
    memory = np.full((columns, rows + 3), POISON, x.dtype)
    inside = memory[:, :rows].T if order == "F" else memory[:, :rows]
    inside[...] = x
    return inside.view(HostArray), memory


@pytest.mark.parametrize(
    ("text", "dtypes", "compute", "out"),
    [
        ("x * s + y", {"x": "float32", "y": "float32"}, "float32", "float32"),
        (
            "y - x * row + column",
            {"x": "float64", "y": "float32", "row": "float16", "column": "bfloat16"},
            *["float64"] * 2,
        ),
        ("conj(x) * y - s", {"x": "complex64", "y": "float64"}, "complex128", "complex128"),
        ("abs(x) * 2 + real(y) - imag(x)", {"x": "complex128", "y": "float32"}, "complex128", "float64"),
        ("maximum(x, row) / y", {"x": "bfloat16", "y": "bfloat16", "row": "float32"}, "float32", "bfloat16"),
        ("x - y", {"x": "float64", "y": "float64"}, "float64", "float16"),
        ("row + column", {"row": "float32", "column": "complex64"}, "complex64", "complex64"),
        ("x", {"x": "float8_e5m2"}, "float32", "bfloat16"),
    ],
)
def test_the_kernel_computes_what_cpus_compute(text: str, dtypes: dict[str, str], compute: str, out: str) -> None:
    """Operands of any dtypes and storage orders, amid poison; also into the memory of an operand."""
    tree, dtype = parse(text, parts=True), dtype_of(out)
    names = list(dict.fromkeys(node.name for node in nodes(tree) if isinstance(node, Name)))
    for orders in ("CFC", "FFF"):
        operands: dict[str, Any] = dict.fromkeys(names, 1.5)
        for seed, (name, kind) in enumerate(dtypes.items()):
            operands[name] = placed(entries(SHAPES[name], dtype_of(kind), seed), orders[seed % 2])[0]
        result, memory = placed(np.zeros((9, 7), dtype), orders[2])
        expected = np.empty((9, 7), dtype)
        plain = {name: np.asarray(z) if isinstance(z, HostArray) else z for name, z in operands.items()}
        elementwise.evaluate(tree, plain, dtype_of(compute), expected)
        pointwise = HostPointwise()
        pointwise.combine(0, tree, operands, dtype_of(compute), result)
        assert np.allclose(
            np.asarray(result).astype("complex128"), expected.astype("complex128"), rtol=4 * eps_of(dtype)
        )
        assert (memory == POISON).sum() >= 3 * len(memory)
        first = next(iter(dtypes))
        if dtypes[first] == out and SHAPES[first] == (9, 7):
            pointwise.combine(0, tree, operands, dtype_of(compute), operands[first])
            assert np.array_equal(np.asarray(operands[first]), np.asarray(result))


@pytest.mark.parametrize(("shape", "padding"), [((64, 9), 0), ((3, 1032), 8)])
def test_packs_that_are_whole_are_loaded_together(shape: tuple[int, int], padding: int) -> None:
    """Tight matrices of one storage order are one line; otherwise lines are multiples of 16 bytes. Also in place."""
    pointwise = HostPointwise()
    memory = np.full((3, shape[0], shape[1] + padding), POISON, np.float32)
    x, y, out = (memory[i, :, : shape[1]].view(HostArray) for i in range(3))
    x[...], y[...] = entries(shape, dtype_of("float32"), 1), entries(shape, dtype_of("float32"), 2)
    expected = (2.5 * np.asarray(x) - np.asarray(y)).astype(np.float32)
    tree = parse("s * x - y")
    for target in (out, y):
        pointwise.combine(0, tree, {"s": 2.5, "x": x, "y": y}, np.dtype(np.float32), target)
        assert np.allclose(np.asarray(target), expected, rtol=4 * eps_of(target.dtype))
    assert all(pointwise.packs)
    assert (memory[:, :, shape[1] :] == POISON).all()
    # The same tree with other operands.
    pointwise.combine(0, tree, {"s": x, "x": 2.5, "y": 1.0}, np.dtype(np.float32), out)
    assert np.array_equal(np.asarray(out), (np.float32(2.5) * np.asarray(x) - 1).astype(np.float32))


def test_a_prepared_launch_takes_other_addresses_and_numbers() -> None:
    """Arrays of one layout share a launch; whether packs are aligned is decided by the addresses of each call."""
    pointwise = HostPointwise()
    memory = np.full((4, 72), POISON, np.float32)
    tree = parse("s * x - y")
    for shift, s in ((0, 2.5), (1, -1.0), (0, 4.0)):
        x, y, out = (memory[i, shift : shift + 64].reshape(8, 8).view(HostArray) for i in range(3))
        x[...], y[...] = entries((8, 8), dtype_of("float32"), shift + 1), entries((8, 8), dtype_of("float32"), 9)
        pointwise.combine(0, tree, {"s": s, "x": x, "y": y}, np.dtype(np.float32), out)
        assert np.allclose(np.asarray(out), np.float32(s) * np.asarray(x) - np.asarray(y), rtol=4 * eps_of(out.dtype))
    assert [packs > 0 for packs in pointwise.packs] == [True, False, True]
    assert len(pointwise._launches) == 1
    assert (memory[3] == POISON).all()


def test_a_view_of_parts_is_not_taken_for_elements_in_a_row() -> None:
    """The real parts of a complex matrix have its strides in bytes, which are those of the result."""
    x, out = entries((8, 8), dtype_of("complex64"), 1).view(HostArray), np.empty((8, 8), np.complex64).view(HostArray)
    HostPointwise().combine(0, parse("x * y"), {"x": x, "y": x.real}, np.dtype(np.complex64), out)
    assert np.allclose(np.asarray(out), np.asarray(x) * np.asarray(x.real))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_numbers_of_8_bits_are_rounded_as_by_ml_dtypes(dtype: Any) -> None:
    """Any float32, halfway cases and their neighbours among them; and every number of 8 bits exactly."""
    codes = np.arange(256, dtype=np.uint8).view(dtype).reshape(1, 256)
    wide = np.sort(codes[np.isfinite(codes.astype(np.float32))].astype(np.float32))
    halves = (wide[1:] + wide[:-1]) / 2
    random = np.random.default_rng(0).integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 464, 465, 57344, 61440, 61439, 1e-30], np.float32)
    values = np.concatenate(
        [wide, halves, *(np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)), random, special]
    )
    for x, out in ((values[None], dtype), (codes, np.dtype(np.float32))):
        result = np.zeros(x.shape, out).view(HostArray)
        pointwise = HostPointwise()
        pointwise.combine(0, parse("x"), {"x": x.copy().view(HostArray)}, np.dtype(np.float32), result)
        with np.errstate(all="ignore"):
            expected = x.astype(out).astype(np.float32)
        made = np.asarray(result).astype(np.float32)
        assert np.array_equal(made, expected, equal_nan=True)
        assert (np.signbit(made) == np.signbit(expected))[~np.isnan(expected)].all()
