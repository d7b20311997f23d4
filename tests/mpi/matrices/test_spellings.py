"""Arguments that mean the same are the same: NumPy's strings and numbers, -0.0 as a factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, Grid, MatrixDescriptor
from tests.common.ranks import COMM, collected, culprits, few

pytestmark = [pytest.mark.mpi, few]
M = np.arange(12.0).reshape(3, 4)
S: Any = np.str_


def matrix(ctx: Context, order: Any = "F", grid_order: Any = "C") -> pblas.DistMatrix:
    desc = MatrixDescriptor(3, 4, 2, 2, Grid(1, ctx.nprocs, grid_order), order=order)
    return ctx.from_global(M, desc, None)


SPELLINGS: dict[str, tuple[Any, Any, Callable[[Context, Any], Any]]] = {
    "order": ("C", S("C"), matrix),
    "order of a grid": ("R", S("R"), lambda ctx, x: matrix(ctx, "F", x)),
    "order in row_wise": ("C", S("C"), lambda ctx, x: ctx.ones(MatrixDescriptor.row_wise(3, 4, ctx.nprocs, order=x))),
    "alpha": (0.0, -0.0, lambda ctx, x: pblas.pmatmul(matrix(ctx), matrix(ctx).T, alpha=x)),
    "alpha, complex": (
        0j,
        complex(-0.0, -0.0),
        lambda ctx, x: pblas.pmatmul(1j * matrix(ctx), (1j * matrix(ctx)).T, alpha=x),
    ),
    "alpha of NumPy": (2.0, np.float64(2.0), lambda ctx, x: pblas.pmatmul(matrix(ctx), matrix(ctx).T, alpha=x)),
    "beta": (0.0, -0.0, lambda ctx, x: pblas.pmatmul(matrix(ctx), matrix(ctx).T, ctx.ones((3, 3)), beta=x)),
    "transa": ("T", S("T"), lambda ctx, x: pblas.pmatmul(matrix(ctx), matrix(ctx), transa=x)),
    "epilogue": ("relu(x)", S("relu(x)"), lambda ctx, x: pblas.pmatmul(matrix(ctx), matrix(ctx).T, epilogue=x)),
    "op": ("max", S("max"), lambda ctx, x: ctx.allreduce(M, op=x)),
    "algorithm": ("naive", S("naive"), lambda ctx, x: ctx.allreduce(M, algorithm=x)),
    "alpha, redistribution": (0.0, -0.0, lambda ctx, x: pblas.redistribute(matrix(ctx), matrix(ctx).desc, alpha=x)),
    "trans, redistribution": ("T", S("T"), lambda ctx, x: pblas.redistribute(matrix(ctx).T, matrix(ctx).desc, trans=x)),
    "uplo": ("L", S("L"), lambda ctx, x: pblas.redistribute(matrix(ctx), matrix(ctx).desc, uplo=x)),
    "diagonal": (1, np.int8(1), lambda ctx, x: pblas.tril(matrix(ctx), x)),
    "dtype": ("float32", S("float32"), lambda ctx, x: ctx.ones((3, 4), x)),
    "dtype, as a class": ("float32", np.float32, lambda ctx, x: ctx.ones((3, 4), x)),
    "seed": (3, np.int64(3), lambda ctx, x: ctx.random((3, 4), seed=x)),
    "distribution": ("normal", S("normal"), lambda ctx, x: ctx.random((3, 4), seed=0, distribution=x)),
    "sizes": (3, np.int16(3), lambda ctx, x: ctx.ones((x, 4))),
    "k of eye": (1, np.uint8(1), lambda ctx, x: ctx.eye((3, 4), k=x)),
    "expression": ("x + 1", S("x + 1"), lambda ctx, x: pblas.elementwise(x, x=matrix(ctx))),
    "axis": (1, np.int64(1), lambda ctx, x: matrix(ctx).sum(axis=x)),
    "ord": ("max", S("max"), lambda ctx, x: matrix(ctx).norm(x)),
    "infinite ord": (np.inf, np.float32(np.inf), lambda ctx, x: matrix(ctx).norm(x)),
    "index": (1, np.int32(1), lambda ctx, x: matrix(ctx)[x, 2]),
    "assigned index": (1, np.int32(1), lambda ctx, x: matrix(ctx).__setitem__(x, 5.0)),
    "root": (0, np.int32(0), lambda ctx, x: ctx.from_global(M, (3, 4), x)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_ranks_may_spell_an_argument_differently(ctx: Context, name: str) -> None:
    usual, other, call = SPELLINGS[name]
    expected = call(ctx, usual)
    for ranks in culprits():
        result = call(ctx, other if COMM.rank in ranks else usual)
        if isinstance(result, pblas.DistMatrix):
            assert result.dtype == expected.dtype
            assert np.array_equal(collected(result), collected(expected))
        else:
            assert np.array_equal(result, expected) or result is expected is None
