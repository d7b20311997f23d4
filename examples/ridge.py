"""Ridge regression: the weights w with (X^T X + c I) w = X^T y, by Cholesky.

mpiexec -n 4 python -m mpi4py examples/ridge.py
mpiexec -n 4 python -m mpi4py examples/ridge.py --samples 20000 --features 2000

The samples X are split by rows. X^T X and X^T y are products whose K is split; the factorization copies the matrix to
block columns. Rank 0 prints the error of the weights with which y was made.
"""

import argparse
from collections.abc import Sequence

import pblas
from pblas import linalg


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Ridge regression.")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--features", type=int, default=300)
    parser.add_argument("--c", type=float, default=1e-3, help="the penalty of large weights")
    options = parser.parse_args(argv)
    with pblas.Context() as ctx:
        X = ctx.random((options.samples, options.features), seed=1, distribution="normal")
        true = ctx.random((options.features, 1), seed=2)
        y = X @ true
        gram = X.T @ X + options.c * ctx.eye(options.features)
        w = linalg.solve(gram, X.T @ y, assume_a="pos")
        error = float((w - true).norm() / true.norm())
        if ctx.rank == 0:
            print(f"{options.features} weights of {options.samples} samples, relative error {error:.1e}")
    return 0


if __name__ == "__main__":
    main()
