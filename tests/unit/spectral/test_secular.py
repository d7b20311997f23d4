"""Laws of the eigenproblem of diag(d) + rho z z^T: values as of NumPy, orthogonal vectors also of close roots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pblas.spectral.secular import Roots, corrected, deflated, vectors


def problem(kind: str, n: int, dtype: str) -> tuple[Any, Any, float]:
    """d of both halves, each ascending, z of length sqrt(2), and rho."""
    rng = np.random.default_rng(n)
    d = {
        "random": rng.standard_normal(n),
        "equal": np.ones(n),
        "clusters": np.repeat(rng.standard_normal(n), 3)[:n] + 1e-15 * rng.standard_normal(n),
        "graded": 2.0 ** -np.arange(n),
    }[kind]
    d = np.concatenate((np.sort(d[: n // 2]), np.sort(d[n // 2 :]))).astype(dtype)
    z = rng.standard_normal(n)
    z[rng.random(n) < 0.2] *= 1e-20
    for rows in (slice(n // 2), slice(n // 2, n)):
        z[rows] /= np.linalg.norm(z[rows]) or 1
    return d, z.astype(dtype), 0.7


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [2, 3, 4, 9, 40])
@pytest.mark.parametrize("kind", ["random", "equal", "clusters", "graded"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_eigenproblem(kind: str, n: int, dtype: str, sign: int) -> None:
    d, z, rho = problem(kind, n, dtype)
    left = deflated(d, z, sign * rho, n // 2)
    k, eps = len(left.poles), np.finfo(d.dtype).eps
    assert sorted([*left.kept, *left.known]) == list(range(n))
    assert (np.diff(left.poles) > 0).all()
    # the vectors of the rotated problem, then the rotations of its rows
    halves = [Roots(left, range(k // 2)), Roots(left, range(k // 2, k))]
    product = halves[0].product(left) * halves[1].product(left)
    numbers = np.arange(k)
    u = vectors(corrected(left, product) if k > 2 else left.weights, halves[1].distances(left, range(k)), numbers[::-1])
    v, values = np.zeros((n, n), dtype), np.concatenate((halves[0].values, halves[1].values, left.values))
    v[np.ix_(left.kept[::-1], numbers)] = u
    v[left.known, np.arange(k, n)] = 1
    basis = np.eye(n, dtype=dtype)
    for i, j, c, s in left.rotations:
        basis[:, i], basis[:, j] = c * basis[:, i] + s * basis[:, j], c * basis[:, j] - s * basis[:, i]
    v = (basis @ v).astype("float64")
    signed = np.where(np.arange(n) < n // 2, z, sign * z).astype("float64")
    matrix = np.diag(d.astype("float64")) + rho * np.outer(signed, signed)
    assert all(half.info == 0 for half in halves)
    assert np.abs(v.T @ v - np.eye(n)).max() <= 8 * n * eps
    assert np.abs(matrix @ v - v * values).max() <= 30 * n * eps * np.abs(matrix).max()
    assert np.abs(np.sort(values) - np.linalg.eigvalsh(matrix)).max() <= 30 * n * eps * np.abs(matrix).max()


def test_nothing_is_left_of_a_torn_matrix() -> None:
    left = deflated(np.array([1.0, 2.0, 0.0]), np.array([1.0, 0.0, 1.0]), 0.0, 2)
    assert (len(left.poles), left.values.tolist(), left.known.tolist()) == (0, [0.0, 1.0, 2.0], [2, 0, 1])
