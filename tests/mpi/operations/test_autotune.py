"""Laws of autotune: algorithms are measured once, all ranks take the same, and no matrix of the caller's is touched."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.errors import PblasWarning
from pblas.matmul.choose_granularity import shortlist
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.base_run import RunPush
from pblas.matmul.pushed import PushedMatmul
from pblas.plans.algorithm import Algorithm
from tests.common.ranks import COMM, broken_later, open_context, outcome_of, same_on_all_ranks
from tests.common.window_engine import WindowEngine
from tests.mpi.operations.test_matmul import LAYOUTS, Case, Dimension, Run
from tests.mpi.push.test_push import TIMEOUT

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.ranks(1, 2, 3, reason="all that is measured is agreed on: slow on few cores, and the same law"),
]

N = 8 * COMM.size
DIMENSIONS = (Dimension(N + 1, 4, 1), Dimension(N), Dimension(N + 3))


def context() -> pblas.Context:
    return open_context("push", timeout=TIMEOUT)


def planned(ctx: pblas.Context, case: Case) -> ProductPlan:
    """**Collective.** The plan of a case, the same on all ranks; planning touches nothing, and the product is right."""
    run = Run(ctx, case)
    arguments = run.arguments
    with pblas.plan_matmul(run.A.view, run.B.view, **arguments) as mm:
        for placed in (run.A, run.B, run.C, run.D):
            placed.check_untouched()
        run.check(mm.execute(run.A.view, run.B.view, arguments["c"], out=arguments["out"]))
        plan: ProductPlan = same_on_all_ranks(mm.plan)
        return plan


def clock(patch: pytest.MonkeyPatch, seconds: Callable[[Algorithm], float]) -> Counter[Algorithm]:
    """Replace the measured times of executions by these; the number of executions of each algorithm."""
    measured: Counter[Algorithm] = Counter()
    operation = PushedMatmul.body

    def tagged(planned: PushedMatmul, *rest: Any) -> Any:
        body: Any = operation(planned, *rest)
        body.algorithm = planned.plan.algorithm
        return body

    def fake(engine: WindowEngine, program: Any, body: Any) -> float:
        engine.run(program, body, None)
        measured[body.algorithm] += 1
        return seconds(body.algorithm)

    patch.setattr(PushedMatmul, "body", tagged)
    patch.setattr(WindowEngine, "seconds", fake)
    return measured


@pytest.mark.parametrize("layout", ["AG(B) columns", "RS to rows", "AR"])
def test_algorithms_are_measured_once_and_the_fastest_is_taken(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An algorithm is as fast as on its slowest rank, and the file of rank 0 is the one that counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # each rank has its own
    plain = Case(*DIMENSIONS, LAYOUTS[layout], "float32", out="in place", beta=0.5)
    tuned = Case(*DIMENSIONS, LAYOUTS[layout], "float32", out="in place", beta=0.5, options=(("autotune", True),))
    with context() as ctx, monkeypatch.context() as patch:
        plan = planned(ctx, plain)
        algorithms = shortlist(plan, None, ctx.runtime.topology)
        assert plan.algorithm == algorithms[0]
        assert len(algorithms) > 1
        last = algorithms[-1]

        def seconds(algorithm: Algorithm) -> float:  # on the first rank all others look faster than the last
            return 0.5 if algorithm == last else 0.1 if COMM.rank == 0 else 1.0

        measured = clock(patch, seconds)
        plan = planned(ctx, tuned)
        assert set(measured) == set(algorithms)
        assert len(set(measured.values())) == 1
        assert dict(plan.measured) == {
            algorithm: pytest.approx(0.5 if algorithm == last else 1.0) for algorithm in algorithms
        }
        assert plan.algorithm == last
        assert f"{last.short}, measured: {last.short} 500000.0 us, " in plan.explain()
        count = measured.total()
        assert planned(ctx, plain) == planned(ctx, tuned) == plan
        assert measured.total() == count, "it was known"
        assert not planned(ctx, Case(*DIMENSIONS, LAYOUTS[layout])).measured, "another dtype"
    if COMM.rank:
        assert not list(tmp_path.iterdir())
        (tmp_path / "pblas").mkdir()
        ctx.runtime.measured.path.write_text("no JSON")  # type: ignore[union-attr]
    with context() as ctx, monkeypatch.context() as patch:
        measured = clock(patch, seconds)
        assert planned(ctx, tuned) == plan
        assert not measured, "the file of rank 0 knew it"


def test_the_estimated_algorithm_stays_where_nothing_is_gained_or_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases: others are 1 % faster; a rank lacks memory for other matrices; one algorithm's workspace is too large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = Case(*DIMENSIONS, LAYOUTS["AR"], options=(("autotune", True),))
    with context() as ctx:
        with monkeypatch.context() as patch:
            if COMM.rank == COMM.size - 1:
                patch.setattr("pblas.matmul.autotune._drawn", lambda *_: np.empty(1 << 57))
            with pytest.warns(PblasWarning, match="no memory for a second set of matrices"):
                plan = planned(ctx, case)
        assert not plan.measured
        first, *others = shortlist(plan, None, ctx.runtime.topology)
        with monkeypatch.context() as patch:
            measured = clock(patch, lambda algorithm: 1.0 if algorithm == first else 0.99)
            execute = RunPush.__init__

            def small(run: RunPush, plan: Any, *rest: Any, **options: Any) -> None:
                if plan.algorithm == others[0]:
                    raise pblas.WorkspaceError("on every rank")
                execute(run, plan, *rest, **options)

            patch.setattr(RunPush, "__init__", small)
            plan = planned(ctx, case)
        assert set(measured) == {first, *others[1:]}
        assert plan.algorithm == plan.measured[0][0] == first
        chunked = replace(case, options=(*case.options, ("chunks", 2)))  # by the clock
        times = planned(ctx, chunked).measured
        assert {len(algorithm.groups) for algorithm, _ in times} == {2}
        assert all(0 < seconds < TIMEOUT for _, seconds in times)


@pytest.mark.parametrize("layout", ["AG(B) columns", "RS to rows", "AR"])
def test_algorithms_are_measured_with_the_epilogue(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epilogue has its own measured times; without them the times of the product count."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    case = Case(*DIMENSIONS, LAYOUTS[layout], "float32", out="in place")
    operation = PushedMatmul.body
    followed: set[bool] = set()

    def noted(mm: PushedMatmul, a: Any, b: Any, c: Any, d: Any, extra: Any = None, *rest: Any) -> Any:
        followed.add(bool(extra))
        return operation(mm, a, b, c, d, extra, *rest)

    def taken(**options: Any) -> Algorithm | None:
        run = Run(ctx, case)
        if options.pop("follows", False):
            h = np.ones(run.C.view.desc.local_shape(ctx.rank), "float32")
            options["epilogue"] = pblas.Epilogue("relu(x) + h", h=h)
        with pblas.plan_matmul(run.A.view, run.B.view, **run.arguments, **options) as mm:
            plan: ProductPlan = same_on_all_ranks(mm.plan)
            return plan.algorithm

    with context() as ctx:
        first, *_, last = shortlist(planned(ctx, case), None, ctx.runtime.topology)
        monkeypatch.setattr(PushedMatmul, "body", noted)
        with monkeypatch.context() as patch:
            measured = clock(patch, lambda algorithm: 0.1 if algorithm == last else 1.0)
            assert taken(autotune=True) == taken(follows=True) == last
            count = measured.total()
        with monkeypatch.context() as patch:
            measured = clock(patch, lambda algorithm: 0.1 if algorithm == first else 1.0)
            followed.clear()
            assert taken(autotune=True, follows=True) == taken(follows=True) == first
            assert measured.total() == count
            assert followed == {True}
        assert taken() == last


def test_an_algorithm_that_hangs_is_the_same_error_on_all_ranks_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank sends its data without signals."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with broken_later(timeout=0.5, transport="push") as context:
        run = Run(context, Case(*DIMENSIONS, LAYOUTS["AR"], homes="uuuu", options=(("autotune", True),)))
        with monkeypatch.context() as patch:
            if COMM.rank == 0:
                patch.setattr(WindowEngine, "signal", lambda *_: None)
            start = time.monotonic()
            everywhere = COMM.allgather(outcome_of(lambda: pblas.plan_matmul(run.A.view, run.B.view, **run.arguments)))
        assert {name for name, _ in everywhere} == {"PeerTimeout"}, everywhere
        assert time.monotonic() - start < 0.5 + TIMEOUT
        with pytest.raises(pblas.ContextError, match="broken"):
            pblas.plan_matmul(run.A.view, run.B.view)
        assert not list(tmp_path.iterdir()), "nothing was found out"
