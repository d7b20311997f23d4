"""Shares the cases of a large parametrized test out to numbers of ranks, when all numbers run.

Laws of many layouts, dtypes and transports have hundreds of cases, and there are five numbers of ranks. A whole run
tries each case on 2 ranks and on one other number, which the name of the case decides, so that each number has some
cases of each law; of the largest families it tries each case on one of the two. With `run.py --every`, or where numbers
of ranks or files are named, each number of ranks runs all cases.
"""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

NO_DIFFERENT = "no different with more than 3 ranks, and slow"
"""The reason of tests.common.ranks.few: such tests run on three numbers of ranks, the others that may skip on few."""

LARGE, LARGEST = 4, 12  # cases of a test that are shared out to two numbers of ranks each, to one each
SIZES = ((1, 2), (2, 3), (2, 4), (2, 6))
"""Numbers of ranks of a case, by the checksum of its name. Jobs of 2 ranks are the fastest, and most laws show on 2."""


def share(items: list[pytest.Item], nprocs: int) -> list[pytest.Item]:
    """The tests that run on a number of ranks."""
    families = Counter(family_of(item.nodeid) for item in items)

    def runs(item: pytest.Item) -> bool:
        cases = families[family_of(item.nodeid)]
        if cases < LARGE or is_particular(item):
            return True
        return nprocs in sizes_of(item.nodeid, cases if runs_anywhere(item) else LARGE)

    return list(filter(runs, items))


def family_of(nodeid: str) -> str:
    """The test of which a case is one.

    >>> family_of("tests/x.py::test_a[shared-4]")
    'tests/x.py::test_a'
    """
    return nodeid.partition("[")[0]


def sizes_of(nodeid: str, cases: int) -> tuple[int, ...]:
    """The numbers of ranks of a case of a large family.

    >>> {sizes_of(f"tests/x.py::test_a[{i}]", LARGE) for i in range(20)} == set(SIZES)
    True
    >>> sorted({sizes_of(f"tests/x.py::test_a[{i}]", LARGEST) for i in range(60)})
    [(1,), (2,), (3,), (4,), (6,)]
    """
    which, pair = divmod(crc32(nodeid.encode()), len(SIZES))
    return SIZES[pair] if cases < LARGEST else (SIZES[pair][which % 2],)


def runs_anywhere(item: pytest.Item) -> bool:
    """Whether a test runs on any number of ranks."""
    marks = *item.iter_markers("skipif"), *item.iter_markers("mpi")
    return not any("reason" in mark.kwargs or mark.kwargs.get("min_size", 1) > 1 for mark in marks)


def is_particular(item: pytest.Item) -> bool:
    """Whether a test chooses its numbers of ranks itself, so that it could be left without any."""
    reasons = [mark.kwargs.get("reason") for mark in item.iter_markers("skipif")]
    least = max((mark.kwargs.get("min_size", 1) for mark in item.iter_markers("mpi")), default=1)
    return any(reason != NO_DIFFERENT for reason in reasons) or least > 2
