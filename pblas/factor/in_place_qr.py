"""QR factorizations in the memory of a matrix, as LAPACK stores them, and work with the reflectors that they leave.

R is on and above the diagonal; below it is V, whose columns are the reflectors H_i = I - tau_i v_i v_i^H with
Q = H_1 H_2 ..., without the ones of the diagonal. Where a function writes the conjugate transpose of its result, the
same serves LQ: with A^H = Q R, A = R^H Q^H, and LAPACK's xGELQF stores R^H and the rows V^H. All arguments are checked
and agreed on before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from pblas.core.options import Side, Trans
from pblas.factor.choose import block_columns
from pblas.factor.choose_qr import choose_qr
from pblas.factor.factorization import Factoring, prepared
from pblas.factor.factorization_plan import panels
from pblas.factor.qr import PlannedQr, copied_for_reflectors, reflectors
from pblas.factor.qr_plan import PivotedQrPlan
from pblas.factor.with_factor import Reflectors, multiplied
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.triangular.trsm import first_zero, triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

Orientation = Literal["QR", "LQ"]


def factor_qr(verb: str, a: DistMatrix, orientation: Orientation = "QR") -> tuple[Reflectors, Array]:
    """**Collective.** A := R and V with A = Q R; or L and V^H with A = L Q for "LQ".

    Source: LAPACK xGEQRF, xGELQF.
    """
    tall = a if orientation == "QR" else a.H
    q = reflectors(prepared(PlannedQr, verb, tall, returns=True), tall)
    redistributed(verb, q.w[: tall.shape[0], :], out=a, trans="N" if orientation == "QR" else "C")
    return q, _collected_tau(verb, q.w, tall.shape)


def factor_pivoted_qr(verb: str, a: DistMatrix) -> tuple[Array, Array]:
    """**Collective.** A := R and V with A P = Q R: the longest of the columns that remain comes next.

    Source: LAPACK xGEQP3.
    """
    runtime, desc = a.runtime, a.desc.without_lld
    # Block columns, as for QR without pivoting on CPUs, which do the work for GPUs too
    w_desc, why = block_columns(desc, runtime.nprocs)
    nprocs, transport, gpus = runtime.nprocs, runtime.transport, runtime.backend.gpus
    plan = PivotedQrPlan(desc, w_desc, why, a.dtype.name, nprocs, transport, returns=True, on_copies=gpus)
    w, _, _, _, tau, order = Factoring(verb, plan).factored(a)
    redistributed(verb, w, out=a, is_temporary=True)
    assert tau is not None, "of the reflectors"
    assert order is not None, "of the columns"
    return tau, order


def reflectors_of(verb: str, v: DistMatrix, tau: Array) -> Reflectors:
    """**Collective.** Q from what `factor_qr`, or ScaLAPACK, has left: V is copied, and the triangles T are computed.

    Source: LAPACK xLARFT.
    """
    runtime, m = v.runtime, v.shape[0]
    transport = runtime.topology.transport(runtime.nprocs)
    gpus = runtime.backend.gpus
    desc = choose_qr(v.desc.without_lld, v.dtype.name, runtime.nprocs, transport, returns=True, gpus=gpus).w
    w = copied_for_reflectors(verb, v, desc)
    with runtime.local_step(verb):
        local, arrays = w.stored(verb), runtime.backend.arrays
        arrays.begin()
        for panel in panels(desc):
            if panel.owner == runtime.rank:
                columns = local[:, panel.j_loc : panel.j_loc + panel.width]
                of_panel, t = tau[panel.start : panel.stop], columns[m : m + panel.width]
                arrays.block_of_reflectors(columns[panel.start : m], of_panel, t)
        arrays.synchronize()
    return Reflectors(w, None, is_tree=False)


def multiply_q(verb: str, v: DistMatrix, tau: Array, c: DistMatrix, side: Side, trans: Trans) -> None:
    """**Collective.** C := op(Q) C or C op(Q), with V as in `reflectors_of`.

    Source: LAPACK xORMQR, xUNMQR.
    """
    multiplied(verb, reflectors_of(verb, v, tau), c, side=side, trans=trans, out=c)


def make_q(verb: str, a: DistMatrix, tau: Array) -> None:
    """**Collective.** A := the first columns of Q, whose V is in the first len(tau) columns of A.

    Source: LAPACK xORGQR, xUNGQR.
    """
    multiplied(verb, reflectors_of(verb, a[:, : len(tau)], tau), a.desc, out=a)


def solve_least_squares(verb: str, a: DistMatrix, b: DistMatrix, *, adjoint: bool) -> int:
    """**Collective.** B := X, the shortest X for which the columns of B - op(A) X are shortest; A := its QR or LQ.

    Source: LAPACK xGELS.
    """
    m, n = a.shape
    is_tall = m >= n
    q, _ = factor_qr(verb, a, "QR" if is_tall else "LQ")
    k = min(m, n)
    r, top = q.w[:k, :], b[:k, :]
    info = first_zero(r)
    if info:
        return info
    if is_tall != adjoint:  # B - F X is to be short, for the tall F = Q R that is A or A^H
        multiplied(verb, q, b, trans="C", out=b)
        triangle_solved(verb, r, top, uplo="U", out=top)
    else:  # F^H X = B: X = Q R^-H B
        triangle_solved(verb, r, top, uplo="U", trans="C", out=top)
        rest = b[k:, :]
        with b.runtime.local_step(verb):
            rest.stored(verb)[...] = 0
        multiplied(verb, q, b, out=b)
    return 0


def _collected_tau(verb: str, w: DistMatrix, shape: tuple[int, int]) -> Array:
    """**Collective.** Tau of all reflectors, on all ranks: the diagonals of the triangles T below the panels of W."""
    runtime, (m, n) = w.runtime, shape
    tau = np.zeros(min(m, n), w.dtype)
    with runtime.local_step(verb):
        local, mine = w.stored(verb), []
        for panel in panels(w.desc):
            k = min(panel.stop, m) - panel.start
            if panel.owner == runtime.rank and k > 0:
                j = np.arange(k)
                mine.append((panel.start, runtime.backend.arrays.take(local, m + j, panel.j_loc + j)))
    runtime.agree(f"{verb}: TAU", {})
    for start, part in (x for parts in runtime.backend.gather(mine) for x in parts):
        tau[start : start + len(part)] = part
    return tau
