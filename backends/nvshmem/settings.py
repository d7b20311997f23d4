"""Symmetric memory of a process: how much, NVSHMEM's environment, and the regions that contexts take from it.

All of this is integers and texts; nothing is imported or started. A place is an offset into the concatenation of all
segments. It is the same on every PE, since all PEs add segments of equal sizes in the same order. The taken places
differ between PEs, since PEs belong to different contexts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pblas import errors
from pblas.backends.allocator import Extent

if TYPE_CHECKING:
    from pblas.backends.gpu_info import Gpu


GRANULE = 2 << 20  # regions and segments are multiples of this: CUDA maps memory in pieces of 2 MiB

NOWHERE = 1 << 62  # larger than any place: no place exists


@dataclass(frozen=True, slots=True)
class Segment:
    """One allocation of NVSHMEM."""

    first: int
    address: int
    extent: Extent


class Pool:
    """Segments, and the taken places on this PE."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    @property
    def nbytes(self) -> int:
        """Memory of all segments (global)."""
        return sum(segment.extent.nbytes for segment in self.segments)

    def add(self, nbytes: int, address: int) -> None:
        """Append a segment, on every PE (global)."""
        self.segments.append(Segment(self.nbytes, address, Extent(nbytes)))

    def lowest(self, start: int, nbytes: int) -> int:
        """The lowest place >= start at which `nbytes` bytes are free here; NOWHERE if there is none (local)."""
        for segment in self.segments:
            offset = segment.extent.lowest(max(0, start - segment.first), nbytes)
            if offset is not None:
                return segment.first + offset
        return NOWHERE

    def tail(self, nbytes: int) -> int:
        """The beginning of the free memory at the end, if it has `nbytes` bytes; else NOWHERE (local)."""
        if not self.segments:
            return NOWHERE
        last = self.segments[-1]
        offset, size = last.extent.free[-1] if last.extent.free else (0, 0)
        reaches_end = offset + size == last.extent.nbytes
        return last.first + offset if reaches_end and size >= nbytes else NOWHERE

    def take(self, place: int, nbytes: int) -> int:
        """Address of a place that is free here, now taken (local)."""
        segment = self._segment(place)
        segment.extent.reserve(place - segment.first, nbytes)
        return segment.address + place - segment.first

    def give_back(self, place: int, nbytes: int) -> None:
        """Make a place free that was taken (local)."""
        segment = self._segment(place)
        segment.extent.give_back(place - segment.first, nbytes)

    def _segment(self, place: int) -> Segment:
        return next(s for s in self.segments if 0 <= place - s.first < s.extent.nbytes)


def rounded(nbytes: int) -> int:
    """The number of bytes, up to a whole number of granules.

    >>> rounded(1), rounded(1 << 30)
    (2097152, 1073741824)
    """
    return nbytes + -nbytes % GRANULE


DEFAULT_NBYTES = 1 << 30
SIZE_VARIABLE = "PBLAS_SYMMETRIC_SIZE"
MARGIN_NBYTES = 64 << 20  # memory for NVSHMEM's own collectives and teams, in addition to the slab
GRANULARITY_NBYTES = 512 << 20  # NVSHMEM_CUMEM_GRANULARITY: a heap that grows does so in multiples of this
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
