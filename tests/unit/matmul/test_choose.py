"""Laws of the planner: the plan for each row of the decision table, and the plans of each transport."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import pblas
from pblas.errors import PblasError, PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.matmul.choose import (
    _MUCH_QUICKER,
    Search,
    _best,
    _grid_outputs,
    _outputs,
    choose,
    choose_output,
    one_dimensional,
)
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.summa_plan import Summa
from pblas.simulation.hardware import Topology
from pblas.simulation.simulate import predict

KINDS = {"row": MatrixDescriptor.row_wise, "col": MatrixDescriptor.column_wise, "all": MatrixDescriptor.replicated}

# op(A), op(B), D -> the plan for m = n = k, with the gathered operand, or the owner of the sums, as the user sees it.
TABLE = {
    ("row", "row", "row"): "gather B",
    ("row", "row", "col"): "error",
    ("row", "row", "all"): "error",
    ("row", "col", "row"): "gather B",
    ("row", "col", "col"): "gather A",
    ("row", "col", "all"): "error",
    ("row", "all", "row"): "local rows",
    ("row", "all", "col"): "gather A",
    ("row", "all", "all"): "error",
    ("col", "row", "row"): "scatter rows",
    ("col", "row", "col"): "scatter columns",
    ("col", "row", "all"): "reduce",
    ("col", "col", "row"): "error",
    ("col", "col", "col"): "gather A",
    ("col", "col", "all"): "error",
    ("col", "all", "row"): "scatter rows",
    ("col", "all", "col"): "gather A",
    ("col", "all", "all"): "reduce",
    ("all", "row", "row"): "gather B",
    ("all", "row", "col"): "scatter columns",
    ("all", "row", "all"): "reduce",
    ("all", "col", "row"): "gather B",
    ("all", "col", "col"): "local columns",
    ("all", "col", "all"): "error",
    ("all", "all", "row"): "local rows",
    ("all", "all", "col"): "local columns",
    ("all", "all", "all"): "local",
}


def plan_for(a: str, b: str, d: str, m: int = 12, n: int = 12, k: int = 12, nprocs: int = 4) -> ProductPlan:
    """The plan of the table; the plan of `choose` is the same, or receives fewer bytes."""
    descs = KINDS[a](m, k, nprocs), KINDS[b](k, n, nprocs), KINDS[d](m, n, nprocs)
    chosen = choose("float64", *descs, context=PlanningContext(Topology(), nprocs))
    found = list(one_dimensional("float64", *descs, nprocs))
    if not found:
        assert isinstance(chosen, Summa)
        raise PlanError("not in the table")
    plan = min(found, key=lambda plan: plan.max_received_nbytes)
    if isinstance(chosen, Summa):
        assert chosen.max_received_nbytes < plan.max_received_nbytes
    else:
        assert (chosen.name, chosen.product, chosen.transposed) == (plan.name, plan.product, plan.transposed)
    return plan


def kind_of(plan: ProductPlan) -> str:
    """A plan in the notation of the table."""
    if isinstance(plan, AllGatherGemm):
        assert plan.gathered == ("A" if plan.transposed else "B")
        return f"gather {plan.gathered}"
    if isinstance(plan, GemmAllReduce):
        return "reduce"
    if isinstance(plan, GemmReduceScatter):
        assert plan.transposed == (plan.product.d.axis == "rows")
        return f"scatter {plan.product.d.axis}"
    assert isinstance(plan, LocalGemm)
    return "local" if plan.product.d.axis == "all" else f"local {plan.product.d.axis}"


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(itertools.product(KINDS, repeat=3))


@pytest.mark.parametrize("nprocs", [2, 4, 6])
@pytest.mark.parametrize(("a", "b", "d"), TABLE)
def test_every_combination(a: str, b: str, d: str, nprocs: int) -> None:
    if TABLE[a, b, d] == "error":
        with pytest.raises(PlanError, match="not in the table"):
            plan_for(a, b, d, nprocs=nprocs)
        return
    plan = plan_for(a, b, d, nprocs=nprocs)
    assert kind_of(plan) == TABLE[a, b, d]
    assert (plan.product.a.axis, plan.product.b.axis, plan.product.d.axis) == tuple(
        {"row": "rows", "col": "columns", "all": "all"}[kind] for kind in (a, b, d)
    )
    if nprocs != 6:
        words = {"gather": 144 * (nprocs - 1) // nprocs, "reduce": 288 * (nprocs - 1) // nprocs, "local": 0}
        words["scatter"] = words["gather"]
        assert plan.max_received_nbytes == 8 * words[TABLE[a, b, d].partition(" ")[0]]


@pytest.mark.parametrize(("a", "b", "d"), TABLE)
def test_one_rank_multiplies_alone(a: str, b: str, d: str) -> None:
    plan = plan_for(a, b, d, nprocs=1)
    assert isinstance(plan, LocalGemm)
    assert plan.max_received_nbytes == plan.workspace_nbytes == 0


@pytest.mark.parametrize(("a", "b", "d"), [key for key, kind in TABLE.items() if kind != "error"])
def test_transposing_everything_transposes_the_plan(a: str, b: str, d: str) -> None:
    """The plan of D^T = op(B)^T op(A)^T moves the same data, with the operands exchanged."""
    turned = {"row": "col", "col": "row", "all": "all"}
    plan, other = plan_for(a, b, d, 24, 20, 12), plan_for(turned[b], turned[a], turned[d], 20, 24, 12)
    assert other.product == plan.product.T
    assert other.max_received_nbytes == plan.max_received_nbytes
    if plan.name != "LocalGemm":
        assert other.oriented == plan.oriented
        assert other.transposed != plan.transposed


PUSH = Topology(4, shared=True, push=True, gpus=True)


@pytest.mark.parametrize(("a", "b", "d"), [key for key, kind in TABLE.items() if kind == "error"])
def test_products_that_cannot_be_pushed_have_a_general_plan(a: str, b: str, d: str) -> None:
    """Between agreements of the hosts, ranks on GPUs read their peers' memory too."""
    descs = [KINDS[kind](12, 12, 4) for kind in (a, b, d)]
    plan = choose("float64", *descs, context=PlanningContext(PUSH, 4))
    assert isinstance(plan, Summa)
    assert (plan.transport, plan.algorithm) == ("shared", None)


