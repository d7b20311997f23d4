"""A V = V diag(w) with pblas.linalg: the program of pdsyevd.f90, which prints the same.

mpiexec -n 4 python -m mpi4py pdsyevd.py
"""

import pblas
from pblas import linalg

n = 200


def main() -> None:
    with pblas.Context() as ctx:
        # 1. and 2. Indices count from 0; pblas chooses the layout, or takes yours: ctx.from_function(f, descriptor).
        A = ctx.from_function(lambda i, j: 2.0 * (i == j) - 1.0 * (abs(i - j) == 1), (n, n))

        # 3. w is equal on all ranks, V is distributed as A, and A stays as it is. Workspaces are not needed.
        w, V = linalg.eigh(A)

        # 4. The signs of vectors are fixed: the first of the largest elements is positive.
        if ctx.rank == 0:
            print(*(f"w({i + 1}) ={w[i]:11.8f}" for i in range(4)), sep="\n")
        for i in range(0, n, 66):
            element = V[i, 0]
            if ctx.rank == 0:
                print(f"abs(z({i + 1:3d}, 1)) ={abs(element):11.8f}")


if __name__ == "__main__":
    main()
