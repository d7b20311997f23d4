"""Solve A X = B for a symmetric positive definite A by conjugate gradients, for several right-hand sides at once.

mpiexec -n 4 python -m mpi4py examples/conjugate_gradients.py
"""

import numpy as np

import pblas

N, COLUMNS = 500, 3


def by_hand(A: pblas.DistMatrix, B: pblas.DistMatrix) -> pblas.DistMatrix:
    X, R, P = 0 * B, B.copy(), B.copy()
    rr = (R * R).sum(axis=0)
    while np.sqrt(rr.max()) > 1e-12:  # the same on every rank, so that all leave the loop together
        Q = A @ P
        steps = rr / (P * Q).sum(axis=0)  # an array that every rank has: one number for each column
        X += P * steps  # the columns of P, each times its number
        R -= Q * steps
        rr, before = (R * R).sum(axis=0), rr
        P = R + P * (rr / before)
    return X


def main() -> float:
    with pblas.Context() as ctx:
        G, B = ctx.random((N, N), distribution="normal"), ctx.random((N, COLUMNS), seed=1)
        A = G @ G.T / N + ctx.eye(N)
        X, residuals = pblas.linalg.cg(A, B, tol=1e-12)
        largest = max(float((B - A @ Y).norm() / B.norm()) for Y in (X, by_hand(A, B)))
        if ctx.rank == 0:
            print(f"{COLUMNS} systems of {N} equations, {len(residuals) - 1} iterations, residual {largest:.1e}")
    return largest


if __name__ == "__main__":
    main()
