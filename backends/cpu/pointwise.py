"""Expressions of `pblas.epilogues` on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.dtypes import Array, accumulator_dtype
from pblas.epilogues import COMPARISONS, RESULT, Apply, Epilogue, Name, Node, Number, nodes, parse

if TYPE_CHECKING:
    from types import ModuleType


def _special() -> ModuleType:
    """SciPy's special functions, imported late: few expressions need them, and the import takes time."""
    from scipy import special

    return special


def _out(x: object) -> Array | None:
    """The out= argument of a function whose argument x is not used any more: x, if it is an array."""
    return x if isinstance(x, np.ndarray) else None


def _one_plus_exp(x: Array) -> Array:
    """1 + exp(-x)."""
    value = -x
    value = np.exp(value, out=_out(value))
    return np.add(value, x.dtype.type(1), out=_out(value))


def _silu(x: Array) -> Array:  # a quarter of the time of x times SciPy's expit in float32
    denominator = _one_plus_exp(x)
    return np.divide(x, denominator, out=_out(denominator))


def _gelu(x: Array) -> Array:
    value = x * x.dtype.type(-(0.5**0.5))
    value = _special().erfc(value, out=_out(value))
    value = np.multiply(value, x, out=_out(value))
    return np.multiply(value, x.dtype.type(0.5), out=_out(value))


def _gelu_tanh(x: Array) -> Array:  # 1 + tanh(u) = 2 / (1 + exp(-2 u)), without the difference where x is far below 0
    kind = x.dtype.type
    exponent = x * x
    exponent = np.multiply(exponent, kind(0.07135481627260025), out=_out(exponent))
    exponent = np.add(exponent, kind(1.5957691216057308), out=_out(exponent))
    denominator = _one_plus_exp(np.multiply(exponent, x, out=_out(exponent)))
    return np.divide(x, denominator, out=_out(denominator))


OWN: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "isnan": lambda x: np.isnan(x).astype(x.real.dtype),
    "isfinite": lambda x: np.isfinite(x).astype(x.real.dtype),
    "erf": lambda x: _special().erf(x),
    "sigmoid": lambda x: x.dtype.type(1) / _one_plus_exp(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": _silu,
}
"""Functions that NumPy does not have under the same name."""

POWERS: dict[float, np.ufunc] = {2.0: np.square, -1.0: np.reciprocal}
"""Powers that have a function of their own, as in NumPy: power takes forty times as long as square, and makes NaN of
the inverse of a complex infinity."""
PIECE_NBYTES = 120 << 10
"""Bytes of rows evaluated at a time: intermediate arrays stay in a cache, and in memory that malloc keeps. (glibc
returns blocks of 128 KiB and more to the system.)"""

_MAX_KNOWN = 1024  # expressions
SHORT = 256  # elements; maximum(x, array of equal numbers) takes half the time of maximum(x, number) for longer rows


Evaluator = Callable[["Array", Mapping[str, object]], Any]
"""The value of an expression for x and operands, as `evaluate`, except that NumPy may warn."""


def evaluate(tree: Node, x: Array, operands: Mapping[str, object]) -> Any:
    """The value of an expression in the precision of x: an array of its shape, or a scalar if x does not occur.

    >>> from pblas.epilogues import parse
    >>> evaluate(parse("relu(x) + b"), np.array([-1.0, 2.0]), {"b": 1.0}).tolist()
    [1.0, 3.0]
    """
    with np.errstate(all="ignore"):
        return evaluator(tree)(x, operands)


def evaluate_into(tree: Node, x: Array, operands: Mapping[str, object], out: Array) -> None:
    """Out := the value of an expression, in the precision in which x's elements are added, rounded once."""
    if not out.size:
        return
    arrays = {name: np.broadcast_to(z, x.shape) for name, z in operands.items() if isinstance(z, np.ndarray)}
    total = accumulator_dtype(x.dtype)
    in_place = x is out and x.dtype == total and not any(np.may_share_memory(z, out) for z in arrays.values())
    if abs(out.strides[0]) < abs(out.strides[1]):  # columns are contiguous
        x, out, arrays = x.T, out.T, {name: z.T for name, z in arrays.items()}
    value_of = evaluator(tree, overwrites=total != x.dtype or in_place)
    step = max(1, PIECE_NBYTES // (x.shape[1] * total.itemsize))
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[0], step):
            rows = slice(start, start + step)
            row_operands = {name: z[rows].astype(total, copy=False) for name, z in arrays.items()}
            piece = x[rows].astype(total, copy=False)
            value = value_of(piece, {**operands, **row_operands})
            if not in_place or value is not piece:
                out[rows] = value


