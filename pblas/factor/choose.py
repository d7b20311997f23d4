"""The internal layout of a factorization: block columns on 1 x P ranks, with a block size for the matrix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, isqrt
from typing import Literal, NamedTuple, TypeVar, get_args

from pblas.factor.factorization_plan import CholeskyPlan, FactorizationPlan, LuPlan
from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
from pblas.factor.grid_lu_plan import GridLuPlan, Pivoting
from pblas.factor.grid_plan import GridPlan
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.qr_plan import CholeskyQrPlan, QrPlan, TsqrPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.redistribution.redistribution_plan import RedistributionPlan
from pblas.simulation.hardware import CORE, ITEMSIZE, Topology, Transport
from pblas.simulation.simulate import predict

Kind = Literal["cholesky", "lu", "qr"]
FactorizationAlgorithm = Literal["auto", "blocked", "grid", "local"]
QrAlgorithm = Literal["auto", "blocked", "grid", "tsqr", "cholesky", "local"]

_NARROWEST, _WIDEST = 64, 192
"""Columns of a panel. They are the K of the GEMMs of an update, which is slow if they are few; if they are many, the
panels take longer than the updates that hide them."""
_WIDEST_IN_COLUMNS = 240
"""The same in block columns on CPUs: LU of 4096 columns on 2 ranks takes 2 % less than with 192 (AMD EPYC)."""
_PANELS = 5  # panels of a rank at least, where the matrix is large enough: otherwise ranks are idle at the end
_WIDTH = 38
"""In Cholesky on CPUs, the square of a panel's columns over a rank's columns. Ranks wait for wide panels, and GEMMs by
narrow ones are slow (simulated with the rates of an AMD EPYC; measured for 1024 and 2048 columns on 2 ranks)."""
_FIRST = 64
"""Columns of the first panel on CPUs, for which all other ranks wait: it takes 4 % off 2048 columns on 2 ranks."""
_REPLICATED, _MOST_RANKS = 16, 4
"""In LU and QR on CPUs with one rank on each host, panels at least, and ranks at most that all factor all panels: LU of
2048 columns on two hosts at 1 Gbit/s takes 107 ms, with broadcasts 165, and QR 182 and 210 (AMD EPYC)."""
_LEAST = 128
"""Columns of each rank at least; a smaller matrix takes fewer ranks, since its panels leave little to overlap with."""
_LEAST_FIXED, _MOST_FIXED, _FIXED_PANELS = 64, 256, 16  # widths of panels that do not depend on ranks, and their number
_PAGE, _LINE = 4096, 64
"""Bytes of a page and of a cache line. With columns of whole pages GEMMs take 5 % longer (AMD EPYC, float64)."""
_NARROWEST_ON_GPUS, _WIDEST_ON_GPUS = 256, 1024
_LEAST_ON_GPUS = 12288
"""Columns of each GPU at least, if there are several: with 8192 panels take longer than the updates (16384 columns on
one and two H200: LU 112 and 150 ms, QR 205 and 260)."""
_TRIANGLE_ON_GPUS = 8192
"""Largest order of triangles that cuBLAS' symmetric product updates faster than GEMMs (H200, float64)."""
_TAIL_ON_GPUS = 8192  # order of a matrix that cuSOLVER's Cholesky factors faster than panels do (H100, float64)
_BLOCKED_ON_A_GPU = 16384
"""Columns from which one GPU factors by panels faster than cuSOLVER does (H100 and H200, float64)."""

_LEAST_OF_A_GRID = 4  # ranks of the smallest grid of several rows and columns
_QUICKER = 0.9
"""A grid replaces block columns if it is predicted to take less than this part of their time: both are predicted with
rates of a machine that may not be the user's."""

_LAYOUTS = 256  # size of the cache of plans: loops call with matrices of the same few layouts again and again


class _Limits(NamedTuple):
    """Columns of a panel, and of each rank at least, on CPUs or GPUs; see `block_columns` (global)."""

    narrowest: int
    widest: int
    least: int
    per_column: int = 0


def _limits(per_column: int = 0, *, gpus: bool = False) -> _Limits:
    if gpus:
        return _Limits(_NARROWEST_ON_GPUS, _WIDEST_ON_GPUS, _LEAST_ON_GPUS)
    return _Limits(_NARROWEST, _WIDEST, _LEAST, per_column)


