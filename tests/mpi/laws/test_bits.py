"""What the documentation says about bits: which results are equal bit by bit on every transport, rank and run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, blas, linalg, tp
from pblas.factor.choose import QrAlgorithm
from tests.common.gauge import Array
from tests.common.ranks import COMM, Contexts, open_context

SETTINGS = "shared", "message", "mixed"
"""On several hosts the first is mixed too, and the ranks of each host share memory."""
P = COMM.size
pytestmark = [pytest.mark.mpi(min_size=2)]
SIZES = 300, 513, 700, 1100
"""Panels of factorizations travel in pieces of 512 rows."""
CASES = [*((n, "float64") for n in SIZES), (300, "float32"), (700, "float32")]


def layouts(n: int) -> Iterator[MatrixDescriptor]:
    """Cyclic blocks; of small matrices also other layouts, for which all takes longer."""
    grid = Grid(2, P // 2) if P % 2 == 0 else Grid(1, P)
    yield MatrixDescriptor(n, n, 64, 64, grid)
    if n <= 513:
        yield MatrixDescriptor.row_wise(n, n, P)
    if n <= 300:
        yield MatrixDescriptor.column_wise(n, n, P)
        yield MatrixDescriptor(n, n, 8, 8, grid)


def whole(x: Any) -> Array:
    """**Collective.**"""
    elements: Array = np.asarray(x.to_global(None) if isinstance(x, pblas.DistMatrix) else x)
    return elements


def lu(x: pblas.DistMatrix) -> pblas.DistMatrix:
    """**Collective.** L and U of panels on all ranks."""
    return linalg.lu_factor(x, algorithm="blocked").lu()


def r_of_qr(x: pblas.DistMatrix) -> pblas.DistMatrix:
    """**Collective.**"""
    return linalg.qr(x)[1]


def differing(
    contexts: Contexts,
    calls: Callable[[pblas.Context], dict[str, Callable[[], Any]]],
    settings: Iterable[str] = SETTINGS,
) -> list[str]:
    """**Collective.** Names of the calls whose results differ between contexts or ranks."""
    results: dict[str, list[bytes]] = {}
    for ctx in (contexts[name] for name in settings):
        for name, call in calls(ctx).items():
            results.setdefault(name, []).append(whole(call()).tobytes())
    return [name for name, found in results.items() if len(set().union(*COMM.allgather(found))) > 1]


@pytest.mark.parametrize(("n", "dtype"), CASES)
def test_factorizations_and_solutions_have_the_same_bits_on_any_transport(
    contexts: Contexts, n: int, dtype: str
) -> None:
    def calls(ctx: pblas.Context) -> dict[str, Callable[[], Any]]:
        a, b = (ctx.random((n, n), dtype, seed=seed) for seed in (1, 2))
        found: dict[str, Callable[[], Any]] = {}
        for k, desc in enumerate(layouts(n)):
            x, y = a.redistribute(desc), b.redistribute(desc)
            s = x + ctx.eye(desc, dtype) * float(n)
            found |= {
                f"lu {k}": partial(lu, x),
                f"cholesky {k}": partial(linalg.cholesky, s),
                f"solve {k}": partial(linalg.solve, x, y[:, :9]),
                f"qr {k}": partial(r_of_qr, x[:, :64]),
                f"trsm {k}": partial(blas.trsm, s, y),
            }
        return found

    found = differing(contexts, calls)
    assert not found, found


@pytest.mark.parametrize("algorithm", get_args(QrAlgorithm))
def test_no_measured_rate_and_no_transport_changes_the_bits_of_qr(contexts: Contexts, algorithm: QrAlgorithm) -> None:
    """Q is complete, and multiplies a matrix: a product inside may have as many panels as suit the rate."""

    def calls(ctx: pblas.Context) -> dict[str, Callable[[], Any]]:
        a, b = (ctx.random((194, n), "complex64", seed=n) for n in (87, 9))
        found: dict[str, Callable[[], Any]] = {}
        for k, grid in enumerate((Grid(1, P), Grid(P, 1))):
            x = a.redistribute(MatrixDescriptor(194, 87, 13, 13, grid))
            f = linalg.qr_factor(x, algorithm=algorithm)
            found |= {
                f"q {k}": partial(f.q, "complete"),
                f"apply_q {k}": partial(f.apply_q, b),
                f"adjoint {k}": partial(f.apply_q, b, trans="C"),
            }
        return found

    with ExitStack() as stack:
        measured = dict(contexts)
        for rate in (2.0**24, 2.0**27, 2.0**34):
            ctx = measured[f"message {rate}"] = stack.enter_context(open_context("message"))
            ctx.runtime.bandwidth = rate
        assert differing(measured, calls, [*SETTINGS, *(name for name in measured if name not in contexts)]) == []


@pytest.mark.parametrize("n", SIZES)
def test_products_with_as_many_chunks_have_the_same_bits_on_any_transport(contexts: Contexts, n: int) -> None:
    """With overlap and without."""

    def calls(ctx: pblas.Context) -> dict[str, Callable[[], Any]]:
        a, b = (ctx.random((n, n), seed=seed) for seed in (1, 2))
        found: dict[str, Callable[[], Any]] = {}
        for k, desc in enumerate(layouts(n)):
            x, y = a.redistribute(desc), b.redistribute(desc)
            for chunks in (1, 3) if n <= 513 else (3,):
                found[f"A @ B {k}, {chunks} chunks"] = partial(pblas.pmatmul, x, y, chunks=chunks)
                if n <= 513 or ctx is contexts["message"]:
                    same = pblas.plan_matmul(x, y, chunks=chunks, overlap=False)
                    results = (whole(z).tobytes() for z in (same.execute(x, y), pblas.pmatmul(x, y, chunks=chunks)))
                    assert len(set(results)) == 1
        return found

    assert differing(contexts, calls) == []


@pytest.mark.parametrize("kib", [24, 200, 240, 900])
def test_collectives_that_name_their_algorithm_have_the_same_bits_on_any_transport(
    contexts: Contexts, kib: int
) -> None:
    def calls(ctx: pblas.Context) -> dict[str, Callable[[], Any]]:
        x = np.random.default_rng(ctx.rank).random(128 * kib)
        algorithms: Any = "one_shot", "two_shot"
        return {name: partial(ctx.allreduce, x, algorithm=name) for name in algorithms}

    assert differing(contexts, calls) == []


def test_calls_that_let_pblas_choose_have_the_same_bits_in_every_run_and_on_every_rank(contexts: Contexts) -> None:
    n = 301
    for ctx in (contexts[name] for name in SETTINGS):
        for desc in layouts(n):
            a, b = (ctx.random(desc, seed=seed) for seed in (1, 2))
            x = np.random.default_rng(ctx.rank).random(30000)
            calls: list[Callable[[], Any]] = [
                partial(pblas.pmatmul, a, b),
                partial(pblas.pmatmul, a, b, out=MatrixDescriptor.replicated(n, n, P)),
                partial(blas.syrk, a),
                partial(blas.symm, a, b),
                partial(blas.trmm, a, b),
                partial(blas.gemv, a, np.ones(n)),
                partial(a.sum, axis=0),
                partial(ctx.allreduce, x),
                partial(ctx.allreduce, x[:300], epilogue="gelu(x)"),
                partial(tp.linear_allreduce, x[:600].reshape(2, 300), x[600:6600].reshape(20, 300), ctx=ctx),
                partial(linalg.eigvalsh, a[:40, :40]),
                partial(linalg.svdvals, a[:60, :40]),
            ]
            for call in calls:
                first, second = (whole(call()).tobytes() for _ in range(2))
                assert first == second
                assert len(set(COMM.allgather(first))) == 1
