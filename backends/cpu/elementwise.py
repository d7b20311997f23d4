"""Expressions of several NumPy arrays of any dtypes, evaluated piece by piece into an array that exists.

`pblas.backends.cpu.pointwise` has the functions that NumPy lacks, and evaluates epilogues, whose result has the dtype
of x. Here every operand has a dtype of its own: real operands stay real next to complex ones, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pblas.backends.cpu.pointwise import OWN, POWERS, SHORT, line
from pblas.backends.dtypes import Array, Dtype, address_of
from pblas.epilogues import COMPARISONS, REAL_VALUED, Apply, Name, Node, Number

Shape = tuple[int, ...]
Value = Callable[[Mapping[str, Any], Shape, Any], Any]
"""value(operands, shape, out): the value of a node for pieces that broadcast to a shape; in `out` if that is given."""

_PIECE_NBYTES = 512 << 10  # "x * s + y" of 64 MiB: 8.4 ms, and 10.8 with 120 KiB (AMD EPYC, 1 MiB of L2 per core)
_TILE = 128  # rows of a piece where some arrays are stored by rows and some by columns: 128 x 128 doubles fit in L2
_UFUNCS = {"abs": np.abs, "conj": np.conjugate, "relu": np.maximum}


class _Compiled(NamedTuple):
    """A node as a function."""

    value: Value
    is_complex: bool
    is_new: bool = False


class _Evaluator(NamedTuple):
    """A tree as a function of operands of certain dtypes."""

    tree: Node
    value: Value
    converted: Mapping[str, Dtype]  # dtypes of the arrays that are converted, by name
    numbers: Mapping[str, type[Any]]  # types to which numbers are converted, by name
    is_call: bool  # whether it is one call of a ufunc that writes the result
    is_direct: bool  # whether `value` writes the result


@lru_cache
def _real_dtype(dtype: Dtype) -> Dtype:
    """The dtype of the real parts."""
    real: Dtype = np.empty(0, dtype).real.dtype
    return real


_evaluators: dict[tuple[object, ...], _Evaluator] = {}
_MOST_EVALUATORS = 1024


def _evaluator(tree: Node, operands: Mapping[str, Any], compute: Dtype, result: Dtype) -> _Evaluator:
    """The evaluator of a tree for operands of certain dtypes, and a result of a dtype; see `evaluate`.

    It is found again by the place of its tree, which stays there as long as it.
    """
    kinds = tuple([z.dtype if isinstance(z, np.ndarray) else type(z) for z in operands.values()])
    key = id(tree), tuple(operands), kinds, compute, result
    evaluator = _evaluators.get(key)
    if evaluator is None:
        if len(_evaluators) >= _MOST_EVALUATORS:
            _evaluators.clear()
        evaluator = _evaluators[key] = _new_evaluator(tree, operands, compute, result)
    return evaluator


def _new_evaluator(tree: Node, operands: Mapping[str, Any], compute: Dtype, result: Dtype) -> _Evaluator:
    real = _real_dtype(compute)
    complex_names = frozenset([name for name, z in operands.items() if np.iscomplexobj(z)])
    compiled = _compiled(tree, real, complex_names)
    wanted = {name: compute if name in complex_names else real for name in operands}
    is_direct = compiled.is_new and result == (compute if compiled.is_complex else real)
    is_call = (
        isinstance(tree, Apply) and tree.function not in OWN and not any(isinstance(a, Apply) for a in tree.arguments)
    )
    arrays = {name: z.dtype for name, z in operands.items() if isinstance(z, np.ndarray)}
    converted = {name: wanted[name] for name, dtype in arrays.items() if dtype != wanted[name]}
    numbers = {name: wanted[name].type for name in operands if name not in arrays}
    return _Evaluator(tree, compiled.value, converted, numbers, is_direct and is_call and not converted, is_direct)


def evaluate(tree: Node, operands: Mapping[str, Any], compute: Dtype, out: Array) -> None:
    """Out := the value of an expression, rounded once to its dtype. The caller ignores NumPy's floating-point errors.

    >>> from pblas.epilogues import parse
    >>> out = np.empty((2, 2), "float32")
    >>> evaluate(parse("x * s + y"), {"x": np.eye(2), "s": 2.0, "y": np.ones((1, 2))}, np.dtype("float64"), out)
    >>> out.tolist()
    [[3.0, 1.0], [1.0, 3.0]]
    """
    if not out.size:
        return
    evaluator = _evaluator(tree, operands, compute, out.dtype)
    turned = _by_columns(out)
    if turned:
        out = out.T
    shape: Any = out.shape
    values: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    mixed = False
    for name, z in operands.items():
        if name in evaluator.numbers:
            values[name] = evaluator.numbers[name](z)
            continue
        array = z if z.ndim == 2 else z.reshape((1,) * (2 - z.ndim) + z.shape)
        values[name] = arrays[name] = array = array.T if turned else array
        mixed = mixed or (array.strides != out.strides and _by_columns(array))
    value_of = evaluator.value
    if evaluator.is_call and not mixed:
        value_of(values, shape, out)
        return
    for rows, columns in _pieces(shape, compute.itemsize, mixed=mixed):
        piece: Any = out[rows, columns]
        for name, z in arrays.items():
            part = z[rows if z.shape[0] > 1 else slice(None), columns if z.shape[1] > 1 else slice(None)]
            values[name] = part.astype(evaluator.converted[name]) if name in evaluator.converted else part
        value = value_of(values, piece.shape, piece if evaluator.is_direct else None)
        if value is not piece:
            piece[...] = value


def combining(
    tree: Node, operands: Mapping[str, Any], name: str, compute: Dtype, out: Array
) -> Callable[[Array, Array], None] | None:
    """A function put(x, part) that updates a part of out by the same part of an operand, while that arrives in pieces.

    >>> from pblas.epilogues import parse
    >>> out = np.ones((1, 4)); put = combining(parse("x * s + y"), {"x": out, "s": 3.0}, "y", out.dtype, out)
    >>> put(np.array([10.0, 20.0]), out[0, 2:]); out.tolist()
    [[1.0, 1.0, 13.0, 23.0]]
    """
    arrays = {key: z for key, z in operands.items() if isinstance(z, np.ndarray)}
    place = address_of(out), out.shape, out.strides, out.dtype
    same = all((address_of(z), z.shape, z.strides, z.dtype) == place for z in arrays.values())
    if out.dtype != compute or not same:
        return None
    real = _real_dtype(compute)
    with np.errstate(all="ignore"):
        numbers = {
            key: compute.type(z) if np.iscomplexobj(z) else real.type(z)
            for key, z in operands.items()
            if key not in arrays
        }
    complex_names = [key for key, z in numbers.items() if z.dtype.kind == "c"]
    complex_names += [*arrays, name] if compute.kind == "c" else []
    compiled = _compiled(tree, real, frozenset(complex_names))
    if not compiled.is_new or compiled.is_complex != (compute.kind == "c"):
        return None

    def put(x: Array, part: Array) -> None:
        with np.errstate(all="ignore"):
            compiled.value({**numbers, **dict.fromkeys(arrays, part), name: x}, part.shape, part)

    return put


def _by_columns(z: Array) -> bool:
    """Whether the columns of a matrix, and not its rows, are contiguous; false for a single row or column."""
    return min(z.shape) > 1 and abs(z.strides[0]) < abs(z.strides[1])


def _pieces(shape: Shape, itemsize: int, *, mixed: bool) -> Iterator[tuple[slice, slice]]:
    """Cut a matrix into pieces that stay in a cache."""
    count = _PIECE_NBYTES // itemsize
    height, width = (_TILE, _TILE) if mixed else (max(1, count // shape[1]), min(count, shape[1]))
    for i in range(0, shape[0], height):
        for j in range(0, shape[1], width):
            yield slice(i, i + height), slice(j, j + width)


@lru_cache(1024)
def _compiled(tree: Node, real: Dtype, complex_names: frozenset[str]) -> _Compiled:
    """A tree as a function."""
    if isinstance(tree, Number):
        number = real.type(tree.value)
        return _Compiled(lambda _values, _shape, _out: number, False)
    if isinstance(tree, Name):
        name = tree.name
        return _Compiled(lambda values, _shape, _out: values[name], name in complex_names)
    arguments = [_compiled(argument, real, complex_names) for argument in tree.arguments]
    is_complex = any(z.is_complex for z in arguments[tree.function == "where" :]) and tree.function not in REAL_VALUED
    nodes = [argument.value for argument in arguments]
    if tree.function in OWN:
        own, only = OWN[tree.function], nodes[0]
        return _Compiled(lambda values, shape, _out: own(only(values, shape, None)), is_complex)
    if tree.function == "where":
        return _Compiled(lambda values, shape, _out: np.where(*(f(values, shape, None) for f in nodes)), is_complex)
    if tree.function in ("real", "imag"):
        part, only = tree.function, nodes[0]
        return _Compiled(lambda values, shape, _out: getattr(np, part)(only(values, shape, None)), False)
    if tree.function == "relu":
        nodes = [*nodes, lambda _values, _shape, _out: real.type(0)]
    function: Any = _UFUNCS.get(tree.function) or getattr(np, tree.function)
    # A new array with as many elements, and of the same dtype, as the result can hold the result.
    reused = next((i for i, a in enumerate(arguments) if a.is_new and a.is_complex == is_complex), None)
    if tree.function in COMPARISONS:
        reused = None
    as_lines = function in (np.maximum, np.minimum)

    def apply(values: Mapping[str, object], shape: Shape, out: Any) -> Any:
        args = [node(values, shape, None) for node in nodes]
        if as_lines:  # see `SHORT`
            args = [line(x, shape[-1]) if not isinstance(x, np.ndarray) and shape[-1] > SHORT else x for x in args]
        if out is None and reused is not None and isinstance(args[reused], np.ndarray) and args[reused].shape == shape:
            out = args[reused]
        if function is np.power and not isinstance(args[1], np.ndarray) and args[1] in POWERS:
            return POWERS[args[1]](args[0], out=out)
        return function(*args, out=out) if out is not None else function(*args)

    return _Compiled(apply, is_complex, is_new=tree.function not in COMPARISONS)
