"""Traces: the events of every plan over every transport, errors, and no patches left in place."""

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas import Context, Event, Grid, MatrixDescriptor, PlannedMatmul, Trace
from pblas.backends import recorder as recording
from pblas.cli import main
from pblas.matmul.summa_plan import Summa
from pblas.plans.algorithm import Algorithm, AlgorithmKind
from pblas.trace import merge
from tests.common.ranks import open_context
from tests.model.push import take

COMM = MPI.COMM_WORLD
RANK, P = COMM.rank, COMM.size
M, N, K = 8 * P + 1, 8 * P + 3, 8 * P + 5
LATENCY = 0.02

pytestmark = pytest.mark.mpi


def layouts() -> dict[str, tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]]:
    """Of A, B and D, for every plan."""
    rows, columns, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
    grid = Grid(2, P // 2) if P % 2 == 0 else Grid(1, P)

    def block(m: int, n: int) -> MatrixDescriptor:
        return MatrixDescriptor(m, n, -(-m // grid.nprow), -(-n // grid.npcol), grid)

    return {
        "AllGatherGemm": (rows(M, K, P), rows(K, N, P), rows(M, N, P)),
        "GemmReduceScatter": (columns(M, K, P), rows(K, N, P), columns(M, N, P)),
        "GemmAllReduce": (columns(M, K, P), rows(K, N, P), whole(M, N, P)),
        "SummaC": (block(M, K), block(K, N), block(M, N)),
        "SummaA": (block(M, K), block(K, 2), block(M, 2)),
    }


def traced(ctx: Context, name: str, **options: Any) -> tuple[PlannedMatmul, Trace]:
    """The second execution of a plan."""
    desc_a, desc_b, desc_d = layouts()[name]
    a, b = ctx.random(desc_a), ctx.random(desc_b, seed=1)
    mm = pblas.plan_matmul(a, b, out=desc_d, **options)
    d = ctx.empty(desc_d)
    expected = mm.execute(a, b).to_global()
    trace = mm.trace(a, b, out=d)
    result = d.to_global()
    if RANK == 0:
        np.testing.assert_array_equal(result, expected)
    return mm, trace


def lanes_of(trace: Trace) -> dict[tuple[int, str], list[Event]]:
    lanes: dict[tuple[int, str], list[Event]] = {}
    for event in trace.events:
        lanes.setdefault((event.rank, event.lane), []).append(event)
    return lanes


@pytest.mark.parametrize("transport", ["shared", "message", "push"])
def test_events_match_the_plan(transport: str) -> None:
    with open_context(transport) as ctx:
        for name in layouts():
            if transport == "push" and name.startswith("Summa"):
                continue
            mm, trace = traced(ctx, name)
            assert (trace.events == ()) == (RANK > 0)
            if RANK:
                continue
            for events in lanes_of(trace).values():
                assert all(e.start <= e.stop for e in events)
                assert all(before.stop <= after.start for before, after in pairwise(events)), events
            plan, p = mm.plan, mm.plan.product
            flops = [sum(e.details["flops"] for e in trace.events if (e.rank, e.kind) == (r, "gemm")) for r in range(P)]
            assert sum(flops) == 2 * p.m * p.n * p.k
            waits = {e.rank for e in trace.events if e.kind in ("wait", "agree")}
            assert waits == set(range(P)) or P == 1
            if transport == "message":
                messages = [e for e in trace.events if e.kind == "message"]
                for r in range(P):
                    nbytes = sum(e.details["bytes"] for e in messages if e.rank == r)
                    assert nbytes == plan.received_nbytes(r), (plan.name, r)
            if isinstance(plan, pblas.AllGatherGemm | pblas.GemmReduceScatter) and transport != "push":
                check_steps(plan, trace)
            if isinstance(plan, Summa) and P > 1:
                assert any(e.kind == "copy" for e in trace.events) or transport == "shared"


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("by", ["tile_signals", "fused_stores"])
@pytest.mark.parametrize("name", ["GemmReduceScatter", "GemmAllReduce"])
def test_single_kernel_algorithms_are_traced(name: str, by: AlgorithmKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs several GEMMs emulate the single kernel."""
    take(Algorithm(by, (1, 1)), monkeypatch)
    with open_context("push", COMM) as ctx:
        mm, trace = traced(ctx, name)
        assert isinstance(mm.plan, pblas.GemmReduceScatter)
        assert mm.plan.algorithm == Algorithm(by, (1, 1))
        assert RANK > 0 or sum(event.details.get("flops", 0) for event in trace.events) == 2 * M * N * K


def check_steps(plan: pblas.AllGatherGemm | pblas.GemmReduceScatter, trace: Trace) -> None:
    """Every rank multiplies once for each of its steps, in their order."""
    product = plan.oriented
    for rank in range(P):
        gemms = [e.name for e in trace.events if (e.rank, e.kind) == (rank, "gemm")]
        if isinstance(plan, pblas.AllGatherGemm):
            assert product.d.split is not None
            m, shards = product.d.split.count(rank), plan.shards
            sizes = [(m, s.c1 - s.c0, shards.count(s.source) if plan.along_k else product.k) for s in plan.steps(rank)]
        else:
            sizes = [(product.m, s.c1 - s.c0, plan.inner.count(rank)) for s in plan.steps(rank)]
        expected = [f"GEMM {m} x {n} x {k}" for m, n, k in sizes]
        assert gemms == expected, (plan.name, rank)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["AllGatherGemm", "SummaC"])
def test_messages_travel_during_products_only_with_overlap(name: str) -> None:
    with Context(transport="message", link=(LATENCY, 1e9)) as ctx:
        for overlap in (True, False):
            _, trace = traced(ctx, name, overlap=overlap, chunks=3)
            messages = [e for e in trace.events if e.kind == "message"]
            gemms = [e for e in trace.events if e.kind == "gemm"]
            both = [
                (e, g) for e in messages for g in gemms if e.rank == g.rank and e.start < g.stop and g.start < e.stop
            ]
            if RANK == 0:
                assert messages
                assert gemms
                assert bool(both) == overlap, (name, both)


def test_clocks_of_ranks_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.perf_counter
    for module in (recording, merge):
        monkeypatch.setattr(module, "time", type("Clock", (), {"perf_counter": lambda: clock() + 1e4 * RANK}))
    start = clock()
    with Context(transport="message") as ctx:
        _, trace = traced(ctx, "AllGatherGemm")
    assert all(0 <= e.start <= e.stop < clock() - start for e in trace.events)


@pytest.mark.parametrize("transport", ["auto", "push"])
def test_recorders_nest_and_leave_nothing_patched(
    transport: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_context(transport) as ctx:
        backend = ctx.runtime.backend
        things = backend, backend.arrays, backend.channel, *backend.engines()
        before = [set(vars(thing)) for thing in things]
        with ctx.trace(folder / "outer.json", title="outer") as outer:
            _, inner = traced(ctx, "GemmReduceScatter")
        assert [set(vars(thing)) for thing in things] == before
        with pytest.raises(KeyboardInterrupt), ctx.trace(folder / "none.json"):
            raise KeyboardInterrupt
        assert [set(vars(thing)) for thing in things] == before
        count = len(outer.events)
        monkeypatch.setattr(recording, "MOST_EVENTS", 1)  # one rank has one event, a GEMM
        _, short = traced(ctx, "GemmReduceScatter")
        assert len(outer.events) == count
    if RANK == 0:
        assert 0 < len(inner.events) < count
        assert (outer.is_whole, inner.is_whole, short.is_whole) == (True, True, False)
        assert len(short.events) <= P
        assert [path.name for path in folder.iterdir()] == ["outer.json"]
        assert json.loads((folder / "outer.json").read_text())["otherData"]["title"] == "outer"


def test_an_execution_with_operands_of_its_own_is_traced_into_one_file(folder: Path) -> None:
    with Context() as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(M, M, P))
        d, s = ctx.empty(a.desc), {"s": 3.0}
        mm = pblas.plan_matmul(a, a, out=d, epilogue=pblas.Epilogue("x * s", s=2.0))
        expected = mm.execute(a, a, operands=s).to_global(root=None)
        mm.trace(a, a, out=d, operands=s, paths=str(folder / "one.json"))
        np.testing.assert_array_equal(d.to_global(root=None), expected)
        with pytest.raises(pblas.ArgumentError, match="stream is for"):
            mm.trace(a, a, stream=0)
        if RANK == 0:
            assert [path.name for path in folder.iterdir()] == ["one.json"]


def test_errors_are_the_same_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context() as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(M, M, P))
        monkeypatch.setattr("pblas.trace.formats.find_spec", lambda _: None)
        cases: list[tuple[Callable[[], Any], type[pblas.PblasError], str]] = [
            (lambda: ctx.trace("x.gif").__enter__(), pblas.ArgumentError, "must end in .json"),
            (lambda: ctx.trace(3).__enter__(), pblas.ArgumentError, "path must be"),  # type: ignore[arg-type]
            (lambda: pblas.plan_matmul(a, a).trace(a, a, paths=3), pblas.ArgumentError, "path must be"),  # type: ignore[arg-type]
            (
                lambda: ctx.trace(folder / "no" / "x.json").__enter__(),
                pblas.FileFormatError,
                "its folder does not exist",
            ),
            (lambda: ctx.trace(folder / "x.png").__enter__(), pblas.BackendError, "Matplotlib"),
            (
                lambda: pblas.plan_matmul(a.desc, a.desc, dtype="float64").trace(a, a),
                pblas.ArgumentError,
                "descriptors",
            ),
        ]
        if P > 1:
            cases.append((lambda: ctx.trace(f"{RANK}.json").__enter__(), pblas.MismatchError, "paths differs"))
        for call, kind, text in cases:
            with pytest.raises(kind, match=text) as caught:
                call()
            assert len(set(COMM.allgather(str(caught.value)))) == 1
        (folder / "taken.json").mkdir(exist_ok=True)  # found when the file is complete
        COMM.Barrier()
        with pytest.raises(pblas.FileFormatError, match="cannot be written"), ctx.trace(folder / "taken.json"):
            a @ a
        a @ a


def test_paths_are_any_iterable(folder: Path) -> None:
    with Context() as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(M, M, P))
        mm = pblas.plan_matmul(a, a)
        mm.trace(a, a, paths=(folder / name for name in ("x.json", "y.json")))
    if RANK == 0:
        assert {path.name for path in folder.iterdir()} == {"x.json", "y.json"}


def test_the_environment_asks_for_traces(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PBLAS_TRACE", str(folder / "t.json"))
    for _ in range(2):
        with Context() as ctx:
            a = ctx.random(MatrixDescriptor.row_wise(M, M, P))
            a @ a
    with pytest.raises(KeyboardInterrupt), Context():
        raise KeyboardInterrupt
    if RANK == 0:
        assert {path.name for path in folder.iterdir()} == {"t.json", "t.1.json"}
        names = {event.name for event in Trace.read(folder / "t.1.json").events}
        assert {"random", "pmatmul"} <= names
        assert any(name.startswith("GEMM") for name in names)
    assert ("t.1.json" in capsys.readouterr().err) == (RANK == 0)
    for name, text in (("t.txt", "must end in .json"), ("none/t.json", "its folder does not exist")):
        monkeypatch.setenv("PBLAS_TRACE", str(folder / name))
        with pytest.raises(pblas.errors.PblasError, match=f"^PBLAS_TRACE: .*{text}"):
            Context()
    if P > 1:
        monkeypatch.setenv("PBLAS_TRACE", str(folder / f"{RANK}.json"))
        with pytest.raises(pblas.MismatchError, match="PBLAS_TRACE differs"):
            Context()


def test_the_command_line_writes_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--m", str(M), "--n", str(N), "--k", str(K), "--a", "column", "--out", "column"]
    link = ["--transport", "message", "--link", "1e-4,1e9"]
    assert main(["trace", *sizes, *link, "--no-overlap", "-o", str(folder / "t.json")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    if RANK == 0:
        assert "ms on the main lane" in out
        trace = Trace.read(folder / "t.json")
        assert trace.nprocs == P
        assert trace.title.endswith(f", {M} x {N} x {K}, float64, {P} rank{'s' * (P > 1)}, overlap=False")
    assert main(["trace", str(folder / "t.json"), *sizes[:6]]) == 1
    assert ("leave out --m, --n and --k" in capsys.readouterr().err) == (RANK == 0)
