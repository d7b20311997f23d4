"""Laws of pmatmul on GPUs: every layout, order, dtype and algorithm; eager, captured, replayed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import cupy
import numpy as np
import pytest

import pblas
from pblas.layouts.descriptor import MatrixDescriptor
from tests.common.gauge import NAMES, THRESHOLD, dtype_of, entries, gauge
from tests.common.ranks import COMM, same_on_all_ranks
from tests.gpu.products.products import COMMUNICATING, Run, algorithms, take
from tests.mpi.operations.test_matmul import EMPTY, LAYOUTS, TRANS, Case, Dimension, sizes

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

Order = Literal["F", "C"]
SECONDS = 30.0


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as context:
        yield context


def middle(nprocs: int) -> list[tuple[Dimension, Dimension, Dimension]]:
    """M, N and K, large enough for several pieces: even, uneven, cyclic, inside larger matrices."""
    far = nprocs - 1
    return [
        (Dimension(16 * nprocs), Dimension(64 * nprocs), Dimension(32 * nprocs)),
        (Dimension(137), Dimension(266), Dimension(75)),
        (Dimension(130, 16, far, 8, 6), Dimension(200, 24, 1, 16, 8), Dimension(96, 8, far)),
    ]


@pytest.mark.parametrize("name", [*NAMES, "tf32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_product(ctx: pblas.Context, layout: str, name: str) -> None:
    """Trans flags, sizes, orders, scalars, places and homes taken in turn, another combination for every dtype."""
    is_complex = name.startswith("complex")
    first = [*NAMES, "tf32"].index(name) + 5 * list(LAYOUTS).index(layout)
    orders: Any = itertools.cycle(itertools.product("FC", repeat=4))
    scalars: Any = itertools.cycle([(1.0, 0.0), (0.75, -0.5), (-1.0, 1.0), (0.0, 0.25), (2.0, 0.0)])
    if is_complex:
        scalars = itertools.cycle([(0.5 - 2j, 1.5 + 0.5j), (1j, 0.0), (1.0, 1.0), (0.0, 2j)])
    outs: Any = itertools.cycle(["matrix", "in place", "descriptor"])
    homes = itertools.cycle(["wwww", "uuuu", "wuuw", "oooo", "uwwu", "wwuu"])
    places = itertools.cycle(
        [place for pair in zip(sizes(ctx.nprocs), 2 * middle(ctx.nprocs), strict=True) for place in pair]
    )
    trans: Any = itertools.cycle(
        itertools.product(TRANS, repeat=2) if is_complex else itertools.product("NT", repeat=2)
    )
    for options in (orders, scalars, outs, homes, places, trans):
        next(itertools.islice(options, first, None))
    for _ in range(4):
        m, n, k = next(places)
        alpha, beta = next(scalars)
        flags, order, out, home = next(trans), next(orders), next(outs), next(homes)
        Run(ctx, Case(m, n, k, LAYOUTS[layout], name, flags, order, alpha, beta, out, home, first % 3)).multiply()


@pytest.mark.parametrize("layout", COMMUNICATING)
def test_every_algorithm(ctx: pblas.Context, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same laws with each algorithm; an all-reduce has equal bits on all ranks."""
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    names = itertools.cycle(["bfloat16", "float32", "float64", "float16", "complex64", "complex128", "tf32"])
    orders: Any = itertools.cycle(itertools.product("FC", repeat=4))
    betas = itertools.cycle([0.0, 0.5, 0.0, 1.0])
    next(itertools.islice(names, list(LAYOUTS).index(layout), None))
    next(itertools.islice(orders, 3 * list(LAYOUTS).index(layout), None))
    for algorithm in algorithms(layout, ctx.nprocs):
        take(algorithm, monkeypatch)
        for dims in middle(ctx.nprocs):
            case = Case(*dims, LAYOUTS[layout], next(names), orders=next(orders), beta=next(betas), homes="wuuo")
            plan, bits = Run(ctx, case).multiply()
            assert plan.algorithm == algorithm
            if layout.startswith("AR"):
                assert len(set(COMM.allgather(bits[0]))) == 1, f"the ranks have other bits: {algorithm}"


