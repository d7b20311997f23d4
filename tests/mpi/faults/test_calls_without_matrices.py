"""A collective call without any matrix names no context; if one is open, its ranks raise the error all the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

import pytest

import pblas
from pblas import ArgumentError, Context, pmatmul
from pblas.runtime import runtime as runtimes
from tests.common import public
from tests.common.ranks import COMM, check_product, culprits, few, raises_on_all_ranks, some_wrong

pytestmark = [pytest.mark.mpi, few]


def with_numbers(function: Callable[..., Any]) -> object:
    """Call a function with numbers in the place of its operands."""
    parameters = inspect.signature(function).parameters.values()
    count = sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return function("x", x=1) if function is pblas.elementwise else function(*range(1, count + 1))


@pytest.fixture
def only(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A context beside which the process has no other, whatever other tests have left open."""
    monkeypatch.setattr(runtimes, "OPEN", WeakSet([ctx.runtime]))
    return ctx


def test_every_function_raises_on_every_rank_if_one_rank_has_no_matrix(only: Context) -> None:
    a = only.eye(2 * COMM.size)
    functions = public.functions()
    assert {"pmatmul", "elementwise", "blas.trsm", "blas.axpy", "linalg.solve", "hstack"} <= functions.keys()
    for function in functions.values():
        for wrong in culprits():

            def call(function: Callable[..., Any] = function, wrong: frozenset[int] = wrong) -> object:
                return with_numbers(function) if COMM.rank in wrong else pmatmul(a, a)

            message = raises_on_all_ranks(ArgumentError, "atri", call)
            assert f"found on rank {min(wrong)} of {COMM.size}" in message or COMM.size == 1
    check_product(only)


def test_a_wrong_factor_of_an_operator_is_an_error_on_every_rank(only: Context) -> None:
    a = only.eye(2 * COMM.size)
    for wrong in culprits():
        for factor in (None, 2.0, "x", [1.0]):
            for call in (lambda x: a @ x, lambda x: x @ a):
                raises_on_all_ranks(
                    ArgumentError,
                    "expected a DistMatrix or an array",
                    lambda call=call, x=factor: call(x if COMM.rank in wrong else a),  # type: ignore[misc]  # noqa: B023
                )
    check_product(only)


def test_with_several_contexts_or_none_the_rank_raises_alone(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says to which context such a call belongs, so no rank waits for another one."""
    with Context() as second:
        for wrong in some_wrong():
            if COMM.rank in wrong:
                with pytest.raises(ArgumentError, match="must be a DistMatrix"):
                    pmatmul(1, 2)  # type: ignore[arg-type]
    assert second.runtime.closed
    check_product(ctx)
    monkeypatch.setattr(runtimes, "OPEN", WeakSet([second.runtime]))
    if COMM.rank == 0:
        with pytest.raises(ArgumentError, match="must be a DistMatrix"):
            pblas.blas.dot(1, 2)  # type: ignore[arg-type]


def test_a_matrix_of_a_closed_context_on_one_rank_is_an_error_on_every_rank(only: Context) -> None:
    with Context() as ended:
        dead = ended.eye(2 * COMM.size)
    a = only.eye(2 * COMM.size)
    calls: list[Callable[[Any], object]] = [
        lambda x: x @ a,
        lambda x: x + a,
        lambda x: x.sum(),
        lambda x: pblas.where(x, a, 0.0),
        lambda x: pblas.linalg.solve(x, a),
        lambda x: pblas.blas.trsm(x, a),
        lambda x: x.to_global(),
    ]
    for wrong in culprits():
        for call in calls:
            x = dead if COMM.rank in wrong else a
            raises_on_all_ranks(pblas.ContextError, "the context is closed", partial(call, x))
    check_product(only)


def test_a_plan_without_matrices_or_descriptors_is_an_error_on_every_rank(only: Context) -> None:
    a = only.eye(2 * COMM.size)
    plans: list[Callable[[Any], object]] = [
        lambda x: pblas.blas.plan_symm(x, a if x is a else 2),  # type: ignore[arg-type]
        pblas.blas.plan_syrk,
        lambda x: pblas.blas.plan_trsm(x, a if x is a else 2),  # type: ignore[arg-type]
        lambda x: pblas.plan_elementwise("x", x=x),
        lambda x: pblas.plan_redistribution(x, a.desc),
    ]
    for wrong in culprits():
        for plan in plans:
            raises_on_all_ranks(ArgumentError, "atri", partial(plan, "x" if COMM.rank in wrong else a))
    check_product(only)
