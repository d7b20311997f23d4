"""All-gathers of arrays whose lengths all ranks know: small ones of one node travel in one copy and one agreement."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.collectives.collective_plan import Rounds, goes_by_messages, width_of
from pblas.collectives.collective_run import Collective, Steps
from pblas.collectives.flat_run import Flat
from pblas.collectives.staging_run import RESULTS

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.collectives.staging_run import Staging


class _Half(NamedTuple):
    """Views of one half of the staging memory: this rank's elements, and each peer's with their place (local)."""

    own: Array
    others: list[tuple[slice, Array]]


class Gathering:
    """An all-gather of arrays of one dimension, for any number of calls: `lay_out`, an agreement, `run`.

    Args:
        counts: number of elements of each rank (global).
        dtype: of the elements (global).
        rank: this rank (local).
    """

    def __init__(self, counts: tuple[int, ...], dtype: np.dtype[Any], rank: int) -> None:
        self._bounds = tuple(accumulate(counts, initial=0))
        self._dtype, self._rank, self._nelements = dtype, rank, self._bounds[-1]
        self._own = slice(*self._bounds[rank : rank + 2])
        self._is_short = self._nelements <= width_of(1, dtype.itemsize, 1)
        self._staging: Staging | None = None
        self._halves: list[_Half] | None = None
        self._job: Collective | None = None
        self._x: Array | None = None

    def lay_out(self, staging: Staging, name: str, x: Array) -> None:
        """Copy this rank's array to where near ranks read it (local); `name` of the call is for messages (global)."""
        if staging is not self._staging:
            is_near = self._is_short and not (staging.far or self._goes_by_messages(staging))
            self._staging, self._halves = staging, self._views(staging) if is_near else None
        self._x = x
        if self._halves is not None:
            self._halves[staging.turn % 2].own[...] = x.reshape(-1)
        elif self._nelements:
            by_messages = self._goes_by_messages(staging)
            rounds = Rounds(self._bounds, width_of(1, self._dtype.itemsize, 1, by_messages=by_messages))
            steps = Steps(name, None, shares=True, rounds=rounds, by_messages=by_messages)
            self._job = Collective(staging, steps, Flat(x, self._own.start))
            self._job.lay_out(0)

    def run(self) -> Array:
        """All ranks' elements, one after the other in a new array, after `lay_out` and an agreement."""
        staging, job, x = self._staging, self._job, self._x
        assert staging is not None, "the elements are laid out"
        assert x is not None, "the elements are laid out"
        self._job = self._x = None
        result = np.empty(self._nelements, self._dtype)
        if self._halves is not None:
            result[self._own] = x.reshape(-1)
            for span, elements in self._halves[staging.turn % 2].others:
                result[span] = elements  # (read in the memory of a near rank)
            staging.turn += 1
        elif job is not None:
            job.run([Flat(result)], None)
        return result

    def _goes_by_messages(self, staging: Staging) -> bool:
        nbytes = self._nelements * self._dtype.itemsize // len(self._bounds[1:])
        return goes_by_messages(nbytes, shared=staging.shared)

    def _views(self, staging: Staging) -> list[_Half]:
        """Views of both halves of the staging memory; all ranks are near (local)."""

        def view(peer: int, half: int) -> Array:
            span = self._bounds[peer], self._bounds[peer + 1]
            return staging.slot(RESULTS, peer, half, 0, span, self._dtype).x

        peers = [peer for peer in staging.near if self._bounds[peer] < self._bounds[peer + 1]]
        places = [slice(self._bounds[peer], self._bounds[peer + 1]) for peer in peers]
        return [
            _Half(
                view(self._rank, half), [(place, view(peer, half)) for place, peer in zip(places, peers, strict=True)]
            )
            for half in (0, 1)
        ]
