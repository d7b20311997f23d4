"""NumPy's functions of matrices, as np.exp(A), np.sum(A) and np.linalg.solve(A, b): which function of pblas each is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import combined, where
from pblas.arrays.reductions import vdot
from pblas.arrays.stacking import hstack, tril, triu, vstack
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.operators import AND, NOT, OR

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

XOR = "where(x == 0, where(y == 0, 0, 1), where(y == 0, 1, 0))"
UFUNCS: Mapping[str, str] = (
    {"add": "x + y", "subtract": "x - y", "multiply": "x * y", "divide": "x / y", "power": "x ** y"}
    | {"floor_divide": "x // y", "remainder": "x % y", "negative": "-x", "positive": "x", "reciprocal": "1 / x"}
    | {name: f"{name}(x)" for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "tan", "floor", "ceil", "sign")}
    | {"square": "x ** 2", "absolute": "abs(x)", "fabs": "abs(x)", "conjugate": "conj(x)"}
    | {"maximum": "maximum(x, y)", "minimum": "minimum(x, y)", "erf": "erf(x)", "expit": "sigmoid(x)"}
    | {"less": "where(x < y, 1, 0)", "less_equal": "where(x <= y, 1, 0)", "greater": "where(x > y, 1, 0)"}
    | {"greater_equal": "where(x >= y, 1, 0)", "equal": "where(x == y, 1, 0)", "not_equal": "where(x != y, 1, 0)"}
    | {"isnan": "isnan(x)", "isfinite": "isfinite(x)", "isinf": "1 - isnan(x) - isfinite(x)"}
    | {"logical_and": AND, "logical_or": OR, "logical_not": NOT, "bitwise_and": AND, "bitwise_or": OR, "invert": NOT}
    | {"logical_xor": XOR, "bitwise_xor": XOR, "trunc": "sign(x) * floor(abs(x))"}
)
"""Expressions of ufuncs of NumPy and SciPy, by name; x and y are the operands."""
_REDUCED = {"add": "sum", "maximum": "max", "minimum": "min", "logical_and": "all", "logical_or": "any"}


def ufunc(
    a: DistMatrix, function: np.ufunc, method: str, *operands: Any, out: Sequence[Any] = (None,), **options: Any
) -> Any:
    """**Collective.** A ufunc with the matrix A among its operands and outs; see NumPy's __array_ufunc__."""
    name = function.__name__
    called = f"numpy.{name}" if method == "__call__" else f"numpy.{name}.{method}"
    target, is_reduction = out[0], method == "reduce" and name in _REDUCED
    unknown = options.keys() - ({"axis", "keepdims"} if is_reduction else set())
    if unknown:
        _refuse(
            a,
            called,
            f"{', '.join(sorted(unknown))}= is not for a DistMatrix; leave it out: pblas.where(condition, x, y) takes "
            f"the place of where=, A.astype(dtype) that of dtype=",
        )
    if target is not None and not isinstance(target, DistMatrix):
        _refuse(a, called, f"the result is a DistMatrix, out is {type(target).__name__}; write v = v + A for v += A")
    if is_reduction and target is None:
        return getattr(operands[0], _REDUCED[name])(options.get("axis", 0), keepdims=options.get("keepdims", False))
    if method == "__call__" and name == "matmul":
        x, y = operands
        if target is not None:
            return pmatmul(x, y, out=target)
        return x @ y if isinstance(x, DistMatrix) else y.__rmatmul__(x)
    if method == "__call__" and name in UFUNCS:
        return combined(UFUNCS[name], dict(zip("xy", operands, strict=False)), target, opname=called)
    return _refuse(
        a,
        called,
        "it takes no DistMatrix; pblas.elementwise has other functions, f(A.local, out=A.local) changes this rank's "
        "part, and A.to_global() collects the matrix as an array",
    )


