"""Executor of divide and conquer: eigenvalues and eigenvectors of a real tridiagonal matrix T.

T is torn into the rows of the ranks; the two halves of each merge differ from T by e (1 1; 1 1) at the cut:

    T1 = S1 D1 S1^T, T2 = S2 D2 S2^T                      (on the ranks of either half)
    z = [last row of S1, first row of S2]                 (vectors of both halves to all ranks of the merge)
    diag(D1, D2) + rho z z^T = U diag(w) U^T              (each rank some roots, then the vectors of its columns)
    S = [S1 0; 0 S2] U                                    (each rank its columns)

A few of the vectors are found by `robust_vectors`, unless they are in clusters that these do not separate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.backends.cpu import lapack
from pblas.backends.cpu.blas import gemm
from pblas.core.operation import WithoutMemory
from pblas.spectral import robust
from pblas.spectral.secular import Deflated, Roots, corrected, deflated, vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.spectral.eigh_plan import EighPlan, Merge

TAG_VECTORS, TAG_VALUES, TAG_ROOTS = 1060, 1061, 1062


class Tridiagonal(NamedTuple):
    """T, equal on all ranks, and the numbers (start, stop) of the vectors that are wanted (global); Z (local)."""

    d: Array
    e: Array
    wanted: tuple[int, int]
    z: Array


class RunDivideAndConquer(WithoutMemory):
    """Runs divide and conquer of an EighPlan on one rank: Z := the wanted columns of S."""

    def __init__(self, plan: EighPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: EighPlan = plan
        self._backend, self._rank = backend, backend.rank
        self._dtype = np.zeros(0, dtype).real.dtype
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each merge but the last; None for no calls (local)."""
        self.values: Array  # the wanted eigenvalues, ascending (global)
        self.info: int  # LAPACK's INFO of the first rank that has one (global)

    def run(self, x: Tridiagonal) -> None:
        """Z := S."""
        # A power of 2 makes the largest element about 1
        size = float(max(np.abs(x.d).max(initial=0), np.abs(x.e).max(initial=0)))
        shift = int(np.frexp(size)[1]) if size else 0
        d, e, self.info = np.ldexp(x.d, -shift), np.ldexp(x.e, -shift), 0
        values = robust.robust_vectors(self.plan, self._backend, d, e, x.wanted, x.z) if self.plan.is_robust else None
        if values is None:
            values = self._conquered(x, d, e)
        self.values = np.ldexp(values, shift)

    def _conquered(self, x: Tridiagonal, d: Array, e: Array) -> Array:
        """The wanted eigenvalues by divide and conquer, of which D is overwritten; Z := their vectors."""
        plan, rank, values = self.plan, self._rank, np.zeros(0, self._dtype)
        # T torn: d -= abs(e) on both sides of each cut
        for cut in [plan.rows(member)[0] for member in range(1, plan.members)]:
            d[cut - 1] -= abs(e[cut - 1])
            d[cut] -= abs(e[cut - 1])
        if rank < plan.members:
            # T[r] = S[r] D[r] S[r]^T
            start, stop = plan.rows(rank)
            values, s = d[start:stop].copy(), np.empty((stop - start, stop - start), self._dtype, "F")
            self.info = lapack.stedc(values, e[start : stop - 1].copy(), s)
            merges = plan.merges(rank)
            for merge in merges:
                # S = [S1 0; 0 S2] U
                wanted = x.wanted if merge is merges[-1] else None
                values, s = self._merge(merge, values, s, float(e[plan.rows(merge.mid)[0] - 1]), wanted)
                if self.progress is not None and merge is not merges[-1]:
                    self.progress(((merge.hi - merge.lo) / plan.members) ** 2)
            x.z[...] = s if merges else s[:, slice(*x.wanted)]
        infos = self._backend.gather(self.info)
        self.info = next(filter(None, infos), 0)
        found: Array = self._backend.broadcast_object(values[slice(*x.wanted)], 0)
        return found

    def _merge(
        self, merge: Merge, values: Array, s: Array, rho: float, wanted: tuple[int, int] | None
    ) -> tuple[Array, Array]:
        """The eigenvalues of two halves as one problem, and this rank's share of the vectors, all or those wanted."""
        lo, hi, me = merge.lo, merge.hi, self._rank - merge.lo
        peers = [peer for peer in range(lo, hi) if peer != self._rank]
        d, s1, s2 = self._exchange(merge, values, s)
        # diag(D1, D2) + rho z z^T, z = [last row of S1, first row of S2]
        problem = deflated(d, np.concatenate((s1[-1], s2[0])), rho, len(s1))
        k = len(problem.poles)
        roots = [range(*share) for share in self.plan.shares(k, 0, hi - lo)]
        mine = Roots(problem, roots[me])
        self.info = self.info or mine.info
        # w: the roots and the known eigenvalues; U: by the z with these roots
        parts = self._all_to_all(
            peers, np.concatenate((mine.values, mine.product(problem))), [len(x) + k for x in roots], lo
        )
        product = np.ones(k, self._dtype)
        for part in parts:
            product *= part[-k:] if k else 1
        found = np.concatenate((*(part[: len(x)] for part, x in zip(parts, roots, strict=True)), problem.values))
        order = np.argsort(found, kind="stable")
        first, last = (0, len(found)) if wanted is None else wanted
        start, stop = self.plan.shares(last - first, 0, hi - lo)[me]
        numbers = order[first:last][start:stop]
        result = _merged(problem, mine, corrected(problem, product), numbers, s1, s2)
        return found[order], result

    def _exchange(self, merge: Merge, values: Array, s: Array) -> tuple[Array, Array, Array]:
        """The eigenvalues of both halves, and all their vectors."""
        channel = self._backend.channel
        transfers: list[Transfer] = []
        halves: list[Array] = []
        all_values: list[Array] = []
        peers = [peer for peer in range(merge.lo, merge.hi) if peer != self._rank]
        for first, last in ((merge.lo, merge.mid), (merge.mid, merge.hi)):
            start, stop = self.plan.span(first, last)
            half = np.empty((stop - start, stop - start), self._dtype, "F")
            is_mine = first <= self._rank < last
            d = values if is_mine else np.empty(stop - start, self._dtype)
            for peer, (j0, j1) in zip(range(first, last), self.plan.shares(stop - start, first, last), strict=True):
                columns = half[:, j0:j1]
                if peer == self._rank:
                    columns[...] = s
                elif columns.size:
                    transfers.append(channel.receive(columns, peer, TAG_VECTORS))
            if not is_mine:
                transfers.append(channel.receive(d[:, None], first, TAG_VALUES))
            elif self._rank == first:
                others = [peer for peer in peers if not first <= peer < last]
                transfers += [channel.send(values[:, None], peer, TAG_VALUES) for peer in others]
            halves.append(half)
            all_values.append(d)
        transfers += [channel.send(s, peer, TAG_VECTORS) for peer in peers if s.size]
        self._wait(transfers, "vectors of a merge")
        return np.concatenate(all_values), halves[0], halves[1]

    def _all_to_all(self, peers: list[int], x: Array, lengths: list[int], lo: int) -> list[Array]:
        """The vector of each rank of a merge, in their order; `lengths` are those of all."""
        channel = self._backend.channel
        parts = [np.empty(length, self._dtype) for length in lengths]
        parts[self._rank - lo] = x
        transfers = [channel.send(x[:, None], peer, TAG_ROOTS) for peer in peers if x.size]
        transfers += [channel.receive(parts[p - lo][:, None], p, TAG_ROOTS) for p in peers if parts[p - lo].size]
        self._wait(transfers, "roots of a merge")
        return parts

    def _wait(self, transfers: list[Transfer], what: str) -> None:
        """Return when all messages have arrived and left."""
        for transfer in transfers:
            self._backend.wait(transfer.done, what)


