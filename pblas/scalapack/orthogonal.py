"""QR and LQ factorizations, products with their Q, and least squares, without restrictions on blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor import in_place
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, of_types
from pblas.scalapack.tied_vectors import ReflectorsCall

if TYPE_CHECKING:
    from pblas.core.options import Trans


@of_types(routines.GEQRF, call=ReflectorsCall)
def pxgeqrf(call: ReflectorsCall) -> None:
    """**Collective.** sub(A) := R and V with sub(A) = Q R, Q = H_1 H_2 ... H_k, H_i = I - tau_i v_i v_i^H.

    R is on and above the diagonal, and column i of V below it; v_i(i) = 1 is not stored. The elements of TAU for
    columns JA..JA+min(M,N)-1 are written, on all processes that have columns of A.

    Source: ScaLAPACK, p?geqrf.
    """
    _factor(call, "QR")


@of_types(routines.GELQF, call=ReflectorsCall)
def pxgelqf(call: ReflectorsCall) -> None:
    """**Collective.** sub(A) := L and V with sub(A) = L Q, Q = H_k^H ... H_2^H H_1^H, H_i = I - tau_i v_i v_i^H.

    L is on and below the diagonal, and row i of conj(V) above it. The elements of TAU for rows IA..IA+min(M,N)-1 are
    written, on all processes that have rows of A.

    Source: ScaLAPACK, p?gelqf.
    """
    _factor(call, "LQ")


@of_types(routines.GEQPF, routines.GEQPF_COMPLEX, call=ReflectorsCall)
def pxgeqpf(call: ReflectorsCall) -> None:
    """**Collective.** sub(A) := R and V with sub(A) P = Q R, as p?geqrf; the longest remaining column comes next.

    IPIV gets, for each column of sub(A) P, the column of A that it was, from 1. Each column takes a step with messages,
    so that this is much slower than p?geqrf. On GPUs each rank's CPU factors a copy in host memory.

    Source: ScaLAPACK, p?geqpf.
    """
    if call.answers_query() or not call.has_elements:
        return
    tau, order = in_place.factor_pivoted_qr(call.opname, call.operands()[0])
    with call.step("TAU"):
        call.store_order(order)
        call.store_tau(tau)


@of_types(routines.ORGQR, routines.UNGQR, call=ReflectorsCall)
def pxorgqr(call: ReflectorsCall) -> None:
    """**Collective.** sub(A) := the first N columns of Q, of p?geqrf, whose reflectors are in sub(A) and TAU.

    Source: ScaLAPACK, p?orgqr and p?ungqr.
    """
    if not call.answers_query() and call.has_elements:
        tau = call.collected_tau()
        in_place.make_q(call.opname, call.operands()[0], tau)


@of_types(routines.ORMQR, routines.UNMQR, call=ReflectorsCall)
def pxormqr(call: ReflectorsCall) -> None:
    """**Collective.** sub(C) := op(Q) sub(C) or sub(C) op(Q), with the Q of p?geqrf in sub(A) and TAU.

    Source: ScaLAPACK, p?ormqr and p?unmqr.
    """
    _multiply(call, call["TRANS"])


@of_types(routines.ORMLQ, routines.UNMLQ, call=ReflectorsCall)
def pxormlq(call: ReflectorsCall) -> None:
    """**Collective.** sub(C) := op(Q) sub(C) or sub(C) op(Q), with the Q of p?gelqf in sub(A) and TAU.

    Source: ScaLAPACK, p?ormlq and p?unmlq.
    """
    _multiply(call, "C" if call["TRANS"] == "N" else "N")  # it is the adjoint of the Q of A^H


@of_types(routines.GELS)
def pxgels(call: Call) -> int:
    """**Collective.** sub(B) := X, for which the columns of B - op(A) X are shortest; of several such X the shortest.

    B is the first rows of sub(B), as many as op(A) has, and X its first rows, as many as op(A) has columns. Of an
    overdetermined system the sum of the squares below X, in each column, is the squared norm of B - op(A) X. sub(A)
    becomes its QR factorization if M >= N, otherwise its LQ factorization.

    Returns:
        INFO: 0; or i > 0 if element (i, i) of R or L is 0: sub(A) does not have full rank, and sub(B) is unchanged. A
        rank that is deficient but for rounding is not found.

    Source: ScaLAPACK, p?gels; LAPACK, xGELS for INFO > 0.
    """
    if call.answers_query() or not call["NRHS"] or not max(call["M"], call["N"]):
        return 0
    if not min(call["M"], call["N"]):
        with call.step("zeros"):
            call.matrix("B").stored(call.opname)[...] = 0
        return 0
    a, b = call.operands()
    return in_place.solve_least_squares(call.opname, a, b, adjoint=call["TRANS"] != "N")


def _factor(call: ReflectorsCall, orientation: in_place.Orientation) -> None:
    """**Collective.** Factor sub(A), and write TAU."""
    if call.answers_query() or not call.has_elements:
        return
    _, tau = in_place.factor_qr(call.opname, call.operands()[0], orientation)
    with call.step("TAU"):
        call.store_tau(tau)


def _multiply(call: ReflectorsCall, trans: Trans) -> None:
    """**Collective.** Multiply sub(C) with op(Q), where the reflectors are columns of sub(A), or of its adjoint."""
    if call.answers_query() or not call.has_elements or not call["K"]:
        return
    tau, side = call.collected_tau(), call["SIDE"]
    a, c = call.operands()
    in_place.multiply_q(call.opname, a.H if call.axis == 0 else a, tau, c, side, trans)
