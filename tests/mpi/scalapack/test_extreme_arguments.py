"""Any integers in the arguments of any routine, on any ranks: all ranks raise the same error, or none does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pblas import scalapack
from pblas.scalapack import routines
from pblas.scalapack.grids import find
from tests.common.ranks import COMM, few, outcome_of, same_on_all_ranks
from tests.conformance import errors
from tests.conformance.suites import SUITES
from tests.conformance.tables import DESCRIPTOR_ENTRIES, FACTORS

pytestmark = [pytest.mark.mpi, few]
VALUES = (2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**64, -1, -(2**31), -(2**63), 0, 3)
ROUTINES = {
    **{routine: list(suite.letters[routine]) for suite in SUITES[:3] for routine in suite.letters},
    "tran": ["d"],
    "tranu": ["z"],
    "tranc": ["c"],
    **{routine: ["z" if routine.startswith("un") else "d"] for routine in (*FACTORS, "gemr2d", "trmr2d")},
}
COUNT = 8


@pytest.fixture(scope="module")
def ictxt() -> Iterator[int]:
    handle = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=20.0)
    yield handle
    scalapack.gridexit(handle)


def is_integer(name: str) -> bool:
    """Whether an argument is an integer that all ranks know."""
    return name in ("M", "N", "K", "NRHS") or re.fullmatch("(I|J|INC)[ABCXY]", name) is not None


def outcome(call: Callable[..., object], arguments: list[Any]) -> tuple[str, str]:
    """**Collective.** (class, text) of the exception of a call; results may differ between ranks."""
    kind, text = outcome_of(lambda: call(*arguments))
    return kind, "" if kind == "no exception" else text


@pytest.mark.parametrize("routine", ROUTINES)
def test_every_rank_raises_the_same_error_or_none(ictxt: int, routine: str) -> None:
    """One or two integers at a time, of all ranks or of some; CTXT is left alone: it says which ranks take part."""
    random = np.random.default_rng(len(routine))  # the same on all ranks
    letter = ROUTINES[routine][-1]
    process_grid = find(ictxt)
    assert process_grid is not None
    call = getattr(scalapack, f"p{letter}{routine}")
    names, raised = getattr(routines, routine.upper()).arguments, 0
    for _ in range(COUNT):
        places = [i for i, name in enumerate(names, 1) if is_integer(name) or name.startswith("DESC")]
        arguments = errors.right(routine, letter, ictxt)
        wrong = COMM.rank in random.permutation(COMM.size)[: random.integers(1, COMM.size + 1)]
        for place in random.choice(places, random.integers(1, 3)):
            entry = int(random.choice([1, *range(3, len(DESCRIPTOR_ENTRIES) + 1)]))
            value = VALUES[random.integers(len(VALUES))]
            if wrong:
                is_entry = names[place - 1].startswith("DESC")
                arguments = errors.broken(arguments, int(place), entry if is_entry else 0, value, ictxt)
        given = errors.given(arguments)
        kind, text = same_on_all_ranks(outcome(call, given))
        assert kind in ("no exception", "PblasArgumentError", "MismatchError", "WorkspaceError"), text
        assert process_grid.runtime.backend.agreement.broken is None
        raised += kind == "PblasArgumentError"
    assert raised
    assert outcome(call, errors.given(errors.right(routine, letter, ictxt))) == ("no exception", "")
