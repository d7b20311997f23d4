"""Laws of products that one kernel computes and sends: tiles that wait for operands, add terms and signal stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import pblas
from pblas.backends.nvshmem.stream_engine import StreamEngine
from pblas.plans.algorithm import Algorithm, AlgorithmKind
from tests.gpu.products.products import Run, take
from tests.mpi.operations.test_matmul import LAYOUTS, Case, Dimension

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=30.0) as context:
        yield context


@pytest.fixture
def served(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each product that one kernel should compute, whether it did."""
    if ctx.nprocs == 1 or not ctx.runtime.topology.tiles:
        pytest.skip("one rank moves nothing, and other GPUs have no such kernel")
    together, calls = StreamEngine.multiply_portions, list[bool]()

    def noted(engine: Any, *rest: Any, **more: Any) -> bool:
        calls.append(together(engine, *rest, **more))
        return calls[-1]

    monkeypatch.setattr(StreamEngine, "multiply_portions", noted)
    return calls


TILED = ("AG(B) columns", "AG(A) rows", "AG(B) A replicated", "RS to rows", "RS to columns", "AR")


@pytest.mark.parametrize(
    ("layout", "by"),
    [(layout, by) for layout in TILED for by in ("tile_signals", "fused_stores")[: 1 if "AG" in layout else 2]],
)
def test_tile_signals_in_one_kernel(
    ctx: pblas.Context, layout: str, by: AlgorithmKind, served: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel multiplies if TMA can address all matrices, otherwise several GEMMs; also with uneven shards."""
    p = ctx.nprocs
    dims = [
        ((Dimension(264 * p), Dimension(136 * p), Dimension(72 * p)), True),
        ((Dimension(264 * p - 256, 264), Dimension(520 * p - 512, 520), Dimension(72 * p - 64, 72)), True),
        (
            (Dimension(264 * p - 520, 264), Dimension(48 * p), Dimension(520)),
            layout.startswith("AG"),
        ),  # a rank has nothing
        ((Dimension(100), Dimension(1032 * p), Dimension(77)), False),
    ]
    scalars = itertools.cycle([(1.0, 0.0), (0.75, -0.5), (-1.0, 1.0)])
    pieces = [(1,), (2,), (2, 1, 1)] if layout.startswith("AG") else [(1,), (1, 1), (2, 1, 1)]
    orders: Any = itertools.product("FC", repeat=3)
    for index, order in enumerate(orders):
        sizes_, fits = dims[index % len(dims)]
        take(Algorithm(by, pieces[index % 3]), monkeypatch)
        alpha, beta = next(scalars)
        name = ("bfloat16", "float16")[index // 2 % 2]
        case = Case(
            *(*sizes_, LAYOUTS[layout], name),
            orders=(*order, order[2]),
            alpha=alpha,
            beta=beta,
            homes="wuuw",
            options=(("wire_dtype", name),),
        )
        served.clear()
        Run(ctx, case).multiply()
        assert not fits or all(served), case
    assert served


@pytest.mark.parametrize("layout", ["AG(A) rows", "RS to rows", "AR"])
def test_any_number_of_rows_in_one_kernel(
    ctx: pblas.Context, layout: str, served: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of rows of row-major matrices need not be a multiple of 16 bytes."""
    ways: tuple[AlgorithmKind, ...] = ("tile_signals",) if layout.startswith("AG") else ("tile_signals", "fused_stores")
    p = ctx.nprocs
    for by, rows in itertools.product(ways, (263 * p - 4, 1025 * p)):
        take(Algorithm(by, (1, 1) if by == "tile_signals" and not layout.startswith("AG") else (1,)), monkeypatch)
        dims = Dimension(rows, -(-rows // p)), Dimension(520 * p), Dimension(72 * p)
        plan, _ = Run(ctx, Case(*dims, LAYOUTS[layout], "bfloat16", orders=("C", "F", "C", "C"), beta=0.5)).multiply()
        assert not plan.unfit_for_tiles
        assert served, by
        assert all(served), by
        served.clear()


@pytest.mark.parametrize("layout", [layout for layout in TILED if layout.startswith("RS")])
def test_fused_stores_in_one_kernel(
    ctx: pblas.Context, layout: str, served: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one round of tiles or several, and with an empty shard."""
    p = ctx.nprocs
    take(Algorithm("fused_stores"), monkeypatch)
    dims = [
        (Dimension(128 * p), Dimension(128 * p), Dimension(1032 * p)),
        (Dimension(264 * p - 256, 264), Dimension(264 * p - 256, 264), Dimension(72 * p)),
        (Dimension(264 * p - 520, 264), Dimension(264 * p - 520, 264), Dimension(520)),
    ]
    first = list(LAYOUTS).index(layout)
    orders = ("FCF", "CFC", "CCF") if first % 2 else ("CFC", "FFC", "FCF")
    for turn, (order, sizes_) in enumerate(zip(orders, dims, strict=True)):
        case = Case(
            *sizes_, LAYOUTS[layout], "bfloat16", orders=(*order, order[2]), beta=0.5 * (turn % 2), homes="wuuw"
        )
        served.clear()
        Run(ctx, case).multiply()
        assert turn == 2 or (served and all(served)), case
