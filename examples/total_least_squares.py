"""Total least squares: a line in five dimensions through points all of whose coordinates are measured with errors.

mpiexec -n 4 python -m mpi4py examples/total_least_squares.py

Least squares explains the last coordinate by exact others; here they have errors as large, which makes its slopes too
small. The smallest singular value of [T, y] belongs to the direction v in which the points are scattered least: the
hyperplane [x, -1] . (t, y) = 0 orthogonal to it has the least sum of squared distances to all points.

Source: Golub, Van Loan, An analysis of the total least squares problem, 1980.
"""

import numpy as np

import pblas
from pblas import linalg

POINTS, SLOPES, ERROR = 20_000, np.array([3.0, -2.0, 1.0, 0.5]), 0.3


def main() -> float:
    with pblas.Context() as ctx:
        exact = ctx.random((POINTS, len(SLOPES)), seed=1, distribution="normal")
        columns = [exact, exact @ SLOPES[:, None]]
        T, y = (x + ERROR * ctx.random(x.shape, seed=k, distribution="normal") for k, x in enumerate(columns, 2))

        _, S, Vh = linalg.svd(pblas.hstack([T, y]))
        v = Vh[-1].to_global(None)[0]
        total = -v[:-1] / v[-1]
        least = linalg.lstsq(T, y).x.to_global(None)[:, 0]

        errors = {"total least squares": total, "least squares": least}
        if ctx.rank == 0:
            for name, x in errors.items():
                print(f"{name}: slopes {np.array2string(x, precision=2)}, {np.abs(x - SLOPES).max():.3f} off")
            print(f"the points are {S[-1] / POINTS**0.5:.2f} off the hyperplane; their coordinates are {ERROR} off")
    return float(np.abs(total - SLOPES).max())


if __name__ == "__main__":
    main()
