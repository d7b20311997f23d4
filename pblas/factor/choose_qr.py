"""Algorithm and internal layout of a QR factorization: a tree of ranks for tall matrices, else block columns."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from pblas.factor.choose import LAYOUTS, block_columns, panel_width
from pblas.factor.qr_plan import CholeskyQrPlan, QrPlan, TsqrPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.hardware import Transport

Algorithm = Literal["auto", "blocked", "tsqr", "cholesky", "local"]

_TALL = 4
"""Rows of each rank at least, over the columns of the matrix, for the tree: its merges then take little of the time."""
_WIDTH, _FIRST = 12, 32
"""On CPUs, the square of a panel's columns over a rank's columns, and columns of the first panel, for which all other
ranks wait. Narrower than in Cholesky and LU: half of a panel is multiplied by vectors, which is slow (measured for 1024
and 2048 columns on 2 ranks of an AMD EPYC)."""
_TALL_ON_GPUS, _WIDEST_OF_CHOLESKY = 32, 512
"""On GPUs, rows of each rank at least, over the columns, and columns at most, for Cholesky factors of Gram matrices."""
_WIDEST_ON_GPUS = 256
"""Columns of a panel on GPUs: a block of 32 columns is multiplied with all of them, beside the updates."""


@lru_cache(LAYOUTS)
def choose_qr(
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    algorithm: Algorithm = "auto",
    *,
    returns: bool = False,
    gpus: bool = False,
) -> QrPlan | TsqrPlan | CholeskyQrPlan:
    """The plan of a QR factorization; block columns alone can be brought back to the layout of A (`returns`).

    >>> choose_qr(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared").w.shape
    (4208, 4096)
    >>> choose_qr(MatrixDescriptor.row_wise(4096, 64, 4), "float64", 4, "shared").copy.received_nbytes(1)
    0
    """
    m, n = a.shape
    is_tall = gpus and not returns and 0 < n <= _WIDEST_OF_CHOLESKY and _TALL_ON_GPUS * n * nprocs <= m
    if algorithm == "cholesky" or (algorithm == "auto" and is_tall):
        fallback = choose_qr(a, dtype, nprocs, transport, "blocked", gpus=gpus)
        assert isinstance(fallback, QrPlan), "by blocks"
        why = "a tall matrix in rows: only Gram matrices travel"
        return CholeskyQrPlan(a, _rows(a, nprocs)[0], why, dtype, nprocs, transport, fallback=fallback)
    if gpus:
        return _on_gpus(a, dtype, nprocs, transport, algorithm, returns)
    if algorithm == "tsqr" or (algorithm == "auto" and not returns and 0 < _TALL * n * nprocs <= m):
        return TsqrPlan(a, *_rows(a, nprocs), dtype, nprocs, transport)
    ranks = 1 if algorithm == "local" else nprocs
    kind: Literal["auto", "blocked"] = "blocked" if algorithm == "blocked" else "auto"
    w, why = block_columns(a, ranks, kind, per_column=_WIDTH, first=_FIRST)
    if w.nprocs == 1:
        w = MatrixDescriptor.column_wise(m, n, 1, nb=panel_width(n, 1))
        why = "algorithm='local': one rank" if algorithm == "local" else why
    nb = w.nb if w.inb is None else max(w.nb, w.inb)
    return QrPlan(a, replace(w, m=m + nb, mb=m + nb), why, dtype, nprocs, transport, returns)


def _on_gpus(
    a: MatrixDescriptor, dtype: str, nprocs: int, transport: Transport, algorithm: Algorithm, returns: bool
) -> QrPlan:
    """The plan on GPUs: by panels, whose kernel is faster than cuSOLVER on one GPU too, unless that is asked for."""
    m, n = a.shape
    kind: Literal["auto", "blocked"] = "blocked" if algorithm == "blocked" else "auto"
    w, why = block_columns(a, 1 if algorithm == "local" else nprocs, kind, gpus=True, widest=_WIDEST_ON_GPUS)
    if max(w.nb, w.inb or 0) > _WIDEST_ON_GPUS:
        w = MatrixDescriptor.column_wise(m, n, w.nprocs, nb=_WIDEST_ON_GPUS)
    nb = max(w.nb, w.inb or 0)
    w = replace(w, m=m + nb, mb=m + nb)
    if algorithm == "local":
        return QrPlan(a, w, "algorithm='local'", dtype, nprocs, transport, returns, library="cuSOLVER", tail=n)
    return QrPlan(a, w, why, dtype, nprocs, transport, returns, library="a kernel")


def _rows(a: MatrixDescriptor, nprocs: int) -> tuple[MatrixDescriptor, str]:
    """The internal layout of a tall matrix with columns, and the reason for it."""
    m, n = a.shape
    if _is_split(a):
        w = MatrixDescriptor(m, n, a.mb, max(n, 1), a.grid, a.rsrc, 0, imb=a.imb)
        alone = w.nprocs == 1
        return w, "one rank has all rows" if alone else (
            "each rank has enough rows: they stay where they are, and only R travels"
        )
    ranks = nprocs
    while ranks > 1 and not _is_split(MatrixDescriptor.row_wise(m, n, ranks)):
        ranks -= 1
    return MatrixDescriptor.row_wise(m, n, ranks), "a tall matrix in rows: only R travels after the redistribution"


def _is_split(a: MatrixDescriptor) -> bool:
    """Whether a matrix is in rows, no rank has some but fewer than n, and the first n are together."""
    if not a.is_row_wise or a.rsrc < 0 or not a.m:
        return False
    rows = a.rows
    start, stop = rows.block(0)
    together = stop - start >= a.n or rows.nprocs == 1
    # From the owner of block 1 on counts only decrease, so the last rank with rows has least, or the first one.
    last = (rows.src + min(rows.nblocks, rows.nprocs) - 1) % rows.nprocs
    return together and min(rows.count(rows.src), rows.count(last)) >= a.n
