"""Selection of a context's backend: the requested one, or the best one that every rank can use.

Front ends use this module for GPUs. They import no module of `pblas.backends.cuda` or `pblas.backends.nvshmem`.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends import log
from pblas.backends.agreement import rendezvous
from pblas.backends.gpu_info import INSTALL, Diagnostics
from pblas.backends.local_step import LocalStep
from pblas.backends.settings import DRY_RUN, TIMEOUT, Movement, Name, checked_name

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch.distributed import ProcessGroup

    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transport

ABSENT, UNFIT, MESSAGES, READY = 0, 1, 2, 3
"""State of a rank: no GPU or no CuPy; GPU and CuPy, but not all requirements of the "cuda" backend; all requirements of
the "cuda" backend; all requirements of the "nvshmem" backend."""

_NO_DEVICE = 100  # cudaErrorNoDevice
_STACKLEVEL = 3  # of a warning: the call of Context


def open_backend(
    backend: Name,
    comm: MPI.Intracomm | None,
    process_group: ProcessGroup | None,
    *,
    device: int | None,
    timeout: float,
    threads: int | None,
    transport: Movement,
    ranks_per_node: int | None,
    link: tuple[float, float] | None,
) -> HostRanks:
    """**Collective.** Start the backend of a context; the arguments are those of `Context`."""
    has_mpi = process_group is None
    settings: dict[str, Any] = {
        "timeout": timeout,
        "threads": threads,
        "transport": transport,
        "ranks_per_node": ranks_per_node,
        "link": link,
    }
    if DRY_RUN.get() is not None:
        from pblas.backends.dry_backend import DryComm, DryRanks

        if checked_name(backend, device=device, is_group=not has_mpi, **settings) in ("nvshmem", "cuda"):
            raise errors.BackendError(f"Context: a dry run has ranks on CPUs only; leave out backend={backend!r}")
        ranks: Any = comm  # of communicators of MPI, which has one rank here, only COMM_SELF tells its size
        is_self = ranks is not None and not isinstance(ranks, DryComm) and ranks.Get_name() == "MPI_COMM_SELF"
        size = ranks.size if is_self or isinstance(ranks, DryComm) else None
        return DryRanks(DRY_RUN.get(), size, timeout=timeout, threads=threads, transport=transport)
    peers = _peers("Context", comm, process_group, timeout)
    # With the default timeout: that of the call may be the wrong setting.
    with LocalStep(lambda operation, error: rendezvous(peers, operation, TIMEOUT, error), "Context"):
        name = checked_name(backend, device=device, is_group=not has_mpi, **settings)
        on_gpus: dict[str, Any] = {"device": device, "timeout": timeout, "threads": threads}
        state, lack = (ABSENT, "") if name == peers.name else gpu_state(device, mpi=has_mpi)
        wish = int(name in ("nvshmem", "cuda") or device is not None)  # the caller insists on GPUs
        call = f"Context\n{timeout=}\n{transport=}\n{ranks_per_node=}\n{link=}\nbackend={name!r}"
    agreed = rendezvous(peers, call, timeout, None, (state, -state, wish))
    best, worst, insists = agreed.maxima[0], -agreed.maxima[1], agreed.maxima[2]
    try:
        if worst == READY and name != "cuda":
            from pblas.backends.nvshmem.backend import NvshmemBackend

            try:
                return NvshmemBackend(peers, **on_gpus)
            except errors.BackendError as caught:  # the same on every rank
                if name == "nvshmem" or not has_mpi:
                    raise
                text = f"Context: NVSHMEM is not used: {caught}. Context(backend='cuda') asks for messages between GPUs"
                log.write(log.INFO, peers.rank, text)
                warnings.warn(text, errors.PblasWarning, stacklevel=_STACKLEVEL)
        if worst >= MESSAGES and name != "nvshmem" and has_mpi:
            from pblas.backends.cuda.backend import CudaBackend

            return CudaBackend(peers, **on_gpus)
        if best > ABSENT or insists:
            needed, wanted = (READY, "nvshmem") if name == "nvshmem" or not has_mpi else (MESSAGES, "cuda")
            missing = errors.BackendError(f"backend {wanted!r} is not available: {lack}") if state < needed else None
            rendezvous(peers, "Context: what is missing for GPUs", timeout, missing)
    except errors.BackendError as caught:  # the same on every rank
        if insists:
            raise
        text = (
            f"Context: GPUs are not used: {caught}. Context(backend={peers.name!r}) asks for CPUs without this warning"
        )
        log.write(log.INFO, peers.rank, text)
        warnings.warn(text, errors.PblasWarning, stacklevel=_STACKLEVEL)
    from pblas.backends.cpu_backend import CpuBackend

    return CpuBackend(peers, **settings)


def _peers(operation: str, comm: MPI.Intracomm | None, process_group: ProcessGroup | None, timeout: float) -> Transport:
    """The ranks that the caller names, or those of COMM_WORLD (local)."""
    if process_group is not None:
        if comm is not None:
            raise errors.ArgumentError(f"{operation}: comm and process_group both name the ranks; pass one of them")
        from pblas.backends import process_group as groups

        return groups.peers_of(process_group, operation, timeout)
    try:
        from pblas.backends import mpi
    except (ImportError, RuntimeError) as caught:
        raise errors.BackendError(
            f"{operation}: backend 'mpi' is not available: {caught}. pip install mpi4py mpich, or an MPI of the "
            f"system. Ranks that torchrun started need none: pass process_group=torch.distributed.group.WORLD"
        ) from None
    return mpi.peers_of(comm, operation)


def start_mpi() -> None:
    """Start MPI as a context does. Where that is impossible, `Context` says why (local)."""
    with suppress(ImportError, RuntimeError):
        import pblas.backends.mpi  # noqa: F401 - mpi4py starts MPI when it is imported


def gpu_state(device: int | None, *, mpi: bool = True) -> tuple[int, str]:
    """GPU state of this rank, and the missing requirement with its remedy (local)."""
    if find_spec("cupy") is None:
        return ABSENT, f"No module named 'cupy'. {INSTALL}"
    from pblas.backends.cuda.device import probe, problem

    platform = probe()
    index = device if isinstance(device, int) else None
    error = problem(platform, index, messages=True)
    if error is None:
        try:  # a missing requirement is reported now, not later on one rank
            import_module("pblas.backends.cuda.backend" if mpi else "pblas.backends.cuda.base")
        except ImportError as caught:
            return UNFIT, f"{caught}. {INSTALL}"
        error = problem(platform, index)
        if error is None:
            try:
                import pblas.backends.nvshmem.backend  # noqa: F401 - imported as a test
            except ImportError as caught:
                return MESSAGES, f"{caught}. {INSTALL}"
            return READY, ""
        return MESSAGES, str(error)
    has_no_gpu = (
        not platform.cupy or platform.driver == 0 or (platform.count == 0 and platform.status in {0, _NO_DEVICE})
    )
    return ABSENT if has_no_gpu else UNFIT, str(error)


def gpu_facts(local_rank: int) -> Diagnostics:
    """GPU diagnostics of this rank, for `pblas info`; starts nothing and raises nothing (local)."""
    from pblas.backends.nvshmem.diagnostics import find

    diagnostics = find(local_rank)
    with suppress(Exception):  # without a working MPI there are no messages
        from pblas.backends.cuda.backend import is_gpu_aware, transfer_path

        diagnostics = (
            replace(diagnostics, messages=transfer_path(*is_gpu_aware())) if diagnostics.devices else diagnostics
        )
    return diagnostics


def start_nvshmem(
    comm: MPI.Intracomm | None,
    process_group: ProcessGroup | None,
    nbytes: int | None,
    device: int | None,
    *,
    timeout: float,
) -> None:
    """**Collective.** Start NVSHMEM over a communicator or a group; see `pblas.init_nvshmem`."""
    peers = _peers("init_nvshmem", comm, process_group, timeout)
    from pblas.backends.nvshmem.startup import start

    start(peers, nbytes, device, timeout=timeout)
