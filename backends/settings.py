"""Settings of a context, checked on one rank: the first invalid setting raises."""

from __future__ import annotations

from contextvars import ContextVar
from numbers import Integral, Real
from typing import Any, Literal, get_args

from pblas import errors

Name = Literal["auto", "mpi", "gloo", "nvshmem", "cuda"]
Movement = Literal["auto", "shared", "message"]
Tuning = Literal["measured", "fixed"]

TIMEOUT = 120.0  # seconds that a rank waits for another one, unless the context has its own `timeout`
DRY_RUN: ContextVar[Any] = ContextVar("DRY_RUN", default=None)
"""The `Recording` of the dry run in which contexts are made; None: they are real."""
_MOST_THREADS = (1 << 31) - 1  # of BLAS, which takes a C int


def checked_name(
    backend: Any,
    transport: object,
    *,
    timeout: object,
    threads: Any,
    ranks_per_node: object,
    link: object,
    device: object,
    is_group: bool = False,
) -> Name:
    """The requested backend, or that of CPUs if a setting is of CPUs only; the arguments are those of `Context`.

    With `is_group` the ranks are those of a torch.distributed group, not of MPI.

    >>> checked_name("auto", "message", timeout=1, threads=None, ranks_per_node=None, link=(1e-6, 1e9), device=None)
    'mpi'
    """
    if backend not in get_args(Name):
        raise errors.BackendError(
            f"Context: backend must be 'auto', 'mpi', 'gloo', 'nvshmem' or 'cuda', got {backend!r}"
        )
    if is_group and backend in ("mpi", "cuda"):
        raise errors.BackendError(
            f"Context: backend={backend!r} needs ranks of MPI, process_group has ranks of torch.distributed; pass "
            f"backend='gloo' for CPUs or 'nvshmem' for GPUs, or start with mpiexec -n N python -m mpi4py script.py and "
            f"leave process_group out"
        )
    if backend == "gloo" and not is_group:
        raise errors.BackendError(
            "Context: backend='gloo' needs ranks of torch.distributed; start with torchrun, and pass "
            "process_group=torch.distributed.group.WORLD"
        )
    if transport not in get_args(Movement):
        raise errors.ArgumentError(f"Context: transport must be 'auto', 'shared' or 'message', got {transport!r}")
    _check_timeout("Context", timeout)
    for name, value in (("threads", threads), ("ranks_per_node", ranks_per_node)):
        _check_count("Context", name, value)
    if threads is not None and threads > _MOST_THREADS:
        raise errors.ArgumentError(f"Context: threads must be at most {_MOST_THREADS}, got {threads!r}")
    if link is not None:
        _check_link(link)
    cpus: Name = "gloo" if is_group else "mpi"
    of_cpus = f"backend={cpus!r}"
    own = [name for name, value in (("ranks_per_node", ranks_per_node), ("link", link)) if value is not None]
    own += [f"transport={transport!r}"] if transport != "auto" else []
    if own and backend in ("nvshmem", "cuda"):
        raise errors.ArgumentError(f"Context: {own[0]} is a setting of {of_cpus}; leave it out for {backend!r}")
    if link is not None and transport != "message" and ranks_per_node is None:
        raise errors.ArgumentError(
            f"Context: link delays messages, but transport={transport!r} sends none; pass transport='message'"
        )
    chosen: Name = cpus if own else backend
    if device is not None and chosen == cpus:
        raise errors.ArgumentError(f"Context: device={device!r} names a GPU, {of_cpus} uses none; leave it out")
    _check_device("Context", device)
    return chosen


def check_tuning(tuning: object) -> None:
    """Raise ArgumentError unless `tuning` of `Context` is one of its values.

    >>> check_tuning("fixed")
    """
    if tuning not in get_args(Tuning):
        raise errors.ArgumentError(f"Context: tuning must be 'measured' or 'fixed', got {tuning!r}")


def check_start(nbytes: object, device: object, timeout: object) -> None:
    """Raise ArgumentError for invalid arguments of `init_nvshmem`.

    >>> check_start(1 << 30, None, TIMEOUT)
    """
    _check_timeout("init_nvshmem", timeout)
    _check_count("init_nvshmem", "nbytes", nbytes)
    _check_device("init_nvshmem", device)


def _check_timeout(operation: str, timeout: Any) -> None:
    if not (_is(timeout, Real) and timeout > 0):
        raise errors.ArgumentError(f"{operation}: timeout must be a positive number of seconds, got {timeout!r}")


def _check_count(operation: str, name: str, value: Any) -> None:
    if value is not None and not (_is(value, Integral) and value >= 1):
        raise errors.ArgumentError(f"{operation}: {name} must be None or a positive integer, got {value!r}")


def _check_device(operation: str, device: object) -> None:
    if device is not None and not _is(device, Integral):
        raise errors.ArgumentError(f"{operation}: device must be None or the number of a visible GPU, got {device!r}")


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_link(link: Any) -> None:
    is_pair = isinstance(link, tuple) and len(link) == 2 and all(_is(value, Real) for value in link)
    if not (is_pair and link[0] >= 0 and link[1] > 0):
        raise errors.ArgumentError(
            f"Context: link must be (seconds >= 0, bytes per second > 0) of an emulated network, got {link!r}"
        )
