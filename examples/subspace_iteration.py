"""The leading eigenvectors of a symmetric matrix, by subspace iteration.

mpiexec -n 4 python -m mpi4py examples/subspace_iteration.py

Each step multiplies a block of columns by A and makes the columns orthonormal again. In the end the eigenvectors of the
small matrix V^T A V, which every rank has, turn V into eigenvectors of A.
"""

import numpy as np

import pblas
from pblas import linalg

N, COUNT, STEPS = 400, 4, 15


def main() -> float:
    with pblas.Context() as ctx:
        basis = linalg.orth(ctx.random((N, N), seed=1, distribution="normal"))
        values = ctx.from_function(lambda i, j: (i == j) * 100.0 * 0.6**i, (N, N))
        A = basis @ values @ basis.T  # its eigenvalues are 100, 60, 36, 21.6, ...

        V = linalg.orth(ctx.random((N, 2 * COUNT), seed=2))  # more columns than wanted: they converge faster
        for _ in range(STEPS):
            V = linalg.orth(A @ V)
        found, turn = np.linalg.eigh((V.T @ (A @ V)).to_global(None))
        found, X = found[: -COUNT - 1 : -1], V @ turn[:, : -COUNT - 1 : -1]
        residual = float((A @ X - X * found).norm() / found[0])

        if ctx.rank == 0:
            print("eigenvalues", *(f"{value:.6f}" for value in found), f"relative residual {residual:.1e}")
            assert residual < 1e-10
    return residual


if __name__ == "__main__":
    main()
