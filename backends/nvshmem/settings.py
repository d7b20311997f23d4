"""How much symmetric memory, and NVSHMEM's environment: integers and texts, nothing is imported or started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pblas import errors
from pblas.backends.nvshmem.pool import GRANULE, rounded

if TYPE_CHECKING:
    from pblas.backends.gpu_info import Gpu

DEFAULT_NBYTES = 1 << 30
SIZE_VARIABLE = "PBLAS_SYMMETRIC_SIZE"
MARGIN_NBYTES = 64 << 20
"""Memory for NVSHMEM's own collectives and teams, in addition to the slab."""
GRANULARITY_NBYTES = 512 << 20
"""NVSHMEM_CUMEM_GRANULARITY: a heap that grows does so in multiples of this."""
LIMIT_VARIABLE = "NVSHMEM_MAX_MEMORY_PER_GPU"
SHARE_VARIABLE = "PBLAS_SHARE_GPU"
_LIMIT_NBYTES = 128 << 30  # its default: address space that NVSHMEM reserves, the limit of a growing heap
_SUFFIXES = {"K": 10, "M": 20, "G": 30, "T": 40}


def may_share_gpu() -> bool:
    """Whether several ranks may use one GPU: PBLAS_SHARE_GPU=1, which is for tests (local)."""
    text = os.environ.get(SHARE_VARIABLE, "0")
    if text not in ("0", "1"):
        raise errors.BackendError(f"{SHARE_VARIABLE} must be 0 or 1, got {text!r}")
    return text == "1"


def environment(nbytes: int, *, one_node: bool) -> dict[str, str]:
    """Settings of NVSHMEM for a slab of `nbytes` bytes.

    >>> environment(1 << 30, one_node=False)
    {'NVSHMEM_DISABLE_NVLS': '1', 'NVSHMEM_SYMMETRIC_SIZE': '1140850688'}
    """
    settings = {
        "NVSHMEM_DISABLE_NVLS": "1",  # NVLink multicast: off unless the user turns it on
        # The heap's size where it cannot grow: on GPUs that do not map memory for network cards, as in many VMs.
        "NVSHMEM_SYMMETRIC_SIZE": str(rounded(nbytes) + MARGIN_NBYTES),
    }
    if one_node:
        settings |= {
            "NVSHMEM_REMOTE_TRANSPORT": "none",
            # Otherwise a thread of each rank spins for requests of NVSHMEM's own kernels; kernels of pblas send none.
            "NVSHMEM_DISABLE_LOCAL_ONLY_PROXY": "1",
        }
        if Path("/sys/class/net/lo").exists():
            settings |= {"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo"}
    return settings


def symmetric_nbytes() -> int:
    """Symmetric memory that a rank gets if no size is given: PBLAS_SYMMETRIC_SIZE, or 1 GiB (local)."""
    text = os.environ.get(SIZE_VARIABLE)
    return DEFAULT_NBYTES if text is None else parse_size(text)


def parse_size(text: str, name: str = SIZE_VARIABLE) -> int:
    """Bytes, as NVSHMEM's own variables give them: a number, and K, M, G or T for powers of 1024.

    >>> parse_size("4G"), parse_size("1.5m"), parse_size("65536")
    (4294967296, 1572864, 65536)
    """
    stripped = text.strip().upper().removesuffix("B").removesuffix("I")
    shift = _SUFFIXES.get(stripped[-1:], 0)
    try:
        nbytes = int(float(stripped[:-1] if shift else stripped) * (1 << shift))
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes <= 0:
        raise errors.BackendError(f"{name} must be a number of bytes, as 4G or 4294967296, got {text!r}")
    return nbytes


def limit_error(nbytes: int, taken: int) -> errors.WorkspaceError | None:
    """The error if NVSHMEM has reserved too little address space, None if it suffices."""
    text = os.environ.get(LIMIT_VARIABLE)
    limit, needed = parse_size(text, LIMIT_VARIABLE) if text else _LIMIT_NBYTES, taken + nbytes + GRANULARITY_NBYTES
    if needed <= limit:
        return None
    return errors.WorkspaceError(
        f"symmetric memory: {nbytes} bytes beside the {taken} that are taken are more than the {limit} that NVSHMEM "
        f"has addresses for; set {LIMIT_VARIABLE}={needed}, or use more ranks"
    )


def shortage(nbytes: int, free: int, device: Gpu, taken: int) -> errors.WorkspaceError | None:
    """The error if a GPU has too little free memory, None if it suffices (local)."""
    needed, fits = nbytes + GRANULARITY_NBYTES, (free - GRANULARITY_NBYTES) // GRANULE * GRANULE
    if needed <= free:
        return None
    less = (
        f", or set {SIZE_VARIABLE}={fits} or init_nvshmem(nbytes={fits}), which fits" if fits > 0 and not taken else ""
    )
    return errors.WorkspaceError(
        f"symmetric memory: {needed} bytes are needed on GPU {device.index} ({device.name}), {free} are free, {taken} "
        f"are symmetric memory already; free arrays (cupy.get_default_memory_pool().free_all_blocks()), use more "
        f"ranks{less}"
    )


def heap_error(nbytes: int, taken: int, *, ours: bool) -> errors.WorkspaceError:
    """The error if NVSHMEM's heap has no more memory."""
    total = nbytes + taken
    remedy = (
        f"set {SIZE_VARIABLE}={total}, or call init_nvshmem(nbytes={total}) before the first context; unset "
        f"NVSHMEM_SYMMETRIC_SIZE if it is smaller"
        if ours
        else f"set NVSHMEM_SYMMETRIC_SIZE={total + MARGIN_NBYTES} before NVSHMEM is started"
    )
    return errors.WorkspaceError(
        f"symmetric memory: NVSHMEM's heap has no {nbytes} bytes left beside the {taken} that are taken; {remedy}"
    )
