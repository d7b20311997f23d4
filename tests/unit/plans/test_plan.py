"""Laws of plans: closed forms agree with the steps, every product and every sum happens once."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.split import Split
from pblas.matmul.choose import one_dimensional
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product_plan import Distribution, Product, ProductPlan
from pblas.plans.partition import HALF_TILE, LINES, cuts, pieces, share
from pblas.simulation.hardware import Topology

SIZES = ((7, 8, 9), (9, 2, 3), (1, 1, 1), (2, 13, 5), (0, 8, 9), (7, 0, 9), (7, 8, 0), (17, 16, 15))
RANKS = (2, 3, 4, 6)
CHUNKS = (1, 2, 5)


def splits(n: int, nprocs: int) -> list[Split]:
    """Splits: even, cyclic, with a source, with another first block, on fewer ranks, on one rank."""
    return [
        Split(n, max(1, -(-n // nprocs)), nprocs),
        Split(n, 1, nprocs, nprocs - 1),
        Split(n, 2, nprocs, 1, 1),
        Split(n, 3, nprocs, nprocs // 2, 5),
        Split(n, 2, nprocs - 1),
        Split(n, n + 1, nprocs, nprocs - 1),
    ]


@pytest.mark.parametrize(
    ("dtype", "operations"),
    [(name, 2) for name in ("float64", "float32", "bfloat16", "float8_e4m3fn")] + [("complex64", 8), ("complex128", 8)],
)
def test_operations_of_a_product_are_real(dtype: str, operations: int) -> None:
    """An addition and a multiplication of real numbers; of complex ones four of each."""
    whole = Distribution("all")
    assert LocalGemm(Product(5, 7, 3, dtype, 1, whole, whole, whole), "").flops == operations * 5 * 7 * 3


@pytest.mark.parametrize(
    ("dtype", "dtype_d", "nbytes"),
    [
        *(("float8_e4m3fn", "float32", 1), ("float8_e4m3fn", "bfloat16", 1), ("bfloat16", "float32", 2)),
        *(("float16", "", 2), ("float64", "", 8), ("complex128", "", 16)),
    ],
)
def test_the_lower_bound_in_bytes_is_that_of_the_narrowest_dtype(dtype: str, dtype_d: str, nbytes: int) -> None:
    """Whatever a plan moves: of a mixed product it may be operands alone."""
    whole = Distribution("all")
    product = Product(32768, 4096, 4096, dtype, 8, whole, whole, whole, dtype_d=dtype_d)
    assert LocalGemm(product, "").lower_bound_nbytes == nbytes * 7 / 8 * 4096**2


def all_gathers() -> list[AllGatherGemm]:
    plans = []
    for (m, n, k), nprocs, transposed, chunks in itertools.product(SIZES, RANKS, (False, True), CHUNKS):
        for rows, shards in itertools.product(splits(m, nprocs), [*splits(k, nprocs), *splits(n, nprocs)]):
            for axis in ("rows", "columns"):
                if shards.n != (k if axis == "rows" else n):
                    continue
                product = Product(
                    m,
                    n,
                    k,
                    "float64",
                    nprocs,
                    Distribution("rows", rows),
                    Distribution(axis, shards),
                    Distribution("rows", rows),
                )
                plans.append(AllGatherGemm(product.T if transposed else product, "", transposed, chunks))
    return plans[::7]


def reductions(kind: type[GemmReduceScatter]) -> list[GemmReduceScatter]:
    plans = []
    for (m, n, k), nprocs, transposed, chunks in itertools.product(SIZES, RANKS, (False, True), CHUNKS):
        for inner, columns in itertools.product(splits(k, nprocs), splits(n, nprocs)):
            d = Distribution("all") if kind is GemmAllReduce else Distribution("columns", columns)
            product = Product(
                m, n, k, "float32", nprocs, Distribution("columns", inner), Distribution("rows", inner), d
            )
            plans.append(kind(product.T if transposed else product, "", transposed, chunks))
    return plans[::7]  # every kind of plan: the period has no factor in common with those of the arguments


def test_gather_multiplies_every_shard_once_on_every_rank_that_takes_part() -> None:
    for plan in all_gathers():
        product, nprocs = plan.oriented, plan.product.nprocs
        assert product.d.split is not None
        for rank in range(nprocs):
            steps = list(plan.steps(rank))
            taken = Counter((step.source, c) for step in steps for c in range(step.c0, step.c1))
            expected = {
                (source, c): 1
                for source in range(nprocs)
                for c in range(plan.shard_shape(source)[1])
                if plan.shard_shape(source)[0] and product.d.split.count(rank)
            }
            assert taken == expected
            distances = [(step.source - rank) % nprocs for step in steps]
            assert distances == sorted(distances)  # the own shard first, then the next rank's, ...
            for source in {step.source for step in steps}:
                indices = [step.piece for step in steps if step.source == source]
                assert indices == sorted(set(indices))
                assert len(indices) <= plan.chunks


def test_gather_receives_what_its_steps_read() -> None:
    for plan in all_gathers():
        nprocs, received, widest = plan.product.nprocs, [], 0
        for rank in range(nprocs):
            pieces = [
                plan.shard_shape(step.source)[0] * (step.c1 - step.c0)
                for step in plan.steps(rank)
                if step.source != rank
            ]
            assert plan.received_elements(rank) == sum(pieces)
            assert plan.received_nbytes(rank) == 8 * sum(pieces)
            received.append(8 * sum(pieces))
            widest = max(widest, *pieces, 0)
        assert plan.max_received_nbytes == max(received), plan
        assert plan.workspace_nbytes >= 2 * 8 * widest, plan


def node_sizes(nprocs: int) -> list[tuple[int, ...]]:
    """All ranks on one node, each on its own, one beside the others, two on each but the last."""
    return [(nprocs,), (1,) * nprocs, (1, nprocs - 1), (nprocs - 1, 1), (2,) * (nprocs // 2) + (1,) * (nprocs % 2)]


def nodes_of(sizes: tuple[int, ...]) -> list[range]:
    return [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def test_a_node_receives_a_shard_of_another_node_once() -> None:
    for plan in all_gathers()[::5]:
        for sizes in node_sizes(plan.product.nprocs):
            received = []
            for node in nodes_of(sizes):
                steps = {step for rank in node for step in plan.steps(rank) if step.source not in node}
                received.append(8 * sum(plan.shard_shape(step.source)[0] * (step.c1 - step.c0) for step in steps))
                assert plan.network_nbytes(node) == received[-1]
            mixed = dataclasses.replace(plan, transport="mixed", nodes=sizes)
            assert mixed.max_network_nbytes == max(received)
            assert (f"  network    {max(received):,} bytes" in mixed.explain()) == (max(received) > 0)
            assert "  network  " not in plan.explain()


@pytest.mark.parametrize("kind", [GemmReduceScatter, GemmAllReduce])
def test_a_node_receives_partial_products_for_its_ranks_and_finished_columns_once(
    kind: type[GemmReduceScatter],
) -> None:
    for plan in reductions(kind):
        m, n = plan.oriented.m, plan.oriented.n
        for node in itertools.chain.from_iterable(map(nodes_of, node_sizes(plan.product.nprocs))):
            far = (step for rank in range(plan.product.nprocs) if rank not in node for step in plan.steps(rank))
            columns = sum(step.c1 - step.c0 for step in far if step.owner in node)
            if plan.replicates:
                columns += n - sum(plan.shards.count(rank) for rank in node)
            assert plan.network_elements(node) == m * columns


@pytest.mark.parametrize("kind", [GemmReduceScatter, GemmAllReduce])
def test_every_owner_adds_every_source_once_in_rotated_order(kind: type[GemmReduceScatter]) -> None:
    for plan in reductions(kind):
        nprocs = plan.product.nprocs
        contributors = [rank for rank in range(nprocs) if plan.inner.count(rank)]
        for owner in range(nprocs):
            sources = list(plan.sources(owner))
            assert sources == sorted(set(contributors) - {owner}, key=lambda rank: (rank - owner) % nprocs)
        sent = {rank: list(plan.steps(rank)) for rank in range(nprocs)}
        for rank, steps in sent.items():
            owners = {step.owner for step in steps}
            assert owners <= {rank} or rank in contributors
            counted = Counter((step.owner, c) for step in steps for c in range(step.c0, step.c1))
            expected = {
                (owner, c): 1
                for owner in range(nprocs)
                for c in range(plan.shards.count(owner))
                if owner == rank or rank in contributors
            }
            assert counted == expected
            # The sooner an owner adds this rank's part, the sooner it goes; the own columns are the last,
            # in an all-reduce one block later than the others' of the same piece.
            turns = [step.piece + (step.owner == rank) if kind is GemmAllReduce else 0 for step in steps]
            order = [(turn, (rank - s.owner - 1) % nprocs) for turn, s in zip(turns, steps, strict=True)]
            assert order == sorted(order)
            for owner in owners:
                indices = [step.piece for step in steps if step.owner == owner]
                assert indices == sorted(set(indices))


@pytest.mark.parametrize("kind", [GemmReduceScatter, GemmAllReduce])
def test_reduction_receives_what_the_steps_send(kind: type[GemmReduceScatter]) -> None:
    for plan in reductions(kind):
        nprocs, m = plan.product.nprocs, plan.oriented.m
        received, widest = Counter(dict.fromkeys(range(nprocs), 0)), 0
        for rank in range(nprocs):
            for step in plan.steps(rank):
                size = m * (step.c1 - step.c0)
                widest = max(widest, size)
                if step.owner != rank:
                    received[step.owner] += size
                elif kind is GemmAllReduce:
                    for peer in set(range(nprocs)) - {rank}:
                        received[peer] += size
        for rank in range(nprocs):
            assert plan.received_elements(rank) == received[rank], (plan, rank)
        assert plan.max_received_nbytes == 4 * max(received.values()), plan
        assert plan.workspace_nbytes >= 4 * 4 * widest, plan


def test_all_reduce_covers_every_column_once() -> None:
    for plan in reductions(GemmAllReduce):
        assert isinstance(plan, GemmAllReduce)
        columns: Counter[int] = Counter()
        for owner in range(plan.product.nprocs):
            ranges = plan.shards.ranges(owner)
            flat = [g for g0, g1 in ranges for g in range(g0, g1)]
            for _, c0, c1 in plan.owned(owner):
                columns.update(flat[c0:c1])
                assert flat[c0:c1] == list(range(flat[c0], flat[c0] + c1 - c0))  # one run of D's memory
        assert columns == dict.fromkeys(range(plan.oriented.n), 1)


def test_pieces_cover_and_are_nearly_equal() -> None:
    for count, chunks in itertools.product(range(12), range(1, 9)):
        cut = list(pieces(count, chunks))
        assert [c for _, c0, c1 in cut for c in range(c0, c1)] == list(range(count))
        lengths = {c1 - c0 for _, c0, c1 in cut}
        assert max(lengths, default=0) - min(lengths, default=0) <= 1
        assert [i for i, _, _ in cut] == sorted({i for i, _, _ in cut} & set(range(chunks)))


def example_plans() -> list[ProductPlan]:
    return [*all_gathers()[::50], *reductions(GemmReduceScatter)[::50], *reductions(GemmAllReduce)[::50]]


def test_plans_are_values() -> None:
    kinds: list[type[ProductPlan]] = [LocalGemm, AllGatherGemm, GemmReduceScatter, GemmAllReduce]
    for plan in example_plans():
        again = copy.deepcopy(plan)
        assert again == plan
        assert hash(again) == hash(plan)
        assert again.explain() == plan.explain() == str(plan)
        assert repr(plan) == f"<{plan.label}>"
        other = dataclasses.replace(plan, chunks=plan.chunks + 1)
        assert other != plan
        with pytest.raises(dataclasses.FrozenInstanceError):
            plan.chunks = 2  # type: ignore[misc]
    assert len({kind(example_plans()[0].product, "") for kind in kinds}) == 4


def test_explanations_are_short_and_name_the_data_that_moves() -> None:
    for plan in example_plans():
        lines = plan.explain().splitlines()
        assert 8 <= len(lines) <= 12
        assert lines[0].startswith(plan.name)
        assert f"{plan.max_received_nbytes:,} bytes" in plan.explain()
        assert f"{plan.workspace_nbytes:,} bytes" in plan.explain()


def test_only_what_moves_has_a_time() -> None:
    for plan in example_plans():
        alone = LocalGemm(plan.product, "nothing travels")
        for either in (plan, alone):
            assert ("  transfer  " in either.explain()) == (either.max_received_nbytes > 0)


def test_transposing_a_product_twice_gives_it_back() -> None:
    for plan in example_plans():
        product = plan.product
        assert product == product.T.T
        assert product.T.lower_bound == product.lower_bound
        assert (product.T.m, product.T.n, product.T.k) == (product.n, product.m, product.k)


MILLION = 1_000_000


def table_plan(
    m: int, n: int, k: int, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor, nprocs: int
) -> ProductPlan:
    """The one-dimensional plan that receives the fewest bytes."""
    return min(one_dimensional("float64", a, b, d, nprocs), key=lambda plan: plan.max_received_nbytes)


@pytest.mark.parametrize(
    ("a", "b", "d", "name"),
    [
        ("row_wise", "row_wise", "row_wise", "AllGatherGemm"),
        ("row_wise", "column_wise", "column_wise", "AllGatherGemm"),
        ("column_wise", "row_wise", "row_wise", "GemmReduceScatter"),
        ("column_wise", "row_wise", "column_wise", "GemmReduceScatter"),
        ("column_wise", "row_wise", "replicated", "GemmAllReduce"),
        ("row_wise", "replicated", "row_wise", "LocalGemm"),
    ],
)
def test_a_million_ranks_cost_nothing(a: str, b: str, d: str, name: str) -> None:
    start = time.perf_counter()
    n = 3 * MILLION + 1
    left, right, result = (getattr(MatrixDescriptor, kind)(n, n, MILLION) for kind in (a, b, d))
    plan = table_plan(n, n, n, left, right, result, MILLION)
    plan = dataclasses.replace(plan, chunks=3, transport=Topology(64).transport(MILLION))
    assert plan.name == name
    assert plan.max_received_nbytes >= plan.received_nbytes(MILLION // 2)
    assert plan.workspace_nbytes >= 0
    assert plan.explain()
    if not isinstance(plan, LocalGemm):
        assert isinstance(plan, AllGatherGemm | GemmReduceScatter)
        assert len(list(itertools.islice(plan.steps(MILLION // 3), 7))) == 7
    assert time.perf_counter() - start < 0.05  # 10^6 steps of Python take longer


@pytest.mark.parametrize(
    ("m", "n", "k", "nprocs", "gather_b", "gather_a", "scatter", "reduce"),
    [
        (8192, 8192, 8192, 2, 1.28, 1.28, 1.28, 2.56),
        (8192, 8192, 8192, 4, 1.70, 1.70, 1.70, 3.40),
        (8192, 8192, 8192, 8, 2.33, 2.33, 2.33, 4.67),
        (32768, 4096, 4096, 8, 1.00, 8.00, 8.00, 16.00),
        (32768, 4096, 4096, 16, 1.13, 9.06, 9.06, 18.13),
        (4096, 4096, 65536, 8, 16.00, 16.00, 1.00, 2.00),
        (4096, 4096, 65536, 64, 23.34, 23.34, 1.46, 2.92),
        (8192, 28672, 8192, 2, 3.50, 1.00, 3.50, 7.00),
        (8192, 28672, 8192, 8, 4.20, 1.20, 4.20, 8.40),
        (16384, 16384, 1024, 4, 1.50, 1.50, 24.00, 48.00),
        (16384, 16384, 1024, 16, 2.50, 2.50, 40.00, 80.00),
    ],
)
def test_ratio_to_the_lower_bound(
    m: int, n: int, k: int, nprocs: int, gather_b: float, gather_a: float, scatter: float, reduce: float
) -> None:
    """Figures worked out by hand from theorem 3 of arXiv 2205.13407."""
    row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
    cases = (
        (row(m, k, nprocs), row(k, n, nprocs), row(m, n, nprocs), gather_b),
        (column(m, k, nprocs), column(k, n, nprocs), column(m, n, nprocs), gather_a),
        (column(m, k, nprocs), row(k, n, nprocs), row(m, n, nprocs), scatter),
        (column(m, k, nprocs), row(k, n, nprocs), whole(m, n, nprocs), reduce),
    )
    for a, b, d, expected in cases:
        plan = table_plan(m, n, k, a, b, d, nprocs)
        ratio = plan.max_received_nbytes / (8 * plan.product.lower_bound)
        assert abs(ratio - expected) <= 0.005 + 1e-9  # the figures have two decimals
        assert f"{ratio:.2f} x the lower bound" in plan.explain()


@given(
    st.integers(0, 9000),
    st.integers(1, 16),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.sampled_from([LINES, HALF_TILE]),
)
def test_shares_cover_each_piece_and_no_rank_has_more_for_long(
    lines: int, nprocs: int, weights: list[int], unit: int
) -> None:
    borders, owned = cuts(lines, tuple(weights), unit), [0] * nprocs
    for start, stop in itertools.pairwise(borders):
        shares = [share(start, stop, owner, nprocs, unit) for owner in range(nprocs)]
        assert [first for first, _ in shares] + [stop] == [start] + [end for _, end in shares]
        counts = [-(-(end - first) // unit) for first, end in shares]
        assert all(first % unit == 0 for first, end in shares if first < end)
        assert max(counts) - min(counts) <= 1
        owned = [before + count for before, count in zip(owned, counts, strict=True)]
        assert max(owned) - min(owned) <= 1
