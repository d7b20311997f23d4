"""solve_triangular: SciPy's call for a triangular system, which raises for a singular triangle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pblas.arrays.reduction_plan import ReductionPlan
from pblas.arrays.reduction_run import index_of
from pblas.backends.local_step import agreed
from pblas.core.call import call, runtime_of
from pblas.core.linalg_errors import SingularMatrixError
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import checked_flag
from pblas.triangular.trsm import TriangularSolve

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Table, Vector
    from pblas.core.operation import Bound
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.runtime import Runtime

_TRANS = {0: "N", 1: "T", 2: "C"}
"""SciPy's numbers of op."""


@overload
def solve_triangular(
    a: DistMatrix, b: DistMatrix, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> DistMatrix: ...
@overload
def solve_triangular(
    a: DistMatrix, b: Vector, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> Vector: ...
@overload
def solve_triangular(
    a: DistMatrix, b: Table, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> DistMatrix: ...
def solve_triangular(
    a: DistMatrix, b: DistMatrix | Array, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> DistMatrix | Array:
    """**Collective.** Solve op(A) X = B for a triangular A, in any layouts.

    Args:
        a: n x n matrix of which one triangle is read (global).
        b: n x nrhs matrix, or an array of one or two dimensions that is equal on all ranks (global).
        lower: read the lower triangle of A; else the upper one (global).
        trans: "N" or 0: A X = B; "T" or 1: A^T X = B; "C" or 2: A^H X = B (global).
        unit_diagonal: take the diagonal of A as ones, and do not read it (global).

    Returns:
        X: a new matrix in B's layout; for an array of one dimension an array, equal on all ranks.

    Raises:
        SingularMatrixError: an element of A's diagonal is 0; `info` is the first one, from 1. B is unchanged.
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank. 16-bit dtypes are
            refused: convert with `astype`.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK, xTRTRS; scipy.linalg.solve_triangular.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 1.0], [0.0, 4.0]]))
    ...     pblas.linalg.solve_triangular(A, np.array([4.0, 8.0])).tolist()
    [1.0, 2.0]
    """
    verb = "solve_triangular"
    with runtime_of(verb, {"a": a, "b": b}).call(verb):
        if isinstance(b, DistMatrix) or not hasattr(b, "ndim"):  # not an array: the checks raise
            return _solved(verb, a, b, lower, trans, unit_diagonal)
        is_vector = b.ndim == 1
        x = _solved(verb, a, replicated_matrix(verb, a, b[:, None] if is_vector else b), lower, trans, unit_diagonal)
        return a.runtime.backend.reading(x.local)[:, 0].copy() if is_vector else x


def _solved(verb: str, a: DistMatrix, b: Any, lower: bool, trans: Any, unit_diagonal: bool) -> DistMatrix:
    """**Collective.** X for a matrix B."""
    return call(verb, RegularTriangularSolve.bind_scipy, {"a": a, "b": b}, a, b, lower, trans, unit_diagonal)


@dataclass(frozen=True, eq=False)
class RegularTriangularSolve(TriangularSolve):
    """A `TriangularSolve` that raises for a zero on A's diagonal, before it solves.

    The fact of a rank is n minus the index of its first zero, so that the largest fact tells the first zero of all.
    """

    @classmethod
    def bind_scipy(
        cls, verb: str, runtime: Runtime, a: Any, b: Any, lower: Any, trans: Any, unit_diagonal: Any
    ) -> Bound[DistMatrix]:
        """The arguments of `solve_triangular`, checked on this rank."""
        uplo = "L" if checked_flag(verb, "lower", lower) else "U"
        diag = "U" if checked_flag(verb, "unit_diagonal", unit_diagonal) else "N"
        if isinstance(trans, int | np.integer) and not isinstance(trans, bool):
            trans = _TRANS.get(int(trans), trans)
        return cls.bind(verb, runtime, a, b, "L", uplo, trans, diag)

    @classmethod
    def agreed(cls, form: tuple[Any, ...], fact: int) -> tuple[Any, ...]:
        if fact:
            info = cls(*form).a.n - fact + 1
            text = f"element ({info - 1}, {info - 1}) of A's diagonal is 0, so A is singular (info={info})"
            raise agreed(SingularMatrixError(f"solve_triangular: {text}", info))
        return form

    def parts(self, verb: str, runtime: Runtime, bound: Bound[DistMatrix]) -> Bound[DistMatrix]:
        bound = super().parts(verb, runtime, bound)
        if self.unit:
            return bound
        arrays, (places, rows, columns) = runtime.backend.arrays, _diagonal(self.a, runtime.rank)
        arrays.begin()
        zeros = places[arrays.take(bound.reads["A"].stored(verb), rows, columns) == 0]
        return bound._replace(fact=self.a.n - int(zeros[0]) if zeros.size else 0)


@lru_cache(8)
def _diagonal(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array, Array]:
    """Indices of the elements of the diagonal that a rank has, ascending, and their local rows and columns."""
    ranges = ReductionPlan(desc, "diagonal", None, "float64", desc.nprocs).diagonal_ranges(rank)
    places = np.arange(desc.n)[index_of(ranges)]
    return places, *desc.local_index(places, places)


def first_zero(a: DistMatrix) -> int:
    """**Collective.** The place, from 1, of the first zero on the diagonal, equal on all ranks; 0 if there is none."""
    zeros = np.flatnonzero(a.diagonal() == 0)
    return int(zeros[0]) + 1 if zeros.size else 0
