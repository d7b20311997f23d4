"""The largest eigenvalue of a symmetric matrix, by power iteration.

mpiexec -n 4 python -m mpi4py examples/power_iteration.py

`A @ x` of a matrix A and an array x that every rank has is an array that every rank has, so the rest is NumPy.
"""

import numpy as np

import pblas

N, STEPS = 600, 60


def main() -> float:
    with pblas.Context() as ctx:
        R = ctx.random((N, N), seed=0, distribution="normal")
        A = R @ R.T / N + 40 * ctx.ones((N, N)) / N  # symmetric; its largest eigenvalue is about 41, the next about 4

        x = np.ones(N)
        for _ in range(STEPS):
            y = A @ x
            x = y / np.linalg.norm(y)
        value = x @ (A @ x)
        residual = float(np.linalg.norm(A @ x - value * x) / value)

        if ctx.rank == 0:
            print(f"largest eigenvalue {value:.6f}, relative residual {residual:.1e}")
            assert residual < 1e-10
    return residual


if __name__ == "__main__":
    main()
