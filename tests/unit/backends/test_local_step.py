"""Local steps before an agreement: every exception of one rank becomes the exception of all ranks."""

from __future__ import annotations

import pytest

from pblas import errors
from pblas.backends.local_step import AgreedError, LocalStep, local_error, mark_urgent


class Agreement:
    """An agreement of two ranks, seen from rank 1; rank 0 may have an error too."""

    def __init__(self, other: errors.PblasError | None = None) -> None:
        self.heard: list[tuple[str, AgreedError]] = []
        self._other = other

    def __call__(self, opname: str, error: AgreedError) -> None:
        self.heard.append((opname, error))
        raise self._other or type(error)(f"{error}; found on rank 1 of 2")


class Silent(Exception):
    """An exception whose `str` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_successful_step_needs_no_agreement() -> None:
    agreement = Agreement()
    with LocalStep(agreement, "zeros"):
        pass
    assert not agreement.heard


def test_an_error_of_pblas_is_raised_unchanged() -> None:
    agreement, wrong = Agreement(), errors.DTypeError("zeros: no dtype")
    with (
        pytest.raises(errors.DTypeError, match=r"zeros: no dtype; found on rank 1 of 2") as caught,
        LocalStep(agreement, "zeros"),
    ):
        raise wrong
    assert agreement.heard == [("zeros", wrong)]
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (ZeroDivisionError("by zero"), errors.PblasError, "save: ZeroDivisionError: by zero"),
        (PermissionError(13, "denied"), errors.PblasError, "save: PermissionError: [Errno 13] denied"),
        (MemoryError(), errors.WorkspaceError, "save: MemoryError: "),
        (Silent(), errors.PblasError, "save: Silent: it has no text"),
        (SystemExit(3), errors.PblasError, "save: SystemExit: 3"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_exception_becomes_an_error_of_pblas_that_names_it(
    raised: BaseException, kind: type[errors.PblasError], text: str
) -> None:
    with pytest.raises(errors.PblasError) as caught, LocalStep(Agreement(), "save"):
        raise raised
    assert type(caught.value) is kind
    assert str(caught.value) == f"{text}; found on rank 1 of 2"
    assert caught.value.__cause__ is raised, "the cause shows the line that failed"


def test_exceptions_of_a_library_become_a_given_class() -> None:
    with pytest.raises(errors.BackendError), LocalStep(Agreement(), "load", errors.BackendError):
        raise MemoryError
    assert type(local_error("load", errors.DTypeError("x"), errors.BackendError)) is errors.DTypeError


def test_the_error_of_a_lower_rank_counts() -> None:
    lower = errors.ArgumentError("of rank 0")
    with pytest.raises(errors.ArgumentError, match="of rank 0"), LocalStep(Agreement(lower), "save"):
        raise errors.DTypeError("of rank 1")


def test_an_interrupt_is_one_of_all_ranks() -> None:
    with (
        pytest.raises(KeyboardInterrupt, match="save: KeyboardInterrupt: by hand; found on rank 1"),
        LocalStep(Agreement(), "save"),
    ):
        raise KeyboardInterrupt("by hand")


def test_the_second_interrupt_and_timeouts_do_not_wait_for_others() -> None:
    agreement, second = Agreement(), KeyboardInterrupt()
    mark_urgent(second)
    for error in (second, errors.PeerTimeout()):
        with pytest.raises(type(error)) as caught, LocalStep(agreement, "save"):
            raise error
        assert caught.value is error
    assert not agreement.heard
