"""Whether MPI reads and writes the memory of GPUs: the MPI is asked, unless PBLAS_GPU_AWARE says it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from pblas import errors

VARIABLE = "PBLAS_GPU_AWARE"
_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


def is_gpu_aware() -> tuple[bool, str]:
    """Whether this rank's MPI takes addresses on GPUs, and who says so (local).

    Raises:
        BackendError: PBLAS_GPU_AWARE is neither 0 nor 1.

    Source: Open MPI, MPIX_Query_cuda_support(3); MPICH, MPIX_GPU_query_support(3).
    """
    text = os.environ.get(VARIABLE)
    if text is not None:
        if text not in ("0", "1"):
            raise errors.BackendError(f"{VARIABLE} must be 0 or 1, got {text!r}")
        return text == "1", f"{VARIABLE}={text}"
    for name, ask in (("MPIX_GPU_query_support", _ask_mpich), ("MPIX_Query_cuda_support", _ask_open_mpi)):
        function = _function(name)
        if function is not None:
            return ask(function), f"{name} of this MPI says so"
    return False, "this MPI cannot be asked"


def road(aware: bool, asked: str) -> str:
    """How messages travel between GPUs, in words.

    >>> road(False, "this MPI cannot be asked")
    'staged through pinned memory of the host (this MPI cannot be asked)'
    """
    return f"{'straight from GPU memory' if aware else 'staged through pinned memory of the host'} ({asked})"


def _ask_mpich(function: Callable[..., int]) -> bool:
    found = ctypes.c_int(0)
    return function(_CUDA, ctypes.byref(found)) == MPI.SUCCESS and bool(found.value)


def _ask_open_mpi(function: Callable[..., int]) -> bool:
    return function() == 1


def _function(name: str) -> Any:
    """A function of the MPI library that mpi4py has loaded, whose own extensions mpi4py does not know."""
    for library in (None, MPI.__file__):  # what the process has made known to all, then what mpi4py depends on
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int
        return function
    return None
