"""The wheel has machine code of each kernel of `backends/cuda`; the list of programs needs neither a GPU nor CuPy."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.harness.run import ROOT

FOLDER = ROOT / "backends/cuda"
LEFT_OUT = {
    "pointwise.cu": "one program for each expression",
    "normalise.cu": "one program for each pair of dtypes, compiled for a plan",
    "exact.cu": "for reproducible='exact' only",
    "exact_sums.cu": "for reproducible='exact' only",
}
KERNEL = re.compile(r"__global__ void(?:\s+__launch_bounds__\((?:[^()]|\([^()]*\))*\))?\s+(\w+)\(")
LISTED = """
import json, sys
from unittest.mock import MagicMock
for name in ("cupy", "cupy.cuda", "nvmath", "nvmath.bindings", "cuda", "cuda.core", "cuda.bindings"):
    sys.modules[name] = MagicMock()
from pblas.backends.nvshmem import cubins
programs = list(cubins.programs())
assert len(programs) == len({program.key for program in programs})
print(json.dumps([program.instances or program.code for program in programs]))
"""


@pytest.fixture(scope="module")
def listed() -> set[str]:
    """The names of the kernels in the wheel."""
    run = subprocess.run([sys.executable, "-c", LISTED], cwd=ROOT, capture_output=True, text=True, check=True)
    names = set[str]()
    for program in json.loads(run.stdout):
        names |= set(KERNEL.findall(program)) if isinstance(program, str) else {x.partition("<")[0] for x in program}
    return names


@pytest.mark.parametrize("name", sorted({path.name for path in FOLDER.glob("*.cu")} - set(LEFT_OUT)))
def test_the_wheel_has_every_kernel(name: str, listed: set[str]) -> None:
    kernels = set(KERNEL.findall((FOLDER / name).read_text(encoding="utf-8")))
    assert kernels
    assert kernels <= listed


def test_sources_that_are_left_out_exist() -> None:
    assert all((FOLDER / name).exists() for name in LEFT_OUT)
