"""Laws of products of several dtypes on GPUs: those of tests/mpi, with NVSHMEM and with messages; managed memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, tp
from pblas.backends.cuda.transfer import new_array
from pblas.backends.dtypes import E4M3, FLOAT8
from tests.common.gauge import THRESHOLD, entries, eps_of
from tests.common.ranks import same_on_all_ranks
from tests.gpu.products.general import context
from tests.gpu.products.products import COMMUNICATING, algorithms, sync, take
from tests.gpu.products.test_arrays import Contexts
from tests.mpi.operations.test_dtypes import (  # noqa: F401 - pytest runs the imported tests on GPUs
    SHORT_EPS,
    placed,
    scalar,
    test_layers_take_8_bits,
    test_matrices_of_8_bits_are_moved_and_converted_exactly,
    test_products_are_those_of_float64,
    test_scales_are_replaced_in_an_execution,
    test_what_is_not_defined_is_refused_on_all_ranks,
    whole,
    wide,
)
from tests.mpi.operations.test_matmul import LAYOUTS

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module")
def contexts() -> Iterator[dict[str, pblas.Context]]:
    with context("nvshmem") as pushing, context("cuda") as sending:
        yield Contexts(push=pushing, message=sending)


@pytest.fixture(scope="module")
def ctx(contexts: dict[str, pblas.Context]) -> pblas.Context:
    return contexts["push"]


@pytest.mark.parametrize("layout", COMMUNICATING)
def test_every_algorithm_and_replay(ctx: pblas.Context, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each algorithm that a plan of 8 bits can take gives the same result, eager, captured and replayed."""
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    sizes = itertools.cycle([(64 * ctx.nprocs, 32 * ctx.nprocs, 32 * ctx.nprocs), (130, 77, 75)])
    for turn, algorithm in enumerate(a for a in algorithms(layout, ctx.nprocs) if not a.is_one_kernel):
        take(algorithm, monkeypatch)
        m, n, k = next(sizes)
        a, b = entries((m, k), E4M3, turn), entries((k, n), E4M3, turn + 1)
        x, y = (placed(ctx, z, kind, order) for z, kind, order in zip((a, b), LAYOUTS[layout], "CF", strict=False))
        out = placed(ctx, np.zeros((m, n), "float16"), LAYOUTS[layout][2], "FC"[turn % 2])
        scale = scalar(ctx, 0.125)
        with pblas.plan_matmul(x, y, out=out, scale_a=scale, wire_dtype="float16") as planned:
            assert planned.plan.algorithm == algorithm
            for _ in range(4):
                sync()
                planned.execute(x, y, out=out)
        exact, size = (0.125 * z for z in (wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b))))
        assert (abs(wide(whole(out)) - exact) <= THRESHOLD * eps_of(out.dtype) * size).all()


def test_autotune_trace_queue_and_the_callers_graph(ctx: pblas.Context) -> None:
    """A tuned plan on a queue, traced, and in a CUDA graph, which reads the scale when it runs."""
    m, n, k = 32 * ctx.nprocs, 16 * ctx.nprocs, 48
    a, b = entries((m, k), E4M3, 1), entries((k, n), E4M3, 2)
    x, y = placed(ctx, a, "rows", "C"), placed(ctx, b, "columns", "F")
    out, scale = placed(ctx, np.zeros((m, n), np.float32), "rows", "C"), scalar(ctx, 1.0)
    exact, size = wide(a) @ wide(b), abs(wide(a)) @ abs(wide(b))

    def check(factor: float) -> None:
        sync()
        assert (abs(wide(whole(out)) - factor * exact) <= THRESHOLD * SHORT_EPS * factor * size).all()

    options: dict[str, Any] = {"out": out, "scale_b": scale, "autotune": True}
    with pblas.plan_matmul(x, y, **options, queue=1, fast_accumulate=True) as planned:
        planned.execute(x, y, out=out)
        check(1.0)
    with pblas.plan_matmul(x, y, **options) as planned:
        trace = planned.trace(x, y, out=out)
        check(1.0)
        assert ctx.rank or any(event.kind == "gemm" for event in trace.events)
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture()
        planned.execute(x, y, out=out, stream=stream)
        graph = stream.end_capture()
        for factor in (2.0, 0.25):
            with ctx.runtime.backend.writing(scale.reshape(1, 1)) as host:
                host[...] = factor
            graph.launch(stream)
            stream.synchronize()
            check(factor)


def test_tensors_of_8_bits_are_taken(ctx: pblas.Context) -> None:
    torch = pytest.importorskip("torch")
    torch.cuda.set_device(cupy.cuda.Device().id)
    torch.manual_seed(0)  # the same tensors on every rank
    x = torch.randn(16, 32, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(48, 32, device="cuda").to(torch.float8_e5m2)
    y = tp.allgather_linear(x, w, out_dtype="float32", ctx=ctx)
    exact = (x.to(torch.float64) @ w.to(torch.float64).T).repeat(ctx.nprocs, 1)
    assert y.dtype == torch.float32
    assert float((y.to(torch.float64) - exact).abs().max()) <= 1e-2


@pytest.mark.parametrize("dtype", [E4M3, np.dtype(np.float32)])
def test_managed_memory_is_taken_wherever_arrays_are(contexts: dict[str, pblas.Context], dtype: Any) -> None:
    """As an operand, a result, an operand of an epilogue and a part of a matrix."""
    for ctx in contexts.values():
        m = n = k = 16 * ctx.nprocs
        rows = MatrixDescriptor.row_wise(m, k, ctx.nprocs, order="C")
        columns = MatrixDescriptor.column_wise(k, n, ctx.nprocs)
        matrices = []
        for desc, seed in ((rows, 1), (columns, 2)):
            shape = desc.local_shape(ctx.rank)
            memory = cupy.cuda.malloc_managed(max(shape[0] * shape[1] * dtype.itemsize, 1))
            local = new_array(shape, dtype, memory, order=desc.order)
            with ctx.runtime.backend.writing(local) as host:
                host[...] = entries(shape, dtype, seed + 10 * ctx.rank)
            matrices.append(ctx.from_local(local, desc))
        a, b = matrices
        desc_d = MatrixDescriptor.row_wise(m, n, ctx.nprocs, order="C")
        shape = desc_d.local_shape(ctx.rank)
        kind = np.dtype(np.float32)
        out = ctx.from_local(new_array(shape, kind, cupy.cuda.malloc_managed(max(4 * shape[0] * shape[1], 1))), desc_d)
        bias = new_array((n,), kind, cupy.cuda.malloc_managed(4 * n))
        bias[...] = 1
        sync()
        d = pblas.pmatmul(a, b, out=out, epilogue=pblas.Epilogue("x + bias", bias=bias))
        exact, size = wide(whole(a)) @ wide(whole(b)) + 1, abs(wide(whole(a))) @ abs(wide(whole(b))) + 1
        eps = SHORT_EPS if dtype in FLOAT8 else eps_of(kind)
        assert (abs(wide(whole(d)) - exact) <= THRESHOLD * eps * size).all()
        same_on_all_ranks(whole(d).tobytes())
