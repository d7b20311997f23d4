"""The vibrations of a membrane in the shape of an L, as in MATLAB's logo: the lowest eigenvalues of -Laplace.

mpiexec -n 4 python -m mpi4py examples/membrane.py

The five-point formula on a grid makes a symmetric matrix. In the third mode each of the three squares of the L vibrates
as a membrane of its own, so its eigenvalue is known.
"""

import numpy as np

import pblas
from pblas import linalg

CELLS, MODES = 16, 6  # cells along the side of a square; modes


def main() -> float:
    h = 1 / CELLS
    x, y = np.meshgrid(np.arange(1, 2 * CELLS), np.arange(1, 2 * CELLS))
    inside = (x < CELLS) | (y < CELLS)  # the square at the upper right is missing
    x, y = x[inside], y[inside]

    def entries(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        distance = abs(x[i] - x[j]) + abs(y[i] - y[j])
        return np.where(distance == 0, 4.0, np.where(distance == 1, -1.0, 0.0)) / h**2

    with pblas.Context() as ctx:
        A = ctx.from_function(entries, (len(x), len(x)))
        w, V = linalg.eigh(A, subset_by_index=[0, MODES - 1])
        third = 8 / h**2 * np.sin(np.pi * h / 2) ** 2  # of sin(pi x) sin(pi y)
        error = float(abs(w[2] - third) / third)
        mode = V[:, :1].to_global()
        if mode is not None:  # on rank 0
            drawn = np.full(inside.shape, " ")
            drawn[inside] = np.array([*" .:-=+*#%@"])[(9 * mode[:, 0] / mode.max()).astype(int)]
            print(*("".join(line) for line in drawn[::-2]), sep="\n")
            print("eigenvalues", *(f"{value:.4f}" for value in w), f"error of the third {error:.1e}")
            assert error < 1e-12
    return error


if __name__ == "__main__":
    main()
