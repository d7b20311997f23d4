"""Laws of handles: results are those of the matrices on the ranks, and objects are freed with their last handle."""

from __future__ import annotations

import gc
import operator
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import eigsh

import pblas
from pblas import DistMatrix
from pblas.launch.handles import Handle

N = 7


@pytest.fixture(scope="module")
def pool() -> Iterator[pblas.Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        pool = pblas.Pool(3, timeout=20.0)
    with pool:
        yield pool
        gc.collect()
        assert pool.run(alive) == [set()] * pool.ranks  # after all tests, no object is left


def alive(ctx: pblas.Context) -> set[tuple[int, int]]:
    """Shapes of the matrices of the context, views included (local)."""
    gc.collect()
    return {matrix.shape for matrix in ctx.runtime.matrices if isinstance(matrix, DistMatrix)}


def some(seed: int, m: int = N, n: int = N) -> Any:
    return np.random.default_rng(seed).standard_normal((m, n))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "matmul", "lt", "ge")
}


@pytest.mark.parametrize("name", BINARY)
def test_operators_are_those_of_arrays(pool: pblas.Pool, name: str) -> None:
    a, b, v = some(0), some(1), some(2)[0]
    A, B, function = pool.from_global(a), pool.from_global(b), BINARY[name]
    for ours, expected in [
        (function(A, B), function(a, b)),
        (function(A, b), function(a, b)),
        (function(A, v), function(a, v)),
        (function(v, A), function(v, a)),
        *([] if name == "matmul" else [(function(A, 2.5), function(a, 2.5)), (function(2.5, A), function(2.5, a))]),
    ]:
        found = ours if isinstance(ours, np.ndarray) else ours.to_global()
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_every_operator_of_a_matrix_is_one_of_a_handle() -> None:
    others = {"__dlpack__", "__dlpack_device__", "__str__", "__module__", "__firstlineno__", "__static_attributes__"}
    others |= {"__array_namespace__", "__init__", "__slots__", "__doc__", "__weakref__", "__annotations__"}
    defined = {name for kind in DistMatrix.__mro__[:-1] for name in vars(kind) if name.startswith("__")}
    assert defined - others <= set(vars(Handle))


def test_attributes_methods_and_functions_of_numpy(pool: pblas.Pool) -> None:
    a = some(3, N, N + 2)
    A: Any = pool.from_global(a)
    assert (A.shape, A.ndim, A.size, A.dtype, len(A)) == (a.shape, 2, a.size, a.dtype, N)
    assert A.desc == pool.call(lambda _, A: A.desc, A)
    np.testing.assert_allclose(A.T.to_global(), a.T)
    np.testing.assert_allclose([A.norm(), A.sum(), A[2, 3]], [np.linalg.norm(a), a.sum(), a[2, 3]])
    np.testing.assert_allclose(np.exp(A).to_global(), np.exp(a))
    np.testing.assert_allclose(np.sum(A, axis=0), a.sum(axis=0))
    np.testing.assert_allclose(np.add(A, a).to_global(), 2 * a)
    np.testing.assert_allclose(A[1:3, ::2].to_global(), a[1:3, ::2])
    np.testing.assert_allclose(A[A > 0], a[a > 0])
    A[0] = np.arange(N + 2)
    A *= 2
    np.testing.assert_allclose(A[0].to_global()[0], 2 * np.arange(N + 2))
    assert {"norm", "T", "plot"} <= set(dir(A))
    assert not {"local", "runtime"} & set(dir(A))
    with pytest.raises(AttributeError, match="nope"):
        A.nope  # noqa: B018 - the access raises


def test_functions_of_linalg_and_blas_take_and_give_handles(pool: pblas.Pool) -> None:
    a, b = some(4) + N * np.eye(N), some(5)[0]
    A: Any = pool.from_global(a)
    np.testing.assert_allclose(pool.linalg.solve(A, b), np.linalg.solve(a, b))
    np.testing.assert_allclose(np.linalg.solve(A, b), np.linalg.solve(a, b))
    factor = pool.linalg.lu_factor(A)
    np.testing.assert_allclose(factor.solve(b), np.linalg.solve(a, b))
    np.testing.assert_allclose(factor.det(), np.linalg.det(a))
    assert "LuFactor 7 x 7 float64" in repr(factor)
    w, V = pool.linalg.eigh(A + A.T)
    np.testing.assert_allclose((V * w @ V.T).to_global(), a + a.T)
    np.testing.assert_allclose(pool.blas.gemv(A, b), a @ b)
    planned: Any = pool.call(lambda _, A: pblas.plan_matmul(A, A), A)
    np.testing.assert_allclose(planned.execute(A, A).to_global(), a @ a)
    assert planned.explain().partition(":")[0] == type(planned.plan).__name__
    with pytest.raises(AttributeError, match="solve"):
        pool.linalg.solves  # noqa: B018
    np.testing.assert_allclose(eigsh(A + A.T, 2)[0], np.sort(w[np.argsort(abs(w))[-2:]]))  # SciPy's


