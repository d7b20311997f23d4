"""Scatter and gather: the distribution of one rank's array over all ranks, and its collection on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.dtypes import Array, Dtype, Index, Order, Places, index_at
from pblas.errors import WorkspaceError
from pblas.layouts.descriptor import MatrixDescriptor

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks, Location
    from pblas.backends.transport import Transfer
    from pblas.runtime.runtime import Runtime

TAG = 1010
IN_PLACE_NBYTES = 1 << 16
"""Least bytes that move for ranks to use each other's arrays in place, which takes two agreements."""
_PANEL_NBYTES = 16 << 20  # largest message: bounds the memory for packed copies


def index_of(ranges: list[tuple[int, int]]) -> Index:
    """The index of some ranges of global indices: a slice for one range at most, else an index array."""
    if len(ranges) <= 1:
        return slice(*(ranges[0] if ranges else (0, 0)))
    bounds = np.array(ranges, np.intp)
    lengths = bounds[:, 1] - bounds[:, 0]
    return np.arange(lengths.sum()) + np.repeat(bounds[:, 1] - np.cumsum(lengths), lengths)


@lru_cache(16)
def global_indices(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array]:
    """Global rows and columns of a rank's local array, which are kept for later calls (local)."""
    rows, columns = (
        np.arange(index.start, index.stop) if isinstance(index, slice) else index
        for index in map(index_of, desc.global_ranges(rank))
    )
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


@lru_cache(16)
def diagonal_places(desc: MatrixDescriptor, rank: int, k: int = 0) -> tuple[Array, Array]:
    """Local rows and columns of a rank's elements on the k-th diagonal (local)."""
    rows, columns = global_indices(desc, rank)
    _, i_loc, j_loc = np.intersect1d(rows + k, columns, assume_unique=True, return_indices=True)
    for places in (i_loc, j_loc):
        places.flags.writeable = False  # kept for later calls
    return i_loc, j_loc


def places_of(desc: MatrixDescriptor, rank: int) -> Places:
    """Global rows and columns of a rank's local array, as an index of each dimension (local)."""
    rows, columns = map(index_of, desc.global_ranges(rank))
    return rows, columns


def part_of(whole: Array, desc: MatrixDescriptor, rank: int) -> Array:
    """The elements of a global array that `rank` owns: a view if they form contiguous ranges, else a copy."""
    shape = desc.local_shape(rank)
    if 0 in shape:  # the other size may be long, and have many ranges
        return whole[:0, :0].reshape(shape)
    part: Array = whole[index_at(places_of(desc, rank))]
    return part


def put_part(whole: Array, desc: MatrixDescriptor, rank: int, part: Array) -> None:
    """Write the elements that `rank` owns into a global array."""
    if part.size:
        whole[index_at(places_of(desc, rank))] = part


class PeerArrays:
    """**Collective.** The local arrays of one matrix, which other ranks read or write in place, until `end`.

    An agreement comes between `publish` and `begin`. Few bytes travel in messages, which take less time than two
    agreements; so do arrays in memory that peers do not reach, as a matrix of `from_local` may have.
    """

    def __init__(self, runtime: Runtime, desc: MatrixDescriptor, local: Array, nbytes: int) -> None:
        backend = runtime.backend
        self._runtime, self._desc, self._local = runtime, desc, local
        self._location: Location | None = None
        if nbytes >= IN_PLACE_NBYTES and backend.shared and backend.most_near > 1 and backend.has_room(1):
            self._location = backend.location_table()

    def publish(self, *, usable: bool = True) -> int:
        """Publish the location of this rank's array, ready for use; 1 if peers cannot use it (local)."""
        if self._location is None:
            return 0
        self._runtime.backend.drain()
        return int(not (usable and self._runtime.backend.publish(self._location, self._local)))

    def begin(self, opname: str, hidden: int | None = None) -> None:
        """**Collective** without `hidden`, the largest result of `publish`. Use the arrays in place, unless it is 1."""
        if self._location is None:
            return
        if hidden is None:
            with self._runtime.local_step(opname):
                own = self.publish()
            (hidden,) = self._runtime.agree(f"{opname}: arrays", "", maxima=(own,))
        self._runtime.backend.sync()
        if hidden:
            self._location = None

    @property
    def reaches_all(self) -> bool:
        """Whether every rank reaches the arrays of all others (global)."""
        is_on_one_node = self._runtime.backend.most_near == self._runtime.nprocs
        return self._runtime.nprocs == 1 or (self._location is not None and is_on_one_node)

    def reaches(self, peer: int) -> bool:
        """Whether this rank reaches the array of `peer`, and `peer` that of this rank (local)."""
        backend = self._runtime.backend
        return peer == backend.rank or (self._location is not None and backend.is_near(peer))

    def of(self, peer: int) -> Array:
        """The array of a rank that this rank reaches, in place (local)."""
        if peer == self._runtime.rank:
            return self._local
        assert self._location is not None, "this rank reaches the peer"
        shape = self._desc.local_shape(peer)
        return self._runtime.backend.peer_array(self._location, peer, shape, self._local.dtype, self._desc.order)

    def end(self, opname: str) -> None:
        """**Collective.** Return when no rank uses the arrays of others any more."""
        if self._location is not None:
            self._runtime.backend.sync()
            self._runtime.agree(f"end of {opname}", "")
            self._runtime.backend.sync()


