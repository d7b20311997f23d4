"""DTensors of torch as matrices and back, in the same memory."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from pblas import errors
from pblas.backends.dtypes import BFLOAT16
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistribute
from pblas.runtime.runtime import fail_without_context, shared_descriptor
from pblas.torch.mesh import context_of, group_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array
    from pblas.context import Context
    from pblas.layouts.descriptor import Order
    from pblas.runtime.runtime import Runtime

_CHOICES = Shard(0), Shard(1), Replicate()
_MESHES: WeakKeyDictionary[Runtime, list[DeviceMesh]] = WeakKeyDictionary()
"""The meshes of DTensors that have become matrices, by the runtime; the last one first."""


def descriptor(
    shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Any], *, order: Order = "C"
) -> MatrixDescriptor:
    """The distribution of a matrix that a DTensor has.

    Shard cuts as torch.chunk: ceil(n / P) elements on each rank, fewer or none on the last ones. This is a block-cyclic
    distribution with one block on each rank. Along a dimension of the mesh with Replicate all ranks have the same. The
    placements of `fully_shard` after tensor parallelism along the rows, whose shards are not in the order of the ranks,
    give the distribution that `from_dtensor` makes of them.

    Args:
        shape: rows and columns of the matrix (global).
        mesh: a mesh of one or two dimensions; of more if the tensor is replicated along all but the first (global).
        placements: Shard(0), Shard(1) or Replicate() for each dimension of the mesh (global).
        order: storage order of the local tensors, "C" by rows or "F" by columns (global).

    Returns:
        The descriptor, for the ranks of `context_of(mesh)`.

    Raises:
        ArgumentError: Partial, or another number of placements than the mesh has dimensions.
        LayoutError: a tensor that is not a matrix, a mesh of more dimensions, or a dimension that is cut twice into
            shards of unequal lengths.
    """
    if len(shape) != 2:
        raise errors.LayoutError(
            f"a matrix has two dimensions, got a tensor of shape {tuple(shape)}; pass x[i], or view"
        )
    m, n = map(int, shape)
    sizes = tuple(mesh.shape)
    if len(placements) != len(sizes):
        raise errors.ArgumentError(f"the mesh has {len(sizes)} dimensions, and there are {len(placements)} placements")
    is_known = not is_strided(shape, mesh, placements)
    kinds = tuple(map(_plain, placements)) if is_known else (Shard(0), Shard(0))
    while len(sizes) > 2 and kinds[-2:] == (Replicate(), Replicate()):
        sizes, kinds = (*sizes[:-2], sizes[-2] * sizes[-1]), kinds[:-1]
    if len(sizes) > 2:
        raise errors.LayoutError(
            f"the mesh has {len(mesh.shape)} dimensions; pass a tensor on a mesh of one or two, as mesh['dp', 'tp'], "
            f"or redistribute it to [Shard(0), {', '.join(['Replicate()'] * (len(mesh.shape) - 1))}]"
        )
    if len(sizes) == 1:
        sizes, kinds = (*sizes, 1), (*kinds, Replicate())
    if not is_known:  # after an exchange of the shards
        return MatrixDescriptor.row_wise(m, n, prod(sizes), mb=m // prod(sizes), order=order)
    if kinds[0] == kinds[1] != Replicate():
        return _cut_twice(m, n, sizes, kinds[0].dim, order)
    crosses = kinds[0] == Shard(1) or kinds[1] == Shard(0)  # rows are cut along the second dimension of the mesh
    nprow, npcol = sizes[::-1] if crosses else sizes
    grid = Grid(nprow, npcol, "C" if crosses else "R")
    mb, nb = max(1, -(-m // nprow)), max(1, -(-n // npcol))
    rsrc = 0 if Shard(0) in kinds or nprow == 1 else -1
    csrc = 0 if Shard(1) in kinds or npcol == 1 else -1
    return MatrixDescriptor(m, n, mb, nb, grid, rsrc, csrc, order)


def is_strided(shape: Sequence[int], mesh: DeviceMesh, placements: Sequence[Any]) -> bool:
    """Whether rows of a matrix are cut along the mesh's second dimension first, into shards of one length (global)."""
    if len(shape) != 2 or len(mesh.shape) != 2 or not isinstance(placements[0], _StridedShard):
        return False
    expected = _StridedShard(0, split_factor=mesh.shape[1]), Shard(0)
    return tuple(placements) == expected and shape[0] % prod(mesh.shape) == 0


