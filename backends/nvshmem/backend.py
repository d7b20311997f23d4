"""The NVSHMEM backend: CuPy arrays in symmetric memory on the GPUs of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import cupy
from nvmath.bindings import cublasLt

from pblas import errors
from pblas.backends.allocator import NoBlocks, call_site
from pblas.backends.cuda.base import GpuBackend
from pblas.backends.cuda.channel import DeviceChannel
from pblas.backends.cuda.transfer import new_array
from pblas.backends.host_ranks import HostScratch, Location
from pblas.backends.nvshmem.collective_launch import CollectiveLaunch
from pblas.backends.nvshmem.heap import Heap, Tables, shared_by_hosts
from pblas.backends.nvshmem.hopper.gemm import TreeGemm
from pblas.backends.nvshmem.kernels.arguments import MAX_RANKS
from pblas.backends.nvshmem.shared import EngineResources
from pblas.backends.nvshmem.startup import join
from pblas.backends.nvshmem.stream_engine import StreamEngine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.local_step import AgreedError
    from pblas.backends.transport import Transport


class NvshmemBackend(GpuBackend):
    """Ranks with a GPU each: agreement of the hosts, symmetric memory on the GPUs."""

    name = "nvshmem"
    shared = True
    push = True
    arena: Any

    def __init__(self, peers: Transport, *, device: int | None, timeout: float, threads: int | None) -> None:
        super().__init__(peers, timeout=timeout, threads=threads)
        self.arena = NoBlocks()
        self._resources: EngineResources | None = None
        self._engines: dict[int | None, StreamEngine] = {}
        try:
            self.require_one_node()
            if self.size > MAX_RANKS:  # on every rank
                raise errors.BackendError(f"Context: {self.size} GPUs; kernels talk to {MAX_RANKS} at most")
            self.nvshmem, self.pes = join(self.agreement, device)
            self.use(self.nvshmem.device)
            lacks = (int(not self.gpu.has_waiting_tiles),)
            self.tiles: bool = not any(self.agreement.agree("Context: compare GPUs", maxima=lacks).maxima)
            self.arrays.tree_gemm = TreeGemm if self.tiles else None
            order = self.nvshmem.order
            self.arrays.launched = lambda: order.last
        except errors.PblasError:  # on every rank
            super().close(free=self.agreement.broken is None)
            raise
        self._tables = Tables(self.agreement)
        self.arena = Heap(self.agreement, self.nvshmem, self.pes)
        self.channel = DeviceChannel(self.plain_channel, self.arrays)

    def describe(self) -> dict[str, str]:
        return super().describe() | {
            "transport": "NVSHMEM within a node: copies into the memory of peers, and out of it",
            "NVSHMEM": f"{self.nvshmem.version}, {self.nvshmem.nbytes} bytes of symmetric memory on every GPU",
        }

    def versions(self) -> tuple[str, ...]:
        gpu = self.gpu
        libraries = f"cublaslt{cublasLt.get_version()}", f"nvshmem{self.nvshmem.version}"
        return gpu.name, f"{gpu.multiprocessors}sms", f"driver{gpu.driver}", *libraries

    # Arrays

    def view(self, memory: object, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        block: Any = memory
        place = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(block.address, block.nbytes, block, self.device), 0)
        array: Array = new_array(shape, dtype, place, strides)
        return array

    # Executions

    def engine(self, queue: int | None = None) -> StreamEngine:
        """The engine of a queue. **Collective** at first: it takes symmetric memory, and the first loads kernels."""
        engine = self._engines.get(queue)
        if engine is None:
            if self._resources is None:
                self._resources = EngineResources(self, self.arena, self.nvshmem)
            self._engines[queue] = engine = StreamEngine(self._resources, queue)
        return engine

    def engines(self) -> Iterable[StreamEngine]:
        """The engines of all queues so far, and the engine of executions that run alone."""
        self.engine()
        return self._engines.values()

    def collectives(self) -> CollectiveLaunch:
        return CollectiveLaunch(self.engine())

    def reject(self, error: AgreedError) -> None:
        """Raise an error on this rank. The peers' streams stop waiting, and the peers' next call raises (local)."""
        if self._resources is None:
            super().reject(error)
        else:
            self._resources.reject(error)

    def abort(self, error: AgreedError) -> NoReturn:
        """As `reject` in the middle of a call: the context breaks in any case (local)."""
        if self._resources is None:
            super().abort(error)
        self._resources.abort(error)

    # Symmetric memory

    def is_near(self, peer: int) -> bool:
        """Whether this rank's GPU writes the memory of the GPU of `peer`: true for all peers."""
        return peer != self.rank

    def allocate(self, nbytes: int) -> Any:
        return self.arena.allocate(nbytes, call_site)

    def host_scratch(self, nbytes: int) -> HostScratch:
        memory = shared_by_hosts(self.agreement, nbytes, "make staging memory") if nbytes else None
        return HostScratch(memory, {} if memory is None else dict(enumerate(memory)))

    def location_table(self) -> Location:
        """**Collective.** A line of host memory in which every rank stores the address of one of its arrays.

        To find a line that is free on all ranks, a block of symmetric memory is allocated, and its number taken. Both
        are free again once all ranks have dropped the block.
        """
        block = self.arena.allocate(1, call_site)
        return block, self._tables.lines(block.slot)

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order
    ) -> Array:
        size = dtype.itemsize
        strides = (size, size * shape[0]) if order == "F" else (size * shape[1], size)
        array: Array = self.arena.view(peer, block.window, block.offset + offset, shape, strides, dtype)
        return array

    # The end

    def synchronize(self, timeout: float | None = None) -> None:
        """Return when this rank's GPU has finished all executions, or raise PeerTimeout (local).

        Peers write into this rank's memory during executions only. Once all ranks have returned, it may be freed.
        """
        if self._resources is not None:
            self._resources.synchronize(timeout)

    def check(self) -> None:
        if self._resources is not None:
            self._resources.check()

    def leaks(self) -> list[str]:
        if self._resources is not None:
            self._resources.watchdog.close()
            fault = self._resources.has_fault()  # kernels that still wait use this memory
            while self._engines:
                _, engine = self._engines.popitem()
                if not fault:
                    engine.close()
                del engine  # and the memory of its last execution
            if not fault:
                self._resources.close()
            self._resources = None
        return super().leaks() if self.agreement.broken is None else []  # a late peer may still write there

    def close(self, *, free: bool) -> None:
        """Close the hosts' tables also; see HostRanks.close."""
        self._tables.close()
        super().close(free=free)
