"""A[i0:i1, j0:j1] = value: a scalar, an array that is equal on all ranks, or a matrix in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.core.checks import check_context, is_same_memory, shares_memory
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.indexing import selection
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import part_of
from pblas.operations.elementwise import combined
from pblas.operations.redistribution import redistributed
from pblas.operations.reductions import converted_array
from pblas.runtime.runtime import shared_descriptor

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime

VERB = "DistMatrix[...] = value"


def assign(a: DistMatrix, key: Any, value: Any) -> None:
    """**Collective.** A[key] = value; see `DistMatrix.__setitem__`."""
    runtime, elements, overlaps, differs = a.runtime, None, 0, 1
    with runtime.local_step(VERB):
        bounds = selection(a.shape, key)
        view = a[bounds.i0 : bounds.i1, bounds.j0 : bounds.j1]
        if not getattr(view.stored(VERB).flags, "writeable", True):  # CuPy has no such flag
            raise errors.ArgumentError(f"{VERB}: A is made of a read-only array; give it memory that can be written")
        if isinstance(value, DistMatrix):
            _check_matrix(value, view)
            source, target = (runtime.backend.shadow(x.stored(VERB)) for x in (value, view))
            overlaps = int(shares_memory(source, target))
            same = value.desc == view.desc and value.conjugated == view.conjugated
            differs = int(not (same and (is_same_memory(source, target) or not target.size)))
            described = {
                "value": shared_descriptor(value.desc),
                "of": value.dtype.name,
                "conjugated value": value.conjugated,
            }
        else:
            elements = _checked_elements(runtime, value, view)
            described = {"value": np.shape(value)}
    selected: dict[str, Any] = {"rows": (bounds.i0, bounds.i1), "columns": (bounds.j0, bounds.j1)}
    overlaps, differs = runtime.agree(VERB, selected | described | a.signature(), None, (overlaps, differs))
    if not differs:  # A[...] += B ends with the assignment of a view to itself
        return
    if elements is None:
        elements = _assign_matrix(runtime, value, view, copy=bool(overlaps))
    if elements is not None:
        part = part_of(elements, view.desc, runtime.rank)
        with runtime.backend.writing(view.stored(VERB)) as target:
            target[...] = np.conj(part) if view.conjugated else part


def _assign_matrix(runtime: Runtime, value: DistMatrix, view: DistMatrix, *, copy: bool) -> Array | None:
    """**Collective.** View := value if the shapes agree; else the elements that all ranks have now, broadcast."""
    if value.shape != view.shape:
        whole = redistributed(VERB, value, MatrixDescriptor.replicated(*value.shape, runtime.nprocs))
        runtime.end_lending(VERB)  # the view may overlap the value, which peers read
        elements = runtime.backend.reading(whole.local)
        return np.broadcast_to(elements.astype(view.dtype, copy=False), view.shape)
    if value.dtype != view.dtype:
        value = combined("x", {"x": value}, dtype=view.dtype)
    elif copy:
        value = redistributed(VERB, value, value.desc.without_lld)
    # A conjugated view gets the conjugate in memory.
    flips = view.conjugated and value.dtype.kind == "c"
    source = DistMatrix(value.desc, value.stored(VERB), runtime, conj=not value.conjugated) if flips else value
    redistributed(VERB, source, out=DistMatrix(view.desc, view.stored(VERB), runtime))
    return None


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
    """A scalar or an array, in the dtype and the shape of a view (local)."""
    try:
        array = runtime.backend.reading(runtime.backend.as_array(value))
    except errors.ArgumentError as caught:
        raise errors.ArgumentError(f"{VERB}: {caught}") from None
    except (TypeError, ValueError) as caught:
        raise errors.ArgumentError(f"{VERB}: not a matrix, an array or a number: {caught}") from None
    with np.errstate(all="ignore"):
        array = converted_array(VERB, array, view.dtype)
    try:
        return np.broadcast_to(array, view.shape)
    except ValueError:
        raise errors.DescriptorError(
            f"{VERB}: the value has shape {array.shape}, the submatrix is {view.shape[0]} x {view.shape[1]}"
        ) from None
