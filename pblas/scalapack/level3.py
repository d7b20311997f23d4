"""Level 3 of PBLAS, with its arguments in its order: products, sums and transposes of submatrices.

`pblas.scalapack.routines` describes the arguments, for the docstrings of all types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pblas.core.options import Side, Trans
from pblas.matmul.api import pmatmul
from pblas.redistribution.api import redistribute
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.types import of_types
from pblas.symmetric.api import hemm, her2k, herk, symm, syr2k, syrk
from pblas.triangular.trmm import trmm
from pblas.triangular.trsm import first_zero, trsm

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.matrices.matrix import DistMatrix
    from pblas.scalapack.routines import Routine

Desc = Sequence[int]


def pxgemm(
    routine: Routine, letter: str, transa: str, transb: str, m: int, n: int, k: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(C) := alpha op(sub(A)) op(sub(B)) + beta sub(C).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?gemm.
    """
    with Call(
        *(routine, letter, transa, transb, m, n, k, alpha),
        *(a, ia, ja, desca, b, ib, jb, descb, beta, c, ic, jc, descc),
    ) as call:
        _multiply(call, pmatmul, "TRANSA", "TRANSB", "ALPHA", "BETA")


def pxsymm(
    routine: Routine, letter: str, side: str, uplo: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(C) := alpha sub(A) sub(B) + beta sub(C), or alpha sub(B) sub(A) + beta sub(C).

    One triangle of the symmetric (p?symm) or Hermitian (p?hemm) sub(A) is read.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?symm and p?hemm.
    """
    with Call(
        *(routine, letter, side, uplo, m, n, alpha, a, ia, ja, desca),
        *(b, ib, jb, descb, beta, c, ic, jc, descc),
    ) as call:
        product = hemm if routine is routines.HEMM else symm
        _multiply(call, product, "SIDE", "UPLO", "ALPHA", "BETA")


def pxsyrk(
    routine: Routine, letter: str, uplo: str, trans: str, n: int, k: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** One triangle of sub(C) := alpha op(sub(A)) op(sub(A))^T + beta sub(C); p?herk: op(sub(A))^H.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?syrk and p?herk.
    """
    with Call(routine, letter, uplo, trans, n, k, alpha, a, ia, ja, desca, beta, c, ic, jc, descc) as call:
        product = herk if routine is routines.HERK else syrk
        _multiply(call, product, "TRANS", "UPLO", "ALPHA", "BETA")


def pxsyr2k(
    routine: Routine, letter: str, uplo: str, trans: str, n: int, k: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** One triangle of sub(C) := alpha (op(sub(A)) op(sub(B))^T + its transpose) + beta sub(C).

    p?her2k: with conjugate transposes, and the conjugate of alpha in the second term.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?syr2k and p?her2k.
    """
    with Call(
        *(routine, letter, uplo, trans, n, k, alpha, a, ia, ja, desca),
        *(b, ib, jb, descb, beta, c, ic, jc, descc),
    ) as call:
        product = her2k if routine is routines.HER2K else syr2k
        _multiply(call, product, "TRANS", "UPLO", "ALPHA", "BETA")


def pxtrmm(
    routine: Routine, letter: str, side: str, uplo: str, trans: str, diag: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(B) := alpha op(sub(A)) sub(B), or alpha sub(B) op(sub(A)), with a triangular sub(A).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?trmm.
    """
    with Call(routine, letter, side, uplo, trans, diag, m, n, alpha, a, ia, ja, desca, b, ib, jb, descb) as call:
        _multiply(call, trmm, "SIDE", "UPLO", "TRANS", "DIAG", "ALPHA")


def _multiply(call: Call, product: Callable[..., DistMatrix], *options: str) -> None:
    """**Collective.** A product that writes the last matrix; with a beta that is not 0 it also reads it."""
    if 0 in (call["N"], call["M"] if "M" in call.routine.arguments else 1):
        return
    *inputs, z = call.operands()
    if product is trmm or call["BETA"] != 0:
        inputs.append(z)
    product(*inputs, out=z, **{name.lower(): call[name] for name in options})
    call.deliver()


def pxgeadd(
    routine: Routine, letter: str, trans: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?geadd.
    """
    with Call(routine, letter, trans, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc) as call:
        _add(call)


def pxtradd(
    routine: Routine, letter: str, uplo: str, trans: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)) in one trapezoid of sub(C); the rest is not touched.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?tradd.
    """
    with Call(routine, letter, uplo, trans, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc) as call:
        _add(call)


def pxtran(
    routine: Routine, letter: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    beta: complex,
    c: Array, ic: int, jc: int, descc: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)), op(X) = X^T (p?tran, p?tranu) or X^H (p?tranc).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?tran (real matrices), p?tranu and p?tranc (complex ones).
    """
    with Call(routine, letter, m, n, alpha, a, ia, ja, desca, beta, c, ic, jc, descc) as call:
        _add(call, "C" if routine is routines.TRANC else "T")


def pxtrsm(
    routine: Routine, letter: str, side: str, uplo: str, trans: str, diag: str, m: int, n: int, alpha: complex,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
) -> None:  # fmt: skip
    """**Collective.** sub(B) := alpha op(sub(A))^-1 sub(B), or alpha sub(B) op(sub(A))^-1, for a triangular sub(A).

    A zero on the diagonal is no error: sub(B) then has infinities or NaN.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?trsm.
    """
    with Call(routine, letter, side, uplo, trans, diag, m, n, alpha, a, ia, ja, desca, b, ib, jb, descb) as call:
        if call["M"] == 0 or call["N"] == 0:
            return
        _solve(call, side=call["SIDE"], alpha=call["ALPHA"])


def pxtrtrs(
    routine: Routine, letter: str, uplo: str, trans: str, diag: str, n: int, nrhs: int,
    a: Array, ia: int, ja: int, desca: Desc,
    b: Array, ib: int, jb: int, descb: Desc,
) -> int:  # fmt: skip
    """**Collective.** sub(B) := op(sub(A))^-1 sub(B) for a triangular sub(A), unless sub(A) is singular.

    Returns:
        INFO: 0; or i > 0 if element (i, i) of sub(A) is 0, and sub(B) is unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?trtrs; without its restrictions on blocks and alignment.
    """
    with Call(routine, letter, uplo, trans, diag, n, nrhs, a, ia, ja, desca, b, ib, jb, descb) as call:
        if call["N"] == 0 or call["NRHS"] == 0:
            return 0
        if call["DIAG"] == "N":
            info = first_zero(call.operands()[0])
            if info:
                return info
        _solve(call, side="L", alpha=1)
        return 0


def _solve(call: Call, *, side: Side, alpha: complex) -> None:
    """**Collective.** Solve with sub(A) in place in sub(B)."""
    x, z = call.operands()
    trsm(x, z, side=side, uplo=call["UPLO"], trans=call["TRANS"], diag=call["DIAG"], alpha=alpha, out=z)
    call.deliver()


def _add(call: Call, trans: Trans | None = None) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)), in the trapezoid UPLO if the routine has one."""
    if call["M"] == 0 or call["N"] == 0:
        return
    uplo = call["UPLO"] if "UPLO" in call.routine.arguments else None
    x, z = call.operands()
    redistribute(x, out=z, trans=trans or call["TRANS"], alpha=call["ALPHA"], beta=call["BETA"], uplo=uplo)
    call.deliver()


if not TYPE_CHECKING:  # their types are in __init__.pyi
    psgemm, pdgemm, pcgemm, pzgemm = of_types("sdcz", routines.GEMM, pxgemm)
    pssymm, pdsymm, pcsymm, pzsymm = of_types("sdcz", routines.SYMM, pxsymm)
    pchemm, pzhemm = of_types("cz", routines.HEMM, pxsymm)
    pssyrk, pdsyrk, pcsyrk, pzsyrk = of_types("sdcz", routines.SYRK, pxsyrk)
    pcherk, pzherk = of_types("cz", routines.HERK, pxsyrk)
    pssyr2k, pdsyr2k, pcsyr2k, pzsyr2k = of_types("sdcz", routines.SYR2K, pxsyr2k)
    pcher2k, pzher2k = of_types("cz", routines.HER2K, pxsyr2k)
    pstrmm, pdtrmm, pctrmm, pztrmm = of_types("sdcz", routines.TRMM, pxtrmm)
    psgeadd, pdgeadd, pcgeadd, pzgeadd = of_types("sdcz", routines.GEADD, pxgeadd)
    pstradd, pdtradd, pctradd, pztradd = of_types("sdcz", routines.TRADD, pxtradd)
    pstran, pdtran = of_types("sd", routines.TRAN, pxtran)
    pctranu, pztranu = of_types("cz", routines.TRANU, pxtran)
    pctranc, pztranc = of_types("cz", routines.TRANC, pxtran)
    pstrsm, pdtrsm, pctrsm, pztrsm = of_types("sdcz", routines.TRSM, pxtrsm)
    pstrtrs, pdtrtrs, pctrtrs, pztrtrs = of_types("sdcz", routines.TRTRS, pxtrtrs)
