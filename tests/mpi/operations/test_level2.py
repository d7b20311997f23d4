"""Laws of level 2: NumPy's results within the gauge; nothing else is read or written, and matrices do not move."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, MatrixDescriptor, blas
from pblas.errors import ArgumentError, DescriptorError, DTypeError
from pblas.vectors.matrix_vector_plan import MatrixVectorPlan, Term
from tests.common.gauge import THRESHOLD, Array, applied, entries, gauge
from tests.common.ranks import (
    Contexts,
    collected,
    each_wrong,
    few,
    open_context,
    raises_on_all_ranks,
    same_on_all_ranks,
)
from tests.mpi.matrices.arrays import placed, some_descriptor
from tests.mpi.operations.test_level1 import some_vector

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message")
NAMES = ("float32", "float64", "complex64", "complex128")
SIZES = (1, 2, 7, 8, 33, 70)
Symmetric = ("symv", "hemv")


def guarded(ctx: Context, rng: Random, stored: Array) -> tuple[DistMatrix, DistMatrix]:
    """**Collective.** A matrix of NaN, and a view of it with these elements."""
    i, j = rng.choice([0, 1, 3]), rng.choice([0, 2])
    whole = np.full((stored.shape[0] + i + 1, stored.shape[1] + j + 1), np.nan, stored.dtype)
    whole[i : i + stored.shape[0], j : j + stored.shape[1]] = stored
    m, n = whole.shape
    a = placed(ctx, whole, some_descriptor(rng, m, n, ctx.nprocs), rng.choice([0, 2]))
    return a, a[i : i + stored.shape[0], j : j + stored.shape[1]]


def viewed(rng: Random, make: Callable[[Array], DistMatrix], x: Array) -> DistMatrix:
    """A view of x: as it is, transposed, or conjugated."""
    view = rng.choice(["", "T", "H", "conj"])
    stored = {"": x, "T": x.T, "H": x.conj().T, "conj": x.conj()}[view]
    a = make(np.ascontiguousarray(stored))
    return {"": a, "T": a.T, "H": a.H, "conj": a.conj()}[view]


def triangle(uplo: str, x: Array, k: int = 0) -> Array:
    return np.tril(x, -k) if uplo == "L" else np.triu(x, k)


def whole_of(opname: str, uplo: str, x: Array) -> Array:
    """The symmetric or Hermitian matrix of a triangle."""
    strict, diagonal = triangle(uplo, x, 1), np.diag(x.diagonal().real if opname == "hemv" else x.diagonal())
    return strict + diagonal + (strict.conj().T if opname == "hemv" else strict.T)


def random_call(ctx: Context, rng: Random, opname: str, dtype: str) -> tuple[Callable[[], Any], Callable[[Any], float]]:
    """**Collective.** A call, and a function that gives the gauge of its result; matrices are poisoned."""
    n = rng.choice(SIZES)
    m = rng.choice(SIZES) if opname == "gemv" else n
    x_elements = entries((m, n), np.dtype(dtype), rng.randrange(99))
    uplo, trans, diag = rng.choice("LU"), rng.choice("NTC"), rng.choice("NU")
    poisoned = x_elements.copy()
    if opname != "gemv":
        poisoned[triangle(uplo, np.ones((n, n))) == 0] = np.nan
    matrix = x_elements
    if opname in Symmetric:
        matrix = whole_of(opname, uplo, x_elements)
        if opname == "hemv" and poisoned.dtype.kind == "c":
            poisoned.imag[np.diag_indices(n)] = np.nan
    elif opname == "trmv":
        matrix = triangle(uplo, x_elements, int(diag == "U")) + (np.eye(n) if diag == "U" else 0)
        if diag == "U":
            poisoned[np.diag_indices(n)] = np.nan
    a = viewed(rng, lambda stored: guarded(ctx, rng, stored)[1], poisoned)
    options: dict[str, Any] = {} if opname == "gemv" else {"uplo": uplo}
    if opname in ("gemv", "trmv"):
        options["trans"] = trans
        matrix = applied(trans, matrix)
    if opname == "trmv":
        options["diag"] = diag
    _, x, ex = some_vector(ctx, rng, dtype, matrix.shape[1])
    given: Any = ex if rng.random() < 0.4 else x
    around, out, ey = some_vector(ctx, rng, dtype, matrix.shape[0])
    alpha = beta = 0.0
    if opname != "trmv":
        alpha, beta = (rng.choice([0.0, 1.0, -1.0, 2.0]) for _ in range(2))
        options |= {"alpha": alpha, "beta": beta}
        if beta:
            options["y"] = rng.choice([ey, out])
            if rng.random() < 0.5:
                options["out"] = out
    else:
        alpha = 1.0
        if rng.random() < 0.4:
            options["out"] = out
    vector_out = options.get("out")

    def call() -> Any:
        return getattr(blas, opname)(a, given, **options)

    def error(result: Any) -> float:
        if vector_out is not None:
            assert result is vector_out
            assert np.isnan(collected(around)).sum() == around.size - out.size
        whole = result if isinstance(result, np.ndarray) else collected(result)
        same_on_all_ranks(whole.tobytes())
        assert whole.dtype == np.dtype(dtype)
        return gauge(whole.reshape(-1, 1), matrix, ex[:, None], ey[:, None], alpha=alpha, beta=beta)

    return call, error


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("opname", ["gemv", "symv", "hemv", "trmv"])
def test_products_are_those_of_numpy(contexts: Contexts, setting: str, dtype: str, opname: str) -> None:
    for seed in range(10 if setting == "shared" else 4):
        call, error = random_call(contexts[setting], Random(f"{opname} {dtype} {seed}"), opname, dtype)
        assert error(call()) <= THRESHOLD, seed


@pytest.mark.parametrize("opname", ["gemv", "symv", "trmv"])
def test_the_transport_does_not_change_a_bit(contexts: Contexts, opname: str) -> None:
    for seed in range(6):
        results = []
        for setting in SETTINGS:
            call, _ = random_call(contexts[setting], Random(f"{opname} {seed}"), opname, "float32")
            result = call()
            results.append(result if isinstance(result, np.ndarray) else collected(result))
        assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("opname", ["ger", "geru", "gerc", "syr", "her", "syr2", "her2"])
def test_updates_are_those_of_numpy(contexts: Contexts, setting: str, dtype: str, opname: str) -> None:
    is_complex, ctx = dtype.startswith("complex"), contexts[setting]
    if opname == "ger" and is_complex:
        return
    for seed in range(6 if setting == "shared" else 2):
        rng = Random(f"{opname} {dtype} {seed}")
        n, uplo = rng.choice(SIZES), rng.choice("LU")
        m = rng.choice(SIZES) if opname.startswith("ge") else n
        old = entries((m, n), np.dtype(dtype), seed)
        keep = np.zeros((m, n), bool) if opname.startswith("ge") else triangle(uplo, np.ones((n, n))) == 0
        poisoned = np.where(keep, np.dtype(dtype).type(np.nan), old)
        if opname.startswith("he") and is_complex:
            poisoned.imag[np.diag_indices(n)] = np.nan
            old.imag[np.diag_indices(n)] = 0
        around, a = guarded(ctx, rng, poisoned)
        (_, x, ex), (_, y, ey) = (some_vector(ctx, rng, dtype, size) for size in (m, n))
        alpha = rng.choice([0.0, 1.0, -2.0]) + (1j if is_complex and opname != "her" else 0)
        options: dict[str, Any] = {"alpha": alpha} | ({} if opname.startswith("ge") else {"uplo": uplo})
        vectors = [rng.choice([x, ex])] + ([rng.choice([y, ey])] if opname not in ("syr", "her") else [])
        target = a.T if (turned := opname.startswith("sy") and rng.random() < 0.3) else a
        if turned:
            options["uplo"] = "U" if uplo == "L" else "L"
        assert getattr(blas, opname)(*vectors, target, **options) is target
        if opname in ("syr", "her"):
            ey = ex
        left, right = ex[:, None], ey[None, :]
        if opname in ("gerc", "her", "her2"):
            right = right.conj()
        if opname in ("syr2", "her2"):
            second, other = (np.conj(alpha) * ey / alpha, ex.conj()) if opname == "her2" and alpha else (ey, ex)
            left, right = np.stack([ex, second], axis=1), np.stack([right[0], other])
        result = collected(a)
        assert np.isnan(collected(around)).sum() >= around.size - a.size
        assert np.isnan(result[keep]).all()
        if opname.startswith("he") and is_complex and alpha != 0:
            assert not result.imag[np.diag_indices(n)].any()
        if alpha != 0:
            result[keep], old[keep] = 0, 0
            expected = (alpha * (left.astype(np.clongdouble) @ right.astype(np.clongdouble))) + old
            bound = np.abs(alpha) * (np.abs(left) @ np.abs(right)) + np.abs(old)
            expected[keep] = 0
            error = np.abs(result - expected)
            assert np.all(error <= THRESHOLD * np.finfo(dtype).eps * bound)


def test_alpha_0_reads_neither_matrix_nor_vector_and_beta_0_does_not_read_y(ctx: Context) -> None:
    nan, x, y = ctx.full((5, 5), np.nan), ctx.full((5, 1), np.nan), ctx.ones((5, 1))
    assert collected(blas.gemv(nan, x, y, alpha=0.0, beta=3.0)).tolist() == [[3.0]] * 5
    assert collected(blas.symv(nan, x, alpha=0.0)).tolist() == [[0.0]] * 5
    assert blas.gemv(ctx.eye(5), np.ones(5), np.full(5, np.nan), beta=0.0).tolist() == [1.0] * 5
    a = ctx.ones((5, 5))
    assert collected(blas.syr2(x, x, a, alpha=0.0)).tolist() == [[1.0] * 5] * 5
    assert blas.gemv(ctx.ones((4, 0)), np.ones(0), np.ones(4), beta=2.0).tolist() == [2.0] * 4
    assert blas.gemv(ctx.ones((0, 4)), np.ones(4)).tolist() == []


def test_results_may_replace_the_operands(ctx: Context) -> None:
    a, elements = ctx.random((9, 9), seed=3), collected(ctx.random((9, 9), seed=3))
    x = a[:, 4]
    assert blas.trmv(a, x, uplo="U", out=x) is x
    assert np.allclose(collected(x)[:, 0], np.triu(elements) @ elements[:, 4])


def test_repeated_calls_give_the_bits_of_a_new_context(contexts: Contexts) -> None:
    def results(ctx: Context) -> list[bytes]:
        rng, found = Random("repeated"), list[bytes]()
        for _ in range(12):
            call, _ = random_call(ctx, rng, rng.choice(["gemv", "symv", "trmv"]), rng.choice(["float64", "complex64"]))
            result = call()
            found.append((result if isinstance(result, np.ndarray) else collected(result)).tobytes())
        return found

    used = contexts["shared"]
    first = results(used)
    assert results(used) == first
    with open_context("shared") as new:
        assert results(new) == first


def test_repeated_calls_agree_once_for_each_exchange(ctx: Context) -> None:
    a, x, v = ctx.random((9, 9), seed=1), ctx.random((9, 1), seed=2), np.ones(9)
    row = a[4]
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "gemv of an array": (lambda: blas.gemv(a, v), 1),
        "gemv": (lambda: blas.gemv(a, x), 2),
        "gemv with trans": (lambda: blas.gemv(a, x, trans="T"), 2),
        "symv": (lambda: blas.symv(a, row), 2),
        "trmv": (lambda: blas.trmv(a, x, out=x), 2),
        "ger": (lambda: blas.ger(x, row, a, alpha=1e-3), 2),
        "product": (lambda: a @ v, 1),
        "dot": (lambda: blas.dot(x, x), 1),
        "nrm2": (lambda: blas.nrm2(x), 1),
    }
    for name, (call, agreements) in calls.items():
        call()  # the first call may allocate memory
        start = ctx.runtime.next_number()
        call()
        new_vectors = int(not ctx.runtime.backend.shared) if name in ("gemv", "gemv with trans", "symv") else 0
        assert ctx.runtime.next_number() - start <= agreements + new_vectors + (ctx.nprocs > 4), name


@pytest.mark.parametrize("nprocs", [2, 4, 8, 64])
def test_a_rank_receives_elements_of_vectors_only(nprocs: int) -> None:
    for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise):
        plan = MatrixVectorPlan(make(4096, 4096, nprocs), "all", (Term(),), "float64", nprocs)
        assert plan.max_received_nbytes <= 4 * 4096 * 8
        assert "which does not move" in plan.explain()


def test_sixteen_bits_are_multiplied_in_32(ctx: Context) -> None:
    a = ctx.from_function(lambda i, j: 1.0 + 0 * i * j, (3, 4096), "float16")
    short = np.ones(4096, np.float16)
    assert blas.gemv(a, short).tolist() == [4096.0] * 3
    raises_on_all_ranks(DTypeError, "astype", lambda: blas.ger(short[:3], short, a))


@each_wrong
def test_one_wrong_rank_raises_on_all(ctx: Context, wrong: frozenset[int]) -> None:
    a, x, wide_ = ctx.ones((6, 6)), ctx.ones((6, 1)), ctx.ones((6, 7))
    is_wrong = ctx.rank in wrong

    def one(right: Any, bad: Any) -> Any:
        return bad if is_wrong else right

    calls: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ArgumentError, "a must be a DistMatrix", lambda: blas.gemv(one(a, np.ones((6, 6))), x)),
        (ArgumentError, "x must be an m x 1", lambda: blas.gemv(a, one(x, np.ones((6, 6))))),
        (DescriptorError, "x has 5 elements", lambda: blas.gemv(a, one(np.ones(6), np.ones(5)))),
        (DescriptorError, "y has 5 elements", lambda: blas.gemv(a, x, one(np.ones(6), np.ones(5)))),
        (DTypeError, "real part", lambda: blas.gemv(a, one(np.ones(6), 1j * np.ones(6)))),
        (ArgumentError, "trans must be", lambda: blas.gemv(a, x, trans=one("T", "X"))),
        (ArgumentError, "uplo must be", lambda: blas.symv(a, x, uplo=one("L", "l"))),
        (ArgumentError, "diag must be", lambda: blas.trmv(a, x, diag=one("N", "X"))),
        (ArgumentError, "alpha", lambda: blas.gemv(a, x, alpha=one(1.0, 1j))),
        (ArgumentError, "there is no y", lambda: blas.gemv(a, x, beta=one(None, 2.0))),
        (ArgumentError, "out must be", lambda: blas.gemv(a, x, out=one(x, np.ones(6)))),
        (DescriptorError, "must be square", lambda: blas.symv(one(a, wide_), x)),
        (DescriptorError, "y has 6 elements", lambda: blas.ger(x, x, one(a, wide_))),
        (ArgumentError, "uplo must be", lambda: blas.syr(x, a, uplo=one("L", None))),
    ]
    for kind, text, call in calls:
        raises_on_all_ranks(kind, text, call)
        assert blas.gemv(ctx.eye(6), np.ones(6)).tolist() == [1.0] * 6
    if len(wrong) < ctx.nprocs:
        raises_on_all_ranks(pblas.MismatchError, "", lambda: blas.gemv(a, x, alpha=one(1.0, 2.0)))
        raises_on_all_ranks(pblas.MismatchError, "", lambda: blas.syr(x, a, uplo=one("L", "U")))


def test_a_kept_call_agrees_as_often_as_its_data_needs(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a, x, y = ctx.random((8, 8)), ctx.random((8, 1)), ctx.random((1, 8))
    calls: list[tuple[int, Callable[[], object]]] = [
        (1, a.sum),
        (1, lambda: a.norm(1, axis=0)),
        (1, lambda: a @ np.ones(8)),
        (1, lambda: blas.gemv(a, np.ones(8))),
        (2, lambda: blas.gemv(a.T, x, y)),
        (1, lambda: blas.ger(x, y, a)),
        (1, lambda: blas.nrm2(x)),
    ]
    agreement = ctx.runtime.backend.agreement
    for most, call in calls:
        for _ in range(2):
            before = agreement.ncalls
            call()
        assert agreement.ncalls - before <= most
