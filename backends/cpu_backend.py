"""The backend of CPUs: NumPy arrays, shared memory within a node, messages between nodes, over any `Transport`."""

from __future__ import annotations

import math
import platform
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.allocator import call_site
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.delayed_channel import DelayedChannel
from pblas.backends.dtypes import Array, Dtype, Order, Places, address_of, index_at
from pblas.backends.host_ranks import HostRanks, Location
from pblas.backends.interop import borrowed, host_array, is_tensor
from pblas.backends.recorder import Recorder
from pblas.backends.shared_windows import Arena, Block

if TYPE_CHECKING:
    from pblas.backends.transport import Transport

_PROBE_NBYTES = 2 << 20
"""Size of the message by which a context measures the link: larger than the burst that a limited link lets pass."""
_TAG_PROBE = 1030
LOCATION_NBYTES = 32  # four 64-bit integers: window, offset, strides


class CpuBackend(HostRanks):
    """Ranks with NumPy arrays."""

    arena: Arena

    def __init__(
        self,
        peers: Transport,  # the ranks, which have all arrived (global)
        *,
        timeout: float,  # seconds that a rank waits for another (global)
        threads: int | None,  # BLAS threads of this rank; None for its share of the cores (local)
        # "auto" and "shared" use shared memory within a node, "message" never; with "auto" too little shared memory is
        # no error (global)
        transport: str,
        # treat each group of this many ranks as a node, to test the transport between nodes (global)
        ranks_per_node: int | None,
        # (latency in seconds, bandwidth in bytes per second) of an emulated network between nodes (global)
        link: tuple[float, float] | None,
    ) -> None:
        node_size = 1 if transport == "message" else ranks_per_node

        def near(peers: Transport) -> tuple[int, ...]:
            start = 0 if node_size is None else peers.node.index(peers.rank) // node_size * node_size
            return peers.node[start : None if node_size is None else start + node_size]

        super().__init__(peers, timeout=timeout, threads=threads, near=near)
        self.name = self.peers.name
        self.shared: bool = transport != "message" and self.most_near > 1
        self.falls_back: bool = transport == "auto"
        if link:
            self.channel = DelayedChannel(self.plain_channel, *link)
        self.arena = Arena(self.agreement, self.peers.node_memory(self.near, self.agreement), self.near)
        self.arrays = HostArrays()

    def form_alike(self) -> str:
        from pblas.backends.cpu.uniform import UniformArrays

        self.arrays = UniformArrays(self.threads)
        return self.arrays.tested()

    def describe(self) -> dict[str, str]:
        return {
            **self.peers.describe(),
            **super().describe(),
            "transport": "shared memory within a node, messages between nodes" if self.shared else "messages",
        }

    def versions(self) -> tuple[str, ...]:
        return "cpus", platform.machine(), f"{self.cores}cores", f"numpy{np.__version__}"

    def recorder(self) -> Recorder:
        return Recorder(self)

    # Arrays

    def as_array(self, x: object) -> Array:
        if not is_tensor(x) and hasattr(x, "__cuda_array_interface__"):  # which takes a tensor long to say
            raise errors.ArgumentError(
                f"the array is on a GPU, a context with backend={self.name!r} multiplies in host memory; "
                "pass cupy.asnumpy(x), or make the context with backend='nvshmem'"
            )
        return host_array(x)

    def new(self, shape: tuple[int, ...], dtype: Dtype) -> Array:
        return np.empty(shape, dtype)

    def is_here(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def borrowed(self, x: Array) -> Array:
        return borrowed(x)

    def view(self, memory: object, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        raw = np.asarray(memory)
        if 0 in shape:
            return np.empty(shape, dtype, order="F" if strides[0] < strides[1] else "C")
        return np.ndarray(shape, dtype, raw.data, strides=strides)

    def reading(self, x: Array) -> Array:
        return x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        return nullcontext(x)

    def copy(self, x: Array, z: Array, *, of: Places | None = None, at: Places | None = None) -> None:
        z[... if at is None else index_at(at)] = x if of is None else x[index_at(of)]

    def fill(self, x: Array, value: complex = 0) -> None:
        with np.errstate(all="ignore"):
            x[...] = value

    def conjugated(self, x: Array) -> Array:
        copy: Array = np.conj(x)
        copy.flags.writeable = False
        return copy

    def address(self, x: Array) -> int:
        return address_of(x)

    def memory_of(self, x: Array) -> Array:
        return x

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
        return self.peers.progressing()

    # Symmetric memory

    def is_near(self, peer: int) -> bool:
        return self.shared and peer in self.near and peer != self.rank

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Symmetric memory in a window, or private memory if ranks share none."""
        return self.arena.allocate(nbytes, call_site) if self.shared else self.private(nbytes)

    def location_table(self) -> Location:
        block = self.arena.allocate(LOCATION_NBYTES, call_site)
        entries: list[Any] = [None] * self.size
        for peer in self.near:
            place, strides = (block.window, block.offset), (LOCATION_NBYTES, 8)
            entries[peer] = self.arena.view(peer, *place, (1, 4), strides, np.dtype(np.int64))[0]
        return block, entries

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order
    ) -> Array:
        if not isinstance(block, Block):
            return np.ndarray(shape, dtype, block.data, offset, order=order)
        size = dtype.itemsize
        strides = (size, size * shape[0]) if order == "F" else (size * shape[1], size)
        array: Array = self.arena.view(peer, block.window, block.offset + offset, shape, strides, dtype)
        return array

    def sync(self) -> None:
        if self.shared:
            self.arena.memory.sync()
