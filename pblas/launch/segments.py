"""Shared memory that a killed job leaves: MPICH's segments, which its ranks delete only when they end by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_MAPPED = re.compile(r"/dev/shm/mpich_shm_\S+$", re.MULTILINE)  # noqa: S108 - no file of ours


def segments_of(pids: Iterable[int]) -> set[Path]:
    """MPICH's segments of shared memory that processes use; none where there is no /proc."""
    found: set[Path] = set()
    for pid in pids:
        with suppress(OSError):
            found.update(map(Path, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"))))
    return found


def delete(segments: Iterable[Path]) -> None:
    """Delete segments that are still there, after the end of their job."""
    for path in segments:
        with suppress(OSError):
            path.unlink()
