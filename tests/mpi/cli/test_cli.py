"""The command line on several ranks, called as a function: files are shared, and only rank 0 prints."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas.backends.gpu_info import Diagnostics, Gpu
from pblas.cli import main
from tests.common.ranks import printed

Array = np.ndarray[Any, Any]
Capture = pytest.CaptureFixture[str]
COMM = MPI.COMM_WORLD
RANK, NPROCS = COMM.rank, COMM.size

pytestmark = pytest.mark.mpi


def save(path: Path, array: Array) -> str:
    """Write an array on rank 0; afterwards all ranks see it."""
    if RANK == 0:
        np.save(path, array)
    COMM.Barrier()
    return str(path)


def random(shape: tuple[int, int], dtype: Any = np.float64) -> Array:
    generator = np.random.default_rng(5)
    real: Array = generator.random(shape)
    whole: Array = real + 1j * generator.random(shape) if np.dtype(dtype).kind == "c" else real
    return whole.astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "complex64"])
def test_demo_checks_every_plan(dtype: str, capsys: Capture) -> None:
    assert main(["demo", "--m", "50", "--n", "33", "--k", "41", "--dtype", dtype, "--repeat", "1"]) == 0
    out = printed(capsys)
    if out is None:
        return
    for text in ("AG(B)", "AG(A)", "RS", "AR", "The owners of A if it is row-wise", "GFLOP/s", "Try next", dtype):
        assert text in out
    assert out.count(" ok ") == 4
    assert "FAILED" not in out


@pytest.mark.openmpi
def test_demo_reads_matrices(folder: Path, capsys: Capture) -> None:
    a = save(folder / "a.npy", random((20, 30)).astype(np.float32))
    b = save(folder / "b.npy", random((30, 10)).astype(np.float32))
    assert main(["demo", "--a", a, "--b", b, "--repeat", "1"]) == 0
    assert main(["demo", "--a", a, "--n", "7", "--repeat", "1"]) == 0
    out = capsys.readouterr().out
    if RANK == 0:
        assert "A 20 x 30, B 30 x 10, float32" in out
        assert "A 20 x 30, B 30 x 7, float32" in out


def test_demo_with_a_wrong_result_fails_on_every_rank(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("pblas.cli.demo.LIMIT", -1.0)
    assert main(["demo", "--m", "8", "--n", "8", "--k", "8", "--repeat", "1"]) == 1
    assert ("FAILED" in capsys.readouterr().out) == (RANK == 0)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--grid 1xP",
        "--grid 1xP,Px1",
        "--grid Px1 --block 3x5 --order C",
        "--grid 1xP --block 64x2 --transa T",
        "--grid Px1 --transa T --transb T --block 4x4",
        "--grid 1xP --transb C --alpha -1.5",
        "--grid PxQ",
    ],
)
def test_matmul_writes_the_product_of_numpy(options: str, folder: Path, capsys: Capture) -> None:
    """P stands for the number of ranks; P x Q is a grid of 2 x 2 on four."""
    if "Q" in options:
        options = f"--grid {1 + NPROCS // 4}x{max(1, NPROCS // 2)}"
    words = options.replace("P", str(NPROCS)).split()
    a, b = random((23, 17)), random((17, 29)) - 0.5
    path_a = save(folder / "a.npy", a.T if "--transa" in words else a)
    path_b = save(folder / "b.npy", b.T if "--transb" in words else b)
    assert main(["matmul", path_a, path_b, "-o", str(folder / "d.npy"), *words]) == 0
    expected = (-1.5 if "--alpha" in words else 1) * (a @ b)
    np.testing.assert_allclose(np.load(folder / "d.npy"), expected, rtol=0, atol=2 * 18 * np.finfo(float).eps * 17)
    out, err = capsys.readouterr()
    assert err == ""
    assert ("d.npy: 23 x 29 float64" in out) == (RANK == 0)


@pytest.mark.parametrize(
    ("kind", "dtype", "shape", "output"),
    [
        ("gen", "float64", (300,), "x.npy"),  # enough columns for two ranks
        ("pos", "complex128", (300, 3), "x.npy"),
        ("gen", "complex64", (9, 2), "x.h5"),
        ("pos", "float32", (9,), "x.h5"),
        ("gen", "float64", (0,), "x.npy"),
    ],
)
def test_solve_writes_the_solution_of_numpy(
    kind: str, dtype: str, shape: tuple[int, ...], output: str, folder: Path, capsys: Capture
) -> None:
    n = shape[0]
    a, b = random((n, n), dtype) + n * np.eye(n, dtype=dtype), random((n, 3), dtype)[:, : (*shape, 1)[1]].reshape(shape)
    hermitian = ((a + a.conj().T) / 2).astype(dtype)
    stored = np.where(np.tri(n, dtype=bool), hermitian, np.asarray(np.nan, dtype)) if kind == "pos" else a
    paths = save(folder / "a.npy", np.asfortranarray(stored)), save(folder / "b.npy", b), str(folder / output)
    assert main(["solve", paths[0], paths[1], "-o", paths[2], "--assume-a", kind]) == 0
    assert ("solved in" in (printed(capsys) or "")) == (RANK == 0)
    if output == "x.npy":
        x = np.load(paths[2])
        assert x.shape == shape
    else:
        with h5py.File(paths[2], "r") as file:
            x = file["data"][...].reshape(shape)
    assert x.dtype == b.dtype
    expected = np.linalg.solve(hermitian if kind == "pos" else a, b) if n else b
    np.testing.assert_allclose(x, expected, rtol=0, atol=30 * n * np.finfo(dtype).eps * abs(expected).max(initial=0))


def test_solve_prints_residual_and_condition_and_refuses_nan(folder: Path, capsys: Capture) -> None:
    n = 15
    hilbert, x = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0), str(folder / "x.npy")
    for a, texts in ((hilbert, ["A is ill-conditioned"]), (np.diag([4.0, 1.0]), ["residual 0, reciprocal", "0.25"])):
        paths = save(folder / "a.npy", a), save(folder / "b.npy", np.ones(len(a)))
        for kind in ("gen",) if a is hilbert else ("gen", "pos"):  # it is not positive definite numerically
            assert main(["solve", *paths, "-o", x, "--assume-a", kind, "--overwrite"]) == 0
            out = printed(capsys) or ""
            assert all((text in out) == (RANK == 0) for text in texts), out
    for a, b, name in (
        (np.full((2, 2), np.nan), np.ones(2), "A or b"),
        (np.eye(2), np.full((2, 3), np.inf), "A or b"),
        (np.eye(2) * 1e-308, np.full(2, 1e300), "x"),
    ):
        paths = save(folder / "a.npy", a), save(folder / "b.npy", b)
        assert main(["solve", *paths, "-o", str(folder / "y.npy")]) == 1
        text = f"solve: {name} has elements that are infinite or NaN; nothing is written"
        assert (text in capsys.readouterr().err) == (RANK == 0)
    assert not (folder / "y.npy").exists()


def test_solve_reports_matrices_that_cannot_be_solved(folder: Path, capsys: Capture) -> None:
    a = save(folder / "a.npy", np.zeros((8, 8)))
    for kind, expected in (
        ("gen", "solve: A is singular"),
        ("pos", "; from the shell, --assume-a gen solves it by LU"),
    ):
        assert main(["solve", a, a, "-o", str(folder / "x.npy"), "--assume-a", kind]) == 1
        assert (expected in capsys.readouterr().err) == (RANK == 0)
    assert not (folder / "x.npy").exists()


@pytest.mark.parametrize(("lowest", "output"), [(None, "V.npy"), (3, "V.h5"), (None, None), (2, None)])
def test_eigh_writes_the_eigenvalues_of_numpy(
    lowest: int | None, output: str | None, folder: Path, capsys: Capture
) -> None:
    n = 30
    a = random((n, n), "complex128")
    a = a + a.conj().T
    path, values = save(folder / "a.npy", np.tril(a)), str(folder / "w.npy")
    options = ([] if lowest is None else ["--lowest", str(lowest)]) + ([] if lowest else ["--values", values])
    options += [] if output is None else ["-o", str(folder / output)]
    assert main(["eigh", path, *options]) == 0
    text = printed(capsys) or ""
    right = np.linalg.eigvalsh(a)[:lowest]
    if RANK == 0:
        assert f"{len(right)} eigenvalues in" in text
        w = np.array([float(line) for line in text.splitlines()[:-1]][-len(right) :]) if lowest else np.load(values)
        np.testing.assert_allclose(w, right, rtol=0, atol=1e-12)
        if output == "V.npy":
            v = np.load(folder / output)
            np.testing.assert_allclose(a @ v, v * w, rtol=0, atol=1e-12)
        elif output is not None:
            with h5py.File(folder / output, "r") as file:
                v = file["data"][...]
            np.testing.assert_allclose(a @ v, v * w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [None, 3])
def test_svd_writes_singular_values_and_vectors(k: int | None, folder: Path, capsys: Capture) -> None:
    a = random((30, 12), "float64") * 0.1 ** np.arange(12)
    path, prefix = save(folder / "a.npy", a), folder / "part"
    options = [] if k is None else ["-k", str(k)]
    assert main(["svd", path, *options]) == 0
    text = printed(capsys) or ""
    assert main(["svd", path, "-o", str(prefix), *options]) == 0
    if RANK == 0:
        s = np.linalg.svd(a, compute_uv=False)[:k]
        values = np.array([float(line) for line in text.splitlines()[:-1]][-len(s) :])
        np.testing.assert_allclose(values, s, rtol=1e-3, atol=1e-14 * s[0])
        u, found, vh = (np.load(f"{prefix}_{name}.npy") for name in ("U", "S", "Vh"))
        assert (np.linalg.norm((u * found) @ vh - a) <= 2 * s[-1]) if k else np.allclose((u * found) @ vh, a)
    assert main(["svd", path, "-k", "13"]) == 1
    assert ("k must be an integer from 1" in capsys.readouterr().err) == (RANK == 0)


def test_eigh_reports_errors(folder: Path, capsys: Capture) -> None:
    path = save(folder / "a.npy", np.full((4, 4), np.nan))
    for line, expected in (
        ([], "eigh: A has NaN or infinite elements"),
        (["--lowest", "5"], "0 <= first <= last < 4"),
        (["--values", "w.h5"], "--values must be a .npy file"),
        (["--values", path], "is also read"),
    ):
        assert main(["eigh", path, *line]) == 1
        assert (expected in capsys.readouterr().err) == (RANK == 0)


@pytest.mark.openmpi
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("solve b.npy b.npy -o x.npy", "solve: A is 9 x 8; it must be square"),
        ("solve a.npy none.npy -o x.npy", "No such file"),
        ("solve integers.npy a.npy -o x.npy", "; from the shell, --dtype gives all matrices one"),
        ("solve a.npy vector.npy -o x.npy", "B has 3 rows"),
        ("solve a.npy a.npy -o x.txt", "x.txt ends in '.txt'"),
        ("demo --a a.npy --b b.npy", "disagree on K"),
        ("matmul none.npy a.npy -o d.npy", "No such file"),
        ("matmul a.npy a.npy -o none/d.npy", "there is no folder"),
        ("matmul a.npy a.npy -o .", "a folder, device or pipe has this name"),
        (
            "matmul a.npy a.npy -o d.txt",
            "d.txt ends in '.txt'; a matrix is saved as .npy, .h5, .zarr, .mtx or .bin: pass 'd.npy'",
        ),
        ("matmul a.npy none.h5 -o d.npy", "No such file"),
        ("matmul a.npy b.npy -o b.npy", "b.npy is also read; choose another --output, or replace it by --overwrite"),
        ("solve a.npy b.npy -o ./a.npy", "a.npy is also read"),
        ("matmul two.h5 a.npy -o d.npy", "; from the shell, --dataset A=NAME names that of A"),
        (
            "matmul a.npy a.npy -o two.h5 --dataset D=x",
            "; from the shell, --dataset A=NAME names that of A, and so on, --o",
        ),
        ("matmul a.npy a.npy -o d.npy --dataset D=x", "dataset='x' is for .h5 and .zarr files"),
        ("matmul a.npy a.npy -o d.npy --grid 99x1", "use a smaller grid"),
    ],
)
def test_a_refusal_is_one_line_of_rank_0(
    line: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    save(folder / "a.npy", random((8, 8)))
    save(folder / "b.npy", random((9, 8)))
    save(folder / "integers.npy", np.eye(8, dtype=int))
    save(folder / "vector.npy", np.zeros(3))
    save_two(folder / "two.h5")
    monkeypatch.chdir(folder)
    assert main(line.split()) == 1
    assert_one_error(capsys, expected)


def test_matmul_adds_c_and_converts(folder: Path) -> None:
    a, b, c = random((6, 5), "complex64"), random((5, 7), "complex64"), random((6, 7), "complex64")
    paths = [save(folder / f"{name}.npy", x) for name, x in (("a", a), ("b", b), ("c", c))]
    options = ["--c", paths[2], "--alpha", "2j", "--beta", "0.5", "--dtype", "complex128"]
    assert main(["matmul", paths[0], paths[1], "-o", str(folder / "d.npy"), *options]) == 0
    d = np.load(folder / "d.npy")
    assert d.dtype == np.complex128
    wide = [x.astype(np.complex128) for x in (a, b, c)]
    np.testing.assert_allclose(d, 2j * wide[0] @ wide[1] + 0.5 * wide[2], rtol=0, atol=2 * 6 * np.finfo(float).eps * 20)


def test_matmul_multiplies_hdf5_files(folder: Path) -> None:
    a, b = random((6, 5)), random((5, 7))
    path = save(folder / "a.npy", a)
    if RANK == 0:
        with h5py.File(folder / "b.h5", "w") as file:
            file.create_dataset("b", data=b, chunks=(2, 2))
    COMM.Barrier()
    assert main(["matmul", path, str(folder / "b.h5"), "-o", str(folder / "d.h5")]) == 0
    with h5py.File(folder / "d.h5", "r") as file:
        np.testing.assert_allclose(file["data"][...], a @ b, rtol=0, atol=2 * 6 * np.finfo(float).eps * 5)


def save_two(path: Path) -> None:
    """**Collective.** A file of two matrices, 2 x and x."""
    if RANK == 0:
        with h5py.File(path, "w") as file:
            file["x"] = random((8, 8))
            file["run/double"] = 2 * random((8, 8))
    MPI.COMM_WORLD.Barrier()


def test_datasets_of_one_file_are_operands_and_results(folder: Path) -> None:
    path, x = str(folder / "two.h5"), random((8, 8))
    save_two(Path(path))
    options = ["--dataset", "A=run/double", "--dataset", "B=x", "--dataset", "D=d"]
    assert main(["matmul", path, path, "-o", path, *options]) == 0
    assert main(["solve", path, path, "-o", path, "--dataset", "A=x", "--dataset", "b=d", "--dataset", "x=d"]) == 1
    assert (
        main(
            ["solve", path, path, "-o", path, "--overwrite", "--dataset", "A=x", "--dataset", "b=d", "--dataset", "x=y"]
        )
        == 0
    )
    with h5py.File(path, "r") as file:
        np.testing.assert_array_equal(file["x"], x)
        np.testing.assert_array_equal(file["run/double"], 2 * x)
        np.testing.assert_allclose(file["d"], 2 * x @ x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(x @ file["y"][...], 2 * x @ x, rtol=0, atol=1e-10)
    MPI.COMM_WORLD.Barrier()


def test_convert_writes_other_formats(folder: Path, capsys: Capture) -> None:
    x, names = np.arange(56.0).reshape(8, 7), [str(folder / name) for name in ("a.bin", "b.h5", "c.npy")]
    if COMM.rank == 0:
        (folder / "a.bin").write_bytes(x.tobytes())
    COMM.Barrier()
    assert main(["convert", names[0], names[1], "--shape", "8x7", "--dtype", "float64", "--order", "C"]) == 0
    assert main(["convert", names[1], names[2], "--rows", "2:6", "--columns", "3:"]) == 0
    assert np.array_equal(np.load(names[2]), x[2:6, 3:])
    assert main(["convert", names[0], names[2], "--dtype", "float64"]) == 1
    assert main(["convert", names[2], names[2]]) == 1
    folder_of_zarr = str(folder / "d.zarr")
    for options, status in (([], 0), ([], 1), (["--overwrite"], 0)):
        assert main(["convert", names[1], folder_of_zarr, *options]) == status
    assert main(["convert", folder_of_zarr, names[2], "--overwrite"]) == 0
    assert np.array_equal(np.load(names[2]), x)
    if COMM.rank == 0:
        printed = capsys.readouterr()
        assert "c.npy: 4 x 4 float64" in printed.out
        assert "pass its rows and columns" in printed.err
        assert "there is an array already" in printed.err


def test_an_input_is_replaced_on_demand(folder: Path) -> None:
    x = random((8, 8))
    path = save(folder / "a.npy", x)
    assert main(["matmul", path, path, "-o", path, "--overwrite"]) == 0
    np.testing.assert_allclose(np.load(path), x @ x, rtol=0, atol=1e-12)


def test_matmul_of_integers_names_the_remedy(folder: Path, capsys: Capture) -> None:
    a = save(folder / "a.npy", np.arange(16).reshape(4, 4))
    assert main(["matmul", a, a, "-o", str(folder / "d.npy")]) == 1
    assert_one_error(capsys, "; from the shell, --dtype gives all matrices one")
    assert main(["matmul", a, a, "-o", str(folder / "d.npy"), "--dtype", "float32"]) == 0
    np.testing.assert_array_equal(np.load(folder / "d.npy"), np.load(a) @ np.load(a))
    with pytest.raises(SystemExit) as left:
        main(["matmul", a, a, "-o", str(folder / "d.npy"), "--dtype", "int32"])
    assert left.value.code == 2
    assert "from the shell" not in capsys.readouterr().err


@pytest.mark.openmpi
def test_info_describes_all_ranks(capsys: Capture) -> None:
    assert main(["info"]) == 0
    out = printed(capsys)
    if out is None:
        return
    for fact in (
        "MPI library",
        "MPI standard",
        "ranks per node",
        "cores that a rank may use",
        "BLAS threads per rank",
        "openblas",
    ):
        assert fact in out


def test_info_as_json_has_the_lines_of_the_table_and_the_facts_of_show_config(capsys: Capture) -> None:
    assert main(["info", "--json"]) == 0
    out = printed(capsys)
    if out is None:
        return
    facts = json.loads(out)
    local = pblas.show_config("dicts")
    assert isinstance(facts.pop("missing"), list)
    changing = {"memory", "shared memory"}  # what is free changes in between
    assert changing <= facts.keys()
    assert {name: facts[name] for name in local if name not in changing} == {
        name: text for name, text in local.items() if name not in changing
    }
    assert facts["ranks"] == str(NPROCS)
    assert all(isinstance(text, str) for text in facts.values())


def test_show_config_prints_what_it_returns(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBLAS_SYMMETRIC_SIZE", "2G")
    facts = pblas.show_config("dicts")
    assert "PBLAS_SYMMETRIC_SIZE=2G" in facts["settings"]
    assert f"pblas {pblas.__version__}" in facts["packages"]
    assert "openblas" in facts["BLAS"]
    pblas.show_config()
    out = capsys.readouterr().out
    assert all(f"{name}:" in out for name in facts)
    with pytest.raises(pblas.ArgumentError, match="mode must be 'stdout' or 'dicts', got 'json'"):
        pblas.show_config("json")  # type: ignore[call-overload]


def test_info_shows_the_gpus_of_all_ranks(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Also if only some ranks have CuPy."""
    h200 = ("NVIDIA H200", f"GPU-{RANK:08x}-0123-4567-89ab-0123456789ab", (9, 0), 140 << 30)
    device = Gpu(0, *h200, 132, 13000, 13000, True, True, False)
    diagnostics = Diagnostics(devices=(device,), mine=0) if RANK < 2 else Diagnostics(problem="no GPU is visible")
    monkeypatch.setattr("pblas.cli.gpus.has_cupy", lambda: RANK == NPROCS - 1)
    monkeypatch.setattr("pblas.backends.nvshmem.diagnostics.find", lambda _: diagnostics)
    assert main(["info"]) == 0
    out = printed(capsys)
    if out is None:
        return
    assert "0: NVIDIA H200, 140.0 GiB" in out
    assert ("elsewhere: GPU-00000001, rank 1" in out) == (NPROCS > 1)
    assert ("missing: GPUs for rank" in out) == (NPROCS > 2)


def assert_one_error(capsys: Capture, expected: str) -> None:
    """Rank 0 prints one line; the others print nothing."""
    out, err = capsys.readouterr()
    assert out == ""
    if RANK:
        assert err == ""
        return
    assert err.startswith("pblas: error: ")
    assert err.count("\n") == 1
    assert expected in err
