"""Shares the tests out to numbers of ranks, when all numbers run.

There are five numbers of ranks, and laws of many layouts, dtypes and transports have hundreds of cases. A whole run
tries each case of a test on 2 ranks and on one of the other numbers, which the name of the case decides; of a large
family it tries each case on one of these two, so that each number has some cases of each law. With `run.py --every`, or
where numbers of ranks or files are named, each number of ranks runs all cases.

A test that needs particular numbers of ranks has the mark `ranks(*numbers, reason)`, or `mpi(min_size)`. A whole run
leaves it out on other numbers. So a test that is skipped in a whole run lacks something: a package, a tool, a network.
"""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

NUMBERS = (1, 2, 3, 4, 6)
"""Numbers of ranks of a whole run."""
NO_DIFFERENT = "no different with more ranks, and slow"
"""The reason of tests.common.ranks.few, and of others: their cases are shared out too, to the numbers of the mark."""

LARGE = 4  # cases of a test that are shared out to one number of ranks each
SIZES = ((1, 2), (2, 3), (2, 4), (2, 6))
"""Two numbers, by the checksum of a case's name. A case of a large family has one of them, or both if it may skip; any
other has both. Jobs of 2 ranks are the fastest, and most laws show on 2."""


def share(items: list[pytest.Item], nprocs: int) -> list[pytest.Item]:
    """The tests that run on a number of ranks.

    Raises:
        pytest.UsageError: a test that would run on no number of ranks.
    """
    families = Counter(family_of(item.nodeid) for item in items)

    def runs(item: pytest.Item) -> bool:
        sizes: tuple[int, ...] = NUMBERS
        if not is_particular(item):
            sizes = sizes_of(item.nodeid, families[family_of(item.nodeid)], anywhere=runs_anywhere(item))
        possible = [n for n in sizes if can_run(item, n)]
        if not possible:
            raise pytest.UsageError(f"{item.nodeid} would run on no number of ranks of {NUMBERS}")
        return nprocs in possible

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
    marks = *item.iter_markers("skipif"), *item.iter_markers("ranks"), *item.iter_markers("mpi")
    return not any("reason" in mark.kwargs or mark.kwargs.get("min_size", 1) > 1 for mark in marks)


def can_run(item: pytest.Item, nprocs: int) -> bool:
    """Whether the marks `ranks` and `mpi` of a test allow a number of ranks."""
    allowed = all(nprocs in mark.args for mark in item.iter_markers("ranks"))
    return allowed and all(nprocs >= mark.kwargs.get("min_size", 1) for mark in item.iter_markers("mpi"))


def is_particular(item: pytest.Item) -> bool:
    """Whether a test chooses its numbers of ranks itself, so that it could be left without any."""
    reasons = [mark.kwargs.get("reason") for name in ("skipif", "ranks") for mark in item.iter_markers(name)]
    least = max((mark.kwargs.get("min_size", 1) for mark in item.iter_markers("mpi")), default=1)
    return any(reason != NO_DIFFERENT for reason in reasons) or least > 2
