"""Expressions on one GPU have the values that they have on CPUs, in any memory, and change nothing else."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

from pblas.backends.cpu import pointwise
from pblas.backends.cuda.pointwise import Pointwise
from pblas.backends.dtypes import accumulator_dtype
from pblas.epilogues import parse
from tests.common.gauge import NAMES, Array, dtype_of, entries, eps_of

pytestmark = pytest.mark.gpu

POISON = -99
COMPLEX = (
    *("x * s + row - 1.5", "x / full", "exp(x) + log(x)", "sqrt(x)", "rsqrt(x)", "tanh(x * 3)", "x ** 2 + x ** s"),
    *("sin(x) + cos(s * x)", "tan(x / 4)", "where(x == full, x, where(x != row, 1, x))"),
)
REAL = (
    *("sigmoid(x) * full", "relu(x) + column", "gelu(x)", "silu(x * 4) - row", "maximum(x, 0.1) - minimum(x, row)"),
    *("where(x > row, x, 0.1 * x)", "where(x != x, 1, where(x <= 0, abs(x), x))", "gelu_tanh(x * 4) * row"),
    *("floor(x * 4) - ceil(row)", "sign(x) + isnan(x / 0) * isfinite(row)", "x % row", "x // row", "-x % 0.25"),
)


@pytest.fixture(scope="module")
def expressions() -> Pointwise:
    return Pointwise()


class Placed:
    """A matrix on the GPU, surrounded by poison."""

    def __init__(self, x: Array, order: str, padding: int = 0) -> None:
        rows, columns = x.shape if order == "F" else x.shape[::-1]
        memory = np.full((columns, rows + padding), POISON, x.dtype)
        self._rows, self._order = rows, order
        self._inside(memory)[...] = x
        self._memory = cupy.asarray(memory.view(np.uint8)).view(x.dtype)
        self.x = self._inside(self._memory)

    def _inside(self, memory: Any) -> Any:
        lines = memory[:, : self._rows]
        return lines.T if self._order == "F" else lines

    def read(self) -> Array:
        """The elements; the poison must be unchanged."""
        memory: Array = self._memory.get()
        assert (memory[:, self._rows :] == POISON).all()
        result: Array = self._inside(memory)
        return result


@pytest.mark.parametrize("name", NAMES)
def test_expressions_have_the_values_of_cpus(expressions: Pointwise, name: str) -> None:
    dtype, wide = dtype_of(name), accumulator_dtype(dtype_of(name))
    shapes = {"x": (33, 21), "full": (33, 21), "row": (21,), "column": (33, 1)}
    values = {
        key: (entries((1, int(np.prod(shape))), dtype, seed) * 2).reshape(shape)
        for seed, (key, shape) in enumerate(shapes.items())
    }
    for number, text in enumerate(COMPLEX if dtype.kind == "c" else (*COMPLEX, *REAL)):
        tree = parse(text)
        x = np.abs(values["x"]) if number < 6 and dtype.kind != "c" else values["x"]
        operands: dict[str, Any] = {"s": 1.75, "row": values["row"], "column": values["column"], "full": values["full"]}
        with np.errstate(all="ignore"):
            on_host = {key: v.astype(wide) if isinstance(v, np.ndarray) else v for key, v in operands.items()}
            expected = np.broadcast_to(pointwise.evaluate(tree, x.astype(wide), on_host), x.shape)
        for order, padding in (("C", 0), ("F", 0), ("C", 3), ("F", 8)):
            on_gpu: dict[str, Any] = {"s": 1.75}
            for key in ("row", "column", "full"):
                matrix = operands[key].reshape(-1, operands[key].shape[-1])
                on_gpu[key] = Placed(matrix, "CF"[number % 2], 1).x.reshape(shapes[key])
            source, out = Placed(x, "CF"[number // 2 % 2], 2), Placed(x, order, padding)
            expressions.evaluate(0, tree, source.x, on_gpu, out.x)
            result = out.read()
            near = np.abs(result - expected) <= 16 * eps_of(dtype) * (1 + np.abs(expected))
            assert (near | (np.isnan(result) & np.isnan(expected))).all(), (text, order)
            expressions.evaluate(0, tree, source.x, on_gpu, source.x)  # in place
            assert np.ascontiguousarray(source.read()).tobytes() == np.ascontiguousarray(result).tobytes()


def test_accumulators_are_rounded_once_and_special_numbers_are_kept(expressions: Pointwise) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e-40, -0.0, 1 + 2.0**-8 + 2.0**-20], np.float32)
    out = cupy.empty(x.shape, dtype_of("bfloat16"))
    for text in ("x", "relu(x)", "maximum(x, s)", "minimum(s, x)"):
        expressions.evaluate(0, parse(text), cupy.asarray(x), {"s": 0.0}, out)
        expected = np.asarray(pointwise.evaluate(parse(text), x, {"s": 0.0})).astype(out.dtype)
        assert np.array_equal(out.get().astype(np.float32), expected.astype(np.float32), equal_nan=True), text
    empty = cupy.empty((0, 5), np.float32)
    expressions.evaluate(0, parse("x + 1"), empty, {}, empty)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("complex")])
@pytest.mark.parametrize("columns", [1, 37, 5000])
def test_rows_are_normalised_as_on_cpus(expressions: Pointwise, name: str, columns: int) -> None:
    dtype, wide = dtype_of(name), accumulator_dtype(dtype_of(name))
    x, h = (entries((11, columns), dtype, seed) for seed in (1, 2))
    weight = entries((1, columns), dtype, 3)[0]
    for padding in (0, 8, 3):
        for residual, factor in ((None, None), (None, weight), (h, weight), (h, weight.astype(wide))):
            total = (x.astype(wide) + (0 if residual is None else h.astype(wide))).astype(dtype).astype(wide)
            expected = pointwise.rms_normalised(total, None if factor is None else factor.astype(wide), 1e-3)
            on_gpu: Any = None if factor is None else Placed(factor[None], "C").x[0]
            for in_place in (False, True):
                source, out, kept = (Placed(array, "C", padding) for array in (x, np.zeros_like(x), h))
                target, sums = source if in_place else out, None if residual is None else kept.x
                expressions.normalise(0, source.x, target.x, residual=sums, weight=on_gpu, eps=1e-3)
                near = np.abs(target.read() - expected) <= 16 * eps_of(dtype) * (1 + np.abs(expected))
                assert near.all()
                assert residual is None or np.array_equal(kept.read().astype(wide), total)
