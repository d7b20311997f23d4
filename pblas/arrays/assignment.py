"""A[i0:i1, j0:j1] = value: a scalar, an array that is equal on all ranks, or a matrix in any layout."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import Elementwise
from pblas.arrays.reductions import converted_array, described
from pblas.core.call import step
from pblas.core.checks import check_context, check_writable
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.indexing import selection
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import part_of
from pblas.redistribution.api import redistributed

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime

VERB = "DistMatrix[...] = value"


def assign(a: DistMatrix, key: Any, value: Any) -> None:
    """**Collective.** A[key] = value; see `DistMatrix.__setitem__`."""
    runtime = a.runtime
    with runtime.local_step(VERB):
        bounds = selection(a.shape, key)
        view = a[bounds.i0 : bounds.i1, bounds.j0 : bounds.j1]
        check_writable(VERB, view, "A")
        if isinstance(value, DistMatrix):
            _check_matrix(value, view)
            operands = described(value=value, A=a)
        else:
            elements = _checked_elements(runtime, value, view)
            operands = f"{described(A=a)}\nvalue={elements.shape}"
        agrees = f"\nrows={bounds.i0}:{bounds.i1}\ncolumns={bounds.j0}:{bounds.j1}{operands}"
    if not isinstance(value, DistMatrix):
        runtime.agree(VERB, agrees)
    elif value.shape == view.shape:
        # A conjugated view gets the conjugate in memory.
        expression = "conj(x)" if view.conjugated and value.dtype.kind == "c" else "x"
        stored = DistMatrix(view.desc, view.stored(VERB), runtime)
        bind = partial(Elementwise.bind, VERB, runtime, expression, {"x": value}, stored, None)
        step(VERB, runtime, bind, agrees=agrees)
        return
    else:
        whole = MatrixDescriptor.replicated(*value.shape, runtime.nprocs)
        copy = redistributed(VERB, value, whole, agrees=agrees)
        runtime.end_reading(VERB)  # the view may overlap the value, which peers read
        elements = runtime.backend.reading(copy.local).astype(view.dtype, copy=False)
    part = part_of(np.broadcast_to(elements, view.shape), view.desc, runtime.rank)
    with runtime.backend.writing(view.stored(VERB)) as target:
        target[...] = np.conj(part) if view.conjugated else part


def _check_matrix(value: DistMatrix, view: DistMatrix) -> None:
    """Raise an error unless a matrix can be assigned to a view (local)."""
    check_context(VERB, value, view.runtime)
    if not all(k in (1, size) for k, size in zip(value.shape, view.shape, strict=True)):
        raise errors.DescriptorError(
            f"{VERB}: the value is {value.shape[0]} x {value.shape[1]}, the submatrix "
            f"{view.shape[0]} x {view.shape[1]}; make them agree"
        )
    if value.dtype.kind == "c" and view.dtype.kind != "c":
        raise errors.DTypeError(f"{VERB}: the value is {value.dtype.name}, the matrix {view.dtype.name}; take a part")


def _checked_elements(runtime: Runtime, value: Any, view: DistMatrix) -> Array:
    """A scalar or an array, in the dtype of a view and of a shape that broadcasts to its (local)."""
    try:
        array = runtime.backend.reading(runtime.backend.as_array(value))
    except errors.ArgumentError as caught:
        raise errors.ArgumentError(f"{VERB}: {caught}") from None
    except (TypeError, ValueError) as caught:
        raise errors.ArgumentError(f"{VERB}: not a matrix, an array or a number: {caught}") from None
    with np.errstate(all="ignore"):
        array = converted_array(VERB, array, view.dtype)
    try:
        np.broadcast_to(array, view.shape)
    except ValueError:
        raise errors.DescriptorError(
            f"{VERB}: the value has shape {array.shape}, the submatrix is {view.shape[0]} x {view.shape[1]}"
        ) from None
    return array
