"""Dry runs: programs of any number of ranks on one process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pblas
from pblas import linalg
from pblas.backends.settings import DRY_RUN
from pblas.cli import main
from pblas.simulation.dry_run import least_ranks
from pblas.spectral.svd_plan import SvdAlgorithm

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - {"__init__", "tp_digits", "tp_torch"})  # test_torch.py
ARGUMENTS = {"pca": "100000", "tp_llama": "4", "tp_mlp": "2000 -- --ff 4000"}  # ranks and arguments


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")  # scikit-learn gets zeros
@pytest.mark.parametrize("name", [*NAMES, "scalapack/pdgemm", "scalapack/pdgesv", "scalapack/pdsyevd"])
def test_an_example_runs_dry(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On many ranks, and on the fewest that have enough memory; no example needs values."""
    monkeypatch.chdir(tmp_path)
    ranks, *arguments = ARGUMENTS.get(name, "2000").split()
    if name in ("polynomial_fit", "ridge"):
        arguments = [str(tmp_path / "samples.npy")]
    assert main(["dry-run", "--ranks", ranks, str(EXAMPLES / f"{name}.py"), *arguments]) == 0
    assert "  needs   P >= " in capsys.readouterr().out
    assert DRY_RUN.get() is None


@pytest.mark.parametrize("start", [lambda: pblas.run(print, 2), lambda: pblas.Pool(2)])
def test_a_dry_run_starts_no_ranks(start: Callable[[], object]) -> None:
    with pytest.raises(pblas.BackendError, match="a dry run has one process, and starts no ranks"):
        pblas.dry_run(start, ranks=8)


def program(n: int, tol: float = 1e-3) -> Any:
    """A loop that ends by a norm."""
    with pblas.Context() as ctx:
        A, steps = ctx.random((n, n)), 0
        while A.norm() > tol:
            A = A @ A
            steps += 1
        return A.norm() if steps else -1.0


def test_values_decide_how_often_a_loop_runs() -> None:
    run = pblas.dry_run(lambda: program(20_000), ranks=256, values={"norm": [1, 1, 1, 0]})
    assert {entry.call: entry.count for entry in run.operations} == {"pmatmul": 3, "norm": 5}
    assert [Path(site.partition(":")[0]).name for site in run.reads] == ["test_dry_run.py"]
    assert run.fits
    assert run.memory_limit >= run.peak_nbytes >= 3 * 8 * 20_000**2 // 256
    assert f"{run.value}" == "?"
    assert "needs   P >= " in str(run)
    with pytest.raises(pblas.ArgumentError, match=r"test_dry_run.py:\d+ has read values 10000 times"):
        pblas.dry_run(lambda: program(64), ranks=4, values={"norm": 1.0})
    assert pblas.dry_run(lambda: program(64), ranks=4).value == -1.0


def test_singular_values_and_refined_solutions() -> None:
    """Decisions by values that a dry run does not know take the way of a matrix of zeros."""

    def program() -> None:
        with pblas.Context() as ctx:
            a, b = ctx.random((400, 400)), ctx.random((400, 2))
            algorithms: tuple[SvdAlgorithm, ...] = ("local", "polar")
            for algorithm in algorithms:
                linalg.svd(a[:, :50], algorithm=algorithm, full_matrices=True)
                linalg.svdvals(a, algorithm=algorithm)
            linalg.solve(a, b, refine="tf32")
            linalg.qr(a, pivoting=True)

    called = {entry.call for entry in pblas.dry_run(program, ranks=4).operations}
    assert {"svd", "svdvals", "solve", "qr"} <= called


def test_mistakes_raise_the_errors_of_a_run() -> None:
    def wrong() -> None:
        with pblas.Context() as ctx:
            ctx.zeros((6, 5)) @ ctx.zeros((6, 5))

    with pytest.raises(pblas.DescriptorError, match=r"disagree on K.*found on rank 0 of 4096"):
        pblas.dry_run(wrong)
    assert DRY_RUN.get() is None


def test_an_assertion_about_values_ends_a_run() -> None:
    def judged() -> None:
        with pblas.Context() as ctx:
            assert ctx.ones((8, 8)).sum() == 64

    assert "test_dry_run.py" in pblas.dry_run(judged, ranks=2).ended


def _peak(need: int, ranks: int) -> int:
    """Memory of a program that needs `need` ranks of 10 bytes."""
    return -(-10 * need // ranks)


def test_the_fewest_ranks() -> None:
    for need in (1, 2, 96, 100_000):
        found = least_ranks(partial(_peak, need), 4096, _peak(need, 4096), 10)
        assert found is not None
        assert need <= found <= max(need + 1, 1.06 * need)
    assert least_ranks(lambda _: 12, 4096, 12, 11) is None


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    text = "import sys, pblas\nwith pblas.Context() as ctx:\n    x = ctx.zeros((int(sys.argv[1]), 9)).sum()\n"
    script.write_text(f"{text}    assert x == 1\n    print(f'{{x:.3f}} on {{ctx.nprocs}}')\n", encoding="utf-8")
    assert main(["dry-run", "--ranks", "64", "--hardware", "laptop", str(script), "900"]) == 0
    out = capsys.readouterr().out
    assert out.count("? on 64") == 1
    assert "dry run on 64 ranks of laptop" in out
    assert "ReductionPlan, 900 x 9, float64" in out


def test_words_after_two_dashes_are_the_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "words.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    for words in ([str(script), "a", "--ranks", "8", "--", "--ranks", "3"], ["--ranks", "8", str(script), "--", "-b"]):
        assert main(["dry-run", *words]) == 0
    out = capsys.readouterr().out
    assert "['a', '--ranks', '3']" in out
    assert "['-b']" in out
    assert out.count("dry run on 8 ranks") == 2
    with pytest.raises(SystemExit):
        main(["dry-run", str(script), "--ranks", "8", "a"])
    assert "unrecognized arguments: a; the script's own come after it, or after --" in capsys.readouterr().err
