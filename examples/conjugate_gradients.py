"""Solve A X = B for a symmetric positive definite A by conjugate gradients, for several right-hand sides at once.

mpiexec -n 4 python -m mpi4py examples/conjugate_gradients.py

Each column of X has step lengths of its own: `(P * Q).sum(axis=0)` is an array with one number for each column, which
every rank has, and `P * steps` multiplies the columns of P by these numbers.
"""

import numpy as np

import pblas

N, COLUMNS, STEPS = 500, 3, 60


def main() -> float:
    with pblas.Context() as ctx:
        G = ctx.random((N, N), distribution="normal")
        A = G @ G.T / N + ctx.eye(N)
        B = ctx.random((N, COLUMNS), seed=1)

        X = ctx.zeros_like(B)
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
        residual = float((B - A @ X).norm() / B.norm())

        if ctx.rank == 0:
            print(f"{COLUMNS} systems of {N} equations, relative residual {residual:.1e}")
            assert residual < 1e-10
    return residual


if __name__ == "__main__":
    main()
