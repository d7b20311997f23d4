"""Eigenvalues and eigenvectors of symmetric and Hermitian matrices, without restrictions on blocks.

All names stand for one algorithm, that of `pblas.linalg.eigh`; sub(A) is not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.core.linalg_errors import ConvergenceError
from pblas.factor import in_place
from pblas.redistribution.api import redistributed
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, Findings, of_types, without_operands
from pblas.scalapack.tied_vectors import TridiagonalCall
from pblas.spectral import in_place as spectral_in_place
from pblas.spectral.eigh import Options, eigensystem
from pblas.spectral.generalized import Pencil, completed
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Real
    from pblas.matrices.matrix import DistMatrix
    from pblas.scalapack.routines import Routine


class PencilCall(Call):
    """A call with IBTYPE."""

    def _check_values(self, findings: Findings) -> None:
        """Check also IBTYPE."""
        if self._check_integer("IBTYPE", 1, 1, findings) and self["IBTYPE"] > 3:
            findings.add(f"IBTYPE must be 1, 2 or 3, got {self['IBTYPE']}", 1)
        super()._check_values(findings)

    def standard(self, a: DistMatrix, factor: DistMatrix) -> tuple[Pencil, DistMatrix]:
        """**Collective.** The problem, and C, whose eigenvalues it has, with both triangles, in the layout of A."""
        uplo = self["UPLO"]
        factor = redistributed(self.opname, factor, factor.desc.without_lld, uplo=uplo)
        pencil = Pencil(self.opname, factor, uplo, self["IBTYPE"])
        return pencil, pencil.standard(completed(self.opname, a, uplo))


_SOMETIMES = {"VL", "VU", "IL", "IU", "ABSTOL", "ORFAC", "Z", "IZ", "JZ", "DESCZ"}
"""Arguments that are ignored unless JOBZ or RANGE asks for them."""


class EigenCall(Call):
    """A call with W, and with sub(Z) if there are eigenvectors."""

    def __init__(self, routine: Routine, prefix: str, *values: Any) -> None:
        super().__init__(without_operands(routine, values, {"JOBZ": "Z"}), prefix, *values)

    @property
    def spectrum(self) -> Options:
        """The options of `eigensystem` (global)."""
        kind = self._values.get("RANGE", "A")
        by_index = (self["IL"] - 1, self["IU"] - 1) if kind == "I" else None
        by_value = (self["VL"], self["VU"]) if kind == "V" else None
        return Options(self["UPLO"], by_index, by_value, self["JOBZ"] == "V", "auto")

    def _check_values(self, findings: Findings) -> None:
        """Check also the bounds of the part of the spectrum; those of another RANGE are ignored."""
        super()._check_values(findings)
        positions = self._positions()
        kind = self._values.get("RANGE", "A")
        bounds, of_z = {"V": ("VL", "VU"), "I": ("IL", "IU")}.get(kind, ()), ("Z", "IZ", "JZ", "DESCZ")
        used = {*bounds, *(of_z if self["JOBZ"] == "V" else ())}
        for name in _SOMETIMES & positions.keys() - used:
            self._values[name] = None
        if kind == "V":
            for name in ("VL", "VU"):
                self._check_number(name, positions[name], findings)
            if not findings and not self["VL"] < self["VU"]:
                findings.add(f"VU must be greater than VL = {self['VL']}, got {self['VU']}", positions["VU"])
        if kind == "I" and self["N"]:
            has_first = self._check_integer("IL", 1, positions["IL"], findings)
            has_last = has_first and self._check_integer("IU", self["IL"], positions["IU"], findings)
            if has_last and self["IU"] > self["N"]:
                findings.add(f"IU must be at most N = {self['N']}, got {self['IU']}", positions["IU"])

    def _check_rest(self, findings: Findings) -> None:
        """Check W on this process."""
        if not self._is_query:
            self._check_values_array("W", self["N"], findings)


@of_types(routines.SYEV, routines.HEEV, routines.SYEVD, routines.HEEVD, call=EigenCall)
def pxsyev(call: EigenCall) -> int:
    """**Collective.** All eigenvalues of sub(A), and with JOBZ "V" eigenvectors as columns of sub(Z).

    Returns:
        INFO: 0; or i > 0 if LAPACK has not found all eigenvalues of a tridiagonal matrix.

    Source: ScaLAPACK, p?syev, p?heev, p?syevd and p?heevd.
    """
    return _solve(call)[1]


@of_types(routines.SYEVR, routines.HEEVR, routines.SYEVX, routines.HEEVX, call=EigenCall)
def pxsyevr(call: EigenCall) -> tuple[int, int, int]:
    """**Collective.** A part of the eigenvalues of sub(A), and with JOBZ "V" eigenvectors: the first columns of sub(Z).

    Returns:
        M, NZ and INFO: the number of eigenvalues, in W; the number of eigenvectors, M or with JOBZ "N" 0; and INFO as
        of p?syev.

    Source: ScaLAPACK, p?syevr, p?heevr, p?syevx and p?heevx.
    """
    return _outputs(call, *_solve(call))


@of_types(routines.SYGST, routines.HEGST, call=PencilCall)
def pxsygst(call: PencilCall) -> Real:
    """**Collective.** sub(A) := L^-1 A L^-H for IBTYPE 1, otherwise L^H A L; sub(B) has L, or U = L^H, from p?potrf.

    Returns:
        SCALE: 1, by which eigenvalues of sub(A) are multiplied to be those of the generalized problem.

    Source: ScaLAPACK, p?sygst and p?hegst.
    """
    if call["N"]:
        a, b = call.operands()
        _, standard = call.standard(a, b)
        redistributed(call.opname, standard, out=a, uplo=call["UPLO"], is_temporary=True)
    return real_of(call.dtype).type(1)


class PencilEigenCall(EigenCall, PencilCall):
    """A call with IBTYPE and W, and with sub(Z) if there are eigenvectors."""


@of_types(routines.SYGVX, routines.HEGVX, call=PencilEigenCall)
def pxsygvx(call: PencilEigenCall) -> tuple[int, int, int]:
    """**Collective.** A part of the eigenvalues of sub(A) and sub(B), and with JOBZ "V" eigenvectors, as of p?syevr.

    With the eigenvectors Z, Z^H B Z = I, or for IBTYPE 3 Z^H B^-1 Z = I. sub(B) becomes its factor, as of p?potrf.

    Returns:
        M, NZ and INFO: the number of eigenvalues, in W; the number of eigenvectors, M or with JOBZ "N" 0; and INFO: 0;
        8 if LAPACK has not found all eigenvalues of a tridiagonal matrix; 16 if sub(B) is not positive definite, and
        then it is unchanged.

    Source: ScaLAPACK, p?sygvx and p?hegvx.
    """
    if call.answers_query() or not call["N"]:
        return 0, 0, 0
    a, b, *z = call.operands()
    k = in_place.factor_cholesky(call.opname, b, call["UPLO"])
    if k:
        _write(call, "IFAIL", 1, k)
        return 0, 0, 16
    pencil, standard = call.standard(a, b)
    m, info = _solve_for(call, standard, z, pencil)
    return _outputs(call, m, 8 * bool(info))


@of_types(routines.SYTRD, routines.HETRD, call=TridiagonalCall)
def pxsytrd(call: TridiagonalCall) -> None:
    """**Collective.** sub(A) := T and V with T = Q^H sub(A) Q tridiagonal; one triangle is read and written.

    Q is a product of reflectors H_i = I - tau_i v_i v_i^H. With UPLO "L" Q = H_1 H_2 ... H_(N-1): the elements 1..i of
    v_i are 0, v_i(i+1) is 1, and the others are in column i of sub(A). With "U" Q = H_(N-1) ... H_1: the elements after
    the i-th are 0, v_i(i) is 1, and those before it are in column i + 1. On GPUs a CPU reduces a copy in host memory.

    Source: ScaLAPACK, p?sytrd and p?hetrd.
    """
    if call.answers_query() or not call.has_elements:
        return
    d, e, tau = spectral_in_place.tridiagonalize(call.opname, call.operands()[0], call["UPLO"])
    with call.step("D, E and TAU"):
        call.store_t(d, e)
        call.store_tau(tau)


@of_types(routines.ORMTR, routines.UNMTR, call=TridiagonalCall)
def pxormtr(call: TridiagonalCall) -> None:
    """**Collective.** sub(C) := op(Q) sub(C) or sub(C) op(Q), with the Q of p?sytrd in sub(A) and TAU.

    Source: ScaLAPACK, p?ormtr and p?unmtr.
    """
    if call.answers_query() or not call.has_elements:
        return
    tau = call.collected_tau()
    if len(tau):
        a, c = call.operands()
        spectral_in_place.multiply_q(call.opname, a, tau, c, call["UPLO"], call["SIDE"], call["TRANS"])


def _solve(call: EigenCall) -> tuple[int, int]:
    """**Collective.** The number of eigenvalues, in W, and INFO; eigenvectors in sub(Z)."""
    if call.answers_query() or not call["N"]:
        return 0, 0
    a, *z = call.operands()
    return _solve_for(call, a, z)


def _solve_for(call: EigenCall, a: DistMatrix, z: list[DistMatrix], pencil: Pencil | None = None) -> tuple[int, int]:
    """**Collective.** `_solve` for a matrix, and the problem that it stands for."""
    try:
        values, _ = eigensystem(call.opname, a, call.spectrum, pencil=pencil, out=z[0] if z else None)
    except ConvergenceError as caught:
        return 0, caught.info
    with call.step("W"):
        call["W"][: len(values)] = values
    return len(values), 0


def _outputs(call: EigenCall, m: int, info: int) -> tuple[int, int, int]:
    """**Collective.** M, NZ and INFO; IFAIL and ICLUSTR, if they are given, say that all is well."""
    _write(call, "IFAIL", m, 0)
    _write(call, "ICLUSTR", 1, 0)
    return m, m if call["JOBZ"] == "V" else 0, info


def _write(call: Call, name: str, count: int, value: int) -> None:
    """**Collective.** Write the first elements of an array on each process that has passed one."""
    with call.step(name):
        array = call[name] if name in call.routine.arguments else None
        if isinstance(array, np.ndarray):
            array[:count] = value
