"""The reduction to a tridiagonal matrix, and products with its Q, in the memory of a matrix, as ScaLAPACK has them.

All arguments are checked and agreed on before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.cpu import lapack
from pblas.factor import in_place, with_factor
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.redistribution.api import redistributed
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.core.options import Side, Trans, Uplo
    from pblas.matrices.matrix import DistMatrix


def tridiagonalize(opname: str, a: DistMatrix, uplo: Uplo) -> tuple[Array, Array, Array]:
    """**Collective.** One triangle of A := T and V with T = Q^H A Q. The diagonals of T, and TAU, on all ranks.

    Rank 0 does it, with the cores of all ranks of its host, since those are no faster together.

    Source: LAPACK xSYTRD, xHETRD.
    """
    runtime, n = a.runtime, a.shape[0]
    w = redistributed(opname, a, MatrixDescriptor.column_wise(n, n, 1), uplo=uplo)
    real = real_of(a.dtype)
    d, e, tau = np.zeros(n, real), np.zeros(n - 1, real), np.zeros(n - 1, a.dtype)
    with runtime.local_step(opname):
        if runtime.rank == 0:
            local = w.stored(opname)
            host = runtime.backend.reading(local)  # a copy of the memory of a GPU
            with runtime.backend.all_threads(n**3):
                lapack.sytrd(host, d, e, tau, uplo)
            if host is not local:
                runtime.backend.copy(host, local)
    runtime.agree(f"{opname}: T", {})
    d, e, tau = runtime.backend.broadcast_object((d, e, tau), 0)
    redistributed(opname, w, out=a, uplo=uplo, is_temporary=True)
    return d, e, tau


def multiply_q(opname: str, a: DistMatrix, tau: Array, c: DistMatrix, uplo: Uplo, side: Side, trans: Trans) -> None:
    """**Collective.** C := op(Q) C or C op(Q), with V as `tridiagonalize` leaves it in one triangle of A.

    Source: LAPACK xORMTR, xUNMTR.
    """
    k, first = len(tau), int(uplo == "L")
    v = a[first : first + k, 1 - first : 1 - first + k]
    c = c[first : first + k, :] if side == "L" else c[:, first : first + k]  # Q has a 1 beside its block
    if uplo == "L":
        in_place.multiply_q(opname, v, tau, c, side, trans)
        return
    # Q = J P J, where J reverses the order of rows, and P has the reflectors J v_k, ..., J v_1 below its diagonal
    v = redistributed(opname, v, v.desc.without_lld)
    i = np.arange(1, k + 1, dtype=np.intc)
    reversal = np.where(i <= k // 2, k + 1 - i, i).astype(np.intc)
    rows = c if side == "L" else c.T
    for x in (v, v.T, rows):
        with_factor.exchange_rows(opname, x, reversal)
    in_place.multiply_q(opname, v, tau[::-1].copy(), c, side, trans)
    with_factor.exchange_rows(opname, rows, reversal)
