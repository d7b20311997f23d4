"""A call that follows the remedy of its error message succeeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import pblas
from pblas import tp
from pblas.errors import ArgumentError, DTypeError, LayoutError, OutOfRangeError
from tests.common.ranks import COMM, raises_on_all_ranks

P = COMM.size
X = np.arange(12.0).reshape(3, 4)
LIST, SCALAR = X.tolist(), 2.0
SETTINGS = ["shared"]


class Sparse:
    """The part of SciPy's sparse matrices that a message names."""

    def toarray(self) -> Any:
        """X, the dense array."""
        return X


def _matrix(ctx: pblas.Context, array: Any) -> pblas.DistMatrix:
    m, n = array.shape
    return ctx.from_global(array, pblas.MatrixDescriptor.row_wise(m, n, P), root=None)


Call = Callable[[pblas.Context, Any], Any]
ARRAYS: dict[str, Call] = {
    "allreduce": lambda ctx, x: ctx.allreduce(x),
    "allgather": lambda ctx, x: ctx.allgather(x),
    "reduce_scatter": lambda ctx, x: ctx.reduce_scatter(x),
    "tp": lambda ctx, x: tp.linear_allreduce(x, np.ones((2, 4)), ctx=ctx),
}
MATRICES: dict[str, Call] = {
    "pmatmul": lambda ctx, x: pblas.pmatmul(x, _matrix(ctx, X.T)),
    "plan_matmul": lambda ctx, x: pblas.plan_matmul(_matrix(ctx, X.T), x).close(),
    "execute": lambda ctx, x: pblas.plan_matmul(*2 * [_matrix(ctx, X)], transb="T").execute(x, _matrix(ctx, X)),
    "redistribute": lambda _, x: pblas.redistribute(x, pblas.MatrixDescriptor.column_wise(3, 4, P)),
}


@pytest.mark.mpi
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(
    ("value", "text", "remedied"),
    [
        (None, "got NoneType; every rank must pass an array", X),
        (Sparse(), "got Sparse; pass x.toarray()", Sparse().toarray()),
        ("abc", "got str; every rank must pass an array", X),
    ],
    ids=["None", "sparse", "text"],
)
def test_values_that_are_no_arrays_are_refused_with_the_remedy(
    ctx: pblas.Context, name: str, value: Any, text: str, remedied: Any
) -> None:
    raises_on_all_ranks(ArgumentError, text, partial(ARRAYS[name], ctx, value))
    assert ARRAYS[name](ctx, remedied).dtype == X.dtype


@pytest.mark.mpi
@pytest.mark.parametrize("value", [LIST, SCALAR], ids=["list", "number"])
def test_lists_and_numbers_become_arrays_by_the_remedy(ctx: pblas.Context, value: Any) -> None:
    raises_on_all_ranks(ArgumentError, "; pass np.asarray(x)", partial(ctx.allreduce, value))
    assert np.array_equal(ctx.allreduce(np.asarray(value)), P * np.asarray(value))


@pytest.mark.mpi
def test_an_out_that_is_no_array_is_left_out_by_the_remedy(ctx: pblas.Context) -> None:
    raises_on_all_ranks(ArgumentError, "out must be an array", partial(ctx.allreduce, X, LIST))
    raises_on_all_ranks(ArgumentError, "got list; leave it out, or pass an array", partial(ctx.allreduce, X, LIST))
    assert np.array_equal(ctx.allreduce(X), P * X)


@pytest.mark.mpi
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (X, "got ndarray; ctx.from_global(array, desc) makes one"),
        (Sparse(), "got Sparse; ctx.from_global(x.toarray(), desc) makes one"),
        (None, "got NoneType; ctx.from_global(array, desc) makes one"),
    ],
    ids=["array", "sparse", "None"],
)
def test_values_that_are_no_matrices_are_refused_with_the_remedy(
    ctx: pblas.Context, name: str, value: Any, text: str
) -> None:
    raises_on_all_ranks(ArgumentError, text, partial(MATRICES[name], ctx, value))
    MATRICES[name](ctx, _matrix(ctx, X))


@pytest.mark.mpi
def test_sizes_and_matrices_are_not_mixed(ctx: pblas.Context) -> None:
    text = "got int; plan_matmul(m, n, k, nprocs=8) plans for sizes"
    raises_on_all_ranks(ArgumentError, text, lambda: pblas.plan_matmul(3, _matrix(ctx, X), 4))
    with pblas.plan_matmul(3, 4, 4, nprocs=8) as planned:
        assert planned.out.shape == (3, 4)
    desc = pblas.MatrixDescriptor.row_wise(3, 4, P)
    raises_on_all_ranks(
        ArgumentError,
        "got MatrixDescriptor; pass matrices only, or plan with descriptors only",
        lambda: pblas.plan_matmul(_matrix(ctx, X), desc, transb="T"),
    )
    with pblas.plan_matmul(desc, desc, transb="T", dtype="float64", nprocs=P) as planned:
        assert planned.out.shape == (3, 3)
    with pytest.raises(ArgumentError, match="leave out= out"):
        pblas.plan_matmul(3, 4, 4, nprocs=8, out=desc)


