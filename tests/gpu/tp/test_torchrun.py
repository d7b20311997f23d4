"""Ranks that torchrun starts multiply and train on GPUs without MPI: two and eight of them share one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.run import ROOT

pytest.importorskip("torch", reason="needs torch")
pytestmark = pytest.mark.gpu

LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "MPIR_", "HYDRA_", "ORTE_")


@pytest.mark.parametrize("ranks", [2, 8])
def test_products_and_layers(ranks: int) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])}
    environment |= {"PBLAS_SHARE_GPU": "1", "GLOO_SOCKET_IFNAME": "lo", "NVSHMEM_DISABLE_NVLS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [*launcher, str(Path(__file__).with_name("group_job.py"))],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all laws hold") == ranks
