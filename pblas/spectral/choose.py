"""The plan of eigenvalues of a Hermitian matrix: how many ranks reduce it, and how many divide and conquer."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from pblas.factor.choose import apart
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.simulation.hardware import Transport
from pblas.spectral.eigh_plan import EighPlan

EighAlgorithm = Literal["auto", "blocked", "local"]
"""The reduction on all ranks ("blocked"), or on one ("local")."""

_WIDTH, _WIDTH_OF_ONE = 32, 128
"""Columns of a panel that all ranks reduce, half of whose work is products with vectors; and of a block of reflectors
where LAPACK reduces the matrix: 128 are applied 1.2 times as fast as 32 (AMD EPYC, n = 2048)."""
_SPLIT = 4096
"""Columns from which on ranks of several hosts reduce the matrix together. A column then takes a host a millisecond to
multiply, and half of one to exchange at 1 Gbit/s. On one host LAPACK with the cores of all ranks is faster: its product
reads a triangle once, and strips are read twice."""
_LEAF = 64  # rows of T with which a rank begins, at least
_DIRECT = 128
"""Largest order that one routine of LAPACK solves on rank 0: in 0.7 to 0.9 of the time of the stages, and of 64 columns
in 0.6 to 0.7 of it (AMD EPYC, 2 ranks and 1)."""


class _Band(NamedTuple):
    """The width of a band by way of which a GPU computes eigenvalues, and the orders from which it is faster.

    Two blocks of the width are in a CTA's registers. The orders are those from which cuSOLVER is slower (H200).
    """

    width: int
    values_from: int
    vectors_from: int

    def takes(self, n: int, *, vectors: bool) -> bool:
        """Whether eigenvalues of an n x n matrix are computed by way of the band."""
        return (self.vectors_from if vectors else self.values_from) <= n <= 2 * _CHAIN * self.width


_BANDS = {
    "float32": _Band(64, 1024, 3072),
    "float64": _Band(64, 1024, 3072),
    "complex64": _Band(64, 2048, 4096),
    "complex128": _Band(32, 2048, 4096),
}
_CHAIN = 256
"""CTAs that chase bulges, of one or two pieces of a band as long as it is wide each: H200s hold 264, two each."""
_SHARED_FROM = 24576
"""Order from which several GPUs share the way by a band: for fewer columns they wait for each other's panels. Two took
7.4 s for 32768 columns, one 13.3 s; two 1.5 to 1.9 s for 16384, one 1.8 s (H200, float64)."""
_VECTORS_FROM = 12288
"""Order from which several GPUs share vectors, and not the reduction, unless they share that too. On two H200 12288,
16384 and 20480 columns take 519, 878 and 2031 ms so, on one 680, 1288 and 2695 (float64, medians of three)."""
_LAYOUTS = 256


def takes_doubled(n: int, dtype: str) -> bool:
    """Whether the singular values of an n x n matrix are taken from the eigenvalues of one of twice the order.

    On GPUs, that is faster than by a polar decomposition as long as these are computed by way of a band.
    """
    return 2 * n <= _CHAIN * _BANDS[dtype].width


@lru_cache(_LAYOUTS)
def choose_eigh(
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    *,
    uplo: Literal["L", "U"] = "L",
    count: int | None = None,
    vectors: bool = True,
    algorithm: EighAlgorithm = "auto",
    gpus: bool = False,
    bands: bool = True,
) -> EighPlan:
    """The plan for `count` vectors, None for all, of a matrix with the distribution `a`.

    On GPUs small matrices are solved by cuSOLVER on rank 0, and others by way of a band, unless GPUs are too small for
    the kernel that chases bulges (not `bands`).

    >>> plan = choose_eigh(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "message")
    >>> plan.w.nprocs, plan.w.nb, plan.members
    (4, 32, 4)
    >>> choose_eigh(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared").w.nprocs
    1
    """
    n, k = a.n, a.n if count is None else count
    v = a.without_lld if k == n else resized(a.without_lld, (n, k))
    band = _BANDS[dtype]
    if gpus and bands and band.takes(n, vectors=vectors):
        shares = algorithm == "blocked" or (algorithm == "auto" and n >= _SHARED_FROM)
        has_members = shares or (algorithm == "auto" and vectors and n >= _VECTORS_FROM)
        members = max(1, min(nprocs, n // band.width)) if has_members else 1
        why = "GPUs share the way by a band" if shares else "GPUs would wait for each other's panels"
        why = "one rank" if nprocs == 1 else why if algorithm == "auto" else f"algorithm={algorithm!r}"
        w = MatrixDescriptor.column_wise(n + band.width, n, members if shares else 1, nb=band.width)
        z = MatrixDescriptor.column_wise(n, k, members)
        return EighPlan(*(a, w, z, v, why, dtype, nprocs, transport, uplo, vectors, "cuSOLVER"), bandwidth=band.width)
    if gpus or (algorithm == "auto" and n <= _DIRECT):
        w = MatrixDescriptor.column_wise(n, n, 1)
        library: Literal["cuSOLVER", "LAPACK"] = "cuSOLVER" if gpus else "LAPACK"
        why = "one rank" if nprocs == 1 else f"{library} solves A on one rank; several are no faster"
        z = MatrixDescriptor.column_wise(n, k, 1)
        return EighPlan(*(a, w, z, v, why, dtype, nprocs, transport, uplo, vectors, library), direct=True)
    w, why = working_matrix(n, dtype, nprocs, transport, algorithm)
    members = max(1, min(nprocs, n // _LEAF))
    z = apart(MatrixDescriptor.column_wise(n, k, members), dtype)
    return EighPlan(a, w, z, v, why, dtype, nprocs, transport, uplo, vectors)


def working_matrix(
    n: int, dtype: str, nprocs: int, transport: Transport, algorithm: EighAlgorithm
) -> tuple[MatrixDescriptor, str]:
    """The distribution of an n x n matrix that is reduced, below a panel of other rows, and the rule that chose it."""
    is_large = transport in ("message", "mixed") and n >= _SPLIT
    is_split = nprocs > 1 and n > _WIDTH * nprocs and (algorithm == "blocked" or (algorithm == "auto" and is_large))
    why = "several hosts, and enough columns for all ranks"
    if not is_split:
        why = "LAPACK reduces A with the cores of a host faster than ranks that exchange each column"
    why = "one rank" if nprocs == 1 else f"algorithm={algorithm!r}" if algorithm != "auto" else why
    nb = min(_WIDTH if is_split else _WIDTH_OF_ONE, max(n, 1))
    return apart(MatrixDescriptor.column_wise(n + nb, n, nprocs if is_split else 1, nb=nb), dtype), why
