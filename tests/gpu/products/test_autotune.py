"""Algorithms measured on GPUs: products are right, all ranks take the same algorithm, and a file stores it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import pblas
from pblas import MatrixDescriptor
from pblas.backends import cache_file as store
from pblas.backends.cuda.gemm import Gemm
from pblas.backends.nvshmem.stream_engine import StreamEngine
from pblas.matmul.choose_granularity import SHORTLIST_LENGTH
from pblas.matmul.product_plan import ProductPlan
from tests.common.ranks import COMM, check_product, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.products.products import Run
from tests.gpu.sharing import SHARED
from tests.mpi.operations.test_matmul import LAYOUTS, Case, Dimension

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pblas.Context]:
    """A context without measurements; only compiled kernels are cached."""
    folder = COMM.bcast(tmp_path, 0)
    monkeypatch.setattr(store, "store_path", lambda *names: folder / "-".join(names).replace("/", "_"))
    with context() as opened:
        yield opened


def context() -> pblas.Context:
    return pblas.Context(backend="nvshmem", timeout=20.0)


def test_products_are_right_by_the_measured_algorithm(ctx: pblas.Context) -> None:
    """The fastest of several; a second plan, and a context that reads the file, need no measurement."""
    n, plans = max(64, 32 * ctx.nprocs) * ctx.nprocs, list[tuple[Case, ProductPlan]]()  # none is far the fastest
    for layout, homes, beta in (("AG(A) rows", "uuuu", 0.0), ("RS to columns", "wwww", 0.5), ("AR", "wwww", 0.0)):
        dims = (Dimension(2 * n), Dimension(n), Dimension(n))
        out: Literal["in place", "matrix"] = "in place" if beta else "matrix"
        options = (("autotune", True),)
        case = Case(*dims, LAYOUTS[layout], "bfloat16", beta=beta, out=out, homes=homes, options=options)
        plan, bits = Run(ctx, case).multiply()
        assert same_on_all_ranks(plan).measured
        assert 2 <= len(plan.measured) <= SHORTLIST_LENGTH
        assert plan.algorithm == plan.measured[0][0]
        assert all(1e-6 < seconds < (1.0 if SHARED else 1e-2) for _, seconds in plan.measured)
        if layout == "AR":
            assert len(set(COMM.allgather(bits[0]))) == 1
        plans.append((case, plan))

    def measured_again(*_: Any) -> float:
        raise AssertionError("it was known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamEngine, "seconds", measured_again)
        with context() as later:
            for (case, plan), where in zip(plans, (ctx, later, later), strict=True):
                assert Run(where, case).multiply()[0] == plan


def test_a_tuning_error_on_one_rank_is_raised_by_all(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance if a rank has no memory for the operands of the timed GEMMs."""

    def none_left(*_: Any) -> None:
        raise MemoryError("none left")

    n = 64 * ctx.nprocs
    a, b = (ctx.random(MatrixDescriptor.row_wise(n, n, ctx.nprocs), "bfloat16", seed=seed) for seed in (1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(Gemm, "tune", none_left)
        text = "plan_matmul: choose algorithms: the GPU of rank 0: MemoryError: none left"
        raises_on_all_ranks(pblas.BackendError, text, lambda: pblas.plan_matmul(a, b, autotune=True))
    check_product(ctx)
