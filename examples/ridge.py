"""Ridge regression from a .npy file of which each rank reads its own rows: (X^T X + c I) w = X^T y, by Cholesky.

mpiexec -n 4 python -m mpi4py examples/ridge.py samples.npy
mpiexec -n 4 python -m mpi4py examples/ridge.py large.npy --samples 200000 --features 2000    # 3.2 GB on the disk

The file has a sample in each row: its features, and the value y in the last column. It is made, also by all ranks, if
it does not exist. No rank ever has more than its share of the samples; X^T X and X^T y are products whose K is split.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import pblas
from pblas import linalg


def write_samples(ctx: pblas.Context, path: str, samples: int, features: int) -> None:
    """The weights of the features are 1, 2, 3, ...; y has no noise."""
    X = ctx.random((samples, features), seed=1, distribution="normal")
    y = X @ np.arange(1.0, features + 1)
    pblas.hstack([X, ctx.from_global(y[:, None], root=None)]).save(path)


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="Ridge regression.")
    parser.add_argument("file", help="samples in rows, with y in the last column; made if it does not exist")
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--features", type=int, default=300)
    parser.add_argument("--c", type=float, default=1e-3, help="the penalty of large weights")
    options = parser.parse_args(argv)
    with pblas.Context() as ctx:
        if ctx.allreduce(np.array([float(not Path(options.file).exists())])).any():  # on all ranks, or on none
            write_samples(ctx, options.file, options.samples, options.features)
        data = ctx.load(options.file)  # by rows
        X, y = data[:, :-1], data[:, -1]
        w = linalg.solve(X.T @ X + options.c * ctx.eye(X.shape[1]), X.T @ y, assume_a="pos", overwrite_a=True)
        error = float((X @ w - y).norm() / y.norm())
        if ctx.rank == 0:
            print(f"{X.shape[1]} weights of {X.shape[0]} samples, relative residual {error:.1e}")
    return error


if __name__ == "__main__":
    main()