@pytest.mark.parametrize("where", ["a", "b", "d"])
@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(2, 2, "R"), Grid(4, 1)])
def test_products_that_can_be_pushed_are_pushed(where: str, grid: Grid) -> None:
    descs = {"a": KINDS["row"](12, 12, 4), "b": KINDS["row"](12, 12, 4), "d": KINDS["row"](12, 12, 4)}
    descs[where] = MatrixDescriptor(12, 12, 3, 3, grid)
    plan = choose("float64", descs["a"], descs["b"], descs["d"], context=PlanningContext(PUSH, 4))
    if grid.npcol == 1:
        assert kind_of(plan) == "gather B"  # 4 x 1 is row-wise
        assert plan.transport == "push"
    else:
        assert isinstance(plan, Summa)


@pytest.mark.parametrize(("a", "b", "d"), TABLE)
def test_on_gpus_that_send_messages_all_plans_are_general_or_local(a: str, b: str, d: str) -> None:
    descs = [KINDS[kind](12, 12, 4) for kind in (a, b, d)]
    for strict in (False, TABLE[a, b, d] != "error"):
        plan = choose("float64", *descs, context=PlanningContext(Topology(1, gpus=True), 4), strict=strict)
        assert isinstance(plan, Summa | LocalGemm)
        assert plan.transport == "message"


