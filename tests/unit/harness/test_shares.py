"""A whole run leaves no case out: each one runs on some number of ranks, and those of small families on two."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.shares import LARGE, NO_DIFFERENT, share, sizes_of

NUMBERS = (1, 2, 3, 4, 6)


def item(nodeid: str, **marks: Any) -> Any:
    """A test with marks, each given by its arguments."""
    found = {name: SimpleNamespace(kwargs=kwargs) for name, kwargs in marks.items()}
    return SimpleNamespace(nodeid=nodeid, iter_markers=lambda name: [found[name]] if name in found else [])


def family(name: str, count: int, **marks: Any) -> list[Any]:
    return [item(f"tests/x.py::{name}[{i}]", **marks) for i in range(count)]


@pytest.mark.parametrize(("count", "numbers"), [(1, 2), (LARGE - 1, 2), (LARGE, 1), (300, 1)])
def test_each_case_runs_on_two_numbers_of_ranks_or_on_one(count: int, numbers: int) -> None:
    cases = family("test_a", count)
    kept = {n: share(cases, n) for n in NUMBERS}
    for case in cases:
        found = [n for n in NUMBERS if case in kept[n]]
        assert found == list(sizes_of(case.nodeid, count))
        assert len(found) == numbers
    assert count < 20 or all(kept.values())


@pytest.mark.parametrize("marks", [{"skipif": {"reason": "sleeps"}}, {"mpi": {"min_size": 4}}])
def test_a_test_that_chooses_its_numbers_of_ranks_is_kept(marks: dict[str, Any]) -> None:
    cases = family("test_a", 60, **marks)
    assert all(share(cases, n) == cases for n in NUMBERS)


def test_a_test_of_up_to_three_ranks_keeps_each_case_on_one_of_them() -> None:
    cases = family("test_a", 60, skipif={"reason": NO_DIFFERENT}, mpi={"min_size": 2})
    assert {case.nodeid for n in (2, 3) for case in share(cases, n)} == {case.nodeid for case in cases}
