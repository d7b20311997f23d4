"""tril, triu, vstack and hstack: new matrices made of parts of others; and assignment, A[i0:i1, j0:j1] = value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import Elementwise
from pblas.arrays.elementwise_arguments import is_number
from pblas.arrays.reductions import described
from pblas.core.call import call, checked_call, step
from pblas.core.checks import check_context, check_matrix, check_writable, common_dtype
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matrices.indexing import selection
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import part_of
from pblas.redistribution.api import Redistribution, redistributed
from pblas.runtime.arrays import converted_array, equal_array
from pblas.runtime.runtime import Runtime, fail_without_context

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.core.operation import Bound


def tril(a: DistMatrix, k: int = 0) -> DistMatrix:
    """**Collective.** The lower triangle of a matrix, and zeros above it.

    Args:
        a: m x n matrix (global).
        k: the last diagonal that is kept: 0 for the main one, above it positive, as in numpy.tril (global).

    Returns:
        A new m x n matrix in the layout of A.

    Raises:
        ArgumentError: not a matrix, or k is not an integer.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.tril(ctx.ones((2, 3))).to_global().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    return _triangle("tril", a, "L", k)


def triu(a: DistMatrix, k: int = 0) -> DistMatrix:
    """**Collective.** The upper triangle of a matrix, and zeros below it.

    Args:
        a: m x n matrix (global).
        k: the first diagonal that is kept: 0 for the main one, above it positive, as in numpy.triu (global).

    Returns:
        A new m x n matrix in the layout of A.

    Raises:
        ArgumentError: not a matrix, or k is not an integer.
    """
    return _triangle("triu", a, "U", k)


def vstack(matrices: Sequence[DistMatrix]) -> DistMatrix:
    """**Collective.** Matrices one below the other.

    Args:
        matrices: m_i x n matrices of one context and dtype, at least one (global).

    Returns:
        A new matrix on the process grid of the first one. It has the blocks of the first one; if there each process row
        has at most one block, the rows are divided evenly.

    Raises:
        ArgumentError: not a sequence of matrices of one context.
        DescriptorError: different numbers of columns.
        DTypeError: different dtypes.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.vstack([ctx.ones((2, 3)), ctx.zeros((1, 3))]).shape
    (3, 3)
    """
    return _stacked("vstack", matrices, 0)


def hstack(matrices: Sequence[DistMatrix]) -> DistMatrix:
    """**Collective.** Matrices side by side; as `vstack`, with rows and columns exchanged."""
    return _stacked("hstack", matrices, 1)


def _triangle(opname: str, a: object, uplo: Literal["L", "U"], k: object) -> DistMatrix:
    """**Collective.** A triangle of a matrix, in its layout, and zeros elsewhere."""
    if not isinstance(a, DistMatrix):
        fail_without_context(opname, errors.ArgumentError(f"{opname}: expected a DistMatrix, got {type(a).__name__}"))
    return call(opname, _bind_triangle, {"A": a}, a, uplo, k)


def _bind_triangle(
    opname: str, runtime: Runtime, a: DistMatrix, uplo: Literal["L", "U"], k: object
) -> Bound[DistMatrix]:
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise errors.ArgumentError(f"{opname}: k must be an integer, got {k!r}")
    return Redistribution.bind(opname, runtime, a, a.desc.without_lld, uplo=uplo, diagonal=int(k))


def _stacked(opname: str, matrices: object, axis: int) -> DistMatrix:
    """**Collective.** The matrices stacked along an axis."""
    parts = list(matrices) if isinstance(matrices, list | tuple) else []
    if not any(isinstance(x, DistMatrix) for x in parts):
        got = "one without matrices" if isinstance(matrices, list | tuple) else type(matrices).__name__
        text = f"{opname}: expected a list or a tuple of matrices, got {got}"
        fail_without_context(opname, errors.ArgumentError(text))
    named = {f"matrix {i}": x for i, x in enumerate(parts)}
    with checked_call(opname, _checked_bounds, named, named, axis) as (runtime, bounds):
        runtime.agree(opname, described(**named))
        desc, dtype = parts[0].desc, parts[0].dtype
        desc = resized(desc, (bounds[-1], desc.n) if axis == 0 else (desc.m, bounds[-1]))
        out = DistMatrix(desc, runtime.empty(runtime.local_memory(desc, dtype)), runtime)
        for x, start, stop in zip(parts, bounds, bounds[1:], strict=False):
            redistributed(opname, x, out=out[start:stop, :] if axis == 0 else out[:, start:stop])
        return out


