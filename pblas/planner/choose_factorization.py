"""The internal layout of a factorization: block columns on 1 x P ranks, with a block size for the matrix."""

from __future__ import annotations

from typing import Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Transport
from pblas.plans.factorization import CholeskyPlan, FactorizationPlan, LuPlan

_NARROWEST, _WIDEST = 64, 192
"""Columns of a panel. They are the K of the GEMMs of an update, which is slow if they are few; if they are many, the
panels take longer than the updates that hide them."""
_PANELS = 5
"""Panels of a rank at least, where the matrix is large enough: otherwise ranks are idle at the end."""
_LEAST = 128
"""Columns of each rank at least; a smaller matrix takes fewer ranks, since its panels leave little to overlap with."""


def choose_factorization(
    kind: Literal["cholesky", "lu"],
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    *,
    returns: bool = False,
    uplo: Literal["L", "U"] = "L",
) -> FactorizationPlan:
    """The plan of a factorization.

    Args:
        kind: of the factorization (global).
        a: distribution of A (global).
        dtype: name of the dtype (global).
        nprocs: ranks of the context (global).
        transport: how the ranks exchange data (global).
        returns: see `FactorizationPlan` (global).
        uplo: see `FactorizationPlan` (global).

    >>> plan = choose_factorization("lu", MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared")
    >>> plan.w.nb, plan.w.nprocs
    (192, 4)
    >>> choose_factorization("lu", MatrixDescriptor.row_wise(100, 100, 4), "float64", 4, "shared").w.nprocs
    1
    """
    w, why = block_columns(a if uplo == "L" else a.T, nprocs)
    plan = CholeskyPlan if kind == "cholesky" else LuPlan
    return plan(a, w, why, dtype, nprocs, transport, returns, uplo)


def block_columns(a: MatrixDescriptor, nprocs: int) -> tuple[MatrixDescriptor, str]:
    """The internal layout for a matrix with the distribution `a`, and the reason for it.

    Args:
        a: distribution of the matrix (global).
        nprocs: ranks of the context, or fewer (global).

    >>> block_columns(MatrixDescriptor.row_wise(2048, 2048, 4), 4)[0].nb
    96
    """
    m, n = a.shape
    ranks = max(1, min(nprocs, n // _LEAST))
    if ranks == 1:
        why = "one rank" if nprocs == 1 else f"fewer than {2 * _LEAST} columns: more ranks would be slower"
        return MatrixDescriptor.column_wise(m, n, 1), why
    if _is_cyclic(a, ranks):
        w = MatrixDescriptor(m, n, max(m, 1), a.nb, a.grid, 0, a.csrc, inb=a.inb)
        return w, "A has block columns on 1 x P ranks already"
    return MatrixDescriptor.column_wise(
        m, n, ranks, nb=panel_width(n, ranks)
    ), "panels in block columns are local to one rank"


def panel_width(n: int, ranks: int) -> int:
    """Columns of a panel, for so many ranks.

    >>> panel_width(4096, 2), panel_width(1024, 2)
    (192, 96)
    """
    return max(_NARROWEST, min(_WIDEST, n // (_PANELS * ranks) // 32 * 32))


def _is_cyclic(a: MatrixDescriptor, ranks: int) -> bool:
    """Whether a distribution is block columns of a good width on at least `ranks` ranks."""
    by_columns = a.order == "F" and a.grid.nprow == 1 and a.grid.npcol >= ranks and a.csrc >= 0
    return by_columns and _NARROWEST // 2 <= a.nb <= min(2 * _WIDEST, a.n // (2 * ranks))
