"""The GPU benchmark without a GPU: shapes, bounds, rotation, ratios, parts of a run in one file."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.matmul.choose import one_dimensional
from tests.harness.run import ROOT

R = importlib.import_module("benchmarks.gpu.rows")
ROWS = [row for gpus in (2, 4, 8) for row in R.rows(R.OPS, list(R.MODELS), (), 8, gpus)]


def test_pblas_plans_the_op_with_the_parts_of_the_row() -> None:
    names = {"ag_gemm": "AllGatherGemm", "gemm_rs": "GemmReduceScatter", "gemm_ar": "GemmAllReduce"}
    for row in ROWS:
        assert row.unfit() is None
        a, b, d = R.descriptors(row)
        assert names[row.op] in {plan.name for plan in one_dimensional("bfloat16", a, b, d, row.gpus)}
        for rank in range(row.gpus):
            assert a.local_shape(rank) == row.a_shape
            assert b.local_shape(rank) == (row.k, row.n)
            assert d.local_shape(rank) == row.d_shape


def test_sets_do_not_fit_into_a_cache() -> None:
    for row in ROWS:
        (am, ak), (dm, dn) = row.a_shape, row.d_shape
        assert row.sets >= 2
        assert row.sets * 2 * (am * ak + row.k * row.n + dm * dn) >= 240e6


def test_rows_that_do_not_divide_are_named() -> None:
    assert "does not divide" in R.Row("ag_gemm", "8B", 9, 8, 4).unfit()
    assert R.Row("gemm_ar", "8B", 9, 8, 4).unfit() is None
    assert "TP = 5" in R.Row("gemm_ar", "8B", 16, 5, 4).unfit()
    assert [row.m for row in R.rows(["gemm_ar"], ["8B"], (), 8, 8)][:2] == [1, 16]


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_transfers_take_longer_the_more_they_move(x: float, y: float) -> None:
    few, many = sorted((x, y))
    assert 0 < R.transfer_seconds(few) <= R.transfer_seconds(many)


@given(st.sampled_from(ROWS), st.floats(1e-6, 1e-2))
def test_a_bound_hides_one_of_two_times_behind_the_other(row: Any, gemm: float) -> None:
    bound = R.bound_seconds(row, gemm)
    phases = 2 if row.op == "gemm_ar" else 1
    moved = phases * R.transfer_seconds(row.moved_nbytes / phases)
    assert max(gemm, moved) <= bound * (1 + 1e-12)
    assert bound <= (gemm + moved) * (1 + 1e-12)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_rotation_is_fair(count: int, start: int) -> None:
    names = [str(i) for i in range(count)]
    orders = [R.rotated(names, turn) for turn in range(start, start + count)]
    assert all(sorted(order) == sorted(names) for order in orders)
    for place in range(count):
        assert sorted(order[place] for order in orders) == sorted(names)


def test_values_are_new_in_each_round_set_and_rank() -> None:
    seeds = {R.seed_of(what, turn, s, r) for what in "AB" for turn in range(50) for s in range(17) for r in range(8)}
    assert len(seeds) == 2 * 50 * 17 * 8
    assert max(seeds) < 2**31


def test_efficiency_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    alone, whole = [1.0, 10.0, 100.0], [2.0, 40.0, 100.0]
    assert R.efficiency(alone, whole) == {"median": 0.5, "q1": 0.375, "q3": 0.75}
    assert R.quartiles([4.0]) == {"median": 4.0, "q1": 4.0, "q3": 4.0}


def times(scale: float = 1.0) -> dict[str, list[float]]:
    return {
        "torch.mm": [110e-6, 111e-6, 112e-6],
        "cublasLt": [100e-6, 101e-6, 102e-6],
        "cublas+nccl": [300e-6] * 3,
        "pblas": [scale * 200e-6, scale * 202e-6, scale * 204e-6],
    }


def test_a_row_says_what_was_measured_and_why_the_rest_was_not() -> None:
    row = R.Row("gemm_rs", "8B", 4096, 8, 8)
    found = R.report(row, times(), {"torch": "RuntimeError: no"}, rounds=3)
    assert found["cublas_is"] == "cublasLt"
    assert found["us"]["cublas"] == found["us"]["cublasLt"] == 101.0
    assert found["e"] == {"median": 0.5, "q1": 0.5, "q3": 0.5}
    assert "e_symmetric" not in found
    assert found["tflops"]["cublas"] == round(row.flops / 101e-6 / 1e12, 1)
    whole = R.merged_row({}, found)
    for name in R.COLUMNS["gemm_rs"]:
        assert (name in whole["us"]) != (name in whole["missing"])
    assert whole["missing"]["torch"] == "RuntimeError: no"
    assert "benchmarks/gpu/cublasmp.py" in whole["missing"]["cublasmp"]


def part(rows: list[dict[str, Any]], **head: Any) -> dict[str, Any]:
    return {"date": "2026-01-02", "device": "GPU", "gpus": 8, "commit": "abc", "rows": rows} | head


def test_parts_merge_in_either_order(tmp_path: Path) -> None:
    row = R.Row("ag_gemm", "8B", 512, 8, 8)
    ours = R.report(row, times(), {"torch": "no"}, relative_errors={"pblas": 0.002}, rounds=3)
    theirs = R.report(row, {"cublasmp": [400e-6], "cublasmp anchor": [99e-6]}, {}, cublasmp_rounds=1)
    files: list[dict[str, Any]] = []
    for order in ([ours, theirs], [theirs, ours]):
        path = tmp_path / f"{len(files)}.json"
        for piece in order:
            R.write_merged(path, part([piece]))
        files.append(json.loads(path.read_text(encoding="utf-8")))
    for file in files:
        (merged,) = file["rows"]
        assert merged["us"]["cublasmp"] == 400.0
        assert merged["us"]["pblas"] == 202.0
        assert merged["e"]["median"] == 0.5
        assert merged["relative_errors"] == {"pblas": 0.002}
        assert merged["missing"].keys() == {"torch", "triton", "cublas+nccl graph", "pblas symmetric"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json"]


def test_a_row_measured_again_replaces_what_it_speaks_of(tmp_path: Path) -> None:
    path, row = tmp_path / "file.json", R.Row("ag_gemm", "8B", 512, 8, 8)
    other = R.Row("ag_gemm", "8B", 512, 8, 4)
    R.write_merged(path, part([R.report(row, times() | {"torch": [1e-3]}, {})]))
    R.write_merged(path, part([R.report(other, times(), {})], gpus=4))
    whole = R.write_merged(path, part([R.report(row, times(0.5), {"torch": "failed now"})], commit="def"))
    assert (whole["gpus"], whole["commit"]) == (8, "def")
    assert [found["gpus"] for found in whole["rows"]] == [4, 8]
    again = whole["rows"][1]
    assert again["e"]["median"] == 1.0
    assert "torch" not in again["us"]
    assert again["missing"]["torch"] == "failed now"
    assert json.loads(path.read_text(encoding="utf-8")) == whole


def test_roads_that_are_compared_suit_their_product() -> None:
    """The planner's choice is among them; algorithms named by the user are left out where they do not fit."""
    algorithms = importlib.import_module("benchmarks.gpu.algorithms")
    wanted = [algorithms.algorithm_of(name) for name in ("sm_push", "copy_engine:1,1,2", "two_shot:2,1")]
    for row in ROWS:
        plan = algorithms.plan_of(row)
        assert plan.algorithm in algorithms.algorithms_of(row, plan, [])
        with algorithms.taking(wanted[0]):
            assert algorithms.plan_of(row).algorithm == wanted[0]
        fitting = {
            "ag_gemm": wanted[:2] if row.gpus == 4 else wanted[:1],
            "gemm_rs": wanted[:2] if row.gpus == 4 else wanted[:1],
            "gemm_ar": wanted[1:],
        }
        assert algorithms.algorithms_of(row, plan, wanted) == fitting[row.op]


