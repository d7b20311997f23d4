"""Ranks that torchrun starts: their agreement, their contexts and errors on CPUs, without MPI."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.run import ROOT

pytestmark = pytest.mark.torch

RANKS, SECONDS = 3, 120
JOB, CONTEXTS = (str(Path(__file__).with_name(f"{name}_job.py")) for name in ("group", "gloo"))
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["torch.distributed", __name__])  # torch takes seconds to import: once for all ranks


def test_ranks_that_torchrun_starts_work_and_raise_together() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*launcher, CONTEXTS], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all laws hold") == RANKS
    assert not list(Path("/dev/shm").glob("pblas-*")), "names of shared memory are gone"


def become_rank(environment: dict[str, str], command: tuple[str, ...]) -> None:
    os.environ.update(environment)
    sys.argv = list(command)
    runpy.run_path(command[0], run_name="__main__")


def run_ranks(nranks: int, *command: str) -> list[int | None]:
    """Exit statuses of ranks that run without torchrun, which ends a job of which a rank has died."""
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(nranks)} for rank in range(nranks)]
    ranks = [FORKS.Process(target=become_rank, args=(ENVIRONMENT | place, command)) for place in places]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(SECONDS)
        return [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_a_rank_that_is_late_or_dies_is_named(tmp_path: Path) -> None:
    assert run_ranks(RANKS, JOB, str(tmp_path)) == [0] * (RANKS - 1) + [-9]
    texts = [path.read_text() for path in sorted(tmp_path.glob("rank.*"))]
    assert len(texts) == RANKS - 1
    assert all(f"a call: rank {RANKS - 1} of {RANKS} did not arrive within 1 s" in text for text in texts), texts


@pytest.mark.parametrize(
    ("nranks", "call", "transport"),
    [
        (2, "product", "message"),
        (3, "agreement", "auto"),
        (3, "solve", "message"),
        (3, "layer", "auto"),
    ],
)
def test_a_rank_that_is_killed_in_a_call_is_named_in_time(
    nranks: int, call: str, transport: str, tmp_path: Path
) -> None:
    """The timeout is 2 s; the others have the same error some seconds later at most, and their context is broken."""
    assert run_ranks(nranks, CONTEXTS, call, str(tmp_path), transport) == [0] * (nranks - 1) + [-9]
    outcomes = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank.*"))]
    assert len(outcomes) == nranks - 1
    for text, seconds, afterwards in outcomes:
        assert f"rank {nranks - 1} of {nranks} did not arrive within 2 s" in text, outcomes
        assert seconds < 10
        assert afterwards == "ContextError"