@pytest.mark.parametrize("layout", COMMUNICATING)
def test_the_number_of_gemms_can_be_set(ctx: pblas.Context, layout: str) -> None:
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    for chunks, overlap in ((1, True), (2, True), (ctx.nprocs, True), (None, False)):
        m, n, k = middle(ctx.nprocs)[0]
        case = Case(m, n, k, LAYOUTS[layout], "bfloat16", options=(("chunks", chunks), ("overlap", overlap)))
        plan, _ = Run(ctx, case).multiply()
        assert plan.transport == "push"
        assert plan.algorithm is not None
        if not overlap:
            assert plan.algorithm.kind != "copy_engine"
            assert plan.algorithm.groups == (1,)
    assert same_on_all_ranks(plan.algorithm) == plan.algorithm


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "replicated" not in name])
def test_empty_products(ctx: pblas.Context, layout: str) -> None:
    scalars = itertools.cycle([(1.0, 0.0), (1.0, 0.5), (0.0, 0.0)])
    for (m, n, k), name in zip(EMPTY, itertools.cycle(["bfloat16", "float32", "complex128"]), strict=False):
        dims = (Dimension(m, 2), Dimension(n, 2, 1), Dimension(k))
        alpha, beta = next(scalars)
        Run(ctx, Case(*dims, LAYOUTS[layout], name, alpha=alpha, beta=beta, out="in place")).multiply()


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("name", [*NAMES, "tf32"])
def test_all_reduce_leaves_the_same_bits_on_all_ranks(ctx: pblas.Context, name: str, order: Order) -> None:
    for beta, overlap, dims in itertools.product((0.0, 0.5), (True, False), middle(ctx.nprocs)[:2]):
        case = Case(
            *(*dims, LAYOUTS["AR"], name, ("N", "N"), ("F", "F", order, order)),
            beta=beta,
            options=(("overlap", overlap),),
        )
        _, bits = Run(ctx, case).multiply()
        assert len(set(COMM.allgather(bits[0]))) == 1


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_wire_dtype_bounds_the_roundings(ctx: pblas.Context, name: str) -> None:
    """Partial products are rounded once each, half an eps of their size, and the sum once; with a wide wire the sum."""
    for layout, beta in itertools.product(("RS to rows", "AR", "AG(B) rows"), (0.0, 0.5)):
        for wire, limit in ((None, 1.0), ("float32", 0.5)):
            case = Case(
                *(Dimension(7), Dimension(16), Dimension(40, 3), LAYOUTS[layout], name),
                orders=("F", "C", "C", "C"),
                beta=beta,
                options=(("wire_dtype", wire), ("chunks", 2)),
            )
            run = Run(ctx, case)
            arguments = run.arguments
            checker = run.load(0)
            result = pblas.pmatmul(run.A.view, run.B.view, **arguments)
            run.check(result, checker)
            rows, columns = (
                np.concatenate([np.arange(0), *(np.arange(*r) for r in ranges)]).astype(int)
                for ranges in result.desc.global_ranges(ctx.rank)
            )
            error = checker.error(result.runtime.backend.reading(result.local), rows, columns, run._eps)
            # The error of adding 40 terms in 32 bits is far below the other errors.
            assert error <= limit * (1 + 2**-6), f"{error}: {case}"


def test_the_callers_stream_orders_all_work(ctx: pblas.Context) -> None:
    """The call returns at once; earlier work on the stream writes the operands, later work reads D."""

    class Foreign:
        """As torch.cuda.Stream."""

        def __init__(self, handle: int) -> None:
            self._handle = handle

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self._handle

    own = cupy.cuda.Stream(non_blocking=True)
    m, n, k = middle(ctx.nprocs)[0]
    for layout in ("AG(B) rows", "RS to rows", "AR"):
        for stream in (own, Foreign(own.ptr), None):
            run = Run(ctx, Case(m, n, k, LAYOUTS[layout], "float32", homes="uuuu"))
            with own:
                run.multiply(stream=stream)


def test_an_invalid_stream_is_rejected_and_the_context_stays_usable(ctx: pblas.Context) -> None:
    n = 8 * ctx.nprocs
    desc = MatrixDescriptor.row_wise(n, n, ctx.nprocs)
    a, b, d = ctx.random(desc, seed=1), ctx.random(desc, seed=2), ctx.zeros(desc)
    with pblas.plan_matmul(a, b, out=d) as planned:
        for _ in range(2):
            with pytest.raises(pblas.ArgumentError, match="__cuda_stream__"):
                planned.execute(a, b, out=d, stream=7)
            planned.execute(a, b, out=d)
    result, left, right = (x.to_global(None) for x in (d, a, b))
    assert result is not None
    assert left is not None
    assert right is not None
    assert gauge(result, left, right) <= THRESHOLD


def test_plans_are_tuned_the_same_on_every_rank_and_products_stay_right(ctx: pblas.Context) -> None:
    m, n, k = middle(ctx.nprocs)[0]
    for layout in ("AG(B) rows", "RS to rows", "AR"):
        run = Run(ctx, Case(m, n, k, LAYOUTS[layout], "bfloat16", options=(("autotune", True),)))
        _, bits = run.multiply()
        if layout == "AR":
            assert len(set(COMM.allgather(bits[0]))) == 1


def test_successive_products_without_a_wait(ctx: pblas.Context) -> None:
    """X = A @ X, a chain of new matrices without a wait; A shifts the rows."""
    n = 16 * ctx.nprocs
    x = entries((n, 8), dtype_of("float64"), 2)
    a = ctx.from_global(lambda i, j: (j - i) % n == 1, MatrixDescriptor.row_wise(n, n, ctx.nprocs))
    result = ctx.from_global(x, MatrixDescriptor.row_wise(n, 8, ctx.nprocs), root=None)
    with pblas.plan_matmul(a, result) as planned:
        for _ in range(100):
            result = planned.execute(a, result)
    whole = result.to_global(None)
    assert whole is not None
    assert np.array_equal(whole, np.roll(x, -100, axis=0))
