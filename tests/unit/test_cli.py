import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import pblas
from pblas.backends.cuda import device
from pblas.backends.gpu_info import QUEUES_VARIABLE, Diagnostics, Gpu, Platform
from pblas.cli import gpus, main
from pblas.cli.demo import gauge
from pblas.cli.output import launcher_rank
from pblas.layouts import MatrixDescriptor
from pblas.matmul.api import plan_matmul
from tests.harness.run import ROOT

Capture = pytest.CaptureFixture[str]
COMMANDS = ("demo", "bench", "matmul", "solve", "eigh", "svd", "convert", "run", "plan", "trace", "layout", "info")
MPIEXEC = Path(sys.executable).parent / "mpiexec"
LAUNCHERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
NO_MPI = "import sys; sys.modules['mpi4py'] = None; from pblas.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def leave(arguments: list[str]) -> object:
    """Exit status of arguments that end the program."""
    with pytest.raises(SystemExit) as left:
        main(arguments)
    return left.value.code


def test_help_names_every_command(capsys: Capture) -> None:
    assert leave(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS)
    assert "mpiexec -n 4 python -m mpi4py -m pblas demo" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_fits_a_wide_terminal(command: str, capsys: Capture) -> None:
    assert leave([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: pblas {command}" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["plan", "--m", "8", "--ranks", "2"], "--n, --k"),
        (["plan", "qr", "--m", "8", "--ranks", "2"], "required: --n"),
        (["plan", "lq", "--n", "8", "--ranks", "2"], "invalid choice: 'lq'"),
        (["plan", "--m", "-8", "--n", "8", "--k", "8", "--ranks", "2"], "an integer of at least 0, got '-8'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "0"], "an integer of at least 1, got '0'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--a", "rows"], "got 'rows'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--a", "row:0"], "got 'row:0'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--a", "2x0"], "got '2x0'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--out", "2x1:3"], "got '2x1:3'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--grid", "2"], "got '2'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--transa", "H"], "expected N, T or C, got 'H'"),
        (["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2", "--dtype", "int32"], "float64"),
        (["demo", "--dtype", "bool"], "expected one of float32, float64"),
        (["layout", "20", "12", "--grid", "2by3"], "two integers of at least 1, as 2x3, got '2by3'"),
        (["layout", "20", "12", "--block", "0x3"], "got '0x3'"),
        (["matmul", "a.npy", "b.npy"], "-o/--output"),
        (["matmul", "a.npy", "b.npy", "-o", "d.npy", "--grid", "1x2,2x1,1x1"], "one pair, or one for A and one for B"),
        (["matmul", "a.npy", "b.npy", "-o", "d.npy", "--alpha", "two"], "expected a number"),
        (["solve", "a.npy", "b.npy"], "-o/--output"),
        (["solve", "a.npy", "b.npy", "-o", "x.npy", "--assume-a", "her"], "invalid choice: 'her'"),
        (["demo", "--m", "0"], "got '0'"),
        (["demo", "--m", "1.5"], "an integer of at least 1, got '1.5'"),
        (["demo", "--m", "1e999999999"], "an integer of at least 1, got '1e999999999'"),
        (["demo", "--m", "nan"], "an integer of at least 1, got 'nan'"),
        (["matmul", "a.h5", "b.h5", "-o", "d.h5", "--dataset", "x=a"], "A=NAME, B=NAME, C=NAME, D=NAME, got 'x=a'"),
        (["bench", "--seconds", "0"], "a positive number of seconds, got '0'"),
        (["bench", "--seconds", "nan"], "a positive number of seconds, got 'nan'"),
    ],
)
def test_wrong_arguments_exit_with_2_and_say_what_was_expected(
    arguments: list[str], expected: str, capsys: Capture
) -> None:
    assert leave(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err


def test_other_ranks_than_0_are_silent_and_exit_with_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    assert leave(["plan", "--m", "8"]) == 2
    assert leave(["plan", "--m", "8", "--ranks", "2"]) == 2
    assert leave(["--help"]) == 0
    assert leave(["--version"]) == 0
    assert main(["layout", "4", "4"]) == 0
    assert main(["layout", "4", "4", "--rsrc", "7"]) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_rank_is_what_the_launcher_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launcher_rank() == 0
    monkeypatch.setenv(name, "3")
    assert launcher_rank() == 3


def test_plan_prints_the_plan(capsys: Capture) -> None:
    sizes = ["--m", "8192", "--n", "4096", "--k", "2048", "--ranks", "8", "--dtype", "bfloat16", "--a", "row"]
    assert main(["plan", *sizes]) == 0
    text = capsys.readouterr().out
    assert text.startswith("AllGatherGemm: D = op(A) op(B), 8192 x 4096 x 2048 (m x n x k), bfloat16, on 8 ranks")
    assert f"{7 * 2048 * 4096 * 2 // 8:,} bytes per rank" in text


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("--a row --b row --out row --m 999", "AllGatherGemm"),
        ("--a row --b row --out row", "AllGatherGemm"),
        ("--a row --b row --out row --n 2048 --k 2048", "SummaB"),
        ("--a column --b column --out column", "AllGatherGemm"),
        ("--a column --b row --out column", "GemmReduceScatter"),
        ("--a row --b row --transa T --out row", "GemmReduceScatter"),
        ("--a column --b row --out replicated", "GemmAllReduce"),
        ("--a row --b replicated", "LocalGemm"),
        ("--a row:16 --b column --out row:16 --m 999", "AllGatherGemm"),
        ("--a column --b column --transb C --transa C --out row --m 999", "AllGatherGemm"),
        ("--a 2x2 --b 2x2:8x8 --out 2x2:8x16", "SummaC"),
        ("--grid 2x2 --block 8x8 --out 2x2:8x8", "SummaC"),
        ("--grid 1x4,4x1 --out column", "GemmReduceScatter"),
        ("--a row --b row --out 4x1 --m 999", "AllGatherGemm"),
    ],
)
def test_plan_takes_layouts_of_the_stored_matrices(options: str, name: str, capsys: Capture) -> None:
    assert main(["plan", "--m", "64", "--n", "96", "--k", "128", "--ranks", "4", *options.split()]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_integers_may_be_written_as_numbers_of_programs(capsys: Capture) -> None:
    printed = []
    for m in ("1000000", "1e6", "1_000_000", "1E+6", "0.5e6"):
        assert main(["plan", "--m", m, "--n", "8", "--k", "8", "--ranks", "4", "--a", "row:1e3"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] == printed[2] == printed[3] != printed[4]


@pytest.mark.parametrize(("m", "n", "k"), [(512, 512, 65536), (65536, 512, 512), (4096, 4096, 4096), (7, 9, 0)])
def test_plan_with_sizes_only_leaves_the_layouts_to_the_planner(m: int, n: int, k: int, capsys: Capture) -> None:
    assert main(["plan", "--m", str(m), "--n", str(n), "--k", str(k), "--ranks", "8"]) == 0
    assert capsys.readouterr().out == f"{plan_matmul(m, n, k, nprocs=8).explain()}\n"


def test_plan_with_one_layout_takes_the_others_as_row_wise(capsys: Capture) -> None:
    rows, columns = MatrixDescriptor.row_wise(64, 64, 4), MatrixDescriptor.column_wise(64, 64, 4)
    sizes = ["--m", "64", "--n", "64", "--k", "64", "--ranks", "4"]
    for options, descs, out in (
        (["--a", "column"], (columns, rows), None),
        (["--b", "column"], (rows, columns), None),
        (["--out", "column"], (rows, rows), columns),
    ):
        assert main(["plan", *sizes, *options]) == 0
        assert capsys.readouterr().out == f"{plan_matmul(*descs, out=out, dtype='float64').explain()}\n"


def test_one_rank_is_not_called_1_ranks(capsys: Capture) -> None:
    for options in ([], ["--a", "row"], ["--grid", "1x1"]):
        assert main(["plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "1", *options]) == 0
    assert main(["layout", "4", "4", "--grid", "1x1"]) == 0
    text = capsys.readouterr().out
    assert "1 ranks" not in text
    assert text.count("on 1 rank") >= 3


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("solve --n 4096 --nrhs 3 --ranks 4", ["LuPlan", "SubstitutionPlan"]),
        ("solve --n 8192 --ranks 4 --assume-a pos", ["CholeskyPlan", "SubstitutionPlan"]),
        ("solve --n 8192 --ranks 64 --assume-a pos", ["GridCholeskyPlan", "PipelinedTrsm", "PipelinedTrsm"]),
        ("solve --n 1024 --nrhs 1024 --ranks 64 --algorithm grid --b 8x8", ["GridLuPlan", "GridSubstitutionPlan"]),
        ("lu --m 8192 --n 4096 --ranks 4", ["LuPlan"]),
        ("cholesky --n 4096 --ranks 4 --a 2x2:64x64 --dtype complex64", ["GridCholeskyPlan"]),
        ("qr --m 100000 --n 64 --ranks 4", ["TsqrPlan"]),
        ("qr --n 512 --ranks 6 --algorithm grid", ["GridQrPlan"]),
        ("eigh --n 1024 --ranks 2", ["EighPlan"]),
    ],
)
def test_plan_of_factorizations_and_solvers(options: str, names: list[str], capsys: Capture) -> None:
    """Each step is explained, then simulated."""
    assert main(["plan", *options.split(), "--simulate", "fat-tree"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1] != " "]
    assert [line.split(":")[0] for line in lines[: len(names)]] == names
    assert [line.split(" on ")[0] for line in lines[len(names) :]] == names


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("cholesky --n 65536", "64 panels of 1024 columns, on 5 ranks, by cuSOLVER"),
        ("solve --n 65536", "64 panels of 1024 columns, on 5 ranks, by cuSOLVER"),
        ("qr --m 10000000 --n 100", "CholeskyQR"),
        ("eigh --n 20000", "GPUs would wait"),
    ],
)
def test_a_machine_of_gpus_is_planned_for(options: str, expected: str, capsys: Capture) -> None:
    assert main(["plan", *options.split(), "--ranks", "8", "--simulate", "nvlink"]) == 0
    assert expected in capsys.readouterr().out
    assert main(["plan", *options.split(), "--ranks", "8", "--simulate", "fat-tree"]) == 0
    assert expected not in capsys.readouterr().out


