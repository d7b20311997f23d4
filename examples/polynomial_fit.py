"""The polynomial that fits data from a .npy file best, of which each rank reads its own rows.

mpiexec -n 4 python -m mpi4py examples/polynomial_fit.py data.npy
mpiexec -n 4 python -m mpi4py examples/polynomial_fit.py large.npy --samples 20000000 --degree 12

The file has t and y in the two columns of each row. It is made if it does not exist. The matrix of powers of t is tall
and in rows, so that each rank factors its own rows, and only small triangles travel.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import pblas
from pblas import linalg


def write_data(ctx: pblas.Context, path: str, samples: int) -> None:
    """t from -1 to 1, and y = tanh(3 t)."""
    t = ctx.from_function(lambda i, j: 2 * i / (samples - 1) - 1 + 0 * j, (samples, 1))
    pblas.hstack([t, pblas.elementwise("tanh(3 * t)", t=t)]).save(path)


def main(argv: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description="Polynomial fit.")
    parser.add_argument("file", help="t and y in rows; made if it does not exist")
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--degree", type=int, default=9)
    options = parser.parse_args(argv)
    with pblas.Context() as ctx:
        if ctx.allreduce(np.array([float(not Path(options.file).exists())])).any():  # on all ranks, or on none
            write_data(ctx, options.file, options.samples)
        data = ctx.load(options.file)  # by rows
        t, y = data[:, :1], data[:, 1:]
        powers = pblas.hstack([t**k for k in range(options.degree + 1)])
        x, residuals, rank, _ = linalg.lstsq(powers, y)
        error = float(np.sqrt(residuals[0] / len(y)))
        if ctx.rank == 0:
            print(f"degree {rank - 1}, {len(y)} points, root mean square error {error:.1e}")
        assert abs(powers @ x - y).max() < 10 * error
    return error


if __name__ == "__main__":
    main()
