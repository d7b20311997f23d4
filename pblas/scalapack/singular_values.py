"""Singular values and vectors, and the reduction to a bidiagonal matrix, without restrictions on blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.core.linalg_errors import ConvergenceError
from pblas.redistribution.api import redistributed
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, Findings, of_types, without_operands
from pblas.scalapack.tied_vectors import BidiagonalCall
from pblas.spectral import in_place
from pblas.spectral.svd_steps import singular_system

if TYPE_CHECKING:
    from pblas.scalapack.routines import Routine

_JOBS = {"JOBU": "U", "JOBVT": "VT"}


class SvdCall(Call):
    """A call with S, and with sub(U) and sub(VT) if there are singular vectors."""

    def __init__(self, routine: Routine, prefix: str, *values: Any) -> None:
        super().__init__(without_operands(routine, values, _JOBS), prefix, *values)

    def _check_values(self, findings: Findings) -> None:
        """Ignore the arguments of a matrix that is not used."""
        super()._check_values(findings)
        for job, name in _JOBS.items():
            if self[job] == "N":
                self._values |= dict.fromkeys((name, f"I{name}", f"J{name}", f"DESC{name}"))

    def _check_rest(self, findings: Findings) -> None:
        """Check S on this process."""
        if not self._is_query:
            self._check_values_array("S", min(self["M"], self["N"]), findings)


@of_types(routines.GESVD, routines.GESVD_COMPLEX, call=SvdCall)
def pxgesvd(call: SvdCall) -> int:
    """**Collective.** Singular values of sub(A) = U diag(S) V^H, and if wanted the first min(M, N) singular vectors.

    sub(A) is not changed.

    Returns:
        INFO: 0; or i > 0 if LAPACK has not found all singular values of a bidiagonal matrix.

    Source: ScaLAPACK, p?gesvd.
    """
    if call.answers_query() or call.is_empty:
        return 0
    a, *outputs = call.operands()
    try:
        s, u, vh = singular_system(call.opname, a, vectors=bool(outputs))
    except ConvergenceError as caught:
        return caught.info
    wanted = [x for job, x in zip(_JOBS, (u, vh), strict=True) if x is not None and call[job] == "V"]
    for x, out in zip(wanted, outputs, strict=True):
        redistributed(call.opname, x, out=out, is_temporary=True)
    with call.step("S"):
        call["S"][: len(s)] = s
    return 0


@of_types(routines.GEBRD, call=BidiagonalCall)
def pxgebrd(call: BidiagonalCall) -> None:
    """**Collective.** sub(A) := B, V and U^H with B = Q^H sub(A) P bidiagonal: upper if M >= N, otherwise lower.

    Q and P are products of reflectors H_i = I - tauq_i v_i v_i^H and G_i = I - taup_i u_i u_i^H. If M >= N, v_i(i) is
    1, and what is below it in column i of sub(A); u_i(i+1) is 1, and the conjugates of the elements after it are in row
    i. If M < N, v_i(i+1) and u_i(i) are 1. On GPUs a CPU reduces a copy in host memory.

    Source: ScaLAPACK, p?gebrd.
    """
    if call.answers_query() or call.is_empty:
        return
    diagonals = in_place.bidiagonalize(call.opname, call.operands()[0])
    with call.step("D, E, TAUQ and TAUP"):
        call.store(diagonals)


@of_types(routines.ORMBR, routines.UNMBR, call=BidiagonalCall)
def pxormbr(call: BidiagonalCall) -> None:
    """**Collective.** sub(C) := op(Q) sub(C) or sub(C) op(Q), or with P, of p?gebrd in sub(A) and TAU.

    Source: ScaLAPACK, p?ormbr and p?unmbr.
    """
    if call.answers_query() or call.is_empty:
        return
    tau = call.collected_tau()
    if len(tau):
        a, c = call.operands()
        options = call["SIDE"], call["TRANS"]
        in_place.multiply_q_or_p(call.opname, a, tau, c, *options, is_q=call["VECT"] == "Q", shift=call.shift)
