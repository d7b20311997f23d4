"""Draws the pictures of the gallery, from the data of the examples.

mpiexec -n 4 python -m mpi4py docs/gallery/draw.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import pblas

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


def main() -> None:
    with pblas.Context() as ctx:
        for example in (pca, kmeans):
            points, colours, title = example(ctx)
            if ctx.rank == 0:
                figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
                axes.scatter(*points.T, c=colours, cmap="tab10", s=8)
                axes.set(title=title, xlabel="first coordinate", ylabel="second coordinate")
                figure.savefig(FOLDER / f"{example.__name__}.png", dpi=80)


if __name__ == "__main__":
    main()
