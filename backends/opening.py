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
    settings: dict[str, Any] = {
        "timeout": timeout,
        "threads": threads,
        "transport": transport,
        "ranks_per_node": ranks_per_node,
        "link": link,
        "push": transport == "push",
    }
    call = f"Context\n{timeout=}\n{transport=}\n{ranks_per_node=}\n{link=}\nbackend={name!r}"
    state, lack = (ABSENT, "") if name == "mpi" else gpu_state()
    error = None
    if name == "nvshmem" and state < READY:
        error = errors.BackendError(f"backend 'nvshmem' is not available: {lack}")
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


def gpu_state() -> tuple[int, str]:
    """What this rank has for the NVSHMEM backend, and what is missing with the remedy (local)."""
    if find_spec("cupy") is None:
        return ABSENT, "No module named 'cupy'. pip install 'pblas[cuda13]', or 'pblas[cuda12]'"
    from pblas.backends.nvshmem.state import gpu_state as state_with_cupy

    return state_with_cupy()


def _warn(reason: errors.BackendError) -> None:
    text = f"Context: GPUs are not used, the context multiplies on CPUs: {reason}. Context(backend='mpi') says so"
    warnings.warn(text, RuntimeWarning, stacklevel=_STACKLEVEL)
