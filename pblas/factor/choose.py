"""The internal layout of a factorization: block columns on 1 x P ranks, with a block size for the matrix."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import isqrt
from typing import Any, Literal, NamedTuple

from pblas.factor.factorization_plan import CholeskyPlan, FactorizationPlan, LuPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.hardware import ITEMSIZE, Transport

FactorizationAlgorithm = Literal["auto", "blocked", "local"]

_NARROWEST, _WIDEST = 64, 192
"""Columns of a panel. They are the K of the GEMMs of an update, which is slow if they are few; if they are many, the
panels take longer than the updates that hide them."""
_PANELS = 5
"""Panels of a rank at least, where the matrix is large enough: otherwise ranks are idle at the end."""
_WIDTH = 38
"""In Cholesky on CPUs, the square of a panel's columns over a rank's columns. Ranks wait for wide panels, and GEMMs by
narrow ones are slow (simulated with the rates of an AMD EPYC; measured for 1024 and 2048 columns on 2 ranks)."""
_FIRST = 64
"""Columns of the first panel on CPUs, for which all other ranks wait: it takes 4 % off 2048 columns on 2 ranks."""
_LEAST = 128
"""Columns of each rank at least; a smaller matrix takes fewer ranks, since its panels leave little to overlap with."""
_PAGE, _LINE = 4096, 64
"""Bytes of a page and of a cache line. With columns of whole pages GEMMs take 5 % longer (AMD EPYC, float64)."""
_NARROWEST_ON_GPUS, _WIDEST_ON_GPUS = 256, 1024
_LEAST_ON_GPUS = 8192
"""Columns of each GPU at least, if there are several: below, panels take longer than the updates."""
_TRIANGLE_ON_GPUS = 8192
"""Largest order of triangles that cuBLAS' symmetric product updates faster than GEMMs (H200, float64)."""
_TAIL_ON_GPUS = 8192
"""Order of a matrix that cuSOLVER's Cholesky factors faster than panels do (H100, float64)."""
_BLOCKED_ON_A_GPU = 16384
"""Columns from which one GPU factors by panels faster than cuSOLVER does (H100 and H200, float64)."""

LAYOUTS = 256
"""Size of the cache of plans: loops call with matrices of the same few layouts again and again."""


class _Limits(NamedTuple):
    """Columns of a panel, and of each rank at least, on CPUs or GPUs; see `block_columns` (global)."""

    narrowest: int
    widest: int
    least: int
    per_column: int = 0


@lru_cache(LAYOUTS)
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
    gpus: bool = False,
) -> FactorizationPlan:
    """The plan by panels ("blocked"), on one rank ("local"), or what is expected to be faster ("auto").

    >>> plan = choose_factorization("lu", MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared")
    >>> plan.w.nb, plan.w.nprocs
    (192, 4)
    >>> choose_factorization("lu", MatrixDescriptor.row_wise(100, 100, 4), "float64", 4, "shared").w.nprocs
    1
    >>> large = MatrixDescriptor.row_wise(32768, 32768, 4)
    >>> choose_factorization("lu", large, "float64", 4, "push", gpus=True).w.nb
    1024
    """
    options: Any = {"gpus": gpus, "per_column": _WIDTH if kind == "cholesky" else 0, "first": None if gpus else _FIRST}
    w, why = block_columns(a if uplo == "L" else a.T, nprocs, algorithm, **options)
    if not gpus:
        w = _apart(w, dtype)
    plan: Any = CholeskyPlan if kind == "cholesky" else LuPlan
    library: tuple[Any, ...] = "LAPACK", range(1, w.n + 1)
    if gpus:
        has_tail = kind == "cholesky" and w.nprocs == 1 and w.nb < w.n and w.n >= 2 * _TAIL_ON_GPUS
        library = "cuSOLVER", range(w.nb + 1, _TRIANGLE_ON_GPUS + 1), _TAIL_ON_GPUS if has_tail else 0
    made: FactorizationPlan = plan(a, w, why, dtype, nprocs, transport, returns, uplo, *library)
    return made


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
    (m, n), limits = a.shape, _Limits(_NARROWEST, _WIDEST, _LEAST, per_column)
    if gpus:
        limits = _Limits(_NARROWEST_ON_GPUS, _WIDEST_ON_GPUS, _LEAST_ON_GPUS)
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
    if _is_cyclic(a, ranks, limits):
        w = MatrixDescriptor(m, n, max(m, 1), a.nb, a.grid, 0, a.csrc, inb=a.inb)
        return w, "A has block columns on 1 x P ranks already"
    why = "panels in block columns are local to one rank"
    width = _width(n, ranks, limits)
    w = MatrixDescriptor.column_wise(m, n, ranks, nb=width)
    return w if first is None or ranks == 1 else replace(w, inb=min(first, width)), why


def _apart(w: MatrixDescriptor, dtype: str) -> MatrixDescriptor:
    """The layout with columns that do not begin at one place of the pages: such columns evict each other from cache.

    >>> _apart(MatrixDescriptor.column_wise(1024, 1024, 2), "float64").lld
    1032
    """
    itemsize = ITEMSIZE[dtype]
    is_together = w.m > 0 and w.m * itemsize % _PAGE == 0
    return replace(w, lld=w.m + _LINE // itemsize) if is_together else w


def panel_width(n: int, ranks: int) -> int:
    """Columns of a panel, for so many ranks on CPUs.

    >>> panel_width(4096, 2), panel_width(1024, 2)
    (192, 96)
    """
    return _width(n, ranks, _Limits(_NARROWEST, _WIDEST, _LEAST))


def _width(n: int, ranks: int, limits: _Limits) -> int:
    """Columns of a panel: a multiple of 16 between the limits."""
    per_column = limits.per_column
    width = (isqrt(per_column * n // ranks) + 8) // 16 * 16 if per_column else n // (_PANELS * ranks) // 32 * 32
    return max(limits.narrowest, min(limits.widest, width))


def _is_cyclic(a: MatrixDescriptor, ranks: int, limits: _Limits) -> bool:
    """Whether a distribution is block columns of a good width on at least `ranks` ranks."""
    by_columns = a.order == "F" and a.grid.nprow == 1 and a.grid.npcol >= ranks and a.csrc >= 0
    return by_columns and limits.narrowest // 2 <= a.nb <= min(2 * limits.widest, a.n // (2 * ranks))
