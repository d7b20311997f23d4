"""Machine code that a wheel brings is what kernels are made of, if it is for this GPU and this source."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.run import ROOT

cupy = pytest.importorskip("cupy")
pytest.importorskip("nvmath.bindings")

if not cupy.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from pblas.backends.cuda import programs  # noqa: E402
from pblas.backends.cuda.programs import INDEX, Program  # noqa: E402
from pblas.backends.nvshmem import cubins  # noqa: E402

pytestmark = pytest.mark.gpu

CODE = "template <class T> __global__ void fill(T* x) { x[threadIdx.x] = %d; }"


def program(number: int) -> Program:
    return Program(CODE % number, ["fill<float>", "fill<double>"])


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder with machine code of one program."""
    if cupy.cuda.Device().compute_capability != "".join(map(str, cubins.CAPABILITY)):
        pytest.skip("the machine code is for Hopper")
    cubins.write(tmp_path / "cubins", [program(7)])
    monkeypatch.setattr(programs, "CUBINS", tmp_path / "cubins")
    programs._shipped.cache_clear()
    yield tmp_path / "cubins"
    programs._shipped.cache_clear()


def filled(source: Program, kind: str) -> Any:
    x = cupy.zeros(8, kind)
    source.get_function("fill<float>" if kind == "f4" else "fill<double>")((1,), (8,), (x,))
    return cupy.asnumpy(x).tolist()


def test_machine_code_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, raw_module, paths = program(7), cupy.RawModule, list[object]()

    def made(**options: Any) -> Any:
        paths.append(options["path"])
        return raw_module(**options)

    monkeypatch.setattr(cupy, "RawModule", made)
    assert [filled(source, kind) for kind in ("f4", "f8")] == [[7.0] * 8] * 2
    assert paths == [str(folder / f"{source.key}.cubin")]


def test_other_programs_are_compiled(folder: Path) -> None:
    assert len(list(folder.iterdir())) == 2
    assert filled(program(8), "f8") == [8.0] * 8


@pytest.mark.parametrize("content", [None, b"no machine code"])
def test_missing_or_damaged_machine_code_is_compiled(folder: Path, content: bytes | None) -> None:
    (path,) = folder.glob("*.cubin")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert filled(program(7), "f8") == [7.0] * 8


@pytest.mark.parametrize(("name", "value"), [("capability", [8, 0]), ("nvrtc", [99, 0])])
def test_machine_code_for_another_gpu_or_driver_is_not_read(folder: Path, name: str, value: list[int]) -> None:
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    (folder / INDEX).write_text(json.dumps(index | {name: value}), encoding="utf-8")
    for path in folder.glob("*.cubin"):
        path.write_bytes(b"not read")
    assert filled(program(7), "f4") == [7.0] * 8


WALK = """
import sys
import pblas
from pblas.backends.cuda.programs import Program
from pblas.backends.nvshmem import cubins
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import made
from tests.gpu.products.test_transfers import ON_GPUS, placed_on_gpus

known, compile, running = {program.key for program in cubins.programs()}, Program.compile, ""

def compiling(program):
    if program._module is None and program.key not in known:
        print(running, program.instances or program.code[-4000:].partition("__global__")[2][:120].split())
    compile(program)

Program.compile = compiling
with pblas.Context(backend="nvshmem") as ctx:
    for running, operation in OPERATIONS.items():
        if running.startswith("linalg.") and "exact" not in running:
            arguments = made(ctx, {**operation.values, "dtype": sys.argv[1]}, 64, placed_on_gpus)[0]
            try:
                operation.call(ctx, **arguments)
            except pblas.PblasError:  # not of this dtype, or not on GPUs
                pass
"""
"""Prints the programs that calls compile and that a wheel has not, in a process that has not compiled any yet."""


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_factorizations_compile_nothing_but_what_a_wheel_brings(dtype: str) -> None:
    command = [sys.executable, "-c", WALK, dtype]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert not run.returncode, run.stderr
    assert not run.stdout
