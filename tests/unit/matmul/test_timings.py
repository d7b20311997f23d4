"""Laws of measured algorithms: the shortlist that is measured, the choice, and the cache files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pblas.errors import PblasWarning
from pblas.matmul.choose_granularity import SHORTLIST_LENGTH, PlanningContext, candidates, shortlist
from pblas.matmul.one_dimensional_plan import GemmAllReduce
from pblas.matmul.product_plan import ProductPlan
from pblas.plans.algorithm import Algorithm, Times
from pblas.runtime.measured import Measured
from pblas.simulation.hardware import Topology
from tests.unit.backends.test_device import H200
from tests.unit.matmul.test_algorithms import LAYOUTS, SHAPES, estimate, planned

TOPOLOGIES = {
    capability: Topology(4, True, True, True, replace(H200, compute_capability=capability).has_waiting_tiles)
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0))
}
TIMES: Times = ((Algorithm("copy_engine", (1, 1, 2)), 2e-4), (Algorithm("sm_push"), 1e-4))


@pytest.mark.parametrize("capability", TOPOLOGIES)
def test_roads_that_are_measured_exist_on_this_gpu_and_the_estimated_one_is_the_first(capability: Any) -> None:
    topology, kinds = TOPOLOGIES[capability], set()
    for layout in LAYOUTS:
        for shape in (*SHAPES[:3], (512, 8192, 4096), (8192, 8192, 8192)):
            for options in ({}, {"chunks": 3}, {"overlap": False}):
                plan = planned(layout, *shape, 4, order="C", topology=topology, **options)
                found = shortlist(plan, options.get("chunks"), topology)
                assert plan.algorithm == found[0]
                assert len(found) == len(set(found)) <= SHORTLIST_LENGTH
                assert set(found) <= set(candidates(plan, options.get("chunks"), topology))
                assert all(estimate(plan, algorithm) < 2 * estimate(plan, found[0]) + 100 for algorithm in found)
                kinds |= {(plan.name, algorithm.kind) for algorithm in found}
                if "chunks" in options:
                    assert not isinstance(plan, GemmAllReduce) or {len(algorithm.groups) for algorithm in found} == {3}
    names = {"AllGatherGemm", "GemmReduceScatter", "GemmAllReduce"}
    assert {name for name, by in kinds if by == "tile_signals"} == (names if capability == (9, 0) else set())
    assert {name for name, by in kinds if by == "copy_engine"} == names


def test_the_first_measured_algorithm_is_taken_if_the_plan_has_it() -> None:
    """An algorithm for other ranks or another GPU, as a foreign file may name it, is not taken."""
    estimated = planned("AG along n", 8192, 8192, 8192, 4).algorithm
    assert estimated is not None
    for times, taken, call_args in (
        (TIMES, TIMES[0][0], "measured: copy_engine:1,1,2 200.0 us, sm_push 100.0 us"),
        (((Algorithm("copy_engine", (1, 7)), 1.0), *TIMES[1:]), Algorithm("sm_push"), "measured: "),
        (((Algorithm("tile_signals"), 1.0), (Algorithm("one_shot"), 1.0)), estimated, "predicted to be the fastest"),
        ((), estimated, "predicted to be the fastest"),
    ):
        plan = planned("AG along n", 8192, 8192, 8192, 4, topology=TOPOLOGIES[8, 0], known=lambda _, times=times: times)
        assert plan.algorithm == taken
        (line,) = (line for line in plan.explain().splitlines() if line.startswith("  algorithm "))
        assert taken.short in line
        assert call_args in line


def test_only_pushed_plans_ask_for_times() -> None:
    asked: list[ProductPlan] = []

    def known(plan: ProductPlan) -> Times:
        asked.append(plan)
        return ()

    for topology, count in ((Topology(4, shared=True), 0), (TOPOLOGIES[9, 0], 1)):
        planned("AR", 8, 8, 8, 4, topology=topology, known=known)
        assert len(asked) == count
    assert asked[0].algorithm is None
    assert PlanningContext(TOPOLOGIES[9, 0], 4).known is None


class Ranks:
    """A backend whose first rank has said what it says; versions name the file."""

    def __init__(self, rank: int = 0, call_args: Any = ({}, None)) -> None:
        self.rank, self._call_args = rank, call_args

    def versions(self) -> tuple[str, ...]:
        return ("NVIDIA H200", "cublaslt1")

    def broadcast_object(self, value: Any, root: int) -> Any:
        assert root == 0
        assert value is None or self.rank == 0, "no other rank reads a file"
        return self._call_args if value is None else value


def measured(*rest: Any) -> Measured:
    return Measured(Ranks(*rest))  # type: ignore[arg-type]


def file_of(context: Measured) -> Path:
    assert context.path is not None, "there is a home"
    return context.path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pblas"


def test_times_are_kept_in_a_file_of_rank_0(cache: Path) -> None:
    first, other, late = measured(), measured(1), measured()
    for context in (first, other):
        assert context.times("a product") == ()
        context.add("a product", TIMES)
        assert context.times("a product") == TIMES
    late.add("another", TIMES[:1])
    late.add("a product", TIMES[1:])  # the last one counts
    late.add("a product", TIMES)
    (path,) = cache.iterdir()
    assert path == file_of(first)
    assert path.name.startswith("algorithms-NVIDIA_H200-cublaslt1-pblas")
    again = measured()
    assert (again.times("a product"), again.times("another")) == (TIMES, TIMES[:1])
    assert measured(2, ({"a product": TIMES[1:]}, None)).times("a product") == TIMES[1:]


GOOD = {"product": "a", "algorithms": [["sm_push", 1.0]]}


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {},
        GOOD | {"product": 7},
        GOOD | {"algorithms": [["kernels", 1.0]]},
        GOOD | {"algorithms": [["copy_engine:1,x", 1.0]]},
        GOOD | {"algorithms": [["sm_push"]]},
        GOOD | {"algorithms": [["sm_push", "fast"]]},
        GOOD | {"algorithms": [["sm_push", 10**400]]},
        GOOD | {"algorithms": [[5, 1.0]]},
        GOOD | {"algorithms": 3},
    ],
)
def test_corrupt_files_are_ignored_with_a_warning_and_replaced(cache: Path, entry: Any) -> None:
    content = json.dumps({"format": 2, "choices": [GOOD, entry]})
    path = file_of(measured())
    cache.mkdir()
    for text in (content, content[:-3], "[" * 100_000, "", "[]", '{"format": 2}', "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.warns(PblasWarning, match="measured algorithms are ignored"):
            context = measured()
        assert context.times("a") == ()
        with pytest.warns(PblasWarning, match="measured algorithms are ignored"):
            context.add("b", TIMES)
        assert measured().times("b") == TIMES


def test_a_file_of_another_format_counts_as_empty(cache: Path) -> None:
    path = file_of(measured())
    cache.mkdir()
    path.write_text('{"format": 0, "choices": [{}]}', encoding="utf-8")
    assert measured().times("a") == ()


def test_a_warning_that_is_an_error_is_raised_on_all_ranks(cache: Path) -> None:
    """Warnings are errors in tests: the other ranks must not wait for rank 0, which raises one."""
    call_args: list[Any] = []

    class First(Ranks):
        def broadcast_object(self, value: Any, root: int) -> Any:
            call_args.append(value)
            return super().broadcast_object(value, root)

    first, other = Measured(First()), measured(1)  # type: ignore[arg-type]
    cache.mkdir()
    file_of(first).write_text("no JSON", encoding="utf-8")
    for call in (lambda: Measured(First()), lambda: first.add("a", TIMES)):  # type: ignore[arg-type]
        with pytest.raises(PblasWarning, match="measured algorithms are ignored"):
            call()
    _, read, added = call_args
    with pytest.raises(PblasWarning, match="measured algorithms are ignored"):
        measured(1, read)
    other._backend = Ranks(1, added)  # type: ignore[assignment]
    with pytest.raises(PblasWarning, match="measured algorithms are ignored"):
        other.add("a", TIMES)
    assert first.times("a") == other.times("a") == TIMES


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without an entry in the container's user database; there is no warning, which would be an error."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert file_of(measured()).parent == Path("/home/somebody/.cache/pblas")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", dict[int, Any]().__getitem__)
    context = measured()
    context.add("a", TIMES)
    assert (context.path, context.times("a"), measured().times("a")) == (None, TIMES, ())


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(PblasWarning, match="measured algorithms are ignored"):
        context = measured()
    with (
        pytest.warns(PblasWarning, match="algorithms are ignored"),
        pytest.warns(PblasWarning, match="algorithms are not kept"),
    ):
        context.add("a", TIMES)
    assert context.times("a") == TIMES


def test_roads_are_words_and_back() -> None:
    for algorithm in (
        *candidates(planned("AR", 8192, 8192, 8192, 8), None, TOPOLOGIES[9, 0]),
        *(algorithm for algorithm, _ in TIMES),
    ):
        assert Algorithm.read(algorithm.short) == algorithm
