"""Gaussian process regression on scikit-learn's diabetes data: 400 patients to learn from, 42 to predict.

mpiexec -n 4 python -m mpi4py examples/gaussian_process.py

K = s^2 exp(-|x - x'|^2 / (2 l^2)) of all pairs of patients is dense. One Cholesky factorization gives the prediction,
its variance, and the log-likelihood, by which s and l are chosen. The prediction is that of scikit-learn.
"""

import numpy as np

import pblas
from pblas import linalg

TRAINED, SCALE, NOISE = 400, 0.8, 0.7


def covariance(X: pblas.DistMatrix, Y: pblas.DistMatrix, length: float) -> pblas.DistMatrix:
    """X and Y have a patient in each row; the distances of all pairs are a product and two sums."""
    x, y = (X * X).sum(axis=1, keepdims=True), (Y * Y).sum(axis=1)
    return pblas.elementwise("s2 * exp((2 * xy - x - y) * c)", xy=X @ Y.T, x=x, y=y, s2=SCALE**2, c=0.5 / length**2)


def main() -> float:
    from sklearn.datasets import load_diabetes
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    data, target = load_diabetes(return_X_y=True)
    data, target = data / data.std(axis=0), (target - target.mean()) / target.std()
    with pblas.Context() as ctx:
        X, Z = ctx.from_global(data[:TRAINED], root=None), ctx.from_global(data[TRAINED:], root=None)
        y, best = target[:TRAINED], -np.inf
        for length in (2.0, 4.0, 8.0):
            F = linalg.cho_factor(covariance(X, X, length) + NOISE**2 * ctx.eye(TRAINED), overwrite_a=True)
            weights = F.solve(y)
            likelihood = float(-0.5 * (y @ weights + F.logdet() + TRAINED * np.log(2 * np.pi)))
            if likelihood > best:
                best, chosen = likelihood, length
                K = covariance(Z, X, length)
                mean, variance = K @ weights, SCALE**2 - (K * F.solve(K.T).T).sum(axis=1)
        ours, rank = np.abs(mean - target[TRAINED:]).mean(), ctx.rank
    peer = GaussianProcessRegressor(SCALE**2 * RBF(chosen), alpha=NOISE**2, optimizer=None).fit(data[:TRAINED], y)
    expected, deviation = peer.predict(data[TRAINED:], return_std=True)
    error = float(np.abs(np.concatenate([mean - expected, variance - deviation**2])).max())
    if rank == 0:
        print(f"length {chosen:g}, log-likelihood {best:.2f}, mean error {ours:.2f}, off scikit-learn by {error:.0e}")
        assert error < 1e-10
    return error


if __name__ == "__main__":
    main()
