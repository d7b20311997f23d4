"""Factorizations over grids on a device with lanes, as a GPU has them: no block is used before it has come."""

from __future__ import annotations

import random
from typing import Any, get_args

import numpy as np
import pytest

import pblas
from pblas import linalg
from pblas.factor.grid_lu_plan import Pivoting
from tests.common.factors import (
    MOST,
    forget_plans,
    general,
    lu_ratio,
    positive,
    qr_ratios,
    solve_on_grids,
    solve_ratio,
)
from tests.common.ranks import collected, one_host
from tests.mpi.operations.test_general import LaneChannel, Lanes
from tests.mpi.operations.test_grid_lu import GRIDS, square_blocks

pytestmark = [pytest.mark.mpi, one_host]
N = 41


@pytest.mark.ranks(4, reason="several process rows and columns")
@pytest.mark.parametrize("prefer", ["main", "side"])
@pytest.mark.parametrize("shape", GRIDS)
def test_lanes_wait_only_for_their_dependencies(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], prefer: str
) -> None:
    """Right factors and solutions, whatever lane is ahead."""
    rng = random.Random(f"{shape} {prefer}")
    transport: Any = rng.choice(["shared", "message"])
    blocks = square_blocks(rng, N, N, shape)
    solve_on_grids(monkeypatch, always=True)
    monkeypatch.setattr("pblas.factor.choose.square_blocks", lambda *_, **__: iter([(blocks, "a test")]))
    with pblas.Context(transport=transport) as ctx:
        a, g, b = positive(N, np.dtype("f8")), general(N, N, np.dtype("f8")), general(N, 3, np.dtype("f8"))
        spd, matrix, right = (ctx.from_global(x, root=None) for x in (a, g, b))
        backend = ctx.runtime.backend
        before = backend.arrays, backend.channel

        def on_lanes(use: bool) -> None:
            if use:
                backend.arrays = lanes = Lanes(prefer, random.Random(ctx.rank))
                backend.channel = LaneChannel(before[1], lanes)
            else:
                backend.arrays, backend.channel = before
            backend.__dict__.pop("host_arrays", None)

        on_lanes(True)
        l = linalg.cho_factor(spd, algorithm="grid")
        x = l.solve(right)
        factors = [linalg.lu_factor(matrix, algorithm="grid", pivoting=pivoting) for pivoting in get_args(Pivoting)]
        solutions = [(factor.solve(right), factor.solve(right, "T")) for factor in factors]
        reflectors = linalg.qr_factor(matrix, algorithm="grid")
        q, r = reflectors.q(), reflectors.r()
        on_lanes(False)
        assert solve_ratio(a, collected(x), b) <= MOST
        for factor, (y, z) in zip(factors, solutions, strict=True):
            assert lu_ratio(g, collected(factor.lu()), factor.pivots) <= MOST
            assert max(solve_ratio(g, collected(y), b), solve_ratio(g.T, collected(z), b)) <= MOST
        assert max(qr_ratios(g, collected(q), collected(r))) <= MOST
    forget_plans()
