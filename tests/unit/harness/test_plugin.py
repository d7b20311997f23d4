"""Laws of the harness: an error of one rank fails that test and no other, and the report shows it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.common.outside import outside
from tests.harness import run
from tests.harness.shares import NUMBERS

SCENARIO = """
import os

import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi
COMM = MPI.COMM_WORLD


def test_passes():
    assert COMM.allreduce(1) == 3


def test_skips():
    pytest.skip("on purpose")


@pytest.mark.mpi(min_size=4)
def test_needs_more_ranks():
    raise AssertionError


@pytest.mark.ranks(2, 4, reason="even numbers of ranks")
def test_needs_other_ranks():
    raise AssertionError


def test_asserts_on_one_rank():
    assert COMM.rank != 1, "rank 1 disagrees"


def test_skips_on_one_rank():
    if COMM.rank == 1:
        pytest.skip("alone")


def test_asserts_before_barrier():
    assert COMM.rank != 2, "rank 2 leaves"
    COMM.Barrier()  # the others stay


def test_waits_on_one_rank():
    if COMM.rank == 2:
        COMM.recv(source=0, tag=77)  # nobody sends


def test_crashes_on_one_rank():
    if COMM.rank == 1:
        os._exit(9)
    COMM.Barrier()


def test_passes_after_all():
    assert COMM.allreduce(1) == 3
"""
FAILING = [
    "test_asserts_on_one_rank",
    "test_skips_on_one_rank",
    "test_asserts_before_barrier",
    "test_waits_on_one_rank",
    "test_crashes_on_one_rank",
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the runner for the scenario on three ranks."""
    path = tmp_path_factory.mktemp("scenario") / "test_scenario.py"
    path.write_text(SCENARIO)
    options = ["-n", "3", "--timeout", "5", "--grace", "2"]
    command = [sys.executable, str(run.ROOT / "tests" / "harness" / "run.py"), *options]
    done = subprocess.run(
        [*command, str(path)], capture_output=True, text=True, timeout=120, env=outside(), check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def line_of(text: str) -> int:
    return SCENARIO.split(text, maxsplit=1)[0].count("\n") + 1


HANGING = ["COMM.recv(source=0", "COMM.Barrier()  # the others stay"]
TOLD = [
    "[rank 1]",
    "AssertionError: rank 1 disagrees",
    "the outcome differs between ranks: passed, skipped, passed",
    "test_waits_on_one_rank call: ranks [2] did not arrive within 5.",
    "test_asserts_before_barrier call: ranks [0, 1] did not arrive within 2.",
    "test_crashes_on_one_rank\nthe job died here (exit status 9)",
]


@pytest.mark.parametrize("text", TOLD)
def test_the_ranks_that_failed_are_named(output: str, text: str) -> None:
    assert text in output


ENDING = [
    *(text for text in TOLD if "\n" not in text),
    *(
        "the job died here (exit status 9)",
        'assert COMM.rank != 1, "rank 1 disagrees"',
        "AssertionError: rank 2 leaves",
    ),
    *(f'test_scenario.py", line {line_of(text)} in test_' for text in HANGING),
]


@pytest.mark.parametrize("text", ENDING)
def test_the_last_lines_have_the_end_of_each_traceback(output: str, text: str) -> None:
    """Of a long log often only the end is kept."""
    assert text in "\n".join(output.splitlines()[-60:])


def test_failing_tests_are_named_and_the_last_line_is_the_summary(output: str) -> None:
    assert output.splitlines()[-1] == "2 passed, 5 failed, 3 skipped"
    named = [line for line in output.splitlines() if line.startswith("FAILED ")]
    assert [line.split("::")[1].removesuffix(" [3 ranks]") for line in named] == FAILING


@pytest.mark.parametrize("text", HANGING)
def test_stack_of_the_hanging_line_is_shown(output: str, text: str) -> None:
    assert f'test_scenario.py", line {line_of(text)} in test_' in output


SLOW = """
import time

import pytest

pytestmark = pytest.mark.mpi


def test_passes():
    pass


@pytest.mark.parametrize("i", range(2))
def test_takes_long(i):
    time.sleep(60)
"""


def test_a_test_that_runs_when_the_deadline_passes_is_cut_and_has_not_failed(tmp_path: Path) -> None:
    path = tmp_path / "test_slow.py"
    path.write_text(SLOW)
    command = [sys.executable, str(run.ROOT / "tests" / "harness" / "run.py"), "-n", "2,3", "--deadline", "8"]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=60, env=outside(), check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "1 passed, 0 failed, 0 skipped"
    assert [line for line in lines if line.startswith(("CUT", "FAILED"))] == [
        "CUT ::test_takes_long[0] [2 ranks]",
        "CUT (the job of 2 ranks) [2 ranks]",
        "CUT (the job of 3 ranks) [3 ranks]",
    ]
    for ranks, cause in ((2, "has passed"), (3, "had passed before")):
        place = lines.index(f"CUT (the job of {ranks} ranks) [{ranks} ranks]")
        assert lines[place + 1] == f"    the deadline of the whole run (--deadline) {cause}"
    assert "2 ranks: 1 passed, 0 failed, 0 skipped, cut by the deadline in 8." in done.stdout
    assert "test_takes_long[0]\nthe deadline passed here (exit status None)" in done.stdout


def test_everything_is_every_unit_test_once_and_the_others_on_each_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "missing", lambda: "")
    legs = run.choose_legs(*run.parse([]))
    alone = [path for leg in legs if leg.ranks == 0 for path in leg.arguments]
    files = [str(path.relative_to(run.ROOT)) for path in (run.ROOT / "tests" / "unit").rglob("test_*.py")]
    others = ["tests/harness/plugin.py", "tests/harness/run.py", "tests/harness/shares.py", "pblas", "tests/hosts"]
    assert sorted(alone) == sorted([*files, *others])
    one_host = [leg for leg in legs if leg.ranks and not leg.hosts]
    assert [(x.ranks, x.arguments) for x in one_host] == [(n, ("--share", "tests/mpi")) for n in (1, 2, 3, 4, 6)]
    every = [leg for leg in run.choose_legs(*run.parse(["--every"])) if leg.ranks and not leg.hosts]
    assert all(leg.arguments == ("tests/mpi",) for leg in every)
    assert [(leg.hosts, leg.ranks) for leg in legs if leg.hosts] == [("2x1", 2), ("2x2", 4), ("1+3", 4)]
    assert len({leg.name for leg in legs}) == len(legs)