def test_layouts_that_are_not_equivalent_are_not_confused() -> None:
    """Other blocks, another source or fewer ranks make another layout; layouts with the same owners are equivalent."""
    row = MatrixDescriptor.row_wise
    for d in (row(12, 12, 4, mb=1), row(12, 12, 4, rsrc=1), row(12, 12, 3)):
        for a, b, out in ((row(12, 12, 4), row(12, 12, 4), d), (d.T, row(12, 12, 4), row(12, 12, 4))):
            assert not list(one_dimensional("float64", a, b, out, 4))
            assert isinstance(choose("float64", a, b, out, context=PlanningContext(Topology(), 4)), Summa)
    same = MatrixDescriptor(12, 12, 3, 5, Grid(4, 1), imb=3)
    plan = choose("float64", row(12, 12, 4), row(12, 12, 4), same, context=PlanningContext(Topology(), 4))
    assert kind_of(plan) == "gather B"


@pytest.mark.parametrize(
    ("a", "b", "m", "n", "k", "d", "kind"),
    [
        ("row", "row", 12, 12, 12, "row", "gather B"),
        ("row", "col", 800, 8, 8, "row", "gather B"),
        ("row", "col", 8, 800, 8, "col", "gather A"),
        ("col", "col", 12, 12, 12, "col", "gather A"),
        ("col", "row", 8, 800, 80, "col", "scatter columns"),
        ("col", "row", 800, 8, 80, "row", "scatter rows"),
        ("row", "all", 12, 12, 12, "row", "local rows"),
        ("all", "col", 12, 12, 12, "col", "local columns"),
        ("col", "all", 8, 8, 80, "col", "scatter columns"),
        ("all", "all", 12, 12, 12, "all", "local"),
    ],
)
@pytest.mark.parametrize("order", ["F", "C"])
def test_output_is_the_cheapest(
    a: str, b: str, m: int, n: int, k: int, d: str, kind: str, order: Literal["F", "C"]
) -> None:
    left, right = KINDS[a](m, k, 4), KINDS[b](k, n, 4)
    found = choose_output("float64", left, right, nprocs=4, order=order)
    assert found.order == order
    assert found.same_distribution(KINDS[d](m, n, 4))

    def cost(out: MatrixDescriptor) -> float:
        plans = list(one_dimensional("float64", left, right, out, 4))
        if out is found:
            assert kind in [kind_of(plan) for plan in plans]
        return min((plan.max_received_nbytes for plan in plans), default=math.inf)

    least = cost(found)
    assert all(least <= cost(make(m, n, 4)) for make in KINDS.values())


def test_output_follows_cyclic_operands() -> None:
    """A gather keeps the blocks and the source of the operand that stays."""
    a = MatrixDescriptor.row_wise(800, 8, 4, mb=3, rsrc=2)
    b = MatrixDescriptor.row_wise(8, 8, 4, mb=1, rsrc=1)
    found = choose_output("float64", a, b, nprocs=4, order="F")
    assert found == MatrixDescriptor.row_wise(800, 8, 4, mb=3, rsrc=2)
    grid = MatrixDescriptor(12, 12, 3, 3, Grid(2, 2))
    assert choose_output("float64", grid, grid, nprocs=4, order="F") == grid


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (MatrixDescriptor(1000, 1000, 64, 64, Grid(2, 2)), MatrixDescriptor(1000, 1000, 64, 64, Grid(2, 2))),
        (MatrixDescriptor(13, 13, 2, 2, Grid(2, 2)), MatrixDescriptor.row_wise(13, 13, 4)),
        (MatrixDescriptor(200, 1000, 2, 8, Grid(2, 2)), MatrixDescriptor(1000, 1000, 8, 8, Grid(1, 1))),
        (MatrixDescriptor(40, 1000, 50, 50, Grid(1, 1)), MatrixDescriptor(1000, 40, 8, 50, Grid(2, 2))),
    ],
)
def test_the_layout_of_d_is_the_cheapest_of_all_that_are_tried(a: MatrixDescriptor, b: MatrixDescriptor) -> None:
    """No layout of those that are tried has a plan that is predicted to be much faster."""
    context, chosen = PlanningContext(Topology(), 4), choose_output("float64", a, b, nprocs=4, order="F")
    tried = [*_grid_outputs(a, b, "F"), *_outputs(a, b, 4, "F")]
    assert chosen in tried
    seconds = {d: context.seconds(choose("float64", a, b, d, context=context)) for d in tried}
    assert seconds[chosen] * _MUCH_QUICKER <= min(seconds.values())


