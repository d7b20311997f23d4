"""The wheel has machine code of each kernel of `backends/cuda`; the list of programs needs neither a GPU nor CuPy."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

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
import sys
from unittest.mock import MagicMock
for name in ("cupy", "cupy.cuda", "nvmath", "nvmath.bindings", "cuda", "cuda.core", "cuda.bindings"):
    sys.modules[name] = MagicMock()
from pblas.backends.cuda import pointwise, reductions
from pblas.backends.cuda.programs import Program
from pblas.backends.nvshmem import cubins
programs = {program.key: program for program in cubins.programs()}
"""
WALK = (
    """
import json
import numpy as np
import pblas
from pblas.backends.cpu.arrays import HostArrays
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import made

evaluate, reduce = HostArrays.evaluate, HostArrays.reduce
used, running = {}, ""

def evaluating(self, tree, operands, compute, out):
    if running.startswith("linalg."):
        types = tuple((name, x.dtype if np.ndim(x) else None) for name, x in operands.items())
        used.setdefault((tree, types, out.dtype, compute), running)
    return evaluate(self, tree, operands, compute, out)

def reducing(self, kind, x, axis, order, dtype, scale=None, **options):
    used.setdefault((kind, x.dtype, np.dtype(dtype)), running)
    return reduce(self, kind, x, axis, order, dtype, scale, **options)

HostArrays.evaluate, HostArrays.reduce = evaluating, reducing
with pblas.Context(backend="mpi") as ctx:
    for dtype in ("float32", "float64", "complex64", "complex128"):
        for running, operation in OPERATIONS.items():
            for options in ({}, {"algorithm": "polar"}) if running == "linalg.svd" else ({},):
                try:
                    operation.call(ctx, **made(ctx, {**operation.values, "dtype": dtype})[0], **options)
                except pblas.PblasError:  # not of this dtype
                    pass
"""
    + LISTED
    + """
def keys(expression):
    if len(expression) == 4:
        tree, types, out, compute = expression
        key = pointwise._key(tree, dict(types), out, compute)
        return [Program(pointwise.source(*key, packs=packs)).key for packs in (0, pointwise._PACKS)]
    kind, element, dtype = expression
    dtype, packs = reductions.result_dtype(kind, element, dtype), {16 // element.itemsize, 1}
    code = reductions.source("reductions.cu", element, dtype, reductions._kind(kind))
    return [Program(code, (f"reduce_{way}<{pack}>",)).key for way in ("along", "across") for pack in packs]

lacking = [(running, repr(x)) for x, running in used.items() if not set(keys(x)) <= programs.keys()]
print(json.dumps([len(used), lacking]))
"""
)


def output_of(code: str) -> Any:
    """What a process prints that has no CuPy."""
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    return json.loads(run.stdout)


@pytest.fixture(scope="module")
def listed() -> set[str]:
    """The names of the kernels in the wheel."""
    names = set[str]()
    shown = "import json; print(json.dumps([program.instances or program.code for program in programs.values()]))"
    for program in output_of(LISTED + shown):
        names |= set(KERNEL.findall(program)) if isinstance(program, str) else {x.partition("<")[0] for x in program}
    return names


@pytest.mark.parametrize("name", sorted({path.name for path in FOLDER.glob("*.cu")} - set(LEFT_OUT)))
def test_the_wheel_has_every_kernel(name: str, listed: set[str]) -> None:
    kernels = set(KERNEL.findall((FOLDER / name).read_text(encoding="utf-8")))
    assert kernels
    assert kernels <= listed


def test_calls_need_no_other_expression_and_no_other_reduction() -> None:
    """What calls evaluate on CPUs, of the usual dtypes, GPUs evaluate by kernels of the wheel."""
    count, lacking = output_of(WALK)
    assert count > 50
    assert not lacking


def test_sources_that_are_left_out_exist() -> None:
    assert all((FOLDER / name).exists() for name in LEFT_OUT)