def test_tests_that_need_torch_run_where_it_is_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "missing", lambda: "there is no ip")
    legs = run.choose_legs(*run.parse(["--torch", "/torch/bin/python"]))
    others = [leg for leg in legs if leg.python != Path("/torch/bin/python")]
    files = run.marked("torch", ["tests/mpi"])
    assert "tests/mpi/tp/test_tp.py" in files
    assert not any(path in leg.arguments for leg in others for path in run.TORCH)
    assert all(leg.arguments[1:3] == ("-m", "not torch") for leg in others if leg.ranks)
    assert [(leg.ranks, leg.arguments) for leg in legs if leg not in others] == [
        (0, run.TORCH),
        *((n, ("-m", "torch", *files)) for n in NUMBERS),
    ]


def test_each_leg_that_needs_hosts_says_why_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "missing", lambda: "there is no ip")
    legs = run.choose_legs(*run.parse([]))
    assert not any(leg.hosts or run.FAULTS in leg.arguments for leg in legs)
    names = [f"hosts of {each} ranks" for each in ("2x1", "2x2", "1+3")]
    names.append("one process, which disturbs hosts")
    assert capsys.readouterr().out.splitlines() == [f"{name}: skipped, there is no ip" for name in names]


def test_hosts_run_the_tests_of_a_whole_run_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "missing", lambda: "")
    leg, other = run.choose_legs(*run.parse(["--hosts", "1+3,5x1"]))
    assert leg.arguments == ("-k", run.ALL_HOSTS["1+3"], *run.HOSTS)
    assert (other.arguments, other.ranks) == (run.HOSTS, 5)
    (named,) = run.choose_legs(*run.parse(["--hosts", "1+3", "tests/mpi/tp", "-k", "x"]))
    assert named.arguments == ("-k", "x", "tests/mpi/tp")
