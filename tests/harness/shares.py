"""Shares the tests out to numbers of ranks, when all numbers run.

There are five numbers of ranks, and laws of many layouts, dtypes and transports have hundreds of cases. A whole run
tries each case of a test on 2 ranks and on one of the other numbers, which the name of the case decides; of a large
family it tries each case on one of these two, so that each number has some cases of each law. With `run.py --every`, or
where numbers of ranks or files are named, each number of ranks runs all cases.
"""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

NO_DIFFERENT = "no different with more than 3 ranks, and slow"
"""The reason of tests.common.ranks.few: such tests run on three numbers of ranks, the others that may skip on few."""

LARGE = 4  # cases of a test that are shared out to one number of ranks each
SIZES = ((1, 2), (2, 3), (2, 4), (2, 6))
"""Two numbers, by the checksum of a case's name. A case of a large family has one of them, or both if it may skip; any
other has both. Jobs of 2 ranks are the fastest, and most laws show on 2."""


def share(items: list[pytest.Item], nprocs: int) -> list[pytest.Item]:
    """The tests that run on a number of ranks."""
    families = Counter(family_of(item.nodeid) for item in items)

    def runs(item: pytest.Item) -> bool:
        cases = families[family_of(item.nodeid)]
        if is_particular(item):
            return True
        return nprocs in sizes_of(item.nodeid, cases, anywhere=runs_anywhere(item))

    return list(filter(runs, items))


def family_of(nodeid: str) -> str:
    """The test of which a case is one.

    >>> family_of("tests/x.py::test_a[shared-4]")
    'tests/x.py::test_a'
    """
    return nodeid.partition("[")[0]


def sizes_of(nodeid: str, cases: int, *, anywhere: bool = True) -> tuple[int, ...]:
    """The numbers of ranks of a case of a family; `anywhere`: the case skips on none.

    >>> sorted({sizes_of(f"tests/x.py::test_{i}", 1) for i in range(20)})
    [(1, 2), (2, 3), (2, 4), (2, 6)]
    >>> sorted({sizes_of(f"tests/x.py::test_a[{i}]", LARGE) for i in range(60)})
    [(1,), (2,), (3,), (4,), (6,)]
    """
    which, pair = divmod(crc32(nodeid.encode()), len(SIZES))
    return (SIZES[pair][which % 2],) if anywhere and cases >= LARGE else SIZES[pair]


def runs_anywhere(item: pytest.Item) -> bool:
    """Whether a test runs on any number of ranks."""
    marks = *item.iter_markers("skipif"), *item.iter_markers("mpi")
    return not any("reason" in mark.kwargs or mark.kwargs.get("min_size", 1) > 1 for mark in marks)


def is_particular(item: pytest.Item) -> bool:
    """Whether a test chooses its numbers of ranks itself, so that it could be left without any."""
    reasons = [mark.kwargs.get("reason") for mark in item.iter_markers("skipif")]
    least = max((mark.kwargs.get("min_size", 1) for mark in item.iter_markers("mpi")), default=1)
    return any(reason != NO_DIFFERENT for reason in reasons) or least > 2
