"""Laws of the epilogues of products on GPUs, with every algorithm: D's values, and the step that computes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas import Epilogue, MatrixDescriptor
from pblas.backends.cpu.pointwise import evaluate
from pblas.backends.nvshmem.stream_engine import StreamEngine
from pblas.epilogues import NAMED, operand_names, parse, substituted
from tests.common.gauge import Array, dtype_of, eps_of
from tests.common.ranks import COMM
from tests.gpu.products.products import algorithms, sync, take
from tests.mpi.operations.test_matmul import LAYOUTS

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

P, RANK = COMM.size, COMM.rank
ALPHA = 2.0**-7
IN_THE_SUM = ("relu(x * s + bias) - h", "gelu(x + bias) * s")
GELU = substituted(NAMED["gelu_tanh"], "x + bias")
IN_THE_GEMM = {"relu(x + bias)": "float32", GELU: "float16", "bias": "bfloat16"}


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=30) as context:
        yield context


class Passes(list[bool]):
    """The additional passes of an execution over D; for each, whether it was recorded at planning."""

    def begin(self) -> None:
        """Forget the rehearsals of a new plan; recorded calls are part of its executions."""
        self[:] = [recorded for recorded in self if recorded]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    finish, counts = StreamEngine.finish, Passes()

    def noted(engine: Any, lane: str, follows: Any, z: Any) -> None:
        if follows is not None and z.size:
            counts.append(not isinstance(engine.stream(lane), int))
        finish(engine, lane, follows, z)

    monkeypatch.setattr(StreamEngine, "finish", noted)
    return counts


def described(kind: str, m: int, n: int, order: Any) -> MatrixDescriptor:
    make: Any = {"rows": MatrixDescriptor.row_wise, "columns": MatrixDescriptor.column_wise}
    return make.get(kind, MatrixDescriptor.replicated)(m, n, P, order=order)


def on_gpu(x: Array) -> Any:
    return cupy.asarray(np.ascontiguousarray(x).view(np.uint8)).view(x.dtype)


class Finished:
    """A product of small integers with an epilogue, whose sums do not fit 16 bits: rounding first would be visible.

    Args:
        ctx: of the matrices (global).
        layout: of op(A), op(B) and D (global).
        sizes: of M, N and K (global).
        dtype: of the matrices (global).
        order: of D (global).
        text: of the expression (global).
        beta: of C (global).
    """

    def __init__(
        self,
        ctx: pblas.Context,
        layout: str,
        sizes: tuple[int, int, int],
        dtype: str,
        order: str,
        text: str,
        beta: float,
    ) -> None:
        (m, n, k), kinds, self.dtype, self.beta = sizes, LAYOUTS[layout], dtype_of(dtype), beta
        random = np.random.default_rng(m + n)

        def integers(*shape: int) -> Array:
            values: Array = random.integers(1, 4, shape).astype(self.dtype)
            return values

        orders, shapes = ("C", "F", order), ((m, k), (k, n), (m, n))
        descs = [described(*each) for each in zip(kinds, *zip(*shapes, strict=True), orders, strict=True)]
        a, b, c, self.h, self.bias = integers(m, k), integers(k, n), *(integers(m, n) for _ in "ch"), integers(n)
        self.A, self.B, self.C = (ctx.from_global(x, desc, None) for x, desc in zip((a, b, c), descs, strict=True))
        self.H, self.D = ctx.from_global(self.h, descs[2], None), ctx.empty(descs[2], dtype)
        rows, columns = descs[2].global_ranges(RANK)
        self._block = np.ix_(
            *(np.concatenate([np.arange(*r) for r in ranges] or [np.arange(0)]) for ranges in (rows, columns))
        )
        local_bias = on_gpu(self.bias[self._block[1][0]])
        self.exact = ALPHA * (a.astype(float) @ b.astype(float)) + beta * c.astype(float)
        operands = {"s": 0.75, "bias": local_bias, "h": self.H}
        self.epilogue = Epilogue(text, **{name: operands[name] for name in operand_names(parse(NAMED.get(text, text)))})
        self.options: dict[str, Any] = {"alpha": ALPHA, "beta": beta, "epilogue": self.epilogue}

    def check(self, *, once: bool, result: Any = None, s: float = 0.75) -> None:
        """Assert that D is the expression, rounded once at the end; or also before the epilogue."""
        operands = {"s": s, "bias": self.bias.astype(float), "h": self.h.astype(float)}
        x = self.exact if once else self.exact.astype(self.dtype).astype(float)
        assert self.epilogue.tree is not None
        expected = np.broadcast_to(evaluate(self.epilogue.tree, x, operands), x.shape)[self._block]
        d = self.D if result is None else result
        local = d.runtime.backend.reading(d.local).astype(float)
        half = 1.0 if self.epilogue.expression == GELU else 0.51  # cuBLASLt's tangent is approximate
        bound = half * eps_of(self.dtype) * np.abs(expected) + 16 * np.finfo(np.float32).eps * (1 + np.abs(expected))
        assert not local.size or (np.abs(local - expected) <= bound).all(), np.abs(local - expected).max()


def test_epilogues_in_graphs_of_the_caller(ctx: pblas.Context) -> None:
    """Captured twice with different operands, replayed alternately."""
    job = Finished(ctx, "AR", (16 * P, 64 * P, 24 * P), "bfloat16", "C", IN_THE_SUM[0], 0.0)
    stream, graphs = cupy.cuda.Stream(non_blocking=True), []
    with pblas.plan_matmul(job.A, job.B, out=job.D, **job.options) as mm, stream:
        for s in (0.75, 0.25):
            stream.begin_capture()
            mm.execute(job.A, job.B, out=job.D, operands={**job.epilogue.operands, "s": s})
            graphs.append((s, stream.end_capture()))
        for s, graph in (*graphs, *graphs):
            graph.launch(stream)
            sync()
            job.check(once=True, s=s)
            COMM.Barrier()


@pytest.mark.parametrize("layout", ["RS to rows", "RS to columns", "AR"])
def test_reductions_apply_the_epilogue_to_their_sums(
    ctx: pblas.Context, layout: str, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed eagerly, captured in both halves and replayed; then with other operands."""
    if P == 1:
        pytest.skip("one rank adds nothing")
    cases = itertools.cycle([("bfloat16", "C", 0, 0.0), ("float32", "F", 1, 0.0), ("bfloat16", "F", 0, -0.5)])
    sizes = itertools.cycle([(16 * P, 64 * P, 24 * P), (137, 261, 24 * P - 5)])
    for algorithm in algorithms(layout, P):
        take(algorithm, monkeypatch)
        for _ in range(2):
            dtype, order, number, beta = next(cases)
            job = Finished(ctx, layout, next(sizes), dtype, order, IN_THE_SUM[number], beta)
            passes.clear()
            with pblas.plan_matmul(job.A, job.B, job.C if beta else None, out=job.D, **job.options) as mm:
                assert ("in the GEMM's kernel" if algorithm.is_one_kernel else "in the reduction") in mm.explain()
                passes.begin()
                for _ in range(4):
                    mm.execute(job.A, job.B, job.C if beta else None, out=job.D)
                    job.check(once=True)
                    with ctx.runtime.backend.writing(job.D.local) as part:
                        part[...] = np.nan
                operands = {**job.epilogue.operands, "s": 0.25}
                job.check(
                    once=True, result=mm.execute(job.A, job.B, job.C if beta else None, operands=operands), s=0.25
                )
                assert not passes


