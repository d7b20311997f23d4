"""Draws the pictures of the gallery, from the data of the examples.

mpiexec -n 4 python -m mpi4py docs/gallery/draw.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, load_sample_image

import pblas
from pblas import linalg

FOLDER = Path(__file__).parent
K = 5


def pca(ctx):
    """The first two scores of every digit, as examples/pca.py computes them."""
    digits = load_digits()
    X = ctx.from_global(digits.data)
    X -= X.mean(axis=0)
    _, vectors = np.linalg.eigh((X.T @ X).to_global(root=None))
    scores = (X @ vectors[:, ::-1][:, :2]).to_global()
    return scores, digits.target, "Handwritten digits in their first two principal components"


def kmeans(ctx):
    """Points in two dimensions and the cluster of each, by the steps of examples/kmeans.py."""
    truth = 10.0 * np.random.default_rng(3).standard_normal((K, 2))
    X = ctx.random((1200, 2), distribution="normal") + ctx.from_function(lambda i, j: truth[i % K, j], (1200, 2))
    centres = np.array([X[i].to_global(None)[0] for i in range(K)])
    for _ in range(30):
        nearest = (X @ (-2 * centres.T) + (centres**2).sum(axis=1)).argmin(axis=1)
        members = np.eye(K)[nearest]
        centres = (members.T @ X).to_global(None) / members.sum(axis=0)[:, None]
    return X.to_global(), nearest, "Points in five clusters"


def ridge(ctx, axes):
    """The error of the weights over the penalty, of samples with noise."""
    m, n, penalties = 400, 100, np.logspace(-2, 4, 25)
    truth = np.arange(1.0, n + 1)[:, None]
    X, noise = ctx.random((m, n), distribution="normal"), ctx.random((m, 1), distribution="normal")
    gram, moments = X.T @ X, X.T @ (X @ ctx.from_global(truth, root=None) + 2000 * noise)
    for c in penalties:
        w = linalg.solve(gram + c * ctx.eye(n), moments, assume_a="pos").to_global(None)
        axes.loglog(c, np.linalg.norm(w - truth) / np.linalg.norm(truth), "o", color="tab:blue")
    axes.set(title="Ridge regression", xlabel="penalty c", ylabel="relative error of the weights")


def conjugate_gradients(ctx, axes):
    """The residual of each right-hand side over the iterations."""
    n = 500
    G = ctx.random((n, n), distribution="normal")
    for shift in (1.0, 0.1, 0.01):
        _, residuals = linalg.cg(G @ G.T / n + shift * ctx.eye(n), ctx.random((n, 1), seed=1), tol=1e-12)
        axes.semilogy(residuals / residuals[0], label=f"G G$^T$ / n + {shift:g} I")
    axes.set(title="Conjugate gradients", xlabel="iteration", ylabel="residual")
    axes.legend()


def newton_schulz(ctx, axes):
    """The singular values of the iterates, which become 1."""
    X, identity, values = ctx.random((40, 20), distribution="normal"), ctx.eye(20), []
    X /= X.norm()
    for _ in range(12):
        values.append(linalg.svdvals(X))
        X = X @ (1.5 * identity - 0.5 * (X.T @ X))
    axes.plot(values, color="tab:blue", linewidth=0.8)
    axes.set(title="The iteration of Newton and Schulz", xlabel="step", ylabel="singular values")


def power_iteration(ctx, axes):
    """The error of the largest eigenvalue after each step."""
    n = 600
    R, x, values = ctx.random((n, n), seed=0, distribution="normal"), np.ones(n), []
    A = R @ R.T / n + 8 * ctx.ones((n, n)) / n
    for _ in range(40):
        y = A @ x
        values.append(x @ y / (x @ x))
        x = y / np.linalg.norm(y)
    axes.semilogy(abs(np.array(values) - linalg.eigvalsh(A)[-1]), ".-")
    axes.set(title="Power iteration", xlabel="step", ylabel="error of the eigenvalue")


def image_compression(ctx, axes):
    """The photograph, and its best approximation of rank 20, side by side."""
    A = ctx.from_global(load_sample_image("flower.jpg").mean(axis=2), root=None)
    U, S, Vh = linalg.svd(A)
    pictures = [A.to_global(), *(((U[:, :k] * S[:k]) @ Vh[:k]).to_global() for k in (20, 5))]
    if ctx.rank == 0:
        axes.imshow(np.hstack(pictures), cmap="gray", vmin=0, vmax=255)
    axes.set(title="A photograph, and its approximations of rank 20 and 5", xticks=[], yticks=[])


def plate(ctx, axes):
    """A vibration of a clamped square plate, and the lines on which it rests, as in examples/plate.py."""
    points = 40
    x, y = (z.ravel() for z in np.meshgrid(np.arange(points + 2), np.arange(points + 2)))
    on_edge = (x % (points + 1) == 0) | (y % (points + 1) == 0)
    inside = np.flatnonzero(~on_edge)

    def curvature(i, j):
        distance = abs(x[i] - x[inside[j]]) + abs(y[i] - y[inside[j]])
        return np.where(distance == 0, -4.0, np.where(distance == 1, np.where(on_edge[i], 2**0.5, 1.0), 0.0))

    L = ctx.from_function(curvature, (len(x), len(inside)))
    mode = linalg.eigh(L.T @ L, subset_by_index=[5, 5]).eigenvectors.to_global(None).reshape(points, points)
    axes.imshow(abs(mode), cmap="viridis")
    axes.contour(mode, [0], colors="white")
    axes.set(title="A vibration of a clamped plate", xticks=[], yticks=[])


def scattered(function):
    """A picture of points in two dimensions."""

    def draw(ctx, axes):
        points, colours, title = function(ctx)
        if ctx.rank == 0:
            axes.scatter(*points.T, c=colours, cmap="tab10", s=8)
        axes.set(title=title, xlabel="first coordinate", ylabel="second coordinate")

    return draw


PICTURES = {"pca": scattered(pca), "kmeans": scattered(kmeans)} | {
    draw.__name__: draw
    for draw in (ridge, conjugate_gradients, newton_schulz, power_iteration, image_compression, plate)
}


def main() -> None:
    with pblas.Context() as ctx:
        for name, draw in PICTURES.items():
            figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
            draw(ctx, axes)
            if ctx.rank == 0:
                figure.savefig(FOLDER / f"{name}.png", dpi=80)


if __name__ == "__main__":
    main()
