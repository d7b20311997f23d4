"""Descriptions of GPUs, as values and texts. This module queries no driver and imports no GPU library."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pblas.errors import BackendError

QUEUES_VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
DEFAULT_QUEUES = 8  # hardware queues of CUDA for the work of streams, if that variable is not set
INSTALL = "pip install 'cupy-cuda13x[ctk]' nvidia-nvshmem-cu13 nvshmem4py-cu13 nvmath-python cuda-core (CUDA 12: cu12)"
"""The packages of the extra `cuda13`, by their own names."""
INSTALL_CTK = "pip install 'cupy-cuda13x[ctk]' brings it (CUDA 12: cupy-cuda12x)"


@dataclass(frozen=True, slots=True)
class Platform:
    """GPU software and GPUs of a rank, determined without a context on any GPU (local)."""

    cupy: str = ""  # version of CuPy, "" if it cannot be imported
    lack: str = ""  # why CuPy or nvshmem4py cannot be imported, "" if both can
    driver: int = 0  # CUDA version that the driver supports, 1000 * major + 10 * minor; 0 without a driver
    runtime: int = 0  # CUDA version of CuPy's runtime, 1000 * major + 10 * minor
    status: int = 0  # error of the CUDA runtime when it counted the GPUs, 0 if it could
    count: int = 0  # visible GPUs
    visible: str | None = None  # CUDA_VISIBLE_DEVICES, None if it is not set


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (local)."""

    index: int  # number of the GPU among the visible ones
    name: str  # name from the driver
    uuid: str  # UUID in nvidia-smi's format; the same in every process
    compute_capability: tuple[int, int]  # (9, 0) for Hopper
    memory_nbytes: int  # total memory
    multiprocessors: int  # number of SMs
    driver: int  # CUDA version that the driver supports, 1000 * major + 10 * minor
    runtime: int  # CUDA version of CuPy's runtime, 1000 * major + 10 * minor
    stream_memops: bool  # whether a stream can write a word and wait for one (cuStreamBatchMemOp)
    virtual_memory: bool  # whether memory can be mapped piecewise; NVSHMEM's heap can then grow
    rdma_virtual_memory: bool  # whether network cards reach such memory, which NVSHMEM also requires

    @property
    def has_waiting_tiles(self) -> bool:
        """Whether the GPU runs the pblas kernel, whose tiles wait for their operands: Hopper only."""
        return self.compute_capability == (9, 0)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """GPU diagnostics of one rank (local)."""

    problem: str = ""  # why the GPUs cannot be used, with the remedy; "" if they can
    devices: tuple[Gpu, ...] = ()  # the visible GPUs
    mine: int = -1  # number of this rank's GPU; -1 if it has none
    peers: tuple[tuple[int, int], ...] = ()  # pairs of GPUs that read and write each other's memory
    versions: tuple[tuple[str, str], ...] = ()  # names and versions of the installed libraries
    symmetric_nbytes: int = 0  # bytes of symmetric memory with which NVSHMEM would start
    grows: bool = False  # whether NVSHMEM's heap could then grow
    messages: str = ""  # path of messages between GPUs without NVSHMEM, in words
    lacking: tuple[str, ...] = ()  # CUDA libraries that GPUs need and that cannot be loaded: cuBLASLt, NVRTC


def hardware_queues() -> int:
    """Number of hardware queues that CUDA uses for streams."""
    queues = os.environ.get(QUEUES_VARIABLE, "")
    return int(queues) if queues.isdecimal() else DEFAULT_QUEUES


def shared_device_error(places: Sequence[tuple[int, str, str]]) -> BackendError | None:
    """The error if two ranks use one GPU; None if every rank has its own.

    >>> print(shared_device_error([(0, "node1", "GPU-12ab34cd-..."), (1, "node1", "GPU-12ab34cd-...")]))
    ranks 0 and 1 both use GPU GPU-12ab34cd of node1: every rank needs a GPU of its own; start as many ranks per node
    as it has GPUs, or give each its own (CUDA_VISIBLE_DEVICES, device=)
    """
    first: dict[str, int] = {}
    for rank, host, uuid in places:
        if uuid in first:
            return BackendError(
                f"ranks {first[uuid]} and {rank} both use GPU {short_uuid(uuid)} of {host}: every rank needs a GPU of "
                f"its own; start as many ranks per node as it has GPUs, or give each its own "
                f"(CUDA_VISIBLE_DEVICES, device=)"
            )
        first[uuid] = rank
    return None


def uneven_sharing_error(places: Sequence[tuple[int, str, str]]) -> BackendError | None:
    """The error if GPUs have different numbers of ranks, for which NVSHMEM's start would wait for ever.

    >>> print(uneven_sharing_error([(0, "node1", "GPU-12"), (1, "node1", "GPU-12"), (2, "node1", "GPU-34")]))
    ranks share GPUs unevenly: GPU GPU-12 of node1 has 2 ranks, GPU GPU-34 of node1 has 1; NVSHMEM needs the same number
    on each: start a multiple of 2 ranks, or choose other GPUs (CUDA_VISIBLE_DEVICES, device=)
    """
    counts = Counter((host, uuid) for _, host, uuid in places)
    ranked = counts.most_common()
    (most, many), (least, few) = ranked[0], ranked[-1]
    if many == few:
        return None
    named = [f"GPU {short_uuid(uuid)} of {host}" for host, uuid in (most, least)]
    return BackendError(
        f"ranks share GPUs unevenly: {named[0]} has {many} ranks, {named[1]} has {few}; NVSHMEM needs the same number "
        f"on each: start a multiple of {len(counts)} ranks, or choose other GPUs (CUDA_VISIBLE_DEVICES, device=)"
    )


def version_text(version: int) -> str:
    """A CUDA version in words.

    >>> version_text(13000), version_text(12080)
    ('13.0', '12.8')
    """
    return f"{version // 1000}.{version % 1000 // 10}"


def uuid_text(raw: bytes) -> str:
    """A UUID in nvidia-smi's format.

    >>> uuid_text(bytes(range(16)))
    'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    digits = raw.hex()
    return f"GPU-{'-'.join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))}"


def short_uuid(uuid: str) -> str:
    """The part of a UUID that identifies a GPU of a node."""
    return "-".join(uuid.split("-")[:2])
