"""NumPy in a separate process without MPI: the peer of a benchmark, which neither MPI nor other threads disturb.

A rank that waits inside MPI occupies a core, and the worker threads of OpenBLAS poll for a tenth of a second after a
call. So all other ranks sleep while NumPy works, and the caller sleeps before the next column (`PAUSE`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from mpi4py import MPI

COMM = MPI.COMM_WORLD
PAUSE = 0.25
"""Seconds of sleep before each column, for `rounds`."""
_TAG = 7
# For every line, which is a statement, the process executes it once and prints the seconds.
_PROGRAM = """
import sys, time, numpy as np
from threadpoolctl import threadpool_limits
names = {"np": np}
exec(sys.argv[2], names)
threadpool_limits(int(sys.argv[1]))
for line in sys.stdin:
    work = compile(line, "statement", "exec")
    start = time.perf_counter(); exec(work, names); print(time.perf_counter() - start, flush=True)
"""


class Alone:
    """**Collective.** NumPy in a process of its own, which rank 0 starts, and which sleeps between calls.

    Args:
        prepare: statements that make the arrays (global).
        threads: of BLAS; None for one per rank (global).
    """

    def __init__(self, prepare: str, threads: int | None = None) -> None:
        self._process: subprocess.Popen[str] | None = None
        if COMM.rank == 0:
            arguments = [sys.executable, "-c", _PROGRAM, str(threads or COMM.size), prepare]
            pipe, environment = subprocess.PIPE, {"PATH": "/usr/bin:/bin"}
            self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, env=environment)

    def seconds(self, statement: str) -> float:
        """**Collective.** Seconds of one execution of a statement, such as "np.add(a, b, out=c)"."""

        def work() -> float:
            assert self._process is not None
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(f"{statement}\n")
            self._process.stdin.flush()
            return float(self._process.stdout.readline())

        return sleep_until_called(work)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()


def sleep_until_called(work: Callable[[], float]) -> float:
    """**Collective.** Seconds of `work` on rank 0, while the other ranks sleep outside MPI."""
    if COMM.rank == 0:
        COMM.Barrier()
        time.sleep(0.02)
        seconds = work()
        for rank in range(1, COMM.size):
            COMM.send(seconds, rank, _TAG)
        return seconds
    COMM.Barrier()
    while not COMM.Iprobe(0, _TAG):
        time.sleep(5e-3)
    return float(COMM.recv(source=0, tag=_TAG))
