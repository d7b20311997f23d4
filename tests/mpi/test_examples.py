"""The examples run as they stand, on any number of ranks."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

Capture = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[2] / "examples"
RANK = MPI.COMM_WORLD.rank

pytestmark = pytest.mark.mpi


def load(name: str) -> Any:
    """An example as a module, whose main() has not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_matmul_prints_a_small_error(capsys: Capture) -> None:
    load("matmul").main()
    out = capsys.readouterr().out
    if RANK:
        assert out == ""
        return
    assert "D is 1000 x 600" in out
    assert float(out.split()[-1]) < 2 * 801 * 2.3e-16 * 800


@pytest.mark.parametrize("options", [[], ["--scatter", "--components", "3"], ["--components", "64"]])
def test_pca_agrees_with_numpy(options: list[str], capsys: Capture) -> None:
    assert load("pca").main(options) == 0
    out = capsys.readouterr().out
    if RANK:
        assert out == ""
        return
    assert "agrees" in out
    assert "explained variance, %:  14.89 13.62 11.79" in out
