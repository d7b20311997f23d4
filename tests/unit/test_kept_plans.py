"""Laws of kept plans: bounded in number and in bytes, those used longest ago are closed first, and each once."""

from __future__ import annotations

import pytest

from pblas.runtime import kept_plans
from pblas.runtime.kept_plans import KeptPlans
from pblas.runtime.runtime import Plans


class Plan:
    """A plan with a workspace, which counts how often it was closed."""

    def __init__(self, nbytes: int = 0) -> None:
        self.kept_nbytes, self.closed = nbytes, 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptPlans:
    """Of at most 3 plans and 10 bytes."""
    monkeypatch.setattr(kept_plans, "_COUNT", 3)
    monkeypatch.setattr(kept_plans, "_ALL_NBYTES", 10)
    return KeptPlans()


def names(kept: KeptPlans, plans: dict[str, Plan]) -> str:
    """The plans that are kept; the others are closed, once."""
    assert all(plan.closed == (kept.get(name) is None) for name, plan in plans.items())
    return "".join(name for name, plan in plans.items() if kept.get(name) is plan)


def filled(kept: KeptPlans, **nbytes: int) -> dict[str, Plan]:
    plans = {name: Plan(size) for name, size in nbytes.items()}
    for name, plan in plans.items():
        kept.keep(name, plan)
    return plans


def test_no_more_plans_than_the_limit_are_kept(kept: KeptPlans) -> None:
    assert names(kept, filled(kept, a=0, b=0, c=0)) == "abc"
    assert names(kept, filled(kept, d=0, e=0)) == "de"
    assert kept.get("c") is not None
    assert kept.get("b") is None


def test_no_more_bytes_than_the_limit_are_kept(kept: KeptPlans) -> None:
    assert names(kept, filled(kept, a=5, b=5)) == "ab"
    assert names(kept, filled(kept, c=10)) == "c"
    assert kept.get("a") is kept.get("b") is None


def test_bytes_of_dropped_plans_do_not_count(kept: KeptPlans) -> None:
    for _ in range(5):
        plans = filled(kept, a=5, b=5)
        assert names(kept, plans) == "ab"
        kept.drop("a")
        assert names(kept, plans) == "b"


def test_the_plan_used_longest_ago_is_closed_first(kept: KeptPlans) -> None:
    plans = filled(kept, a=0, b=0, c=0)
    kept.used("a")
    kept.used("nothing")
    plans |= filled(kept, d=0)
    assert names(kept, plans) == "acd"
    kept.used("c")
    plans |= filled(kept, e=0)
    assert names(kept, plans) == "cde"


def test_a_plan_takes_the_place_of_one_under_its_key(kept: KeptPlans) -> None:
    (first,) = filled(kept, a=10).values()
    plans = filled(kept, a=10)
    assert first.closed == 1
    assert names(kept, plans) == "a"
    kept.close()
    assert names(kept, plans) == ""


def test_a_cache_of_calls_holds_no_more_than_its_limit() -> None:
    plans, made = Plans(2), dict[str, Plan]()

    def get(name: str) -> Plan:
        return plans.get(name, lambda: made.setdefault(name, Plan()))

    for name in "aba":
        assert get(name) is made[name]
    get("c")
    assert [made[name].closed for name in "abc"] == [0, 1, 0], "b was used longest ago"
    plans.close()
    assert [made[name].closed for name in "abc"] == [1, 1, 1]
