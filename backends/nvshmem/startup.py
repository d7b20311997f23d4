"""Start and end of NVSHMEM in this process: it starts once over one communicator, and pblas ends it before MPI.

A process can initialise NVSHMEM only once, over fixed ranks and with one GPU. This module therefore has the only state
of pblas that belongs to no context: whether NVSHMEM runs, and its memory. pblas ends NVSHMEM only if pblas started it.

NVSHMEM allocates collectively over all PEs (NVSHMEM's word for ranks). pblas therefore allocates one slab at the start.
A context may have fewer ranks; its ranks agree on the places of its regions in the slab (`heap.py`).
"""

from __future__ import annotations

import os
import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.agreement import Agreement, rendezvous
from pblas.backends.cuda import device as gpu
from pblas.backends.gpu_info import INSTALL, Gpu, shared_device_error, uneven_sharing_error
from pblas.backends.nvshmem.settings import (
    SHARE_VARIABLE,
    Pool,
    environment,
    heap_error,
    limit_error,
    may_share_gpu,
    rounded,
    shortage,
    symmetric_nbytes,
)
from pblas.backends.settings import TIMEOUT, check_start

if TYPE_CHECKING:
    from pblas.backends.transport import Transport


_SHARED = "ranks share a GPU, whose time slices they get in turn; results are right, times mean nothing"
_INITIALISED = 2  # NVSHMEM_STATUS_IS_INITIALIZED; larger values tell how many PEs share a GPU
_MAX_STATUS = 4
_LEAST_DEADLINE = 60.0  # seconds for NVSHMEM's start, which takes up to 10 (8 H200)


class Nvshmem:
    """NVSHMEM as this process has it."""

    def __init__(self, agreement: Agreement, device: Gpu, bindings: Any, version: str, *, ours: bool) -> None:
        self.agreement: Agreement = agreement
        self.device: Gpu = device
        self.version: str = version
        self.ours: bool = ours
        self._bindings = bindings
        self.pe: int = int(bindings.my_pe())
        self.npes: int = int(bindings.n_pes())
        self.pool: Pool = Pool()
        self.order: Order = Order()  # order of the executions of all contexts of this process (local)
        self._abandoned: str | None = None

    @property
    def nbytes(self) -> int:
        """Symmetric memory that contexts share (global)."""
        return self.pool.nbytes

    def peer(self, address: int, pe: int) -> int:
        """Address on another PE that corresponds to an address here, as mapped here; 0 if it is not mapped (local)."""
        return int(self._bindings.ptr(address, pe))

    def add_segment(self, nbytes: int) -> None:
        """**Collective** over all PEs.

        More symmetric memory; it stays until NVSHMEM ends, and later contexts use it.
        """
        size = rounded(nbytes)
        self._agree(f"take symmetric memory\nbytes={size}", self._obstacle(size))
        address = int(self._bindings.malloc(size))
        self._agree("symmetric memory is taken", None if address else heap_error(size, self.nbytes, ours=self.ours))
        self.pool.add(size, address)

    def _obstacle(self, nbytes: int) -> errors.PblasError | None:
        """The error if this PE cannot allocate `nbytes` more bytes, else None (local).

        The check precedes the allocation: if the heap cannot grow on one PE, NVSHMEM destroys it there, and the other
        PEs wait for it.
        """
        grows = self.device.virtual_memory and self.device.rdma_virtual_memory
        if not self.pool.segments and not (grows and not self.ours):
            return None  # the slab, which the start has checked, or a part of an existing heap
        try:
            error = limit_error(nbytes, self.nbytes)
            return error or shortage(nbytes, gpu.free_nbytes(), self.device, self.nbytes)
        except errors.PblasError as caught:
            return caught
        except Exception as caught:  # noqa: BLE001 - a failed GPU raises any exception
            return _failure("the GPU cannot be used", caught)

    def _agree(self, call: str, error: errors.PblasError | None) -> None:
        if self.agreement.broken is not None:
            raise errors.BackendError(f"NVSHMEM cannot be used any more since this happened: {self.agreement.broken}")
        self.agreement.agree(call, error)

    def check(self, nbytes: int | None = None, device: int | None = None) -> None:
        """Raise BackendError if NVSHMEM runs already with other settings than these (local)."""
        if nbytes is not None and rounded(nbytes) > self.nbytes:
            raise errors.BackendError(
                f"NVSHMEM already runs with {self.nbytes} bytes of symmetric memory, but {nbytes} were requested; "
                f"call init_nvshmem before the first context"
            )
        if device is not None and device != self.device.index:
            raise errors.BackendError(
                f"NVSHMEM already runs on GPU {self.device.index} of this rank, but device={device} was requested; "
                f"a process has one GPU: pass init_nvshmem(device=...) before the first context"
            )

    def abandon(self, reason: str) -> None:
        """Leave NVSHMEM running at the end of the process: its GPU has failed, or a peer is gone (local)."""
        self._abandoned = self._abandoned or reason

    def stop(self) -> None:
        """**Collective** over all PEs. End NVSHMEM if pblas started it and all PEs arrive; else leave it (global).

        Otherwise NVSHMEM ends with the process. A rank that waits here would wait in MPI's Finalize as well.
        """
        global _process  # noqa: PLW0603 - see the module's docstring
        if _process is not self:
            return
        _process = None
        error = errors.BackendError(self._abandoned) if self._abandoned else None
        with suppress(errors.PblasError):
            self._agree("end NVSHMEM", error)
            if self.ours and self._bindings.init_status() >= _INITIALISED:  # the user may have ended it
                _finalize()
            self.agreement.close()
            self.agreement.peers.close()