def _exchanged(ctx: Context, shard: Any, mesh: DeviceMesh, orders: tuple[Literal["C", "R"], Literal["C", "R"]]) -> Any:
    """**Collective.** Strided shards from the order "C" of ranks to the order of rows, which is "R", or back.

    Rank (i, j) of the mesh has shard j P + i of the Q P shards of rows. As Q x P blocks, each with the elements of a
    shard in a row, they lie on a grid whose ranks are numbered down the columns; the order of rows is along its rows.
    """
    (outer, inner), width = mesh.shape, shard.numel() if isinstance(shard, torch.Tensor) else shard.size

    def desc(order: Literal["C", "R"]) -> MatrixDescriptor:
        return MatrixDescriptor(inner, outer * width, 1, max(1, width), Grid(inner, outer, order), order="C")

    shard = shard.contiguous() if isinstance(shard, torch.Tensor) else shard
    row = ctx.from_local(shard.reshape(1, width), desc(orders[0]))
    return redistribute(row, desc(orders[1])).local.reshape(shard.shape)


def _plain(placement: Any) -> Any:
    """The placement with an axis of a matrix that counts from the first one."""
    if placement.is_replicate():
        return Replicate()
    if placement.is_partial():
        raise errors.ArgumentError(
            f"a tensor with placement {placement} has sums that are not complete; redistribute it first: "
            f"t.redistribute(mesh, [Shard(0)]) adds and cuts, [Replicate()] adds on every rank"
        )
    if type(placement) is not Shard:
        raise errors.LayoutError(
            f"a tensor with placement {placement} has no block-cyclic layout; redistribute it first, for example to "
            f"[Shard(0), Replicate()]"
        )
    return Shard(placement.dim % 2)


