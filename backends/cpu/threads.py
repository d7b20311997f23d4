"""BLAS threads of a rank: its share of the cores that it may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from threadpoolctl import ThreadpoolController


def usable_cores() -> frozenset[int]:
    """Cores that this process may run on: its affinity mask where the system has one."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def quota() -> float:
    """Cores' worth of time that the control group grants, infinite without a limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst, cpu.max.
    """
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return float("inf") if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return float("inf")


def share(masks: list[frozenset[int]], index: int, local_ranks: int, granted: float) -> int:
    """BLAS threads for one rank.

    >>> share([frozenset(range(8))] * 2, 0, 4, float("inf"))  # four ranks share eight cores, two of them are ours
    2
    >>> share([frozenset({0, 1}), frozenset({2, 3})], 0, 2, float("inf"))  # bound to cores of their own
    2
    """
    sharers = sum(1 for mask in masks if mask & masks[index])
    if sharers == len(masks):
        sharers = local_ranks
    return max(1, int(min(len(masks[index]) / sharers, granted / local_ranks)))


def requested() -> int | None:
    """BLAS threads of each process that the environment asks for; None if it does not (local)."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").partition(",")[0].strip()  # OpenMP takes a list, a number for each level
        if text.isdecimal() and int(text):
            return int(text)
    return None


class BlasThreads:
    """Limit of the BLAS libraries' threads; `close` restores the limit before it.

    The limit belongs to the process, and limits may be closed in any order. Therefore they keep one list: the newest
    open limit counts, and the last one to close restores the original limit.
    """

    _living: ClassVar[list[BlasThreads]] = []
    _libraries: ClassVar[ThreadpoolController | None] = None

    def __init__(self, threads: int, *, again: bool = False) -> None:
        """Limit the libraries that are loaded; if `again`, those that the last limit found, which takes 2 ms less."""
        self.threads = threads
        if BlasThreads._libraries is None or not again:
            BlasThreads._libraries = ThreadpoolController()
        self._limits = BlasThreads._libraries.limit(limits=threads, user_api="blas")
        self._living.append(self)

    def close(self) -> None:
        """Restore the previous limits."""
        if self not in self._living:
            return
        place = self._living.index(self)
        del self._living[place]
        if place == len(self._living):
            self._limits.restore_original_limits()
        else:  # the next limit restores what this one would have restored
            self._living[place].inherit(self)

    def inherit(self, older: BlasThreads) -> None:
        """Restore, in the end, what another limit would have restored."""
        self._limits = older._limits
