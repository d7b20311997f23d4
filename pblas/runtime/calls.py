"""The outermost block of collective calls: one thread at a time, SIGINT deferred, exceptions raised on all ranks.

Infinities and NaN are results. So NumPy does not warn about them in the block: with warnings as errors, or after
`np.seterr(all="raise")`, the call would end on the rank that has one.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` converts handlers to enums, which takes 3 us
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from signal import SIGINT
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.backends.local_step import AgreedError, is_agreed, local_error, mark_urgent

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks

P = ParamSpec("P")
R = TypeVar("R")


_process = [os.getpid()]
"""This process, as an object that its forks have not: they have one of their own."""


_main_thread = threading.main_thread().ident


def _note_fork() -> None:
    global _process, _main_thread  # a system call in each collective call would take longer
    _process, _main_thread = [os.getpid()], threading.get_ident()


os.register_at_fork(after_in_child=_note_fork)


class Calls:
    """The collective calls of one context."""

    def __init__(self, backend: HostRanks) -> None:
        self.backend = backend
        self.closed = False  # whether the context is closed, so that no agreement follows (global)
        self.read_since = -1  # the last agreement before peers began to read memory of this rank (global)
        self.called = ""  # the public call that is under way, or the last one (global)
        self.users = ""  # the call that calls a function of the user at the moment, if there is one (local)
        self._process = _process
        self._thread = threading.RLock()  # held by the thread that is in a call
        self._depth = 0
        self._handler: Any = None
        self._struck = False  # whether a SIGINT has come in this call (local)
        self._quiet = np.errstate()  # left at the end of the outermost call
        self._start = 0.0  # time when the outermost call began, if calls are timed for the log (local)

    def enter(self, opname: str) -> None:
        """Begin a call, perhaps inside another one (local)."""
        if self._process is not _process:
            raise errors.ContextError(
                f"{opname}: the context belongs to the process {self._process[0]}, and this is its fork {_process[0]}: "
                f"it would speak in the name of rank {self.backend.rank}; send arrays to that process instead"
            )
        if not self._thread.acquire(blocking=False):
            raise errors.ContextError(
                f"{opname}: the context is used by two threads at once; make a context for each thread, or let them "
                f"take turns"
            )
        if self.users:
            self._thread.release()
            raise errors.ContextError(
                f"{opname}: {self.users} calls a function of yours, which makes this collective call; the ranks do not "
                f"call the function at the same time. Compute what it needs before"
            )
        self._depth += 1
        if self._depth > 1:
            return
        self.called = opname
        self.backend.agreement.in_call, self._struck = True, False
        self._quiet = np.errstate(all="ignore")
        self._quiet.__enter__()
        self._start = time.perf_counter() if log.is_on(log.DEBUG) else 0.0
        if threading.get_ident() == _main_thread:
            handler = _signal.getsignal(SIGINT)
            if callable(handler):  # otherwise SIGINT is ignored, or ends the process
                self._handler = handler
                _signal.signal(SIGINT, self._defer)

    def leave(self, opname: str, caught: BaseException | None) -> None:
        """End a call, with its exception if there is one (local)."""
        if self._depth > 1:
            try:
                self._depth -= 1
            finally:
                self._thread.release()
            return
        if self._start:
            ms = 1e3 * (time.perf_counter() - self._start)
            log.write(
                log.DEBUG, self.backend.rank, "%s: %.3f ms%s", opname, ms, "" if caught is None else ", it raised"
            )
        try:
            if caught is not None:
                self._fail(opname, caught)
            elif self.backend.agreement.interrupted and (self.backend.size == 1 or self.closed):
                self.backend.agreement.interrupted = False
                raise KeyboardInterrupt
        finally:
            self._depth = 0
            self.backend.agreement.in_call = False
            self._quiet.__exit__(None, None, None)
            try:
                if self._handler is not None:
                    _signal.signal(SIGINT, self._handler)
                    self._handler = None
            finally:
                self._thread.release()

    @contextmanager
    def users_function(self, opname: str) -> Iterator[None]:
        """See `Runtime.users_function`."""
        self._quiet.__exit__(None, None, None)
        try:
            self.users = opname
            yield
        finally:
            self._quiet = np.errstate(all="ignore")
            self._quiet.__enter__()
            self.users = ""

    def end_reading(self, opname: str, maxima: tuple[int, ...] = ()) -> tuple[int, ...]:
        """**Collective.** See `Runtime.end_reading`."""
        if not maxima and self.read_since != self.backend.agreement.ncalls:
            return ()
        return self.backend.agree(f"end of {opname}", maxima=maxima).maxima[: len(maxima)]

    def _fail(self, opname: str, caught: BaseException) -> None:
        """Raise on all ranks an exception that no agreement has raised; return if the ranks have it already (local)."""
        agreement = self.backend.agreement
        if is_agreed(caught) or agreement.broken is not None or self.closed:
            return
        error: AgreedError
        if isinstance(caught, Exception):
            error = local_error(opname, caught)
        else:
            text = f"{opname}: {type(caught).__name__} in the middle of it"
            error = KeyboardInterrupt(text) if isinstance(caught, KeyboardInterrupt) else errors.PblasError(text)
        cause = None if error is caught else caught
        if self.backend.size == 1:
            if cause is not None and isinstance(caught, Exception):
                raise error from cause
            return
        try:
            self.backend.abort(error)
        except (errors.PblasError, KeyboardInterrupt) as agreed:
            if not isinstance(caught, Exception | KeyboardInterrupt):  # as SystemExit
                return
            agreed.__context__ = None
            raise agreed from cause

    def _defer(self, number: int, frame: FrameType | None) -> None:
        """Handle a SIGINT in a call: the next agreement raises its KeyboardInterrupt, a second one raises it now."""
        agreement = self.backend.agreement
        try:
            self._handler(number, frame)
        except KeyboardInterrupt as caught:
            # One that came late in the call before may be pending; it is no reason to hurry in this call.
            is_second = agreement.interrupted and self._struck
            agreement.interrupted, self._struck = not is_second, True
            if is_second:
                mark_urgent(caught)
                raise


class CollectiveCall:
    """A with block around a collective call: see `Calls`."""

    __slots__ = ("_begin", "_calls", "_opname")

    def __init__(self, calls: Calls, opname: str, begin: Callable[[str], object]) -> None:
        self._calls, self._opname, self._begin = calls, opname, begin

    def __enter__(self) -> None:
        self._calls.enter(self._opname)
        try:
            self._begin(self._opname)
        except BaseException as caught:
            self._calls.leave(self._opname, caught)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        calls = self._calls
        if calls.read_since >= 0:
            try:
                if (caught is None or is_agreed(caught)) and calls.backend.agreement.broken is None:
                    calls.end_reading(self._opname)
            except BaseException as failed:
                calls.leave(self._opname, failed)
                raise
            finally:
                calls.read_since = -1
        calls.leave(self._opname, caught)


def collective(method: Callable[P, R]) -> Callable[P, R]:
    """Decorator of a public collective method of an object that has the `runtime` of a context: see `Runtime.call`.

    Arguments that the method does not take, as a misspelt keyword, raise a TypeError on this rank alone, as for any
    function of Python: the call has not begun, no rank learns of it, and the context stays usable.
    """
    opname = method.__name__

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not args:
            return method(*args, **kwargs)  # raises TypeError: `self` is missing
        owner: Any = args[0]
        with owner.runtime.call(opname):
            try:
                return method(*args, **kwargs)
            except TypeError as error:
                if not _is_unbound(error):
                    raise
                unbound = error
        try:
            raise unbound  # after the end of the call, which has no error
        finally:
            del unbound  # the traceback refers to this frame: arrays would live until the next garbage collection

    return call


def _is_unbound(error: TypeError) -> bool:
    """Whether Python has not bound the arguments of the called method: no frame is below the caller's (local)."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None
