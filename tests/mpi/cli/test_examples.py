"""The examples run as they stand, on any number of ranks."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from tests.common.ranks import few, printed

Capture = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[3] / "examples"
RANK = MPI.COMM_WORLD.rank

pytestmark = pytest.mark.mpi

sys.path.append(str(EXAMPLES))  # the folder from which a script imports


def load(name: str) -> Any:
    """An example as a module, whose main() has not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in annotations
    spec.loader.exec_module(module)
    return module


def test_matmul_prints_a_small_error(capsys: Capture) -> None:
    load("matmul").main()
    out = printed(capsys)
    if out is None:
        return
    assert "D is 1000 x 600" in out
    assert float(out.split()[-1]) < 2 * 801 * 2.3e-16 * 800


def test_tensor_parallel_layers_agree_with_one_rank(capsys: Capture) -> None:
    """A feed-forward block, and a stack of decoder layers, with the plain collectives beside them."""
    assert load("tp_mlp").main(["--tokens", "25", "--hidden", "24", "--ff", "60", "--repeat", "1"]) == 0
    assert load("tp_llama").main(["--tokens", "25", "--repeat", "1"]) == 0
    out = printed(capsys)
    if out is None:
        return
    block, stack = (float(line.split()[-1]) for line in out.splitlines() if "largest error" in line)
    assert block < 1e-5
    assert stack < 1e-5
    assert "prefill: 25 tokens" in out
    assert "decode: 4 tokens" in out


@pytest.mark.parametrize("memory", [None, 4 * 60 * 5])
def test_a_large_product_goes_by_panels(memory: int | None, capsys: Capture) -> None:
    options = ["--m", "47", "--k", "60", "--n", "9", *(["--memory", str(memory)] if memory else [])]
    assert load("bigger_than_one_gpu").main(options) == 0
    out = printed(capsys)
    if out is None:
        return
    held = -(-47 // MPI.COMM_WORLD.size)
    assert f"rows on each rank: {-(-held // 5) if memory else 1}," in out
    assert float(out.split("largest error ")[1].split(",")[0]) < 60 * 1.2e-7 * 8


WRONG = {
    "bigger_than_one_gpu --memory 0": "--memory must be more than 0 bytes, got 0",
    "bigger_than_one_gpu --m 0": "rows and columns must be at least 1, got 0 x 600 by 600 x 64",
    "bigger_than_one_gpu --n -3": "got 1150 x 600 by 600 x -3",
    "bigger_than_one_gpu --file none.npy": "--file none.npy: [Errno 2] No such file",
    "bigger_than_one_gpu --file text.npy": "--file text.npy: EOF: reading magic string",
    "bigger_than_one_gpu --file line.npy": "--file line.npy: expected a real matrix, got shape (3,), dtype complex64",
    "tp_mlp --tokens -1": "--tokens, --hidden, --ff and --repeat must be at least 1",
    "tp_mlp --repeat 0": "--tokens, --hidden, --ff and --repeat must be at least 1",
    "tp_mlp --dtype complex64": "invalid choice: 'complex64'",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_options_are_refused(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(folder)
    if RANK == 0:
        Path("text.npy").write_text("no")
        np.save("line.npy", np.zeros(3, "complex64"))
    MPI.COMM_WORLD.Barrier()
    name, *options = line.split()
    with pytest.raises(SystemExit) as left:
        load(name).main(options)
    assert left.value.code == 2
    assert WRONG[line] in capsys.readouterr().err


@pytest.mark.torch
def test_modules_of_torch_are_trained_as_on_one_rank(capsys: Capture) -> None:
    assert load("tp_torch").main(["--tokens", "3", "--hidden", "6"]) == 0
    pblas.torch.context_of().close()  # tests of wrong calls need one open context
    out = printed(capsys)
    if out is None:
        return
    assert float(out.split()[-1]) < 1e-5


@pytest.mark.torch
@pytest.mark.ranks(3, reason="the losses are those of any number of ranks, and training takes seconds")
def test_a_classifier_learns_as_on_one_rank(capsys: Capture) -> None:
    """The loss after ten steps is that of one rank."""
    assert load("tp_digits").main(["--steps", "10"]) == 0
    pblas.torch.context_of().close()
    out = printed(capsys)
    if out is None:
        return
    loss, right = out.split("step 10: loss ")[1].split("\n3 ranks: ")
    assert abs(float(loss) - 0.3503) < 2e-4
    assert float(right.split()[0]) > 80


ARRAYS = {
    "power_iteration": ("largest eigenvalue 40.949255", 1e-10),
    "conjugate_gradients": ("3 systems of 500 equations", 1e-10),
    "gaussian_process": ("length 4, log-likelihood -450.65, mean error 0.43", 1e-10),
    "boundary_value": ("600 equations", 1e-10),
    "subspace_iteration": ("eigenvalues 100.000000 60.000000 36.000000 21.600000", 1e-10),
    "plate": ("frequencies 35.", 0.01),
    "gram_schmidt": ("basis of 40 columns", 1e-13),
    "newton_schulz": ("polar factor of a 400 x 200 matrix", 1e-10),
    "kmeans": ("1200 points in 5 clusters", 0.5),
    "pca": ("explained variance, %: 14.89 13.62 11.79", 1e-12),
    "image_compression": ("rank 80: 31.3% of the numbers", 0.3),
    "total_least_squares": ("total least squares: slopes", 0.05),
    "spectral_clustering": ("1797 digits in 10 clusters", 0.2),
}


DRAWN = ("boundary_value", "pca", "spectral_clustering")
SLOW = ("gaussian_process", *DRAWN)  # they import scikit-learn, or matplotlib


@pytest.mark.parametrize("name", [pytest.param(name, marks=few if name in SLOW else ()) for name in ARRAYS])
def test_examples_with_arrays_check_their_results(name: str, folder: Path, capsys: Capture) -> None:
    (text, bound), picture = ARRAYS[name], folder / "picture.png"
    is_drawn = name in DRAWN and importlib.util.find_spec("matplotlib") is not None
    assert load(name).main(*([str(picture)] if is_drawn else [])) < bound
    out = printed(capsys)
    assert out is None or text in out
    MPI.COMM_WORLD.Barrier()
    assert not is_drawn or picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", [*ARRAYS, "ridge", "polynomial_fit"])
def test_examples_with_arrays_are_short(name: str) -> None:
    tree = ast.parse((EXAMPLES / f"{name}.py").read_text())
    tree.body = tree.body[1:]  # without the docstring
    assert len(ast.unparse(tree).splitlines()) < 40


def test_ridge_makes_its_file_and_reads_it_again(folder: Path, capsys: Capture) -> None:
    options = [str(folder / "samples.npy"), "--features", "40", "--samples", "200"]
    assert load("ridge").main(options) == load("ridge").main(options[:1]) < 1e-4
    out = printed(capsys)
    assert out is None or out.count("40 weights of 200 samples") == 2


def test_the_polynomial_fits_data_from_a_file(folder: Path, capsys: Capture) -> None:
    options = [str(folder / "data.npy"), "--samples", "400"]
    assert load("polynomial_fit").main(options) == load("polynomial_fit").main(options[:1]) < 0.01
    out = printed(capsys)
    assert out is None or out.count("degree 9, 400 points") == 2
