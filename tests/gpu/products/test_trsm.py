"""Laws of trsm on GPUs, with NVSHMEM and with messages; see tests/mpi/operations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.triangular import trsm as operation
from tests.common.gauge import applied, dtype_of, entries, gauge
from tests.common.ranks import collected
from tests.gpu.products.general import BACKENDS, context
from tests.gpu.products.products import Placed
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_trsm import DTYPES, triangle

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(60))
def test_any_layouts(ctx: pblas.Context, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every argument: the residual, all memory that must stay unchanged, and the bytes that the plan announces."""
    rng = random.Random(seed)
    monkeypatch.setattr(operation, "PANEL_ON_GPUS", rng.choice([5, 16, 256]))
    n, nrhs, dtype = rng.choice([1, 7, 40, 100, 300]), rng.choice([1, 8, 31, 300]), dtype_of(DTYPES[seed % len(DTYPES)])
    side, uplo, trans, diag = (rng.choice(letters) for letters in ("LR", "LU", "NTC", "NU"))
    alpha: complex = rng.choice([0, 1, -0.5]) * (rng.choice([1, 1 - 1j]) if dtype.kind == "c" else 1)
    shape, (i, k) = (n, nrhs) if side == "L" else (nrhs, n), (rng.choice([0, 3]) for _ in range(2))
    descs = [some_descriptor(rng, n + i, n + i, ctx.nprocs)]
    descs += [some_descriptor(rng, shape[0] + k, shape[1] + 1, ctx.nprocs) for _ in range(2)]
    places = [(i, i + n, i, i + n), *[(k, k + shape[0], 0, shape[1])] * 2]
    A, B, X = (Placed(ctx, *pair, dtype, rng.choice("wuo"), 3) for pair in zip(descs, places, strict=True))
    in_place = rng.random() < 0.5
    t, poisoned = triangle(n, dtype, uplo, unit=diag == "U", seed=2 * seed)
    b = entries(shape, dtype, 2 * seed + 1)
    A.fill(poisoned)
    B.fill(b)
    X.fill(b)
    out = B if in_place else X
    backend = ctx.runtime.backend
    options: Any = {"side": side, "uplo": uplo, "trans": trans, "diag": diag, "alpha": alpha}
    with pblas.blas.plan_trsm(A.view, B.view, out=out.view, **options) as planned:
        counted = backend.channel.received_nbytes + backend.read_nbytes
        planned.execute(A.view, B.view, out=out.view)
        counted = backend.channel.received_nbytes + backend.read_nbytes - counted
        assert counted == planned.plan.received_nbytes(ctx.rank), planned.plan
    A.check_untouched()
    if not in_place:
        B.check_untouched()
    out.check_untouched_outside()
    x, op = collected(out.view), applied(trans, t)
    if alpha == 0:
        assert not x.any()
        return
    left, right = (op, x) if side == "L" else (x, op)
    assert gauge(np.asarray(dtype.type(alpha) * b, dtype), left, right) <= 16
