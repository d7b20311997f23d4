"""Ranks that torchrun starts: their agreement and errors on CPUs, without MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.run import ROOT

pytest.importorskip("torch", reason="needs torch")

RANKS = 3


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The job on three ranks of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    return subprocess.run(
        [*launcher, str(Path(__file__).with_name("group_job.py")), *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_ranks_agree_and_raise_together() -> None:
    done = torchrun()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all laws hold") == RANKS


def test_a_rank_that_is_late_or_dies_is_named(tmp_path: Path) -> None:
    done = torchrun(str(tmp_path))
    texts = [path.read_text() for path in sorted(tmp_path.glob("rank.*"))]
    assert len(texts) == RANKS - 1, done.stdout + done.stderr
    assert all(f"a call: rank {RANKS - 1} of {RANKS} did not arrive within 1 s" in text for text in texts), texts
