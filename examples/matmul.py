"""Multiply two distributed matrices.

mpiexec -n 4 python -m mpi4py examples/matmul.py
"""

import numpy as np

import pblas


def main() -> None:
    with pblas.Context() as ctx:
        a = np.random.default_rng(0).random((1000, 800)) if ctx.rank == 0 else None
        A = ctx.from_global(
            a, pblas.MatrixDescriptor.row_wise(1000, 800, ctx.nprocs)
        )  # rank 0 sends each rank its rows
        B = ctx.random(pblas.MatrixDescriptor.row_wise(800, 600, ctx.nprocs))  # each rank generates its own rows
        D = pblas.pmatmul(A, B)  # rows of B travel while rows of A are multiplied
        b, d = B.to_global(), D.to_global()  # arrays on rank 0, None on the other ranks
        if a is not None and b is not None and d is not None:
            print(f"{ctx.nprocs} ranks, D is {D.shape[0]} x {D.shape[1]}; largest error {np.abs(d - a @ b).max():.1e}")


if __name__ == "__main__":
    main()
