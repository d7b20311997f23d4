"""MPICH's shared memory in /dev/shm, whose names stay if a job dies before MPI.Finalize deletes them: 2 to 4 MB."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_LINE = re.compile(r" (\d+) +(/dev/shm/mpich_\S+)$", re.MULTILINE)  # in a list of mapped files


class Segment(NamedTuple):
    """A named piece of shared memory."""

    inode: int  # another job may make a file of the same name later
    path: str


def mapped(pid: int | str = "self") -> frozenset[Segment]:
    """The segments that a process has mapped, so they are those of its job; none without /proc, or if it has ended."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    return frozenset(Segment(int(inode), path) for inode, path in _LINE.findall(text))


def unlink(segments: Iterable[Segment]) -> None:
    """Delete the names of segments. Processes that have mapped a segment keep it; no other one can open it."""
    for inode, path in segments:
        with suppress(OSError):  # another process was first
            if Path(path).stat().st_ino == inode:
                Path(path).unlink()
