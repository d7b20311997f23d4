"""Plans of matrices times vectors: every element of the part is multiplied once, and ranks receive all sent data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas import MatrixDescriptor
from pblas.layouts.triangle import Part, rectangles
from pblas.simulation.hardware import PRESETS
from pblas.simulation.phase import View
from pblas.vectors.checks import VectorKind
from pblas.vectors.matrix_vector_plan import MatrixVectorPlan, Term
from tests.common.descriptors import descriptors

PARTS: list[Part] = ["all", "U", "L"]


@given(descriptors(), st.sampled_from(PARTS), st.sampled_from([None, 1, 2, 64]))
def test_rectangles_have_every_element_of_the_part_once(desc: MatrixDescriptor, part: Part, width: int | None) -> None:
    for rank in range(desc.nprocs):
        rows, columns = (
            np.array([g for start, stop in ranges for g in range(start, stop)], int)
            for ranges in desc.global_ranges(rank)
        )
        inside = {"all": rows[:, None] >= 0, "U": rows[:, None] <= columns, "L": rows[:, None] >= columns}[part]
        counts = np.zeros(desc.local_shape(rank), int)
        for (i0, i1), (j0, j1), meets_diagonal in rectangles(desc, rank, part, width):
            counts[i0:i1, j0:j1] += 1
            assert meets_diagonal or np.broadcast_to(inside, counts.shape)[i0:i1, j0:j1].all()
        assert counts.max(initial=0) <= 1
        assert (counts[np.broadcast_to(inside, counts.shape)] == 1).all()


@given(descriptors(), *[st.sampled_from([True, False]) for _ in range(4)])
def test_ranks_receive_what_is_sent(
    desc: MatrixDescriptor, replicated: bool, transposed: bool, stays: bool, two: bool
) -> None:
    terms = (Term(), Term(transposed=True)) if two and desc.m == desc.n else (Term(transposed),)
    stays = stays and len(terms) == 1
    plan = MatrixVectorPlan(desc, "all", terms, "float64", desc.nprocs, replicated=replicated, stays=stays)
    ranks = range(plan.nprocs)
    assert sum(map(plan.received_elements, ranks)) == sum(map(plan.sent_elements, ranks))
    for rank in ranks:
        nbytes = sum(phase.nbytes for phase in plan.phases(View(rank, plan.nprocs, 1, "message")))
        assert nbytes == plan.received_nbytes(rank)
        assert plan.received_nbytes(rank) <= 8 * (plan.vector_length + 3 * plan.length + 2 * plan.nprocs)
    assert str(plan).count("\n") >= 4


@pytest.mark.parametrize("name", PRESETS)
def test_plans_can_be_simulated(name: str) -> None:
    plan = MatrixVectorPlan(MatrixDescriptor.row_wise(4096, 4096, 8), "L", (Term(),), "float64", 8)
    assert plan.simulate(name).seconds > 0


def test_vectors_of_different_kinds_have_different_texts() -> None:
    """The ranks compare the texts, and keep plans by the kinds."""
    column, real, complex_ = MatrixDescriptor.row_wise(8, 1, 2), np.dtype("float64"), np.dtype("complex128")
    kinds = [
        *(VectorKind(8, None, real), VectorKind(9, None, real), VectorKind(8, column, real)),
        *(VectorKind(8, column, complex_), VectorKind(8, column, complex_, conjugated=True)),
        *(VectorKind(8, column, real, is_row=True), VectorKind(8, MatrixDescriptor.row_wise(8, 1, 1), real)),
    ]
    assert len(set(map(repr, kinds))) == len(set(kinds)) == len(kinds)
