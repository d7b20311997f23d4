"""Scale factors of rows and columns, and refinement of solutions with bounds of their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.factor import in_place
from pblas.factor.componentwise import Equations, refined
from pblas.factor.factors import solver
from pblas.matmul.api import pmatmul
from pblas.scalapack import routines
from pblas.scalapack.arguments import of_types
from pblas.scalapack.factorizations import OF_CHOLESKY, OF_LU
from pblas.scalapack.tied_vectors import PivotedCall, TiedCall, TiedVector
from pblas.symmetric.api import hemm, symm
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Real
    from pblas.core.options import Trans
    from pblas.factor.factors import Operator

_AXES = {"R": 0, "SR": 0, "C": 1, "SC": 1}


class ScalesCall(TiedCall):
    """A call with the scale factors of the rows and the columns of A."""

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        return [(name, self._scales(name), (real_of(self.dtype).name,)) for name in _AXES if name in self._values]

    def _scales(self, name: str) -> TiedVector:
        """The elements of an array that belong to sub(A) (local)."""
        axis = _AXES[name]
        count = self["N"] if axis else self._values.get("M", self["N"])
        return TiedVector.of(self._grids["A"], self._entries["A"], axis, 0, self["JA" if axis else "IA"], count)

    def _is_written(self, name: str) -> bool:
        return True

    def store(self, **scales: Array) -> None:
        """**Collective.** Write scale factors."""
        with self.local_step():
            for name, values in scales.items():
                self._scales(name).store(self[name], values)
        self.runtime.agree(f"{self.opname}: {', '.join(scales)}", {})


@of_types(routines.GEEQU, call=ScalesCall)
def pxgeequ(call: ScalesCall) -> tuple[Real, Real, Real, int]:
    """**Collective.** R and C, so that the largest element of each row and column of diag(R) sub(A) diag(C) is 1.

    sub(A) is not changed.

    Returns:
        ROWCND: the smallest of R divided by the largest; rows need not be scaled if it is at least 0.1 and AMAX is
        neither near the largest nor near the smallest number. COLCND: the same of C. AMAX: the absolute value of the
        largest element. INFO: 0; i if row i of sub(A) is 0, and M + j if column j is: then R, or C, is not set.

    Source: ScaLAPACK, p?geequ.
    """
    real = real_of(call.dtype).type
    if call.is_empty:
        return real(1), real(1), real(0), 0
    (a,) = call.operands()
    rows = a.norm("max", axis=1)
    amax, r = rows.max(), _inverses(rows)
    if not rows.all():
        return real(0), real(0), amax, int(np.argmin(rows)) + 1
    call.store(R=r)
    columns = elementwise("x * r", x=abs(a), r=r[:, None]).norm("max", axis=0)
    if not columns.all():
        return _ratio(rows), real(0), amax, call["M"] + int(np.argmin(columns)) + 1
    call.store(C=_inverses(columns))
    return _ratio(rows), _ratio(columns), amax, 0


@of_types(routines.POEQU, call=ScalesCall)
def pxpoequ(call: ScalesCall) -> tuple[Real, Real, int]:
    """**Collective.** SR and SC, so that the diagonal of diag(SR) sub(A) diag(SC) is 1, for a positive definite sub(A).

    Only the diagonal of sub(A) is read.

    Returns:
        SCOND: the smallest scale factor divided by the largest, as ROWCND of p?geequ. AMAX: the largest element of the
        diagonal. INFO: 0; or i if element (i, i) is not positive: then SR and SC are not set.

    Source: ScaLAPACK, p?poequ.
    """
    real = real_of(call.dtype).type
    if call.is_empty:
        return real(1), real(0), 0
    diagonal = call.operands()[0].diagonal().real
    if not (diagonal > 0).all():
        return real(0), diagonal.max(), int(np.argmax(~(diagonal > 0))) + 1
    scales = 1 / np.sqrt(diagonal)
    call.store(SR=scales, SC=scales)
    return real(np.sqrt(diagonal.min()) / np.sqrt(diagonal.max())), diagonal.max(), 0


def _inverses(sizes: Array) -> Array:
    """Scale factors that neither overflow nor underflow."""
    least = np.finfo(sizes.dtype).tiny
    return np.asarray(1 / np.clip(sizes, least, 1 / least))


def _ratio(sizes: Array) -> Any:
    """The smallest scale factor divided by the largest."""
    scales = _inverses(sizes)
    return scales.min() / scales.max()


class RefinedCall(PivotedCall):
    """A call with FERR and BERR, distributed as the columns of X, and perhaps with IPIV, as the rows of AF."""

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        of_x = TiedVector.of(self._grids["X"], self._entries["X"], 1, 0, self["JX"], self["NRHS"])
        pivots = super()._vectors() if "IPIV" in self._values else []
        return [*pivots, *((name, of_x, (real_of(self.dtype).name,)) for name in ("FERR", "BERR"))]

    def _is_written(self, name: str) -> bool:
        return name != "IPIV"

    def _pivots(self) -> TiedVector:
        return TiedVector.of(self._grids["AF"], self._entries["AF"], 0, 0, self["IAF"], self["N"])

    def refine(self, equations: Equations) -> None:
        """**Collective.** Refine sub(X), and write FERR and BERR."""
        errors = dict(zip(("FERR", "BERR"), refined(equations, self.operands()[-1]), strict=True))
        with self.local_step():
            for name, vector, _ in self._vectors():
                if name in errors:
                    vector.store(self[name], errors[name])
        self.runtime.agree(f"{self.opname}: FERR and BERR", {})


@of_types(routines.GERFS, routines.GERFS_COMPLEX, call=RefinedCall)
def pxgerfs(call: RefinedCall) -> None:
    """**Collective.** Refine sub(X) with op(sub(A)) sub(X) = sub(B), and bound its errors; with factors from p?getrf.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row of sub(A); the same on every rank.

    Source: ScaLAPACK, p?gerfs.
    """
    if call.answers_query() or call.is_empty:
        return
    a, factor, b, _ = call.operands()
    trans, pivots = call["TRANS"], call.collected_pivots()
    of_a, of_b = abs(a), abs(b)
    call.refine(
        Equations(
            residual=lambda x: pmatmul(a, x, b, transa=trans, alpha=-1, beta=1),
            sizes=lambda x: pmatmul(of_a, x, of_b, transa="N" if trans == "N" else "T", beta=1),
            solve=lambda r: in_place.solve_lu(call.opname, factor, pivots, r, trans),
            inverse=_inverse(solver(factor, OF_LU), pivots, trans),
        )
    )


@of_types(routines.PORFS, routines.PORFS_COMPLEX, call=RefinedCall)
def pxporfs(call: RefinedCall) -> None:
    """**Collective.** Refine sub(X) with sub(A) sub(X) = sub(B), and bound its errors; with the factor from p?potrf.

    Source: ScaLAPACK, p?porfs.
    """
    if call.answers_query() or call.is_empty:
        return
    a, factor, b, _ = call.operands()
    uplo = call["UPLO"]
    of_a, of_b = abs(a), abs(b)
    call.refine(
        Equations(
            residual=lambda x: hemm(a, x, b, uplo=uplo, alpha=-1, beta=1),
            sizes=lambda x: symm(of_a, x, of_b, uplo=uplo, beta=1),
            solve=lambda r: in_place.solve_cholesky(call.opname, factor, r, uplo),
            inverse=solver(factor, OF_CHOLESKY[uplo]),
        )
    )


def _inverse(solve: Operator, pivots: Array, trans: Trans) -> Operator:
    """op(A)^-1 of an array with L U = P A; the transpose as the adjoint, as the norms of both are the same."""
    order = np.arange(len(pivots))
    for i, k in enumerate(pivots - 1):
        order[[i, k]] = order[[k, i]]
    back = np.argsort(order)

    def inverse(v: Any, adjoint: Trans) -> Any:
        return solve(v[order], "N") if (adjoint == "N") == (trans == "N") else solve(v, "C")[back]

    return inverse
