"""Base class of the backends: agreement of the hosts, cores of a node, symmetric memory.

`pblas.backends.cpu_backend`, `pblas.backends.cuda` and `pblas.backends.nvshmem` differ in the memory of the matrices,
and in how matrices move between the ranks. Their hosts exchange messages over a `pblas.backends.transport.Transport`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from pblas import errors
from pblas.backends import liveness
from pblas.backends.agreement import BITS, Agreed, Agreement
from pblas.backends.allocator import Blocks, Provisional, call_site
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.cpu.lapack import factored_bits
from pblas.backends.cpu.threads import BlasThreads, quota, requested, share, usable_cores
from pblas.backends.dtypes import BYTE, Array, Dtype, Order, Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pblas.backends.device import Device
    from pblas.backends.local_step import AgreedError
    from pblas.backends.push_engine import Engine
    from pblas.backends.shared_workspace import WorkspaceSlot
    from pblas.backends.transport import Channel, HostChannel, Transfer, Transport

_LEAST_WORK = 1e8
"""Multiplications, as of a product of order 464, that take longer than the change of the number of BLAS threads."""

Location = tuple[Any, list[Any]]
"""A block, and four integers of each rank of the node: window, offset, and strides of an array; None elsewhere."""


class HostScratch(NamedTuple):
    """Memory of the hosts that the ranks of a node share."""

    keep: object  # keeps the memory alive (local)
    of: dict[int, Array]  # the bytes of each rank of the node (local)


class HostRanks(ABC):
    """The ranks of a context: agreement, arrays, memory and messages.

    The peers have all arrived; the backend uses a duplicate. `near` returns the ranks that count as this rank's
    node; None: all ranks of the node.
    """

    name: str
    tiles = False  # whether each tile of a GEMM can wait for its operands by itself
    shared = False  # whether ranks of a node reach each other's memory (global)
    push = False
    """Whether ranks write data into the memory of the peers that need it, instead of reading it there (global)."""
    falls_back = False  # whether too little shared memory is no error (global)
    dry: Any = None  # in a dry run, whose matrices have no elements, these ranks as a `DryRanks`; else None (global)
    arena: Blocks[Any, Any]  # symmetric memory
    arrays: Device  # operations of the executors on this rank's arrays
    channel: Channel  # messages of pieces of matrices

    def __init__(
        self,
        peers: Transport,
        *,
        timeout: float,
        threads: int | None,
        near: Callable[[Transport], Sequence[int]] | None = None,
    ) -> None:
        self.peers: Transport = peers.duplicate()
        self.rank: int = self.peers.rank
        self.size: int = self.peers.size
        self.agreement: Agreement = Agreement(self.peers, timeout)
        self.near: tuple[int, ...] = self.peers.node if near is None else tuple(near(self.peers))
        masks = self.agreement.gather(usable_cores(), "Context: cores of the ranks of a node", self.near)
        index = self.near.index(self.rank)
        self.local_ranks: int = self.peers.local_size
        self.cores: int = len(masks[index])
        asked = requested() if threads is None else int(threads)
        self.threads: int = asked or share(masks, index, self.local_ranks, quota())
        self.agreement.crowd(len(frozenset.union(*masks)) < self.local_ranks)
        alike = factored_bits(self.threads) if len(self.peers.node) == 1 < self.size else 0
        maxima = len(self.near), len(self.peers.node), alike, -alike
        agreed = self.agreement.agree("Context: ranks of each node", maxima=maxima, bits=self._near_blocks())
        self.most_near: int = agreed.maxima[0]
        self.alone: bool = self.size > 1 and agreed.maxima[1] == 1 and agreed.maxima[2] == -agreed.maxima[3]
        """Whether each of several ranks has a node of its own, and all factor a matrix to the same bits (global)."""
        self.ranks_per_node: int = agreed.bits.bit_length() - 1
        self._alone = tuple(range(rank, rank + 1) for rank in range(self.size))
        self._nodes = self._gathered_nodes()
        self.plain_channel: HostChannel = self.peers.channel()
        self.channel = self.plain_channel
        self.compared = ""
        """Texts of arrays that are equal on all ranks, for the next agreement: see `compare_array` (global)."""
        self.read_nbytes = 0  # bytes of near ranks' matrices that movements of this rank have read in place (local)
        self._blas = BlasThreads(self.threads)
        self.workspace_slot: WorkspaceSlot | None = None
        """Slot of the plan that is being made or executed, if it shares its memory (local)."""
        liveness.begin(self.agreement, self.peers)

    def _near_blocks(self) -> int:
        """Set of the n, as bits, for which all ranks of this rank's block of n consecutive ranks are near (local).

        Blocks begin at multiples of n. The largest n of all ranks is the size of equal hosts; hosts of unequal numbers
        of ranks, or ranks that alternate between hosts, give a smaller one, such as 1 of hosts of 1 and 3 ranks.
        """
        near, first, stop = set(self.near), self.rank, self.rank + 1
        while first - 1 in near:
            first -= 1
        while stop in near:
            stop += 1
        blocks = 0
        for n in range(1, min(self.size, BITS - 1) + 1):
            start = self.rank - self.rank % n
            blocks |= (first <= start and min(start + n, self.size) <= stop) << n
        return blocks

    def _gathered_nodes(self) -> tuple[range, ...]:
        """**Collective.** The ranks of each node; () if all have one rank, or some are not consecutive (global)."""
        if self.most_near == 1:
            return ()
        node = self.near[0], self.near[-1] + 1, len(self.near)
        nodes = sorted(set(self.agreement.gather(node, "Context: nodes of the ranks")))
        are_consecutive = all(stop - first == count for first, stop, count in nodes)
        return tuple(range(first, stop) for first, stop, _ in nodes) if are_consecutive else ()

    @cached_property
    def host_arrays(self) -> Device:
        """Operations on arrays in host memory."""
        return self.arrays if self.arrays.traits.blocking else HostArrays()

    @property
    def host_channel(self) -> Channel:
        """Messages of arrays in host memory."""
        return self.channel if self.arrays.traits.blocking else self.plain_channel

    @property
    def gpus(self) -> bool:
        """Whether matrices are in GPU memory."""
        return self.arrays.traits.gpu

    @property
    def groups(self) -> tuple[range, ...]:
        """Ranks among which data from other nodes arrives once (global).

        They are those of each node if they share memory and all nodes have consecutive ranks; otherwise each rank is a
        group.
        """
        return self._nodes if self._nodes and self.shared else self._alone

    def require_one_node(self) -> None:
        """Raise BackendError, on every rank, unless all ranks are on one node."""
        if self.most_near < self.size:
            raise errors.BackendError(
                f"Context: ranks that push share a node's memory, but a node has {self.most_near} of the "
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
        """Names of hardware and libraries on which the times of plans depend (local)."""

    @abstractmethod
    def recorder(self) -> Any:
        """A recorder of the times of operations, for a `with` block: see `pblas.backends.recorder` (local)."""

    # Agreement

    def agree(self, call: str, error: AgreedError | None = None, *, maxima: tuple[int, ...] = ()) -> Agreed:
        """**Collective.** All ranks make the same call without an error, or all raise the same exception.

        Blocks that all ranks have dropped are free afterwards.
        """
        if self.compared:  # before the other arguments: a long text is cut
            opname, _, arguments = call.partition("\n")
            call, self.compared = f"{opname}{self.compared}\n{arguments}", ""
        number = self.agreement.ncalls
        self.arena.frozen = None
        if self.size == 1:
            agreed = self.agreement.agree(call, error, maxima=maxima)
            self.arena.reclaim_marked()
            return agreed
        agreed = self.agreement.agree(call, error, maxima=maxima, bits=self.arena.marked_bits(number))
        if agreed.bits:
            self.arena.reclaim(number, agreed.bits)
        return agreed

    def wait(self, arrived: Callable[[], bool], step: str) -> None:
        """Return when `arrived()`, or raise PeerTimeout on every waiting rank."""
        self.agreement.wait(arrived, step)

    def complete(self, *transfers: Transfer, step: str) -> None:
        """Return when messages of the hosts have left or arrived, without long pauses: see `Agreement.wait`."""
        for transfer in transfers:
            self.agreement.wait(transfer.done, step, moving=True)

    def reject(self, error: AgreedError) -> None:
        """Raise this rank's error; ranks that have begun the call raise it when they wait for this rank (local)."""
        self.agreement.reject(error)

    def abort(self, error: AgreedError) -> NoReturn:
        """Raise this rank's error in the middle of a call, which breaks the context: see `Agreement.abort` (local)."""
        self.agreement.abort(error)

    def gather(self, value: object) -> list[Any]:
        """**Collective.** A small Python value of each rank, in the order of ranks."""
        return self.agreement.gather(value, "gather of small values")

    def broadcast_object(self, value: object, root: int) -> Any:
        """**Collective.** A small Python value of `root`, on all ranks."""
        return self.agreement.broadcast(value, root, "broadcast of a value")

    def measured_bandwidth(self) -> float:
        """**Collective.** Bytes per second of messages between nodes, rounded; 0 if there are none, or on GPUs."""
        return 0.0

    def progressing(self) -> AbstractContextManager[None]:
        """A with block in which messages of the hosts move while this rank computes (local)."""
        return nullcontext()

    def all_threads(self, work: float) -> AbstractContextManager[object]:
        """A with block in which this rank computes alone on its node, with the BLAS threads of all ranks there (local).

        Less work than `_LEAST_WORK` multiplications is not worth the change.
        """
        threads = min(self.cores, self.threads * len(self.near))
        is_worth_it = threads > self.threads and work >= _LEAST_WORK
        return closing(BlasThreads(threads, again=True)) if is_worth_it else nullcontext()

    def form_alike(self) -> str:
        """Let later local products, solves and factorizations form all elements alike, where this backend can (local).

        Returns:
            bits that such products have here; "" if they stay as they are.

        Raises:
            BackendError: this BLAS forms elements otherwise at some places.
        """
        return ""

    # Arrays

    @abstractmethod
    def as_array(self, x: object) -> Array:
        """X as an array in the memory of this backend; nothing is copied if it is one (local)."""

    @abstractmethod
    def new(self, shape: tuple[int, ...], dtype: Dtype) -> Array:
        """An uninitialised private array in C order, in the memory of this backend (local)."""

    @abstractmethod
    def is_here(self, x: object) -> bool:
        """Whether this is an array in the memory of this backend (local)."""

    @abstractmethod
    def borrowed(self, x: Array) -> Array:
        """The same array, which does not keep its memory alive (local)."""

    @abstractmethod
    def view(self, memory: object, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        """An array at the start of memory from `allocate`, which the array keeps alive (local)."""

    @abstractmethod
    def reading(self, x: Array) -> Array:
        """The elements of x in host memory: x itself if it is there (local)."""

    @abstractmethod
    def writing(self, x: Array) -> AbstractContextManager[Array]:
        """A with block that yields host memory of x's shape; x gets its contents at the end (local)."""

    @abstractmethod
    def copy(self, x: Array, z: Array, *, of: Places | None = None, at: Places | None = None) -> None:
        """Z := X of the same shape; one may be in host memory, and then X is converted to Z's dtype (local).

        With `of` X is those rows and columns of an array in host memory, with `at` Z is.
        """

    def drain(self) -> None:  # noqa: B027 - see `check`
        """Return when all earlier work of this rank's GPU is done: peers may use its matrices then (local)."""

    @abstractmethod
    def fill(self, x: Array, value: complex = 0) -> None:
        """All elements of X := value, as X's dtype holds it (local)."""

    @abstractmethod
    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X), read-only if the array library supports that (local)."""

    @abstractmethod
    def address(self, x: Array) -> int:
        """Address of the first element of x (local)."""

    @abstractmethod
    def memory_of(self, x: Array) -> Array:
        """A NumPy array of the same addresses and strides; never read or written (local).

        It is for np.may_share_memory and np.shares_memory, which know host memory only.
        """

    # Executions of the push transport

    def engine(self, queue: int | None = None) -> Engine:
        """The engine that runs plans of the push transport (local)."""
        raise AssertionError(f"backend {self.name!r} has no engine, asked for queue {queue}")

    def engines(self) -> Iterable[Engine]:
        """The engines that have run plans of the push transport (local)."""
        return ()

    def collectives(self) -> Any:
        """Collectives of plain arrays by kernels; None: they go through the memory of the hosts (global)."""
        return None

    # Memory

    @abstractmethod
    def is_near(self, peer: int) -> bool:
        """Whether this rank reaches the memory of `peer` in place."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Memory for a matrix: symmetric memory if the backend has it."""

    def allocate_scratch(self, nbytes: int, *, window: bool = True) -> Any:
        """**Collective.** Memory of one plan, shared with other plans if it has a workspace slot."""

        def allocate(nbytes: int) -> Any:
            return self.arena.allocate(nbytes, call_site) if window else self.private(nbytes)

        return self._shared_memory(window, nbytes, allocate)

    def host_scratch(self, nbytes: int) -> HostScratch:
        """**Collective.** As many bytes of host memory for each rank of the node, which all of them reach."""
        block, node = self.allocate_scratch(nbytes), sorted({self.rank, *filter(self.is_near, range(self.size))})
        return HostScratch(block, {peer: self.peer_block(block, peer, 0, (nbytes, 1), BYTE, "F") for peer in node})

    def buffer(self, nbytes: int) -> Array:
        """Private memory of one plan, shared with other plans if it has a workspace slot, as bytes (local)."""
        memory: Array = self._shared_memory(False, nbytes, lambda nbytes: np.empty(nbytes, np.uint8))
        return memory

    def _shared_memory(self, window: bool, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """Memory from the workspace slot if there is one, else new memory."""
        slot = self.workspace_slot
        return allocate(nbytes) if slot is None else slot.take(window, nbytes, allocate)

    @contextmanager
    def taking(self, workspace_slot: WorkspaceSlot) -> Iterator[None]:
        """A with block in which a plan is made or executed that shares its memory with other plans."""
        self.workspace_slot = workspace_slot
        try:
            yield
        finally:
            self.workspace_slot = None

    @staticmethod
    def private(nbytes: int) -> Array:
        """Host memory that no other rank reaches, as bytes (local)."""
        try:
            return np.empty(nbytes, np.uint8)
        except (MemoryError, ValueError):  # more than the machine has, or than NumPy can address
            raise errors.WorkspaceError(
                f"no memory for {nbytes:,} bytes on each rank; use more ranks, or smaller matrices"
            ) from None

    def has_room(self, nbytes: int) -> bool:
        """Whether `allocate` needs no new window; the same on all ranks (global)."""
        return not self.shared or self.arena.has_room(nbytes)

    @property
    def provisional(self) -> Provisional:
        """A with block whose allocations on this rank are undone if it raises an error, which all ranks then raise."""
        return self.arena.provisional

    # Arrays in the memory of near ranks

    def location_table(self) -> Location:
        """**Collective.** A table in which every rank of a node publishes the location of one of its arrays."""
        raise AssertionError(f"backend {self.name!r} reads nothing in place")

    def publish(self, location: Location, x: Array) -> bool:
        """Publish the location of x, for peers after the next agreement; false if x is not in a window (local)."""
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

    def peer_array(self, location: Location, peer: int, shape: tuple[int, int], dtype: Dtype, order: str) -> Array:
        """The array that a near peer published, in place (local)."""
        # The strides give the order; only backends that copy use `order`.
        window, offset, rows, columns = self.published(location, peer)
        arena: Any = self.arena
        array: Array = arena.view(peer, window, offset, shape, (rows, columns), dtype)
        return array

    @abstractmethod
    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order
    ) -> Array:
        """A tight array `offset` bytes into a near peer's, or this rank's, part of a symmetric block (local)."""

    def sync(self) -> None:  # noqa: B027 - nothing to do if messages order all accesses
        """Order this rank's accesses to shared memory of the hosts around a message (local)."""

    # The end

    def check(self) -> None:  # noqa: B027 - nothing to check if executions end when their call returns
        """Raise errors of earlier executions, which may go on after their call has returned (local)."""

    def synchronize(self, timeout: float | None = None) -> None:  # noqa: B027 - see `check`
        """Return when this rank has finished the executions that it has begun (local)."""

    def leaks(self) -> list[str]:
        """The source lines that allocated the symmetric memory of this rank to which Python objects still refer."""
        return self.arena.leaks()

    def close(self, *, free: bool) -> None:
        """Restore the BLAS threads and, if all ranks do it, free the shared memory."""
        liveness.end(self.agreement)
        self._blas.close()
        if hasattr(self, "arrays"):  # otherwise its constructor has failed
            self.arrays.close()
        if free:
            self.arena.close()
        if free or self.agreement.broken is None:
            self.channel.close()
            self.plain_channel.close()
            self.agreement.close()
        if free:
            self.peers.close()
        else:
            self.peers.abandon()
