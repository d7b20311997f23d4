"""Products over cyclic runs of K whose columns of X are packed once, for several pieces of Y."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from pblas.layouts.split import Split
from pblas.matmul.local_gemm_run import IndexRuns, gemm_runs, side_by_side

POISON = -99.0


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("block", [1, 3, 64, 100, 300])
@pytest.mark.parametrize("source", [0, 1, 2])
def test_columns_packed_once_give_the_product_of_the_runs(block: int, source: int, order: Literal["F", "C"]) -> None:
    m, n, depth = 5, 8, 4 * block + 7
    rng, split = np.random.default_rng(1), Split(depth, block, 3)
    k = IndexRuns.global_to_local(split.ranges(source))
    x = np.asarray(rng.integers(-9, 9, (m, depth)), float, order=order)
    y = np.asarray(rng.integers(-9, 9, (split.count(source), n)), float, order=order)
    z = np.full((m, n + 1), POISON, order=order)
    left, inner = side_by_side(x, k)
    for first in range(0, n, 3):
        piece = y[:, first : first + 3]
        columns = IndexRuns([(0, first, piece.shape[1])])
        gemm_runs(2.0, left, piece, 0.0, z, IndexRuns.whole(m), columns, inner, packs=True)
    runs = split.ranges(source)
    indices = np.concatenate([np.arange(start, stop) for start, stop in runs]) if runs else np.arange(0)
    assert (z[:, :n] == 2 * x[:, indices] @ y).all()
    assert (z[:, n] == POISON).all()
    assert len(inner.runs) <= 1 or min(length for *_, length in inner.runs[:-1]) >= 256