def test_plan_for_a_million_ranks(capsys: Capture) -> None:
    assert main(["plan", "--m", "1000000", "--n", "4096", "--k", "4096", "--ranks", "1000000"]) == 0
    assert "1000000 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--grid 2x3", "plan: A is on a 2 x 3 grid, but the number of ranks is 4; use at least 6 ranks"),
        ("--b 5x1", "plan: B is on a 5 x 1 grid"),
        ("--out 2x3", "plan: D is on a 2 x 3 grid"),
        ("--block 2x3", "--block needs --grid"),
        ("--grid 2x2 --a column", "--grid already gives A and B their layouts; drop it, or drop --a and --b"),
        ("--grid 2x2 --b row", "--grid already gives A and B their layouts"),
    ],
)
def test_a_refusal_is_one_line_and_status_1(options: str, expected: str, capsys: Capture) -> None:
    assert main(["plan", "--m", "64", "--n", "64", "--k", "64", "--ranks", "4", *options.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pblas: error: ")
    assert err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("cholesky --k 8", "plan cholesky: --k is for plan matmul; leave it out"),
        ("eigh --nrhs 8", "plan eigh: --nrhs is for plan solve; leave it out"),
        ("lu --assume-a pos", "plan lu: --assume-a is for plan solve; leave it out"),
        ("matmul --m 64 --k 64 --algorithm grid", "--algorithm is for plan solve and plan cholesky"),
        ("solve --a 2x3", "plan: A is on a 2 x 3 grid, but the number of ranks is 4"),
        ("qr --algorithm lq", "plan: algorithm must be one of 'auto', 'blocked', 'grid'"),
        ("solve --b 5x1", "plan: B is on a 5 x 1 grid"),
        ("solve --algorithm tsqr", "plan: algorithm must be one of"),
        ("cholesky --dtype bfloat16", "plan: dtype is bfloat16, which has too few bits"),
    ],
)
def test_options_that_do_not_fit_the_planned_operation(options: str, expected: str, capsys: Capture) -> None:
    assert main(["plan", *options.split(), "--n", "64", "--ranks", "4"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err


def test_an_error_names_the_command_and_no_function(tmp_path: Path, capsys: Capture) -> None:
    a, b, d = (str(tmp_path / name) for name in ("a.npy", "b.npy", "d.npy"))
    np.save(a, np.ones((2, 3)))
    np.save(b, np.ones((2, 3)))
    assert main(["matmul", a, b, "-o", d]) == 1
    error = capsys.readouterr().err
    assert error.startswith("pblas: error: matmul: A and B disagree on K")
    assert "plan_matmul" not in error


def test_layout_draws(capsys: Capture) -> None:
    assert main(["layout", "20", "12", "--block", "4x3", "--grid", "2x3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("20 x 12 matrix, blocks of 4 x 3 over a 2 x 3 grid")
    assert "rank 5 at (1, 2): 8 x 3" in text


def test_layout_gives_each_process_one_block_by_default(capsys: Capture) -> None:
    assert main(["layout", "9", "5", "--grid", "2x2", "--order", "C", "--csrc", "-1"]) == 0
    assert "rank 3 at (1, 1): 4 x 5" in capsys.readouterr().out


def test_layout_writes_svg(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "layout.svg"
    assert main(["layout", "20", "12", "--svg", str(path)]) == 0
    assert path.read_text().startswith("<svg")
    assert "written" in capsys.readouterr().out
    for taken in (tmp_path / "missing" / "layout.svg", tmp_path):
        assert main(["layout", "20", "12", "--svg", str(taken)]) == 1
        assert f"pblas: error: {taken}: cannot be written: " in capsys.readouterr().err


def test_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "pblas", "plan", "--m", "8", "--n", "8", "--k", "8", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("AllGatherGemm")
    assert done.stderr == ""


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs the mpiexec of this environment")
@pytest.mark.parametrize("command", ["run -n 2", str(MPIEXEC) + " -n 2 script"])
def test_scripts_run_on_ranks_and_an_error_of_one_ends_the_job(command: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pblas\nctx = pblas.Context()\n"
        "sys.stdout.write(f'rank {ctx.rank} of {ctx.nprocs} {sys.argv[1:]} {__name__}\\n')\n"
        "sys.stdout.flush()\n"
        "if sys.argv[1] == 'fails' and ctx.rank == 1:\n    raise KeyError('mine')\n"
        "ctx.zeros((2, 2))\nctx.close()\n"
    )
    program = [sys.executable, "-m", "pblas"]
    words = command.split()
    start = [*program, *words] if words[0] == "run" else [*words[:3], *program]
    for argument, status in (("--works", 0), ("fails", 1)):
        done = subprocess.run(
            [*start, str(script), argument],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) == status, done.stderr
        assert sorted(done.stdout.splitlines())[:2] == [
            f"rank {rank} of 2 ['{argument}'] __main__" for rank in range(2)
        ]
    assert "KeyError: 'mine'" in done.stderr


@pytest.mark.skipif(not MPIEXEC.exists(), reason="needs the mpiexec of this environment")
@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["demo", "--m", "none"], 2, "argument --m: expected an integer of at least 1, got 'none'"),
        (["matmul", "none.npy", "none.npy", "-o", "d.npy"], 1, "pblas: error: none.npy: cannot be read"),
    ],
)
def test_ranks_of_a_job_exit_with_one_status_and_rank_0_prints(
    arguments: list[str], status: int, expected: str
) -> None:
    command = [str(MPIEXEC), "-n", "3", sys.executable, "-m", "mpi4py", "-m", "pblas", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.count(expected) == 1
    assert "Traceback" not in done.stderr


def run_without_mpi(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_MPI, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def h200(index: int, digits: str) -> Gpu:
    uuid = f"GPU-{digits}-0123-4567-89ab-0123456789ab"
    return Gpu(index, "NVIDIA H200", uuid, (9, 0), 140 << 30, 132, 13000, 13010, True, True, False)


PAIR = Diagnostics(
    devices=(h200(0, "aaaaaaaa"), h200(1, "bbbbbbbb")),
    mine=1,
    peers=((0, 1),),
    versions=(("CuPy", "14.2.0"), ("NVSHMEM", "3.4.5")),
    symmetric_nbytes=1 << 30,
)
NUMBERS = [gpus.number(replace(PAIR, mine=index)) for index in (0, 1)]


def test_info_shows_gpus_and_which_rank_has_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(QUEUES_VARIABLE, "8")
    found = gpus.rows(PAIR, NUMBERS)
    assert "hardware queues" not in found
    first, second = found["GPUs"].split("\n")
    assert first == "0: NVIDIA H200, 140.0 GiB, compute capability 9.0, GPU-aaaaaaaa, rank 0"
    assert second.endswith("GPU-bbbbbbbb, rank 1")
    assert found["GPU peers"] == "all 2 GPUs, pairwise"
    assert found["CUDA"] == "driver for 13.0, runtime 13.1"
    assert found["GPU libraries"] == "CuPy 14.2.0, NVSHMEM 3.4.5"
    assert found["symmetric memory"].startswith("1.0 GiB on every GPU; it does not grow")
    assert gpus.missing(PAIR, NUMBERS) == []


def test_info_tells_of_gpus_that_rank_0_does_not_see_and_of_ranks_without() -> None:
    far = gpus.number(Diagnostics(devices=(h200(0, "cccccccc"),), mine=0))
    numbers = [NUMBERS[1], far, -1.0, -1.0]
    lines = gpus.rows(PAIR, numbers)["GPUs"].split("\n")
    assert lines[0].endswith(", no rank")
    assert lines[1].endswith(", rank 0")
    assert lines[2:] == ["elsewhere: GPU-cccccccc, rank 1", "without a GPU: ranks 2, 3"]
    (missing,) = gpus.missing(PAIR, numbers)
    assert missing.startswith("GPUs for ranks 2, 3: ")


def test_info_names_missing_cuda_libraries_with_the_remedy() -> None:
    lines = gpus.missing(replace(PAIR, lacking=("cuBLASLt", "NVRTC")), NUMBERS)
    assert [line.partition(",")[0] for line in lines] == ["cuBLASLt", "NVRTC"]
    assert all(line.endswith(": pip install 'cupy-cuda13x[ctk]'") for line in lines)


def test_info_says_what_stands_against_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = replace(PAIR, peers=(), problem="the driver is too old")
    problem, shared, peers = gpus.missing(apart, [NUMBERS[0]] * 2)
    assert problem == "the driver is too old"
    assert shared.startswith("ranks 0 and 1 both use GPU GPU-aaaaaaaa of the job")
    assert peers.startswith("GPUs 0 and 1 do not reach")
    monkeypatch.setenv(QUEUES_VARIABLE, "32")
    found = gpus.rows(apart, NUMBERS)
    assert found["GPU peers"] == "none"
    assert found["hardware queues"].startswith("32: ")


@pytest.mark.parametrize("count", [0, 8])
def test_info_without_cupy_is_one_line(count: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(gpus, "has_cupy", lambda: False)
    monkeypatch.setattr(gpus, "driver_count", lambda: count)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert f"{count or 'none'} found, CuPy is not installed" in text
    assert ("missing: CuPy" in text) == (count > 0)
    assert "Nothing is missing." not in text


def test_info_with_a_cupy_that_does_not_work_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(gpus, "has_cupy", lambda: True)
    monkeypatch.setattr(gpus, "driver_count", lambda: 8)
    monkeypatch.setattr(device, "probe", lambda: Platform(lack="libcudart.so.13: cannot open shared object file"))
    assert main(["info"]) == 0
    assert "missing: libcudart.so.13: cannot open shared object file. pip install" in capsys.readouterr().out


def test_info_without_mpi_names_the_remedy() -> None:
    done = run_without_mpi("info")
    assert done.returncode == 0, done.stderr
    assert "MPI" in done.stdout
    assert "not available" in done.stdout
    assert "pip install mpi4py mpich" in done.stdout
    for fact in ("BLAS", "/dev/shm", "numpy", "GPUs"):
        assert fact in done.stdout


def test_demo_without_mpi_names_the_remedy() -> None:
    done = run_without_mpi("demo")
    assert done.returncode == 1
    assert re.fullmatch(
        r"pblas: error: Context: backend 'mpi' is not available: .*pip install mpi4py mpich.*\n", done.stderr
    )


def test_bench_starts_its_ranks_and_writes_its_report(tmp_path: Path, capsys: Capture) -> None:
    files = tmp_path / "b.json", tmp_path / "b.html"
    sizes = ["--seconds", "0.2", "--ranks", "2"]
    assert main(["bench", *sizes, "--json", str(files[0]), "--html", str(files[1])]) == 0
    report, page = json.loads(files[0].read_text(encoding="utf-8")), files[1].read_text(encoding="utf-8")
    assert report["ranks"] == 2
    out = capsys.readouterr().out
    for row in report["rows"]:
        assert row["name"].partition(",")[0] in out
        assert row["name"] in page
    for name in ("system", "processor", "MPI library", "BLAS", "BLAS threads per rank", "packages"):
        assert report["machine"][name]
        assert f"{name}: " in out
        assert f"<td>{name}</td>" in page
    assert len(ET.fromstring(page.partition("\n")[2]).findall(".//tr")) == 1 + len(report["rows"]) + len(
        report["machine"]
    )


def test_bench_refuses_files_that_cannot_be_written_before_it_measures(tmp_path: Path, capsys: Capture) -> None:
    assert main(["bench", "--json", str(tmp_path / "none" / "b.json")]) == 1
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--version", f"pblas {pblas.__version__}"),
        ("--help", "mpiexec -n 4 python -m mpi4py -m pblas demo"),
        ("plan --m 8 --n 8 --k 8 --ranks 2", "bytes"),
        ("layout 8 8", "rank"),
        ("info", "\npackages "),
        ("demo --m 64 --n 64 --k 64 --repeat 1", "All results agree with NumPy's"),
    ],
)
def test_without_rich_the_commands_print_plainly(line: str, expected: str) -> None:
    code = "import sys; sys.modules['rich'] = None; from pblas.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *line.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert expected in done.stdout


def test_a_wrong_launcher_is_refused_with_the_remedy() -> None:
    code = (
        "import os, sys; os.environ['OMPI_COMM_WORLD_SIZE'] = '4'; from pblas.cli import main; sys.exit(main(['info']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "the launcher started 4 ranks (OMPI_COMM_WORLD_SIZE=4)" in done.stdout


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_gauge_counts_roundings_and_finds_mistakes(dtype: str) -> None:
    one = np.ones((3, 3), dtype)
    eps = np.finfo(dtype).eps
    growth = np.full((3, 3), 2.0)
    assert gauge(one, one, growth) == 0
    assert gauge(one * one.dtype.type(1 + 4 * eps), one, growth) == 2
    wrong = one.copy()
    wrong[1, 2] = np.nan
    assert not gauge(wrong, one, growth) <= 16
    assert gauge(one, np.zeros_like(one), np.zeros((3, 3))) == np.inf
    assert gauge(np.zeros_like(one), np.zeros_like(one), np.zeros((3, 3))) == 0


COMMAND_LINES = [
    "layout 20 12 --block 4x3 --grid 2x3",
    "plan --m 8 --n 8 --k 8 --ranks 4 --grid 9x9",
    "--help",
]


@pytest.mark.parametrize("encoding", ["ascii", "cp437"])
@pytest.mark.parametrize("line", COMMAND_LINES)
def test_output_that_is_not_utf_8_gets_plain_characters(line: str, encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pblas", *line.split()],
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == ("9x9" in line), done.stderr
    text = done.stdout.decode(encoding)
    assert "?" not in text
    assert b"Traceback" not in done.stderr
    if line.startswith("layout") and encoding == "ascii":
        assert "+---+" in text


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", ">/dev/full"])
@pytest.mark.parametrize("line", COMMAND_LINES)
def test_closed_or_full_streams_end_in_a_status_and_not_in_a_traceback(line: str, closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m pblas {line} {closed}'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1)
    assert "Traceback" not in done.stderr
