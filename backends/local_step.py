"""Local work before an agreement of all ranks: all ranks raise the error of any rank."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from pblas import errors

AgreedError = errors.PblasError | KeyboardInterrupt
"""Exceptions that agreements carry: the error of one rank, which all ranks raise."""


class LocalStep:
    """A with block of local work that ends in an agreement: an exception in the block is raised on every rank.

    SystemExit becomes a PblasError too, and KeyboardInterrupt is raised on every rank.

    The ranks exchange no messages in the block, other than in agreements, and none between the block and the next
    agreement. A rank whose block raises joins that agreement at once, with its error. An exception that an agreement in
    the block has raised passes: all ranks have it. Ranks that share memory allocate none between the block and that
    agreement, or undo it (`Blocks.provisional`): their allocators stay equal. The block costs a fraction of a
    microsecond.

    >>> def agree(operation, error):
    ...     raise error
    >>> try:
    ...     with LocalStep(agree, "load"):
    ...         int("x")
    ... except errors.PblasError as error:
    ...     print(error)
    load: ValueError: invalid literal for int() with base 10: 'x'
    """

    __slots__ = ("_agree", "_kind", "_operation")

    def __init__(
        self,
        agree: Callable[[str, AgreedError], object],  # an agreement with an error, which raises (global)
        operation: str,  # for the message (global)
        # class of the error that replaces an exception of another library; None: `WorkspaceError` for a `MemoryError`,
        # else `PblasError` (global)
        kind: type[errors.PblasError] | None = None,
    ) -> None:
        self._agree, self._operation, self._kind = agree, operation, kind

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After a PeerTimeout no rank agrees.
        if caught is None or isinstance(caught, errors.PeerTimeout) or is_agreed(caught) or is_urgent(caught):
            return
        error = local_error(self._operation, caught, self._kind)
        try:
            self._agree(self._operation, error)
        except (errors.PblasError, KeyboardInterrupt) as agreed:  # perhaps that of a lower rank
            agreed.__context__, agreed.__cause__ = None, None if error is caught else caught
            raise
        raise AssertionError("an agreement with an error raises")


def is_agreed(error: BaseException) -> bool:
    """Whether an agreement has raised this exception on every rank."""
    return getattr(error, "agreed", False)


def agreed(error: Any, print_order: int = 0) -> BaseException:
    """Mark an exception that every rank raises with the same text, because all know its cause: see `is_agreed`."""
    error.agreed, error.print_order = True, print_order
    raised: BaseException = error
    return raised


def turn_of(error: BaseException) -> int:
    """The `print_order` of an agreed exception; 0 for others, so that every rank prints its own (local)."""
    return getattr(error, "print_order", 0)


def mark_urgent(error: Any) -> None:
    """Mark a KeyboardInterrupt that waits for no agreement, as the second Ctrl-C in a call: see `is_urgent`."""
    error.urgent = True


def is_urgent(error: BaseException) -> bool:
    """Whether this exception ends a call at once and breaks the context."""
    return getattr(error, "urgent", False)


def local_error(operation: str, caught: BaseException, kind: type[errors.PblasError] | None = None) -> AgreedError:
    """An exception of local work as an error that ranks can agree on; the agreement adds the rank to its text."""
    if isinstance(caught, errors.PblasError):
        return caught
    if isinstance(caught, KeyboardInterrupt):
        return KeyboardInterrupt(f"{operation}: KeyboardInterrupt: {text_of(caught)}")
    if kind is None:
        kind = errors.WorkspaceError if isinstance(caught, MemoryError) else errors.PblasError
    return kind(f"{operation}: {type(caught).__name__}: {text_of(caught)}")


def text_of(caught: BaseException) -> str:
    """The text of an exception of another library, whose class may fail to make it."""
    try:
        return str(caught)
    except Exception:  # noqa: BLE001 - whatever it raises
        return "it has no text"
