"""Laws of pmatmul on any three layouts on GPUs, with NVSHMEM and with messages; see tests/mpi/operations."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import cupy
import numpy as np
import pytest
from hypothesis import given, settings

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.backends.cuda.strided_copy import StridedCopy
from pblas.matmul.one_dimensional_plan import LocalGemm
from pblas.matmul.summa_plan import Summa
from tests.common.gauge import THRESHOLD, dtype_of, entries, gauge
from tests.common.ranks import COMM, check_product, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.products.general import BACKENDS, SECONDS, context
from tests.mpi.operations.test_general import KINDS, Case, Layout, Run, cases

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened


@settings(max_examples=60)
@given(case=cases())
def test_any_three_layouts(ctx: pblas.Context, case: Case) -> None:
    """The result is within the threshold, nothing else changes, and general plans move the bytes that they announce."""
    multiply(ctx, case)


def multiply(ctx: pblas.Context, case: Case) -> bytes:
    """`Run.multiply`; for pushed plans the result only, since other tests count their bytes."""
    run = Run(ctx, case)
    with run.plan() as planned:
        general = isinstance(planned.plan, Summa)
        assert general or isinstance(planned.plan, LocalGemm) or planned.plan.transport == "push"
        assert planned.plan.transport == {"cuda": "message"}.get(
            ctx.runtime.backend.name, "shared" if general else "push"
        )
    if general:
        return run.multiply()
    with run.plan() as planned:
        planned.execute(run.A.view, run.B.view, run.C.view, out=run.D.view)
    assert gauge(run.D.values(), run.a, run.b, run.c, alpha=case.alpha, beta=case.beta) <= THRESHOLD
    return b""


@pytest.mark.parametrize("kind", KINDS)
def test_same_bits_with_overlap_and_without(ctx: pblas.Context, kind: str) -> None:
    rng = random.Random(kind)
    for name in ("float64", "complex64", "bfloat16"):
        case = replace(KINDS[kind], dtype=name, trans=("N", "C"), alpha=0.75, chunks=rng.choice([1, 2, 3]))
        case = replace(case, beta=rng.choice([0.0, 0.5]))
        results = {}
        for overlap in (True, False):
            for home in "wu":
                layouts = {x: replace(getattr(case, x), home=home) for x in "abd"}
                results[overlap, home] = multiply(ctx, replace(case, overlap=overlap, **layouts))
        assert len(set(results.values())) == 1


def test_panels_of_real_width(ctx: pblas.Context) -> None:
    """Several panels in sequence: read in one piece, gathered, transposed."""
    for grid, blocks in (((2, 2), (64, 64)), ((2, 2), (1, 1)), ((2, 2), (100, 130)), ((1, 3), (7, 300))):
        for order in ("F", "C"):
            a, b = (Layout(grid, blocks=x, order=order) for x in (blocks, blocks[::-1]))
            for sizes in ((90, 70, 900), (70, 900, 90)):
                for name in ("float32", "bfloat16"):
                    multiply(
                        ctx, Case(sizes, a, b, Layout(grid, blocks=blocks), trans=("N", "T"), dtype=name, chunks=9)
                    )


@pytest.mark.mpi(min_size=4)
def test_panels_of_conforming_grids_need_no_kernel(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own panels are multiplied in place; a peer's panel is one block, whatever the layout's block size."""

    def reject(*_: Any, **__: Any) -> None:
        raise AssertionError("a panel was taken apart")

    monkeypatch.setattr(StridedCopy, "copy", reject)
    for blocks in ((1, 1), (2, 2), (3, 3)):
        layout = Layout((2, 2), blocks=blocks)
        multiply(ctx, Case((24, 26, 28), layout, layout, layout, chunks=3))


def test_a_plan_is_executed_again_and_again(ctx: pblas.Context) -> None:
    """Data changes between executions, and two plans alternate."""
    runs = [Run(ctx, replace(KINDS[kind], beta=0.5, chunks=3)) for kind in ("grid", "long k", "wide", "D copied")]
    plans = [run.plan() for run in runs]
    for turn in range(4):
        for run, planned in zip(runs, plans, strict=True):
            c = run.c * (1.0 + turn)
            if turn:
                run.A.view.local[...] = run.A.view.local * 2.0
            run.D.view.local[...] = ctx.from_global(c, run.D.view.desc, root=None).local
            planned.execute(run.A.view, run.B.view, run.D.view, out=run.D.view)
            assert gauge(run.D.values(), run.a * 2.0**turn, run.b, c, beta=0.5) <= THRESHOLD
    for planned in plans:
        planned.close()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_partial_products_are_rounded_once(ctx: pblas.Context, name: str) -> None:
    run = Run(ctx, replace(KINDS["long k"], dtype=name))
    for wire, limit in ((None, 1.0), ("float32", 0.5)):
        pblas.pmatmul(run.A.view, run.B.view, out=run.D.view, wire_dtype=wire)
        assert gauge(run.D.values(), run.a, run.b) <= limit * (1 + 2**-6)


def test_options_of_products(ctx: pblas.Context) -> None:
    """TF32 is coarser than float32 and not wrong; tuned products are right."""
    run = Run(ctx, replace(KINDS["grid"], dtype="float32"))
    for options in ({"tf32": True}, {"autotune": True}):
        with pblas.plan_matmul(run.A.view, run.B.view, out=run.D.view, **options) as planned:  # type: ignore[arg-type]
            for _ in range(2):
                planned.execute(run.A.view, run.B.view, out=run.D.view)
        error = gauge(run.D.values(), run.a, run.b)
        assert error <= (THRESHOLD if "autotune" in options else 2.0**14)