def _cut_twice(m: int, n: int, sizes: tuple[int, ...], axis: int, order: Order) -> MatrixDescriptor:
    """The descriptor of a matrix with an axis that both dimensions of the mesh cut, one after the other."""
    length, (outer, inner) = (m, n)[axis], sizes
    chunk = -(-length // outer)
    block = -(-chunk // inner)
    last = length % chunk if chunk and length % chunk else chunk  # length of the last shard that is not empty
    if length > chunk and not (block * inner == chunk and -(-last // inner) == block):
        raise errors.LayoutError(
            f"{length} {('rows', 'columns')[axis]} are cut into {outer} shards and each of these into {inner} of "
            f"unequal lengths, which is no block-cyclic layout; redistribute the tensor first, for example to "
            f"[Shard({axis}), Replicate()]"
        )
    if axis == 0:
        return MatrixDescriptor.row_wise(m, n, outer * inner, mb=max(1, block), order=order)
    return MatrixDescriptor.column_wise(m, n, outer * inner, nb=max(1, block), order=order)


def from_dtensor(t: DTensor) -> DistMatrix:
    """**Collective.** The matrix in the memory of a DTensor, for `A @ B`, `pblas.linalg` and all other calls.

    Nothing is copied: what is written into one, the other has. Only shards by `fully_shard` after tensor parallelism
    along the rows are copied, because they are not in the order of the ranks.

    Args:
        t: a DTensor of two axes on a mesh of one or two dimensions, with placements Shard and Replicate (global).

    Returns:
        The matrix, of the context `context_of(t.device_mesh)`.

    Raises:
        ArgumentError: no DTensor, or one with Partial.
        LayoutError: a tensor that is not a matrix, or that is cut as no block-cyclic layout is; shards that are not as
            torch.chunk cuts.
        DTypeError: elements that pblas does not multiply.
    """
    opname, given = "from_dtensor", t
    if not isinstance(given, DTensor):
        problem = f"{opname}: t must be a DTensor of torch, got {type(t).__name__}; ctx.from_local takes local tensors"
        fail_without_context(opname, errors.ArgumentError(problem))
    mesh = t.device_mesh
    ctx = context_of(mesh)
    runtime = ctx.runtime
    with runtime.call(opname):
        with runtime.local_step(opname):
            try:
                by_columns = t.ndim == 2 and t.stride(0) == 1 < t.stride(1)
                order: Order = "F" if by_columns and not is_strided(t.shape, mesh, t.placements) else "C"
                desc = descriptor(t.shape, mesh, t.placements, order=order)
            except errors.PblasError as error:
                raise type(error)(f"{opname}: {error}") from None
            local = t.to_local().detach()
            if hasattr(local, "wait"):  # of a collective call that torch has started
                local = local.wait()
        if is_strided(t.shape, mesh, t.placements):
            local = _exchanged(ctx, local, mesh, ("C", "R"))
        matrix = ctx.from_local(local, desc)
    _MESHES[runtime] = [mesh, *(each for each in _MESHES.get(runtime, []) if each.shape != mesh.shape)]
    return matrix


def to_dtensor(a: DistMatrix, mesh: DeviceMesh | None = None, placements: Sequence[Any] | None = None) -> DTensor:
    """The DTensor in the memory of a matrix. **Collective** if the matrix must be redistributed.

    Results of products are in memory of their context, which is freed when the context is closed. Clone a tensor that
    is to live longer.

    Args:
        a: the matrix (global).
        mesh: a mesh of the matrix's ranks, of one or two dimensions; None for one with which `from_dtensor` has made a
            matrix of these ranks, or else a mesh of one dimension (global).
        placements: placements of the result, to which the matrix is redistributed; None for those that it has (global).

    Returns:
        The DTensor, without a copy unless `placements` differ from those that the matrix has.

    Raises:
        ArgumentError: no matrix, or a mesh of other ranks.
        LayoutError: a layout that no DTensor on the mesh has.
    """
    opname = "to_dtensor"
    given: object = a
    if not isinstance(given, DistMatrix):
        problem = f"{opname}: a must be a DistMatrix, got {type(a).__name__}"
        fail_without_context(opname, errors.ArgumentError(problem))
    meshes = [mesh] if mesh is not None else _meshes_of(a)
    if mesh is not None and context_of(mesh).runtime is not a.runtime:
        raise errors.ArgumentError(
            f"{opname}: the matrix is not of the context of the mesh; make it in the context context_of(mesh)"
        )
    if placements is not None:
        strided = is_strided(a.shape, meshes[0], placements)
        desc = descriptor(a.shape, meshes[0], placements, order="C" if strided else a.desc.order)
        matrix = a if desc.same_distribution(a.desc) else redistribute(a, desc)
        if strided:
            shard = _exchanged(context_of(meshes[0]), matrix.local, meshes[0], ("R", "C"))
            return _wrapped(matrix, meshes[0], placements, shard)
        return _wrapped(matrix, meshes[0], placements)
    for each in meshes:
        for candidate in product(_CHOICES, repeat=each.ndim):
            try:
                desc = descriptor(a.shape, each, candidate)
            except errors.LayoutError:
                continue
            if desc.same_distribution(a.desc):
                return _wrapped(a, each, candidate)
    raise errors.LayoutError(
        f"{opname}: no DTensor on a mesh of shape {tuple(meshes[0].shape)} is distributed as "
        f"{shared_descriptor(a.desc)}; pass placements=, to which the matrix is redistributed"
    )


def _meshes_of(a: DistMatrix) -> list[DeviceMesh]:
    """Meshes of the matrix's ranks, of which one is known or is made (local)."""
    meshes, group = _MESHES.get(a.runtime, []), group_with(a.runtime)
    if group is not None and not any(mesh.ndim == 1 for mesh in meshes):
        meshes = [*meshes, DeviceMesh.from_group(group, "cuda" if a.runtime.backend.gpus else "cpu")]
        _MESHES[a.runtime] = meshes
    if not meshes:
        raise errors.ArgumentError(
            "to_dtensor: the context of the matrix has no mesh; make matrices in the context context_of(mesh)"
        )
    return meshes


def _wrapped(a: DistMatrix, mesh: DeviceMesh, placements: Sequence[Any], shard: Array | None = None) -> DTensor:
    """A DTensor on the local array of a matrix, or on another one (local)."""
    m, n = a.shape
    stride = (n, 1) if a.desc.order == "C" else (1, m)
    return DTensor.from_local(
        tensor_of(a.local if shard is None else shard),
        mesh,
        list(placements),
        run_check=False,
        shape=torch.Size((m, n)),
        stride=stride,
    )


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor on the memory of an array (local)."""
    if hasattr(array, "__cuda_array_interface__"):
        return torch.from_dlpack(array)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
