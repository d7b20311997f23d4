"""Planners that take the plan that a test is about, whichever plan is quicker."""

from __future__ import annotations

from collections.abc import Callable

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.choose import one_dimensional
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.product_plan import ProductPlan

Layouts = tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]


def choosing(pick: Callable[[str, Layouts, PlanningContext], ProductPlan]) -> Callable[..., ProductPlan]:
    """In place of `pblas.matmul.choose.choose`: the plan that `pick` takes for a dtype and layouts."""

    def choose(dtype: str, *layouts: MatrixDescriptor, context: PlanningContext, strict: bool) -> ProductPlan:
        assert not strict
        a, b, d = layouts
        return context.complete(pick(dtype, (a, b, d), context))

    return choose


def only(*kinds: type[ProductPlan]) -> Callable[..., ProductPlan]:
    """In place of `pblas.matmul.choose.choose`: the first plan of these kinds that serves the layouts."""

    def pick(dtype: str, layouts: Layouts, context: PlanningContext) -> ProductPlan:
        plans = one_dimensional(dtype, *layouts, context.nprocs, context.others)
        return next(plan for plan in plans if isinstance(plan, kinds))

    return choosing(pick)
