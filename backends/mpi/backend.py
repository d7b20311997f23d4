"""The MPI backend: NumPy arrays, shared windows within a node, messages between nodes."""

from __future__ import annotations

import math
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends.allocator import call_site
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.dtypes import address_of
from pblas.backends.host_ranks import HostRanks
from pblas.backends.interop import host_array
from pblas.backends.mpi.channel import DelayedChannel
from pblas.backends.mpi.progress import Progress
from pblas.backends.mpi.push_engine import WindowEngine
from pblas.backends.mpi.shared_windows import Arena, Block
from pblas.backends.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import Location
    from pblas.backends.mpi.peers import MpiPeers
    from pblas.backends.peers import Peers
    from pblas.backends.push_engine import Engine

_PROBE_NBYTES = 2 << 20
"""Size of the message by which a context measures the link: larger than the burst that a limited link lets pass."""
_TAG_PROBE = 1030
LOCATION_NBYTES = 32  # four 64-bit integers: window, offset, strides


class MpiBackend(HostRanks):
    """Ranks of one communicator: symmetric memory, messages, and NumPy.

    Args:
        peers: the ranks of a communicator, which have all arrived (global).
        timeout: seconds that a rank waits for another (global).
        threads: BLAS threads of this rank; None for its share of the cores (local).
        transport: "auto" and "shared" use shared memory within a node, "message" never; with "auto" too little shared
            memory is no error (global).
        ranks_per_node: treat each group of this many ranks as a node, to test the transport between nodes (global).
        link: (latency in seconds, bandwidth in bytes per second) of an emulated network between nodes (global).
        push: write data into the memory of the peers that need it, instead of reading it there: on GPUs, and on CPUs
            in tests of the GPU protocol (global).
    """

    name = "mpi"
    peers: MpiPeers
    arena: Arena

    def __init__(
        self,
        peers: MpiPeers,
        *,
        timeout: float,
        threads: int | None,
        transport: str,
        ranks_per_node: int | None,
        link: tuple[float, float] | None,
        push: bool = False,
    ) -> None:
        node_size = 1 if transport == "message" else ranks_per_node

        def near(peers: Peers) -> tuple[int, ...]:
            start = 0 if node_size is None else peers.node.index(peers.rank) // node_size * node_size
            return peers.node[start : None if node_size is None else start + node_size]

        super().__init__(peers, timeout=timeout, threads=threads, near=near)
        self.push = push
        if self.push:
            try:
                self.require_one_node()
            except errors.BackendError:
                self._blas.close()
                self.agreement.close()
                self.peers.close()
                raise
        self.shared: bool = transport != "message" and self.most_near > 1
        self.falls_back: bool = transport == "auto"
        if link:
            self.channel = DelayedChannel(self.peers.comm, *link)
        node: Any = self.peers.comm.Split(self.near[0], self.rank)
        self.arena = Arena(self.agreement, node, self.near)
        self.arrays = HostArrays()
        self._progress = Progress(self.peers.comm) if Progress.is_possible() else None
        self._engine: Engine = WindowEngine(self, self.arena)

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info`."""
        return {
            "MPI library": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
            "MPI standard": ".".join(map(str, MPI.Get_version())),
            **super().describe(),
            "transport": "shared window within a node, messages between nodes" if self.shared else "messages",
            "messages progress": "also during products"
            if self._progress
            else "in calls of MPI only: no MULTIPLE threads",
        }

    def versions(self) -> tuple[str, ...]:
        """Names of hardware and libraries on which the times of plans depend (local)."""
        return "cpus", platform.machine(), f"{self.cores}cores", f"numpy{np.__version__}"

    def recorder(self) -> Recorder:
        """A recorder of the times of operations, by the host's clock (local)."""
        return Recorder(self)

    # Arrays

    def as_array(self, x: Any) -> Array:
        """X as a NumPy array; nothing is copied if it is one (local).

        Raises:
            ArgumentError: an array on a GPU, or a masked one.
            DTypeError: a tensor with elements that NumPy does not know.
            ValueError: x cannot be an array.
        """
        if hasattr(x, "__cuda_array_interface__"):
            raise errors.ArgumentError(
                "the array is on a GPU, a context with backend='mpi' multiplies in host memory; "
                "pass cupy.asnumpy(x), or make the context with backend='nvshmem'"
            )
        return host_array(x)

    def new(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An uninitialised private array in C order (local)."""
        return np.empty(shape, dtype)

    def is_here(self, x: Array) -> bool:
        """Whether an array is in host memory (local)."""
        return isinstance(x, np.ndarray)

    def view(self, memory: Any, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """An array at the start of memory from `allocate`, which the array keeps alive (local)."""
        raw = np.asarray(memory)
        if 0 in shape:
            return np.empty(shape, dtype, order="F" if strides[0] < strides[1] else "C")
        return np.ndarray(shape, dtype, raw.data, strides=strides)

    def reading(self, x: Array) -> Array:
        """X itself, which is in host memory (local)."""
        return x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        """A with block that yields x itself (local)."""
        return nullcontext(x)

    def copy(self, x: Array, z: Array) -> None:
        """Z := X, of the same shape and dtype (local)."""
        z[...] = x

    def clear(self, x: Array) -> None:
        """X := 0 (local)."""
        x[...] = 0

    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X) that cannot be written (local)."""
        copy: Array = np.conj(x)
        copy.flags.writeable = False
        return copy

    def address(self, x: Array) -> int:
        """Address of the first element of x (local)."""
        return address_of(x)

    def shadow(self, x: Array) -> Array:
        """X itself, which is in host memory (local)."""
        return x

    def engine(self, queue: int | None = None) -> Engine:
        """The engine that runs plans of the push transport, of all queues one after the other (local)."""
        return self._engine

    def engines(self) -> Iterable[Engine]:
        """The engines that have run plans of the push transport (local)."""
        return (self._engine,)

    # Messages

    def measured_bandwidth(self) -> float:
        """**Collective.** Bytes per second from rank 0 to the first far rank, a power of two; 0 without far ranks."""
        if self.most_near == self.size:
            return 0.0
        far = self.broadcast_object(min(set(range(self.size)) - set(self.near)), 0)
        seconds = 0.0
        for nbytes in (1, _PROBE_NBYTES):  # the first message opens the connection
            start = time.monotonic()
            self._echo(far, nbytes)
            seconds = max(time.monotonic() - start, 1e-6)
        return float(self.broadcast_object(2.0 ** round(math.log2(_PROBE_NBYTES / seconds)), 0))

    def _echo(self, far: int, nbytes: int) -> None:
        """Send a message from rank 0 to rank `far`, which answers with a byte; nothing on other ranks."""
        message, answer = (np.zeros((n, 1), np.uint8) for n in (nbytes, 1))
        channel, step = self.channel, "Context: measure the link"
        if self.rank == 0:
            for transfer in (channel.send(message, far, _TAG_PROBE), channel.receive(answer, far, _TAG_PROBE)):
                self.wait(transfer.done, step)
        elif self.rank == far:
            self.wait(channel.receive(message, 0, _TAG_PROBE).done, step)
            self.wait(channel.send(answer, 0, _TAG_PROBE).done, step)

    def progressing(self) -> AbstractContextManager[None]:
        """A with block in which MPI moves messages while this rank computes (local)."""
        return nullcontext() if self._progress is None else self._progress

    # Symmetric memory

    def is_near(self, peer: int) -> bool:
        """Whether this rank reads and writes the memory of `peer` in place."""
        return self.shared and peer in self.near and peer != self.rank

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Symmetric memory in a window, or private memory if ranks share none."""
        return self.arena.allocate(nbytes, call_site) if self.shared else self.private(nbytes)

    def location_table(self) -> Location:
        """**Collective.** A table in which every rank of a node publishes the location of one of its arrays."""
        block = self.arena.allocate(LOCATION_NBYTES, call_site)
        entries: list[Any] = [None] * self.size
        for peer in self.near:
            place, strides = (block.window, block.offset), (LOCATION_NBYTES, 8)
            entries[peer] = self.arena.view(peer, *place, (1, 4), strides, np.dtype(np.int64))[0]
        return block, entries

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """A tight array `offset` bytes into a near peer's, or this rank's, part of a symmetric block (local)."""
        if not isinstance(block, Block):
            return np.ndarray(shape, dtype, block.data, offset, order=order)
        size = dtype.itemsize
        strides = (size, size * shape[0]) if order == "F" else (size * shape[1], size)
        array: Array = self.arena.view(peer, block.window, block.offset + offset, shape, strides, dtype)
        return array

    def sync(self) -> None:
        """Order this rank's accesses to shared memory around a message (local)."""
        if self.shared:
            self.arena.sync()

    # The end

    def leaks(self) -> list[str]:
        """The source lines that allocated the symmetric memory of this rank to which Python objects still refer."""
        self._engine.close()
        return super().leaks()

    def close(self, *, free: bool) -> None:
        """See `HostRanks.close`."""
        if self._progress is not None:
            self._progress.close()
        super().close(free=free)