def scatter(runtime: Runtime, whole: Array | None, desc: MatrixDescriptor, local: Array, root: int) -> None:
    """**Collective**, after an agreement. Distribute the array of `root`; other ranks pass None.

    The root writes into the arrays of ranks that it reaches, and sends messages to the others.
    """
    backend, opname = runtime.backend, "from_global"
    if not desc.m * desc.n or backend.dry is not None:  # the other size may be long, and have many blocks
        return
    arrays = PeerArrays(runtime, desc, local, desc.m * desc.n * local.itemsize)
    arrays.begin(opname)
    if runtime.rank == root:
        assert whole is not None, "root has the array"
        for peer in range(desc.nprocs):
            if not arrays.reaches(peer):
                _send_part(backend, part_of(whole, desc, peer), local.dtype, desc.order, peer, opname)
            elif (target := arrays.of(peer)).size:
                backend.copy(whole, target, of=places_of(desc, peer))
    elif not arrays.reaches(root):
        for panel in _panels(local, desc.order, local.itemsize):
            with backend.writing(panel) as host:
                _receive(backend, host, root, opname)
    arrays.end(opname)


def empty_whole(opname: str, desc: MatrixDescriptor, dtype: Dtype) -> Array:
    """An uninitialised array for a whole matrix, m x n in the descriptor's order (local)."""
    try:
        return np.empty(desc.shape, dtype, order=desc.order)
    except (MemoryError, ValueError):  # ValueError: more bytes than an address can count
        nbytes = desc.m * desc.n * dtype.itemsize
        raise WorkspaceError(
            f"{opname}: no memory for a matrix of {desc.m} x {desc.n}, {nbytes:,} bytes; work on A.local, or A.save it"
        ) from None


def gather(runtime: Runtime, local: Array, desc: MatrixDescriptor, root: int | None, whole: Array | None) -> None:
    """**Collective**, after an agreement. Collect the whole matrix on `root`, or on all ranks if it is None.

    A rank reads the arrays of the ranks that it reaches; the others send messages. For root=None they send them to rank
    0, and the whole matrix follows along the chain of ranks, unless all ranks reach each other.
    """
    backend, opname = runtime.backend, "to_global"
    if not desc.m * desc.n:  # the other size may be long, and have many blocks
        return
    holders = [peer for peer in range(desc.nprocs) if holds_first_copy(desc, peer)]
    arrays = PeerArrays(runtime, desc, local, desc.m * desc.n * local.itemsize)
    arrays.begin(opname)
    goes_on = root is None and not arrays.reaches_all
    if goes_on:
        root = 0
    if root in (None, runtime.rank):
        assert whole is not None, "this rank has the memory"
        for peer in holders:
            if not arrays.reaches(peer):
                _receive_part(backend, whole, desc, peer, opname)
            elif (source := arrays.of(peer)).size:
                backend.copy(source, whole, at=places_of(desc, peer))
    elif runtime.rank in holders and not arrays.reaches(root):
        for panel in _panels(local, desc.order, local.itemsize):
            _send(backend, backend.reading(panel), root, opname)
    arrays.end(opname)
    if goes_on:
        assert whole is not None, "every rank has the memory"
        _broadcast(runtime, whole, desc.order)


def _send_part(backend: HostRanks, part: Array, dtype: Dtype, order: Order, peer: int, opname: str) -> None:
    """Send a part of a global array, panel by panel, in the dtype and storage order of the matrix (local)."""
    for panel in _panels(part, order, dtype.itemsize):
        _send(backend, np.asarray(panel, dtype=dtype, order=order), peer, opname)


def _receive_part(backend: HostRanks, whole: Array, desc: MatrixDescriptor, peer: int, opname: str) -> None:
    """Receive the elements that `peer` owns, panel by panel (local)."""
    places = places_of(desc, peer)
    is_view = all(isinstance(index, slice) for index in places)
    part = whole[places] if is_view else np.empty(desc.local_shape(peer), whole.dtype, order=desc.order)
    for panel in _panels(part, desc.order, whole.itemsize):
        _receive(backend, panel, peer, opname)
    if not is_view:
        put_part(whole, desc, peer, part)


def _send(backend: HostRanks, panel: Array, peer: int, opname: str) -> None:
    packed = panel if _is_dense(panel) else panel.copy(order="K")
    backend.complete(backend.plain_channel.send(packed, peer, TAG), step=f"{opname}: a panel to rank {peer}")


def _receive(backend: HostRanks, panel: Array, peer: int, opname: str) -> None:
    backend.complete(backend.plain_channel.receive(panel, peer, TAG), step=f"{opname}: a panel from rank {peer}")


def _broadcast(runtime: Runtime, whole: Array, order: str) -> None:
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
