"""Which plans a context keeps."""

from __future__ import annotations

from pblas.runtime.kept_plans import MOST_NBYTES, Kept, KeptPlans


class Plan(Kept):
    """A plan that knows whether it was closed."""

    def __init__(self, nbytes: int) -> None:
        self.kept_nbytes, self.is_closed = nbytes, False

    def close(self) -> None:
        self.is_closed = True


def test_plans_that_were_used_longest_ago_make_room() -> None:
    kept, plans = KeptPlans(), [Plan(MOST_NBYTES // 2) for _ in range(8)]
    for key, plan in enumerate(plans[:7]):
        kept.keep(key, plan)
    kept.keep(0, plans[0])
    kept.keep(7, plans[7])
    assert [plan.is_closed for plan in plans] == [False, True, *[False] * 6]
    assert kept.get(1, Plan) is None
    assert kept.get(0, Plan) is plans[0]


def test_plans_without_workspace_are_bounded_too() -> None:
    kept, plans = KeptPlans(), [Plan(0) for _ in range(4097)]
    for key, plan in enumerate(plans):
        kept.keep(key, plan)
    assert [plan.is_closed for plan in plans] == [True] + 4096 * [False]


def test_a_new_plan_replaces_one_under_its_key_and_a_dropped_one_can_return() -> None:
    kept, first, second = KeptPlans(), Plan(1), Plan(1)
    kept.keep("key", first)
    kept.keep("key", second)
    assert (first.is_closed, second.is_closed) == (True, False)
    kept.drop("key")
    assert second.is_closed
    kept.keep("key", second)
    assert kept.get("key", Plan) is second
    kept.close()
    assert kept.get("key", Plan) is None


def test_bytes_of_dropped_plans_do_not_count() -> None:
    kept, first = KeptPlans(), Plan(2 * MOST_NBYTES)
    kept.keep("first", first)
    for key in range(20):
        kept.keep(key, Plan(MOST_NBYTES))
        kept.drop(key)
    assert not first.is_closed
