"""Whole programs under pblas.scalapack: the example next to the Fortran program, and the end of a program."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pblas import scalapack
from tests.common.ranks import COMM, few

pytestmark = pytest.mark.mpi

FOLDER = Path(__file__).parents[3] / "examples" / "scalapack"


def example(name: str) -> Any:
    """A translated program as a module, whose main() has not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_program_prints_the_elements_of_the_product(capsys: pytest.CaptureFixture[str]) -> None:
    """`make peer` compares its output with that of the Fortran program."""
    program = example("pdgemm")
    program.main()
    out = capsys.readouterr().out
    if COMM.rank:
        assert out == ""
        return
    expected = []
    for i in range(1, program.m + 1, 166):
        j = i // 2 + 1
        element = sum(((i + 2 * l) % 7 - 3) * ((3 * l + j) % 5 - 2) for l in range(1, program.k + 1))
        expected.append(f"C({i:4d},{j:4d}) ={element:10.1f}")
    assert out.splitlines() == expected


def test_the_program_prints_the_elements_of_the_solution(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as the Fortran program, as `make peer` checks."""
    program = example("pdgesv")
    program.main()
    out = capsys.readouterr().out
    if COMM.rank:
        assert out == ""
        return
    i = np.arange(1, program.n + 1)
    x = np.linalg.solve((i[:, None] + 2 * i) % 7 - 3 + 20 * np.eye(program.n), i % 5)
    assert out.splitlines() == [f"x({j + 1:4d}) ={x[j]:11.8f}" for j in range(0, program.n, 166)]


@few
def test_the_program_prints_eigenvalues_and_elements_of_a_vector(capsys: pytest.CaptureFixture[str]) -> None:
    """The same as the Fortran program, as `make peer` checks."""
    program = example("pdsyevd")
    program.main()
    out, n = capsys.readouterr().out, program.n
    angle = np.pi / (n + 1)
    expected = [f"w({k}) ={2 - 2 * np.cos(k * angle):11.8f}" for k in range(1, 5)]
    vector = np.sqrt(2 / (n + 1)) * np.sin(angle * np.arange(n + 1))
    expected += [f"abs(z({i:3d}, 1)) ={vector[i]:11.8f}" for i in range(1, n + 1, 66)]
    assert out.splitlines() == (expected if COMM.rank == 0 else [])


def test_exit_ends_every_grid() -> None:
    handles = [scalapack.gridinit(COMM, "R", 1, npcol, timeout=20.0) for npcol in (COMM.size, 1)]
    assert scalapack.gridinfo(handles[0])[:2] == (1, COMM.size)
    scalapack.exit(0)
    assert all(scalapack.gridinfo(handle)[0] == -1 for handle in handles)