PlanT = TypeVar("PlanT", bound=FactorizationPlan)
GridT = TypeVar("GridT", bound=GridPlan)


@lru_cache(_LAYOUTS)
def choose_factorization(
    kind: Literal["cholesky", "lu"],
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    *,
    returns: bool = False,
    uplo: Literal["L", "U"] = "L",
    algorithm: FactorizationAlgorithm = "auto",
    pivoting: Pivoting | None = None,
    gpus: bool = False,
    alone: bool = False,
    alike: bool = False,
) -> FactorizationPlan:
    """The plan in block columns ("blocked"), over a grid ("grid"), on one rank ("local"), or what seems to be faster.

    The choice depends on no transport and no measured rate: the factor has the same bits on any of them. It may depend
    on the machine: each rank may be `alone` on its host. If ranks form all elements `alike`, block columns have a width
    that depends on n alone, and the factor the same bits on any number of ranks.

    >>> plan = choose_factorization("lu", MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared")
    >>> plan.w.nb, plan.w.nprocs
    (188, 4)
    >>> choose_factorization("lu", MatrixDescriptor.row_wise(100, 100, 4), "float64", 4, "shared").w.nprocs
    1
    >>> square = MatrixDescriptor.row_wise(2048, 2048, 2)
    >>> plan = choose_factorization("lu", square, "float64", 2, "message", alone=True)
    >>> plan.w.nb, plan.width
    (64, 128)
    >>> large = MatrixDescriptor.row_wise(32768, 32768, 4)
    >>> choose_factorization("lu", large, "float64", 4, "push", gpus=True).w.nb
    1024
    >>> halves = MatrixDescriptor(16384, 16384, 512, 512, Grid(1, 2))
    >>> choose_factorization("lu", halves, "float64", 2, "push", gpus=True).w.nprocs
    1
    """
    per_column, first = _WIDTH if kind == "cholesky" else 0, None if gpus else _FIRST
    target = a if uplo == "L" else a.T
    alike = alike and algorithm == "auto"
    w, why = block_columns(target, nprocs, algorithm, gpus=gpus, per_column=per_column, first=first)
    replicated = False
    if alike:
        w, why = fixed_columns(*a.shape, nprocs), "panels whose width depends on the size of A alone"
    elif kind == "lu" and not gpus:
        w, replicated = _balanced(w, target, nprocs, alone=alone)
    if not gpus:
        w = apart(w, dtype)
    library: Literal["cuSOLVER", "LAPACK"] = "cuSOLVER" if gpus else "LAPACK"
    triangles = range(w.nb + 1, _TRIANGLE_ON_GPUS + 1) if gpus else range(1, 1 if alike else w.n + 1)
    has_tail = gpus and w.nprocs == 1 and w.nb < w.n and w.n >= 2 * _TAIL_ON_GPUS
    tail = _TAIL_ON_GPUS if has_tail else 0
    ranks = dtype, nprocs, transport, returns, uplo, library
    columns: FactorizationPlan = LuPlan(a, w, why, *ranks, replicated=replicated)
    if kind == "cholesky":
        columns = CholeskyPlan(a, w, why, *ranks, triangles, tail)
    if alike or algorithm in ("local", "blocked") or (algorithm == "auto" and (nprocs < _LEAST_OF_A_GRID or gpus)):
        return columns
    grids: list[GridPlan] = []
    for w, why in square_blocks(target, dtype, nprocs, gpus=gpus):
        if kind == "cholesky":
            grids.append(GridCholeskyPlan(a, w, why, *ranks))
        else:
            known = get_args(Pivoting) if pivoting is None and w.grid.nprow > 1 else (pivoting or "partial",)
            grids += [GridLuPlan(a, w, why, *ranks, pivoting=rows) for rows in known]
    return _quickest(columns, target, grids, must=algorithm == "grid")


def _quickest(columns: PlanT, target: MatrixDescriptor, grids: Sequence[GridT], *, must: bool) -> PlanT | GridT:
    """The grid that is predicted to take least time, if it `must` be a grid or is quicker than block columns."""
    best: PlanT | GridT = columns
    seconds = inf if must else _QUICKER * _predicted(columns, target, grids)
    for plan in grids:
        predicted = _predicted(plan, target, [columns, *grids], seconds)
        if predicted < seconds:
            best, seconds = plan, predicted
    return best


