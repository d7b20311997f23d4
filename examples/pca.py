"""Principal components of scikit-learn's handwritten digits.

mpiexec -n 4 python -m mpi4py examples/pca.py

The samples X (1797 x 64) are split by rows. Each step that needs all samples is a product:

    mean     1/s 1^T X             k is split: GEMM + all-reduce, D on every rank
    C        1/(s-1) X^T X         k is split: GEMM + all-reduce, or reduce-scatter with --scatter
    scores   X V                   V is on every rank: nothing moves

Every rank computes the eigenvectors V of the small matrix C. C has the same bits on all ranks, and so has V. Rank 0
checks the result against NumPy's singular value decomposition.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

import pblas
from pblas import MatrixDescriptor

Array = NDArray[np.float64]
SHAPE = SAMPLES, FEATURES = 1797, 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Principal components of scikit-learn's digits.")
    parser.add_argument("--components", type=int, default=8)
    parser.add_argument("--scatter", action="store_true", help="split C by columns (GEMM + RS), then collect it")
    options = parser.parse_args(argv)
    if not 1 <= options.components <= FEATURES:
        parser.error(f"--components must be 1 to {FEATURES}, got {options.components}")
    with pblas.Context() as ctx:
        if not find_spec("sklearn"):  # the same on every rank: one environment
            if ctx.rank == 0:
                print("The data come with scikit-learn: pip install scikit-learn", file=sys.stderr)
            return 1
        data = load() if ctx.rank == 0 else None
        X = ctx.from_global(data, MatrixDescriptor.row_wise(*SHAPE, ctx.nprocs))
        plans = [center(ctx, X)]
        C, plan = covariance(ctx, X, scatter=options.scatter)
        variances, vectors = np.linalg.eigh(C)
        variances, vectors = variances[::-1], np.asfortranarray(vectors[:, ::-1][:, : options.components])
        V = ctx.from_global(vectors, MatrixDescriptor.replicated(FEATURES, vectors.shape[1], ctx.nprocs), root=None)
        project = pblas.plan_matmul(X, V)
        scores = project.execute(X, V).to_global()
        if data is None or scores is None:
            return 0
        explained = variances[: options.components] / variances.sum()
        show(explained, [*plans, plan, ("scores = X V", project.plan)], ctx.nprocs)
        return check(data, variances, scores)


def load() -> Array:
    from sklearn.datasets import load_digits

    data: Array = load_digits().data
    return data


def center(ctx: pblas.Context, X: pblas.DistMatrix) -> tuple[str, pblas.Plan]:
    """**Collective.** Subtract the mean of all samples from each; in place."""
    # The columns of 1^T are distributed as the rows of X, so that both operands split k in the same way.
    ones = ctx.from_global(lambda i, j: np.ones_like(i + j), MatrixDescriptor.column_wise(1, SAMPLES, ctx.nprocs))
    out = MatrixDescriptor.replicated(1, FEATURES, ctx.nprocs)
    planned = pblas.plan_matmul(ones, X, alpha=1 / SAMPLES, out=out)
    X.local[...] -= planned.execute(ones, X).local
    return "mean = 1^T X / s", planned.plan


def covariance(ctx: pblas.Context, X: pblas.DistMatrix, *, scatter: bool) -> tuple[Array, tuple[str, pblas.Plan]]:
    """**Collective.** X^T X / (s - 1), the same on every rank."""
    make = MatrixDescriptor.column_wise if scatter else MatrixDescriptor.replicated
    out = make(FEATURES, FEATURES, ctx.nprocs)
    planned = pblas.plan_matmul(X, X, transa="T", alpha=1 / (SAMPLES - 1), out=out)
    C = planned.execute(X, X).to_global(root=None)
    assert C is not None, "root=None collects on every rank"
    return np.tril(C) + np.tril(C, -1).T, ("C = X^T X / (s - 1)", planned.plan)


def show(explained: Array, plans: Sequence[tuple[str, pblas.Plan]], nprocs: int) -> None:
    print(f"{SAMPLES} digits of {FEATURES} pixels on {nprocs} ranks")
    print("explained variance, %: ", *(f"{100 * part:.2f}" for part in explained), f" sum {100 * explained.sum():.1f}")
    for what, plan in plans:
        print(f"{what:20} {plan.name:18} {plan.max_received_nbytes:>9,} bytes received per rank; {plan.moves()}")


def check(data: Array, variances: Array, scores: Array) -> int:
    """Compare with NumPy's result; 0 if the difference is within the bounds of perturbation theory, else 1.

    The error of each entry of C is at most 16 eps |X|^T |X| / (s - 1). The error of an eigenvalue is at most the norm
    of this matrix (Weyl). The error of the space of the first eigenvectors is at most that norm divided by the gap
    between eigenvalues (Davis and Kahan).
    """
    serial = data - data.mean(axis=0)
    left, singular, _ = np.linalg.svd(serial, full_matrices=False)
    count = scores.shape[1]
    bound = 16 * np.finfo(float).eps * np.linalg.norm(np.abs(serial).T @ np.abs(serial)) / (SAMPLES - 1)
    off_variance = np.abs(singular**2 / (SAMPLES - 1) - variances).max()
    # Scores and left singular vectors span the same space; the part outside it is the sine of the angle.
    inside = left[:, :count]
    outside = np.linalg.norm(scores - inside @ (inside.T @ scores)) / np.linalg.norm(scores)
    gap = variances[count - 1] - variances[count] if count < FEATURES else np.inf
    good = off_variance <= bound and outside <= bound / gap + 16 * np.finfo(float).eps * np.sqrt(FEATURES)
    print(f"against NumPy's SVD: variances off by {off_variance:.1e} (may be {bound:.1e}), scores by {outside:.1e}")
    print("agrees" if good else "DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
