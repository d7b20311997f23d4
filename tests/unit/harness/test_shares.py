"""Each case runs on a number of ranks that its marks allow, of a small family on two, of a law every third one."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.shares import LARGE, LAW, NUMBERS, numbers_of, share


def copied(marks: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(arguments) for name, arguments in marks.items()}


def item(nodeid: str, **marks: Any) -> Any:
    """A test with marks, each given by its keyword arguments; `numbers` are the arguments of the mark ranks."""
    found = {name: SimpleNamespace(args=kw.pop("numbers", ()), kwargs=kw) for name, kw in copied(marks).items()}
    return SimpleNamespace(nodeid=nodeid, iter_markers=lambda name: [found[name]] if name in found else [])


def family(name: str, count: int, folder: str = "tests", **marks: Any) -> list[Any]:
    return [item(f"{folder}/x.py::{name}[{i}]", **marks) for i in range(count)]


@pytest.mark.parametrize(("count", "numbers"), [(1, 2), (LARGE - 1, 2), (LARGE, 1), (300, 1)])
def test_each_case_runs_on_two_numbers_of_ranks_or_on_one(count: int, numbers: int) -> None:
    cases = family("test_a", count)
    kept = {n: share(cases, n) for n in NUMBERS}
    for case in cases:
        found = [n for n in NUMBERS if case in kept[n]]
        assert found == sorted(numbers_of(case.nodeid, count))
        assert len(found) == numbers
    assert count < 20 or all(kept.values())


def test_of_a_law_about_an_eighth_of_the_cases_run_each_on_one_number_of_ranks() -> None:
    cases = family("test_a", 3 * LAW, "tests/mpi/laws")
    kept = {n: share(cases, n) for n in NUMBERS}
    found = [sum(case in kept[n] for n in NUMBERS) for case in cases]
    assert {*found} == {0, 1}
    assert LAW / 4 < sum(found) < LAW / 2  # of 3 LAW
    assert all(kept.values())


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize(
    ("marks", "numbers"),
    [
        ({"skipif": {"reason": "torch is not installed"}}, NUMBERS),
        ({"mpi": {"min_size": 4}}, (4, 6)),
        ({"ranks": {"numbers": (2, 3), "reason": "sleeps"}}, (2, 3)),
        ({"ranks": {"numbers": (2, 3), "reason": "sleeps", "once": True}}, (3,)),
        ({"ranks": {"numbers": (1, 2, 3), "reason": "sleeps"}, "mpi": {"min_size": 3}}, (3,)),
    ],
)
def test_the_cases_of_a_test_that_chooses_its_numbers_of_ranks_are_shared_out_to_these(
    count: int, marks: dict[str, Any], numbers: tuple[int, ...]
) -> None:
    cases = family("test_a", count, **marks)
    kept = {n: share(cases, n) for n in NUMBERS}
    each = 1 if count >= LARGE else min(2, len(numbers))
    assert all(sum(case in kept[n] for n in numbers) == each for case in cases)
    assert not any(kept[n] for n in {*NUMBERS} - {*numbers})
    assert count == 1 or all(kept[n] for n in numbers)


def test_a_test_that_would_run_nowhere_is_an_error() -> None:
    cases = family("test_a", 1, ranks={"numbers": (1, 2, 3), "reason": "slow"}, mpi={"min_size": 4})
    with pytest.raises(pytest.UsageError, match=r"test_a\[0\] would run on no number of ranks"):
        share(cases, 2)
