"""Laws of all plans: a plan with the few required members explains and simulates itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas import Grid, MatrixDescriptor, Plan, ProductPlan, plan_matmul, plan_redistribution
from pblas.redistribution.redistribution_plan import RedistributionPlan
from pblas.simulation.hardware import PRESETS, Transport
from tests.common.plans import check_transfers


@dataclass(frozen=True, slots=True)
class Factorization(Plan):
    """A plan with the required members only."""

    name = "Blocked"
    n: int
    nprocs: int
    dtype: str = "float32"
    why: str = "there is no other"
    transport: Transport = "message"

    @property
    def sizes(self) -> str:
        return f"{self.n} x {self.n}"

    @property
    def lower_bound(self) -> float:
        return self.n / 2

    @property
    def workspace_nbytes(self) -> int:
        return 1000

    def received_elements(self, rank: int) -> int:
        return rank * self.n

    def operands_nbytes(self, rank: int) -> int:
        return 4 * self.n * (rank + 1)

    def moves(self) -> str:
        return "panels to all ranks"

    def extreme_ranks(self) -> set[int]:
        return {0, self.nprocs - 1}

    def title(self) -> str:
        return f"A = L L^T, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", self.sizes


def test_a_plan_of_a_new_operation_explains_itself() -> None:
    plan = Factorization(10, 4)
    assert (plan.itemsize, plan.max_received_nbytes, plan.label) == (4, 120, "Blocked, 10 x 10, float32, 4 ranks")
    assert str(plan) == "\n".join(
        [
            "Blocked: A = L L^T, 10 x 10, float32, on 4 ranks",
            "  A          10 x 10",
            "  why        there is no other",
            "  moves      panels to all ranks",
            "  received   120 bytes per rank at most, 6.00 x the lower bound of any plan, 20",
            "  workspace  1,000 bytes per rank at most (message transport)",
            "  memory     1,160 bytes per rank at most, of matrices and workspace",
        ]
    )


def test_what_a_plan_does_not_say_cannot_be_asked() -> None:
    class Silent(Plan):
        name = "Silent"

    with pytest.raises(TypeError, match="abstract"):
        Silent()  # type: ignore[abstract]


def test_plans_of_products_and_redistributions_are_plans() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 4)
    product, redistributed = (
        plan_matmul(rows, rows, dtype="float64"),
        plan_redistribution(rows, rows.T, dtype="float64"),
    )
    assert isinstance(product.plan, ProductPlan)
    assert isinstance(redistributed.plan, RedistributionPlan)
    assert repr(product) == f"<planned product: {product.plan.label}>"
    assert repr(redistributed) == "<planned redistribution: RedistributionPlan, 8 x 8, float64, 4 ranks>"
    assert repr(redistributed.plan) == "<RedistributionPlan, 8 x 8, float64, 4 ranks>"
    for planned in (product, redistributed):
        assert str(planned) == str(planned.plan) == planned.explain()
        assert isinstance(planned.plan, Plan)
        assert planned.explain() == planned.plan.explain()


def public(x: object) -> set[str]:
    return {name for name in dir(x) if not name.startswith("_")}


def test_tab_shows_public_names() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 4)
    for planned in (plan_matmul(rows, rows, dtype="float64"), plan_redistribution(rows, rows.T, dtype="float64")):
        methods = {"close", "execute", "explain", "out", "plan", "plot", "trace", "workspace_nbytes"}
        assert public(planned) - {"descriptors"} == methods
        fields = {field.name for field in dataclasses.fields(planned.plan)}
        shown = public(planned.plan)
        assert fields | {"explain", "simulate", "max_received_nbytes", "lower_bound", "moves", "label"} <= shown
        assert shown.isdisjoint({"choice", "detail_lines", "extreme_ranks", "operand_lines", "title", "is_pushed"})
        assert all(hasattr(planned.plan, name) for name in shown)


def widths(html: str) -> list[float]:
    """Lengths of the bars of received bytes and of the lower bound."""
    return [float(width) for width in re.findall(r'<rect [^>]*width="([^"]*)"', html)]


@pytest.mark.parametrize("nprocs", [1, 4])
def test_notebooks_show_the_explanation_and_bars(nprocs: int) -> None:
    rows, columns = (make(8, 8, nprocs) for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise))
    product = plan_matmul(columns, rows, dtype="float64", epilogue="where(x < 0, 0, x)")
    moved = plan_redistribution(rows, columns, dtype="float64")
    shown: list[tuple[Any, Any]] = [(product, product.plan), (product.plan, product.plan), (moved, moved.plan)]
    for planned, plan in shown:
        html = planned._repr_html_()
        assert f"<pre>{escape(planned.explain())}</pre>" in html
        received, bound = widths(html)
        ET.fromstring(html[html.index("<svg") :])
        assert f"{plan.max_received_nbytes:,} bytes<" in html
        assert received >= bound * 0.999
        if plan.lower_bound:
            ratio = plan.max_received_nbytes / plan.itemsize / plan.lower_bound
            assert received / bound == pytest.approx(ratio, rel=0.01)
        else:
            assert bound == 0


@st.composite
def relayouts(draw: st.DrawFn) -> RedistributionPlan:
    nprocs, m, n = draw(st.integers(1, 6)), draw(st.integers(0, 20)), draw(st.integers(0, 20))
    grids = [Grid(p, q) for p in range(1, 7) for q in range(1, 7) if p * q <= nprocs]
    a, b = (
        MatrixDescriptor(m, n, draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.sampled_from(grids)))
        for _ in range(2)
    )
    transport: Transport = draw(st.sampled_from(["shared", "message", "mixed"]))
    return RedistributionPlan(a, b, "float64", nprocs, transport=transport, reads_a=draw(st.booleans()))


@given(relayouts())
def test_ranks_receive_all_sent_data_and_all_of_it_is_in_the_phases(plan: RedistributionPlan) -> None:
    check_transfers(plan)
    assert (plan.workspace_nbytes == 0) == (plan.max_received_nbytes == 0)
    assert sum(map(plan.operands_nbytes, range(plan.nprocs))) == 8 * (prod(plan.a.shape) + prod(plan.b.shape))


@pytest.mark.parametrize("hardware", PRESETS)
def test_a_redistribution_takes_as_long_as_its_messages(hardware: str) -> None:
    a, b = MatrixDescriptor.row_wise(4096, 4096, 8), MatrixDescriptor(4096, 4096, 64, 64, Grid(2, 4))
    simulation = plan_redistribution(a, b, dtype="float64").plan.simulate(hardware)
    same = plan_redistribution(a, a, dtype="float64").plan.simulate(hardware)
    assert simulation.received_nbytes == plan_redistribution(a, b, dtype="float64").plan.max_received_nbytes
    assert simulation.seconds > same.seconds > 0
    assert "GEMM rate" not in str(simulation)


def test_alpha_zero_moves_nothing() -> None:
    """A is not read."""
    rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    moved = {alpha: plan_redistribution(rows, columns, alpha=alpha, dtype="float64").plan for alpha in (0, 1)}
    assert moved[0].max_received_nbytes == 0
    assert moved[1].max_received_nbytes == 96
