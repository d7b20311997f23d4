"""Sums, norms and products with a triangle in a reproducible context: the bits of one GPU, for any layouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from tests.common.gauge import dtype_of, entries
from tests.common.ranks import open_context
from tests.gpu.products.general import SECONDS
from tests.mpi.matrices.test_reproducible import VALUES, M, N, compare_layouts, compare_values, triangles

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


@pytest.fixture(scope="module", params=["nvshmem", "cuda"])
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with pblas.Context(backend=request.param, timeout=SECONDS, reproducible=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone() -> Iterator[pblas.Context]:
    """A context of this rank alone, with matrices in the memory of its GPU."""
    with open_context(comm=MPI.COMM_SELF, backend="cuda", reproducible=True) as opened:
        yield opened


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64", "bfloat16", "float16"])
def test_reductions_have_the_bits_of_one_gpu(ctx: pblas.Context, alone: pblas.Context, dtype: str) -> None:
    compare_values(ctx, alone, dtype, VALUES)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-1022, 2.0**1000], ids=str)
def test_exact_sums_are_those_of_a_processor(ctx: pblas.Context, dtype: str, scale: float) -> None:
    """Also of subnormal and of huge numbers, infinities and NaNs; sums of one matrix in memory of both."""
    x = entries((M, N), np.dtype("float64"), 1)
    x = (x * scale if dtype == "float64" else x).astype(dtype_of(dtype))
    x[3, 4], x[5, 6:9] = np.finfo(x.dtype).smallest_subnormal, (np.inf, 0, np.nan)
    names = "sum", "sum of columns", "mean of rows", "trace", "norm", "norms of rows", "1-norm", "vdot"
    with open_context(comm=MPI.COMM_SELF, backend="mpi", reproducible=True) as processor, np.errstate(all="ignore"):
        for array in (x, x[:, 9:]):
            m, n = array.shape
            whole = processor.from_global(array)
            parts = ctx.from_global(array, pblas.MatrixDescriptor.row_wise(m, n, MPI.COMM_WORLD.size, order="C"))
            for name in names:
                np.testing.assert_array_equal(VALUES[name](parts), VALUES[name](whole), err_msg=name)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_products_with_a_triangle_have_the_bits_of_one_gpu(
    ctx: pblas.Context, alone: pblas.Context, dtype: str
) -> None:
    compare_layouts(ctx, alone, dtype, triangles)
