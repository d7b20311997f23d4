"""Solve A X = B for a symmetric positive definite A by conjugate gradients, for several right-hand sides at once.

mpiexec -n 4 python -m mpi4py examples/conjugate_gradients.py

`pblas.linalg.cg` does it in one call. The loop beside it shows how such an iteration is written with matrices: each
column of X has step lengths of its own; `(P * Q).sum(axis=0)` is an array with one number for each column, which every
rank has, and `P * steps` multiplies the columns of P by these numbers.
"""

import numpy as np

import pblas
from pblas import linalg

N, COLUMNS, STEPS = 500, 3, 60


def by_hand(A: pblas.DistMatrix, B: pblas.DistMatrix) -> pblas.DistMatrix:
    X = B * 0
    R, P = B.copy(), B.copy()
    rr = (R * R).sum(axis=0)
    for _ in range(STEPS):
        Q = A @ P
        steps = rr / (P * Q).sum(axis=0)
        X += P * steps
        R -= Q * steps
        rr, before = (R * R).sum(axis=0), rr
        P = R + P * (rr / before)
        if np.sqrt(rr.max()) < 1e-12:  # the same on every rank, so that all leave the loop together
            break
    return X


def main() -> float:
    with pblas.Context() as ctx:
        G = ctx.random((N, N), distribution="normal")
        A = G @ G.T / N + ctx.eye(N)
        B = ctx.random((N, COLUMNS), seed=1)
        X, residuals = linalg.cg(A, B, tol=1e-12)
        largest = max(float((B - A @ Y).norm() / B.norm()) for Y in (X, by_hand(A, B)))
        if ctx.rank == 0:
            print(f"{COLUMNS} systems of {N} equations, {len(residuals) - 1} iterations, residual {largest:.1e}")
            assert largest < 1e-10
    return largest


if __name__ == "__main__":
    main()
