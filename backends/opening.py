"""Which backend a context gets: the one that was asked for, or the one that every rank can use."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pblas import errors

if TYPE_CHECKING:
    from mpi4py import MPI

    from pblas.backends.mpi import MpiBackend

ABSENT, UNFIT, READY = 0, 1, 2
"""What a rank has: no GPU, or no CuPy; both, and something else is missing; all that the NVSHMEM backend needs."""

_NO_DEVICE = 100  # cudaErrorNoDevice
_STACKLEVEL = 4  # of a warning: the call of Context


def open_backend(
    name: Literal["auto", "mpi", "nvshmem"],
    comm: MPI.Intracomm | None,
    *,
    device: int | None,
    timeout: float,
    threads: int | None,
    transport: str,
    ranks_per_node: int | None,
    link: tuple[float, float] | None,
) -> MpiBackend:
    """**Collective.** Start the backend of a context; the arguments are those of `Context`.

    Raises:
        BackendError: a backend or launcher that is missing or unfit, on any rank.
        PeerTimeout: a rank of `comm` does not arrive.
        MismatchError: settings that differ between ranks.
    """
    try:
        from pblas.backends.mpi import MpiBackend, arrive
    except (ImportError, RuntimeError) as caught:
        raise errors.BackendError(
            f"backend 'mpi' is not available: {caught}. pip install 'pblas[mpi]', or an MPI of the system"
        ) from None
    error: errors.PblasError | None
    settings: dict[str, Any] = {
        "timeout": timeout,
        "threads": threads,
        "transport": transport,
        "ranks_per_node": ranks_per_node,
        "link": link,
        "push": transport == "push",
    }
    insists = name == "nvshmem" or device is not None  # whoever names a GPU wants it
    state, lack = (ABSENT, "") if name == "mpi" else gpu_state(device)
    error = _device_error(name, device)
    if error is None and insists and state < READY:
        error = errors.BackendError(f"backend 'nvshmem' is not available: {lack}")
    call = f"Context\n{timeout=}\n{transport=}\n{ranks_per_node=}\n{link=}\nbackend={name!r}"
    best, worst = arrive(comm, call, timeout, error, (state, -state, 0, 0)).maxima[:2]
    if name == "nvshmem" or (name == "auto" and -worst == READY):
        from pblas.backends.nvshmem.backend import NvshmemBackend

        try:
            return NvshmemBackend(comm, device=device, **settings)
        except errors.BackendError as caught:  # on every rank
            if name == "nvshmem":
                raise
            _warn(caught)
    elif best > ABSENT:
        reason = errors.BackendError(lack) if state < READY else None
        try:
            arrive(comm, "Context: which rank has no GPU", timeout, reason)
        except errors.BackendError as caught:  # the same on every rank
            _warn(caught)
    return MpiBackend(comm, **settings)


def gpu_state(device: int | None = None) -> tuple[int, str]:
    """What this rank has for the NVSHMEM backend, and what is missing with the remedy (local)."""
    if find_spec("cupy") is None:
        return ABSENT, "No module named 'cupy'. pip install 'pblas[cuda13]', or 'pblas[cuda12]' for CUDA 12"
    from pblas.backends.nvshmem.device import probe, problem

    found = probe()
    error = problem(found, device if isinstance(device, int) else None)
    if error is None:
        return READY, ""
    none_here = not found.cupy or found.driver == 0 or (found.count == 0 and found.status in {0, _NO_DEVICE})
    return ABSENT if none_here else UNFIT, str(error)


def _device_error(name: str, device: Any) -> errors.ArgumentError | None:
    """What is wrong with the GPU that this rank asks for, whatever GPUs there are."""
    if device is None:
        return None
    if name == "mpi":
        return errors.ArgumentError(f"Context: device={device!r} names a GPU, backend='mpi' uses none; leave it out")
    if not isinstance(device, int) or isinstance(device, bool):
        return errors.ArgumentError(f"Context: device must be None or the number of a visible GPU, got {device!r}")
    return None


def _warn(reason: errors.BackendError) -> None:
    text = f"Context: GPUs are not used, the context multiplies on CPUs: {reason}. Context(backend='mpi') says so"
    warnings.warn(text, RuntimeWarning, stacklevel=_STACKLEVEL)
