"""The vibrations of a square plate with clamped edges: the lowest eigenvalues of Laplace^2, and a figure of Chladni.

mpiexec -n 4 python -m mpi4py examples/plate.py

The energy of a bent plate is the sum of the squares of its curvatures L u, so A = L^T L, a product. At an edge, where
the plate is clamped, its mirror image goes on. Sand gathers where a mode rests.
"""

import numpy as np

import pblas
from pblas import linalg

POINTS, MODES = 27, 6  # points along a side, without the edges; modes
LOWEST = 35.985  # the lowest frequency of the plate, by more exact methods


def main() -> float:
    side = np.arange(POINTS + 2)
    x, y = (z.ravel() for z in np.meshgrid(side, side))
    on_edge = (x % (POINTS + 1) == 0) | (y % (POINTS + 1) == 0)
    inside = np.flatnonzero(~on_edge)

    def curvature(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        j = inside[j]
        distance = abs(x[i] - x[j]) + abs(y[i] - y[j])
        return np.where(distance == 0, -4.0, np.where(distance == 1, np.where(on_edge[i], 2**0.5, 1.0), 0.0))

    with pblas.Context() as ctx:
        L = ctx.from_function(curvature, (len(x), len(inside))) * (POINTS + 1) ** 2
        w, V = linalg.eigh(L.T @ L, subset_by_index=[0, MODES - 1])
        error = float(abs(w[0] ** 0.5 / LOWEST - 1))
        mode = V[:, -1:].to_global()
        if mode is not None:  # on rank 0
            drawn = np.array(["::", *["  "] * 12])[(12 * abs(mode[:, 0]) / abs(mode).max()).astype(int)]
            print(*("".join(line) for line in drawn.reshape(POINTS, POINTS)), sep="\n")
            print("frequencies", *(f"{value**0.5:.2f}" for value in w), f"error of the lowest {error:.1e}")
            assert error < 0.01
    return error


if __name__ == "__main__":
    main()
