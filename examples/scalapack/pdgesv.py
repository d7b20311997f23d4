"""A x = b with pblas.linalg: the program of pdgesv.f90, which prints the same.

mpiexec -n 4 python -m mpi4py pdgesv.py
"""

import pblas
from pblas import linalg

n = 500


def main() -> None:
    with pblas.Context() as ctx:
        # 1. and 2. Indices count from 0; pblas chooses the layout, or takes yours: ctx.from_function(f, descriptor).
        A = ctx.from_function(lambda i, j: (i + 2 * j + 3) % 7 - 3.0 + 20 * (i == j), (n, n))
        b = ctx.from_function(lambda i, j: (i + 1) % 5 + 0.0 * j, (n, 1))

        # 3. A singular matrix raises an error on every rank, with ScaLAPACK's INFO.
        x = linalg.solve(A, b)

        # 4. Look at some elements.
        for i in range(0, n, 166):
            element = x[i, 0]
            if ctx.rank == 0:
                print(f"x({i + 1:4d}) ={element:11.8f}")


if __name__ == "__main__":
    main()