_process: Nvshmem | None = None


def running() -> Nvshmem | None:
    """NVSHMEM if pblas has started or adopted it in this process (local)."""
    return _process


def start(
    peers: Transport, nbytes: int | None = None, device: int | None = None, *, timeout: float = TIMEOUT
) -> Nvshmem:
    """**Collective.** NVSHMEM, started over some ranks unless it runs already."""
    global _process  # noqa: PLW0603 - see the module's docstring
    error: errors.PblasError | None = None
    try:
        check_start(nbytes, device, timeout)
        if _process is not None:
            _process.check(nbytes, device)
    except errors.PblasError as caught:
        error = caught
    runs, patience = int(_process is not None), TIMEOUT if error else timeout
    try:
        some, none = rendezvous(peers, "init_nvshmem", patience, error, (runs, 1 - runs)).maxima
    except errors.PeerTimeout as caught:
        raise errors.PeerTimeout(
            f"{caught}. NVSHMEM starts over all ranks of COMM_WORLD, in their first context; "
            f"pblas.init_nvshmem(comm) starts it over fewer"
        ) from None
    if some and none:
        raise errors.BackendError(
            "init_nvshmem: NVSHMEM runs on some ranks of the communicator only; pass the one that it was started over"
        )
    if _process is not None:
        return _process
    agreement = Agreement(peers.duplicate(), max(timeout, TIMEOUT))  # it outlives the context that starts it
    try:
        _process = _start(agreement, nbytes, device)
    except errors.PblasError:
        if agreement.broken is None:  # raised on every rank
            agreement.close()
            agreement.peers.close()
        raise
    agreement.peers.before_end(_process.stop)
    return _process


def join(agreement: Agreement, device: int | None = None) -> tuple[Nvshmem, tuple[int, ...]]:
    """**Collective.** NVSHMEM for the ranks of a context, started over all of the job if it does not run."""
    error, existing = None, running()
    try:
        if existing is not None:
            existing.check(device=device)
    except errors.BackendError as caught:
        error = caught
    runs = int(existing is not None)
    some, none = agreement.agree("Context: NVSHMEM", error, maxima=(runs, 1 - runs)).maxima
    if some and none:
        raise errors.BackendError(
            "Context: NVSHMEM runs on some ranks of the context only; call pblas.init_nvshmem() on all ranks, or "
            "pblas.init_nvshmem(comm) with all ranks that multiply together"
        )
    nvshmem = existing or start(agreement.peers.world(), None, device, timeout=agreement.timeout)
    pes = tuple(agreement.gather(nvshmem.pe, "Context: NVSHMEM's peers"))
    agreement.agree("Context: NVSHMEM's peers", unreachable(nvshmem, pes))
    return nvshmem, pes


