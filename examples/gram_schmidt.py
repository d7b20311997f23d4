"""Block Gram-Schmidt in ten lines: an orthonormal basis that grows as blocks of columns arrive.

mpiexec -n 4 python -m mpi4py examples/gram_schmidt.py

Each block loses its part in the space of the basis, twice, so that rounding does not matter, and then becomes
orthonormal by itself.
"""

import pblas
from pblas import DistMatrix, linalg

ROWS, WIDTH, BLOCKS = 2000, 8, 5


def extended(Q: DistMatrix | None, B: DistMatrix) -> DistMatrix:
    """The orthonormal basis Q with more columns, for the space that B adds."""
    if Q is None:
        return linalg.orth(B)
    for _ in range(2):
        B = linalg.orth(B - Q @ (Q.T @ B))
    return pblas.hstack([Q, B])


def main() -> float:
    with pblas.Context() as ctx:
        Q = None
        for seed in range(BLOCKS):
            Q = extended(Q, ctx.random((ROWS, WIDTH), seed=seed))
        assert Q is not None
        error = float((Q.T @ Q - ctx.eye(WIDTH * BLOCKS)).norm())
        if ctx.rank == 0:
            print(f"basis of {Q.shape[1]} columns, orthonormal to {error:.1e}")
            assert error < 1e-13
    return error


if __name__ == "__main__":
    main()
