"""A thread that answers for its process while the process computes: ranks that wait ask whether it is alive.

MPI and Gloo deliver a question to a rank that multiplies, but the rank reads no messages meanwhile. BLAS, LAPACK, long
loops of NumPy and `time.sleep` leave the interpreter to this thread. A function that holds the interpreter for longer
than the timeout of a context counts as stopped. Where MPI does not let two threads call it, no rank answers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pblas.backends.agreement import Agreement
    from pblas.backends.transport import Transport

_PERIOD = 0.05
"""Seconds between two looks at the questions: a look takes 10 us, and answers must come within a second."""


class _Answers:
    """The thread, and the agreements for which it answers, each with messages of its own."""

    def __init__(self) -> None:
        self._agreements: dict[Agreement, Transport] = {}
        self._lock = threading.Lock()  # held while the thread is in MPI
        self._any = threading.Event()
        self._ended = threading.Event()
        self._transports = set[str]()

    def begin(self, agreement: Agreement, peers: Transport) -> None:
        """Answer for an agreement from now on, if a thread of its own may send messages (local)."""
        own = peers.of_another_thread()
        if own is None or peers.size == 1:
            return
        if not self._transports:
            threading.Thread(target=self._run, name="pblas liveness", daemon=True).start()
        if peers.name not in self._transports:
            self._transports.add(peers.name)
            peers.before_end(self._stop)
        with self._lock:
            self._agreements[agreement] = own
        agreement.asks = True
        self._any.set()

    def end(self, agreement: Agreement) -> None:
        """Answer no more; the thread is not in the midst of it afterwards (local)."""
        agreement.asks = False
        with self._lock:
            self._agreements.pop(agreement, None)
            if not self._agreements:
                self._any.clear()

    def _stop(self) -> None:
        self._ended.set()
        self._any.set()
        with self._lock:
            self._agreements.clear()

    def _run(self) -> None:
        while not self._ended.wait(_PERIOD):
            self._any.wait()
            with self._lock:
                for agreement, peers in self._agreements.items():
                    agreement.answer(peers)


_answers = _Answers()
begin, end = _answers.begin, _answers.end
