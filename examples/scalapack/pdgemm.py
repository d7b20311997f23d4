"""C = A B with ScaLAPACK's calls: m x k times k x n, all three block-cyclic over a grid of processes.

mpiexec -n 4 python -m mpi4py pdgemm.py
"""

from math import sqrt

import numpy as np

from pblas import scalapack
from pblas.scalapack import descinit, gridexit, gridinfo, gridinit, indxl2g, numroc, pdelget, pdgemm, pinfo

m, n, k, mb, nb = 500, 400, 300, 64, 32


def main() -> None:
    # 1. Arrange the processes as a grid.
    _, nprocs = pinfo()
    nprow = int(sqrt(nprocs))
    npcol = nprocs // nprow
    ictxt = scalapack.get(-1, 0)
    ictxt = gridinit(ictxt, "R", nprow, npcol)
    nprow, npcol, myrow, mycol = gridinfo(ictxt)
    if myrow >= 0:
        multiply(ictxt, nprow, npcol, myrow, mycol)
    scalapack.exit(0)


def multiply(ictxt: int, nprow: int, npcol: int, myrow: int, mycol: int) -> None:
    # 2. Compute the local sizes of each matrix.
    ma = numroc(m, mb, myrow, 0, nprow)
    na = numroc(k, nb, mycol, 0, npcol)
    mb_loc = numroc(k, mb, myrow, 0, nprow)
    nb_loc = numroc(n, nb, mycol, 0, npcol)
    mc = numroc(m, mb, myrow, 0, nprow)
    nc = numroc(n, nb, mycol, 0, npcol)

    # 3. Describe the matrices.
    desca = descinit(m, k, mb, nb, 0, 0, ictxt, max(1, ma))
    descb = descinit(k, n, mb, nb, 0, 0, ictxt, max(1, mb_loc))
    descc = descinit(m, n, mb, nb, 0, 0, ictxt, max(1, mc))

    # 4. Fill the local arrays: A(i, j) = mod(i + 2 j, 7) - 3 and B(i, j) = mod(3 i + j, 5) - 2.
    a, b, c = np.empty((ma, na)), np.empty((mb_loc, nb_loc)), np.empty((mc, nc))
    for j in range(1, na + 1):
        for i in range(1, ma + 1):
            a[i - 1, j - 1] = (indxl2g(i, mb, myrow, 0, nprow) + 2 * indxl2g(j, nb, mycol, 0, npcol)) % 7 - 3
    for j in range(1, nb_loc + 1):
        for i in range(1, mb_loc + 1):
            b[i - 1, j - 1] = (3 * indxl2g(i, mb, myrow, 0, nprow) + indxl2g(j, nb, mycol, 0, npcol)) % 5 - 2

    # 5. Multiply.
    pdgemm("N", "N", m, n, k, 1.0, a, 1, 1, desca, b, 1, 1, descb, 0.0, c, 1, 1, descc)

    # 6. Print some elements; pdelget returns them on every process of the grid.
    for i in range(1, m + 1, 166):
        element = pdelget("A", " ", c, i, i // 2 + 1, descc)
        if myrow == 0 and mycol == 0:
            print(f"C({i:4d},{i // 2 + 1:4d}) ={element:10.1f}")

    # 7. End the grid.
    gridexit(ictxt)


if __name__ == "__main__":
    main()
