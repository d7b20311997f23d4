"""tril, triu, vstack and hstack: new matrices made of parts of others, by redistribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.core.call import call
from pblas.core.checks import check_context
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.redistribution import Redistribution, redistributed
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import shared_descriptor

if TYPE_CHECKING:
    from pblas.core.operation import Bound
    from pblas.runtime.runtime import Runtime


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


def _triangle(verb: str, a: Any, uplo: Literal["L", "U"], k: Any) -> DistMatrix:
    """**Collective.** A triangle of a matrix, in its layout, and zeros elsewhere."""
    if not isinstance(a, DistMatrix):
        fail_without_context(verb, errors.ArgumentError(f"{verb}: expected a DistMatrix, got {type(a).__name__}"))
    return call(verb, _bind_triangle, {"A": a}, a, uplo, k)


def _bind_triangle(verb: str, runtime: Runtime, a: DistMatrix, uplo: Literal["L", "U"], k: Any) -> Bound[DistMatrix]:
    """The arguments of `tril` and `triu`, checked on this rank."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise errors.ArgumentError(f"{verb}: k must be an integer, got {k!r}")
    return Redistribution.bind(verb, runtime, a, a.desc.without_lld, uplo=uplo, diagonal=int(k))


def _resized(desc: MatrixDescriptor, shape: tuple[int, int], **blocks: int) -> MatrixDescriptor:
    """A descriptor with the same grid and blocks but for `mb` or `nb` in `blocks`, of another shape."""
    m, n = shape
    return MatrixDescriptor(
        *(m, n, blocks.get("mb", desc.mb), blocks.get("nb", desc.nb), desc.grid, desc.rsrc, desc.csrc, desc.order),
        imb=None if "mb" in blocks else desc.imb,
        inb=None if "nb" in blocks else desc.inb,
    )


def _stacked(verb: str, matrices: Any, axis: int) -> DistMatrix:
    """**Collective.** The matrices stacked along an axis."""
    parts = list(matrices) if isinstance(matrices, list | tuple) else []
    runtime = next((x.runtime for x in parts if isinstance(x, DistMatrix)), None)
    if runtime is None:
        got = "one without matrices" if isinstance(matrices, list | tuple) else type(matrices).__name__
        text = f"{verb}: expected a list or a tuple of matrices, got {got}"
        fail_without_context(verb, errors.ArgumentError(text))
    with runtime.call(verb):
        return _stack(runtime, verb, parts, axis)


def _stack(runtime: Runtime, verb: str, parts: list[Any], axis: int) -> DistMatrix:
    """**Collective.** The matrices stacked along an axis; the first of them, or a later one, has this runtime."""
    with runtime.local_step(verb):
        for x in parts:
            if not isinstance(x, DistMatrix):
                raise errors.ArgumentError(f"{verb}: expected matrices only, got {type(x).__name__}")
            check_context(verb, x, runtime)
            if x.shape[1 - axis] != parts[0].shape[1 - axis]:
                sizes = " and ".join(f"{y.shape[0]} x {y.shape[1]}" for y in (parts[0], x))
                raise errors.DescriptorError(f"{verb}: matrices of {sizes} do not fit each other")
            if x.dtype != parts[0].dtype:
                raise errors.DTypeError(f"{verb}: dtypes {parts[0].dtype} and {x.dtype}; give all matrices one dtype")
            x.stored(verb)
        bounds = np.cumsum([0, *(x.shape[axis] for x in parts)]).tolist()
        first = parts[0].desc
        desc = resized(first, (bounds[-1], first.n) if axis == 0 else (first.m, bounds[-1]))
    arguments = {f"matrix {i}": (shared_descriptor(x.desc), x.conjugated) for i, x in enumerate(parts)}
    runtime.agree(verb, {"count": len(parts), "dtype": parts[0].dtype.name, **arguments})
    out = DistMatrix(desc, runtime.empty(runtime.place(desc, parts[0].dtype)), runtime)
    for x, start, stop in zip(parts, bounds, bounds[1:], strict=False):
        redistributed(verb, x, out=out[start:stop, :] if axis == 0 else out[:, start:stop])
    return out


def resized(desc: MatrixDescriptor, shape: tuple[int, int]) -> MatrixDescriptor:
    """The layout of a matrix of another shape, on the same grid: even blocks where a process has one block at most.

    Args:
        desc: the layout of which it is made, without its leading dimension (global).
        shape: rows and columns (global).

    >>> resized(MatrixDescriptor.row_wise(100, 4, 2), (4, 4)).mb
    2
    """
    blocks = {}
    for name, split, length in zip(("mb", "nb"), (desc.rows, desc.columns), shape, strict=True):
        if length != split.n and split.nblocks <= split.nprocs:
            blocks[name] = max(1, -(-length // split.nprocs))
    return _resized(desc, shape, **blocks)
