"""Progress of a long call: a line on the standard error of rank 0, or calls of a function that the caller passes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pblas import errors
from pblas.backends.agreement import PROGRESS
from pblas.backends.local_step import is_urgent
from pblas.runtime.runtime import Runtime, checked_flag

ProgressTarget = bool | Callable[[str, float], object]
"""The argument progress= of calls: whether a line is printed; or a function of the stage's name and finished share."""
StageReport = Callable[[float], None] | None
"""A function that a stage calls with its finished share, 0 to 1; None on ranks that report nothing."""

_INTERVAL = 0.25  # seconds between two reports
_INTERVAL_OF_LOGS = 5.0
"""Seconds between two lines where standard error is no terminal, so that each report is a line of its own."""


class Progress:
    """**Collective.** A with block around the stages of a call that reports its progress.

    An exception of the caller's function is kept, and raised on all ranks when the block ends: the stages send messages
    meanwhile. Without progress the block costs nothing.
    """

    def __init__(
        self, opname: str, runtime: Runtime, target: object, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._opname, self._runtime, self._target, self._clock = opname, runtime, target, clock
        self._is_on = target is not False
        self._interval, self._start, self._last = _INTERVAL, 0.0, 0.0
        self._printed = 0
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        if self._is_on:
            with self._runtime.local_step(self._opname):
                if not callable(self._target):
                    if not isinstance(self._target, int):
                        raise errors.ArgumentError(
                            f"{self._opname}: progress must be True, False or a function, got {self._target!r}"
                        )
                    self._is_on = checked_flag(self._opname, "progress", self._target)
        if self._is_on:
            self._runtime.agree(f"{self._opname}{PROGRESS}", {})
            self._start = self._last = self._clock()
            if not callable(self._target) and not _is_terminal():
                self._interval = _INTERVAL_OF_LOGS
        return self

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_on:
            return
        if self._printed and _is_terminal():
            print(file=sys.stderr)
        # An executor keeps the report of its last stage, and an exception its frames: neither may keep matrices alive.
        error, self._error, self._target = self._error, None, None
        try:
            if caught is None:
                with self._runtime.local_step(f"{self._opname}: progress"):
                    if error is not None:
                        raise error
                self._runtime.agree(f"end of {self._opname}: progress", {})
        finally:
            del error

    def stage(self, name: str) -> StageReport:
        """The reports of one stage of the call (local)."""
        if not self._is_on or self._runtime.rank:
            return None
        return lambda done: self._report(name, done)

    def _report(self, stage: str, done: float) -> None:
        """Report, unless the last report was a moment ago; a function always gets the end of a stage (local)."""
        now = self._clock()
        is_told = callable(self._target) and done >= 1
        if self._error is not None or (now - self._last < self._interval and not is_told):
            return
        self._last = now
        try:
            if callable(self._target):
                with self._runtime.users_function(f"{self._opname}(progress=...)"):
                    self._target(stage, done)
            elif sys.stderr is not None:  # None if the shell has closed it
                self._print(f"{self._opname}: {stage} {done:4.0%}, {now - self._start:.0f} s")
        except BaseException as caught:  # a user's function; `__exit__` raises it
            if is_urgent(caught):
                raise
            self._error = caught

    def _print(self, text: str) -> None:
        """Print a line, over the line before if there is a terminal (local)."""
        if _is_terminal():
            print("\r" + text.ljust(self._printed), end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)
        self._printed = len(text)


def _is_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