def unreachable(nvshmem: Nvshmem, pes: tuple[int, ...]) -> errors.BackendError | None:
    """The error if this rank's GPU cannot access the memory of every GPU of the context, else None (local)."""
    base = nvshmem.pool.segments[0].address
    far = [rank for rank, pe in enumerate(pes) if not nvshmem.peer(base, pe)]
    if not far:
        return None
    return errors.BackendError(
        f"GPU {nvshmem.device.index} ({nvshmem.device.name}) does not reach the memory of rank {far[0]}'s GPU: the "
        f"NVSHMEM backend works within a node whose GPUs are peers (python -m pblas info shows which are); give "
        f"Context() the communicator of such ranks, or use backend='mpi'"
    )


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Settings that a rank has chosen before NVSHMEM starts (local)."""

    nbytes: int
    device: Gpu
    adopted: bool
    shares: bool


def _start(agreement: Agreement, nbytes: int | None, device: int | None) -> Nvshmem:
    """**Collective.** The steps of `start`. All ranks raise an error of any rank before the next step."""
    peers = agreement.peers
    prepared, error, local_rank = None, None, peers.local_rank
    try:
        prepared = _prepare(nbytes, device, local_rank)
    except errors.PblasError as caught:
        error = caught
    except Exception as caught:  # noqa: BLE001 - a broken driver raises any exception; the other ranks wait for it
        error = _failure("the GPU cannot be used", caught)
    request = (prepared.nbytes, prepared.adopted, prepared.shares) if prepared else (0, False, False)
    agreement.agree(
        f"init_nvshmem\nnbytes={request[0]}\nNVSHMEM runs already={request[1]}\n{SHARE_VARIABLE}={request[2]}", error
    )
    assert prepared is not None, "every rank is prepared, or all have raised"
    places = agreement.gather((agreement.rank, platform.node(), prepared.device.uuid), "init_nvshmem")
    shared, uneven = shared_device_error(places), uneven_sharing_error(places)
    if shared is not None:  # the same on every rank
        if not prepared.shares:
            raise shared
        if uneven is not None:
            raise uneven
        warnings.warn(f"{SHARE_VARIABLE}=1 is for tests: {_SHARED}", errors.PblasWarning, stacklevel=2)
    settings = {} if prepared.adopted else environment(prepared.nbytes, one_node=len(peers.node) == peers.size)
    with _environment(settings):
        if not prepared.adopted:
            _initialise(agreement, prepared.device)
        return _take(agreement, prepared)


def _take(agreement: Agreement, prepared: _Prepared) -> Nvshmem:
    """**Collective.** Allocate the slab of NVSHMEM, which runs."""
    try:
        nvshmem = Nvshmem(agreement, prepared.device, _bindings(), _version(), ours=not prepared.adopted)
        _check_pes(nvshmem, agreement.gather(nvshmem.pe, "init_nvshmem"))
        nvshmem.add_segment(prepared.nbytes)
    except errors.PblasError:
        if not prepared.adopted and agreement.broken is None:  # raised on every rank
            _finalize()
        raise
    return nvshmem


def _prepare(nbytes: int | None, device: int | None, local_rank: int) -> _Prepared:
    """Choose the GPU and check the requirements (local)."""
    size = symmetric_nbytes() if nbytes is None else nbytes
    probed = gpu.probe()
    problem = gpu.problem(probed, device)
    if problem is not None:
        raise errors.BackendError(f"backend 'nvshmem' is not available: {problem}")
    adopted = _is_initialised()
    if adopted and device is None:  # NVSHMEM works on the GPU that was current when the program started it
        device = _current_device()
    chosen = gpu.choose_device(local_rank, device, probed)
    gpu.activate(chosen)
    if not adopted:
        lack = shortage(rounded(size), gpu.free_nbytes(), chosen, 0)
        if lack is not None:
            raise lack
    return _Prepared(rounded(size), chosen, adopted, may_share_gpu())


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables for the start of NVSHMEM. The user's values have priority; a failed start removes the new ones."""
    added = settings.keys() - os.environ.keys()
    os.environ.update({name: settings[name] for name in added})
    try:
        yield
    except errors.PblasError:
        for name in added:
            del os.environ[name]
        raise


def _initialise(agreement: Agreement, device: Gpu) -> None:
    """**Collective.** Start NVSHMEM's library with an identifier that rank 0 makes and broadcasts."""
    import numpy as np

    error, core, uid = None, None, None
    try:
        import nvshmem.core

        core = nvshmem.core
        uid = core.get_unique_id(empty=agreement.rank > 0)
    except Exception as caught:  # noqa: BLE001 - nvshmem4py, the loader and NVSHMEM have exceptions of their own
        error = _failure("its library cannot be used", caught)
    agreement.agree("init_nvshmem: load NVSHMEM", error)
    assert core is not None
    assert uid is not None
    number = uid._data.view(np.int8)  # noqa: SLF001 - nvshmem4py does the same; there is no other way
    number[...] = agreement.broadcast(number, 0, "init_nvshmem")
    failures = list[Exception]()

    def start() -> None:
        try:
            gpu.activate(device)
            core.init(
                device=_core_device(device.index),
                uid=uid,
                rank=agreement.rank,
                nranks=agreement.size,
                initializer_method="uid",
            )
        except Exception as caught:  # noqa: BLE001 - nvshmem4py and NVSHMEM have exceptions of their own
            failures.append(caught)

    # In another thread, because NVSHMEM waits for ever for a rank that has died.
    thread = threading.Thread(target=start, name="pblas starts NVSHMEM", daemon=True)
    thread.start()
    step = "init_nvshmem: start NVSHMEM"
    agreement.wait(lambda: not thread.is_alive(), step, max(agreement.timeout, _LEAST_DEADLINE))
    if failures:  # NVSHMEM may keep the others waiting for this rank: they raise its error in `wait`
        agreement.reject(_failure("it did not start", failures[0]))
    agreement.agree(step)