@pytest.mark.mpi
def test_a_function_is_applied_after_a_product(ctx: pblas.Context) -> None:
    a = _matrix(ctx, X)
    text = "; apply a function to D.local after the product"
    function: Any = np.negative
    raises_on_all_ranks(ArgumentError, text, lambda: pblas.pmatmul(a, a, transb="T", epilogue=function))
    d = pblas.pmatmul(a, a, transb="T")
    np.negative(d.local, out=d.local)
    result: Any = d.to_global(root=None)
    assert np.array_equal(result, -(X @ X.T))


@pytest.mark.mpi
def test_a_maximum_of_complex_numbers_is_refused_with_the_remedy(ctx: pblas.Context) -> None:
    raises_on_all_ranks(ArgumentError, "; use 'sum' or 'prod'", lambda: ctx.allreduce(1j * X, op="max"))
    assert np.array_equal(ctx.allreduce(1j * X, op="sum"), P * 1j * X)


@pytest.mark.mpi
def test_a_c_without_a_beta_is_added(ctx: pblas.Context) -> None:
    """And a beta of 0 is obeyed, also where a C is given."""
    a, c = _matrix(ctx, X), _matrix(ctx, np.ones((3, 3)))
    for beta, factor in ((None, 1.0), (0, 0.0), (0.5, 0.5), (1, 1.0)):
        for result in (
            pblas.pmatmul(a, a, c, transb="T", beta=beta),
            pblas.plan_matmul(a, a, c, transb="T", beta=beta).execute(a, a, c),
        ):
            assert np.allclose(_whole(result), X @ X.T + factor)
    assert np.allclose(_whole(pblas.pmatmul(a, a, c, transb="T")), X @ X.T + 1)
    assert np.allclose(_whole(pblas.pmatmul(a, a, transb="T")), X @ X.T)


@pytest.mark.mpi
def test_a_matrix_is_redistributed_into_another_one(ctx: pblas.Context) -> None:
    a, b = _matrix(ctx, X), ctx.zeros(pblas.MatrixDescriptor.column_wise(3, 4, P, order="C"))
    assert a.redistribute(out=b) is b
    assert np.array_equal(_whole(b), X)
    assert np.array_equal(_whole(a.redistribute(b.desc)), X)
    raises_on_all_ranks(ArgumentError, "both of desc and out", lambda: a.redistribute(b.desc, out=b))
    raises_on_all_ranks(ArgumentError, "neither of desc and out", a.redistribute)
    narrow = ctx.zeros((3, 4), "float32")
    raises_on_all_ranks(DTypeError, "convert with A.astype('float32')", lambda: a.redistribute(out=narrow))
    assert np.array_equal(_whole(a.astype("float32").redistribute(out=narrow)), X)


@pytest.mark.mpi
def test_arrays_that_no_matrix_can_be_made_of_are_refused_with_the_remedy(ctx: pblas.Context) -> None:
    whole = pblas.MatrixDescriptor.replicated(3, 4, P)
    wide = np.arange(48.0).reshape(6, 8)
    raises_on_all_ranks(LayoutError, "; pass copy=True", lambda: ctx.from_local(wide[::2, ::2], whole))
    assert np.array_equal(_whole(ctx.from_local(wide[::2, ::2], whole, copy=True)), wide[::2, ::2])
    raises_on_all_ranks(
        ArgumentError,
        "the array is None on rank 0; pass the m x n array there",
        lambda: ctx.from_global(None, whole, None),
    )
    assert np.array_equal(_whole(ctx.from_global(X if ctx.rank == 0 else None, whole, root=0)), X)
    sparse: Any = Sparse()
    raises_on_all_ranks(ArgumentError, "pass its .toarray()", lambda: ctx.from_global(sparse, whole, None))
    assert np.array_equal(_whole(ctx.from_global(sparse.toarray(), whole, None)), X)