# A as stored, B as stored, D, transb: the data that moves for a C-order product; cuBLASMp sees it as D^T = B^T A^T.
C_ORDER = [
    ("row", "col", "col", "N", "gather A"),
    ("row", "row", "col", "T", "gather A"),
    ("col", "row", "row", "N", "scatter rows"),
    ("col", "col", "row", "T", "scatter rows"),
    ("col", "row", "all", "N", "reduce"),
    ("col", "col", "all", "T", "reduce"),
]


@pytest.mark.parametrize(("a", "b", "d", "transb", "expected"), C_ORDER)
def test_c_order_table(a: str, b: str, d: str, transb: Literal["N", "T"], expected: str) -> None:
    """The order changes no plan and no byte, and the swapped call on the same memory is the mirrored plan."""
    (m, n, k), plans = (12, 80, 16) if "gather" in expected else (12, 8, 160), {}
    for order in ("F", "C"):
        left, out = KINDS[a](m, k, 4, order=order), KINDS[d](m, n, 4, order=order)
        right = KINDS[b](*((k, n) if transb == "N" else (n, k)), 4, order=order)
        plans[order] = pblas.plan_matmul(left, right, transb=transb, out=out, dtype="float64").plan
        swapped = pblas.plan_matmul(
            right.T, left.T, transa="N" if transb == "N" else "T", out=out.T, dtype="float64"
        ).plan
        assert swapped.product == plans[order].product.T
        assert swapped.max_received_nbytes == plans[order].max_received_nbytes
        assert swapped.workspace_nbytes == plans[order].workspace_nbytes
    assert plans["F"] == plans["C"]
    assert kind_of(plans["F"]) == expected


@pytest.mark.parametrize(
    ("key", "topology", "several"),
    [
        (("row", "row", "row"), Topology(), False),  # a shard arrives while the own one is multiplied
        (("row", "row", "row"), Topology(4, shared=True), False),
        (("col", "row", "col"), Topology(2, shared=True, bandwidth=1e9), True),
        (("col", "row", "col"), Topology(bandwidth=1e8), True),  # the last partial product comes after the last GEMM
    ],
)
def test_default_chunks_of_a_large_product(key: tuple[str, str, str], topology: Topology, several: bool) -> None:
    descs, context = [KINDS[kind](8192, 8192, 4) for kind in key], PlanningContext(topology, 4)
    plan = choose("float64", *descs, context=context)
    assert (plan.transport, plan.chunks > 1) == (topology.transport(4), several)
    seconds = {chunks: context.seconds(replace(context, chunks=chunks).complete(plan)) for chunks in (1, 2, 4, 8)}
    assert not several or context.seconds(plan) <= min(seconds.values())
    assert choose("float64", *descs, context=replace(context, chunks=3)).chunks == 3
    assert plan_for(*key).chunks == 1  # a small one moves whole


@pytest.mark.parametrize("nprocs", [1, -3, "x", True])
def test_fewer_ranks_than_a_grid_has_are_refused(nprocs: Any) -> None:
    desc = MatrixDescriptor.row_wise(8, 8, 3)
    with pytest.raises(pblas.ArgumentError, match="nprocs must be an integer >= 3"):
        pblas.plan_matmul(desc, desc, dtype="float64", nprocs=nprocs)
    with pytest.raises(pblas.ArgumentError, match="nprocs must be an integer >= 3"):
        pblas.plan_redistribution(desc, desc.T, dtype="float64", nprocs=nprocs)


def test_a_redistribution_of_descriptors_needs_a_dtype() -> None:
    desc = MatrixDescriptor.row_wise(8, 8, 3)
    with pytest.raises(pblas.DTypeError, match="descriptors have no dtype; pass dtype='float64'"):
        pblas.plan_redistribution(desc, desc.T)


