"""Laplace's equation inside a flower, with values on its boundary: an integral equation, whose matrix is dense.

mpiexec -n 4 python -m mpi4py examples/boundary_value.py            # writes boundary_value.png, with matplotlib

The boundary z(t) has N points. u(x) = 1 / (2 pi) Int Im(z'(s) / (z(s) - x)) density(s) ds is harmonic inside for any
density. Its limit at the boundary gives N equations for the density. Here u = Re exp(z) is known, and the error of a
few hundred points is that of rounding (Nystrom's method with the trapezoidal rule, which converges exponentially).
"""

import sys

import numpy as np

import pblas
from pblas import linalg

N = 600
t = 2 * np.pi * np.arange(N) / N
wave = np.exp(1j * t)
z, dz = (1 + 0.3 * np.cos(5 * t)) * wave, (1j + 0.3j * np.cos(5 * t) - 1.5 * np.sin(5 * t)) * wave
ddz = (-1 - 7.8 * np.cos(5 * t) - 3j * np.sin(5 * t)) * wave


def kernel(i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Element (i, j) of the matrix; every rank computes its own."""
    off_diagonal = dz[j] / np.where(i == j, 1, z[j] - z[i])
    return np.where(i == j, ddz[j] / dz[j] / 2, off_diagonal).imag / N + 0.5 * (i == j)


def main(picture: str | None = None) -> float:
    with pblas.Context() as ctx:
        density = linalg.solve(ctx.from_function(kernel, (N, N)), np.exp(z).real)
        x = (np.linspace(0.01, 0.85, 40)[:, None] * z[[*range(0, N, 4), 0]]).ravel()  # inside, toward the boundary
        inside = ctx.from_function(lambda i, j: (dz[j] / (z[j] - x[i])).imag / N, (x.size, N))
        u, rank = inside @ density, ctx.rank  # u is an array, equal on all ranks
    error = float(np.abs(u - np.exp(x).real).max())
    if rank == 0:
        print(f"{N} equations, largest error at {x.size} points {error:.1e}")
        assert error < 1e-10
        if picture is not None:
            from matplotlib import pyplot as plt

            figure, axes = plt.subplots(figsize=(5, 4))
            field = (grid.reshape(40, -1) for grid in (x.real, x.imag, u))
            figure.colorbar(axes.contourf(*field, levels=24), label="u")
            axes.plot(*np.append(z, z[0]).view(float).reshape(-1, 2).T, "k")
            axes.set_aspect("equal")
            figure.savefig(picture)
    return error


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else "boundary_value.png")
