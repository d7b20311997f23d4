"""Scatter and gather: the distribution of one rank's array over all ranks, and its collection on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pblas.errors import WorkspaceError
from pblas.layouts.descriptor import MatrixDescriptor

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Index
    from pblas.backends.transport import Transfer
    from pblas.runtime.runtime import Runtime

TAG = 1010
_PANEL_NBYTES = 16 << 20  # largest message: bounds the memory for packed copies


def index_of(ranges: list[tuple[int, int]]) -> Index:
    """The index of some ranges of global indices: a slice for one range at most, else an index array."""
    if len(ranges) <= 1:
        return slice(*(ranges[0] if ranges else (0, 0)))
    bounds = np.array(ranges, np.intp)
    lengths = bounds[:, 1] - bounds[:, 0]
    return np.arange(lengths.sum()) + np.repeat(bounds[:, 1] - np.cumsum(lengths), lengths)


def global_indices(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array]:
    """Global rows and columns of a rank's local array (local)."""
    rows, columns = (
        np.arange(index.start, index.stop) if isinstance(index, slice) else index
        for index in map(index_of, desc.global_ranges(rank))
    )
    return rows, columns


@lru_cache(16)
def diagonal_places(desc: MatrixDescriptor, rank: int, k: int = 0) -> tuple[Array, Array]:
    """Local rows and columns of a rank's elements on the k-th diagonal (local)."""
    rows, columns = global_indices(desc, rank)
    _, i_loc, j_loc = np.intersect1d(rows + k, columns, assume_unique=True, return_indices=True)
    for places in (i_loc, j_loc):
        places.flags.writeable = False  # kept for later calls
    return i_loc, j_loc


def part_of(whole: Array, desc: MatrixDescriptor, rank: int) -> Array:
    """The elements of a global array that `rank` owns: a view if they form contiguous ranges, else a copy."""
    shape = desc.local_shape(rank)
    if 0 in shape:  # the other size may be long, and have many ranges
        return whole[:0, :0].reshape(shape)
    rows, columns = map(index_of, desc.global_ranges(rank))
    if isinstance(rows, slice) or isinstance(columns, slice):
        return whole[rows, columns]
    return whole[np.ix_(rows, columns)]


def put_part(whole: Array, desc: MatrixDescriptor, rank: int, part: Array) -> None:
    """Write the elements that `rank` owns into a global array."""
    if not part.size:
        return
    rows, columns = map(index_of, desc.global_ranges(rank))
    if isinstance(rows, slice) or isinstance(columns, slice):
        whole[rows, columns] = part
    else:
        whole[np.ix_(rows, columns)] = part


def scatter(runtime: Runtime, whole: Array | None, desc: MatrixDescriptor, local: Array, root: int) -> None:
    """**Collective**, after an agreement. Distribute the array of `root`; other ranks pass None."""
    backend = runtime.backend
    if not desc.m * desc.n or backend.dry is not None:  # the other size may be long, and have many blocks
        return
    if runtime.rank != root:
        for panel in _panels(local, desc.order, local.itemsize):
            with backend.writing(panel) as host:
                backend.complete(
                    backend.plain_channel.receive(host, root, TAG), step=f"from_global: a panel from rank {root}"
                )
        return
    assert whole is not None, "root has the array"
    backend.copy(part_of(whole, desc, root), local)
    for peer in range(desc.nprocs):
        if peer != root:
            part = part_of(whole, desc, peer)
            for panel in _panels(part, desc.order, local.itemsize):
                packed = np.asarray(panel, dtype=local.dtype, order=desc.order)
                packed = packed if _is_dense(packed) else packed.copy(order=desc.order)
                backend.complete(
                    backend.plain_channel.send(packed, peer, TAG), step=f"from_global: a panel to rank {peer}"
                )


