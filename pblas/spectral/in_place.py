"""Reductions to tridiagonal and bidiagonal matrices, and products with their Q, in the memory of a matrix.

They are as in ScaLAPACK. All arguments are checked and agreed on before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.cpu import lapack
from pblas.factor import in_place, with_factor
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.redistribution.api import redistributed
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.core.options import Side, Trans, Uplo
    from pblas.matrices.matrix import DistMatrix


def tridiagonalize(opname: str, a: DistMatrix, uplo: Uplo) -> tuple[Array, ...]:
    """**Collective.** One triangle of A := T and V with T = Q^H A Q. The diagonals of T, and TAU, on all ranks.

    Source: LAPACK xSYTRD, xHETRD.
    """
    n, real = a.shape[0], real_of(a.dtype)
    outputs = np.zeros(n, real), np.zeros(n - 1, real), np.zeros(n - 1, a.dtype)
    return _reduced_on_one_rank(opname, a, partial(lapack.sytrd, uplo=uplo), outputs, uplo)


def bidiagonalize(opname: str, a: DistMatrix) -> tuple[Array, ...]:
    """**Collective.** A := B, V and U^H with B = Q^H A P. The diagonals of B, TAUQ and TAUP, on all ranks.

    Source: LAPACK xGEBRD.
    """
    k, real = min(a.shape), real_of(a.dtype)
    outputs = np.zeros(k, real), np.zeros(k - 1, real), np.zeros(k, a.dtype), np.zeros(k, a.dtype)
    return _reduced_on_one_rank(opname, a, lapack.gebrd, outputs)


def _reduced_on_one_rank(
    opname: str, a: DistMatrix, reduce: Callable[..., None], outputs: tuple[Array, ...], uplo: Uplo | None = None
) -> tuple[Array, ...]:
    """**Collective.** A, or one triangle of it, reduced by a routine of LAPACK; its outputs on all ranks.

    Rank 0 does it, with the cores of all ranks of its host, since those are no faster together.
    """
    runtime, (m, n) = a.runtime, a.shape
    w = redistributed(opname, a, MatrixDescriptor.column_wise(m, n, 1), uplo=uplo)
    with runtime.agreed_step(opname, "reduced"):
        if runtime.rank == 0:
            local = w.stored(opname)
            host = runtime.backend.reading(local)  # a copy of the memory of a GPU
            with runtime.backend.all_threads(max(m, n) * min(m, n) ** 2):
                reduce(host, *outputs)
            if host is not local:
                runtime.backend.copy(host, local)
    outputs = runtime.backend.broadcast_object(outputs, 0)
    redistributed(opname, w, out=a, uplo=uplo, is_temporary=True)
    return outputs


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


def multiply_q_or_p(
    opname: str, a: DistMatrix, tau: Array, c: DistMatrix, side: Side, trans: Trans, *, is_q: bool, shift: int
) -> None:
    """**Collective.** C := op(Q) C or C op(Q), or with P, whose reflectors `bidiagonalize` has left in A.

    They begin `shift` rows below the diagonal, or for P as many columns right of it.

    Source: LAPACK xORMBR, xUNMBR.
    """
    v = (a if is_q else a.H)[shift:, : len(tau)]
    c = c[shift:] if side == "L" else c[:, shift:]
    in_place.multiply_q(opname, v, tau, c, side, trans)
