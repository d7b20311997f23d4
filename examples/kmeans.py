"""Lloyd's algorithm for k-means. The points are split over the ranks, and every rank has all centres.

mpiexec -n 4 python -m mpi4py examples/kmeans.py

The distance of point i to centre j is |x_i|^2 - 2 x_i c_j + |c_j|^2: one product. The sums of the points of each
cluster are another product, with a matrix that is 1 where a point belongs to a cluster.
"""

import numpy as np

import pblas

POINTS, FEATURES, K, STEPS = 1200, 8, 5, 30


def main() -> float:
    truth = 10.0 * np.random.default_rng(0).standard_normal((K, FEATURES))  # every rank draws the same
    with pblas.Context() as ctx:
        noise = ctx.random((POINTS, FEATURES), distribution="normal")
        X = noise + ctx.from_function(lambda i, j: truth[i % K, j], (POINTS, FEATURES))
        centres = X[:K].to_global(None)  # the first centres are the first points
        for _ in range(STEPS):
            D = X @ (-2 * centres.T) + (centres**2).sum(axis=1)  # squared distances, up to |x_i|^2
            nearest = D.argmin(axis=1)
            members = np.eye(K)[nearest]
            new = (members.T @ X).to_global(None) / members.sum(axis=0)[:, None]
            centres, before = new, centres
            if np.allclose(centres, before):
                break
        away = float(np.abs(centres - truth).max())

        if ctx.rank == 0:
            print(f"{POINTS} points in {K} clusters; the centres are {away:.2f} away from the true ones at most")
            assert np.array_equal(nearest, np.arange(POINTS) % K)
    return away


if __name__ == "__main__":
    main()
