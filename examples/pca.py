"""Principal components of scikit-learn's handwritten digits. The samples X (1797 x 64) are split by rows.

mpiexec -n 4 python -m mpi4py examples/pca.py

Two products need all samples: X^T X, which is small, and X V, where V has one column for each component.
"""

import numpy as np

import pblas

COMPONENTS = 8


def main() -> float:
    from sklearn.datasets import load_digits

    with pblas.Context() as ctx:
        X = ctx.from_global(load_digits().data)
        X -= X.mean(axis=0)
        C = (X.T @ X).to_global(root=None) / (len(X) - 1)  # every rank has C, with the same bits
        variances, vectors = np.linalg.eigh(C)
        variances, V = variances[::-1], vectors[:, ::-1][:, :COMPONENTS]
        scores = X @ V  # 1797 x 8, split like X
        parts = 100 * variances[:COMPONENTS] / variances.sum()

        # Scores are uncorrelated, and their variances are the eigenvalues.
        correlation = (scores.T @ scores).to_global(root=None) / (len(X) - 1)
        error = float(np.abs(correlation - np.diag(variances[:COMPONENTS])).max() / variances[0])

        if ctx.rank == 0:
            print("explained variance, %:", *(f"{part:.2f}" for part in parts), f" sum {parts.sum():.1f}")
            print(f"covariance of the scores is diagonal up to {error:.1e}")
            assert error < 1e-12
    return error


if __name__ == "__main__":
    main()
