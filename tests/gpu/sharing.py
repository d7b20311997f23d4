"""Ranks that share a GPU, as PBLAS_SHARE_GPU=1 allows: each rank's kernels get time slices in turn.

A kernel that waits for a peer keeps the GPU until its time slice ends, so each wait takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy
import pytest

from pblas.backends.nvshmem.settings import may_share_gpu
from tests.common.ranks import COMM

SHARED = may_share_gpu() and cupy.cuda.runtime.getDeviceCount() < COMM.size
own_gpus = pytest.mark.skipif(SHARED, reason="ranks share a GPU")
_FEWER = 20


def repeats(count: int) -> int:
    """`count` executions that follow each other, or a twentieth of them where ranks share a GPU."""
    return count // _FEWER if SHARED else count


def trimmed(values: Sequence[Any], count: int) -> Sequence[Any]:
    """All values, or the last `count` of them where ranks share a GPU."""
    return values[-count:] if SHARED else values