def _check_pes(nvshmem: Nvshmem, pes: list[int]) -> None:
    """Raise on every rank, unless the communicator has exactly NVSHMEM's PEs."""
    if sorted(pes) != list(range(nvshmem.npes)):
        raise errors.BackendError(
            f"init_nvshmem: NVSHMEM was started with {nvshmem.npes} PEs before, the communicator has {len(pes)} ranks; "
            f"pass pblas.init_nvshmem(comm) the communicator that it was started over"
        )


# The library


def _bindings() -> Any:
    import nvshmem.bindings

    return nvshmem.bindings


def _is_initialised() -> bool:
    """Whether pblas or the program has started NVSHMEM in this process (local)."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("nvshmem_host")
        return _INITIALISED <= int(_bindings().init_status()) <= _MAX_STATUS
    except Exception as caught:  # noqa: BLE001 - the loader, nvshmem4py and NVSHMEM have exceptions of their own
        raise _failure("its library cannot be used", caught) from None


def _version() -> str:
    from nvshmem.core import get_version

    return str(get_version().libnvshmem_version)


def _finalize() -> None:
    import cupy
    import nvshmem.core

    with suppress(Exception):  # at the end of the process; failures do not matter any more
        cupy.cuda.runtime.deviceSynchronize()
        nvshmem.core.finalize()


def _current_device() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


def _core_device(index: int) -> Any:
    """A GPU as an object for nvshmem4py; it becomes the current one."""
    from cuda.core import Device

    device = Device(index)
    device.set_current()
    return device


def _failure(problem: str, caught: Exception) -> errors.BackendError:
    text = str(caught).strip().partition("\n")[0] or type(caught).__name__
    return errors.BackendError(f"NVSHMEM: {problem}: {text}. {INSTALL}; NVSHMEM_DEBUG=INFO says more")


class Order:
    """The events that the next execution of this process waits for, in any context.

    Executions of one queue run one after the other, and concurrently with those of other queues. An execution without a
    queue runs alone: after all earlier launches, and before all later ones.

    >>> order = Order()
    >>> order.launched(None, 1)
    >>> order.launched(0, 2)
    >>> order.launched(1, 3)
    >>> order.before(0), order.before(1), order.before(2), order.before(None)
    ((2,), (3,), (1,), (2, 3))
    >>> order.launched(None, 4)
    >>> order.before(0), order.last
    ((4,), (4,))
    """

    def __init__(self) -> None:
        self._alone: int | None = None
        self._beside: dict[int, int] = {}  # last event of each queue since the last execution that ran alone
        self._recorded = (-1, -1, -1)  # capture, stream and event of the last recorded execution

    @property
    def last(self) -> tuple[int, ...]:
        """All executions have ended after these events."""
        if self._beside:  # each of them follows the execution that ran alone
            return tuple(self._beside.values())
        return () if self._alone is None else (self._alone,)

    def before(self, queue: int | None) -> tuple[int, ...]:
        """Events that the next execution of a queue waits for; None: an execution that runs alone."""
        if queue is None:
            return self.last
        event = self._beside.get(queue, self._alone)
        return () if event is None else (event,)

    def launched(self, queue: int | None, event: int) -> None:
        """An execution was launched, and this event was recorded after it."""
        if queue is None:
            self._alone, self._beside = event, {}
        else:
            self._beside[queue] = event

    def recorded(self, capture: int, stream: int, event: int) -> int | None:
        """The event that an execution in a graph of the caller's waits for, in any queue; `event` is its own.

        CUDA chooses the order in which branches of one graph begin, and other ranks may get another order.

        >>> order = Order()
        >>> [order.recorded(*call) for call in ((7, 1, 10), (7, 1, 10), (7, 2, 11), (8, 1, 10))]
        [None, None, 10, None]
        """
        (last_capture, last_stream, last_event), self._recorded = self._recorded, (capture, stream, event)
        return last_event if last_capture == capture and last_stream != stream else None
