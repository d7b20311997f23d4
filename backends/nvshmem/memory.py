"""Memory of the executions of a queue: private memory of this rank, and workspaces that peers access."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.allocator import call_site
from pblas.backends.engine_limits import MAX_TILE_FLAGS
from pblas.backends.nvshmem.kernels.arguments import push_counter_nbytes
from pblas.backends.nvshmem.workspace import FLAG_NBYTES, PARITIES, Workspace, layout, padded

if TYPE_CHECKING:
    from pblas.backends.dtypes import GpuArray
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.shared import EngineResources


def private(nbytes: int, device: int) -> GpuArray:
    """Private bytes of this rank, not from the user's memory pool (local)."""
    try:
        memory = cupy.cuda.Memory(max(nbytes, 1))
    except runtime.CUDARuntimeError as error:
        raise errors.WorkspaceError(f"GPU {device}: {nbytes} bytes: {error}") from None
    return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))


class PrivateMemory:
    """Private words and scratch memory of this rank.

    Executions in graphs of the caller's (`captured`) have words and scratch of their own.
    """

    def __init__(self, common: EngineResources) -> None:
        self._device = common.nvshmem.device.index
        self.epoch: GpuArray = self.new(FLAG_NBYTES)  # the barrier's count of calls
        self.counters: dict[bool, GpuArray] = {captured: self.new(push_counter_nbytes()) for captured in (False, True)}
        """Counters of pushes."""
        self.marks: dict[bool, GpuArray] = {
            captured: self.new(MAX_TILE_FLAGS * FLAG_NBYTES) for captured in (False, True)
        }
        """Tile flags: words that GEMMs set."""
        self._scratch: dict[bool, GpuArray] = {}
        for array in (self.epoch, *self.counters.values(), *self.marks.values()):
            runtime.memsetAsync(array.data.ptr, 0, array.nbytes, common.origin.ptr)
        common.origin.synchronize()

    def new(self, nbytes: int) -> GpuArray:
        """Private bytes of this rank (local)."""
        return private(nbytes, self._device)

    def scratch(self, nbytes: int, *, captured: bool) -> GpuArray:
        """At least `nbytes` bytes of scratch, which the executions of all plans use one after the other (local)."""
        array = self._scratch.get(captured)
        if array is None or array.nbytes < nbytes:
            self._scratch[captured] = array = self.new(nbytes)
        return array

    def counter(self, *, captured: bool) -> int:
        """Address of the counters of pushes (local)."""
        return int(self.counters[captured].data.ptr)

    def mark(self, number: int, *, captured: bool) -> int:
        """Address of a tile flag (local)."""
        assert number < MAX_TILE_FLAGS
        return int(self.marks[captured].data.ptr) + number * FLAG_NBYTES


class Workspaces:
    """The workspaces of a queue: one for its executions, and others for the caller's graphs."""

    def __init__(self, common: EngineResources, executions: Executions) -> None:
        self._resources, self._executions = common, executions
        self._current: dict[int, Workspace] = {}  # by the number of parities
        self.captures: list[Workspace] = []  # workspaces of the caller's graphs, which live as long as the queue

    def reserve(self, nbytes: int, phases: int, parities: int = PARITIES) -> Workspace:
        """**Collective.** The queue's workspace, as `Engine.reserve`."""
        current = self._current.get(parities)
        if current is None or current.nbytes < nbytes:
            self._executions.follow_all()
            self._resources.origin.synchronize()
            current = self._current[parities] = self._new(nbytes, phases, parities)
        return current

    def of_captures(self, like: Workspace) -> Workspace:
        """The latest workspace of the caller's graphs, with at least as many bytes as `like`.

        **Collective** if there is no such workspace yet or the latest one is smaller: all ranks then allocate one.
        """
        if not self.captures or self.captures[-1].nbytes < like.nbytes:
            self.captures.append(self._new(like.nbytes, like.phases, PARITIES))
        return self.captures[-1]

    def _new(self, nbytes: int, phases: int, parities: int) -> Workspace:
        common, nbytes = self._resources, padded(nbytes)
        flags, shot, parity_nbytes = layout(common.size, nbytes, phases)
        block = common.heap.allocate(parities * parity_nbytes, call_site)
        common.ranks.agree("make room for a workspace")  # peers may still read a closed plan's memory there
        work = Workspace(block, common.heap.addresses(block), nbytes, phases, parities)
        for parity in range(parities):  # the device is not synchronised: the caller may be capturing
            runtime.memsetAsync(work.peers[common.rank] + parity * work.pitch, 0, flags + shot, common.origin.ptr)
        common.origin.synchronize()
        common.ranks.agree("make a workspace")  # no flag is set before all are reset
        common.watchdog.watch(work)
        return work

    def clear(self) -> None:
        """Drop the workspaces (local)."""
        self._current, self.captures = {}, []
