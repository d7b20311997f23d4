"""Plans of factorizations: panels cover the columns, ranks receive all sent data, phases have all of it."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt, prod
from typing import Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.errors import PlanError
from pblas.factor.arguments import of_descriptor
from pblas.factor.cholesky import plan_cholesky
from pblas.factor.choose import choose_factorization, choose_qr, square_blocks
from pblas.factor.factorization_plan import FactorizationPlan, panels
from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
from pblas.factor.grid_lu_plan import GridLuPlan, Pivoting
from pblas.factor.grid_plan import GridPlan
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.grid_reflectors_plan import GridReflectorsPlan
from pblas.factor.grid_substitution_plan import GridSubstitutionPlan, stays_on_grid
from pblas.factor.lu import plan_lu
from pblas.factor.qr import plan_qr
from pblas.factor.qr_plan import CholeskyQrPlan, PivotedQrPlan, QrPlan, TsqrPlan
from pblas.factor.solve_plan import solve_plans
from pblas.factor.with_factor_plan import (
    PanelReflectorsPlan,
    ReflectorsPlan,
    SubstitutionPlan,
    TreeReflectorsPlan,
    Triangle,
)
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.plans.base import Plan
from pblas.simulation.hardware import PRESETS, Topology, Transport
from pblas.simulation.phase import View
from pblas.triangular.trsm import TriangularSolve
from tests.common.descriptors import descriptors

TRANSPORTS: tuple[Transport, ...] = ("shared", "message", "mixed")


@st.composite
def plans(draw: st.DrawFn) -> FactorizationPlan:
    desc, kind = draw(descriptors()), draw(st.sampled_from(["cholesky", "lu"]))
    if kind == "cholesky":
        desc = replace(desc, n=desc.m)
    nprocs = desc.nprocs + draw(st.integers(0, 2))
    uplo = draw(st.sampled_from(["L", "U"])) if kind == "cholesky" else "L"
    returns = kind == "cholesky" and draw(st.booleans())
    plan = choose_factorization(
        kind,
        desc,
        draw(st.sampled_from(["float64", "complex64"])),
        nprocs,
        draw(st.sampled_from(TRANSPORTS)),
        returns=returns,
        uplo=uplo,
    )
    replicated = kind == "lu" and draw(st.booleans())
    ranks, nb = nprocs if replicated else draw(st.integers(1, nprocs)), draw(st.integers(1, 4))
    return replace(plan, w=MatrixDescriptor.column_wise(*plan.w.shape, ranks, nb=nb), replicated=replicated)


@given(plans())
def test_panels_cover_the_columns_once(plan: FactorizationPlan) -> None:
    columns = [j for panel in panels(plan.w) for j in range(panel.start, panel.stop)]
    assert columns == list(range(plan.w.n))
    for panel in panels(plan.w):
        assert plan.w.global_index(panel.owner, 0, panel.j_loc) == (0, panel.start) if plan.w.m else True


def check_traffic(plan: Plan) -> None:
    """All ranks together receive no more than is sent, the phases have it, and the bound holds."""
    ranks = range(plan.nprocs)
    received = list(map(plan.received_elements, ranks))
    assert sum(received) <= sum(map(plan.sent_elements, ranks))
    for rank in ranks:
        phases = list(plan.phases(View(rank, plan.nprocs, 2, plan.transport)))
        assert sum(phase.nbytes for phase in phases) == plan.received_nbytes(rank)
    assert 0 <= plan.lower_bound <= max(received)
    assert plan.extreme_ranks() <= set(ranks)
    assert plan.flops >= 0
    assert plan.name in plan.explain()


@given(plans())
def test_traffic_of_a_factorization(plan: FactorizationPlan) -> None:
    check_traffic(plan)


@st.composite
def grid_plans(draw: st.DrawFn, kind: str) -> GridPlan:
    grid = Grid(draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from(["C", "R"])))
    n, nb = draw(st.integers(0, 40)), draw(st.integers(1, 4))
    rsrc, csrc = (draw(st.integers(0, p - 1)) for p in (grid.nprow, grid.npcol))
    inb = draw(st.integers(1, nb))
    m = n if kind == "cholesky" else draw(st.integers(0, 40))
    w = MatrixDescriptor(m, n, nb, nb, grid, rsrc, csrc, imb=inb, inb=inb)
    a, transport = draw(st.sampled_from([w, MatrixDescriptor.row_wise(m, n, 3)])), draw(st.sampled_from(TRANSPORTS))
    nprocs = max(grid.size, a.nprocs) + draw(st.integers(0, 2))
    if kind == "qr":
        return GridQrPlan(a, w, "", "float64", nprocs, transport)
    if kind == "lu":
        pivoting = draw(st.sampled_from(get_args(Pivoting)))
        return GridLuPlan(a, w, "", "float64", nprocs, transport, draw(st.booleans()), pivoting=pivoting)
    return GridCholeskyPlan(a, w, "", "float64", nprocs, transport, draw(st.booleans()), draw(st.sampled_from("LU")))


@given(grid_plans("cholesky"))
def test_traffic_of_cholesky_on_a_grid(plan: GridPlan) -> None:
    check_traffic(plan)


@given(grid_plans("lu"))
def test_traffic_of_lu_on_a_grid(plan: GridPlan) -> None:
    check_traffic(plan)
    assert isinstance(plan, GridLuPlan)
    chosen = "rows by a tournament of each panel" if plan.pivoting == "tournament" else "the pivot of each column"
    assert (chosen in plan.explain()) == (plan.w.grid.nprow > 1)


@given(grid_plans("qr"), descriptors(), st.sampled_from(["L", "R"]), st.booleans(), st.booleans())
def test_traffic_of_qr_on_a_grid(plan: GridPlan, c: MatrixDescriptor, side: str, adjoint: bool, makes_q: bool) -> None:
    """Of the factorization, and of products with Q."""
    check_traffic(plan)
    assert ("a tree of" in plan.explain()) == (plan.w.grid.nprow > 1)
    c = replace(c, m=plan.w.m) if side == "L" else replace(c, n=plan.w.m)
    begins: Literal["B", "identity"] = "identity" if makes_q and side == "L" and not adjoint and c.n <= c.m else "B"
    ranks = plan.dtype, max(plan.nprocs, c.nprocs), plan.transport
    check_traffic(GridReflectorsPlan(plan.w, c, *ranks, begins, side, adjoint))  # type: ignore[arg-type]


@given(grid_plans("cholesky"), descriptors(), st.booleans())
def test_traffic_of_solves_on_a_grid(plan: GridPlan, b: MatrixDescriptor, lu: bool) -> None:
    triangles = (Triangle("U", "T"), Triangle("L", "T", unit=True)) if lu else (Triangle("L"), Triangle("L", "C"))
    b, ranks = replace(b, m=plan.w.m), max(plan.nprocs, b.nprocs)
    check_traffic(GridSubstitutionPlan(plan.w, b, plan.dtype, ranks, plan.transport, triangles=triangles))


def test_a_rank_of_a_grid_receives_fewer_elements() -> None:
    """About n^2 / sqrt(P), where block columns take n^2 / 2; and a grid of many ranks is predicted to be faster."""
    n, p = 8192, 64
    desc = MatrixDescriptor.row_wise(n, n, p)
    small = MatrixDescriptor.row_wise(1024, 1024, 4)
    for kind, name, most in (("cholesky", "CholeskyPlan", 1 / 8), ("lu", "LuPlan", 1 / 8 + 0.02)):
        plan = choose_factorization(kind, desc, "float64", p, "message", pivoting="tournament")
        assert isinstance(plan, GridPlan)
        assert (plan.w.grid.nprow, plan.w.grid.npcol) == (8, 8)
        assert max(map(plan.panel_elements, range(p))) == pytest.approx(n**2 * most, rel=0.1)
        columns = choose_factorization(kind, desc, "float64", p, "message", algorithm="blocked")
        assert max(map(columns.panel_elements, range(p))) == pytest.approx(n**2 / 2, rel=0.1)
        assert choose_factorization(kind, small, "float64", 4, "message").name == name


def test_a_rank_of_a_grid_receives_fewer_elements_in_solves() -> None:
    """With n right-hand sides 3 n^2 / sqrt(P) for two triangles, which have n^2 elements."""
    n, p, triangles = 8192, 256, (Triangle("L"), Triangle("L", "C"))
    w = MatrixDescriptor(n, n, 128, 128, Grid(16, 16))
    many = GridSubstitutionPlan(w, w, "float64", p, "message", triangles=triangles)
    assert stays_on_grid(w, w, "float64", p, triangles)
    assert max(map(many.received_elements, range(0, p, 15))) == pytest.approx(n**2 * 3 / 16, rel=0.1)


@pytest.mark.parametrize(
    ("hardware", "nprocs", "nbytes", "least"),
    [
        *(("nvlink", 8, 32, 0.8), ("nvlink", 64, 32, 0.7), ("nvlink", 512, 32, 0.6)),
        *(("fat-tree", 128, 2, 0.7), ("fat-tree", 1024, 2, 0.6), ("fat-tree", 16384, 2, 0.5)),
    ],
)
def test_weak_scaling_on_grids(hardware: str, nprocs: int, nbytes: int, least: float) -> None:
    """By simulation: the part of the GEMM rate with so many GB of A on each rank."""
    gpus, n = hardware == "nvlink", isqrt(nprocs * nbytes * 10**9 // 8)
    w, why = next(square_blocks(MatrixDescriptor.row_wise(n, n, nprocs), "float64", nprocs, gpus=gpus))
    library: Literal["cuSOLVER", "LAPACK"] = "cuSOLVER" if gpus else "LAPACK"
    cholesky = GridCholeskyPlan(w, w, why, "float64", nprocs, "mixed", library=library)
    assert cholesky.simulate(hardware).efficiency >= least
    lu = GridLuPlan(w, w, why, "float64", nprocs, "mixed", library=library)
    tournament = replace(lu, pivoting="tournament")
    for pivots in (lu, tournament):
        assert pivots.simulate(hardware).efficiency >= (least - 0.1 if gpus else least)
    if not gpus:
        assert GridQrPlan(w, w, why, "float64", nprocs, "mixed").simulate(hardware).efficiency >= least


@pytest.mark.parametrize("ranks_per_node", [1, 2, 128])
def test_described_hosts_are_planned_for_as_hosts(ranks_per_node: int) -> None:
    """A rank that is alone on its host factors all panels of LU and QR."""
    hosts = replace(PRESETS["laptop"], ranks_per_node=ranks_per_node)
    for n, nprocs in ((2048, 2), (2048, 4)):
        a, b = (MatrixDescriptor.row_wise(n, k, nprocs) for k in (n, 8))
        _, _, topology = of_descriptor("plan", a, "float64", nprocs, hosts)
        options: Any = {"dtype": "float64", "nprocs": nprocs, "hardware": hosts}
        solvers: dict[Literal["gen", "pos"], FactorizationPlan] = {
            "pos": plan_cholesky(a, **options).plan,
            "gen": plan_lu(a, pivoting=None, **options).plan,
        }
        for assume_a, plan in solvers.items():
            assert solve_plans(a, b, "float64", nprocs, topology, assume_a=assume_a)[0] == replace(plan, returns=False)
            assert plan.replicated == (ranks_per_node == 1 and assume_a == "gen")
        qr = plan_qr(a, **options).plan
        assert isinstance(qr, QrPlan)
        assert qr.replicated == (ranks_per_node == 1)


def test_triangular_solves_do_not_depend_on_measured_rates() -> None:
    """Otherwise a slow link would give other bits."""
    w = MatrixDescriptor(41, 41, 39, 39, Grid(2, 3, "R"), 1, 2)
    b = MatrixDescriptor.column_wise(41, 41, 6)
    form = "L", "L", "N", True, w, b, b, np.dtype("complex128"), (False, False), True
    solve = TriangularSolve.made("trsm", form, 6, Topology(1))
    assert len({solve.plan(6, Topology(1, bandwidth=rate)).name for rate in (1e8, 1e10)}) == 1


@given(plans())
def test_each_panel_is_factored_on_one_rank_or_on_all(plan: FactorizationPlan) -> None:
    """Its time is in the phases of its owner, and the others wait for it unless they need no more panels."""
    ranks = range(plan.nprocs)
    phases = [phase for rank in ranks for phase in plan.phases(View(rank, plan.nprocs, 2, plan.transport))]
    work = [plan.panel_multiplications(panel) for panel in plan.steps]
    assert sum(phase.panel for phase in phases) == pytest.approx(sum(work) * (plan.nprocs if plan.replicated else 1))
    assert {phase.factored for phase in phases} <= {0.0, *work}
    assert all(w > 0 for w in work)


def test_a_sorted_identity_leaves_out_two_thirds_of_the_first_triangle() -> None:
    w = MatrixDescriptor.column_wise(1024, 1024, 4, nb=16)
    triangles = Triangle("L", unit=True), Triangle("U")
    solve = SubstitutionPlan(w, w, "float64", 4, "shared", "identity", triangles=triangles)
    counts = []
    for plan in (solve, replace(solve, begins="sorted")):
        phases = [phase for phase in plan.phases(View(1, 4, 4, "shared")) if prod(phase.gemm)]
        counts += [sum(prod(phase.gemm) for phase in half) for half in (phases[:64], phases[64:])]
    assert counts[1] == counts[3]
    assert counts[2] / counts[0] == pytest.approx(1 / 3, rel=0.05)


@given(plans(), descriptors(), st.booleans())
def test_traffic_of_a_substitution(plan: FactorizationPlan, b: MatrixDescriptor, lu: bool) -> None:
    w = plan.w if plan.w.m == plan.w.n else MatrixDescriptor.column_wise(b.m, b.m, 2, nb=2)
    triangles = (Triangle("L", unit=True), Triangle("U")) if lu else (Triangle("L"), Triangle("L", "C"))
    solve = SubstitutionPlan(
        w, replace(b, m=w.m), "float64", max(b.nprocs, w.nprocs), plan.transport, triangles=triangles
    )
    inverse, sorted_inverse = (replace(solve, b=replace(solve.b, n=w.m), begins=x) for x in ("identity", "sorted"))
    for each in (solve, inverse, sorted_inverse):
        check_traffic(each)
    assert inverse.flops - sorted_inverse.flops in range(2 * w.m**3 // 3 - 2, 2 * w.m**3 // 3 + 3)


@st.composite
def qr_plans(draw: st.DrawFn) -> QrPlan | TsqrPlan:
    desc, algorithm = draw(descriptors()), draw(st.sampled_from(["auto", "blocked", "tsqr", "local"]))
    if algorithm == "tsqr" and not desc.m >= desc.n > 0:
        algorithm = "auto"
    nprocs, transport = desc.nprocs + draw(st.integers(0, 2)), draw(st.sampled_from(TRANSPORTS))
    plan = choose_qr(desc, draw(st.sampled_from(["float64", "complex64"])), nprocs, transport, algorithm)
    assert isinstance(plan, QrPlan | TsqrPlan), "no other was asked for, and A is small"
    if isinstance(plan, QrPlan):  # more panels and ranks than such small matrices get
        ranks, nb = draw(st.integers(1, nprocs)), draw(st.integers(1, 4))
        plan = replace(plan, w=MatrixDescriptor.column_wise(desc.m + nb, desc.n, ranks, nb=nb))
    return plan


@given(qr_plans())
def test_traffic_of_a_qr_factorization(plan: QrPlan | TsqrPlan) -> None:
    check_traffic(plan)


@given(descriptors(), st.integers(0, 2), st.sampled_from(TRANSPORTS))
def test_traffic_of_gram_matrices(desc: MatrixDescriptor, more: int, transport: Transport) -> None:
    n = max(1, desc.n)  # without columns any plan will do
    desc = replace(desc, m=desc.m + n, n=n)
    plan = choose_qr(desc, "float64", desc.nprocs + more, transport, "cholesky")
    assert isinstance(plan, CholeskyQrPlan)
    check_traffic(plan)
    assert "blocked Householder" in plan.explain()


def test_plans_on_gpus() -> None:
    """Panels of 256 columns, also on one GPU; one panel for cuSOLVER, whatever the shape; Gram matrices if tall."""
    square = MatrixDescriptor.row_wise(49152, 49152, 4)
    for nprocs, algorithm in ((1, "auto"), (4, "auto"), (4, "blocked")):
        plan = choose_qr(replace(square, grid=Grid(nprocs, 1)), "float64", nprocs, "push", algorithm, gpus=True)
        assert (plan.w.nb, plan.w.nprocs, plan.w.m) == (256, nprocs, 49152 + 256)
    for m, n in ((300, 700), (700, 300), (0, 3), (3, 0)):
        plan = choose_qr(MatrixDescriptor.row_wise(m, n, 2), "float64", 2, "push", "local", gpus=True)
        assert plan.w.nprocs == 1
        assert [panel[:2] for panel in plan.steps] == ([(0, n)] if m and n else [])
    for m, n, name in ((8191, 64, "QrPlan"), (8192, 64, "CholeskyQrPlan"), (1 << 20, 513, "QrPlan")):
        assert choose_qr(MatrixDescriptor.row_wise(m, n, 4), "float64", 4, "push", gpus=True).name == name
    tall = MatrixDescriptor.row_wise(1 << 20, 64, 4)
    returned = choose_qr(tall, "float64", 4, "push", returns=True, gpus=True)
    assert isinstance(returned, QrPlan)  # as LAPACK stores Q: Gram matrices leave no reflectors
    assert returned.redistributions[-1].received_elements(1) > 0
    pivoted = PivotedQrPlan(tall, tall, "", "float64", 4, on_copies=True)
    assert "copy of W in host memory" in pivoted.explain()
    with pytest.raises(PlanError, match="PivotedQrPlan cannot be simulated"):
        pivoted.simulate("nvlink")


@given(qr_plans(), descriptors(), st.sampled_from(["L", "R"]), st.booleans(), st.booleans())
def test_traffic_of_products_with_q(
    plan: QrPlan | TsqrPlan, c: MatrixDescriptor, side: str, adjoint: bool, makes_q: bool
) -> None:
    kind: type[ReflectorsPlan] = PanelReflectorsPlan if isinstance(plan, QrPlan) else TreeReflectorsPlan
    c = replace(c, m=plan.a.m) if side == "L" else replace(c, n=plan.a.m)
    made = makes_q and side == "L" and not adjoint and c.n <= c.m
    check_traffic(
        kind(
            *(plan.w, c, plan.dtype, max(plan.nprocs, c.nprocs), plan.transport),
            begins="identity" if made else "B",
            side=side,  # type: ignore[arg-type]
            adjoint=adjoint,
        )
    )


@given(qr_plans())
def test_a_tree_has_one_root_and_every_rank_with_rows(plan: QrPlan | TsqrPlan) -> None:
    if isinstance(plan, QrPlan):
        return
    ranks = [rank for rank in range(plan.w.nprocs) if plan.w.local_shape(rank)[0]]
    assert sorted(map(plan.member, range(plan.members))) == ranks
    sends = [(rank, merge.peer) for rank in ranks for merge in plan.merges(rank) if not merge.receives]
    receives = [(merge.peer, rank) for rank in ranks for merge in plan.merges(rank) if merge.receives]
    assert sorted(sends) == sorted(receives)
    assert {rank for rank, _ in sends} == set(ranks) - {plan.member(0)}
    for rank in ranks:
        (first, *_), merges = plan.chunks(rank), plan.merges(rank)
        assert first[1] >= plan.w.n
        assert [stop for _, stop in plan.chunks(rank)][-1] == plan.w.local_shape(rank)[0]
        assert [merge.receives for merge in merges] == sorted((merge.receives for merge in merges), reverse=True)
    root = plan.member(0)
    assert plan.w.global_ranges(root)[0][0][0] == 0
    assert plan.w.rows.block(0)[1] >= plan.w.n or plan.w.grid.nprow == 1


def test_rows_are_factored_where_they_are() -> None:
    """A tall matrix does not move if its rows are together; with all other layouts it moves to rows once."""
    m, n = 4000, 20
    for desc in (
        MatrixDescriptor.row_wise(m, n, 4),
        MatrixDescriptor.row_wise(m, n, 4, mb=50, rsrc=3, order="C"),
        MatrixDescriptor.row_wise(m, n, 4, counts=[0, 1900, 1900, 200]),
        MatrixDescriptor.replicated(m, n, 4),
    ):
        plan = choose_qr(desc, "float64", 4, "shared")
        assert isinstance(plan, TsqrPlan)
        assert plan.copy.lower_bound == 0
    for desc in (MatrixDescriptor.row_wise(m, n, 4, mb=7), MatrixDescriptor.column_wise(m, n, 4)):
        plan = choose_qr(desc, "float64", 4, "shared")
        assert plan.w == MatrixDescriptor.row_wise(m, n, 4)
    assert choose_qr(MatrixDescriptor.row_wise(300, n, 4), "float64", 4, "shared").name == "QrPlan"


@pytest.mark.parametrize("hardware", list(PRESETS))
@pytest.mark.parametrize("kind", ["cholesky", "lu", "qr"])
def test_simulated_time_grows_with_the_matrix(hardware: str, kind: str) -> None:
    times = []
    for n in (512, 1024, 4096):
        desc = MatrixDescriptor.row_wise(n, n, 4)
        plan = (
            choose_qr(desc, "float64", 4, "shared")
            if kind == "qr"
            else choose_factorization(kind, desc, "float64", 4, "shared")
        )
        times.append(plan.simulate(hardware).seconds)
    assert times == sorted(times)
    assert times[0] > 0


def test_block_columns_are_factored_where_they_are() -> None:
    cyclic = MatrixDescriptor.column_wise(2048, 2048, 4, nb=64, csrc=2)
    plan = choose_factorization("lu", cyclic, "float64", 4, "shared")
    assert plan.copy.received_nbytes(1) == 0
    assert plan.w == cyclic
    for other in (MatrixDescriptor.column_wise(2048, 2048, 4), MatrixDescriptor.column_wise(2048, 2048, 4, nb=8)):
        assert choose_factorization("lu", other, "float64", 4, "shared").w.nb == 92
