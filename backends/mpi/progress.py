"""A thread that lets MPI move messages while this rank computes.

MPI moves most bytes inside its calls only: over TCP, and between processes of a node by rendezvous. Without this thread
nothing would arrive while BLAS multiplies. The thread sleeps most of the time; BLAS has released the GIL.
"""

from __future__ import annotations

import threading
import time

from mpi4py import MPI

_PERIOD = 2e-3
"""Seconds between two polls. At 1 Gbit/s 250 kB arrive in that time, which fit into the buffers of a TCP connection.
Each poll interrupts BLAS: with 1 ms products took 1 to 5 % longer (n = 2048, two hosts, 1 Gbit/s and 1 GB/s, AMD
EPYC)."""
_TAG = 3000  # no message has this tag: the thread asks for one only to let MPI progress


class Progress:
    """Polls MPI inside a `with` block; outside of it the thread waits without using the processor."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._polling, self._in_mpi = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    @staticmethod
    def is_possible() -> bool:
        """Whether the MPI library lets two threads call it at once (local)."""
        return MPI.Query_thread() >= MPI.THREAD_MULTIPLE

    def __enter__(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pblas progress", daemon=True)
            self._thread.start()
        self._polling.set()

    def __exit__(self, *error: object) -> None:
        self._polling.clear()
        with self._in_mpi:  # the last poll has ended
            pass

    def close(self) -> None:
        """End the thread (local)."""
        self._ended = True
        self._polling.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._polling.wait()
            if self._ended:
                return
            with self._in_mpi:
                if self._polling.is_set():
                    self._comm.Iprobe(MPI.ANY_SOURCE, _TAG)
            time.sleep(_PERIOD)
