"""The MPI backend: NumPy arrays, shared windows within a node, messages between nodes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends.arrays import HostArrays
from pblas.backends.foreign import host_array
from pblas.backends.mpi.arena import Arena, Block, call_site
from pblas.backends.mpi.channel import WORDS, Channel, DelayedChannel
from pblas.backends.mpi.exchange import MAXIMA, Agreed, Exchange
from pblas.backends.mpi.launch import local_size
from pblas.backends.mpi.push import WindowEngine
from pblas.backends.threads import BlasThreads, quota, share, usable_cores

if TYPE_CHECKING:
    from pblas.backends.engine import Engine
    from pblas.backends.gemm import Array
    from pblas.backends.turns import Turn

LOCATION_NBYTES = 32  # four 64-bit integers: window, offset, strides
Location = tuple[Block, list[Any]]


class MpiBackend:
    """Ranks of one communicator: agreement, symmetric memory, messages.

    Args:
        comm: an mpi4py intracommunicator whose ranks are all here (`arrive`), of which a duplicate is used; None for
            COMM_WORLD (global).
        timeout: seconds that a rank waits for another (global).
        threads: BLAS threads of this rank; None for its share of the cores (local).
        transport: "auto" and "window" use shared memory within a node, "message" never; with "auto" too little shared
            memory is no error (global).
        ranks_per_node: act as if a node had at most so many ranks: tries the road between nodes on one (global).
        link: (latency in seconds, bandwidth in bytes per second) of an emulated network between nodes (global).
        push: write what peers need into their memory, instead of reading it out of theirs: on GPUs, and on CPUs in
            tests of the protocol that GPUs have (global).
    """

    name = "mpi"
    gpus = False
    """Whether matrices lie on GPUs."""
    tiles = False
    """Whether a GEMM's tiles can wait for what they multiply, one by one."""

    def __init__(
        self,
        comm: MPI.Intracomm | None,
        *,
        timeout: float,
        threads: int | None,
        transport: str,
        ranks_per_node: int | None,
        link: tuple[float, float] | None,
        push: bool = False,
    ) -> None:
        self._comm = (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.push = push
        self._node = self._split_node(1 if transport == "message" else ranks_per_node)
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        ranks = list(range(self._node.Get_size()))
        near = MPI.Group.Translate_ranks(self._node.Get_group(), ranks, self._comm.Get_group())
        self._near = dict(zip(near, ranks, strict=True))  # rank -> rank on this node
        masks = self._node.allgather(usable_cores())
        self.local_ranks = local_size(len(ranks))
        self.cores = len(masks[self._node.Get_rank()])
        share_of_cores = share(masks, self._node.Get_rank(), self.local_ranks, quota())
        self.threads = share_of_cores if threads is None else int(threads)
        crowded = len(frozenset.union(*masks)) < self.local_ranks
        self.ranks_per_node = self._comm.allreduce(len(ranks), MPI.MIN)
        if push and self.ranks_per_node < self.size:  # on every rank
            self._node.Free()
            self._comm.Free()
            raise errors.BackendError(
                f"Context: ranks that push share a node's memory, but a node has {self.ranks_per_node} of the "
                f"{self.size} ranks; make a context of the ranks of each node, or pass backend='cuda'"
            )
        self.shared = transport != "message" and self._comm.allreduce(len(ranks), MPI.MAX) > 1
        self.falls_back = transport == "auto"
        self.exchange = Exchange(self._comm, timeout, crowded)
        self.plain_channel = Channel(self._comm)
        self.channel = DelayedChannel(self._comm, *link) if link else self.plain_channel
        self.read_nbytes = 0
        """Bytes of near ranks' matrices that this rank has read in place, those of movements (local)."""
        self.tables = Arena(self.exchange, self._node)
        self.arena: Any = self.tables
        self.arrays: Any = HostArrays()
        self._engine: Engine = WindowEngine(self)
        self._blas = BlasThreads(self.threads)
        self.turn: Turn | None = None
        """Of the plan that is made or executed, if it shares its memory (local)."""

    def _split_node(self, ranks_per_node: int | None) -> Any:
        node: Any = self._comm.Split_type(MPI.COMM_TYPE_SHARED, self._comm.Get_rank())
        if ranks_per_node is None or ranks_per_node >= node.Get_size():
            return node
        part: Any = node.Split(node.Get_rank() // ranks_per_node, node.Get_rank())
        node.Free()
        return part

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info`."""
        return {
            "MPI library": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
            "MPI standard": ".".join(map(str, MPI.Get_version())),
            "ranks": str(self.size),
            "ranks on this node": str(len(self._near)),
            "cores for this rank": str(self.cores),
            "BLAS threads per rank": str(self.threads),
            "transport": "shared window within a node, messages between nodes" if self.shared else "messages",
        }

    def versions(self) -> tuple[str, ...]:
        """What the times of plans depend on beside the plan: hardware and libraries (local)."""
        return "cpus", platform.machine(), f"{self.cores}cores", f"numpy{np.__version__}"

    # Agreement

    def agree(self, call: str, error: errors.PblasError | None = None, *, maxima: tuple[int, ...] = ()) -> Agreed:
        """**Collective.** All ranks make the same call without an error, or all raise the same exception.

        Blocks that all ranks have dropped are free afterwards.
        """
        turn, padded = self.exchange.ncalls, maxima + (0,) * (MAXIMA - len(maxima))
        agreed = self.exchange.agree(call, error, maxima=padded, bits=self.arena.marked_bits(turn))
        self.arena.reclaim(turn, agreed.bits)
        return agreed

    def wait(self, arrived: Callable[[], bool], step: str) -> None:
        """Return when `arrived()`, or raise PeerTimeout on every waiting rank."""
        self.exchange.wait(arrived, step)

    # Arrays

    def as_array(self, x: Any) -> Array:
        """The array that x is, or that NumPy makes of it; nothing is copied if it is one (local).

        Raises:
            ArgumentError: an array on a GPU, or a masked one.
            DTypeError: a tensor with elements that NumPy does not know.
            ValueError: nothing that can be an array.
        """
        if hasattr(x, "__cuda_array_interface__"):
            raise errors.ArgumentError(
                "the array is on a GPU, a context with backend='mpi' multiplies in host memory; "
                "pass cupy.asnumpy(x), or make the context with backend='nvshmem'"
            )
        return host_array(x)

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised array of this rank alone, by rows, where this backend multiplies (local)."""
        return np.empty(shape, dtype)

    def is_here(self, x: Array) -> bool:
        """Whether an array lies in the memory in which this backend multiplies (local)."""
        return isinstance(x, np.ndarray)

    def view(self, memory: Any, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """An array at the start of what `allocate` returned, which it keeps alive (local)."""
        raw = np.asarray(memory)
        if 0 in shape:
            return np.empty(shape, dtype, order="F" if strides[0] < strides[1] else "C")
        return np.ndarray(shape, dtype, raw.data, strides=strides)

    def reading(self, x: Array) -> Array:
        """The elements of x in host memory: x itself if it lies there (local)."""
        return x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        """A with block that yields host memory of x's shape; what is written to it is in x afterwards (local)."""
        return nullcontext(x)

    def copy(self, x: Array, z: Array) -> None:
        """Z := X, of the same shape and dtype; X may lie in host memory, Z where this backend multiplies (local)."""
        z[...] = x

    def clear(self, x: Array) -> None:
        """X := 0, of an array made by `view`, gaps between its columns or rows included (local)."""
        x[...] = 0

    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X) that cannot be written, where arrays know that (local)."""
        copy: Array = np.conj(x)
        copy.flags.writeable = False
        return copy

    def address(self, x: Array) -> int:
        """Where the first element of x lies (local)."""
        return int(x.__array_interface__["data"][0])

    def shadow(self, x: Array) -> Array:
        """A NumPy array of the same addresses and strides, to compare places with; not to be read or written (local).

        For np.may_share_memory and np.shares_memory, which see host memory only.
        """
        return x

    def refuse(self, error: errors.PblasError) -> None:
        """Raise an error here; ranks that do not refuse too raise it as soon as they wait for this one (local)."""
        self.exchange.refuse(error)

    def engine(self, queue: int | None = None) -> Engine:
        """What runs plans of the push transport: those of all queues one after the other (local)."""
        del queue
        return self._engine

    def engines(self) -> Iterable[Engine]:
        """What has run plans of the push transport (local)."""
        return (self._engine,)

    # Symmetric memory

    def node_rank(self, peer: int) -> int:
        """The number of a near rank, or of this one, among the ranks of the node (local)."""
        return self._near[peer]

    def is_near(self, peer: int) -> bool:
        """Whether this rank reads and writes the memory of `peer` in place."""
        return self.shared and peer in self._near and peer != self.rank

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Symmetric memory in the window, or private memory where there is no window."""
        return self.arena.allocate(nbytes, call_site) if self.shared else self.private(nbytes)

    def allocate_scratch(self, nbytes: int, *, window: bool = True) -> Any:
        """**Collective.** Memory of one plan, or of a turn; marked, like all blocks, when nobody has it any more."""

        def allocate(nbytes: int) -> Any:
            return self.arena.allocate(nbytes, call_site) if window else self.private(nbytes)

        return allocate(nbytes) if self.turn is None else self.turn.take(window, nbytes, allocate)

    def buffer(self, nbytes: int) -> Array:
        """Memory of one plan, or of a turn, that no other rank reaches, as bytes (local)."""

        def allocate(nbytes: int) -> Array:
            return np.empty(nbytes, np.uint8)

        found: Array = allocate(nbytes) if self.turn is None else self.turn.take(False, nbytes, allocate)
        return found

    @contextmanager
    def taking(self, turn: Turn) -> Iterator[None]:
        """A with block in which a plan that is made or executed shares its memory with others, before or after them.

        Args:
            turn: the plan's, the same each time (local).
        """
        self.turn = turn
        try:
            yield
        finally:
            self.turn = None

    @staticmethod
    def private(nbytes: int) -> Array:
        """Memory that no other rank reaches, as bytes (local).

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

    def location_table(self) -> Location:
        """**Collective.** A place where every rank of a node says where one of its arrays lies."""
        block = self.arena.allocate(LOCATION_NBYTES, call_site)
        return block, self.entries(block, 0)

    def entries(self, block: Block, offset: int) -> list[Any]:
        """What each rank of the node says `offset` bytes into a block of the tables (local)."""
        entries: list[Any] = [None] * self.size
        for peer, local in self._near.items():
            place = block.window, block.offset + offset
            entries[peer] = self.tables.view(local, *place, (1, 4), (LOCATION_NBYTES, 8), np.dtype(np.int64))[0]
        return entries

    def publish(self, location: Location, x: Array) -> bool:
        """Say where x lies, for peers to read after the next agreement; false if it is not in a window (local)."""
        window, offset = self.arena.locate(self.address(x)) if x.size else (0, 0)
        if window < 0:
            return False
        location[1][self.rank][:] = (window, offset, *x.strides)
        self.tables.sync()
        return True

    def published(self, location: Location, peer: int) -> tuple[int, ...]:
        """Window, offset and strides of the array that a near peer published (local)."""
        found: tuple[int, ...] = tuple(location[1][peer].tolist())
        return found

    def peer_array(
        self, location: Location, peer: int, shape: tuple[int, int], dtype: np.dtype[Any], order: str
    ) -> Array:
        """The array that a near peer published, in place (local)."""
        del order  # the strides say it; backends that copy need it
        window, offset, rows, columns = self.published(location, peer)
        return self.arena.view(self._near[peer], window, offset, shape, (rows, columns), dtype)

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """A tight array `offset` bytes into a near peer's, or this rank's, part of a symmetric block (local)."""
        if not isinstance(block, Block):
            return np.ndarray(shape, dtype, block.data, offset, order=order)
        size = dtype.itemsize
        strides = (size, size * shape[0]) if order == "F" else (size * shape[1], size)
        return self.arena.view(self._near[peer], block.window, block.offset + offset, shape, strides, dtype)

    def sync(self) -> None:
        """Order this rank's accesses to shared memory around a message (local)."""
        if self.shared:
            self.arena.sync()

    # Plain collectives, each after an agreement

    def broadcast_object(self, value: Any, root: int) -> Any:
        """**Collective.** A small Python value of `root`, on all ranks."""
        return self._comm.bcast(value, root)

    def all_to_all(self, x: Array, counts: Sequence[int], out: Array, out_counts: Sequence[int]) -> None:
        """**Collective.** To each rank so many elements of x, in the order of ranks, and from each into out.

        Args:
            x: tight, of one dimension (local).
            counts: elements for each rank (local).
            out: likewise, of x's dtype (local).
            out_counts: elements from each rank (local).
        """
        word = WORDS[x.itemsize]
        self._comm.Alltoallv([x, counts, None, word], [out, out_counts, None, word])

    def all_gather(self, x: Array, out: Array, counts: Sequence[int]) -> None:
        """**Collective.** Out := every rank's x, one after the other.

        Args:
            x: tight, of one dimension (local).
            out: likewise, of x's dtype (local).
            counts: elements of each rank (global).
        """
        word = WORDS[x.itemsize]
        self._comm.Allgatherv([x, x.size, word], [out, counts, None, word])

    # The end

    def check(self) -> None:
        """Raise what has become of earlier executions: here they have ended when their call returns (local)."""

    def settle(self, timeout: float | None = None) -> None:
        """Return when this rank has finished what it has under way: on CPUs always (local)."""

    def leaks(self) -> list[str]:
        """Allocation sites of the symmetric memory that Python still uses on this rank."""
        self._engine.close()
        return self.arena.leaks()

    def close(self, *, free: bool) -> None:
        """Restore the BLAS threads and, if all ranks do it, free windows and communicators.

        Args:
            free: all ranks are here and none uses the windows any more (global).
        """
        self._blas.close()
        self.arrays.close()
        if free:
            self.arena.close()
        if free or self.exchange.broken is None:
            self.channel.close()
            self.plain_channel.close()
            self.exchange.close()
        if free:
            self._node.Free()
            self._comm.Free()
