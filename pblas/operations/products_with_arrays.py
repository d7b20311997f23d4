"""A @ v and v @ A for arrays that are equal on all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.matmul import pmatmul
from pblas.operations.reductions import converted_array, product_with_vector

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


def product_with_array(a: DistMatrix, array: Any, *, left: bool = False) -> DistMatrix | Array:
    """**Collective.** A times an array, or the array times A if `left`; see `DistMatrix.__matmul__`.

    Args:
        a: the matrix (global).
        array: of one or two dimensions, equal on all ranks (global).
        left: whether the array is the left factor (global).
    """
    with a.runtime.call("matmul"):
        if array.ndim == 1:
            return product_with_vector(a.T if left else a, array)
        b = replicated_matrix("matmul", a, array)
        return pmatmul(b, a) if left else pmatmul(a, b)


def replicated_matrix(verb: str, like: DistMatrix, array: Any) -> DistMatrix:
    """**Collective.** A replicated matrix of a matrix's dtype, from an array of two dimensions that all ranks have.

    Args:
        verb: name of the call (global).
        like: a matrix of the context, whose dtype the new one gets (global).
        array: equal on all ranks (global).
    """
    runtime = like.runtime
    with runtime.local_step(verb):
        elements = runtime.backend.as_array(array)
        if elements.ndim != 2:
            raise errors.ArgumentError(f"{verb}: the array has {elements.ndim} dimensions; expected 2")
        elements = converted_array(verb, elements, like.dtype)
    m, n = elements.shape
    desc = MatrixDescriptor.replicated(m, n, runtime.nprocs)
    runtime.agree(verb, {"array": (m, n), **like.signature()})
    local = runtime.empty(runtime.place(desc, like.dtype))
    with runtime.local_step(verb):
        runtime.backend.copy(elements, local)
    runtime.agree(f"{verb}: copy", {})
    return DistMatrix(desc, local, runtime)
