"""The orthogonal matrix nearest to A, its polar factor, by the iteration of Newton and Schulz: products and no solves.

mpiexec -n 4 python -m mpi4py examples/newton_schulz.py

X (3 I - X^T X) / 2 moves every singular value of X in (0, sqrt 3) closer to 1.
Source: N. J. Higham, Functions of Matrices (2008), section 8.3.
"""

import pblas

M, N, STEPS = 400, 200, 25


def main() -> float:
    with pblas.Context() as ctx:
        A = ctx.random((M, N), distribution="normal")
        identity = ctx.eye(N)

        X = A / A.norm()  # the Frobenius norm: no singular value exceeds 1
        for _ in range(STEPS):
            X = X @ (1.5 * identity - 0.5 * (X.T @ X))
            distance = (X.T @ X - identity).norm()
            if distance < 1e-12:
                break
        H = X.T @ A  # A = X H, where H is symmetric and positive definite
        error = float(max(distance, (H - H.T).norm() / H.norm(), (A - X @ H).norm() / A.norm()))

        if ctx.rank == 0:
            print(f"polar factor of a {M} x {N} matrix: X^T X = I and A = X H up to {error:.1e}")
            assert error < 1e-10
    return error


if __name__ == "__main__":
    main()