@pytest.mark.parametrize("layout", ["AG(A) rows", "AG(B) columns", "AG(A) columns", "Local columns"])
def test_epilogues_by_cublaslt_or_in_an_additional_pass(
    ctx: pblas.Context, layout: str, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders, betas = itertools.cycle("CCF"), itertools.cycle([0.0, 0.5])
    cases = itertools.cycle([*IN_THE_GEMM.items(), (IN_THE_SUM[0], "bfloat16")])
    for algorithm in algorithms(layout, P) if P > 1 and layout.startswith("AG") else [None]:
        if algorithm is not None:
            take(algorithm, monkeypatch)
        for sizes in ((16 * P, 64 * P, 64), (137, 261, 50), (64, 128 * P, 64)):
            (text, dtype), order, beta = next(cases), next(orders), next(betas)
            job = Finished(ctx, layout, sizes, dtype, order, text, beta)
            passes.clear()
            with pblas.plan_matmul(job.A, job.B, job.C if beta else None, out=job.D, **job.options) as mm:
                by_gemm = "in the GEMM (cuBLASLt" in mm.explain()
                assert not by_gemm or text in IN_THE_GEMM
                passes.begin()
                for _ in range(4):  # the last one is a replay, which issues no operation
                    mm.execute(job.A, job.B, job.C if beta else None, out=job.D)
                    job.check(once=not passes)
                    assert not (by_gemm and passes and sizes[0] % 16 == 0)
