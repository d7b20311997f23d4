"""Scale factors of rows and columns, refinement of solutions with bounds of their errors, and drivers of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.errors import PblasArgumentError
from pblas.factor import in_place
from pblas.factor.componentwise import Equations, refined
from pblas.factor.factors import Operator, condition_of_factor, solver
from pblas.matmul.api import pmatmul
from pblas.redistribution.api import redistributed
from pblas.scalapack import routines
from pblas.scalapack.arguments import Findings, of_types
from pblas.scalapack.factorizations import OF_CHOLESKY, OF_LU
from pblas.scalapack.tied_vectors import PivotedCall, TiedCall, TiedVector
from pblas.symmetric.api import hemm, symm
from pblas.vectors.matrix_vector import Product, product, real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Real
    from pblas.core.options import Trans, Uplo
    from pblas.matrices.matrix import DistMatrix
    from pblas.scalapack.routines import Routine

_EVEN = 0.1  # rows are not scaled if the ratio of their scale factors is at least this, as in LAPACK
_AXES = {"R": 0, "SR": 0, "C": 1, "SC": 1}


class ScalesCall(TiedCall):
    """A call with the scale factors of the rows and the columns of A."""

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        return self._of_scales()

    def _of_scales(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        """`_vectors` of the scale factors."""
        return [(name, self._scales(name), (real_of(self.dtype).name,)) for name in _AXES if name in self._values]

    def _scales(self, name: str) -> TiedVector:
        """The elements of an array that belong to sub(A) (local)."""
        axis = _AXES[name]
        return self._tied("A", axis, self["N"] if axis else self._values.get("M", self["N"]))

    def _is_written(self, name: str) -> bool:
        return True

    def store(self, **scales: Array | None) -> None:
        """**Collective.** Write scale factors; None is not written."""
        with self.step(", ".join(scales)):
            for name, values in scales.items():
                if values is not None:
                    self._scales(name).store(self[name], values)


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
    scales = _scales_of(call.operands()[0])
    call.store(R=scales.rows, C=scales.columns)
    return real(scales.of_rows), real(scales.of_columns), scales.amax, scales.info


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
    scales = _scales_of_diagonal(call.operands()[0])
    call.store(SR=scales.rows, SC=scales.columns)
    return real(scales.of_rows), scales.amax, scales.info


class Scales(NamedTuple):
    """Scale factors, None where they are not defined, the ratios of the smallest and the largest of them, and INFO."""

    amax: Any
    rows: Array | None = None
    columns: Array | None = None
    of_rows: float = 0.0
    of_columns: float = 0.0
    info: int = 0

    def wanted(self, dtype: Dtype) -> tuple[bool, bool]:
        """Whether rows, and columns, are to be scaled (global).

        Source: LAPACK, xLAQGE, xLAQSY.
        """
        least = np.finfo(dtype).tiny / np.finfo(dtype).eps
        is_extreme = not least <= self.amax <= 1 / least
        return self.of_rows < _EVEN or is_extreme, self.of_columns < _EVEN


def _scales_of(a: DistMatrix) -> Scales:
    """**Collective.** Those of the rows and columns of a general matrix."""
    rows = a.norm("max", axis=1)
    amax, r = rows.max(), _inverses(rows)
    if not rows.all():
        return Scales(amax, info=int(np.argmin(rows)) + 1)
    columns = elementwise("x * r", x=abs(a), r=r[:, None]).norm("max", axis=0)
    if not columns.all():
        return Scales(amax, r, None, _ratio(rows), 0.0, a.shape[0] + int(np.argmin(columns)) + 1)
    return Scales(amax, r, _inverses(columns), _ratio(rows), _ratio(columns))


def _scales_of_diagonal(a: DistMatrix) -> Scales:
    """**Collective.** Those of a positive definite matrix."""
    diagonal = a.diagonal().real
    if not (diagonal > 0).all():
        return Scales(diagonal.max(), info=int(np.argmax(~(diagonal > 0))) + 1)
    scales, ratio = 1 / np.sqrt(diagonal), float(np.sqrt(diagonal.min()) / np.sqrt(diagonal.max()))
    return Scales(diagonal.max(), scales, scales, ratio, ratio)


def _inverses(sizes: Array) -> Array:
    """Scale factors that neither overflow nor underflow."""
    least = np.finfo(sizes.dtype).tiny
    return np.asarray(1 / np.clip(sizes, least, 1 / least))


def _ratio(sizes: Array) -> float:
    """The smallest scale factor divided by the largest."""
    scales = _inverses(sizes)
    return float(scales.min() / scales.max())


class RefinedCall(PivotedCall):
    """A call with FERR and BERR, distributed as the columns of X, and perhaps with IPIV, as the rows of AF."""

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        pivots = super()._vectors() if "IPIV" in self._values else []
        return [*pivots, *((name, self._of_x, (real_of(self.dtype).name,)) for name in ("FERR", "BERR"))]

    @property
    def _of_x(self) -> TiedVector:
        """The elements of FERR and BERR (local)."""
        return self._tied("X", 1, self["NRHS"])

    def _is_written(self, name: str) -> bool:
        return name != "IPIV"

    def _pivots(self) -> TiedVector:
        return self._tied("AF", 0, self["N"])

    def refine(self, equations: Equations) -> tuple[Array, Array]:
        """**Collective.** Refine sub(X), and write FERR and BERR."""
        return self.store_errors(*refined(equations, self.operands()[-1]))

    def store_errors(self, *errors: Array) -> tuple[Array, Array]:
        """**Collective.** Write FERR and BERR."""
        ferr, berr = errors
        with self.step("FERR and BERR"):
            for name, values in (("FERR", ferr), ("BERR", berr)):
                self._of_x.store(self[name], values)
        return ferr, berr

    def of_lu(self, pivots: Array) -> Equations:
        """**Collective.** op(A) X = B with the factors from p?getrf, and exchanges that count from 1."""
        a, factor, b, _ = self.operands()
        trans, of_a, of_b = self["TRANS"], abs(a), abs(b)
        return Equations(
            residual=lambda x: pmatmul(a, x, b, transa=trans, alpha=-1, beta=1),
            sizes=lambda x: pmatmul(of_a, x, of_b, transa="N" if trans == "N" else "T", beta=1),
            solve=lambda r: in_place.solve_lu(self.opname, factor, pivots, r, trans),
            inverse=_inverse(solver(factor, OF_LU), pivots, trans),
        )

    def of_cholesky(self) -> Equations:
        """**Collective.** A X = B with the factor from p?potrf."""
        a, factor, b, _ = self.operands()
        uplo, of_a, of_b = self["UPLO"], abs(a), abs(b)
        return Equations(
            residual=lambda x: hemm(a, x, b, uplo=uplo, alpha=-1, beta=1),
            sizes=lambda x: symm(of_a, x, of_b, uplo=uplo, beta=1),
            solve=lambda r: in_place.solve_cholesky(self.opname, factor, r, uplo),
            inverse=solver(factor, OF_CHOLESKY[uplo]),
        )


@of_types(routines.GERFS, routines.GERFS_COMPLEX, call=RefinedCall)
def pxgerfs(call: RefinedCall) -> None:
    """**Collective.** Refine sub(X) with op(sub(A)) sub(X) = sub(B), and bound its errors; with factors from p?getrf.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row of sub(A); the same on every rank.

    Source: ScaLAPACK, p?gerfs.
    """
    if not call.answers_query() and not call.is_empty:
        call.refine(call.of_lu(call.collected_pivots()))


@of_types(routines.PORFS, routines.PORFS_COMPLEX, call=RefinedCall)
def pxporfs(call: RefinedCall) -> None:
    """**Collective.** Refine sub(X) with sub(A) sub(X) = sub(B), and bound its errors; with the factor from p?potrf.

    Source: ScaLAPACK, p?porfs.
    """
    if not call.answers_query() and not call.is_empty:
        call.refine(call.of_cholesky())


class ExpertCall(RefinedCall, ScalesCall):
    """A call that scales, factors, solves and refines, as FACT says."""

    def __init__(self, routine: Routine, prefix: str, *values: Any) -> None:
        kind = dict(zip(routine.arguments, values, strict=True))["FACT"]
        unwritten = {"N": {"A", "B"}, "F": {"A", "AF"}}.get(kind[:1].upper() if isinstance(kind, str) else "", set())
        written = tuple(name for name in routine.outputs if name not in unwritten)
        super().__init__(replace(routine, outputs=written), prefix, *values)

    @property
    def rows_and_columns(self) -> tuple[str, str]:
        """The names of the scale factors (global)."""
        return ("R", "C") if "R" in self._values else ("SR", "SC")

    def _check_values(self, findings: Findings) -> None:
        """Ignore EQUED unless the matrix is factored."""
        if isinstance(self["FACT"], str) and self["FACT"][:1].upper() != "F":
            self._values["EQUED"] = "N"
        super()._check_values(findings)

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        return [*super()._vectors(), *(self._of_scales() if self["FACT"] != "N" else [])]

    def _is_written(self, name: str) -> bool:
        return name in ("FERR", "BERR") or self["FACT"] == ("E" if name in _AXES else "N") or self["FACT"] == "E"

    def scales(self, compute: Callable[[DistMatrix], Scales]) -> tuple[Array | None, Array | None]:
        """**Collective.** The factors by which the rows and columns of sub(A) are scaled afterwards; None for 1."""
        names, a = self.rows_and_columns, self.operands()[0]
        if self["FACT"] == "F":
            used = {"R": (1, 0), "C": (0, 1), "B": (1, 1), "Y": (1, 1)}.get(self["EQUED"], (0, 0))
            return self._given(names[0], used[0]), self._given(names[1], used[1])
        if self["FACT"] == "N":
            return None, None
        found = compute(a)
        self.store(**dict(zip(names, (found.rows, found.columns), strict=True)))
        wanted = found.wanted(a.dtype) if not found.info else (False, False)
        if names[0] == "SR":
            wanted = (any(wanted),) * 2
        r, c = ((values if used else None) for values, used in zip((found.rows, found.columns), wanted, strict=True))
        if r is not None or c is not None:
            ones = np.ones(len(a), real_of(a.dtype))
            of_rows, of_columns = (ones if r is None else r)[:, None], ones if c is None else c
            scaled = elementwise("x * r * c", x=a, r=of_rows, c=of_columns)
            redistributed(self.opname, scaled, out=a, uplo=self._triangle, is_temporary=True)
        return r, c

    @property
    def _triangle(self) -> Uplo | None:
        """The triangle of sub(A) that is read and written; None for all elements (global)."""
        return self._values.get("UPLO")

    def _given(self, name: str, is_used: int) -> Array | None:
        """**Collective.** Scale factors that are positive; None if they are not used."""
        if not is_used:
            return None
        values = self._scales(name).collect(self.opname, name, self[name], self["N"])
        if not (values > 0).all():
            raise agreed(PblasArgumentError(f"{self.opname}: {name} must be positive", -self._positions()[name]))
        return values

    def solved(
        self,
        r: Array | None,
        c: Array | None,
        factor: Callable[[], tuple[int, Callable[[], Equations]]],
        condition: Callable[[], Real],
    ) -> tuple[str, Real, int]:
        """**Collective.** Factor, unless sub(AF) has the factors, solve and refine; EQUED, RCOND and INFO."""
        names = {(True, True): "Y" if "SR" in self._values else "B", (True, False): "R", (False, True): "C"}
        equed = names.get((r is not None, c is not None), "N")
        a, af, b, x = self.operands()
        real = real_of(self.dtype).type
        before, after = (r, c) if self._values.get("TRANS", "N") == "N" else (c, r)
        if before is not None:
            elementwise("x * r", x=b, r=before[:, None], out=b)
        if self["FACT"] != "F":
            redistributed(self.opname, a, out=af, uplo=self._triangle)
        info, found = factor()
        if info:
            return equed, real(0), info
        rcond = condition()
        redistributed(self.opname, b, out=x)
        equations = found()
        equations.solve(x)
        ferr, berr = refined(equations, x)
        if after is not None:  # the errors are those of X before it is scaled
            elementwise("x * r", x=x, r=after[:, None], out=x)
            ferr = ferr * (after.max() / after.min())
        self.store_errors(ferr, berr)
        return equed, rcond, self["N"] + 1 if rcond < np.finfo(self.dtype).eps / 2 else 0


@of_types(routines.GESVX, routines.GESVX_COMPLEX, call=ExpertCall)
def pxgesvx(call: ExpertCall) -> tuple[str, Real, int]:
    """**Collective.** sub(X) := op(sub(A))^-1 sub(B), refined, with bounds of its errors and a condition number.

    With FACT "E" sub(A) is scaled by R and C if that helps. Where sub(A) is scaled, sub(B) becomes so too.

    Returns:
        EQUED: how sub(A) is scaled: "N" not at all, "R" rows, "C" columns, "B" both. RCOND: as of p?gecon, of the
        scaled matrix. INFO: 0; k if U(k, k) is 0, and sub(X) is not set; N + 1 if RCOND is below eps.

    Raises:
        PblasArgumentError: a wrong argument on any rank, a pivot that is no row of sub(A), or scale factors that are
            not positive; the same on every rank.

    Source: ScaLAPACK, p?gesvx.
    """
    if call.answers_query() or call.is_empty:
        return "N", real_of(call.dtype).type(1), 0
    a, af, *_ = call.operands()

    def factor() -> tuple[int, Callable[[], Equations]]:
        if call["FACT"] == "F":
            pivots, info = call.collected_pivots(), 0
        else:
            info, pivots = in_place.factor_lu(call.opname, af)
            with call.step("IPIV"):
                call.store_pivots(pivots)
        return info, lambda: call.of_lu(pivots)

    def condition() -> Real:
        p = 1 if call["TRANS"] == "N" else inf
        return real_of(call.dtype).type(condition_of_factor(af, OF_LU, float(a.norm(p)), p))

    return call.solved(*call.scales(_scales_of), factor, condition)


@of_types(routines.POSVX, routines.POSVX_COMPLEX, call=ExpertCall)
def pxposvx(call: ExpertCall) -> tuple[str, Real, int]:
    """**Collective.** sub(X) := sub(A)^-1 sub(B) for a positive definite sub(A), refined, as p?gesvx.

    Returns:
        EQUED: "Y" if sub(A) is scaled by SR and SC, "N" if not. RCOND: as of p?pocon, of the scaled matrix. INFO: 0; k
        if the leading k x k block is not positive definite, and sub(X) is not set; N + 1 if RCOND is below eps.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or scale factors that are not positive; the same on every
            rank.

    Source: ScaLAPACK, p?posvx.
    """
    if call.answers_query() or call.is_empty:
        return "N", real_of(call.dtype).type(1), 0
    a, af, *_ = call.operands()
    uplo = call["UPLO"]

    def factor() -> tuple[int, Callable[[], Equations]]:
        info = 0 if call["FACT"] == "F" else in_place.factor_cholesky(call.opname, af, uplo)
        return info, call.of_cholesky

    def condition() -> Real:
        ones = np.ones(len(a), a.dtype)
        size = float(product(Product("ahemv", a, ones, uplo=uplo, absolute="abs")).max())
        return real_of(call.dtype).type(condition_of_factor(af, OF_CHOLESKY[uplo], size))

    return call.solved(*call.scales(_scales_of_diagonal), factor, condition)


def _inverse(solve: Operator, pivots: Array, trans: Trans) -> Operator:
    """op(A)^-1 of an array with L U = P A; the transpose as the adjoint, as the norms of both are the same."""
    order = np.arange(len(pivots))
    for i, k in enumerate(pivots - 1):
        order[[i, k]] = order[[k, i]]
    back = np.argsort(order)

    def inverse(v: Any, adjoint: Trans) -> Any:
        return solve(v[order], "N") if (adjoint == "N") == (trans == "N") else solve(v, "C")[back]

    return inverse
