"""Laws of the report of `bench`, with tiny matrices; nothing is said about times."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mpi4py import MPI

import pblas
from pblas import linalg
from pblas.cli import bench, main
from pblas.cli.bench_cases import CASES, measure
from pblas.cli.bench_hardware import by_node
from tests.common.ranks import few, printed

Capture = pytest.CaptureFixture[str]
COMM = MPI.COMM_WORLD

pytestmark = [pytest.mark.mpi, few]

NUMBERS = {"seconds", "peer_seconds", "rate", "ratio", "rounds"}


def refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise pblas.BackendError("cholesky: not on <this> machine")


def test_every_row_has_times_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "cholesky", refuse)
    with pblas.Context() as ctx:
        report = measure(ctx, 0.1)
        assert ctx.runtime.backend.gather(json.dumps(report)) == [json.dumps(report)] * COMM.size
        assert (pblas.vdot(ctx.ones((6, 1)), ctx.ones((6, 1)))) == 6.0  # the context is usable
    assert len(report["rows"]) == len(CASES)
    assert {row["group"] for row in report["rows"]} == {"products", "collectives", "factorizations"}
    for row in report["rows"]:
        if row["name"] == "cholesky":
            assert row["error"] == "cholesky: not on <this> machine"
            assert all(row[name] is None or name == "rounds" for name in NUMBERS)
            continue
        assert row["error"] == ""
        assert all(row[name] > 0 for name in NUMBERS)
        assert row["ratio"] == row["peer_seconds"] / row["seconds"]
    page = bench.html(report)
    assert "not on &lt;this&gt; machine" in page
    assert page.count("<tr>") == 1 + len(CASES) + len(report["machine"])


def test_rank_0_prints_and_writes(folder: Path, capsys: Capture) -> None:
    path = folder / "bench.json"
    assert main(["bench", "--seconds", "0.1", "--json", str(path)]) == 0
    out = printed(capsys)
    if out is not None:
        assert "pblas bench" in out
        assert "above 1, pblas is faster" in out
        assert json.loads(path.read_text(encoding="utf-8"))["ranks"] == COMM.size


def test_another_number_of_ranks_than_there_are_is_refused(capsys: Capture) -> None:
    assert main(["bench", "--ranks", str(COMM.size + 1)]) == 1
    error = capsys.readouterr().err
    if COMM.rank == 0:
        assert f"bench: --ranks is {COMM.size + 1}, but {COMM.size} ranks are running; leave it out" in error


def test_the_far_link_is_measured_between_nodes() -> None:
    """Ranks that alternate between two nodes are paired across these: node after node, half of them further on."""
    p = COMM.size
    with pblas.Context() as ctx:
        order = by_node(ctx, ctx.rank % min(2, p))
    assert order == sorted(range(p), key=lambda rank: rank % 2)
    half = -(-p // 2)
    assert all((order[i] - order[(i + half) % p]) % 2 or p % 2 or p == 1 for i in range(p))
