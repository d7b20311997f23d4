"""Level 1 of PBLAS: sums, norms, extremes and updates of vectors in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.arrays.elementwise import combined
from pblas.arrays.reductions import Reduction, described, dotted, reduction
from pblas.core.call import call, checked_call
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import Redistribution, redistributed
from pblas.redistribution.packing import Scaling
from pblas.redistribution.redistribution_run import RedistributionOperands
from pblas.runtime.runtime import Runtime, checked_scalar
from pblas.vectors.checks import checked_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.backends.dtypes import Number, Real, Scalar
    from pblas.core.operation import Bound

_SIZES = "abs(real(x)) + abs(imag(x))"  # the size of a complex number in asum and amax, as in BLAS


def dotc(x: DistMatrix, y: DistMatrix) -> Number:
    """**Collective.** The sum of conj(x_i) y_i.

    If the layouts differ, y is redistributed to that of x. The order of additions depends on the layout alone.

    Args:
        x: vector, m x 1 or 1 x n in any layout (global).
        y: vector of as many elements and the same dtype (global).

    Returns:
        A NumPy scalar of the vectors' dtype, equal on all ranks.

    Raises:
        ArgumentError: not two vectors of one context.
        DescriptorError: different lengths.
        DTypeError: different dtypes.

    Source: BLAS, xDOTC.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_function(lambda i, j: 1j * i + j, (3, 4), "complex128")
    ...     complex(pblas.blas.dotc(A[:, 1], A[:, 2]))  # sum of (1 - 1j i)(2 + 1j i)
    (11-3j)
    """
    return _dot("dotc", x, y)


def dotu(x: DistMatrix, y: DistMatrix) -> Number:
    """**Collective.** The sum of x_i y_i; see `dotc`.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     v = ctx.from_function(lambda i, j: i + 1.0, (3, 1))
    ...     complex(pblas.blas.dotu(1j * v, 1j * v))
    (-14+0j)
    """
    return _dot("dotu", x, y)


def dot(x: DistMatrix, y: DistMatrix) -> Real:
    """**Collective.** The sum of x_i y_i of real vectors; see `dotc`.

    Raises:
        DTypeError: complex vectors.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     v = ctx.from_function(lambda i, j: i + 1.0, (3, 1))
    ...     float(pblas.blas.dot(v, v))
    14.0
    """
    return _dot("dot", x, y)


def _dot(opname: str, x: DistMatrix, y: DistMatrix) -> Any:
    """**Collective.** The sum of products, with conjugated elements of x for "dotc"."""
    operands = {"x": x, "y": y}
    with checked_call(opname, _checked_factors, operands, operands) as (_, (a, b)):
        return dotted(opname, a, b)


def nrm2(x: DistMatrix) -> Real:
    """**Collective.** The root of the sum of abs(x_i)^2; it neither overflows nor underflows.

    Args:
        x: vector, m x 1 or 1 x n in any layout (global).

    Returns:
        A NumPy scalar, equal on all ranks: float64 for float64 and complex128 vectors, otherwise float32.

    Raises:
        ArgumentError: not a vector.

    Source: BLAS, xNRM2.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     float(pblas.blas.nrm2(ctx.from_function(lambda i, j: 3.0 + i, (2, 1))))
    5.0
    """
    return call("nrm2", _bind_norm, {"x": x}, x)


def asum(x: DistMatrix) -> Real:
    """**Collective.** The sum of abs(x_i), or of abs(Re x_i) + abs(Im x_i) for complex vectors; see `nrm2`.

    Source: BLAS, xASUM.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     v = ctx.from_function(lambda i, j: i + 1.0, (3, 1))
    ...     float(pblas.blas.asum(-v))
    6.0
    """
    operands = {"x": x}
    with checked_call("asum", checked_columns, operands, operands) as (_, (a,)):
        if a.dtype.kind == "c":
            return reduction(combined(_SIZES, {"x": a}), "sum")
        return reduction(a, "norm", ord=1)


def amax(x: DistMatrix) -> tuple[float | complex, int]:
    """**Collective.** The element of largest size, and its index.

    The size is abs(x_i), or abs(Re x_i) + abs(Im x_i) for complex vectors.

    Args:
        x: vector of at least one element, m x 1 or 1 x n in any layout (global).

    Returns:
        (value, index): the element itself as a Python number, and its index from 0, the first of equal ones; equal on
        all ranks. The first NaN, if there is one.

    Raises:
        ArgumentError: not a vector, or no elements.

    Source: BLAS, IxAMAX; PBLAS, p?amax.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     x = ctx.from_function(lambda i, j: (-1.0) ** i * i, (5, 1))
    ...     pblas.blas.amax(x[:4, :])
    (-3.0, 3)
    """
    with checked_call("amax", _checked_elements, {"x": x}, x) as (_, a):
        sizes = combined(_SIZES if a.dtype.kind == "c" else "abs(x)", {"x": a})
        index = int(reduction(sizes, "argmax"))
        return a[index, 0], index


def scal(alpha: Scalar, x: DistMatrix) -> DistMatrix:
    """**Collective.** x := alpha x, in place.

    Args:
        alpha: scalar; with alpha = 0 x is not read (global).
        x: vector, m x 1 or 1 x n in any layout (global).

    Returns:
        x.

    Raises:
        ArgumentError: not a vector, or alpha is not a number of its kind.

    Source: BLAS, xSCAL.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     v = ctx.from_function(lambda i, j: i + 1.0, (3, 1))
    ...     pblas.blas.scal(2.0, v).to_global(None).ravel().tolist()
    [2.0, 4.0, 6.0]
    """
    call("scal", _bind_scaling, {"x": x}, x, alpha)
    return x


def axpy(alpha: Scalar, x: DistMatrix, y: DistMatrix) -> DistMatrix:
    """**Collective.** y := alpha x + y, in place.

    Args:
        alpha: scalar; with alpha = 0 x is not read (global).
        x: vector, m x 1 or 1 x n in any layout (global).
        y: vector of as many elements and the same dtype, of other memory (global).

    Returns:
        y.

    Raises:
        ArgumentError: not two vectors of one context, or vectors that overlap.
        DescriptorError: different lengths.
        DTypeError: different dtypes.

    Source: BLAS, xAXPY.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     A, y = ctx.ones((3, 3)), ctx.ones((3, 1))
    ...     pblas.blas.axpy(2.0, A[0], y).to_global(None).tolist()
    [[3.0], [3.0], [3.0]]
    """
    operands = {"x": x, "y": y}
    call("axpy", _bind_update, operands, operands, alpha, 1.0)
    return y


def copy(x: DistMatrix, y: DistMatrix) -> DistMatrix:
    """**Collective.** y := x; see `axpy`. The vectors may be stored and placed differently.

    Source: BLAS, xCOPY.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     x, y = ctx.ones((3, 1)), ctx.zeros((1, 3))
    ...     pblas.blas.copy(x, y).to_global(None).tolist()
    [[1.0, 1.0, 1.0]]
    """
    operands = {"x": x, "y": y}
    call("copy", _bind_update, operands, operands, 1.0, 0.0)
    return y


def swap(x: DistMatrix, y: DistMatrix) -> tuple[DistMatrix, DistMatrix]:
    """**Collective.** Exchange the elements of two vectors, in place; see `axpy`.

    Returns:
        (x, y).

    Source: BLAS, xSWAP.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     v, w = pblas.blas.swap(ctx.ones((2, 1)), ctx.zeros((2, 1)))
    ...     v.to_global(None).ravel().tolist(), w.sum() == 2
    ([0.0, 0.0], np.True_)
    """
    operands = {"x": x, "y": y}
    with checked_call("swap", checked_columns, operands, operands, ("x", "y")) as (_, (a, b)):
        old = redistributed("swap", b, a.desc.without_lld, agrees=described(x=a, y=b))
        redistributed("swap", a, out=b)
        redistributed("swap", old, out=a, is_temporary=True)
    return x, y


class _Scaled(Redistribution):
    """X := 0 x + alpha x, of which only the second x is read, so that nothing moves."""

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> RedistributionOperands:
        x = result.stored(opname)
        return RedistributionOperands(x, x, Scaling(0.0, bound.scalars["alpha"]))


def _bind_update(
    opname: str, runtime: Runtime, operands: Mapping[str, object], alpha: object, beta: float
) -> Bound[DistMatrix]:
    a, b = checked_columns(opname, runtime, operands, ("y",))
    return Redistribution.bind(opname, runtime, a, None, b, "N", alpha, beta)


def _bind_scaling(opname: str, runtime: Runtime, x: object, alpha: object) -> Bound[DistMatrix]:
    (a,) = checked_columns(opname, runtime, {"x": x}, ("x",))
    alpha = checked_scalar(opname, "alpha", alpha, a.dtype)
    bound = Redistribution.bind(opname, runtime, a, None, a, "N", 0.0, alpha)
    return bound._replace(operation=_Scaled, scalars={"alpha": alpha}, reads={})


def _bind_norm(opname: str, runtime: Runtime, x: object) -> Bound[Any]:
    (a,) = checked_columns(opname, runtime, {"x": x})
    return Reduction.bind(opname, runtime, "norm", a, ord="fro")


def _checked_factors(opname: str, runtime: Runtime, operands: Mapping[str, object]) -> tuple[DistMatrix, DistMatrix]:
    """The vectors whose `vdot` is the sum of products (local)."""
    a, b = checked_columns(opname, runtime, operands)
    if opname == "dot" and a.dtype.kind == "c":
        raise errors.DTypeError(f"dot: the vectors are {a.dtype.name}; use dotc (conjugated x) or dotu")
    return a if opname == "dotc" else a.conj(), b


def _checked_elements(opname: str, runtime: Runtime, x: object) -> DistMatrix:
    """A vector of at least one element (local)."""
    (a,) = checked_columns(opname, runtime, {"x": x})
    if not a.shape[0]:
        raise errors.ArgumentError(f"{opname}: the vector has no elements; check x.size first")
    return a