@pytest.mark.mpi
def test_operands_and_keys_that_do_not_fit_are_refused_with_the_remedy(ctx: pblas.Context) -> None:
    a: Any = _matrix(ctx, X)
    raises_on_all_ranks(ArgumentError, "got list; pass np.asarray(y)", lambda: a + X[0].tolist())
    assert np.array_equal(_whole(a + np.asarray(X[0].tolist())), X + X[0])
    raises_on_all_ranks(ArgumentError, "array that is equal on all ranks, got str", lambda: a + "x")
    raises_on_all_ranks(DTypeError, "astype: dtype must be one of", lambda: a.astype(int))
    raises_on_all_ranks(DTypeError, "; pass dtype='float64'", lambda: a.astype(int))
    raises_on_all_ranks(ArgumentError, "A[np.ix_(rows, columns)] selects the submatrix", lambda: a[[0, 2], [1, 2]])
    assert np.array_equal(_whole(a[np.ix_([0, 2], [1, 2])]), X[np.ix_([0, 2], [1, 2])])
    raises_on_all_ranks(ArgumentError, "expected integers, slices", lambda: a[..., ...])
    raises_on_all_ranks(OutOfRangeError, "row 9 does not exist, the matrix has 3 rows; got A[9, 1:]", lambda: a[9, 1:])


@pytest.mark.mpi
def test_functions_of_numpy_that_pblas_lacks_are_refused_with_the_remedy(ctx: pblas.Context) -> None:
    a: Any = _matrix(ctx, X)
    raises_on_all_ranks(ArgumentError, "numpy.cumsum: it takes no DistMatrix; A.to_global()", lambda: np.cumsum(a))
    raises_on_all_ranks(ArgumentError, "numpy.save: it takes no DistMatrix; A.save does", lambda: np.save("x", a))
    raises_on_all_ranks(
        ArgumentError, "'dtype'; the arguments after the first that pblas has: axis", lambda: np.sum(a, 0, "f4")
    )
    raises_on_all_ranks(ArgumentError, "numpy.cbrt: it takes no DistMatrix; pblas.elementwise", lambda: np.cbrt(a))
    raises_on_all_ranks(ArgumentError, "numpy.add.accumulate: it takes no", lambda: np.add.accumulate(a))
    raises_on_all_ranks(ArgumentError, "where= is not for a DistMatrix", lambda: np.add(a, a, where=X > 0))
    raises_on_all_ranks(ArgumentError, "write v = v + A for v += A", lambda: np.add(X, a, out=X.copy()))
    raises_on_all_ranks(ArgumentError, "write A.any(), A.all()", lambda: bool(a == X))
    raises_on_all_ranks(ArgumentError, "A.to_global() collects it", lambda: np.asarray(a))


@pytest.mark.mpi
def test_sparse_matrices_are_refused_with_the_remedy(ctx: pblas.Context) -> None:
    a: Any = _matrix(ctx, X)
    sparse: Any = scipy.sparse.csr_array(X)
    raises_on_all_ranks(ArgumentError, "sparse csr_array; pass its .toarray()", lambda: a @ sparse)
    raises_on_all_ranks(ArgumentError, "sparse csr_array; pass its .toarray()", lambda: a + sparse)
    raises_on_all_ranks(ArgumentError, "A.to_global() collects it", lambda: sparse.T @ a)
    assert np.allclose(_whole(a @ sparse.T.toarray()), X @ X.T)


@pytest.mark.mpi
def test_a_conjugated_view_is_written_by_the_remedy(ctx: pblas.Context) -> None:
    a = _matrix(ctx, X * 1j)
    view = a.H
    raises_on_all_ranks(ArgumentError, "or write to it by x[...] = y", lambda: view.__iadd__(1.0))
    view[...] = view + 1.0
    assert np.array_equal(_whole(a), X * 1j + 1)


@pytest.mark.mpi
def test_sizes_that_are_no_shape_are_refused_with_the_remedy(ctx: pblas.Context) -> None:
    shapes: Any = 3, (3,), (3, 4, 5)
    for sizes in shapes:
        raises_on_all_ranks(ArgumentError, f"as (3, 4) for 3 rows, got {sizes}", partial(ctx.zeros, sizes))
    function: Any = lambda i: i  # noqa: E731 - one argument, not two
    text = "from_function: the function f(i, j) raised TypeError"
    raises_on_all_ranks(ArgumentError, text, lambda: ctx.from_function(function, (3, 4)))
    nothing: Any = None
    raises_on_all_ranks(ArgumentError, "pass the m x n array, on every rank", lambda: ctx.replicate(nothing))
    raises_on_all_ranks(ArgumentError, "pass an array of 0 rows", lambda: ctx.from_parts(nothing))
    raises_on_all_ranks(ArgumentError, "got one without matrices", lambda: pblas.vstack([]))


def _whole(matrix: pblas.DistMatrix) -> Any:
    """**Collective.** The elements of a matrix, on every rank."""
    return matrix.to_global(root=None)
