"""Some eigenvectors of a real tridiagonal matrix T, each rank a share of them, by relatively robust representations.

    T S[r] = S[r] D[r]                    (each rank, by LAPACK; all of S to all ranks)
    E[r] = S^T S[r] - I[r]
    S[r] := S[r] - S E[r] / 2             (a step of Newton; the error becomes about 3/4 E^T E)

LAPACK's vectors are orthogonal to about n eps, and those of two ranks are not at all if one cluster of eigenvalues
belongs to both: then E is large. LAPACK may take a neighbour of the wanted eigenvalues, whose numbers it counts
in a matrix that is close to T; so each rank finds the ends of its share by bisection too, and computes the residuals.

Source: Dhillon, Parlett, Voemel, The design and implementation of the MRRR algorithm, 2006; LAPACK, xSTEMR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.cpu import lapack
from pblas.backends.cpu.blas import gemm

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.spectral.eigh_plan import EighPlan

_ROUNDINGS = 2
"""Units of n eps norm(T) by which an eigenvalue or an element of a residual may be wrong at most."""


def robust_vectors(
    plan: EighPlan, backend: HostRanks, d: Array, e: Array, wanted: tuple[int, int], z: Array
) -> Array | None:
    """**Collective.** The wanted eigenvalues (start, stop) of T; Z := this rank's share of their vectors.

    None on all ranks if LAPACK did not find them, or others, or if one step does not make them orthogonal.
    """
    n, k = len(d), wanted[1] - wanted[0]
    shares = [*plan.shares(k, 0, plan.members), *[(k, k)] * (backend.size - plan.members)]
    start, stop = shares[backend.rank]
    # T S[r] = S[r] D[r]
    values, s = np.zeros(stop - start, d.dtype), np.zeros((n, stop - start), d.dtype, "F")
    numbers = range(wanted[0] + start, wanted[0] + stop)
    info = lapack.stemr(d, e, numbers, values, s)
    all_s = np.empty(n * k, d.dtype)
    counts = [n * (j - i) for i, j in shares]
    backend.wait(backend.plain_channel.all_gather(s.ravel("F"), all_s, counts).done, "vectors of other ranks")
    all_s = all_s.reshape((n, k), order="F")
    # E[r] = S^T S[r] - I[r]
    error = np.empty((k, stop - start), d.dtype, "F")
    gemm(1, all_s.T, s, 0, error)
    error[range(start, stop), range(stop - start)] -= 1
    # S[r] := S[r] - S E[r] / 2
    gemm(-0.5, all_s, error, 1, s)
    is_right = info == 0 and _are_pairs(d, e, numbers, values, s)
    found = backend.gather((is_right, float(np.vdot(error, error)), values))
    if not all(right for right, *_ in found) or not sum(square for _, square, _ in found) <= n * np.finfo(d.dtype).eps:
        return None
    if s.size:
        z[...] = s
    return np.sort(np.concatenate([part for *_, part in found]))


def _are_pairs(d: Array, e: Array, numbers: range, values: Array, s: Array) -> bool:
    """Whether these are the eigenvalues of T with these numbers, and vectors of theirs, up to rounding (local)."""
    if not numbers:
        return True
    limit = _ROUNDINGS * len(d) * float(np.finfo(d.dtype).eps) * float(np.abs(d).max() + 2 * np.abs(e).max())
    for number, value in ((numbers[0], values[0]), (numbers[-1], values[-1])):
        if not abs(lapack.eigenvalue(d, e, number) - value) <= limit:
            return False
    # R := T S - S D
    residuals = d[:, None] * s - s * values
    residuals[1:] += e[:, None] * s[:-1]
    residuals[:-1] += e[:, None] * s[1:]
    return bool(np.abs(residuals).max() <= limit)
