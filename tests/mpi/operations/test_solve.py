"""Laws of solve, inv, det, slogdet, cond and matrix_norm, which are NumPy's."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf, prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.backends.cpu.arrays import HostArrays
from pblas.factor.factors import Determinant
from pblas.runtime.progress import Progress
from tests.common.factors import (
    MOST,
    NAMES,
    NB,
    general,
    narrow_panels,  # noqa: F401
    norm1,
    positive,
    qr_ratios,
    ratio,
    set_panels,
    solve_ratio,
)
from tests.common.gauge import dtype_of, eps_of
from tests.common.ranks import (
    COMM,
    Contexts,
    check_product,
    collected,
    few,
    outcome_of,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
)
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
Array = np.ndarray[Any, Any]
SETTINGS = ("shared", "message")
KINDS: tuple[Literal["gen", "pos"], ...] = ("gen", "pos")
P = COMM.size
SIZES = (0, 1, NB, 2 * NB + 1, 33)


@pytest.mark.parametrize("name", NAMES)
def test_solutions(contexts: Contexts, name: str) -> None:
    dtype = dtype_of(name)
    for ctx in contexts.values():
        for n in SIZES:
            a, s, b = general(n, n, dtype, n), positive(n, dtype, n), general(n, 3, dtype, n + 1)
            rows, columns = MatrixDescriptor.row_wise(n, n, P), MatrixDescriptor.column_wise(n, n, P)
            matrix, hermitian = ctx.from_global(a, rows, None), ctx.from_global(s, columns, None)
            right = ctx.from_global(b, MatrixDescriptor.replicated(n, 3, P), None)
            assert solve_ratio(a, collected(linalg.solve(matrix, right)), b) <= MOST
            assert solve_ratio(a.T, collected(linalg.solve(matrix.T, right)), b) <= MOST
            assert solve_ratio(s, collected(linalg.solve(hermitian, right, assume_a="pos")), b) <= MOST
            x = linalg.solve(matrix, b[:, 0])
            assert same_on_all_ranks(x.tobytes()) == x.tobytes()
            assert (x.shape, x.dtype) == ((n,), dtype)
            assert solve_ratio(a, x[:, None], b[:, :1]) <= MOST


@pytest.mark.parametrize("transport", SETTINGS)
def test_the_steps_of_gpus(contexts: Contexts, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs update all columns before they factor the next panel, copy panels first and pack no blocks."""
    traits = replace(HostArrays.traits, blocking=False, reads_peers=False, packs_blocks=False)
    monkeypatch.setattr(HostArrays, "traits", traits)
    ctx, dtype = contexts[transport], np.dtype(np.float64)
    for n in (2 * NB + 1, 5 * NB + 2):
        a, s, b = general(n, n, dtype, n), positive(n, dtype, n), general(n, 3, dtype, n + 1)
        square, tall = (MatrixDescriptor.default(n, count, P) for count in (n, 3))
        matrix, hermitian, right = (ctx.from_global(x, d, None) for x, d in ((a, square), (s, square), (b, tall)))
        assert solve_ratio(a, collected(linalg.solve(matrix, right)), b) <= MOST
        assert solve_ratio(s, collected(linalg.solve(hermitian, right, assume_a="pos")), b) <= MOST
        inverse = collected(linalg.inv(matrix))
        assert ratio(a @ inverse - np.eye(n), n, norm1(a), norm1(inverse), dtype=dtype) <= MOST
        assert max(qr_ratios(a, *map(collected, linalg.qr(matrix)))) <= MOST


