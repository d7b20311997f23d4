"""Memory of the executions of a queue: of this rank alone, and workspaces that peers reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.allocator import call_site
from pblas.backends.lanes import MAX_TILE_FLAGS
from pblas.backends.nvshmem.kernels import push_counter_nbytes
from pblas.backends.nvshmem.workspace import FLAG_NBYTES, PARITIES, Workspace, layout, padded

if TYPE_CHECKING:
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.shared import EngineResources


def private(nbytes: int, device: int) -> Any:
    """Bytes of this rank alone, not from a pool of the user's (local).

    Raises:
        WorkspaceError: the GPU has no such memory.
    """
    try:
        memory = cupy.cuda.Memory(max(nbytes, 1))
    except runtime.CUDARuntimeError as error:
        raise errors.WorkspaceError(f"GPU {device}: {nbytes} bytes: {error}") from None
    return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))


class PrivateMemory:
    """Words and scratch of this rank alone. Executions in graphs of the caller's (`captured`) have some of their own.

    Args:
        common: what the context's engines share (local).
    """

    def __init__(self, common: EngineResources) -> None:
        self._device = common.nvshmem.device.index
        self.epoch = self.new(FLAG_NBYTES)
        """What the barrier counts in."""
        self.counters = {captured: self.new(push_counter_nbytes()) for captured in (False, True)}
        """What pushes count in."""
        self.marks = {captured: self.new(MAX_TILE_FLAGS * FLAG_NBYTES) for captured in (False, True)}
        """Words that products set."""
        self._scratch: dict[bool, Any] = {}
        for array in (self.epoch, *self.counters.values(), *self.marks.values()):
            runtime.memsetAsync(array.data.ptr, 0, array.nbytes, common.origin.ptr)
        common.origin.synchronize()

    def new(self, nbytes: int) -> Any:
        """Bytes of this rank alone (local)."""
        return private(nbytes, self._device)

    def scratch(self, nbytes: int, *, captured: bool) -> Any:
        """So many bytes or more, which the executions of all plans use one after the other (local)."""
        array = self._scratch.get(captured)
        if array is None or array.nbytes < nbytes:
            self._scratch[captured] = array = self.new(nbytes)
        return array

    def counter(self, *, captured: bool) -> int:
        """Address of what pushes count in (local)."""
        return int(self.counters[captured].data.ptr)

    def mark(self, number: int, *, captured: bool) -> int:
        """Address of a word that a product sets (local)."""
        assert number < MAX_TILE_FLAGS
        return int(self.marks[captured].data.ptr) + number * FLAG_NBYTES


class Workspaces:
    """The workspaces of a queue: that of its executions, and those of the caller's graphs.

    Args:
        common: what the context's engines share (global).
        executions: of the queue (local).
    """

    def __init__(self, common: EngineResources, executions: Executions) -> None:
        self._resources, self._executions = common, executions
        self._current: Workspace | None = None
        self.captures: list[Workspace] = []
        """Those of the caller's own graphs, which nobody says the end of."""

    def reserve(self, nbytes: int, phases: int) -> Workspace:
        """**Collective.** The queue's workspace, as `Engine.reserve`."""
        if self._current is None or self._current.nbytes < nbytes:
            self._executions.follow_all()
            self._resources.origin.synchronize()
            self._current = self._new(nbytes, phases)
        return self._current

    def of_captures(self, like: Workspace) -> Workspace:
        """**Collective** at first. The workspace of the caller's graphs, as large as another one."""
        if not self.captures or self.captures[-1].nbytes < like.nbytes:
            self.captures.append(self._new(like.nbytes, like.phases))
        return self.captures[-1]

    def _new(self, nbytes: int, phases: int) -> Workspace:
        common, nbytes = self._resources, padded(nbytes)
        flags, shot, parity_nbytes = layout(common.size, nbytes, phases)
        block = common.heap.allocate(PARITIES * parity_nbytes, call_site)
        common.ranks.agree("make room for a workspace")  # a closed plan's may have lain there, which peers still read
        work = Workspace(block, common.heap.addresses(block), nbytes, phases)
        for parity in range(PARITIES):  # the device is not synchronised: the caller may be capturing
            runtime.memsetAsync(work.peers[common.rank] + parity * work.pitch, 0, flags + shot, common.origin.ptr)
        common.origin.synchronize()
        common.ranks.agree("make a workspace")  # no flag is set before all are reset
        common.watchdog.watch(work)
        return work

    def clear(self) -> None:
        """Forget them (local)."""
        self._current, self.captures = None, []