def _merged(problem: Deflated, roots: Roots, z: Array, numbers: Array, s1: Array, s2: Array) -> Array:
    """[S1 0; 0 S2] U, for the columns of U with these numbers: those of the roots come first, then the known ones."""
    n1, n, k = len(s1), len(s1) + len(s2), len(problem.poles)
    result = np.empty((n, len(numbers)), s1.dtype, "F")
    touched, rotated = _rotated(problem, s1, s2)
    # S := the known vectors
    is_root = numbers < k
    for j in np.flatnonzero(~is_root):
        i = int(problem.known[numbers[j] - k])
        result[:, j] = rotated[:, touched[i]] if i in touched else _of_both(i, s1, s2)
    # S := [S1 0; 0 S2] U for the others   (vectors that were rotated have elements in both halves)
    kept, columns = problem.kept, numbers[is_root]
    wanted = range(int(columns[0]), int(columns[-1]) + 1) if columns.size else range(0)
    assert len(wanted) == len(columns), "roots are ascending"
    is_rotated = np.isin(kept, list(touched))
    parts = ~is_rotated & (kept < n1), ~is_rotated & (kept >= n1), is_rotated
    first, second, both = map(np.flatnonzero, parts)
    a, b = len(first), len(first) + len(second)
    u = vectors(z, roots.distances(problem, wanted), np.concatenate((first, second, both)))
    product = result if is_root.all() else np.empty((n, u.shape[1]), s1.dtype, "F")
    gemm(1, s1.T[kept[first]].T, u[:a], 0, product[:n1])
    gemm(1, s2.T[kept[second] - n1].T, u[a:b], 0, product[n1:])
    gemm(1, rotated[:, [touched[number] for number in kept[both].tolist()]], u[b:], 1, product)
    if product is not result:
        result.T[is_root] = product.T
    return result


def _rotated(problem: Deflated, s1: Array, s2: Array) -> tuple[dict[int, int], Array]:
    """The vectors that are rotated, by number, as columns of a new array."""
    touched = {i: place for place, i in enumerate(sorted({i for x in problem.rotations for i in x[:2]}))}
    rotated = np.zeros((len(s1) + len(s2), len(touched)), s1.dtype, "F")
    for i, place in touched.items():
        rotated[:, place] = _of_both(i, s1, s2)
    for i, j, c, s in problem.rotations:
        x, y = rotated[:, touched[i]].copy(), rotated[:, touched[j]].copy()
        rotated[:, touched[i]], rotated[:, touched[j]] = c * x + s * y, c * y - s * x
    return touched, rotated


def _of_both(number: int, s1: Array, s2: Array) -> Array:
    """A vector of one of the halves, as one of both."""
    n1, vector = len(s1), np.zeros(len(s1) + len(s2), s1.dtype)
    if number < n1:
        vector[:n1] = s1[:, number]
    else:
        vector[n1:] = s2[:, number - n1]
    return vector
