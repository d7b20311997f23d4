"""The package pblas.torch on ranks that torchrun starts, and its names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import pblas
from pblas.cli import main
from tests.harness.run import ROOT
from tests.unit.backends.test_process_group import ENVIRONMENT, SECONDS

pytestmark = pytest.mark.torch

RANKS = 4
JOB = str(Path(__file__).with_name("gloo_torch_job.py"))


def test_ranks_that_torchrun_starts_train_as_one(tmp_path: Path) -> None:
    """On a mesh of 2 x 2."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*launcher, JOB, str(tmp_path)],
        cwd=ROOT,
        env=ENVIRONMENT | {"PYTHONWARNINGS": "error::pblas.PblasWarning"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all laws hold") == RANKS
    assert "Warning" not in done.stderr
    assert not list(Path("/dev/shm").glob("pblas-*")), "names of shared memory are gone"


def test_all_names_can_be_imported() -> None:
    package: Any = import_module("pblas.torch")
    assert package is pblas.torch
    assert len(package.__all__) > 10
    assert all(getattr(package, name).__module__.startswith("pblas.torch") for name in package.__all__)


@pytest.mark.parametrize("name", ["tp_digits", "tp_torch"])
def test_a_dry_run_does_not_wait_for_ranks_of_torch(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dry-run", "--ranks", "8", str(ROOT / "examples" / f"{name}.py")]) == 1
    assert "init_mesh: torch.distributed waits for all ranks, and a dry run has one process" in capsys.readouterr().err
