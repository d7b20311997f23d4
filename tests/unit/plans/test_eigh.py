"""Plans of eigenvalues: ranks cover the rows of T, ranks receive all sent data, phases have all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.simulation.hardware import PRESETS, Transport
from pblas.simulation.phase import View
from pblas.spectral.choose import EighAlgorithm, choose_eigh
from pblas.spectral.eigh_plan import EighPlan
from tests.common.descriptors import descriptors


@st.composite
def plans(draw: st.DrawFn) -> EighPlan:
    desc = draw(descriptors())
    a = replace(desc, n=desc.m)
    nprocs, vectors = desc.nprocs + draw(st.integers(0, 2)), draw(st.booleans())
    transport: Transport = draw(st.sampled_from(["shared", "message", "mixed"]))
    plan = choose_eigh(
        *(a, draw(st.sampled_from(["float64", "complex64"])), nprocs, transport),
        uplo=draw(st.sampled_from(["L", "U"])),
        count=draw(st.integers(0, a.m)),
        vectors=vectors,
    )
    nb, members = draw(st.integers(1, 4)), draw(st.integers(1, max(1, min(nprocs, a.m))))
    w = MatrixDescriptor.column_wise(a.m + nb, a.m, draw(st.sampled_from([1, nprocs])), nb=nb)
    return replace(plan, w=w, z=MatrixDescriptor.column_wise(*plan.z.shape, members))


@given(plans())
def test_ranks_cover_the_rows_of_t(plan: EighPlan) -> None:
    rows = [i for rank in range(plan.members) for i in range(*plan.rows(rank))]
    assert rows == list(range(plan.a.n))
    for rank in range(plan.members):
        merges = plan.merges(rank)
        assert all(merge.lo <= rank < merge.hi and merge.lo < merge.mid < merge.hi for merge in merges)
        assert plan.span(merges[-1].lo, merges[-1].hi) == (0, plan.a.n) if merges else plan.members == 1
        for merge in merges:
            assert all(merge in plan.merges(peer) for peer in range(merge.lo, merge.hi))
    shares = plan.shares(plan.z.n, 0, plan.members)
    assert [stop - start for start, stop in shares] == [plan.z.local_shape(r)[1] for r in range(plan.members)]


@given(plans())
def test_bytes(plan: EighPlan) -> None:
    received = [plan.received_nbytes(rank) for rank in range(plan.nprocs)]
    sent = sum(plan.sent_nbytes(rank) for rank in range(plan.nprocs))
    for copy in plan.copies:  # of a trapezoid it counts the whole rectangles that are sent
        sent -= sum(copy.sent_nbytes(rank) - copy.received_nbytes(rank) for rank in range(plan.nprocs))
    assert sum(received) == sent
    for rank in range(plan.nprocs):
        for node in (1, 2, plan.nprocs):
            view = View(rank, plan.nprocs, node, plan.transport)
            assert sum(phase.nbytes for phase in plan.phases(view)) == received[rank]
    assert plan.max_received_nbytes == max(received)


@pytest.mark.parametrize("hardware", PRESETS)
@pytest.mark.parametrize("algorithm", get_args(EighAlgorithm))
def test_simulation(hardware: str, algorithm: EighAlgorithm) -> None:
    planned = linalg.plan_eigh(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64", algorithm=algorithm)
    simulation = planned.plan.simulate(hardware)
    tenth = linalg.plan_eigh(
        MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64", algorithm=algorithm, subset_by_index=[0, 409]
    )
    assert simulation.seconds > tenth.plan.simulate(hardware).seconds > 0
    assert "4096 x 4096, 410 of them" in tenth.explain()
    share = planned.plan.simulate("fat-tree").efficiency
    assert f"{planned.plan.flops:,}, at {share:.0%} of the GEMM rate" in planned.explain()
    assert ("32 columns on 4 ranks" in planned.explain()) == (algorithm == "blocked")


def test_a_plan_for_gpus() -> None:
    """One GPU has W and V; A arrives there, and V leaves. Several share the work on a large matrix, or if asked to."""
    desc = MatrixDescriptor.row_wise(4096, 4096, 4)
    plan = choose_eigh(desc, "float64", 4, "push", gpus=True, count=10)
    assert (plan.direct, plan.w.nprocs, plan.v.shape) == (False, 1, (4096, 10))
    assert plan.received_elements(0) == (4096 * 4097 - 1024 * 1025) // 2, "the rows below its own of one triangle"
    assert plan.received_elements(3) == plan.a.n // 4 * 10
    assert "two stages: a band of 64 by products on 1 rank" in plan.explain()
    assert plan.simulate("nvlink").seconds > 0
    for n, algorithm, ranks, members in (
        *((4096, "blocked", 4, 4), (32768, "auto", 4, 4)),
        *((16384, "auto", 1, 4), (32768, "local", 1, 1), (8192, "auto", 1, 1)),
    ):
        desc = MatrixDescriptor.row_wise(n, n, 4)
        plan = choose_eigh(desc, "float64", 4, "push", gpus=True, algorithm=algorithm)
        assert (plan.w.nprocs, plan.w.nb, plan.members) == (ranks, 64, members)
        received = [plan.received_nbytes(rank) for rank in range(4)]
        for rank in range(4):
            view = View(rank, 4, 1, plan.transport)
            assert sum(phase.nbytes for phase in plan.phases(view)) == received[rank]
        assert plan.simulate("nvlink").seconds > 0


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_the_way_by_a_band_on_gpus(dtype: str, vectors: bool) -> None:
    """From some order on, as long as its CTAs fit: 4 n^2 elements of memory at most, of which A has n^2."""
    bands = {}
    for n in (100, 4096, 8191, 100000):
        desc = MatrixDescriptor.row_wise(n, n, 2)
        plan = choose_eigh(desc, dtype, 2, "push", gpus=True, vectors=vectors)
        bands[n] = plan.bandwidth
        way = "two stages: a band" if plan.bandwidth else "cuSOLVER's xSYEVD, on rank 0"
        assert way in plan.explain()
        if plan.bandwidth:
            assert plan.transient_nbytes <= (3.3 if vectors else 0.3) * plan.itemsize * n**2
    assert [band > 0 for band in bands.values()] == [False, True, True, False]


def test_the_way_by_a_band_on_cpus() -> None:
    """Values of large real matrices on one host."""
    for n, dtype, options, takes in (
        (8192, "float64", {"vectors": False}, True),
        (8192, "float32", {"vectors": False}, True),
        (8192, "float64", {}, False),
        (8192, "complex128", {"vectors": False}, False),
        (8192, "float64", {"vectors": False, "algorithm": "blocked"}, False),
        (512, "float64", {"vectors": False}, False),
    ):
        plan = choose_eigh(MatrixDescriptor.row_wise(n, n, 2), dtype, 2, "shared", **options)
        assert ("two stages: a band of" in plan.explain()) == takes == (plan.host_band > 0)


def test_errors_of_plans() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 2)
    with pytest.raises(pblas.DTypeError, match="descriptors have no dtype"):
        linalg.plan_eigh(rows)
    with pytest.raises(pblas.DescriptorError, match="must be square"):
        linalg.plan_eigh(MatrixDescriptor.row_wise(8, 7, 2), dtype="float64")
    with pytest.raises(pblas.ArgumentError, match="0 <= first <= last < 8"):
        linalg.plan_eigh(rows, dtype="float64", subset_by_index=[3, 8])
