"""Laws of redistribute on GPUs, with NVSHMEM and with messages; see tests/mpi/operations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from tests.common.gauge import NAMES, Array, applied, dtype_of, entries, eps_of
from tests.common.ranks import raises_on_all_ranks
from tests.conformance.tables import GEMR2D
from tests.gpu.products.general import BACKENDS, context
from tests.gpu.products.products import Placed
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_matmul import part

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(60))
def test_any_layout_to_any_other(ctx: pblas.Context, seed: int) -> None:
    """Every argument: the result, all memory that must stay unchanged, and the bytes that the plan announces."""
    rng = random.Random(seed)
    m, n = rng.choice([0, 1, 7, 40, 100]), rng.choice([1, 8, 31, 90])
    dtype, trans = dtype_of(NAMES[seed % len(NAMES)]), rng.choice("NTC")
    alpha: complex = rng.choice([0, 1, 1, -0.5])
    beta: complex = rng.choice([0, 0, 1, 2.5])
    if dtype.kind == "c":
        alpha, beta = alpha * rng.choice([1, 1j]), beta * rng.choice([1, 1 - 2j])
    uplo = rng.choice(["U", "L", None, None])
    diagonal = rng.randint(-9, 9) if uplo else 0
    i, j, k, l = (rng.choice([0, 0, 3]) for _ in range(4))
    rows, columns = (m, n) if trans == "N" else (n, m)
    padding = rng.choice([0, 3])
    A = Placed(
        *(ctx, some_descriptor(rng, rows + i + 2, columns + j, ctx.nprocs), (i, i + rows, j, j + columns), dtype),
        *(rng.choice("wuo"), padding),
    )
    B = Placed(
        *(ctx, some_descriptor(rng, m + k, n + l + 1, ctx.nprocs), (k, k + m, l, l + n), dtype),
        *(rng.choice("wuo"), padding),
    )
    a, b = entries((rows, columns), dtype, 2 * seed), entries((m, n), dtype, 2 * seed + 1)
    inside = np.ones((m, n), bool)
    if uplo is not None:
        inside = (np.triu if uplo == "U" else np.tril)(inside, diagonal)
    if beta == 0:
        b[inside] = np.nan
    read = ~(inside if trans == "N" else inside.T)
    A.fill(np.where(read, np.asarray(np.nan, dtype), a if alpha != 0 else np.full_like(a, np.nan)))
    B.fill(b)
    backend = ctx.runtime.backend
    options: dict[str, Any] = dict(trans=trans, alpha=alpha, beta=beta, uplo=uplo, diagonal=diagonal)  # noqa: C408
    with pblas.plan_redistribution(A.view, out=B.view, **options) as planned:
        counted = backend.channel.received_nbytes + backend.read_nbytes
        planned.execute(A.view, out=B.view)
        counted = backend.channel.received_nbytes + backend.read_nbytes - counted
        assert counted == planned.plan.received_nbytes(ctx.rank), planned.plan
    A.check_untouched()
    B.check_untouched_outside()
    local = backend.reading(B.view.local)
    op, old, mask = (part(x, B.view.desc, ctx.rank) for x in (applied(trans, a), b, inside))
    check(op, old, mask, local, alpha, beta)


def check(op: Array, old: Array, inside: Array, result: Array, alpha: complex, beta: complex) -> None:
    """The bound of p?geadd's tests: 8 units of the terms' absolute values; a plain copy is exact."""
    wide: Any = np.clongdouble if result.dtype.kind == "c" else np.longdouble
    exact = np.zeros(op.shape, wide)
    size = np.zeros(op.shape)
    for scalar, x in ((alpha, op), (beta, old)):
        if scalar != 0:
            exact += wide(scalar) * x.astype(wide)
            size += (abs(scalar) * np.abs(x.astype(wide))).astype(float)
    error = np.abs(np.where(inside, result.astype(wide) - exact, 0))
    bound = 0 if alpha == 1 and beta == 0 else 8 * eps_of(result.dtype)
    assert (error <= bound * np.where(inside, size, 0)).all(), "NaN, or too far off"
    assert np.array_equal(result[~inside].view(np.uint8), np.asarray(old[~inside], result.dtype).view(np.uint8))


@pytest.mark.parametrize("row", GEMR2D[::7])
def test_rows_of_gemr2d(ctx: pblas.Context, row: tuple[int, ...]) -> None:
    n, *rest = row
    descs = []
    for p, q, mb, nb in (rest[:4], rest[4:]):
        if p * q > ctx.nprocs:
            pytest.skip("needs more ranks")
        descs.append(MatrixDescriptor(n, n, mb, nb, Grid(p, q)))
    x = np.arange(float(n * n)).reshape(n, n)
    redistributed = ctx.from_global(x, descs[0], root=None).redistribute(descs[1])
    back = redistributed.redistribute(descs[0])
    assert np.array_equal(redistributed.to_global(root=None), x)
    assert np.array_equal(back.to_global(root=None), x)


def test_large_pieces_in_every_order(ctx: pblas.Context) -> None:
    """Plain, transposed and gathered copies by many tiles; a plan is executed again with other data."""
    n = 1500
    for order_a, order_b, trans in (("F", "F", "N"), ("F", "C", "N"), ("C", "F", "T"), ("C", "C", "T")):
        for nb in (64, 1, 1000):
            a_desc = MatrixDescriptor(n, n, nb, nb, Grid(1, ctx.nprocs), order=order_a)  # type: ignore[arg-type]
            b_desc = MatrixDescriptor(n, n, 96, 32, Grid(ctx.nprocs, 1), order=order_b)  # type: ignore[arg-type]
            x = np.arange(float(n * n)).reshape(n, n)
            b, planned = ctx.zeros(b_desc), None
            for scale in (1.0, 2.0):
                a = ctx.from_global(scale * x, a_desc, root=None)
                planned = planned or pblas.plan_redistribution(a, out=b, trans=trans)  # type: ignore[arg-type]
                planned.execute(a, out=b)
                assert np.array_equal(b.to_global(root=None), scale * applied(trans, x))


def test_a_mistake_is_an_error_on_every_rank(ctx: pblas.Context) -> None:
    a = ctx.zeros(MatrixDescriptor.row_wise(8, 8, ctx.nprocs))
    raises_on_all_ranks(pblas.ArgumentError, "overlaps A", lambda: pblas.redistribute(a, out=a))
    raises_on_all_ranks(
        pblas.DescriptorError, "make them agree", lambda: pblas.redistribute(a[:4, :], out=a, trans="T")
    )
