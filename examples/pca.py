"""Principal components of scikit-learn's handwritten digits. The samples X (1797 x 64) are split by rows.

mpiexec -n 4 python -m mpi4py examples/pca.py [variance.png]        # draws with matplotlib

Two products need all samples: X^T X, which is small, and X V, where V has one column for each component.
"""

import sys

import numpy as np

import pblas
from pblas import linalg

COMPONENTS = 8


def main(picture: str | None = None) -> float:
    from sklearn.datasets import load_digits

    with pblas.Context() as ctx:
        X = ctx.from_global(load_digits().data)
        X -= X.mean(axis=0)
        variances, V = linalg.eigh(X.T @ X / (len(X) - 1))  # of the covariance, ascending
        largest = variances[-COMPONENTS:]
        scores = X @ V[:, -COMPONENTS:]  # 1797 x 8, split like X
        parts = 100 * variances[::-1] / variances.sum()

        # Scores are uncorrelated, and their variances are the eigenvalues.
        correlation = (scores.T @ scores).to_global(root=None) / (len(X) - 1)
        error = float(np.abs(correlation - np.diag(largest)).max() / largest[-1])
        rank = ctx.rank

    if rank == 0:
        first = parts[:COMPONENTS]
        print("explained variance, %:", *(f"{part:.2f}" for part in first), f" sum {first.sum():.1f}")
        print(f"covariance of the scores is diagonal up to {error:.1e}")
        assert error < 1e-12
        if picture is not None:
            from matplotlib import pyplot as plt

            figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
            axes.bar(range(1, len(parts) + 1), parts, label="of each component")
            axes.plot(range(1, len(parts) + 1), parts.cumsum(), "C1", label="of all up to it")
            axes.set(xlabel="component", ylabel="explained variance, %")
            axes.legend()
            figure.savefig(picture, dpi=80)
    return error


if __name__ == "__main__":
    main(*sys.argv[1:2])