def test_the_stream_orders_earlier_and_later_work(ctx: pblas.Context) -> None:
    """A is filled on the caller's stream after a long delay, and D is read there."""
    own = cupy.cuda.Stream(non_blocking=True)
    n = 512
    desc = MatrixDescriptor(n, n, 64, 64, Grid(1, 1) if ctx.nprocs < 4 else Grid(2, 2))
    a, b, d = (ctx.zeros(desc) for _ in range(3))
    b.local[...] = 1.0
    cupy.cuda.runtime.deviceSynchronize()
    with pblas.plan_matmul(a, b, out=d) as planned:
        for turn in range(3):
            with own:
                busy = cupy.ones((4096, 4096))
                for _ in range(50):
                    cupy.sqrt(busy, out=busy)
                a.local[...] = turn + 1.0
            planned.execute(a, b, out=d, stream=own)
            with own:
                result = d.local + 0.0
            own.synchronize()
            assert bool((result == n * (turn + 1.0)).all())
        raises_on_all_ranks(pblas.ArgumentError, "__cuda_stream__", lambda: planned.execute(a, b, out=d, stream=7))
    check_product(ctx)


def test_all_layouts_of_tensor_parallel_plans(ctx: pblas.Context) -> None:
    """Layouts that the push protocol serves are served by messages too."""
    row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
    a, b = entries((30, 40), dtype_of("float64"), 1), entries((40, 50), dtype_of("float64"), 2)
    for kinds in ((row, row, row), (column, row, row), (column, row, column), (column, row, whole), (whole,) * 3):
        shapes = zip(kinds, ((30, 40), (40, 50), (30, 50)), strict=True)
        descs = [make(*shape, ctx.nprocs) for make, shape in shapes]
        A, B = (ctx.from_global(x, desc, root=None) for x, desc in zip((a, b), descs, strict=False))
        result = pblas.pmatmul(A, B, out=descs[2]).to_global(root=None)
        assert result is not None
        assert gauge(result, a, b) <= THRESHOLD


def test_a_missing_rank_is_named(ctx: pblas.Context) -> None:
    """As on CPUs: between two agreements of the hosts all ranks wait for each other with a deadline."""
    if ctx.nprocs < 2:
        pytest.skip("nobody to wait for")
    name: Any = ctx.runtime.backend.name
    with pblas.Context(backend=name, timeout=2.0) as context:
        desc = MatrixDescriptor(24, 24, 2, 2, Grid(2, context.nprocs // 2))
        a, b, d = (context.zeros(desc) for _ in range(3))
        planned = pblas.plan_matmul(a, b, out=d)
        if planned.plan.transport == "push":
            pytest.skip("executions of this plan wait on the GPU, as tests/gpu/faults has them")
        if COMM.rank == 0:
            time.sleep(4.0)
        raises_on_all_ranks(pblas.PeerTimeout, "rank 0", lambda: planned.execute(a, b, out=d))


def test_info_of_gpus_names_the_message_path(ctx: pblas.Context) -> None:
    text = same_on_all_ranks(ctx.describe()["transport"])
    if ctx.runtime.backend.name == "cuda":
        assert "straight from GPU memory" in text or "pinned memory" in text
    assert isinstance(ctx.zeros(MatrixDescriptor.row_wise(8, 7, ctx.nprocs)).local, cupy.ndarray)


@pytest.mark.parametrize("value", ["0", "1", "x"])
def test_the_path_of_messages_can_be_set(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBLAS_GPU_AWARE", value)
    if value == "x":
        raises_on_all_ranks(pblas.BackendError, "PBLAS_GPU_AWARE must be 0 or 1", lambda: context("cuda"))
        return
    with context("aware" if value == "1" else "cuda") as ctx:
        transport = ctx.describe()["transport"]
        assert f"PBLAS_GPU_AWARE={value}" in transport
        assert ("straight from GPU memory" in transport) == (value == "1")
        check_product(ctx)
        if value == "1":
            channel: Any = ctx.runtime.backend.channel
            assert (COMM.allreduce(channel._comm.nmessages) > 0) == (ctx.nprocs > 1)


@pytest.mark.parametrize("options", [{"transport": "shared"}, {"ranks_per_node": 2}])
def test_an_invalid_message_setting_is_rejected(options: Any) -> None:
    wrong = partial(pblas.Context, backend="cuda", timeout=SECONDS, **options)
    raises_on_all_ranks(pblas.ArgumentError, "setting of backend='mpi'", wrong)


def test_bits_of_an_array_that_is_not_a_number_survive(ctx: pblas.Context) -> None:
    """Copies are bit by bit, also those of a kernel."""
    words = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    a = ctx.from_global(words.view(np.float16), MatrixDescriptor(256, 256, 3, 5, Grid(1, ctx.nprocs)), root=None)
    b = a.redistribute(MatrixDescriptor(256, 256, 7, 2, Grid(ctx.nprocs, 1), order="C"))
    result = b.to_global(root=None)
    assert result is not None
    assert np.array_equal(np.ascontiguousarray(result).view(np.uint16), words)
