"""What backends have in common: ranks whose hosts agree, share the cores of a node, and keep symmetric memory in order.

The backends of `pblas.backends.mpi`, `pblas.backends.cuda` and `pblas.backends.nvshmem` are siblings that differ in
where matrices lie and in how these move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.agreement import MAXIMA, Agreement
from pblas.backends.allocator import call_site
from pblas.backends.cpu.threads import BlasThreads, quota, share, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pblas.backends.agreement import Agreed
    from pblas.backends.allocator import Blocks
    from pblas.backends.dtypes import Array
    from pblas.backends.peers import Channel, Peers
    from pblas.backends.push_engine import Engine
    from pblas.backends.shared_workspace import WorkspaceSlot

Location = tuple[Any, list[Any]]
"""A block, and four integers of each rank of the node: window, offset, and strides of an array; None elsewhere."""


class HostRanks(ABC):
    """Ranks that agree, and what they multiply on.

    Args:
        peers: the ranks, which are all here; a duplicate is used (global).
        timeout: seconds that a rank waits for another (global).
        threads: BLAS threads of this rank; None for its share of the cores (local).
        near: those that count as ranks of this rank's node; None: the node's (global to the node).
    """

    name: str
    gpus: bool
    """Whether matrices lie on GPUs."""
    tiles = False
    """Whether a GEMM's tiles can wait for what they multiply, one by one."""
    shared = False
    """Whether ranks of a node reach each other's memory (global)."""
    push = False
    """Whether ranks write what peers need into their memory, instead of reading it out of theirs (global)."""
    falls_back = False
    """Whether too little shared memory is no error (global)."""
    arena: Blocks[Any, Any]
    """Symmetric memory."""
    arrays: Any = None
    """What executors do with this rank's arrays."""
    channel: Channel
    """Messages of pieces of matrices."""

    def __init__(
        self, peers: Peers, *, timeout: float, threads: int | None, near: Callable[[Peers], Sequence[int]] | None = None
    ) -> None:
        self.peers = peers.duplicate()
        self.rank, self.size = self.peers.rank, self.peers.size
        self.agreement = Agreement(self.peers, timeout)
        self.near = self.peers.node if near is None else tuple(near(self.peers))
        masks = self.agreement.gather(usable_cores(), "Context: cores of the ranks of a node", self.near)
        index, self.local_ranks = self.near.index(self.rank), self.peers.local_size
        self.cores = len(masks[index])
        self.threads = share(masks, index, self.local_ranks, quota()) if threads is None else int(threads)
        self.agreement.crowd(len(frozenset.union(*masks)) < self.local_ranks)
        count = len(self.near)
        self.most_near, least, *_ = self.agreement.agree(
            "Context: ranks of each node", maxima=(count, -count, 0, 0)
        ).maxima
        self.ranks_per_node = -least
        self.plain_channel = self.channel = self.peers.channel()
        self.read_nbytes = 0
        """Bytes of near ranks' matrices that this rank has read in place, those of movements (local)."""
        self._blas = BlasThreads(self.threads)
        self.workspace_slot: WorkspaceSlot | None = None
        """Of the plan that is made or executed, if it shares its memory (local)."""

    def require_one_node(self) -> None:
        """Raise BackendError, on every rank, unless one node has them all."""
        if self.ranks_per_node < self.size:
            raise errors.BackendError(
                f"Context: ranks that push share a node's memory, but a node has {self.ranks_per_node} of the "
                f"{self.size} ranks; make a context of the ranks of each node, or use another transport"
            )

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info`."""
        return {
            "ranks": str(self.size),
            "ranks on this node": str(len(self.near)),
            "cores for this rank": str(self.cores),
            "BLAS threads per rank": str(self.threads),
        }

    @abstractmethod
    def versions(self) -> tuple[str, ...]:
        """What the times of plans depend on beside the plan: hardware and libraries (local)."""

    @abstractmethod
    def recorder(self) -> Any:
        """What records when operations run, in a `with` block: see `pblas.backends.recorder` (local)."""

    # Agreement

    def agree(self, call: str, error: errors.PblasError | None = None, *, maxima: tuple[int, ...] = ()) -> Agreed:
        """**Collective.** All ranks make the same call without an error, or all raise the same exception.

        Blocks that all ranks have dropped are free afterwards.
        """
        workspace_slot, padded = self.agreement.ncalls, maxima + (0,) * (MAXIMA - len(maxima))
        agreed = self.agreement.agree(call, error, maxima=padded, bits=self.arena.marked_bits(workspace_slot))
        self.arena.reclaim(workspace_slot, agreed.bits)
        return agreed

    def wait(self, arrived: Callable[[], bool], step: str) -> None:
        """Return when `arrived()`, or raise PeerTimeout on every waiting rank."""
        self.agreement.wait(arrived, step)

    def reject(self, error: errors.PblasError) -> None:
        """Raise an error here; ranks that do not refuse too raise it as soon as they wait for this one (local)."""
        self.agreement.reject(error)

    def gather(self, value: Any) -> list[Any]:
        """**Collective.** A small Python value of each rank, in the order of ranks."""
        return self.agreement.gather(value, "gather of small values")

    def broadcast_object(self, value: Any, root: int) -> Any:
        """**Collective.** A small Python value of `root`, on all ranks."""
        return self.agreement.broadcast(value, root, "broadcast of a value")

    # Arrays

    @abstractmethod
    def as_array(self, x: Any) -> Array:
        """The array that x is, where this backend multiplies; nothing is copied if it is one (local).

        Raises:
            ArgumentError: an array of a kind, or in a place, that this backend does not take.
            DTypeError: a tensor with elements that NumPy does not know.
            ValueError: nothing that can be an array.
        """

    @abstractmethod
    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array of this rank alone, by rows, where this backend multiplies (local)."""

    @abstractmethod
    def is_here(self, x: Array) -> bool:
        """Whether an array lies in the memory in which this backend multiplies (local)."""

    @abstractmethod
    def view(self, memory: Any, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """An array at the start of what `allocate` returned, which it keeps alive (local)."""

    @abstractmethod
    def reading(self, x: Array) -> Array:
        """The elements of x in host memory: x itself if it lies there (local)."""

    @abstractmethod
    def writing(self, x: Array) -> AbstractContextManager[Array]:
        """A with block that yields host memory of x's shape; what is written to it is in x afterwards (local)."""

    @abstractmethod
    def copy(self, x: Array, z: Array) -> None:
        """Z := X, of the same shape and dtype; X may lie in host memory, Z where this backend multiplies (local)."""

    @abstractmethod
    def clear(self, x: Array) -> None:
        """X := 0, of an array made by `view`, gaps between its columns or rows included (local)."""

    @abstractmethod
    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X) that cannot be written, where arrays know that (local)."""

    @abstractmethod
    def address(self, x: Array) -> int:
        """Where the first element of x lies (local)."""

    @abstractmethod
    def shadow(self, x: Array) -> Array:
        """A NumPy array of the same addresses and strides, to compare places with; not to be read or written (local).

        For np.may_share_memory and np.shares_memory, which see host memory only.
        """

    # Executions of the push transport

    def engine(self, queue: int | None = None) -> Engine:
        """What runs plans of the push transport (local)."""
        raise AssertionError(f"backend {self.name!r} has no engine, asked for queue {queue}")

    def engines(self) -> Iterable[Engine]:
        """What has run plans of the push transport (local)."""
        return ()

    # Memory

    @abstractmethod
    def is_near(self, peer: int) -> bool:
        """Whether this rank reaches the memory of `peer` in place."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Memory for a matrix: symmetric memory where there is any."""

    def allocate_scratch(self, nbytes: int, *, window: bool = True) -> Any:
        """**Collective.** Memory of one plan, or of a turn; marked, like all blocks, when nobody has it any more."""

        def allocate(nbytes: int) -> Any:
            return self.arena.allocate(nbytes, call_site) if window else self.private(nbytes)

        return allocate(nbytes) if self.workspace_slot is None else self.workspace_slot.take(window, nbytes, allocate)

    def buffer(self, nbytes: int) -> Array:
        """Memory of one plan, or of a turn, that no other rank reaches, as bytes (local)."""

        def allocate(nbytes: int) -> Array:
            return np.empty(nbytes, np.uint8)

        memory: Array = (
            allocate(nbytes) if self.workspace_slot is None else self.workspace_slot.take(False, nbytes, allocate)
        )
        return memory

    @contextmanager
    def taking(self, workspace_slot: WorkspaceSlot) -> Iterator[None]:
        """A with block in which a plan that is made or executed shares its memory with others, before or after them.

        Args:
            workspace_slot: the plan's, the same each time (local).
        """
        self.workspace_slot = workspace_slot
        try:
            yield
        finally:
            self.workspace_slot = None

    @staticmethod
    def private(nbytes: int) -> Array:
        """Memory of the host that no other rank reaches, as bytes (local).

        Raises:
            WorkspaceError: there is not so much.
        """
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError):  # more than there is, or than there can be
            raise errors.WorkspaceError(
                f"no memory for {nbytes:,} bytes on each rank; use more ranks, or smaller matrices"
            ) from None

    def provisional(self) -> AbstractContextManager[None]:
        """Undo this rank's allocations if the block is left by an error, which all ranks then raise."""
        return self.arena.provisional()

    # Arrays in the memory of near ranks

    def location_table(self) -> Location:
        """**Collective.** A place where every rank of a node says where one of its arrays lies."""
        raise AssertionError(f"backend {self.name!r} reads nothing in place")

    def publish(self, location: Location, x: Array) -> bool:
        """Say where x lies, for peers to read after the next agreement; false if it is not in a window (local)."""
        window, offset = self.arena.locate(self.address(x)) if x.size else (0, 0)
        if window < 0:
            return False
        location[1][self.rank][:] = (window, offset, *x.strides)
        self.sync()
        return True

    def published(self, location: Location, peer: int) -> tuple[int, ...]:
        """Window, offset and strides of the array that a near peer published (local)."""
        entry: tuple[int, ...] = tuple(location[1][peer].tolist())
        return entry

    def peer_array(
        self, location: Location, peer: int, shape: tuple[int, int], dtype: np.dtype[Any], order: str
    ) -> Array:
        """The array that a near peer published, in place (local)."""
        del order  # the strides say it; backends that copy need it
        window, offset, rows, columns = self.published(location, peer)
        arena: Any = self.arena
        array: Array = arena.view(peer, window, offset, shape, (rows, columns), dtype)
        return array

    @abstractmethod
    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """A tight array `offset` bytes into a near peer's, or this rank's, part of a symmetric block (local)."""

    def sync(self) -> None:  # noqa: B027 - nothing, where messages order what flags do not
        """Order this rank's accesses to shared memory of the hosts around a message (local)."""

    # The end

    def check(self) -> None:  # noqa: B027 - nothing, where executions end when their call returns
        """Raise what has become of earlier executions, where they may go on when their call has returned (local)."""

    def settle(self, timeout: float | None = None) -> None:  # noqa: B027 - likewise
        """Return when this rank has finished what it has under way (local)."""

    def leaks(self) -> list[str]:
        """Allocation sites of the symmetric memory that Python still uses on this rank."""
        return self.arena.leaks()

    def close(self, *, free: bool) -> None:
        """Restore the BLAS threads and, if all ranks do it, free what they share.

        Args:
            free: all ranks are here and none uses symmetric memory any more (global).
        """
        self._blas.close()
        if self.arrays is not None:
            self.arrays.close()
        if free:
            self.arena.close()
        if free or self.agreement.broken is None:
            self.channel.close()
            self.plain_channel.close()
            self.agreement.close()
        if free:
            self.peers.close()