def _checked_bounds(opname: str, runtime: Runtime, parts: Mapping[str, Any], axis: int) -> list[int]:
    """Bounds of the matrices along the axis of the stack, after checks that they fit each other (local)."""
    for name, x in parts.items():
        check_matrix(opname, name, x, runtime)
    common_dtype(opname, parts, None, stored=True)
    first, *others = parts.values()
    for x in others:
        if x.shape[1 - axis] != first.shape[1 - axis]:
            sizes = " and ".join(f"{y.shape[0]} x {y.shape[1]}" for y in (first, x))
            raise errors.DescriptorError(f"{opname}: matrices of {sizes} do not fit each other")
    bounds: list[int] = np.cumsum([0, *(x.shape[axis] for x in parts.values())]).tolist()
    return bounds


_VERB = "DistMatrix[...] = value"


def assign(a: DistMatrix, key: object, value: object) -> None:
    """**Collective.** A[key] = value; see `DistMatrix.__setitem__`."""
    if isinstance(key, DistMatrix) or (isinstance(key, np.ndarray) and key.ndim == 2):
        call(_VERB, _bind_masked, {"A": a}, a, key, value)
        return
    runtime = a.runtime
    with runtime.local_step(_VERB):
        bounds = selection(a.shape, key)
        view = a[bounds.i0 : bounds.i1, bounds.j0 : bounds.j1]
        check_writable(_VERB, view, "A")
        if isinstance(value, DistMatrix):
            _check_matrix(value, view)
            operands = described(value=value, A=a)
        else:
            elements = _checked_elements(runtime, value, view)
            operands = f"{described(A=a)}\nvalue={elements.shape}"
        agrees = f"\nrows={bounds.i0}:{bounds.i1}\ncolumns={bounds.j0}:{bounds.j1}{operands}"
    if not isinstance(value, DistMatrix):
        runtime.agree(_VERB, agrees)
    elif value.shape == view.shape:
        # A conjugated view gets the conjugate in memory.
        expression = "conj(x)" if view.conjugated and value.dtype.kind == "c" else "x"
        stored = DistMatrix(view.desc, view.stored(_VERB), runtime)
        bind = partial(Elementwise.bind, _VERB, runtime, expression, {"x": value}, stored, None)
        step(_VERB, runtime, bind, agrees=agrees)
        return
    else:
        whole = MatrixDescriptor.replicated(*value.shape, runtime.nprocs)
        copy = redistributed(_VERB, value, whole, agrees=agrees)
        runtime.end_reading(_VERB)  # the view may overlap the value, which peers read
        elements = runtime.backend.reading(copy.local).astype(view.dtype, copy=False)
    part = part_of(np.broadcast_to(elements, view.shape), view.desc, runtime.rank)
    with runtime.backend.writing(view.stored(_VERB)) as target:
        target[...] = np.conj(part) if view.conjugated else part


def _bind_masked(opname: str, runtime: Runtime, a: DistMatrix, mask: Any, value: object) -> Bound[DistMatrix]:
    """The arguments of A[mask] = number, checked on this rank."""
    if not isinstance(mask, DistMatrix) and mask.dtype != bool:
        raise errors.ArgumentError(f"{opname}: a mask must be a DistMatrix, as A > 0, or an array of bools")
    if mask.shape != a.shape:
        raise errors.DescriptorError(
            f"{opname}: the mask is {mask.shape[0]} x {mask.shape[1]}, A {a.shape[0]} x {a.shape[1]}; make them agree"
        )
    if not is_number(value):
        raise errors.ArgumentError(
            f"{opname}: with a mask the value must be a number, got {type(value).__name__}; pblas.where(mask, x, A) "
            f"takes matrices and arrays"
        )
    return Elementwise.bind(
        opname, runtime, "where(mask != 0, value, a)", {"a": a, "mask": mask, "value": value}, a, None
    )


def _check_matrix(value: DistMatrix, view: DistMatrix) -> None:
    """Raise an error unless a matrix can be assigned to a view (local)."""
    check_context(_VERB, value, view.runtime)
    if not all(k in (1, size) for k, size in zip(value.shape, view.shape, strict=True)):
        raise errors.DescriptorError(
            f"{_VERB}: the value is {value.shape[0]} x {value.shape[1]}, the submatrix "
            f"{view.shape[0]} x {view.shape[1]}; make them agree"
        )
    if value.dtype.kind == "c" and view.dtype.kind != "c":
        raise errors.DTypeError(f"{_VERB}: the value is {value.dtype.name}, the matrix {view.dtype.name}; take a part")


def _checked_elements(runtime: Runtime, value: object, view: DistMatrix) -> Array:
    """A scalar or an array, in the dtype of a view and of a shape that broadcasts to its (local)."""
    array = equal_array(_VERB, "the value", value, runtime)
    array = converted_array(_VERB, "the value", array, view.dtype, rounds=True)
    try:
        np.broadcast_to(array, view.shape)
    except ValueError:
        raise errors.DescriptorError(
            f"{_VERB}: the value has shape {array.shape}, the submatrix is {view.shape[0]} x {view.shape[1]}"
        ) from None
    return array
