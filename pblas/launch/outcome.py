"""How a function ended on a rank: its value, or its exception with the traceback as text."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

from pblas import errors
from pblas.backends.local_step import is_agreed
from pblas.launch.channel import Frames, cloudpickle_for


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception of a rank."""

    raw: bytes
    """The pickled exception; empty if it cannot be pickled."""
    text: str
    """Class and message."""
    trace: str
    """The traceback, as Python prints it."""
    agreed: bool
    """Whether the ranks have agreed on it: perhaps it comes from another rank's exception."""

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The failure of an exception; the frames of the worker are left out of its traceback."""
        first = error.__traceback__
        while first is not None and first.tb_frame.f_globals.get("__name__") == "pblas.launch.worker":
            first = first.tb_next
        trace = "".join(traceback.format_exception(type(error), error, first))
        text = traceback.format_exception_only(error)[-1].strip()
        try:
            raw = cloudpickle_for("pblas.run").dumps(error)
            pickle.loads(raw)  # noqa: S301 - some classes pickle, and fail here
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            raw = b""
        return Failure(raw, text, trace, is_agreed(error))

    def error(self) -> BaseException:
        """The exception, of its own type where it can be unpickled, else a PblasError with its text."""
        if self.raw:
            try:
                error = pickle.loads(self.raw)  # noqa: S301 - from a rank of this user's own job
            except Exception:  # noqa: BLE001 - a user's class may raise anything
                error = None
            if isinstance(error, BaseException):
                return error
        return errors.PblasError(f"{self.text} (an exception that cannot be pickled)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a rank on the end of a call."""

    rank: int
    """Of the context; -1 if there is no context."""
    failure: Failure | None = None
    frames: Frames = ()
    """The value, packed; nothing after a failure."""

    def message(self) -> Frames:
        """The frames to send."""
        return [pickle.dumps((self.rank, self.failure)), *self.frames]

    @staticmethod
    def of(message: Frames) -> Outcome:
        """The outcome of a message. Its value stays packed: unpickling it may raise anything."""
        rank, failure = pickle.loads(message[0])  # noqa: S301 - from a rank of this user's own job
        return Outcome(rank, failure, message[1:])


def first_error(failures: Mapping[int, Failure], nranks: int) -> BaseException:
    """The exception to raise, with a note of the ranks' tracebacks.

    It is that of the lowest rank. A rank's own exception comes before those that the ranks have agreed on, which may be
    its consequence.
    """
    rank, first = min(failures.items(), key=lambda item: (item[1].agreed, item[0]))
    others = [f"Rank {r}: {f.text}" for r, f in sorted(failures.items()) if not f.agreed and f.text != first.text]
    error = first.error()
    error.add_note("\n".join([f"On rank {rank} of {nranks}:", first.trace.rstrip(), *others]))
    return error