@pytest.mark.parametrize("name", NAMES)
def test_inverses_and_numbers(ctx: pblas.Context, name: str) -> None:
    dtype = dtype_of(name)
    eps = eps_of(dtype)
    for n in SIZES:
        a = general(n, n, dtype, n)
        matrix = ctx.from_global(a, MatrixDescriptor.row_wise(n, n, P), None)
        result = linalg.inv(matrix)
        assert result.desc.same_distribution(matrix.desc)
        inverse = collected(result)
        assert ratio(a @ inverse - np.eye(n), max(n, 1), norm1(a), norm1(inverse), dtype=dtype) <= MOST
        wide = a.astype(np.complex128 if dtype.kind == "c" else np.float64)
        condition = np.linalg.cond(wide, 1) if n else 1.0
        sign, logarithm = np.linalg.slogdet(wide)
        bound = MOST * max(n, 1) * eps * condition
        ours = linalg.slogdet(matrix)
        assert abs(ours.sign - sign) <= bound
        assert abs(float(ours.logabsdet) - logarithm) <= bound
        assert same_on_all_ranks(complex(linalg.det(matrix))) == pytest.approx(
            np.linalg.det(wide), rel=max(bound, 1e-12)
        )
        if n:
            assert float(linalg.cond(matrix, 1)) == pytest.approx(condition, rel=bound)
            assert float(linalg.cond(matrix, inf)) == pytest.approx(np.linalg.cond(wide, inf), rel=bound)
            estimate = same_on_all_ranks(float(linalg.lu_factor(matrix).rcond()))
            assert 1 - bound <= estimate * condition <= 10
            norm = float(matrix.norm(1))
            known = float(linalg.lu_factor(matrix).rcond(norm))
            assert (1 - bound) * known <= estimate <= 3 * known
            assert float(linalg.lu_factor(matrix).rcond(2 * norm)) == known / 2
            assert float(linalg.matrix_norm(matrix, ord=1)) == pytest.approx(norm1(a), rel=n * eps)


