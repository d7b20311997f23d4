"""Level 3 of PBLAS: products, sums and transposes of submatrices, and solves with triangular ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pblas.matmul.api import pmatmul
from pblas.redistribution.api import redistribute
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, of_types
from pblas.symmetric.api import hemm, her2k, herk, symm, syr2k, syrk
from pblas.triangular.trmm import trmm
from pblas.triangular.trsm import first_zero, trsm

if TYPE_CHECKING:
    from pblas.core.options import Trans
    from pblas.matrices.matrix import DistMatrix


@of_types(routines.GEMM)
def pxgemm(call: Call) -> None:
    """**Collective.** sub(C) := alpha op(sub(A)) op(sub(B)) + beta sub(C).

    Source: PBLAS, p?gemm.
    """
    _multiply(call, pmatmul)


@of_types(routines.SYMM, routines.HEMM)
def pxsymm(call: Call) -> None:
    """**Collective.** sub(C) := alpha sub(A) sub(B) + beta sub(C), or alpha sub(B) sub(A) + beta sub(C).

    One triangle of the symmetric (p?symm) or Hermitian (p?hemm) sub(A) is read.

    Source: PBLAS, p?symm and p?hemm.
    """
    _multiply(call, hemm if call.routine is routines.HEMM else symm)


@of_types(routines.SYRK, routines.HERK)
def pxsyrk(call: Call) -> None:
    """**Collective.** One triangle of sub(C) := alpha op(sub(A)) op(sub(A))^T + beta sub(C); p?herk: op(sub(A))^H.

    Source: PBLAS, p?syrk and p?herk.
    """
    _multiply(call, herk if call.routine is routines.HERK else syrk)


@of_types(routines.SYR2K, routines.HER2K)
def pxsyr2k(call: Call) -> None:
    """**Collective.** One triangle of sub(C) := alpha (op(sub(A)) op(sub(B))^T + its transpose) + beta sub(C).

    p?her2k: with conjugate transposes, and the conjugate of alpha in the second term.

    Source: PBLAS, p?syr2k and p?her2k.
    """
    _multiply(call, her2k if call.routine is routines.HER2K else syr2k)


@of_types(routines.TRMM)
def pxtrmm(call: Call) -> None:
    """**Collective.** sub(B) := alpha op(sub(A)) sub(B), or alpha sub(B) op(sub(A)), with a triangular sub(A).

    Source: PBLAS, p?trmm.
    """
    _multiply(call, trmm)


@of_types(routines.TRSM)
def pxtrsm(call: Call) -> None:
    """**Collective.** sub(B) := alpha op(sub(A))^-1 sub(B), or alpha sub(B) op(sub(A))^-1, for a triangular sub(A).

    A zero on the diagonal is no error: sub(B) then has infinities or NaN.

    Source: PBLAS, p?trsm.
    """
    _multiply(call, trsm)


@of_types(routines.TRTRS)
def pxtrtrs(call: Call) -> int:
    """**Collective.** sub(B) := op(sub(A))^-1 sub(B) for a triangular sub(A), unless sub(A) is singular.

    Returns:
        INFO: 0; or i > 0 if element (i, i) of sub(A) is 0, and sub(B) is unchanged.

    Source: ScaLAPACK, p?trtrs; without its restrictions on blocks and alignment.
    """
    if not call.is_empty and call["DIAG"] == "N":
        info = first_zero(call.operands()[0])
        if info:
            return info
    _multiply(call, trsm)
    return 0


def _multiply(call: Call, product: Callable[..., DistMatrix]) -> None:
    """**Collective.** A product or a solve that writes the last matrix; unless beta is 0 it also reads it."""
    if call.is_empty:
        return
    *inputs, z = call.operands()
    if call.options.get("beta") != 0:
        inputs.append(z)
    product(*inputs, out=z, **call.options)


@of_types(routines.GEADD)
def pxgeadd(call: Call) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)).

    Source: PBLAS, p?geadd.
    """
    _add(call)


@of_types(routines.TRADD)
def pxtradd(call: Call) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)) in one trapezoid of sub(C); the rest is not touched.

    Source: PBLAS, p?tradd.
    """
    _add(call)


@of_types(routines.TRAN, routines.TRANU, routines.TRANC)
def pxtran(call: Call) -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)), op(X) = X^T (p?tran, p?tranu) or X^H (p?tranc).

    Source: PBLAS, p?tran (real matrices), p?tranu and p?tranc (complex ones).
    """
    _add(call, trans="C" if call.routine is routines.TRANC else "T")


def _add(call: Call, trans: Trans = "N") -> None:
    """**Collective.** sub(C) := beta sub(C) + alpha op(sub(A)), in the trapezoid UPLO if the routine has one."""
    if not call.is_empty:
        x, z = call.operands()
        options = {"trans": trans, **call.options}
        redistribute(x, out=z, **options)
