"""Factorizations, solves and inverses in the memory of a matrix, as ScaLAPACK's routines do them.

The factor is written over the matrix, and solutions over the right-hand sides; INFO is returned, not raised. All
arguments are checked and agreed on before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.core.options import Trans, Uplo
from pblas.factor import arguments
from pblas.factor.cholesky import PlannedCholesky, brought_back
from pblas.factor.factorization import prepared
from pblas.factor.lu import PlannedLu
from pblas.factor.substitution_plan import Sweep
from pblas.factor.with_factor import identity, inverted
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.triangular.trsm import first_zero, triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_CHOLESKY: dict[Uplo, tuple[Trans, Trans]] = {"L": ("N", "C"), "U": ("C", "N")}
"""The factors of A, in the order in which equations with them are solved: L, L^H or U^H, U."""


def factor_cholesky(verb: str, a: DistMatrix, uplo: Uplo) -> int:
    """**Collective.** One triangle of A := L with A = L L^H, or U with A = U^H U; the other one is not touched.

    Source: LAPACK xPOTRF.
    """
    factoring = prepared(PlannedCholesky, verb, a, upper=uplo == "U", returns=True)
    try:
        factored = factoring.factored(a)
    except NotPositiveDefiniteError as caught:
        return caught.info
    brought_back(verb, factoring.plan, factored.w, out=a)
    return 0


def factor_lu(verb: str, a: DistMatrix) -> tuple[int, Array]:
    """**Collective.** A := L and U with P A = L U by partial pivoting; the diagonal of L is 1 and not stored.

    Source: LAPACK xGETRF.
    """
    factored = prepared(PlannedLu, verb, a, returns=True).factored(a)
    redistributed(verb, factored.w, out=a, is_temporary=True)
    assert factored.pivots is not None, "LU has pivots"
    assert isinstance(factored.info, int), "it has been looked at"
    return factored.info, factored.pivots


def solve_cholesky(verb: str, a: DistMatrix, b: DistMatrix, uplo: Uplo) -> None:
    """**Collective.** B := A^-1 B, with the factor of A from `factor_cholesky` in one triangle of `a`."""
    for trans in _CHOLESKY[uplo]:
        triangle_solved(verb, a, b, uplo=uplo, trans=trans, out=b)


def solve_lu(verb: str, a: DistMatrix, pivots: Array, b: DistMatrix, trans: Trans) -> None:
    """**Collective.** B := op(A)^-1 B, with the factor of A from `factor_lu` in `a`.

    A zero on the diagonal of U is no error, as in LAPACK: B then has infinities or NaN.
    """
    if trans == "N":
        exchange_rows(verb, b, pivots)
        triangle_solved(verb, a, b, uplo="L", diag="U", out=b)
        triangle_solved(verb, a, b, uplo="U", out=b)
    else:
        triangle_solved(verb, a, b, uplo="U", trans=trans, out=b)
        triangle_solved(verb, a, b, uplo="L", trans=trans, diag="U", out=b)
        exchange_rows(verb, b, pivots, backward=True)


def exchange_rows(verb: str, a: DistMatrix, pivots: Array, *, backward: bool = False) -> None:
    """**Collective.** Exchange row i of A with row pivots[i], one after the other.

    Each rank gets whole columns, exchanges their rows, and the columns return: A moves twice, whatever the pivots are.

    Source: LAPACK xLASWP.
    """
    runtime, arrays = a.runtime, a.runtime.backend.arrays
    with runtime.local_step(verb):
        arguments.check_matrix(verb, "A", a, runtime)
    x = redistributed(verb, a, MatrixDescriptor.column_wise(*a.shape, runtime.nprocs))
    with runtime.local_step(verb):
        arrays.begin()
        arrays.swap_rows(x.stored(verb), pivots, backward=backward)
        arrays.synchronize()
    redistributed(verb, x, out=a, is_temporary=True)


def invert_cholesky(verb: str, a: DistMatrix, uplo: Uplo) -> int:
    """**Collective.** One triangle of A^-1, over that of the factor of A from `factor_cholesky`; the other is kept.

    Source: LAPACK xPOTRI.
    """
    info = first_zero(a)
    if not info:
        x = _identity(verb, a)
        solve_cholesky(verb, a, x, uplo)
        a.runtime.end_reading(verb)
        with a.runtime.local_step(verb):
            local = x.computed(verb)
            if local.dtype.kind == "c":
                columns = [j for ends in x.desc.global_ranges(a.runtime.rank)[1] for j in range(*ends)]
                arrays = a.runtime.backend.arrays
                arrays.fill(local.imag, np.array(columns, np.intp), np.arange(len(columns)), 0)
        redistributed(verb, x, out=a, uplo=uplo, is_temporary=True)
    return info


def invert_lu(verb: str, a: DistMatrix, pivots: Array) -> int:
    """**Collective.** A^-1, over the factor of A from `factor_lu`.

    Source: LAPACK xGETRI.
    """
    info = first_zero(a)
    if not info:
        factoring = prepared(PlannedLu, verb, a, returns=True)
        w = redistributed(verb, a, factoring.plan.w, agrees=factoring.agrees)
        inverted(verb, w, a.desc, (Sweep("L", unit=True), Sweep("U")), pivots, out=a)
    return info


def invert_triangle(verb: str, a: DistMatrix, uplo: Uplo, *, unit: bool) -> int:
    """**Collective.** Invert a triangle in place; the other triangle is neither read nor written.

    Source: LAPACK xTRTRI.
    """
    info = 0 if unit else first_zero(a)
    if not info:
        x = _identity(verb, a)
        triangle_solved(verb, a, x, uplo=uplo, diag="U" if unit else "N", out=x)
        shift = int(unit) * (1 if uplo == "U" else -1)
        redistributed(verb, x, out=a, uplo=uplo, diagonal=shift, is_temporary=True)
    return info


def _identity(verb: str, a: DistMatrix) -> DistMatrix:
    """**Collective.** The identity, of the size of A, with whole columns on each rank."""
    with a.runtime.local_step(verb):
        arguments.check_matrix(verb, "A", a, a.runtime)
    a.runtime.agree(f"{verb}: the identity", {})  # all ranks allocate it, or none
    return identity(verb, MatrixDescriptor.column_wise(*a.shape, a.runtime.nprocs), a)
