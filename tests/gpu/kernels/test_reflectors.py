"""The kernel of panels: CTAs that wait for each other end with an error where the GPU does not hold them all."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.harness.run import ROOT

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

TOO_MANY = """
import os

import cupy
from pblas.backends.cuda.arrays import DeviceArrays

arrays = DeviceArrays()
arrays.begin()
reflectors = arrays._reflectors
processors, nbytes = reflectors._limits
reflectors.__dict__["_limits"] = 4 * processors, nbytes
x, t = cupy.ones((1000 * processors, 32), order="F"), cupy.empty((32, 32), order="F")
ctas, height = reflectors._shape(x)
assert ctas > processors, (ctas, height)
print("begins", flush=True)
arrays.qr(x, t)
arrays.synchronize()
print("ends without an error", flush=True)
os._exit(0)
"""


def test_a_wait_for_thread_blocks_that_do_not_run_ends() -> None:
    """By a trap, which ends all work of the process on the GPU: so it is a process of its own."""
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}"}
    run = subprocess.run(
        [sys.executable, "-c", TOO_MANY], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert run.stdout == "begins\n", (run.stdout, run.stderr)
    assert "unspecified launch failure" in run.stderr, run.stderr
    assert run.returncode