def test_functions_of_the_user_get_the_objects(pool: pblas.Pool) -> None:
    A, B = pool.ones((N, 2)), pool.full((2, N), 3)
    shapes = pool.run(lambda _, x: (x["A"].local.shape, B.shape), ({"A": A},))
    assert [shape for _, shape in shapes] == [(2, N)] * pool.ranks
    assert sum(local[0] for local, _ in shapes) == N
    both = pool.call(lambda ctx: {"C": pblas.pmatmul(A, B, alpha=2.0), "rank": ctx.rank, "list": [A, (B,)]})
    assert both["rank"] == 0
    np.testing.assert_array_equal(both["C"].to_global(), np.full((N, N), 12.0))
    assert both["list"][1][0].shape == (2, N)


def test_matrices_are_made_on_the_ranks(pool: pblas.Pool, tmp_path: Path) -> None:
    made = [pool.zeros((N, 2)), pool.eye(N, k=1), pool.from_function(lambda i, j: i - j, (N, 3)), pool.empty((1, 1))]
    expected = [np.zeros((N, 2)), np.eye(N, k=1), np.subtract.outer(np.arange(N), np.arange(3)), None]
    for matrix, array in zip(made, expected, strict=True):
        if array is not None:
            np.testing.assert_array_equal(matrix.to_global(), array)
    np.testing.assert_array_equal(pool.random((N, 4), seed=1).to_global(), pool.random((N, 4), seed=1).to_global())
    np.testing.assert_array_equal(pool.replicate(some(6)).to_global(), some(6))
    made[1].save(tmp_path / "a.npy")
    np.testing.assert_array_equal(pool.load(tmp_path / "a.npy").to_global(), np.eye(N, k=1))
    picture = made[1].plot()
    assert picture is not None
    assert picture._repr_png_().startswith(b"\x89PNG")
    made[1].plot(tmp_path / "a.svg", spy=True)
    assert (tmp_path / "a.svg").exists()


def test_the_repr_has_the_corners(pool: pblas.Pool) -> None:
    A = pool.from_function(lambda i, j: 100 * i + j, (50, 40))
    text = repr(A)
    assert text.startswith("<DistMatrix 50 x 40 float64 ")
    assert f"on {pool.ranks} rank" in text
    assert [int(float(x)) for x in text.partition("\n")[2].replace("...", "").translate({91: 32, 93: 32}).split()] == [
        100 * i + j for i in (0, 1, 2, 47, 48, 49) for j in (0, 1, 2, 37, 38, 39)
    ]
    assert "4.939e+03" in A._repr_html_()
    assert "<svg" in A._repr_html_()
    assert repr(A.astype("float8_e4m3fn")).startswith("<DistMatrix 50 x 40 float8_e4m3fn")


def test_objects_are_freed_with_their_last_handle(pool: pblas.Pool) -> None:
    gc.collect()
    before = pool.run(alive)
    A = pool.zeros((13, 5))
    B = A.T
    B += 1
    for left in ({(13, 5), (5, 13)}, {(5, 13)}, set()):
        assert [shapes - old for shapes, old in zip(pool.run(alive), before, strict=True)] == [left] * pool.ranks
        if left == {(5, 13)}:
            del B
        elif left:
            del A

    def fails(ctx: pblas.Context) -> Any:
        matrix = ctx.zeros((13, 5))
        if ctx.rank == ctx.nprocs - 1:
            raise KeyError("on purpose")
        return matrix

    with pytest.raises(KeyError, match="on purpose"):
        pool.call(fails)
    assert pool.run(alive) == before


def test_errors_are_those_of_the_ranks_and_of_wrong_handles(pool: pblas.Pool) -> None:
    A = pool.zeros((N, N + 1))
    with pytest.raises(pblas.DescriptorError, match="disagree on K"):
        A @ A
    with pytest.raises(pblas.ArgumentError, match="truth value"):
        bool(A)
    for wrong in (lambda: np.asarray(A), lambda: pickle.dumps(A), lambda: A.local):
        with pytest.raises(pblas.ArgumentError, match=r"A\.to_global"):
            wrong()
    with pytest.raises(pblas.ArgumentError, match=r"handle is for pool\.linalg"):
        pblas.pmatmul(A, A)
    assert A.shape == (N, N + 1)


def test_a_lost_context_and_a_closed_pool_lose_what_handles_name() -> None:
    with pblas.Pool(1) as pool:
        A, B = pool.ones((3, 3)), pool.ones((2, 2))
        pool.run(lambda ctx: ctx.close())
        with pytest.raises(pblas.ContextError, match="DistMatrix of this handle was lost with its context; make it"):
            A.sum()
        assert "was lost" in repr(A)
        del A
        C = pool.ones((4, 4))
        assert C.sum() == 16
        with pblas.Pool(1) as other, pytest.raises(pblas.ArgumentError, match="of another pool"):
            other.linalg.inv(C)
    assert repr(B) == "<pblas.Handle of a DistMatrix, whose pool is closed>"
    with pytest.raises(pblas.ContextError, match="pool is closed"):
        B.sum()
