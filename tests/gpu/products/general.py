"""Contexts over GPUs for laws that hold with NVSHMEM and with messages."""

from __future__ import annotations

from typing import Any

import cupy
import pytest

import pblas
from pblas.backends.nvshmem.settings import may_share_gpu
from tests.common.ranks import COMM
from tests.gpu.products.aware import AwareComm

BACKENDS = ("nvshmem", "cuda", "aware")
"""Of `Context`; "aware": "cuda" with messages straight from GPU memory, by a stand-in for an MPI that takes them."""
SECONDS = 30.0


def context(name: str) -> pblas.Context:
    """**Collective.** A context of one of BACKENDS; messages need no GPU for each rank."""
    if name == "nvshmem" and cupy.cuda.runtime.getDeviceCount() < COMM.size and not may_share_gpu():
        pytest.skip("NVSHMEM needs a GPU for each rank")
    if name != "aware":
        return pblas.Context(backend=name, timeout=SECONDS)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBLAS_GPU_AWARE", "1")
        opened = pblas.Context(backend="cuda", timeout=SECONDS)
    channel: Any = opened.runtime.backend.channel
    channel._comm = AwareComm(channel._comm)
    return opened
