"""The program of each rank: it makes a context, and calls the functions that the caller sends."""

from __future__ import annotations

import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from pblas import errors
from pblas.backends import segments
from pblas.backends.local_step import AgreedError, is_agreed, local_error
from pblas.backends.select import start_mpi
from pblas.context import Context
from pblas.launch.channel import Channel, Failure, Frames, Outcome, packed, unpacked
from pblas.launch.handles import KeptObjects

_VERB = "the end of the function of pblas.run"


def main(path: str) -> None:
    """Serve the caller that listens at `path` until it says that this is all."""
    stream = socket.socket(socket.AF_UNIX)
    try:
        stream.connect(path)
    except OSError as caught:
        sys.exit(
            f"a rank on {socket.gethostname()} cannot reach the process that started it ({caught}): pblas.run and "
            f"pblas.Pool start ranks on one machine. For several, start a script by mpiexec or srun"
        )
    _send_output(stream)
    channel = Channel(stream)
    inbox: SimpleQueue[Frames] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    setup = inbox.get()
    start_mpi()
    channel.send(Outcome(-1, frames=packed("pblas.run", segments.mapped(), "MPI's shared memory")).message())
    if inbox.get():
        Rank(channel, unpacked(setup)).serve(inbox)


def _send_output(stream: socket.socket) -> None:
    """Hand this process's output to the caller: the reading ends of two pipes, which replace stdout and stderr.

    The number of this process goes with them.

    Output that a rank writes before it reports the end of a call is then already in the pipe. Through mpiexec it could
    arrive later.
    """
    ends = []
    for descriptor in (1, 2):
        reading, writing = os.pipe()
        os.dup2(writing, descriptor)
        os.close(writing)
        ends.append(reading)
    socket.send_fds(stream, [str(os.getpid()).encode()], ends)
    for end in ends:
        os.close(end)
    for text in (sys.stdout, sys.stderr):
        text.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]


def _listen(channel: Channel, inbox: SimpleQueue[Frames]) -> None:
    """Receive messages, also while a function runs: if the caller is gone, this process ends at once."""
    try:
        frames: Frames = [b""]
        while frames:
            frames = channel.receive() or ()
            inbox.put(frames)
    except EOFError:
        segments.unlink(segments.mapped())
        os._exit(1)


class Rank:
    """A rank that a program has started by `pblas.run` or `Pool`, and its context, for as long as the rank lives."""

    def __init__(self, channel: Channel, options: dict[str, Any]) -> None:
        self._channel, self._options = channel, options
        self._context: Context | None = None
        self._kept = KeptObjects()  # which live as long as the context
        self._lost = ""  # why the present call has a new context
        self._pid = os.getpid()

    def serve(self, inbox: SimpleQueue[Frames]) -> None:
        """**Collective.** Make the context, and call the functions of all messages up to an empty one."""
        self._report(lambda: self._opened().nprocs)
        while frames := inbox.get():
            self._call(frames)
            del frames  # the arguments of a call do not stay until the next one
        if self._context is not None:
            self._context.close()

    def _opened(self) -> Context:
        """**Collective.** The context, made anew if there is none, or if a function has closed or broken it."""
        context, self._context, self._lost = self._context, None, ""
        if context is not None and (context.runtime.closed or _broken(context)):
            self._lost = _broken(context)
            context.__exit__(errors.ContextError, None, None)
            context, self._kept = None, KeptObjects()
        self._context = Context(**self._options) if context is None else context
        return self._context

    def _call(self, frames: Frames) -> None:
        """**Collective.** Call the function of a message, report how it ended, and wait for the other ranks."""
        head, *rest = frames
        number, freed = unpacked([head])

        def call() -> Any:
            self._kept.free(freed)
            context = self._opened()
            function, args, kwargs = unpacked(rest, self._kept.find)
            try:
                return function(context, *args, **kwargs)
            except BaseException as error:
                if _broken(context):
                    error.add_note("The context is broken: the next call gets a new one, without its attributes.")
                raise

        error = self._report(call, number)
        if self._context is not None:
            _synchronize(self._context, error)

    def _report(self, call: Callable[[], object], number: int | None = None) -> BaseException | None:
        """Report the value or the exception of a call to the caller; the exception is returned too (local).

        Of a call with a number, objects that cannot be sent stay and get names, and the value is that of rank 0.
        """
        caught: BaseException | None = None
        try:
            result = call()
            name_of = None if number is None else self._kept.keeping(number)
            value = packed("pblas.run", result, f"the result of rank {self._rank}", name_of)
            if number is not None and self._rank > 0:
                value = packed("pblas.run", None, "nothing")
            outcome = Outcome(self._rank, frames=value, lost=self._lost)
        except BaseException as error:  # noqa: BLE001 - SystemExit too is for the caller
            caught, outcome = error, Outcome(self._rank, Failure.of(error), lost=self._lost)
        if os.getpid() != self._pid:
            print(f"pblas: a fork of rank {self._rank} returned; it ends here, and its result is lost", file=sys.stderr)
            os._exit(1)
        for text in (sys.stdout, sys.stderr):
            text.flush()
        self._channel.send(outcome.message())
        return caught

    @property
    def _rank(self) -> int:
        return -1 if self._context is None else self._context.rank


def _broken(context: Context) -> str:
    """Why a context cannot be used any more; "" if it can."""
    broken = context.runtime.backend.agreement.broken
    return "" if broken is None else str(broken)


def _synchronize(context: Context, error: BaseException | None) -> None:
    """**Collective.** Wait until the function has ended on all ranks, without a deadline.

    Ranks that are still in a collective call of the function raise this rank's exception there, or a MismatchError.
    """
    agreement = context.runtime.backend.agreement
    own: AgreedError | None = None
    if error is not None and not is_agreed(error):
        text = f"{_VERB}: {type(error).__name__}"
        own = local_error(_VERB, error) if isinstance(error, Exception) else errors.PblasError(text)
    while not context.runtime.closed and agreement.broken is None:
        with suppress(errors.PblasError, KeyboardInterrupt):
            agreement.agree(_VERB, own, timeout=math.inf)
            return
        own = None  # all ranks have raised it, and those in the function have to come here yet
