"""A picture compressed by its leading singular values: scikit-learn's photograph of a flower, in grey.

mpiexec -n 4 python -m mpi4py examples/image_compression.py

The best approximation of rank k takes k (m + n + 1) numbers in place of m n. Its error is the norm of the singular
values that are left out.
"""

import numpy as np

import pblas
from pblas import linalg

RANKS = 5, 20, 80


def main() -> float:
    from sklearn.datasets import load_sample_image

    with pblas.Context() as ctx:
        picture = load_sample_image("flower.jpg").mean(axis=2)
        A = ctx.from_global(picture, root=None)
        (m, n), size = A.shape, A.norm()
        U, S, Vh = linalg.svd(A)

        errors = {}
        for k in RANKS:
            approximation = (U[:, :k] * S[:k]) @ Vh[:k]
            errors[k] = float((A - approximation).norm()) / size
            assert abs(errors[k] - np.linalg.norm(S[k:]) / size) < 1e-10
        leading = linalg.rsvd(A, RANKS[-1])

        if ctx.rank == 0:
            for k, error in errors.items():
                print(f"rank {k}: {k * (m + n + 1) / (m * n):.1%} of the numbers, {error:.2%} off")
            print(f"by random vectors, rank {RANKS[-1]}: {leading.residual:.2%} off")
            assert leading.residual < 1.1 * errors[RANKS[-1]]
    return max(errors.values())


if __name__ == "__main__":
    main()
