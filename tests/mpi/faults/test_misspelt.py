"""Arguments that a public call does not take are Python's TypeError on the rank that erred, and nothing else."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import ArgumentError, Context, MatrixDescriptor, blas, linalg, scalapack
from tests.common import public
from tests.common.ranks import COMM, check_product, culprits, few, open_context, outcome_of, raises_on_all_ranks

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared",)

N = 6


def takes_any_keyword(function: Callable[..., Any]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())


def check(ctx: Context, calls: dict[str, Callable[[], object]]) -> None:
    """The law of this file, for every set of ranks that err; the context makes no agreement meanwhile."""
    for ranks in culprits():
        before = ctx.runtime.next_number()
        for name, call in calls.items():
            if ctx.rank in ranks:
                kind, text = outcome_of(call)
                assert kind == "TypeError", f"{name}: {kind}: {text}"
        assert ctx.runtime.next_number() == before
        check_product(ctx)


def test_functions(ctx: Context) -> None:
    named = {name: f for name, f in public.every_function() if not takes_any_keyword(f)}
    assert len(named) > 300
    check(ctx, {name: partial(f, misspelt=1) for name, f in named.items()})
    check(ctx, {name: partial(f, *range(99)) for name, f in named.items() if not name.endswith("stack")})


def test_methods(ctx: Context) -> None:
    calls: dict[str, Callable[[], object]] = {}
    for name, owner, function in public.every_method(ctx):
        method = getattr(owner, name.partition(".")[2])
        if type(owner) is not pblas.PlannedElementwise or not takes_any_keyword(function):
            calls[name] = partial(method, misspelt=1)
        if name != "Context.trace":  # any number of paths
            calls[f"{name}, too many"] = partial(method, *range(99))
        calls[f"{name}, without self"] = function
    assert len(calls) > 150
    check(ctx, calls)


def test_tab_shows_no_inner_calls(ctx: Context) -> None:
    """Methods with a `opname` are steps of other calls, and so are those that return a `Factoring`."""
    for kind, made in public.objects(ctx).items():
        for name in dir(made):
            method = inspect.getattr_static(made, name)
            if not name.startswith("_") and inspect.isfunction(method):
                assert "opname" not in inspect.signature(method).parameters, f"{kind.__name__}.{name}"
                assert name not in ("executing", "factoring", "register"), f"{kind.__name__}.{name}"
    for module in public.MODULES.values():
        values = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
        assert module is pblas or not [name for name, value in values.items() if inspect.ismodule(value)]


def test_a_name_that_a_module_lacks_is_refused_with_names_like_it() -> None:
    for module, name, text in (
        (linalg, "choleski", "has no attribute 'choleski'; it has cholesky"),
        (scalapack, "pdgesdd", "it has pdgesvd, "),
        (pblas, "elementwize", "it has elementwise, "),
        (blas, "zzzz", "has no attribute 'zzzz'; dir(pblas.blas) lists all"),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(module, name)
        assert text in str(caught.value)
        with pytest.raises(ImportError, match=f"cannot import name '{name}' from '{module.__name__}'") as missing:
            exec(f"from {module.__name__} import {name}")
        assert text.partition("; ")[2] in str(missing.value)


def test_classes(ctx: Context) -> None:
    made: dict[str, Callable[..., Any]] = {kind.__name__: kind for kind in public.classes()}
    check(ctx, {name: partial(kind, misspelt=1) for name, kind in made.items()})


def test_a_call_with_values_and_one_misspelt_keyword(ctx: Context) -> None:
    a, x = ctx.eye((N, N)), np.ones(3)
    check(
        ctx,
        {
            "sum": lambda: a.sum(ax=0),  # type: ignore[call-overload]
            "load": lambda: ctx.load("x.npy", odrer="C"),  # type: ignore[call-arg]
            "random": lambda: ctx.random((N, N), sed=1),  # type: ignore[call-arg]
            "to_global": lambda: a.to_global(rot=0),  # type: ignore[call-overload]
            "allreduce": lambda: ctx.allreduce(x, operation="max"),  # type: ignore[call-arg]
            "plan_matmul": lambda: pblas.plan_matmul(a.desc, a.desc, dtype="float64", nprosc=4),  # type: ignore[call-arg]
        },
    )


@pytest.mark.parametrize("name", ["elementwise", "execute", "trace"])
def test_a_misspelt_operand_of_an_expression_is_an_error_on_all_ranks(ctx: Context, name: str) -> None:
    a = ctx.eye((N, N))
    planned = pblas.plan_elementwise("x + y", x=a, y=a)
    calls: dict[str, Callable[..., Any]] = {
        "elementwise": lambda **z: pblas.elementwise("x + y", **z),
        "execute": planned.execute,
        "trace": planned.trace,
    }
    call = calls[name]
    for ranks in culprits():
        operands = {"x": a, "yy" if ctx.rank in ranks else "y": a}
        raises_on_all_ranks(ArgumentError, "y", partial(call, **operands))
        check_product(ctx)


def test_a_type_error_in_a_call_is_still_one_of_all_ranks(ctx: Context) -> None:
    def of_one(i: Any) -> Any:
        return i

    for ranks in culprits():
        function: Any = of_one if ctx.rank in ranks else np.add
        call = partial(ctx.from_function, function, (N, N))
        raises_on_all_ranks(ArgumentError, "raised TypeError", call)
        check_product(ctx)


def test_settings_of_a_context() -> None:
    for ranks in culprits():
        if COMM.rank in ranks:
            with pytest.raises(TypeError, match="timeot"):
                Context(timeot=3)  # type: ignore[call-arg]
        with open_context(timeout=20) as ctx:
            check_product(ctx)


def test_options_of_a_grid_are_checked_on_all_ranks() -> None:
    for ranks in culprits():
        name = "timeot" if COMM.rank in ranks else "timeout"
        raises_on_all_ranks(
            pblas.PblasArgumentError,
            "there is no option 'timeot'",
            partial(scalapack.gridinit, None, "R", COMM.size, 1, **{name: 20}),
        )


def test_matrices_are_freed_after_a_misspelt_call(ctx: Context) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(N, N, ctx.nprocs))
    gone = weakref.ref(a)
    with pytest.raises(TypeError, match="ax"):
        a.sum(ax=0)  # type: ignore[call-overload]
    del a
    assert gone() is None
