"""Ranks that torchrun starts: their agreement and errors on CPUs, without MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.run import ROOT

pytestmark = pytest.mark.torch

RANKS, SECONDS = 3, 120
JOB = str(Path(__file__).with_name("group_job.py"))
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}


def test_ranks_agree_and_raise_together() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*launcher, JOB], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all laws hold") == RANKS


def test_a_rank_that_is_late_or_dies_is_named(tmp_path: Path) -> None:
    """Without torchrun, which ends a job of which a rank has died."""
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)} for rank in range(RANKS)]
    ranks = [
        subprocess.Popen([sys.executable, JOB, str(tmp_path)], cwd=ROOT, env=ENVIRONMENT | place) for place in places
    ]
    try:
        statuses = [rank.wait(SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert statuses == [0] * (RANKS - 1) + [-9]
    texts = [path.read_text() for path in sorted(tmp_path.glob("rank.*"))]
    assert len(texts) == RANKS - 1
    assert all(f"a call: rank {RANKS - 1} of {RANKS} did not arrive within 1 s" in text for text in texts), texts
