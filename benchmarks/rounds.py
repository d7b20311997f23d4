"""Timing of several columns on MPI ranks, in rounds: each round runs every column once.

A column is one way to compute the same result, such as pblas or NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mpi4py import MPI
from threadpoolctl import threadpool_limits

Name = TypeVar("Name")


def together(work: Callable[[], Any], settle: Callable[[], Any] = lambda: None) -> float:
    """**Collective.** Seconds from a barrier until the last rank has finished `work`.

    Args:
        work: the timed function (local).
        settle: function that waits for this rank's GPU; called before the barrier and after the work (local).
    """
    comm = MPI.COMM_WORLD
    settle()
    comm.Barrier()
    start = time.perf_counter()
    work()
    settle()
    return float(comm.allreduce(time.perf_counter() - start, MPI.MAX))


def on_first_rank(work: Callable[[], Any], cores: int) -> float:
    """**Collective.** Seconds of some work on rank 0 with a BLAS thread for each core; the other ranks sleep meanwhile.

    Args:
        work: the timed function (local).
        cores: number of BLAS threads (local).
    """
    comm = MPI.COMM_WORLD
    comm.Barrier()
    seconds = 0.0
    if comm.rank == 0:
        with threadpool_limits(cores, "blas"):
            start = time.perf_counter()
            work()
            seconds = time.perf_counter() - start
        for rank in range(1, comm.size):
            comm.send(None, rank)
    while comm.rank and not comm.iprobe(0):
        time.sleep(1e-3)
    if comm.rank:
        comm.recv(source=0)
    return float(comm.bcast(seconds))


def rounds(
    columns: Mapping[Name, Callable[[], float]], repeats: int, *, warm: int = 2, pause: float = 0.0
) -> dict[Name, list[float]]:
    """Seconds of each column in each round; the order of the columns rotates.

    Args:
        columns: functions by the name of the column; each returns its seconds.
        repeats: number of rounds.
        warm: number of warm-up rounds before them, which are left out of the result.
        pause: seconds to sleep before each call.
    """
    names = list(columns)
    times: dict[Name, list[float]] = {name: [] for name in names}
    for turn in range(repeats + warm):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            time.sleep(pause)
            seconds = columns[name]()
            if turn >= warm:
                times[name].append(seconds)
    return times