def numpy_function(a: DistMatrix, function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """**Collective.** A function of NumPy, of arguments with the matrix A among them; see __array_function__."""
    name = f"{function.__module__}.{function.__name__}"
    ours = _functions().get(name)
    if ours is None:
        remedy = f"A.{function.__name__} does it on the ranks, " if function.__name__ in dir(a) else ""
        _refuse(a, name, f"it takes no DistMatrix; {remedy}A.to_global() collects the matrix as an array")
    try:
        given, keywords = _given(function, args, named)
        inspect.signature(ours).bind(*given, **keywords)
    except TypeError as caught:
        names = ", ".join(list(inspect.signature(ours).parameters)[1:]) or "none"
        _refuse(a, name, f"with a DistMatrix it {caught}; the arguments after the first that pblas has: {names}")
    return ours(*given, **keywords)


def _given(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The first argument, and the others by NumPy's names without those that have NumPy's default values."""
    parameters = _parameters(function)
    if not parameters:
        return args, named
    others = {**dict(zip(parameters, args, strict=False)), **named}
    first = others.pop(next(iter(parameters)))
    return [first], {key: value for key, value in others.items() if value is not None and value is not parameters[key]}


@lru_cache
def _parameters(function: Any) -> Mapping[str, Any]:
    """Names and default values of the parameters; empty for functions of NumPy that are not written in Python."""
    try:
        return {key: x.default for key, x in inspect.signature(function).parameters.items()}
    except ValueError:
        return {}


def _refuse(a: DistMatrix, opname: str, text: str) -> NoReturn:
    """**Collective.** Raise ArgumentError on all ranks."""
    with a.runtime.call(opname):
        a.runtime.fail(opname, errors.ArgumentError(f"{opname}: {text}"))
    raise AssertionError("a failure raises")


@lru_cache
def _functions() -> Mapping[str, Callable[..., Any]]:
    """The functions of pblas by the names of NumPy's; their arguments have NumPy's names."""
    from pblas.factor.cholesky import cholesky
    from pblas.factor.qr_matrices import qr
    from pblas.factor.solvers import det, inv, slogdet, solve
    from pblas.spectral.eigh import eigh, eigvalsh
    from pblas.spectral.least_squares import lstsq, pinv
    from pblas.spectral.norms import cond, matrix_norm, matrix_rank
    from pblas.spectral.svd import svdvals

    reductions = "sum", "mean", "max", "min", "argmax", "argmin", "std", "var", "any", "all", "trace", "diagonal"
    table: dict[str, Callable[..., Any]] = {name: getattr(DistMatrix, name) for name in (*reductions, "copy", "astype")}
    table |= {"amax": DistMatrix.max, "amin": DistMatrix.min, "diag": DistMatrix.diagonal}
    table |= {f.__name__: f for f in (tril, triu, vstack, hstack, vdot, where)}
    table |= {f.__name__.strip("_"): f for f in (_clip, _concatenate, _count_nonzero, _dot, _size)}
    table |= {f.__name__.strip("_"): f for f in (_isclose, _allclose, _array_equal, _full_like)}
    table |= {f.__name__.strip("_"): f for f in (_std, _var, _transpose, _flip, _roll, _take, _reshape)}
    table |= {f"{name}_like": partial(_full_like, fill_value=value) for name, value in (("zeros", 0), ("ones", 1))}
    table |= {name: lambda a, name=name: getattr(a, name) for name in ("real", "imag", "shape", "ndim")}
    table["matrix_transpose"] = _transpose
    table |= {"empty_like": table["zeros_like"]}
    table |= {"iscomplexobj": lambda a: a.dtype.kind == "c", "isrealobj": lambda a: a.dtype.kind != "c"}
    solvers: dict[str, Callable[..., Any]] = {
        f.__name__: f
        for f in (cholesky, qr, cond, det, eigh, eigvalsh, inv, lstsq, matrix_norm, matrix_rank, pinv, slogdet, solve)
    }
    solvers |= {"norm": _norm, "svd": _svd, "svdvals": svdvals, "matrix_transpose": _transpose}
    solvers |= {"vector_norm": _vector_norm, "matrix_power": _matrix_power, "matmul": _matmul}
    solvers |= {name: table[name] for name in ("trace", "diagonal")}
    return {
        **{f"numpy.{name}": f for name, f in table.items()},
        **{f"numpy.linalg.{name}": f for name, f in solvers.items()},
    }


def _size(a: DistMatrix, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


def _norm(x: DistMatrix, ord: Any = None, axis: int | None = None, keepdims: bool = False) -> Any:  # noqa: A002
    """**Collective.** `DistMatrix.norm` and `linalg.matrix_norm`, with NumPy's numbers of norms."""
    if axis is None and not keepdims and ord in (2, -2, "nuc"):
        from pblas.spectral.norms import matrix_norm

        return matrix_norm(x, ord=ord)
    return x.norm("fro" if ord is None or (ord == 2 and axis is not None) else ord, axis, keepdims)


def _svd(a: DistMatrix, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """**Collective.** `linalg.svd`, with NumPy's default of full_matrices; or the values alone."""
    from pblas.spectral.svd import svd, svdvals

    return svd(a, full_matrices=full_matrices) if compute_uv else svdvals(a)


def _vector_norm(x: DistMatrix, axis: int | None = None, keepdims: bool = False, ord: Any = 2) -> Any:  # noqa: A002
    """**Collective.** The norm of all elements as one vector, or of each column or row."""
    if axis is None and ord not in (2, np.inf):
        return _refuse(x, "numpy.linalg.vector_norm", f"without axis= ord must be 2 or inf, got {ord!r}")
    return x.norm("fro" if ord == 2 else "max" if axis is None else ord, axis, keepdims)


def _matrix_power(a: DistMatrix, n: Any) -> DistMatrix:
    """**Collective.** A^n, by squarings."""
    if not isinstance(n, int | np.integer) or n < 1:
        _refuse(a, "numpy.linalg.matrix_power", f"n must be a positive integer, got {n!r}")
    power, square = a if n % 2 else None, a
    for bit in bin(n)[-2:1:-1]:
        square = pmatmul(square, square)
        if bit == "1":
            power = square if power is None else pmatmul(power, square)
    assert power is not None, "the first digit is 1"
    return power.copy() if power is a else power


def _std(a: DistMatrix, axis: int | None = None, ddof: float = 0, keepdims: bool = False, correction: float = 0) -> Any:
    return a.std(axis, ddof or correction, keepdims)


def _var(a: DistMatrix, axis: int | None = None, ddof: float = 0, keepdims: bool = False, correction: float = 0) -> Any:
    return a.var(axis, ddof or correction, keepdims)


def _transpose(a: DistMatrix, axes: Sequence[int] = (1, 0)) -> DistMatrix:
    order = [axis % 2 for axis in axes]
    if sorted(order) != [0, 1] or len(axes) != 2:
        _refuse(a, "numpy.transpose", f"axes must be (0, 1) or (1, 0), got {axes!r}")
    return a.T if order == [1, 0] else a


def _flip(m: DistMatrix, axis: int | Sequence[int] | None = None) -> DistMatrix:
    axes = {x % 2 for x in ((0, 1) if axis is None else np.ravel(axis))}
    return m[tuple(slice(None, None, -1) if k in axes else slice(None) for k in (0, 1))]


def _roll(a: DistMatrix, shift: int, axis: int) -> DistMatrix:
    """**Collective.** Rows or columns, each `shift` further on; the last ones come first."""
    return _take(a, (np.arange(a.shape[axis]) - shift) % max(1, a.shape[axis]), axis)


def _take(a: DistMatrix, indices: Any, axis: int) -> DistMatrix:
    return a[indices, :] if axis in (0, -2) else a[:, indices]


def _reshape(a: DistMatrix, shape: Any) -> Any:
    """**Collective.** The elements by rows: in one dimension as an array on all ranks; a column as a row, and back."""
    wanted = tuple(np.ravel(shape).tolist())
    if wanted in ((-1,), (a.size,)):
        return np.ravel(a.to_global(root=None))
    if len(wanted) == 2 and -1 in wanted and (other := max(wanted)) > 0 and a.size % other == 0:
        wanted = tuple(a.size // other if size == -1 else size for size in wanted)
    if wanted == a.shape:
        return a
    if wanted == a.shape[::-1] and 1 in wanted:
        return a.T
    return _refuse(
        a,
        "numpy.reshape",
        f"a matrix of {a.shape[0]} x {a.shape[1]} gets the shape (-1,), or as a column that of a row; got {shape!r}; "
        f"A.to_global() collects it as an array",
    )


def _clip(a: DistMatrix, a_min: object = None, a_max: object = None) -> DistMatrix:
    expression = "x" if a_min is None else "maximum(x, a)"
    operands = {name: bound for name, bound in (("a", a_min), ("b", a_max)) if bound is not None}
    return combined(expression if a_max is None else f"minimum({expression}, b)", {"x": a, **operands}, opname="clip")


def _concatenate(arrays: Any, axis: int = 0) -> DistMatrix:
    return (hstack if axis in (1, -1) else vstack)(arrays)


def _count_nonzero(a: DistMatrix, axis: int | None = None, *, keepdims: bool = False) -> Any:
    """**Collective.** The number of elements that are not 0, which float64 holds exactly."""
    count = combined("where(x != 0, 1, 0)", {"x": a}, dtype="float64", opname="count_nonzero").sum(axis, keepdims)
    return int(count) if np.ndim(count) == 0 else count.astype(np.intp)


def _dot(a: Any, b: Any) -> Any:
    return np.multiply(a, b) if np.ndim(a) == 0 or np.ndim(b) == 0 else np.matmul(a, b)


def _matmul(x1: Any, x2: Any) -> Any:
    return np.matmul(x1, x2)


def _isclose(a: object, b: object, rtol: float = 1e-5, atol: float = 1e-8) -> DistMatrix:
    expression = "where(x == y, 1, where(abs(x - y) <= t + r * abs(y), isfinite(y), 0))"
    return combined(expression, {"x": a, "y": b, "t": atol, "r": rtol}, opname="isclose")


def _allclose(a: object, b: object, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
    return bool(_isclose(a, b, rtol, atol).all())


def _array_equal(a1: Any, a2: Any) -> bool:
    return np.shape(a1) == np.shape(a2) and bool(np.equal(a1, a2).all())


def _full_like(a: DistMatrix, fill_value: object, dtype: DTypeLike | None = None) -> DistMatrix:
    operands = {"x": a, "s": fill_value}
    return combined("where(x == x, s, s)", operands, dtype=a.dtype if dtype is None else dtype, opname="full_like")