def empty_whole(opname: str, desc: MatrixDescriptor, dtype: Dtype) -> Array:
    """An uninitialised array for a whole matrix, m x n in the descriptor's order (local)."""
    try:
        return np.empty(desc.shape, dtype, order=desc.order)
    except (MemoryError, ValueError):  # ValueError: more bytes than an address can count
        nbytes = desc.m * desc.n * dtype.itemsize
        raise WorkspaceError(
            f"{opname}: no memory for a matrix of {desc.m} x {desc.n}, {nbytes:,} bytes; work on A.local, or A.save it"
        ) from None


def gather(runtime: Runtime, local: Array, desc: MatrixDescriptor, root: int, whole: Array | None) -> None:
    """**Collective**, after an agreement. Collect the whole matrix on `root`."""
    backend, rank = runtime.backend, runtime.rank
    if not desc.m * desc.n:  # the other size may be long, and have many blocks
        return
    holders = [peer for peer in range(desc.nprocs) if holds_first_copy(desc, peer)]
    if rank != root:
        if rank in holders:
            for panel in _panels(local, desc.order, local.itemsize):
                host = backend.reading(panel)
                packed = host if _is_dense(host) else host.copy(order=desc.order)
                backend.complete(
                    backend.plain_channel.send(packed, root, TAG), step=f"to_global: a panel to rank {root}"
                )
        return
    assert whole is not None, "root has the memory"
    for peer in holders:
        rows, columns = map(index_of, desc.global_ranges(peer))
        is_view = isinstance(rows, slice) and isinstance(columns, slice)
        if peer == rank and is_view:
            backend.copy(local, whole[rows, columns])
            continue
        if peer == rank:
            part = backend.reading(local)
        else:
            part = whole[rows, columns] if is_view else np.empty(desc.local_shape(peer), local.dtype, order=desc.order)
            for panel in _panels(part, desc.order, local.itemsize):
                backend.complete(
                    backend.plain_channel.receive(panel, peer, TAG), step=f"to_global: a panel from rank {peer}"
                )
        if not is_view:
            put_part(whole, desc, peer, part)


def broadcast(runtime: Runtime, whole: Array, order: str) -> None:
    """**Collective.** Broadcast rank 0's whole matrix along the chain of ranks, panel by panel."""
    backend, rank = runtime.backend, runtime.rank
    sent: list[Transfer] = []
    for panel in _panels(whole, order, whole.itemsize):
        if rank > 0:
            step = f"to_global: a panel of the whole from rank {rank - 1}"
            backend.complete(backend.plain_channel.receive(panel, rank - 1, TAG), step=step)
        if rank + 1 < runtime.nprocs:
            backend.complete(*sent, step=f"to_global: a panel of the whole to rank {rank + 1}")
            sent = [backend.plain_channel.send(panel, rank + 1, TAG)]
    backend.complete(*sent, step=f"to_global: a panel of the whole to rank {rank + 1}")


def holds_first_copy(desc: MatrixDescriptor, rank: int) -> bool:
    """Whether `rank` is the first of the ranks that hold the same elements: the rank that sends or writes them."""
    myrow, mycol = desc.grid.coordinates(rank)
    return myrow >= 0 and (desc.rsrc >= 0 or myrow == 0) and (desc.csrc >= 0 or mycol == 0)


def _panels(x: Array, order: str, itemsize: int) -> Iterator[Array]:
    """Cut x into panels of at most `_PANEL_NBYTES` bytes: columns in order "F", rows in order "C".

    Sender and receiver cut in the same way: by the order and itemsize of the distributed matrix, not by the storage of
    x.
    """
    if not x.size:
        return
    slow = x.shape[1] if order == "F" else x.shape[0]
    step = max(1, _PANEL_NBYTES * slow // (x.size * itemsize))
    for start in range(0, slow, step):
        yield x[:, start : start + step] if order == "F" else x[start : start + step]


def _is_dense(x: Array) -> bool:
    """Whether elements of x are adjacent in memory along one dimension, so that it can be sent without packing."""
    return x.itemsize in x.strides or x.size <= 1