def test_executions_are_timed_with_algorithms_that_suit_them() -> None:
    from pblas.matmul import choose as planner
    from pblas.matmul.choose_granularity import PlanningContext
    from pblas.simulation.hardware import Topology

    algorithms, host, topology = (
        importlib.import_module("benchmarks.gpu.algorithms"),
        importlib.import_module("benchmarks.gpu.host"),
        Topology(4, shared=True, push=True, tiles=True),
    )
    for _, layouts, algorithm in host.cases(4):
        a, b, d = (layout(64, 64, 4) for layout in layouts)
        with algorithms.taking(algorithm):
            plan = planner.choose("float16", a, b, d, context=PlanningContext(topology, 4))
        assert plan.algorithm == algorithm
        large = planner.choose(
            "float16", *(layout(4096, 4096, 4) for layout in layouts), context=PlanningContext(topology, 4)
        )
        assert algorithm.kind in {each.kind for each in algorithms.candidates(large, topology=topology)}


@pytest.mark.parametrize("size", [4, 8, 16])
def test_two_gpus_emulate_ranks_that_meet(size: int) -> None:
    """In each step, the data that one rank sends is the data that its peer receives, at the place of the sender."""
    from pblas.matmul.push.schedules.operations import receive_order, send_order

    first, second = (importlib.import_module("benchmarks.gpu.emulated").Emulation(rank, size) for rank in (0, 1))
    for play, other in ((first, second), (second, first)):
        assert [play.source(peer) for peer in send_order(play.rank, size)] == list(receive_order(other.rank, size))
        here, there, pitch = 10_000, 50_000, 16
        seen = play.spread([here if peer == play.rank else there for peer in range(size)], pitch)
        places = [at + pitch * play.rank for peer, at in enumerate(seen) if peer != play.rank]
        assert sorted(places) == [there + pitch * source for source in sorted(receive_order(other.rank, size))]
        assert seen[play.rank] == here


DRY = "--dry-run --gpus 4 --ops ag_gemm gemm_ar --models 70B --m 512 6"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("overlap", DRY, "does not divide by 4 GPUs"),
        ("algorithms", DRY, "does not divide by 4 GPUs"),
        ("overlap", "--summary --json file.json", "cublas+nccl"),
    ],
)
def test_dry_runs_and_summaries_need_no_gpu(name: str, options: str, expected: str, tmp_path: Path) -> None:
    R.write_merged(
        tmp_path / "file.json", part([R.report(ROWS[0], times(), {}), R.report(ROWS[1], {}, {"pblas": "no"})])
    )
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.gpu.{name}", *options.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
