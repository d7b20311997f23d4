"""Contexts over GPUs for laws that hold with NVSHMEM and with messages."""

from __future__ import annotations

import cupy
import pytest

import pblas
from pblas.backends.nvshmem.settings import may_share_gpu
from tests.common.ranks import COMM

BACKENDS = ("nvshmem", "cuda")
SECONDS = 30.0


def context(name: str) -> pblas.Context:
    """**Collective.** A context of a backend; messages need no GPU for each rank."""
    if name == "nvshmem" and cupy.cuda.runtime.getDeviceCount() < COMM.size and not may_share_gpu():
        pytest.skip("NVSHMEM needs a GPU for each rank")
    return pblas.Context(backend=name, timeout=SECONDS)  # type: ignore[arg-type]