def finish(epilogue: Epilogue, x: Array, operands: Mapping[str, Any], out: Array) -> None:
    """Out := the epilogue of X; see `pblas.backends.device.Elementwise.finish`."""
    if not out.size:
        return
    if epilogue.tree is not None:
        evaluate_into(epilogue.tree, x, operands, out)
        return
    total = accumulator_dtype(x.dtype)
    weight = operands["weight"].astype(total, copy=False) if "weight" in operands else None
    step = max(1, PIECE_NBYTES // (x.shape[1] * total.itemsize))
    with np.errstate(all="ignore"):
        for start in range(0, x.shape[0], step):
            rows = slice(start, start + step)
            added = x[rows].astype(total, copy=False)
            if "residual" in operands:
                added = added + operands["residual"][rows].astype(total, copy=False)
                operands["residual"][rows] = added
            out[rows] = rms_normalised(added, weight, operands["eps"])


@lru_cache(_MAX_KNOWN)
def evaluator_of(text: str, *, overwrites: bool) -> Evaluator:
    """As `evaluator`, looked up by the expression's text, which is faster."""
    return evaluator(parse(text), overwrites=overwrites)


@lru_cache(_MAX_KNOWN)
def evaluator(tree: Node, *, overwrites: bool = False) -> Evaluator:
    """A function that evaluates an expression without walking its tree again."""
    names = [node for node in nodes(tree) if node == Name(RESULT)]
    return _evaluator(tree, overwrites=overwrites and len(names) == 1)


def _evaluator(node: Node, *, overwrites: bool) -> Evaluator:
    """The evaluator of one node; x occurs once in the expression if it may be overwritten."""
    if isinstance(node, Number):
        return lambda x, _: x.dtype.type(node.value)
    if isinstance(node, Name):
        name = node.name
        if name == RESULT:
            return lambda x, _: x
        return lambda x, operands: z if isinstance(z := operands[name], np.ndarray) else x.dtype.type(z)
    arguments = [_evaluator(argument, overwrites=overwrites) for argument in node.arguments]
    if node.function in OWN:
        own, only = OWN[node.function], arguments[0]
        return lambda x, operands: own(only(x, operands))
    if node.function == "where":
        return lambda x, operands: np.where(*(argument(x, operands) for argument in arguments))
    function: Any = getattr(np, node.function, None)
    exponent = node.arguments[1] if node.function == "power" else None
    if isinstance(exponent, Number) and exponent.value in POWERS:
        function, arguments = POWERS[exponent.value], arguments[:1]
    if node.function == "relu":
        function, arguments = np.maximum, [*arguments, lambda x, _: x.dtype.type(0)]
    if function in (np.maximum, np.minimum):
        arguments = [_as_line(argument) for argument in arguments]
    # Intermediate results computed from x have its shape, and their memory can be reused.
    free = [
        (isinstance(z, Apply) and Name(RESULT) in nodes(z)) or (overwrites and z == Name(RESULT))
        for z in node.arguments
    ]
    if node.function in COMPARISONS or not any(free):
        return lambda x, operands: function(*[argument(x, operands) for argument in arguments])
    place = free.index(True)

    def apply(x: Array, operands: Mapping[str, object]) -> Any:
        values = [argument(x, operands) for argument in arguments]
        return function(*values, out=_out(values[place]))

    return apply


def _as_line(argument: Evaluator) -> Evaluator:
    """The value of an argument. A number becomes an array as long as a row of x if rows are longer than SHORT."""

    def value(x: Array, operands: Mapping[str, object]) -> Any:
        result = argument(x, operands)
        return result if isinstance(result, np.ndarray) or x.shape[-1:] <= (SHORT,) else line(result, x.shape[-1])

    return value


@lru_cache(16, typed=True)
def line(value: object, n: int) -> Array:
    """An array of n elements that all have this value."""
    return np.full(n, value)


def rms_normalised(x: Array, weight: Array | None, eps: float) -> Array:
    """The rows of x, m x n, each divided by sqrt(mean of its squares + eps), times weight (n), in x's precision.

    >>> rms_normalised(np.array([[3.0, 4.0]]), None, 0.0).round(3).tolist()
    [[0.849, 1.131]]
    """
    with np.errstate(all="ignore"):
        mean = np.mean(np.square(x), axis=1, keepdims=True) if x.shape[1] else x
        normal: Array = x * (x.dtype.type(1) / np.sqrt(mean + x.dtype.type(eps)))
        return normal if weight is None else normal * weight
