"""Shares the tests out to numbers of ranks, when all numbers run.

There are five numbers of ranks, and laws of many layouts, dtypes and transports have hundreds of cases. A whole run
tries each case of a large family on one number of ranks, which the name of the case decides, and of a small one on two.
Jobs of 2 ranks are the fastest, and most laws show on 2: two thirds of a large family run there, and all of a small
one. Of a law about every public call, which has some hundred cases, a whole run tries every eighth one. With
`run.py --every`, or where numbers of ranks or files are named, each number of ranks runs all cases.

A test that needs particular numbers of ranks has the mark `ranks(*numbers, reason)`, or `mpi(min_size)`: its cases are
shared out to these, or all run on the largest with `ranks(..., once=True)`. So a test that is skipped in a whole run
lacks something: a package, a tool, a network. Names of cases are the same on all numbers of ranks: one that differs may
run on none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from zlib import crc32

import pytest

NUMBERS = (1, 2, 3, 4, 6)
"""Numbers of ranks of a whole run."""
LARGE = 4  # cases of a test that are shared out to one number of ranks each
LAWS = "tests/mpi/laws/", "tests/mpi/faults/"
LAW = 90  # cases of a test in these folders of which a whole run tries every eighth one


def share(items: list[pytest.Item], nprocs: int) -> list[pytest.Item]:
    """The tests that run on a number of ranks.

    Raises:
        pytest.UsageError: a test that would run on no number of ranks.
    """
    families = Counter(family_of(item.nodeid) for item in items)

    def runs(item: pytest.Item) -> bool:
        allowed = [n for n in NUMBERS if can_run(item, n)]
        if not allowed:
            raise pytest.UsageError(f"{item.nodeid} would run on no number of ranks of {NUMBERS}")
        if any(mark.kwargs.get("once") for mark in item.iter_markers("ranks")):
            allowed = allowed[-1:]
        return nprocs in numbers_of(item.nodeid, families[family_of(item.nodeid)], allowed)

    return list(filter(runs, items))


def family_of(nodeid: str) -> str:
    """The test of which a case is one.

    >>> family_of("tests/x.py::test_a[shared-4]")
    'tests/x.py::test_a'
    """
    return nodeid.partition("[")[0]


def numbers_of(nodeid: str, cases: int, allowed: Iterable[int] = NUMBERS) -> list[int]:
    """The numbers of ranks of a case of a family, of those that its marks allow.

    >>> sorted(numbers_of("tests/x.py::test_a", 1))
    [2, 4]
    >>> sorted({n for i in range(60) for n in numbers_of(f"tests/x.py::test_a[{i}]", LARGE)})
    [1, 2, 3, 4, 6]
    >>> numbers_of("tests/x.py::test_a", 1, [3])
    [3]
    >>> 2 < sum(len(numbers_of(f"tests/mpi/laws/x.py::test_a[{i}]", LAW)) for i in range(60)) < 14
    True
    """
    if cases >= LAW and nodeid.startswith(LAWS) and crc32(nodeid.encode()[::-1]) // 256 % 8:
        return []
    two = sorted(allowed, key=lambda n: (n != 2, crc32(f"{n} {nodeid}".encode())))[:2]
    return two if cases < LARGE else [two[-(crc32(nodeid.encode()) % 3 == 0)]]


def can_run(item: pytest.Item, nprocs: int) -> bool:
    """Whether the marks `ranks` and `mpi` of a test allow a number of ranks."""
    allowed = all(nprocs in mark.args for mark in item.iter_markers("ranks"))
    return allowed and all(nprocs >= mark.kwargs.get("min_size", 1) for mark in item.iter_markers("mpi"))
