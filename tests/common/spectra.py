"""Hermitian matrices for tests of eigenvalues: the types of ScaLAPACK's xdsep, and the limits of the range.

Source: ScaLAPACK, TESTING/EIG, PDSEPTST.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.common.factors import general
from tests.common.gauge import Array

TYPES = range(1, 23)
KINDS = (*TYPES, "two values", "rank one", "near overflow", "near underflow", "subnormal")
_SPECTRA = (
    *("zero", "identity", "even", "geometric", "clustered", "even", "even"),  # 1 to 7 are diagonal
    *("even", "geometric", "clustered", "even", "even", "random", "random", "random"),
    *("even", "geometric", "clustered", "even", "even"),  # 16 to 20 are positive definite
    *("tridiagonal", "clusters of 1, 2, 4"),
)
_SIZES = "1111123111231231112311"  # 1, near the square root of overflow, and near that of underflow


def spectra(n: int, eps: float) -> dict[str, Array]:
    """Spectra of n eigenvalues, by name."""
    k = np.arange(n)
    signs = np.where(np.random.default_rng(1).random(n) < 0.5, -1.0, 1.0)
    return {
        "zero": np.zeros(n),
        "identity": np.ones(n),
        "even": (1 - k / n) * signs,
        "geometric": eps ** (k / max(n - 1, 1)) * signs,
        "clustered": np.where(k == 0, 1.0, eps) * signs,
        "clusters of 1, 2, 4": np.floor(np.log2(k + 1)) + 1 + eps * k,
        "rank one": np.where(k == 0, 1.0, 0.0),
        "two values": np.where(k % 2, 1.0, -1.0),
    }


class Sample(NamedTuple):
    """A matrix, the size of its elements, and the eigenvalues of the matrix over the size; None if they are unknown."""

    a: Array
    size: float
    values: Array | None


def sample(kind: int | str, n: int, dtype: np.dtype[Any]) -> Sample:
    """The n x n matrix of one of KINDS: a number is a type of xdsep."""
    limits, is_type = np.finfo(dtype), isinstance(kind, int)
    eps, tiny = float(limits.eps), float(limits.tiny)
    name, letter = (_SPECTRA[kind - 1], _SIZES[kind - 1]) if isinstance(kind, int) else (kind, kind)
    size = {
        "2": eps / (max(n, 1) * tiny**0.5),
        "3": tiny**0.5 * n / eps,
        "near overflow": float(limits.max) / 64,
        "near underflow": 64 * tiny,
        "subnormal": tiny / 16,
    }.get(letter, 1.0)
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    values: Array | None = None
    if name == "random":
        a = general(n, n, wide, 5)
    elif name == "tridiagonal":  # a direct sum of diagonally dominant blocks, graded ones
        block = np.arange(n) % 7
        d = eps ** (block / 6)
        a = np.diag(d) + np.diag(np.where(block[1:] > 0, np.sqrt(d[1:] * d[:-1]), 0)[: max(n - 1, 0)], -1)
    else:
        values = spectra(n, eps).get(name, spectra(n, eps)["even"])
        values = np.abs(values) if is_type and kind in range(16, 21) else values
        q = np.eye(n) if is_type and kind in range(1, 8) else np.linalg.qr(general(n, n, wide, 3))[0]
        a = (q * values) @ q.conj().T
    a = (a + a.conj().T) / 2
    return Sample((a * size).astype(dtype), size, values)
