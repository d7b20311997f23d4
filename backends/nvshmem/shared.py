"""Resources that the engines of a context share: kernels, products, and the watchdog."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda.gemm import Gemm
from pblas.backends.nvshmem.fault import REFUSED, Fault, waited
from pblas.backends.nvshmem.kernels import LONGEST, RECORD, Kernels, Watch
from pblas.backends.nvshmem.watchdog import Watchdog
from pblas.backends.nvshmem.workspace import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.agreement import AgreedError
    from pblas.backends.allocator import Block
    from pblas.backends.cuda.base import GpuBackend
    from pblas.backends.nvshmem.heap import Heap
    from pblas.backends.nvshmem.startup import Nvshmem

_REFUSAL_SECONDS = 5.0  # time for the error message of a rank that rejected its arguments


class EngineResources:
    """**Collective.** Loads the kernels, and begins to watch over executions.

    Args:
        ranks: the ranks of the context (global).
        heap: their symmetric memory (global).
        nvshmem: NVSHMEM of this process (local).
    """

    def __init__(self, ranks: GpuBackend, heap: Heap, nvshmem: Nvshmem) -> None:
        self.ranks: GpuBackend = ranks
        self.heap: Heap = heap
        self.nvshmem: Nvshmem = nvshmem
        self.rank: int = ranks.rank
        self.size: int = ranks.size
        self.prepare("load the GPU's kernels", self._load)
        self.gemm.share(ranks)
        block = heap.allocate(ALIGNMENT, "the engine's abort word")
        self._memory: Block | None = block
        words = heap.addresses(block)
        runtime.memsetAsync(block.address, 0, block.nbytes, self.origin.ptr)
        self.origin.synchronize()
        record = np.frombuffer(self._record, RECORD, 1)
        record["code"] = 0
        timeout = ranks.agreement.timeout
        self.watchdog: Watchdog = Watchdog(self.rank, self.size, words, record, timeout)
        self.watch: Watch = Watch(int(min(timeout * 1e9, LONGEST)), words[self.rank], self._record.ptr)

    def prepare(self, call: str, body: Callable[[], None]) -> None:
        """**Collective.** Run a local step on this rank's GPU. All ranks raise an error of any rank."""
        error: errors.PblasError | None = None
        try:
            body()
        except errors.PblasError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the other ranks must not wait
            error = errors.BackendError(f"{call}: the GPU of rank {self.rank}: {type(caught).__name__}: {caught}")
        self.ranks.agree(call, error)

    def _load(self) -> None:
        self.kernels: Kernels = Kernels()
        self.gemm: Gemm = Gemm(lanes=())
        if self.rank == 0:
            self.gemm.load()
        self.origin: Any = cupy.cuda.Stream(non_blocking=True)
        self._record = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
        self.kernels.load(self.origin.ptr)
        self.origin.synchronize()

    def reject(self, error: errors.PblasError) -> None:
        """Raise an error on this rank. The peers' streams stop waiting, and the peers' next call raises (local)."""
        self.ranks.agreement.reject(error, self._refuse)

    def abort(self, error: AgreedError) -> NoReturn:
        """Raise an error in the middle of a call; as `reject`, but the context breaks in any case (local)."""
        self.ranks.agreement.abort(error, self._refuse)

    def _refuse(self) -> None:
        """Tell the peers' streams that this rank has an error, which it sends as a message (local)."""
        self.watchdog.tell(Fault(self.rank, (REFUSED,), 0.0))

    def settle(self, timeout: float | None = None) -> None:
        """Return when this rank's GPU has finished all executions, or raise PeerTimeout (local).

        A rank that leaves gives a shorter timeout than the context's. It aborts the executions when that has passed,
        sooner than a kernel of its own gives up on a peer: the peers then learn which rank has left.
        """
        leave = self.watchdog.leave if timeout is not None else lambda: None
        step = "end of the last execution on the GPU"
        self.ranks.agreement.wait(self.watchdog.is_idle, step, timeout, before_giving_up=leave)
        self.check()

    def check(self) -> None:
        """Raise the error of earlier executions, if any of them failed (local)."""
        if self.has_fault():
            self.raise_fault()

    def has_fault(self) -> bool:
        """Whether an execution has failed (local)."""
        return self.watchdog.fault is not None or self.watchdog.gave_up

    def raise_fault(self) -> None:
        """Raise the error of a broken context: if a rank rejected its arguments, its error."""
        agreement, end = self.ranks.agreement, time.monotonic() + _REFUSAL_SECONDS
        while self.watchdog.fault is None and agreement.broken is None and time.monotonic() < end:
            time.sleep(1e-3)
        fault = self.watchdog.fault
        if agreement.broken is None:
            assert fault is not None, "a kernel that gave up is soon a fault"
            if fault.refused:
                agreement.wait(lambda: False, "execute", _REFUSAL_SECONDS)
            agreement.broken = fault.text(self.size)
            self.nvshmem.abandon(agreement.broken)
            error, step = errors.PeerTimeout(agreement.broken), waited(self.rank, self.watchdog.phase)
            if step is not None:  # the text is the same on all ranks
                error.add_note(step)
            raise error
        raise errors.ContextError(f"execute: the context is broken since this happened: {agreement.broken}")

    def close(self) -> None:
        """Free the resources; no execution uses them any more (local)."""
        self.gemm.close()
        self._memory = None
