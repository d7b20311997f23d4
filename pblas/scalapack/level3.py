"""Level 3 of PBLAS, with its arguments in its order: products, sums and transposes of submatrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pblas.matmul import plan_matmul
from pblas.redistribution import plan_redistribution
from pblas.redistribution_arguments import Trans
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.letters import of_types

if TYPE_CHECKING:
    from pblas.backends.gemm import Array

Desc = Sequence[int]


def pxgemm(
    _type: str,
    transa: str,
    transb: str,
    m: int,
    n: int,
    k: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    b: Array,
    ib: int,
    jb: int,
    descb: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := alpha op(sub(A)) op(sub(B)) + beta sub(C).

    Args:
        transa: "N", "T" or "C": sub(A) is used as it is, transposed, conjugate transposed (global).
        transb: the same for sub(B) (global).
        m: rows of op(sub(A)) and sub(C) (global).
        n: columns of op(sub(B)) and sub(C) (global).
        k: columns of op(sub(A)) and rows of op(sub(B)) (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        a: array that holds this rank's part of A (local).
        ia: first row of sub(A), from 1 (global).
        ja: first column of sub(A), from 1 (global).
        desca: descriptor of A (global, but for CTXT and LLD).
        b: array of B (local).
        ib: first row of sub(B) (global).
        jb: first column of sub(B) (global).
        descb: descriptor of B (global, but for CTXT and LLD).
        beta: scalar; with beta = 0 C is not read (global).
        c: array of C, written in place (local).
        ic: first row of sub(C) (global).
        jc: first column of sub(C) (global).
        descc: descriptor of C (global, but for CTXT and LLD).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?gemm.
    """
    call = Call(
        *(routines.GEMM, _type, transa, transb, m, n, k, alpha),
        *(a, ia, ja, desca, b, ib, jb, descb, beta, c, ic, jc, descc),
    )
    if call["M"] == 0 or call["N"] == 0:
        return
    x, y, z = (call.matrix(name) for name in "ABC")
    options = {"transa": call["TRANSA"], "transb": call["TRANSB"], "alpha": call["ALPHA"], "beta": call["BETA"]}
    old = None if call["BETA"] == 0 else z
    call.runtime.plans.get(call.key, lambda: plan_matmul(x, y, old, out=z, **options)).execute(x, y, old, out=z)
    call.deliver()


def pxgeadd(
    _type: str,
    trans: str,
    m: int,
    n: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)).

    Args:
        trans: "N", "T" or "C": sub(A) is added as it is, transposed, conjugate transposed (global).
        m: rows of sub(C) (global).
        n: columns of sub(C) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        a: array that holds this rank's part of A (local).
        ia: first row of sub(A), from 1 (global).
        ja: first column of sub(A), from 1 (global).
        desca: descriptor of A (global, but for CTXT and LLD).
        beta: scalar; with beta = 0 C is not read (global).
        c: array of C, written in place (local).
        ic: first row of sub(C) (global).
        jc: first column of sub(C) (global).
        descc: descriptor of C (global, but for CTXT and LLD).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?geadd.
    """
    _add(Call(routines.GEADD, _type, trans, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc))


def pxtradd(
    _type: str,
    uplo: str,
    trans: str,
    m: int,
    n: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)) in one trapezoid of sub(C); the rest is not touched.

    Args:
        uplo: "U": on and above the diagonal of sub(C), "L": on and below (global).
        trans: "N", "T" or "C": sub(A) is added as it is, transposed, conjugate transposed (global).
        m: rows of sub(C) (global).
        n: columns of sub(C) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        a: array that holds this rank's part of A (local).
        ia: first row of sub(A), from 1 (global).
        ja: first column of sub(A), from 1 (global).
        desca: descriptor of A (global, but for CTXT and LLD).
        beta: scalar; with beta = 0 C is not read (global).
        c: array of C, written in place (local).
        ic: first row of sub(C) (global).
        jc: first column of sub(C) (global).
        descc: descriptor of C (global, but for CTXT and LLD).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?tradd.
    """
    _add(Call(routines.TRADD, _type, uplo, trans, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc))


def pxtran(
    _type: str,
    m: int,
    n: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha sub(A)^T, of real matrices.

    Args:
        m: rows of sub(C), columns of sub(A) (global).
        n: columns of sub(C), rows of sub(A) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        a: array that holds this rank's part of A (local).
        ia: first row of sub(A), from 1 (global).
        ja: first column of sub(A), from 1 (global).
        desca: descriptor of A (global, but for CTXT and LLD).
        beta: scalar; with beta = 0 C is not read (global).
        c: array of C, written in place (local).
        ic: first row of sub(C) (global).
        jc: first column of sub(C) (global).
        descc: descriptor of C (global, but for CTXT and LLD).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?tran.
    """
    _add(Call(routines.TRAN, _type, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc), "T")


def pxtranu(
    _type: str,
    m: int,
    n: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha sub(A)^T, of complex matrices; the arguments are those of p?tran.

    Source: PBLAS, p?tranu.
    """
    _add(Call(routines.TRANU, _type, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc), "T")


def pxtranc(
    _type: str,
    m: int,
    n: int,
    alpha: complex,
    a: Array,
    ia: int,
    ja: int,
    desca: Desc,
    beta: complex,
    c: Array,
    ic: int,
    jc: int,
    descc: Desc,
) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha sub(A)^H, of complex matrices; the arguments are those of p?tran.

    Source: PBLAS, p?tranc.
    """
    _add(Call(routines.TRANC, _type, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc), "C")


def _add(call: Call, trans: Trans | None = None) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)), in the trapezoid UPLO if the routine has one."""
    if call["M"] == 0 or call["N"] == 0:
        return
    x, z = call.matrix("A"), call.matrix("C")
    uplo = call["UPLO"] if "UPLO" in call.routine.arguments else None
    options = {"trans": trans or call["TRANS"], "alpha": call["ALPHA"], "beta": call["BETA"], "uplo": uplo}
    call.runtime.plans.get(call.key, lambda: plan_redistribution(x, out=z, **options)).execute(x, out=z)
    call.deliver()


psgemm, pdgemm, pcgemm, pzgemm = of_types("sdcz", pxgemm)
psgeadd, pdgeadd, pcgeadd, pzgeadd = of_types("sdcz", pxgeadd)
pstradd, pdtradd, pctradd, pztradd = of_types("sdcz", pxtradd)
pstran, pdtran = of_types("sd", pxtran)
pctranu, pztranu = of_types("cz", pxtranu)
pctranc, pztranc = of_types("cz", pxtranc)