@pytest.mark.parametrize(
    "wrong",
    [{"transa": "Q"}, {"dtype": "int8"}, {"chunks": 0}, {"alpha": "1"}, {"beta": 1.0}, {"queue": -1}, {"strict": True}],
)
def test_the_verb_that_was_called_is_named(wrong: dict[str, Any]) -> None:
    a, b = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2)), MatrixDescriptor.replicated(8, 8, 3)
    with pytest.raises(PblasError, match=rf"^plan_matmul: .*{next(iter(wrong))}"):
        pblas.plan_matmul(b, b, out=a if "strict" in wrong else None, **{"dtype": "float64"} | wrong)


def test_integers_of_numpy_are_integers() -> None:
    desc, expected = MatrixDescriptor.row_wise(8, 8, 2), pblas.plan_matmul(8, 9, 7, nprocs=2, memory_nbytes=10**9)
    makers: list[Any] = [np.int64, np.int32]
    for make in makers:
        sizes = make(8), make(9), make(7)
        assert pblas.plan_matmul(*sizes, nprocs=make(2), memory_nbytes=make(10**9)).plan == expected.plan
        for name, value in (("chunks", 2), ("queue", 2), ("nprocs", 2), ("memory_nbytes", 10**9)):
            given: list[dict[str, Any]] = [{name: value}, {name: make(value)}]
            first, second = (pblas.plan_matmul(desc, desc, dtype="float64", **options).plan for options in given)
            assert repr(first) == repr(second)


def test_a_product_that_recurs_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the leading dimensions are; with a limit of memory anew, as the algorithm that is known then counts."""
    a, d = MatrixDescriptor(23, 23, 2, 3, Grid(2, 2)), MatrixDescriptor.row_wise(23, 23, 4)
    context = PlanningContext(Topology(), 4)
    first = choose("float64", a, a, d, context=context)
    monkeypatch.setattr("pblas.matmul.choose.one_dimensional", None)
    assert choose("float64", a, replace(a, lld=99), d, context=context) == first
    others: list[dict[str, Any]] = [{"topology": Topology(4, shared=True)}, {"overlap": False}, {"chunks": 2}]
    for other in (*others, {"memory_nbytes": 10**9}):
        with pytest.raises(TypeError):
            choose("float64", a, a, d, context=replace(context, **other))


Triple = tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]
TOPOLOGIES = {
    "shared": Topology(4, True),
    "messages": Topology(2),
    "GPUs": Topology(16, True, True, True, True),
    "GPU-aware": Topology(16, False, False, True),
}


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_bounds_leave_out_no_plan_that_is_quicker(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, topology = random.Random(kind), TOPOLOGIES[kind]
    for _ in range(40):
        nprocs = rng.choice([2, 4, 8, 16])
        m, n, k = (rng.choice([1, 7, 64, 300, 1000, 10000, 20000]) for _ in range(3))
        dtype, context = rng.choice(["float64", "float16", "complex64"]), PlanningContext(topology, nprocs)
        descs = any_layout(rng, m, k, nprocs), any_layout(rng, k, n, nprocs), any_layout(rng, m, n, nprocs)

        chosen = seconds_of_best(dtype, descs, context)
        with monkeypatch.context() as patch:
            patch.setattr(Search, "promises", lambda *_: True)
            assert chosen <= 1.06 * seconds_of_best(dtype, descs, context)


def seconds_of_best(dtype: str, descs: Triple, context: PlanningContext) -> float:
    plan = _best(dtype, *descs, context, strict=False)
    return predict(context.neutral.complete(plan), context.machine)


def any_layout(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    nprow = rng.choice([p for p in range(1, nprocs + 1) if nprocs % p == 0])
    mb, nb = (rng.choice([16, 200, max(1, -(-size // p))]) for size, p in ((m, nprow), (n, nprocs // nprow)))
    return MatrixDescriptor(m, n, mb, nb, Grid(nprow, nprocs // nprow))
