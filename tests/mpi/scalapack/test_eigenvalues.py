"""Errors and queries of the eigenvalue routines; tests/mpi/scalapack/test_every_name.py compares their results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from pblas import PblasArgumentError, scalapack
from tests.common.factors import general
from tests.common.ranks import COMM, few, grids, raises_on_all_ranks, some_wrong
from tests.conformance.problems import DTYPES
from tests.mpi.scalapack.test_factorizations import Placed

pytestmark = [pytest.mark.mpi, few]
SHAPE = max(grids(COMM.size), key=min)
N = 6
DOUBLE = np.dtype("f8")


@pytest.fixture(scope="module")
def ictxt() -> Iterator[int]:
    handle = scalapack.gridinit(COMM, "R", *SHAPE, timeout=30.0)
    yield handle
    scalapack.gridexit(handle)


def arguments(ictxt: int, **changed: Any) -> dict[str, Any]:
    """Right arguments of pdsyevr by name, some of them changed."""
    x = general(N, N, DOUBLE)
    a, z = Placed(ictxt, x + x.T), Placed(ictxt, np.zeros((N, N)))
    names = (
        "jobz",
        "range",
        "uplo",
        "n",
        "a",
        "ia",
        "ja",
        "desca",
        "vl",
        "vu",
        "il",
        "iu",
        "w",
        "z",
        "iz",
        "jz",
        "descz",
    )
    values = "V", "I", "L", N, *a.at, 0.0, 1.0, 2, 3, np.zeros(N), *z.at
    return {**dict(zip(names, values, strict=True)), **changed}


@pytest.mark.parametrize(
    ("changed", "text", "info"),
    [
        ({"jobz": "X"}, "JOBZ must be one of 'N', 'V'", -1),
        ({"range": "B"}, "RANGE must be one of 'A', 'V', 'I'", -2),
        ({"il": 0}, "IL must be at least 1, got 0", -11),
        ({"iu": 1}, "IU must be at least 2, got 1", -12),
        ({"iu": N + 1}, f"IU must be at most N = {N}", -12),
        ({"range": "V", "vu": 0.0}, "VU must be greater than VL", -10),
        ({"range": "V", "vl": "low"}, "VL must be a number", -9),
        ({"w": np.zeros(N - 1)}, f"W must be a NumPy array of {N} float64", -15),
        ({"w": np.zeros(N, "f4")}, "W must be a NumPy array", -15),
        ({"iz": 0}, "IZ must be at least 1", -17),
    ],
)
def test_a_wrong_argument_is_named_on_all_ranks(ictxt: int, changed: dict[str, Any], text: str, info: int) -> None:
    for wrong in some_wrong():
        given = arguments(ictxt, **(changed if COMM.rank in wrong else {}))

        raises_on_all_ranks(PblasArgumentError, text, partial(scalapack.pdsyevr, **given))
        with pytest.raises(PblasArgumentError) as caught:
            scalapack.pdsyevr(**given)
        assert caught.value.info == info


def test_arguments_that_are_not_used_may_be_anything(ictxt: int) -> None:
    right = arguments(ictxt, jobz="N")
    w = right["w"]
    assert scalapack.pdsyevr(**{**right, "vl": "?", "vu": None, "z": None, "iz": 0, "descz": COMM.rank}) == (2, 0, 0)
    assert w[0] < w[1]
    everything = arguments(ictxt, range="All", il=-COMM.rank, iu=0)
    assert scalapack.pdsyevr(**everything) == (N, N, 0)
    assert scalapack.pdsyevr(**arguments(ictxt, n=0)) == (0, 0, 0)


def test_queries(ictxt: int) -> None:
    right, work, iwork = arguments(ictxt), np.zeros(1), np.zeros(1, np.intc)
    before = right["z"].copy()
    assert scalapack.pdsyevr(**{**right, "w": None}, work=work, lwork=-1, iwork=iwork, liwork=-1) == (0, 0, 0)
    assert (work[0], iwork[0]) == (1, 1)
    assert np.array_equal(right["z"], before)
    ifail, iclustr, gap = np.full(N, -7), np.full(2, -7), np.full(2, -7.0)
    extra = {"abstol": 0.0, "orfac": 0.0, "ifail": ifail, "iclustr": iclustr, "gap": gap}
    assert scalapack.pdsyevx(**{**right, **extra}) == (2, 2, 0)
    assert (ifail.tolist(), iclustr.tolist()) == ([0, 0, -7, -7, -7, -7], [0, -7])


def test_no_convergence_is_info(ictxt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pblas.backends.cpu.lapack.syevd", lambda *_, **__: 4)
    assert scalapack.pdsyevr(**arguments(ictxt)) == (0, 0, 4)


def test_ibtype(ictxt: int) -> None:
    a, b = Placed(ictxt, np.eye(N)), Placed(ictxt, np.eye(N))
    for kind in (0, 4):
        call = partial(scalapack.pdsygst, kind, "L", N, *a.at, *b.at)
        raises_on_all_ranks(PblasArgumentError, "IBTYPE must be", call)


def test_b_that_is_not_positive_definite(ictxt: int) -> None:
    """INFO is 16, IFAIL has the order of the block, and sub(B) stays as it is."""
    a, b, z = Placed(ictxt, np.eye(N)), Placed(ictxt, np.diag([1.0, 1, 1, -1, 1, 1])), Placed(ictxt, np.zeros((N, N)))
    w, ifail = np.full(N, -7.0), np.full(N, -7)
    given = "A", "L", N, *a.at, *b.at, 0, 0, 0, 0, 0.0, w, 0.0, *z.at
    call = partial(scalapack.pdsygvx, 1, "V", *given)
    assert call(ifail=ifail) == (0, 0, 16)
    assert (ifail[:2].tolist(), w[0]) == ([4, -7], -7)
    assert b.operand.is_untouched()
    assert call(lwork=-1) == (0, 0, 0)
    for kind, jobz, position in ((0, "V", 1), (1, "X", 2)):
        with pytest.raises(PblasArgumentError) as caught:
            scalapack.pdsygvx(kind, jobz, *given)
        assert caught.value.info == -position


def test_reductions_of_few_rows_and_their_errors(ictxt: int) -> None:
    """T of one row is A, and Q of it is 1; D, E and TAU are checked on this process."""
    (a, c), t = (Placed(ictxt, np.full((N, N), 3.0)) for _ in "AC"), np.full(N + 2, -7.0)
    gebrd: Any = scalapack.pdgebrd
    for uplo in "LU":
        d, e = t.copy(), t.copy()
        scalapack.pdsytrd(uplo, 1, *a.at, d, e, e)
        assert set(d) <= {-7, 3}
        assert (e == -7).all()
        scalapack.pdormtr("L", uplo, "N", 1, N, *a.at, e, *c.at)
        scalapack.pdormtr("L", uplo, "N", 0, N, *a.at, e, *c.at)
    for m, n in ((0, 3), (1, 1)):
        d, e = t.copy(), t.copy()
        scalapack.pdgebrd(m, n, *a.at, d, e, e, e)
        assert set(d) <= {-7, 3}
        assert set(e) <= {-7, 0}
        work = np.zeros(1)
        scalapack.pdgebrd(3, 3, *a.at, t[:0], t[:0], t[:0], t[:0], work, -1)
        assert work[0] == 1
    for vect, k in (("P", 0), ("Q", 0), ("P", 1), ("Q", 5)):
        scalapack.pdormbr(vect, "L", "N", 1, N, k, *a.at, t, *c.at)
    assert a.operand.is_untouched()
    assert c.operand.is_untouched()
    for wrong, position in (((t[:0], t, t), 7), ((t, t[:0], t), 8), ((t, t, t.astype("f4")), 9)):
        with pytest.raises(PblasArgumentError) as caught:
            scalapack.pdsytrd("L", N, *a.at, *wrong)
        assert caught.value.info == -position
        with pytest.raises(PblasArgumentError) as caught:
            gebrd(N, N, *a.at, *wrong, t)
        assert caught.value.info == -position
    for call, position in (
        (partial(scalapack.pdormtr, "L", "L", "C", N, N, *a.at, t, *c.at), 3),
        (partial(scalapack.pdormbr, "X", "L", "N", N, N, N, *a.at, t, *c.at), 1),
        (partial(scalapack.pdormbr, "Q", "L", "C", N, N, N, *a.at, t, *c.at), 3),
        (partial(scalapack.pdormbr, "P", "R", "T", N, N, -1, *a.at, t, *c.at), 6),
        (partial(scalapack.pdormbr, "P", "R", "T", N, N, N, *a.at, t[:0], *c.at), 11),
        (partial(scalapack.pdgebrd, N, N + 90, *a.at, t, t, t, t), 5),
    ):
        with pytest.raises(PblasArgumentError) as caught:
            call()
        assert caught.value.info == -position


@pytest.mark.parametrize(
    ("changed", "text", "info"),
    [
        ({"jobu": "A"}, "JOBU must be one of 'N', 'V'", -1),
        ({"jobvt": "o"}, "JOBVT must be one of 'N', 'V'", -2),
        ({"s": np.zeros(N - 2)}, f"S must be a NumPy array of {N - 1} float64", -9),
        ({"iu": 0}, "IU must be at least 1", -11),
        ({"jvt": 9}, f"JVT = 9: {N - 1} columns from there on leave VT", -16),
    ],
)
def test_a_wrong_argument_of_singular_values(ictxt: int, changed: dict[str, Any], text: str, info: int) -> None:
    a, u = Placed(ictxt, general(N, N - 1, DOUBLE)), Placed(ictxt, np.zeros((N, N - 1)))
    values = "V", "V", N, N - 1, *a.at, np.zeros(N - 1), *u.at, *Placed(ictxt, np.zeros((N - 1, N - 1))).at
    right = dict(zip(list(inspect.signature(scalapack.pdgesvd).parameters)[: len(values)], values, strict=True))
    for wrong in some_wrong():
        given = {**right, **(changed if COMM.rank in wrong else {})}
        raises_on_all_ranks(PblasArgumentError, text, partial(scalapack.pdgesvd, **given))
        with pytest.raises(PblasArgumentError) as caught:
            scalapack.pdgesvd(**given)
        assert caught.value.info == info
    work = np.zeros(1)
    assert scalapack.pdgesvd(**{**right, "s": None}, work=work, lwork=-1) == 0
    assert work[0] == 1


@pytest.mark.parametrize("letter", "sdcz")
def test_the_nine_ratios_of_xdsvd(ictxt: int, letter: str) -> None:
    """Those of ScaLAPACK's PDSVDTST, at most 20, of spectra as it takes: of S, U and VT, and of calls for less."""
    routine, dtype = getattr(scalapack, f"p{letter}gesvd"), np.dtype(DTYPES[letter])
    limits = np.finfo(dtype)
    ulp, wide = float(limits.eps), np.dtype("c16" if dtype.kind == "c" else "f8")
    spectra = (
        *(np.zeros(N), np.ones(N), np.linspace(1, ulp, N), np.geomspace(1, ulp, N), np.where(np.arange(N), ulp, 1)),
        *(np.linspace(1, ulp, N) * size for size in (float(limits.tiny) ** 0.5, float(limits.max) ** 0.5)),
    )
    for turn, d in enumerate(spectra):
        (m, n), size = ((N, N - 2), (N - 2, N))[turn % 2], N - 2
        left, right = (np.linalg.qr(general(k, size, wide, k))[0] for k in (m, n))
        x = ((left * d[:size]) @ right.conj().T).astype(dtype)
        a, norm = Placed(ictxt, x), float(np.abs(x).astype("f8").sum(0).max()) or 1.0
        found: dict[str, list[Any]] = {}
        for jobs in ("VV", "VN", "NV", "NN"):
            u, vt = Placed(ictxt, np.zeros((m, size), dtype)), Placed(ictxt, np.zeros((size, n), dtype))
            s = np.full(size, -7, limits.dtype)
            given = [matrix.at if job == "V" else (None, 0, 0, None) for job, matrix in zip(jobs, (u, vt), strict=True)]
            assert routine(*jobs, m, n, *a.at, s, *given[0], *given[1]) == 0
            found[jobs] = [s.astype("f8"), u.collected().astype(wide), vt.collected().astype(wide)]
        s, u, vt = found["VV"]
        unit = float(s[0]) or 1.0
        ratios = [
            np.abs((u * s) @ vt - x).sum(0).max() / (norm * max(m, n)),  # 1
            np.abs(np.eye(size) - u.conj().T @ u).sum(0).max() / m,  # 2
            np.abs(np.eye(size) - vt @ vt.conj().T).sum(0).max() / n,  # 3
            0.0 if (s >= 0).all() and (np.diff(s) <= 0).all() else 1.0,  # 4
            np.abs(s - found["VN"][0]).max() / (size * unit),  # 5
            np.abs(u - found["VN"][1]).sum(0).max() / m,  # 6
            np.abs(s - found["NV"][0]).max() / (size * unit),  # 7
            np.abs(vt - found["NV"][2]).sum(0).max() / n,  # 8
            np.abs(s - found["NN"][0]).max() / (size * unit),  # 9
        ]
        assert max(ratios) <= 20 * ulp, (turn, ratios)


def test_a_wrong_argument_of_refinement(ictxt: int) -> None:
    a, b = Placed(ictxt, np.eye(N)), Placed(ictxt, np.ones((N, 2)))
    x, errors = Placed(ictxt, np.ones((N, 2))), np.zeros(b.operand.part().shape[1])
    unfit: tuple[Any, ...] = errors[:-1], errors.astype("f4"), None
    for short in unfit:
        with pytest.raises(PblasArgumentError, match="FERR must be a NumPy array") as caught:
            scalapack.pdgerfs("N", N, 2, *a.at, *a.at, a.ipiv, *b.at, *x.at, short, errors)
        assert caught.value.info == -21
    with pytest.raises(PblasArgumentError, match="IPIV holds -7"):
        scalapack.pdgerfs("N", N, 2, *a.at, *a.at, a.ipiv, *b.at, *x.at, errors, errors.copy())
    before = x.operand.memory.tobytes()
    scalapack.pdporfs("L", N, 0, *a.at, *a.at, *b.at, *x.at, errors, errors.copy())
    assert x.operand.memory.tobytes() == before
