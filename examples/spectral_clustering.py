"""Spectral clustering of scikit-learn's handwritten digits: without their labels, clusters that are nearly the digits.

mpiexec -n 4 python -m mpi4py examples/spectral_clustering.py [clusters.png]        # draws with matplotlib

Similar digits are neighbours in a graph. The ten largest eigenvectors of its normalized matrix are almost constant on
parts that few edges leave, so k-means finds such parts in the rows of those vectors (Ng, Jordan, Weiss, 2002).
"""

import sys

import numpy as np

import pblas
from pblas import linalg

K, WIDTH = 10, 120.0  # clusters; squared distance at which the similarity is 1/e


def main(picture: str | None = None) -> float:
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits

    digits = load_digits()
    n, squares = len(digits.data), (digits.data**2).sum(axis=1)
    with pblas.Context() as ctx:
        X = ctx.from_global(digits.data)
        A = np.exp((2 * X @ X.T - squares - squares[:, None]) / WIDTH)  # 1797 x 1797 similarities
        root = np.sqrt(A.sum(axis=1))
        w, V = linalg.eigh(A / root / root[:, None], subset_by_index=[n - K, n - 1])
        U, rank = V.to_global(root=None), ctx.rank
    labels = KMeans(K, n_init=10, random_state=0).fit_predict(U / np.linalg.norm(U, axis=1, keepdims=True))
    counts = np.array([np.bincount(digits.target[labels == k], minlength=10) for k in range(K)])
    counts = counts[counts.argmax(axis=1).argsort()]
    wrong = float(1 - counts.max(axis=1).sum() / n)
    if rank == 0:
        print(
            f"eigenvalues {w[0]:.4f} to {w[-1]:.4f}; {n} digits in {K} clusters, {100 * wrong:.0f} % of them elsewhere"
        )
        if picture is not None:
            from matplotlib import pyplot as plt

            figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
            figure.colorbar(axes.imshow(counts), label="samples")
            axes.set(xlabel="digit", ylabel="cluster", xticks=range(10), yticks=range(K))
            figure.savefig(picture, dpi=80)
    return wrong


if __name__ == "__main__":
    main(*sys.argv[1:2])