def _predicted(
    plan: FactorizationPlan,
    target: MatrixDescriptor,
    others: Sequence[FactorizationPlan],
    enough: float = inf,
) -> float:
    """Seconds of a plan by messages, with its redistributions if another plan needs none: they take long to predict."""
    neutral = Topology().transport(plan.nprocs)
    seconds = predict(replace(plan, a=plan.target, returns=False, uplo="L", transport=neutral), CORE, enough)
    if not target.same_distribution(plan.target) and any(target.same_distribution(other.target) for other in others):
        copy = RedistributionPlan(target, plan.target, plan.dtype, plan.nprocs)
        seconds += (1 + plan.returns) * predict(copy, CORE)
    return seconds


def square_blocks(
    a: MatrixDescriptor, dtype: str, nprocs: int, *, gpus: bool = False, per_column: int = _WIDTH
) -> Iterator[tuple[MatrixDescriptor, str]]:
    """Layouts in square blocks over grids of about as many process rows as columns, and the reason for each.

    >>> for w, _ in square_blocks(MatrixDescriptor.row_wise(4096, 4096, 6), "float64", 6):
    ...     print(w.nb, w.grid)
    192 Grid(nprow=2, npcol=3, order='R')
    192 Grid(nprow=3, npcol=2, order='R')
    """
    (m, n), limits = a.shape, _limits(0 if gpus else per_column, gpus=gpus)
    is_square = a.order == "F" and a.mb == a.nb and a.imb == a.inb and min(a.rsrc, a.csrc) >= 0
    if is_square and limits.narrowest // 2 <= a.nb <= 2 * limits.widest and min(m, n) > 0 and a.nprocs <= nprocs:
        yield a, "A has square blocks on a grid already"
    root = isqrt(nprocs)
    divisor = next(p for p in range(root, 0, -1) if nprocs % p == 0)
    shapes = [shape for p in (divisor, root) for shape in ((p, nprocs // p), (nprocs // p, p))]
    for nprow, npcol in dict.fromkeys(shapes):
        nb = _width(n, max(nprow, npcol), limits)
        if min(nprow, npcol) > 1 or nprocs < _LEAST_OF_A_GRID:
            w = MatrixDescriptor(m, n, nb, nb, Grid(nprow, npcol, "R"))
            yield w if gpus else apart(w, dtype), "panels over a grid: fewer elements move than in block columns"


def block_columns(
    a: MatrixDescriptor,
    nprocs: int,
    algorithm: FactorizationAlgorithm = "auto",
    *,
    gpus: bool = False,
    per_column: int = 0,
    widest: int | None = None,
    first: int | None = None,
) -> tuple[MatrixDescriptor, str]:
    """The internal layout for a matrix with the distribution `a`, and the reason for it.

    On CPUs the width of panels is the root of `per_column` times a rank's columns; with 0 it is in proportion to them.

    >>> block_columns(MatrixDescriptor.row_wise(2048, 2048, 4), 4)[0].nb
    96
    """
    (m, n), limits = a.shape, _limits(per_column, gpus=gpus)
    if widest is not None:
        limits = limits._replace(narrowest=min(limits.narrowest, widest), widest=min(limits.widest, widest))
    ranks = max(1, min(nprocs, n // limits.least))
    is_small = ranks == 1 and not (gpus and n >= _BLOCKED_ON_A_GPU)
    if algorithm == "local" or (algorithm == "auto" and is_small):
        why = "one rank" if nprocs == 1 else f"fewer than {2 * limits.least} columns: more ranks would be slower"
        why = "algorithm='local'" if algorithm == "local" else why
        return MatrixDescriptor.column_wise(m, n, 1), why
    if algorithm == "blocked":
        ranks = max(1, min(nprocs, n // limits.narrowest))
    # On one rank blocks are of any width. GPUs move A faster than they wait.
    if ranks > 1 and _is_cyclic(a, ranks, limits) and not (gpus and a.grid.npcol > ranks):
        w = MatrixDescriptor(m, n, max(m, 1), a.nb, a.grid, 0, a.csrc, inb=a.inb)
        return w, "A has block columns on 1 x P ranks already"
    why = "panels in block columns are local to one rank"
    width = _width(n, ranks, limits if first is None else limits._replace(widest=_WIDEST_IN_COLUMNS))
    w = MatrixDescriptor.column_wise(m, n, ranks, nb=width)
    return w if first is None or ranks == 1 else replace(w, inb=min(first, width)), why


def _balanced(w: MatrixDescriptor, a: MatrixDescriptor, nprocs: int, *, alone: bool) -> tuple[MatrixDescriptor, bool]:
    """The layout of LU and QR on CPUs, and whether all ranks, each `alone` on a host, factor all panels.

    The last columns take most work. The last of equal blocks would be half a block too much for its rank, so it is
    about half as wide: on 2 ranks this takes 7 % off QR of 2048 columns, and 2 % off LU of 4096 (AMD EPYC).

    >>> a = MatrixDescriptor.column_wise(2048, 2048, 2, nb=512)
    >>> w = MatrixDescriptor.column_wise(2048, 2048, 2, nb=192)
    >>> _balanced(w, a, 2, alone=False)[0].nb, _balanced(w, a, 2, alone=True)[0].nb, _balanced(a, a, 2, alone=True)[1]
    (196, 64, False)
    """
    unit, replicated = max(1, _NARROWEST // 4), alone and 1 < w.nprocs == nprocs <= _MOST_RANKS
    if not w.same_distribution(a) and w.nprocs > 1:
        n, nb, span = w.n - (w.inb or w.nb), w.nb, w.nb // 32 * 4
        if replicated:
            nb = max(1, min(_WIDEST, w.n // _REPLICATED) // nprocs // unit) * unit
            w = replace(w, nb=nb, inb=None)
        else:
            widths = range(nb - span, nb + span + 1, 4)
            nb = min(widths, key=lambda nb: (max(abs(n % nb / nb - 0.5), 0.1), abs(nb - w.nb)))
            w = replace(w, nb=nb, inb=w.inb and min(w.inb, nb))
    return w, replicated and w.nb * nprocs <= 2 * _WIDEST and w.inb in (None, w.nb)


def fixed_columns(m: int, n: int, nprocs: int) -> MatrixDescriptor:
    """Block columns of a width that depends on n alone.

    >>> [fixed_columns(n, n, 4).nb for n in (100, 1024, 4096, 10**5)]
    [64, 64, 256, 256]
    """
    nb = max(_LEAST_FIXED, min(_MOST_FIXED, n // _FIXED_PANELS // 64 * 64))
    return MatrixDescriptor.column_wise(m, n, max(1, min(nprocs, -(-n // nb))), nb=nb)


def apart(w: MatrixDescriptor, dtype: str) -> MatrixDescriptor:
    """The layout with columns that do not begin at one place of the pages: such columns evict each other from cache.

    >>> apart(MatrixDescriptor.column_wise(1024, 1024, 2), "float64").lld
    1032
    """
    itemsize = ITEMSIZE[dtype]
    rows = w.rows.max_count
    is_together = rows > 0 and rows * itemsize % _PAGE == 0
    return replace(w, lld=rows + _LINE // itemsize) if is_together else w


def _width(n: int, ranks: int, limits: _Limits) -> int:
    """Columns of a panel: a multiple of 16 between the limits.

    >>> _width(4096, 2, _Limits(64, 192, 128)), _width(1024, 2, _Limits(64, 192, 128))
    (192, 96)
    """
    per_column = limits.per_column
    width = (isqrt(per_column * n // ranks) + 8) // 16 * 16 if per_column else n // (_PANELS * ranks) // 32 * 32
    return max(limits.narrowest, min(limits.widest, width))


def _is_cyclic(a: MatrixDescriptor, ranks: int, limits: _Limits) -> bool:
    """Whether a distribution is block columns of a good width on at least `ranks` ranks."""
    by_columns = a.order == "F" and a.grid.nprow == 1 and a.grid.npcol >= ranks and a.csrc >= 0
    return by_columns and limits.narrowest // 2 <= a.nb <= min(2 * limits.widest, a.n // (2 * ranks))


_TALL = 4
"""Rows of each rank at least, over the columns of the matrix, for the tree: its merges then take little of the time."""
_QR_WIDTH, _QR_FIRST = 12, 32
"""On CPUs, the square of a panel's columns over a rank's columns, and columns of the first panel, for which all other
ranks wait. Narrower than in Cholesky and LU: half of a panel is multiplied by vectors, which is slow (measured for 1024
and 2048 columns on 2 ranks of an AMD EPYC)."""
_TALL_ON_GPUS, _WIDEST_OF_CHOLESKY = 32, 512
"""On GPUs, rows of each rank at least, over the columns, and columns at most, for Cholesky factors of Gram matrices."""
_QR_WIDEST_ON_GPUS = 256
"""Columns of a panel on GPUs: a block of 32 columns is multiplied with all of them, beside the updates."""


@lru_cache(_LAYOUTS)
def choose_qr(
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    algorithm: QrAlgorithm = "auto",
    *,
    returns: bool = False,
    gpus: bool = False,
    alone: bool = False,
) -> QrPlan | GridQrPlan | TsqrPlan | CholeskyQrPlan:
    """The plan of a QR factorization; block columns and grids can be brought back to the layout of A (`returns`).

    >>> choose_qr(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared").w.shape
    (4204, 4096)
    >>> choose_qr(MatrixDescriptor.row_wise(4096, 64, 4), "float64", 4, "shared").copy.received_nbytes(1)
    0
    """
    m, n = a.shape
    is_tall = gpus and not returns and 0 < n <= _WIDEST_OF_CHOLESKY and _TALL_ON_GPUS * n * nprocs <= m
    algorithm = algorithm if n else "auto"
    if algorithm == "cholesky" or (algorithm == "auto" and is_tall):
        fallback = choose_qr(a, dtype, nprocs, transport, "blocked", gpus=gpus)
        assert isinstance(fallback, QrPlan), "by blocks"
        why = "a tall matrix in rows: only Gram matrices travel"
        return CholeskyQrPlan(a, _rows(a, nprocs)[0], why, dtype, nprocs, transport, fallback=fallback)
    if algorithm == "tsqr" or (algorithm == "auto" and not (gpus or returns) and 0 < _TALL * n * nprocs <= m):
        return TsqrPlan(a, *_rows(a, nprocs), dtype, nprocs, transport)
    ranks = 1 if algorithm == "local" else nprocs
    kind: Literal["auto", "blocked"] = "blocked" if algorithm == "blocked" else "auto"
    library: Literal["LAPACK", "a kernel", "cuSOLVER"] = "LAPACK"
    if gpus:  # by panels on one GPU too: their kernel is faster than cuSOLVER
        w, why = block_columns(a, ranks, kind, gpus=True, widest=_QR_WIDEST_ON_GPUS)
        if max(w.nb, w.inb or 0) > _QR_WIDEST_ON_GPUS:
            w = MatrixDescriptor.column_wise(m, n, w.nprocs, nb=_QR_WIDEST_ON_GPUS)
        library = "cuSOLVER" if algorithm == "local" else "a kernel"
    else:
        w, why = block_columns(a, ranks, kind, per_column=_QR_WIDTH, first=_QR_FIRST)
        if w.nprocs == 1:
            w = MatrixDescriptor.column_wise(m, n, 1, nb=_width(n, 1, _Limits(_NARROWEST, _WIDEST, _LEAST)))
    why = "algorithm='local': one rank" if algorithm == "local" else why
    w, replicated = (w, False) if gpus else _balanced(w, a, nprocs, alone=alone)
    height, tail = m + max(w.nb, w.inb or 0), n if library == "cuSOLVER" else 0
    w = replace(w, m=height, mb=height)
    columns = QrPlan(a, w, why, dtype, nprocs, transport, returns, library=library, tail=tail, replicated=replicated)
    may = algorithm == "auto" and nprocs >= _LEAST_OF_A_GRID and not gpus
    if not (may or algorithm == "grid"):
        return columns
    blocks = square_blocks(a, dtype, nprocs, per_column=_QR_WIDTH)
    grids = [GridQrPlan(a, w, why, dtype, nprocs, transport, returns) for w, why in blocks]
    return _quickest(columns, a, grids, must=algorithm == "grid")


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
