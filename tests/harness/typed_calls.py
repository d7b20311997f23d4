"""Calls with the types that a checker knows of their results: mypy checks them always, pyright in `make dist`.

No result is Any, and attributes that do not exist are errors. A test makes the calls, too.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import pblas
from pblas import Context, DistMatrix, MatrixDescriptor, blas, linalg, tp

Vector = np.ndarray[tuple[int], np.dtype[Any]]
Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]


def calls(ctx: Context) -> None:
    """**Collective.** Calls of all kinds."""
    A, B, v, M = ctx.eye(4), ctx.eye(4), np.ones(4), np.ones((4, 4))
    of_matrices(A, B, v, M)
    of_linalg(A, B, v)
    of_blas(A, B, v)
    x = ctx.allreduce(v)
    assert_type(x, np.ndarray[tuple[int], np.dtype[np.float64]])
    assert_type(ctx.reduce_scatter(M), np.ndarray[tuple[int, int], np.dtype[np.float64]])
    assert_type(ctx.allgather(v), np.ndarray[tuple[int], np.dtype[np.float64]])
    assert_type(tp.linear_allreduce(M, M, ctx=ctx), np.ndarray[tuple[int, int], np.dtype[np.float64]])
    desc = MatrixDescriptor.default(4, 4, ctx.nprocs)
    assert_type(desc.owner(1, 2), int)
    assert_type(desc.local_index(1, 2), tuple[int, int])


def of_matrices(A: DistMatrix, B: DistMatrix, v: Numbers, M: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """**Collective.** Methods and operators of matrices."""
    assert_type(A @ B, DistMatrix)
    assert_type(A @ v, Vector)
    assert_type(A @ M, DistMatrix)
    assert_type(v @ A, Vector)
    assert_type(M @ A, DistMatrix)
    assert_type(A + B, DistMatrix)
    assert_type(M + B, DistMatrix)
    assert_type(2 * A, DistMatrix)
    assert_type(A - A.mean(axis=0), DistMatrix)
    assert_type(A % 2 // B, DistMatrix)
    assert isinstance(np.exp(A), DistMatrix)
    assert_type((A > 0) & ~(A == B), DistMatrix)
    assert_type(A.any(), np.bool_)
    assert_type(A.all(axis=0), NDArray[Any])
    assert_type(A.var(), np.floating[Any])
    assert_type(A.std(axis=0, ddof=1), NDArray[Any])
    assert_type(A[0:2, 0:2], DistMatrix)
    assert_type(A[0, 0], float | complex)
    assert_type(A.T, DistMatrix)
    assert_type(A.sum(), np.inexact[Any])
    assert_type(A.sum(axis=0), NDArray[Any])
    assert_type(A.max(), np.floating[Any])
    assert_type(A.argmax(), np.intp)
    assert_type(A.norm(), np.floating[Any])
    assert_type(A.norm(1, axis=0), NDArray[Any])
    assert_type(A.trace(), np.inexact[Any])
    assert_type(A.diagonal(), Vector)
    assert_type(A.to_global(None), NDArray[Any])
    assert_type(A.to_global(), NDArray[Any] | None)
    assert_type(pblas.pmatmul(A, B, alpha=1 / A.norm()), DistMatrix)
    assert_type(pblas.vdot(A, B), np.inexact[Any])
    assert_type(pblas.elementwise("x + y", x=A, y=B), DistMatrix)


def of_linalg(A: DistMatrix, B: DistMatrix, v: Numbers) -> None:
    """**Collective.** Solvers and factors."""
    assert_type(linalg.solve(A, B), DistMatrix)
    assert_type(linalg.solve(A, v), NDArray[Any])
    assert_type(linalg.lu_factor(A).solve(B), DistMatrix)
    assert_type(linalg.cho_factor(A).solve(v), NDArray[Any])
    assert_type(linalg.solve_triangular(A, v), NDArray[Any])
    assert_type(linalg.solve_triangular(A, B), DistMatrix)
    assert_type(linalg.lstsq(A, v).x, NDArray[Any])
    assert_type(linalg.cg(A, B).x, DistMatrix)
    assert_type(linalg.eigh(A).eigenvectors, DistMatrix)
    assert_type(linalg.eigh(A, B, check=True).residual, float)
    assert_type(linalg.det(A), np.inexact[Any])
    assert_type(linalg.slogdet(A).logabsdet, np.floating[Any])
    assert_type(linalg.cond(A, 1), np.floating[Any])
    assert_type(linalg.matrix_norm(A), np.floating[Any])
    assert_type(linalg.lu_factor(A).rcond(), float)


def of_blas(A: DistMatrix, B: DistMatrix, v: Numbers) -> None:
    """**Collective.** Level 1 to 3."""
    assert_type(blas.gemv(A, v), NDArray[Any])
    assert_type(blas.gemv(A, B[:, 0]), DistMatrix)
    assert_type(blas.gemv(A, v, out=A[:, 1]), DistMatrix)
    assert_type(blas.symv(A, v, v), NDArray[Any])
    assert_type(blas.trsv(B, v), NDArray[Any])
    assert_type(blas.trmv(B, B[:, 0]), DistMatrix)
    assert_type(blas.trsm(B, B), DistMatrix)
    assert_type(blas.dot(B[:, 0], B[:, 0]), np.floating[Any])
    assert_type(blas.nrm2(B[:, 0]), np.floating[Any])
    assert_type(blas.amax(B[:, 0]), tuple[float | complex, int])


def without(A: DistMatrix) -> None:
    """**Collective.** Attributes that do not exist."""
    C = A @ A
    C.no_such_method()  # type: ignore[attr-defined]
    linalg.solve(A, C).typo  # type: ignore[attr-defined]  # noqa: B018
