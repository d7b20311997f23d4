"""Factorizations, solves and inverses in the memory of a matrix, as ScaLAPACK's routines do them.

The factor is written over the matrix, and solutions over the right-hand sides; INFO is returned, not raised. All
arguments are checked and agreed on before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.core.options import Side, Trans, Uplo
from pblas.factor import arguments
from pblas.factor.cholesky import PlannedCholesky, brought_back
from pblas.factor.choose import block_columns, choose_qr
from pblas.factor.factorization import Factoring, prepared
from pblas.factor.factorization_plan import panels
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.lu import PlannedLu
from pblas.factor.qr import PlannedQr, copied_for_reflectors, reflectors
from pblas.factor.qr_plan import PivotedQrPlan
from pblas.factor.with_factor import Reflectors, exchange_rows, identity, multiplied, substituted
from pblas.factor.with_factor_plan import Triangle
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.triangular.trsm import first_zero, triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_CHOLESKY: dict[Uplo, tuple[Trans, Trans]] = {"L": ("N", "C"), "U": ("C", "N")}
"""The factors of A, in the order in which equations with them are solved: L, L^H or U^H, U."""


def factor_cholesky(opname: str, a: DistMatrix, uplo: Uplo) -> int:
    """**Collective.** One triangle of A := L with A = L L^H, or U with A = U^H U; the other one is not touched.

    Source: LAPACK xPOTRF.
    """
    factoring = prepared(PlannedCholesky, opname, a, upper=uplo == "U", returns=True)
    try:
        factored = factoring.factored(a)
    except NotPositiveDefiniteError as caught:
        return caught.info
    brought_back(opname, factoring.plan, factored.w, out=a)
    return 0


def factor_lu(opname: str, a: DistMatrix) -> tuple[int, Array]:
    """**Collective.** A := L and U with P A = L U by partial pivoting; the diagonal of L is 1 and not stored.

    Source: LAPACK xGETRF.
    """
    factored = prepared(PlannedLu, opname, a, pivoting="partial", returns=True).factored(a)
    redistributed(opname, factored.w, out=a, is_temporary=True)
    assert factored.pivots is not None, "LU has pivots"
    assert isinstance(factored.info, int), "it has been looked at"
    return factored.info, factored.pivots


def solve_cholesky(opname: str, a: DistMatrix, b: DistMatrix, uplo: Uplo) -> None:
    """**Collective.** B := A^-1 B, with the factor of A from `factor_cholesky` in one triangle of `a`."""
    for trans in _CHOLESKY[uplo]:
        triangle_solved(opname, a, b, uplo=uplo, trans=trans, out=b)


def solve_lu(opname: str, a: DistMatrix, pivots: Array, b: DistMatrix, trans: Trans) -> None:
    """**Collective.** B := op(A)^-1 B, with the factor of A from `factor_lu` in `a`.

    A zero on the diagonal of U is no error, as in LAPACK: B then has infinities or NaN.
    """
    if trans == "N":
        exchange_rows(opname, b, pivots)
        triangle_solved(opname, a, b, uplo="L", diag="U", out=b)
        triangle_solved(opname, a, b, uplo="U", out=b)
    else:
        triangle_solved(opname, a, b, uplo="U", trans=trans, out=b)
        triangle_solved(opname, a, b, uplo="L", trans=trans, diag="U", out=b)
        exchange_rows(opname, b, pivots, backward=True)


def invert_cholesky(opname: str, a: DistMatrix, uplo: Uplo) -> int:
    """**Collective.** One triangle of A^-1, over that of the factor of A from `factor_cholesky`; the other is kept.

    Source: LAPACK xPOTRI.
    """
    info = first_zero(a)
    if not info:
        x = _identity(opname, a)
        solve_cholesky(opname, a, x, uplo)
        a.runtime.end_reading(opname)
        with a.runtime.local_step(opname):
            local = x.computed(opname)
            if local.dtype.kind == "c":
                columns = [j for ends in x.desc.global_ranges(a.runtime.rank)[1] for j in range(*ends)]
                arrays = a.runtime.backend.arrays
                arrays.fill(local.imag, np.array(columns, np.intp), np.arange(len(columns)), 0)
        redistributed(opname, x, out=a, uplo=uplo, is_temporary=True)
    return info


def invert_lu(opname: str, a: DistMatrix, pivots: Array) -> int:
    """**Collective.** A^-1, over the factor of A from `factor_lu`.

    Source: LAPACK xGETRI.
    """
    info = first_zero(a)
    if not info:
        factoring = prepared(PlannedLu, opname, a, pivoting="partial", returns=True)
        w = redistributed(opname, a, factoring.plan.w, agrees=factoring.agrees)
        substituted(opname, w, a.desc, (Triangle("L", unit=True), Triangle("U")), pivots, out=a)
    return info


def invert_triangle(opname: str, a: DistMatrix, uplo: Uplo, *, unit: bool) -> int:
    """**Collective.** Invert a triangle in place; the other triangle is neither read nor written.

    Source: LAPACK xTRTRI.
    """
    info = 0 if unit else first_zero(a)
    if not info:
        x = _identity(opname, a)
        triangle_solved(opname, a, x, uplo=uplo, diag="U" if unit else "N", out=x)
        shift = int(unit) * (1 if uplo == "U" else -1)
        redistributed(opname, x, out=a, uplo=uplo, diagonal=shift, is_temporary=True)
    return info


def _identity(opname: str, a: DistMatrix) -> DistMatrix:
    """**Collective.** The identity, of the size of A, with whole columns on each rank."""
    with a.runtime.local_step(opname):
        arguments.check_matrix(opname, "A", a, a.runtime)
    a.runtime.agree(f"{opname}: the identity", {})  # all ranks allocate it, or none
    return identity(opname, MatrixDescriptor.column_wise(*a.shape, a.runtime.nprocs), a)


Orientation = Literal["QR", "LQ"]


def factor_qr(opname: str, a: DistMatrix, orientation: Orientation = "QR") -> tuple[Reflectors, Array]:
    """**Collective.** A := R and V with A = Q R; or L and V^H with A = L Q for "LQ".

    Source: LAPACK xGEQRF, xGELQF.
    """
    tall = a if orientation == "QR" else a.H
    q = reflectors(prepared(PlannedQr, opname, tall, returns=True), tall)
    redistributed(opname, q.w[: tall.shape[0], :], out=a, trans="N" if orientation == "QR" else "C")
    return q, _collected_tau(opname, q, tall.shape)


def factor_pivoted_qr(opname: str, a: DistMatrix) -> tuple[Array, Array]:
    """**Collective.** A := R and V with A P = Q R: the longest of the columns that remain comes next.

    Source: LAPACK xGEQP3.
    """
    runtime, desc = a.runtime, a.desc.without_lld
    # Block columns, as for QR without pivoting on CPUs, which do the work for GPUs too
    w_desc, why = block_columns(desc, runtime.nprocs)
    nprocs, transport, gpus = runtime.nprocs, runtime.transport, runtime.backend.gpus
    plan = PivotedQrPlan(desc, w_desc, why, a.dtype.name, nprocs, transport, returns=True, on_copies=gpus)
    factored = Factoring(opname, plan).factored(a)
    tau, order = factored.tau, factored.order
    redistributed(opname, factored.w, out=a, is_temporary=True)
    assert tau is not None, "of the reflectors"
    assert order is not None, "of the columns"
    return tau, order


def reflectors_of(opname: str, v: DistMatrix, tau: Array) -> Reflectors:
    """**Collective.** Q from what `factor_qr`, or ScaLAPACK, has left: V is copied, and in block columns T computed.

    Source: LAPACK xLARFT.
    """
    runtime, m = v.runtime, v.shape[0]
    transport = runtime.topology.transport(runtime.nprocs)
    gpus = runtime.backend.gpus
    of_v = v.desc.without_lld, v.dtype.name, runtime.nprocs, transport
    plan = choose_qr(*of_v, returns=True, gpus=gpus)
    desc = plan.w
    if isinstance(plan, GridQrPlan):  # T is computed in each product with Q
        return Reflectors(redistributed(opname, v, desc), tau=tau)
    w = copied_for_reflectors(opname, v, desc)
    with runtime.local_step(opname):
        local, arrays = w.stored(opname), runtime.backend.arrays
        arrays.begin()
        for panel in panels(desc):
            if panel.owner == runtime.rank:
                columns = local[:, panel.j_loc : panel.j_loc + panel.width]
                of_panel, t = tau[panel.start : panel.stop], columns[m : m + panel.width]
                arrays.block_of_reflectors(columns[panel.start : m], of_panel, t)
        arrays.synchronize()
    return Reflectors(w)


def multiply_q(opname: str, v: DistMatrix, tau: Array, c: DistMatrix, side: Side, trans: Trans) -> None:
    """**Collective.** C := op(Q) C or C op(Q), with V as in `reflectors_of`.

    Source: LAPACK xORMQR, xUNMQR.
    """
    multiplied(opname, reflectors_of(opname, v, tau), c, side=side, trans=trans, out=c)


def make_q(opname: str, a: DistMatrix, tau: Array) -> None:
    """**Collective.** A := the first columns of Q, whose V is in the first len(tau) columns of A.

    Source: LAPACK xORGQR, xUNGQR.
    """
    multiplied(opname, reflectors_of(opname, a[:, : len(tau)], tau), a.desc, out=a)


def solve_least_squares(opname: str, a: DistMatrix, b: DistMatrix, *, adjoint: bool) -> int:
    """**Collective.** B := X, the shortest X for which the columns of B - op(A) X are shortest; A := its QR or LQ.

    Source: LAPACK xGELS.
    """
    m, n = a.shape
    is_tall = m >= n
    q, _ = factor_qr(opname, a, "QR" if is_tall else "LQ")
    k = min(m, n)
    r, top = q.w[:k, :], b[:k, :]
    info = first_zero(r)
    if info:
        return info
    if is_tall != adjoint:  # B - F X is to be short, for the tall F = Q R that is A or A^H
        multiplied(opname, q, b, trans="C", out=b)
        triangle_solved(opname, r, top, uplo="U", out=top)
    else:  # F^H X = B: X = Q R^-H B
        triangle_solved(opname, r, top, uplo="U", trans="C", out=top)
        rest = b[k:, :]
        with b.runtime.local_step(opname):
            rest.stored(opname)[...] = 0
        multiplied(opname, q, b, out=b)
    return 0


def _collected_tau(opname: str, q: Reflectors, shape: tuple[int, int]) -> Array:
    """**Collective.** Tau of all reflectors, on all ranks: the diagonals of T, from the owners of panels."""
    w, runtime, (m, n) = q.w, q.w.runtime, shape
    tau = np.zeros(min(m, n), w.dtype)
    with runtime.local_step(opname):
        local, mine = w.stored(opname), []
        for panel in panels(w.desc):
            k = min(panel.stop, m) - panel.start
            if panel.owner == runtime.rank and k > 0:
                j = np.arange(k)
                t, first = (local, m) if q.t is None else (q.t, 0)
                mine.append((panel.start, runtime.backend.arrays.take(t, first + j, panel.j_loc + j)))
    runtime.agree(f"{opname}: TAU", {})
    for start, part in (x for parts in runtime.backend.gather(mine) for x in parts):
        tau[start : start + len(part)] = part
    return tau
