"""The generalized problems A x = w B x, A B x = w x and B A x = w x, by the Cholesky factor of B = L L^H.

type    C                  w of     V of the eigenvectors Y of C
1       L^-1 A L^-H        A, B     L^-H Y
2       L^H A L            A B      L^-H Y
3       L^H A L            B A      L Y
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.factor.cholesky import cholesky
from pblas.factor.with_factor import empty, identity
from pblas.matmul.api import pmatmul
from pblas.matrices.scatter_gather import global_indices
from pblas.redistribution.api import redistributed
from pblas.triangular.trsm import triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.core.options import Uplo
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix


class Pencil(NamedTuple):
    """B by its Cholesky factor, L or U = L^H, and the type of the problem; without a factor B is the identity."""

    opname: str
    factor: DistMatrix | None = None
    uplo: Uplo = "L"
    type: Literal[1, 2, 3] = 1

    def times(self, x: DistMatrix, out: MatrixDescriptor, *, adjoint: bool = False) -> DistMatrix:
        """**Collective.** L X, or L^H X, in the layout `out`."""
        if self.factor is None:
            return x
        return pmatmul(self.factor if adjoint == (self.uplo == "U") else self.factor.H, x, out=out.without_lld)

    def solved(self, x: DistMatrix, out: MatrixDescriptor, *, adjoint: bool = False) -> DistMatrix:
        """**Collective.** L^-1 X, or L^-H X, in the layout `out`."""
        if self.factor is None:
            return x
        trans: Literal["N", "C"] = "N" if adjoint == (self.uplo == "U") else "C"
        return triangle_solved(self.opname, self.factor, x, uplo=self.uplo, trans=trans, out=out.without_lld)

    def standard(self, a: DistMatrix) -> DistMatrix:
        """**Collective.** C in the layout of A, for an A with both triangles."""
        if self.factor is None:
            return a
        if self.type == 1:
            # C := L^-1 (L^-1 A)^H
            return self.solved(self.solved(a, a.desc).H, a.desc)
        # C := L^H (L^H A)^H
        return self.times(self.times(a, a.desc, adjoint=True).H, a.desc, adjoint=True)

    def vectors(self, y: DistMatrix) -> DistMatrix:
        """**Collective.** V, for the eigenvectors Y of C."""
        return self.times(y, y.desc) if self.type == 3 else self.solved(y, y.desc, adjoint=True)

    def errors(self, a: DistMatrix, w: Array, v: DistMatrix) -> tuple[float, float]:
        """**Collective.** The residual and the loss of orthogonality of w and V; see `eigh`."""
        # the two sides of A V = B V diag(w), A B V = V diag(w) or B A V = V diag(w), with B X = L (L^H X)
        desc = v.desc
        b_of_v = v if self.type == 3 else self.times(self.times(v, desc, adjoint=True), desc)
        left = pmatmul(a, b_of_v if self.type == 2 else v, out=desc.without_lld)
        if self.type == 3:
            left = self.times(self.times(left, desc, adjoint=True), desc)
        right = b_of_v if self.type == 1 else v
        residual = float(elementwise("x - y * w", x=left, y=right, w=w).norm())
        size = float(a.norm()) * float(v.norm()) / sqrt(max(len(w), 1))
        if self.factor is not None and self.type != 1:  # the trace of B is at most norm(B) sqrt(n)
            size *= float(self.factor.norm()) ** 2 / sqrt(max(len(v), 1))
        # V = L^-H Y or V = L Y with orthonormal Y
        y = self.solved(v, desc) if self.type == 3 else self.times(v, desc, adjoint=True)
        gram = pmatmul(y.H, y)
        one = identity(self.opname, gram.desc.without_lld, gram)
        loss = float(elementwise("x - y", x=gram, y=one).norm())
        return (residual / size if size else residual), loss


def pencil_of(opname: str, b: DistMatrix, uplo: Uplo, kind: Literal[1, 2, 3]) -> Pencil:
    """**Collective.** The problem with B, of which one triangle is read; NotPositiveDefiniteError on all ranks."""
    try:
        return Pencil(opname, cholesky(b, upper=uplo == "U"), uplo, kind)
    except NotPositiveDefiniteError as caught:
        k = caught.info
    text = f"{opname}: B is not positive definite: its leading {k} x {k} block is not; exchange A and B if A is"
    raise agreed(NotPositiveDefiniteError(text, k))


def completed(opname: str, a: DistMatrix, uplo: Uplo) -> DistMatrix:
    """**Collective.** A new matrix in the layout of A, with both triangles and a real diagonal; reads one of A."""
    full = empty(a.desc.without_lld, a)
    redistributed(opname, a, out=full, uplo=uplo)
    redistributed(opname, a, out=full, trans="C", uplo="U" if uplo == "L" else "L", diagonal=1 if uplo == "L" else -1)
    a.runtime.end_reading(opname)
    with a.runtime.local_step(opname):
        if full.dtype.kind == "c":
            local = full.stored(opname)
            indices = global_indices(full.desc, a.runtime.rank)
            _, i_loc, j_loc = np.intersect1d(*indices, assume_unique=True, return_indices=True)
            full.runtime.backend.arrays.fill(local.imag, i_loc, j_loc, 0)
    return full