@pytest.mark.parametrize("name", NAMES)
def test_determinants_overflow_and_underflow_only_where_their_value_does(ctx: pblas.Context, name: str) -> None:
    dtype = dtype_of(name)
    limits, tolerance = np.finfo(dtype), 100 * eps_of(dtype)
    large, tiny = 2.0 ** (limits.maxexp * 5 // 8), float(limits.smallest_normal)
    unit = dtype.type(1j if dtype.kind == "c" else -1)
    many = np.random.default_rng(1).permutation([10.0] * 40 + [0.1] * 40).tolist()
    cases: list[list[float]] = [
        [large, large, 1 / large, 1 / large],
        [1 / large, 1 / large, large, large],
        many,
        [large, large, 0],
    ]
    cases += [[0.5 * tiny, large, large], [large, large], [1 / large] * 3, []]
    for diagonal in cases:
        exact = prod(Fraction(float(x)) for x in np.array(diagonal, limits.dtype))
        expected = inf if exact > float(limits.max) else 0 if exact < tiny else float(exact)
        matrix = ctx.from_global(np.diag(np.array(diagonal, dtype)), root=None)
        determinants = [linalg.det(matrix), linalg.lu_factor(matrix).det()]
        if 0 not in diagonal:
            determinants.append(linalg.cho_factor(matrix).det())
            turned = linalg.slogdet(pblas.elementwise("x * s", x=matrix, s=unit))
            assert turned.sign == pytest.approx(unit ** len(diagonal), rel=tolerance)
        for det in determinants:
            assert complex(det).real == pytest.approx(expected, rel=tolerance)
            assert complex(det).imag == 0
    assert Determinant.of(1, np.array([large, 1 / large] * 700, dtype)).value == 1
    x = float(limits.max) / 4 * 3
    a = np.array([[x, -x, 0], [x, x, 0], [0, 0, 1 / large]], dtype) * unit  # U has elements that overflow
    logarithm = float(np.log(2) + 2 * np.log(np.longdouble(x)) - np.log(np.longdouble(large)))
    result = linalg.slogdet(ctx.from_global(a, root=None))
    assert result.sign == pytest.approx(unit**3, rel=tolerance)
    assert float(result.logabsdet) == pytest.approx(logarithm, rel=10 * eps_of(dtype))
    assert linalg.slogdet(ctx.from_global(np.full((2, 2), np.nan, dtype), root=None)).sign != 0


def test_the_condition_of_a_matrix_whose_inverse_overflows_is_infinite(ctx: pblas.Context) -> None:
    for a in (np.diag([1e-310, 1]), np.array([[1e-310, 1e-310], [1e-310, 2e-310]])):
        assert linalg.cond(ctx.from_global(a, root=None), 1) == inf
    assert np.isnan(linalg.cond(ctx.from_global(np.array([[np.nan, 1], [1, 1]]), root=None), inf))


@pytest.mark.parametrize("home", ["shared", "own"])
@pytest.mark.parametrize("by", ["columns", "rows"])
def test_a_matrix_that_may_be_overwritten_is_factored_in_place(contexts: Contexts, home: str, by: str) -> None:
    """In block columns that peers reach; the result has the same bits anywhere, and nothing beside A is touched."""
    n, dtype = 3 * NB + 4, np.dtype(np.complex128)
    a, b = positive(n, dtype), general(n, 2, dtype)
    for ctx in contexts.values():
        whole = (
            replace(MatrixDescriptor.column_wise(n + 2, n, P, nb=NB), inb=NB - 1)
            if by == "columns"
            else MatrixDescriptor.row_wise(n + 2, n, P)
        )

        def guarded() -> Guarded:
            matrix = Guarded(ctx, whole, dtype, (1, n + 1, 0, n), home)  # noqa: B023
            matrix.fill(a)
            return matrix

        kept = guarded()
        factor, triangle, inverse = linalg.lu_factor(kept.view), linalg.cholesky(kept.view), linalg.inv(kept.view)
        solutions = [linalg.solve(kept.view, b[:, 0], assume_a=kind) for kind in KINDS]
        kept.check_untouched()
        is_read_in_place = any(map(ctx.runtime.backend.is_near, range(P)))
        in_place = P == 1 or (by == "columns" and (home == "shared" or not is_read_in_place))

        g = guarded()
        overwritten = linalg.lu_factor(g.view, overwrite_a=True)
        lu = collected(factor.lu())
        assert np.array_equal(collected(overwritten.lu()), lu)
        assert np.array_equal(collected(g.view), lu if in_place else a)
        assert overwritten.rcond() == factor.rcond()
        g.check_untouched_outside()
        for call, expected in ((linalg.cholesky, triangle), (linalg.inv, inverse)):
            g = guarded()
            view = g.view
            assert call(view, overwrite_a=True) is view
            assert np.array_equal(collected(g.view), collected(expected))
            g.check_untouched_outside()
        for kind, x in zip(KINDS, solutions, strict=True):
            g = guarded()
            assert np.array_equal(linalg.solve(g.view, b[:, 0], assume_a=kind, overwrite_a=True), x)
            g.check_untouched_outside()
            assert np.array_equal(collected(g.view), a) == (not in_place)
        conjugated = guarded()
        assert np.array_equal(collected(linalg.inv(conjugated.view.H.T, overwrite_a=True)), collected(inverse).conj())
        conjugated.check_untouched()


def test_many_factorizations_take_constant_memory(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """120 of them, of 30 kB each; every tenth one also solves equations."""
    set_panels(monkeypatch, 30)
    a = ctx.from_global(positive(60, np.dtype(np.float64)), root=None)
    held, resident = list[int](), list[int]()
    for k in range(120):
        factor: Any = linalg.cho_factor(a) if k % 2 else linalg.lu_factor(a)
        if k % 10 < 2:
            factor.solve(a)
        held.append(len(ctx.runtime.backend.leaks()))
        resident.append(_resident_nbytes())
    assert max(held[30:]) <= max(held[:30])
    assert resident[-1] - resident[30] < 1 << 20


def _resident_nbytes() -> int:
    """Bytes of memory that this process has touched; 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def test_wrong_arguments(ctx: pblas.Context) -> None:
    square, wide = ctx.eye(6), ctx.zeros((4, 6))
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DescriptorError, "must be square", lambda a: linalg.solve(wide if a else square, square)),
            (pblas.ArgumentError, "assume_a", lambda a: linalg.solve(square, square, assume_a="her" if a else "gen")),  # type: ignore[arg-type]
            (pblas.DescriptorError, "make them agree", lambda a: linalg.solve(square, wide if a else square)),
            (pblas.ArgumentError, "p must be", lambda a: linalg.cond(square, 3 if a else 1)),
            (pblas.DescriptorError, "must be square", lambda a: linalg.inv(wide if a else square)),
            (pblas.DescriptorError, "must be square", lambda a: linalg.det(wide if a else square)),
            (pblas.DescriptorError, "must be square", lambda a: linalg.slogdet(wide if a else square)),
            (pblas.MismatchError, "", lambda a: linalg.solve(square, square, assume_a="pos" if a else "gen")),
            (pblas.ArgumentError, "overwrite_a must", lambda a: linalg.inv(square, overwrite_a="yes" if a else False)),  # type: ignore[arg-type]
            (pblas.MismatchError, "", lambda a: linalg.lu_factor(square, overwrite_a=a)),
            (pblas.ArgumentError, "B is in memory of A", lambda _: linalg.solve(square, square.T, overwrite_a=True)),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    raises_on_all_ranks(pblas.ArgumentError, "must be a DistMatrix", lambda: linalg.solve(np.eye(6), np.ones(6)))  # type: ignore[arg-type]
    assert linalg.solve(square, np.arange(6.0)).tolist() == list(range(6))


def test_progress_is_told_on_rank_0_only(
    ctx: pblas.Context, capsys: pytest.CaptureFixture[str], monkeypatch: Any, tmp_path: Path
) -> None:
    """A function gets each stage's done part, which ends at 1; its exception is raised on all ranks, after the work."""
    monkeypatch.setattr("pblas.runtime.progress._INTERVAL", 0.0)
    monkeypatch.setattr("pblas.runtime.progress._INTERVAL_OF_LOGS", 0.0)
    a, b = ctx.from_global(positive(45, np.dtype(float)), root=None), np.ones(45)
    told: list[tuple[str, float]] = []

    def tell(stage: str, done: float) -> None:
        told.append((stage, done))

    path = str(COMM.bcast(tmp_path, 0) / "a")
    for suffix in (".npy", ".h5", ".mtx"):
        a.save(path + suffix)
    monkeypatch.setattr("pblas.matrices.files._PANEL_NBYTES", 1)
    monkeypatch.setattr("pblas.matrices.matrix_market._PANEL_NBYTES", 1)
    monkeypatch.setattr("pblas.matrices.files._WRITTEN_NBYTES", 1)
    calls: dict[Any, list[str]] = {
        lambda progress: a.save(path + ".npy", progress=progress): ["write"],
        lambda progress: [ctx.load(path + x, progress=progress) for x in (".npy", ".mtx", ".h5")]: ["read"],
        lambda progress: linalg.solve(a, b, progress=progress): ["factor", "solve"],
        lambda progress: linalg.solve(a, a, assume_a="pos", progress=progress): ["factor", "solve"],
        lambda progress: linalg.inv(a, progress=progress): ["factor", "invert"],
        lambda progress: linalg.cholesky(a, progress=progress): ["factor"],
        lambda progress: linalg.qr(a, progress=progress): ["factor", "Q"],
        lambda progress: linalg.lstsq(a, b, progress=progress): ["factor", "solve"],
        lambda progress: linalg.lu_factor(a, progress=progress).solve(b, progress=progress): ["factor", "solve"],
        lambda progress: linalg.cho_factor(a, progress=progress).inv(progress=progress): ["factor", "invert"],
    }
    for call, stages in calls.items():
        told.clear()
        call(tell)
        assert list(dict.fromkeys(stage for stage, _ in told)) == (stages if ctx.rank == 0 else [])
        for stage in stages if ctx.rank == 0 else []:
            parts = [done for name, done in told if name == stage]
            assert parts == sorted(parts) or stage == "read"  # three files
            assert parts[-1] == 1.0
            assert P == 1 or parts[0] < 1
        assert capsys.readouterr().err == ""
        call(True)
        err = capsys.readouterr().err
        assert all(f"{stage} 100%" in err for stage in stages) == (ctx.rank == 0)
        call(False)
        raises_on_all_ranks(pblas.PblasError, "ZeroDivisionError", lambda: call(lambda *_: 1 / 0))  # noqa: B023
    raises_on_all_ranks(pblas.ArgumentError, "progress must be", lambda: linalg.inv(a, progress="yes"))  # type: ignore[arg-type]


def test_progress_is_reported_a_few_times_a_second(ctx: pblas.Context) -> None:
    now, told = [0.0], list[float]()
    target = lambda _, done: told.append(done)  # noqa: E731 - a function of the user
    with ctx.runtime.call("x"), Progress("x", ctx.runtime, target, clock=lambda: now[0]) as reports:
        report = reports.stage("factor")
        for i in range(1000):
            now[0] += 2.0**-7
            if report is not None:
                report(i / 1000)
    assert len(told) == (1000 * 4 // 128 if ctx.rank == 0 else 0)


def graded(n: int, digits: float) -> Array:
    """An n x n matrix of condition 10^digits in the 2-norm."""
    q, _ = np.linalg.qr(general(n, n, np.dtype(float), 1))
    p, _ = np.linalg.qr(general(n, n, np.dtype(float), 2))
    return (q * np.logspace(0, -digits, n)) @ p


def hilbert(n: int) -> Array:
    return 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)


KAHAN = np.diag(0.93 ** np.arange(100)) @ (np.eye(100) - 0.36 * np.triu(np.ones((100, 100)), 1))
CONDITIONS: dict[str, tuple[Array, bool]] = {
    "Hilbert 15": (hilbert(15), True),
    "Hilbert 9": (hilbert(9), False),
    "graded, 12 digits": (graded(40, 12), False),
    "graded, 17 digits": (graded(40, 17), True),
    "Kahan, whose pivots are of one size": (KAHAN, False),
    "identity": (np.eye(33), False),
    "empty": (np.eye(0), False),
    "NaN": (np.full((3, 3), np.nan), False),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_ill_conditioned_matrices_are_reported_on_every_rank(contexts: Contexts, name: str) -> None:
    a, is_ill = CONDITIONS[name]
    for ctx in contexts.values():
        matrix, ones = ctx.from_global(a, root=None), np.ones(len(a))  # of b = A 1 the solution does not grow
        calls: dict[str, Callable[..., object]] = {
            "solve": lambda **options: linalg.solve(matrix, a @ ones, **options),  # noqa: B023
            "solve, in place": lambda **options: linalg.solve(
                matrix.copy(),  # noqa: B023
                ctx.from_global((a @ ones)[:, None], root=None),  # noqa: B023
                overwrite_a=True,
                **options,
            ),
            "solve by LU": lambda **options: linalg.lu_factor(matrix).solve(a @ ones, **options),  # noqa: B023
            "inv": lambda **options: linalg.inv(matrix, **options),  # noqa: B023
            "inv, in place": lambda **options: linalg.inv(matrix.copy(), overwrite_a=True, **options),  # noqa: B023
        }
        for call_name, call in calls.items():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(check=False)
                assert not caught
                call()
            texts = same_on_all_ranks([str(warning.message) for warning in caught])
            assert len(texts) == is_ill, call_name
            for warning in caught:
                assert (warning.category, Path(warning.filename).name) == (pblas.PblasWarning, "test_solve.py")
                assert str(warning.message).startswith(f"{call_name.replace(',', '').split()[0]}: A is ill-conditioned")


def test_an_estimate_sees_what_the_pivots_hide(ctx: pblas.Context) -> None:
    assert linalg.lu_factor(ctx.from_global(KAHAN, root=None)).rcond() < 1e-16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_estimates_of_matrices_close_to_the_limits(ctx: pblas.Context, name: str, kind: Literal["gen", "pos"]) -> None:
    """Sums of elements of a row overflow, those of columns do not; so do sums in L (U x)."""
    dtype, n = dtype_of(name), 33
    limits, a = np.finfo(dtype), np.eye(n, dtype=dtype)
    a[0, :-1] = (-1.0) ** np.arange(n - 1)
    whole = a if kind == "gen" else a.T @ a
    for is_ill in (False, True):
        whole[-1, -1] = limits.eps / 64 if is_ill else 1.0
        expected = linalg.lu_factor(ctx.from_global(whole, root=None)).rcond()
        for exponent in (limits.maxexp - (3 if kind == "gen" else 10), limits.minexp + 20):
            matrix = ctx.from_global((whole * 2.0**exponent).astype(dtype), root=None)
            if not is_ill:
                assert linalg.lu_factor(matrix).rcond() == pytest.approx(expected, rel=0.01)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                linalg.solve(matrix, np.zeros(n, dtype), assume_a=kind)
            assert [warning.category for warning in caught] == is_ill * [pblas.PblasWarning]


def test_a_positive_definite_matrix_is_judged_by_its_lower_triangle(ctx: pblas.Context) -> None:
    for diagonal, is_ill in ((np.logspace(0, -20, 40), True), (np.logspace(0, -10, 40), False)):
        a = ctx.from_global(np.diag(diagonal) + np.triu(np.full((40, 40), np.nan), 1), root=None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            linalg.solve(a, diagonal, assume_a="pos")
            factor = linalg.cho_factor(a)
            for _ in range(2):
                factor.solve(diagonal)
            factor.solve(diagonal, check=False)
        assert len(caught) == 3 * is_ill
    with pytest.warns(pblas.PblasWarning, match=r"number is 1e-20, less than eps = 2.2e-16 of float64"):
        linalg.solve(ctx.from_global(np.diag([1.0, 1e-20]), root=None), np.ones(2), assume_a="pos")
    check_product(ctx)


def test_a_warning_that_is_an_error_on_one_rank_leaves_the_context_usable(ctx: pblas.Context) -> None:
    a = ctx.from_global(hilbert(15), root=None)
    for call in (lambda: linalg.solve(a, np.ones(15)), lambda: linalg.inv(a)):
        with warnings.catch_warnings():
            warnings.simplefilter("error" if ctx.rank == ctx.nprocs - 1 else "ignore")
            kind, _ = outcome_of(call)
        assert kind == ("PblasWarning" if ctx.rank == ctx.nprocs - 1 else "no exception")
        check_product(ctx)


@pytest.mark.parametrize("name", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["gen", "pos"])
def test_refined_solutions(ctx: pblas.Context, name: str, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Factors in half the bits give the backward error of whole ones, or the log says that they do not."""
    dtype, by_gmres = dtype_of(name), r"[1-9]\d* iterations of GMRES, backward error"
    refinements, too_ill = "0 iterations of GMRES, backward error", "too ill-conditioned"
    cases: list[tuple[int, float, Any, str]] = [
        (0, 1, "tf32", refinements),
        (1, 1, "float16", refinements),
        (9, 10, "tf32", refinements),
        (30, 1e4, "float32", refinements),
        (30, 1e11, "float16", by_gmres if kind == "gen" else too_ill),
        (9, 1e60, "float32", too_ill),
    ]
    for n, condition, refine, text in cases:
        q = np.linalg.qr(general(n, n, dtype, n))[0] if n and condition < 1e16 else np.eye(n, dtype=dtype)
        a = (q * np.geomspace(1, 1 / condition, n)) @ q.conj().T
        if kind == "gen" and n:
            a = a @ np.linalg.qr(general(n, n, dtype, 1))[0] if condition < 1e16 else np.fliplr(a)
        b = general(n, 3, dtype, 5) * 10.0 ** np.array([-200, 0, 100])
        A, B = ctx.from_global(np.tril(a) if kind == "pos" else a), ctx.from_global(b)
        caplog.clear()
        with caplog.at_level("INFO", "pblas"):
            x = collected(linalg.solve(A, B, refine=refine, assume_a=kind, check=False))
        assert len(re.findall(rf"factors in {refine}", caplog.text)) == 1
        assert re.search(text, caplog.text)
        assert solve_ratio(a, x, b) <= MOST
        if refine == "tf32":
            vector = linalg.solve(A, b[:, 1].copy(), refine=refine, assume_a=kind, check=False)
            assert np.allclose(vector, x[:, 1], rtol=1e-12 * condition)
    wrong: Any = linalg.solve
    for error, text, call in (
        (pblas.ArgumentError, "refine must be", lambda: wrong(A, B, refine="float8")),
        (pblas.DTypeError, "is for float64", lambda: wrong(*2 * (ctx.eye(3, "float32"),), refine="float32")),
        (pblas.SingularMatrixError, "A is singular", lambda: wrong(ctx.zeros((3, 3)), ctx.eye(3), refine="float32")),
    ):
        raises_on_all_ranks(error, text, call)
