"""Reductions by several CTAs, which count those that are done, beside graphs that hold such reductions."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from pblas.backends.cuda import reductions

FLOAT64 = np.dtype(np.float64)


def test_sums_in_graphs_and_sums_beside_them_share_no_counters() -> None:
    x: Any = cupy.arange(1 << 16, dtype=FLOAT64)[:, None]
    expected = float(x.get().sum())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert reductions.reduce("sum", x, None, FLOAT64).get() == expected
        stream.begin_capture()
        results = [reductions.reduce("sum", x, None, FLOAT64) for _ in range(300)]
        captured = [reductions._counter() for _ in range(300)]
        graph = stream.end_capture()
        eager = {reductions._counter() for _ in range(600)}
        graph.launch()
        beside = [reductions.reduce("sum", x, None, FLOAT64) for _ in range(300)]
        stream.synchronize()
    assert len(set(captured)) == 300
    assert not eager & set(captured)
    assert {float(total[0]) for total in [*results, *beside]} == {expected}
