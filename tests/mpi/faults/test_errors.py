"""If one rank or all pass wrong arguments, every rank raises the same error, and the context stays usable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
from mpi4py import MPI
from scipy.sparse import csr_matrix

import pblas
from pblas import (
    ArgumentError,
    Context,
    ContextError,
    DescriptorError,
    DTypeError,
    FileFormatError,
    LayoutError,
    MatrixDescriptor,
    MismatchError,
    pmatmul,
)
from pblas.backends import select as opening
from pblas.errors import PblasWarning
from tests.common.ranks import (
    COMM,
    check_product,
    culprits,
    each_culprit,
    few,
    open_context,
    outcome_of,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
)

pytestmark = [pytest.mark.mpi, few]

N = 12  # each of 1, 2, 3, 4 and 6 ranks owns some of it
TIMEOUT = 20.0
Call = Callable[[], object]


def rows(m: int = N, n: int = N, **options: Any) -> MatrixDescriptor:
    return MatrixDescriptor.row_wise(m, n, COMM.size, **options)


def columns(m: int = N, n: int = N, **options: Any) -> MatrixDescriptor:
    return MatrixDescriptor.column_wise(m, n, COMM.size, **options)


class Cast:
    """A context and the matrices of the wrong calls below."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.a, self.b = ctx.random(rows(), seed=1), ctx.random(rows(), seed=2)
        self.c, self.d = ctx.random(rows(), seed=3), ctx.zeros(rows())
        self.short = ctx.random(rows(7, N))
        self.single = ctx.random(rows(), "float32")
        self.complex = ctx.random(rows(), "complex128")
        self.wide = ctx.random(rows(N, N + 1))
        self.array = np.arange(N * N, dtype=float).reshape(N, N)
        self.part = np.zeros(rows().local_shape(ctx.rank), order="F")
        self.fixed = ctx.from_local(_read_only(self.part), rows())


def check(ctx: Context, kind: type[Exception], text: str, wrong: Call, right: Call, *, all_wrong: bool = True) -> None:
    """The law of this file, for every set of culprits."""
    for ranks in culprits() if all_wrong else some_wrong():
        raises_on_all_ranks(kind, text, wrong if ctx.rank in ranks else right)
        check_product(ctx)


Case = tuple[type[Exception], str, Callable[[Cast], object]]

PRODUCTS: dict[str, Case] = {
    "transa": (ArgumentError, "transa must be 'N', 'T' or 'C', got 'X'", lambda x: pmatmul(x.a, x.b, transa="X")),  # type: ignore[arg-type]
    "transb": (ArgumentError, "transb must be 'N', 'T' or 'C', got 't'", lambda x: pmatmul(x.a, x.b, transb="t")),  # type: ignore[arg-type]
    "trans is a long text": (ArgumentError, "transa must be", lambda x: pmatmul(x.a, x.b, transa="x" * 5000)),  # type: ignore[arg-type]
    "trans is a list": (ArgumentError, "transa must be", lambda x: pmatmul(x.a, x.b, transa=["N"])),  # type: ignore[arg-type]
    "trans is an array": (ArgumentError, "transa must be", lambda x: pmatmul(x.a, x.b, transa=np.array(["N", "T"]))),  # type: ignore[arg-type]
    "k": (DescriptorError, "disagree on K", lambda x: pmatmul(x.a, x.short)),
    "k, transposed": (DescriptorError, "disagree on K", lambda x: pmatmul(x.short, x.b, transa="T")),
    "m of c": (DescriptorError, "C is 7 x 12", lambda x: pmatmul(x.a, x.b, x.short, beta=1.0)),
    "n of out": (DescriptorError, "out is 12 x 13", lambda x: pmatmul(x.a, x.b, out=x.wide)),
    "out is a wrong descriptor": (DescriptorError, "out is 7 x 12", lambda x: pmatmul(x.a, x.b, out=rows(7, N))),
    "dtype of b": (DTypeError, "B is float32, A is float64", lambda x: pmatmul(x.a, x.single)),
    "dtype of a": (DTypeError, "B is float64, A is complex128", lambda x: pmatmul(x.complex, x.b)),
    "dtype of c": (DTypeError, "C is float32, A is float64", lambda x: pmatmul(x.a, x.b, x.single, beta=1.0)),
    "dtype of out": (DTypeError, "out is float32, A is float64", lambda x: pmatmul(x.a, x.b, out=x.single)),
    "out is a": (ArgumentError, "out overlaps A", lambda x: pmatmul(x.a, x.b, out=x.a)),
    "out is b": (ArgumentError, "out overlaps B", lambda x: pmatmul(x.a, x.b, out=x.b)),
    "out is in a": (ArgumentError, "out overlaps A", lambda x: pmatmul(x.wide[:, :N], x.b, out=x.wide[:, 1:])),
    "out is c in part": (
        ArgumentError,
        "out overlaps C in part",
        lambda x: pmatmul(x.a, x.b, x.wide[:, :N], beta=1.0, out=x.wide[:, 1:]),
    ),
    "out is a, under H": (ArgumentError, "out", lambda x: pmatmul(x.complex, x.complex, out=x.complex.H)),
    "out is read-only": (ArgumentError, "read-only", lambda x: pmatmul(x.a, x.b, out=x.fixed)),
    "beta without c": (ArgumentError, "there is no C to scale", lambda x: pmatmul(x.a, x.b, beta=2.0)),
    "alpha is text": (ArgumentError, "alpha must be a number", lambda x: pmatmul(x.a, x.b, alpha="1")),  # type: ignore[arg-type]
    "alpha is bool": (ArgumentError, "alpha must be a number", lambda x: pmatmul(x.a, x.b, alpha=True)),
    "alpha is complex": (ArgumentError, "must be real", lambda x: pmatmul(x.a, x.b, alpha=1j)),
    "alpha is huge": (ArgumentError, "alpha", lambda x: pmatmul(x.a, x.b, alpha=10**400)),
    "chunks": (ArgumentError, "chunks must be", lambda x: pmatmul(x.a, x.b, chunks=0)),
    "chunks is bool": (ArgumentError, "chunks must be", lambda x: pmatmul(x.a, x.b, chunks=True)),
    "wire_dtype": (DTypeError, "wire_dtype must be", lambda x: pmatmul(x.a, x.b, wire_dtype="float32")),
    "wire_dtype is no dtype": (DTypeError, "wire_dtype must be", lambda x: pmatmul(x.a, x.b, wire_dtype="nonsense")),
    "b is an array": (ArgumentError, "b must be a DistMatrix", lambda x: pmatmul(x.a, x.array)),  # type: ignore[arg-type]
    "a is an array": (ArgumentError, "a must be a DistMatrix", lambda x: pmatmul(x.array, x.b)),  # type: ignore[arg-type]
    "c is an array": (ArgumentError, "c must be a DistMatrix", lambda x: pmatmul(x.a, x.b, x.array, beta=1.0)),  # type: ignore[arg-type]
    "only out is a matrix": (
        ArgumentError,
        "a must be a DistMatrix, got ndarray",
        lambda x: pmatmul(x.array, x.array, out=x.d),  # type: ignore[arg-type]
    ),
    "descriptors and a matrix": (
        ArgumentError,
        "a must be a DistMatrix, got MatrixDescriptor",
        lambda x: pblas.plan_matmul(rows(), rows(), out=x.d, dtype="float64"),
    ),
    "matrices and a size": (ArgumentError, "c must be a DistMatrix, got int", lambda x: pblas.plan_matmul(x.a, x.b, N)),
    "out is an array": (ArgumentError, "out must be", lambda x: pmatmul(x.a, x.b, out=x.array)),  # type: ignore[arg-type]
    "out is H": (ArgumentError, "conjugated view", lambda x: pmatmul(x.complex, x.complex, out=x.complex.H)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_wrong_product_is_refused_on_every_rank_and_the_context_goes_on(ctx: Context, name: str) -> None:
    kind, text, wrong = PRODUCTS[name]
    x = Cast(ctx)
    before = x.wide.local.copy()
    check(ctx, kind, text, lambda: wrong(x), lambda: pmatmul(x.a, x.b, out=x.d))
    assert np.array_equal(x.wide.local, before)  # a refused product writes nothing


class OnGpu:
    """An object with the interface of any library's array on a GPU."""

    __cuda_array_interface__ = MappingProxyType({"shape": (N, N), "typestr": "<f8", "data": (4096, False)})


ON_GPU: Any = OnGpu()
MAKING: dict[str, Case] = {
    "on a GPU": (ArgumentError, "the array is on a GPU", lambda x: x.ctx.from_global(ON_GPU, rows(), None)),
    "one dimension": (ArgumentError, "1 dimension;", lambda x: x.ctx.from_global(np.ones(N), rows(), None)),
    "three dimensions": (ArgumentError, "3 dimensions", lambda x: x.ctx.from_global(np.ones((2, 2, 2)), rows(), None)),
    "no array": (ArgumentError, "pass the m x n array there", lambda x: x.ctx.from_global(None, rows(), None)),
    "a number": (ArgumentError, "got float 3.0", lambda x: x.ctx.from_global(3.0, rows(), None)),  # type: ignore[arg-type]
    "a sparse matrix": (
        ArgumentError,
        "pass its .toarray()",
        lambda x: x.ctx.from_global(csr_matrix((N, N)), rows(), None),  # type: ignore[arg-type]
    ),
    "a ragged list": (ArgumentError, "not an array", lambda x: x.ctx.from_global([[1.0], [1.0, 2.0]], rows(), None)),  # type: ignore[arg-type]
    "root is bool": (ArgumentError, "root must be None or", lambda x: x.ctx.from_global(x.array, rows(), False)),
    "a name that is no text": (FileFormatError, "No such file", lambda x: x.ctx.load("none\udcff.npy", rows())),
    "masked": (
        ArgumentError,
        "elements of a masked array have no value",
        lambda x: x.ctx.from_global(np.ma.masked_less(x.array, 5), rows(), None),
    ),
    "a seed": (ArgumentError, "seed must be an integer", lambda x: x.ctx.random(rows(), seed=0.5)),  # type: ignore[arg-type]
    "a DistMatrix": (ArgumentError, "got a DistMatrix", lambda x: x.ctx.from_global(x.a, rows(), None)),  # type: ignore[arg-type]
    "text": (DTypeError, "not numbers", lambda x: x.ctx.from_global(x.array.astype(str), rows(), None)),
    "objects": (DTypeError, "not numbers", lambda x: x.ctx.from_global(x.array.astype(object), rows(), None)),
    "integers": (DTypeError, ".astype(", lambda x: x.ctx.from_global(x.array.astype(int), rows(), None)),
    "booleans": (DTypeError, ".astype(", lambda x: x.ctx.from_global(x.array > 0, rows(), None)),
    "another dtype": (MismatchError, "dtype", lambda x: x.ctx.from_global(x.array.astype("float32"), rows(), None)),
    "another shape": (DescriptorError, "array is 11 x 12", lambda x: x.ctx.from_global(x.array[1:], rows(), None)),
    "no descriptor": (ArgumentError, "must be a MatrixDescriptor", lambda x: x.ctx.from_global(x.array, "rows", None)),  # type: ignore[arg-type]
    "a root that is no rank": (ArgumentError, "root must be", lambda x: x.ctx.from_global(x.array, rows(), COMM.size)),
    "a negative root": (ArgumentError, "root must be", lambda x: x.ctx.from_global(x.array, rows(), -1)),
    "another root": (MismatchError, "root differs", lambda x: x.ctx.from_global(x.array, rows(), 0)),
    "another layout": (MismatchError, "desc differs", lambda x: x.ctx.from_global(x.array, rows(mb=1), None)),
    "a function": (
        MismatchError,
        "differs between ranks",
        lambda x: x.ctx.from_global(lambda i, j: i + 0.0 * j, rows(), None),
    ),
    "a large grid": (
        LayoutError,
        "the context has",
        lambda x: x.ctx.from_global(x.array, MatrixDescriptor.row_wise(N, N, COMM.size + 1), None),
    ),
    "complex numbers": (
        DTypeError,
        "complex",
        lambda x: x.ctx.from_global(1j * x.array, rows(), None, dtype="float64"),
    ),
    "words, with a dtype": (
        DTypeError,
        "from_global",
        lambda x: x.ctx.from_global(x.array.astype(str), rows(), None, dtype=float),
    ),
    "objects, with a dtype": (
        DTypeError,
        "from_global",
        lambda x: x.ctx.from_global(x.array.astype(object), rows(), None, dtype=float),
    ),
    "dates, with a dtype": (
        DTypeError,
        "from_global",
        lambda x: x.ctx.from_global(x.array.astype("M8[s]"), rows(), None, dtype=float),
    ),
    "bytes, with a dtype": (
        DTypeError,
        "from_global",
        lambda x: x.ctx.from_global(np.zeros((N, N), "V8"), rows(), None, dtype=float),
    ),
}
FUNCTIONS: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "divides by zero": (ArgumentError, "the function f(i, j) raised", lambda i, j: i.size / (j.size - N)),
    "has three dimensions": (
        DescriptorError,
        "the function f(i, j) returned an array of shape (3, ",
        lambda i, j: np.zeros((3, len(i), len(j))),
    ),
    "is None": (DTypeError, "NoneType", lambda _, __: None),
    "is text": (DTypeError, "str", lambda _, __: "a"),
    "is imaginary": (DTypeError, "imaginary part", lambda _, __: 1j),
    "is a list of None": (DTypeError, "list", lambda _, __: [None]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_whose_value_is_no_matrix_of_numbers_is_refused_on_every_rank(ctx: Context, name: str) -> None:
    """NumPy would make None NaN, and drop imaginary parts with a warning."""
    kind, text, wrong = FUNCTIONS[name]
    calls = (partial(ctx.from_global, function, rows()) for function in (wrong, lambda i, j: i + 0.0 * j))
    check(ctx, kind, text, *calls)


@pytest.mark.parametrize("name", MAKING)
def test_a_wrong_global_array_is_refused_on_every_rank(ctx: Context, name: str) -> None:
    kind, text, wrong = MAKING[name]
    x = Cast(ctx)
    right = lambda: x.ctx.from_global(x.array, rows(), None)  # noqa: E731
    check(ctx, kind, text, lambda: wrong(x), right, all_wrong=kind is not MismatchError)


LOCAL: dict[str, Case] = {
    "on a GPU": (ArgumentError, "the array is on a GPU", lambda x: x.ctx.from_local(ON_GPU, rows())),
    "on a GPU, copy": (ArgumentError, "the array is on a GPU", lambda x: x.ctx.from_local(ON_GPU, rows(), copy=True)),
    "shape": (
        LayoutError,
        "make it of shape desc.local_shape(rank)",
        lambda x: x.ctx.from_local(np.zeros((1, 99)), rows()),
    ),
    "strides": (
        LayoutError,
        "order='C'",
        lambda x: x.ctx.from_local(np.zeros((x.part.shape[0] + 1, N))[1:], _two_rows()),
    ),
    "strides, order C": (
        LayoutError,
        "copy=True",
        lambda x: x.ctx.from_local(np.zeros(_two_rows().local_shape(x.ctx.rank), order="F"), _two_rows(order="C")),
    ),
    "every other row": (
        LayoutError,
        "lld=None; pass copy=True",
        lambda x: x.ctx.from_local(np.zeros((2 * len(x.part), N), order="F")[::2], _two_rows()),
    ),
    "backwards": (
        LayoutError,
        "lld=None; pass copy=True",
        lambda x: x.ctx.from_local(np.zeros(_two_rows().local_shape(x.ctx.rank), order="F")[:, ::-1], _two_rows()),
    ),
    "lld of the array": (
        LayoutError,
        "lld=99; make the descriptor with lld=None",
        lambda x: x.ctx.from_local(x.part, _two_rows(lld=99)),
    ),
    "lld too small": (LayoutError, "it must be at least", lambda x: x.ctx.from_local(x.part, _two_rows(lld=1))),
    "integers": (DTypeError, ".astype(", lambda x: x.ctx.from_local(x.part.astype(int), _two_rows())),
    "booleans": (DTypeError, ".astype(", lambda x: x.ctx.from_local(x.part > 0, _two_rows())),
    "one dimension": (ArgumentError, "1 dimension;", lambda x: x.ctx.from_local(np.zeros(N), _two_rows())),
    "no array": (
        ArgumentError,
        "pass an array of shape desc.local_shape(rank)",
        lambda x: x.ctx.from_local(None, _two_rows()),  # type: ignore[arg-type]
    ),
    "another dtype": (MismatchError, "dtype", lambda x: x.ctx.from_local(x.part.astype("float32"), _two_rows())),
    "not aligned": (LayoutError, "aligned", lambda x: x.ctx.from_local(_unaligned(x.part.shape), _two_rows())),
}


def _two_rows(lld: int | None = None, **options: Any) -> MatrixDescriptor:
    """Two rows or more on every rank, so that strides matter."""
    return replace(rows(**options), lld=lld)


def _unaligned(shape: tuple[int, int]) -> Any:
    raw = np.zeros(shape[0] * shape[1] * 8 + 1, np.uint8)[1:]
    return np.ndarray(shape, np.float64, raw.data, order="F")


def _read_only(part: Any) -> Any:
    copy = part.copy(order="F")
    copy.flags.writeable = False
    return copy


@pytest.mark.parametrize("name", LOCAL)
def test_a_wrong_local_array_is_refused_on_every_rank(ctx: Context, name: str) -> None:
    kind, text, wrong = LOCAL[name]
    x = Cast(ctx)
    order: Literal["C", "F"] = "C" if name == "strides, order C" else "F"
    right = partial(ctx.from_local, np.zeros(x.part.shape, order=order), rows(order=order))
    check(ctx, kind, text, lambda: wrong(x), right, all_wrong=kind is not MismatchError)


def test_unsupported_strides_are_copied(ctx: Context) -> None:
    m_loc = rows().local_shape(ctx.rank)[0]
    whole = np.arange(2.0 * N * m_loc).reshape(N, 2 * m_loc).T[::-2]
    matrix = ctx.from_local(whole, rows(), copy=True)
    assert np.array_equal(matrix.local, whole)
    assert not np.shares_memory(matrix.local, whole)


@pytest.mark.parametrize("operation", ["zeros", "empty", "random"])
@pytest.mark.parametrize("dtype", ["int64", "bool", "nonsense", "float128", "U3"])
def test_a_dtype_that_is_not_multiplied_is_refused_on_every_rank(ctx: Context, operation: str, dtype: Any) -> None:
    make = getattr(ctx, operation)
    for text in (f"{operation}: dtype must be one of", "; pass dtype='float64'"):
        check(ctx, DTypeError, text, lambda: make(rows(), dtype), lambda: make(rows()))


DIFFERENCES: dict[str, tuple[str, Callable[[Cast], object], Callable[[Cast], object]]] = {
    "alpha": ("alpha differs", lambda x: pmatmul(x.a, x.b), lambda x: pmatmul(x.a, x.b, alpha=1.5)),
    "alpha, last bit": (
        "alpha differs",
        lambda x: pmatmul(x.a, x.b, alpha=1.0),
        lambda x: pmatmul(x.a, x.b, alpha=float(np.nextafter(1.0, 2.0))),
    ),
    "alpha is NaN": ("alpha differs", lambda x: pmatmul(x.a, x.b), lambda x: pmatmul(x.a, x.b, alpha=np.nan)),
    "beta": ("beta differs", lambda x: pmatmul(x.a, x.b, x.c, beta=1.0), lambda x: pmatmul(x.a, x.b, x.c, beta=-1.0)),
    "overlap": ("overlap differs", lambda x: pmatmul(x.a, x.b), lambda x: pmatmul(x.a, x.b, overlap=False)),
    "transa": ("transa differs", lambda x: pmatmul(x.a, x.b), lambda x: pmatmul(x.a, x.b, transa="T")),
    "chunks": ("chunks differs", lambda x: pmatmul(x.a, x.b, chunks=1), lambda x: pmatmul(x.a, x.b, chunks=2)),
    "c": ("c is given differs", lambda x: pmatmul(x.a, x.b), lambda x: pmatmul(x.a, x.b, x.c)),
    "seed": ("seed differs", lambda x: x.ctx.random(rows()), lambda x: x.ctx.random(rows(), seed=1)),
    "dtype": ("dtype differs", lambda x: x.ctx.zeros(rows()), lambda x: x.ctx.zeros(rows(), "float32")),
    "desc": ("desc differs", lambda x: x.ctx.zeros(rows()), lambda x: x.ctx.zeros(rows(mb=1))),
    "order": ("desc differs", lambda x: x.ctx.zeros(rows()), lambda x: x.ctx.zeros(rows(order="C"))),
    "root": ("root differs", lambda x: x.a.to_global(0), lambda x: x.a.to_global(None)),
    "the matrix": ("differs", lambda x: x.a.to_global(0), lambda x: x.single.to_global(0)),
    "copy": (
        "copy differs",
        lambda x: x.ctx.from_local(x.part, rows()),
        lambda x: x.ctx.from_local(x.part, rows(), copy=True),
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_different_arguments_on_different_ranks_are_named(ctx: Context, name: str) -> None:
    text, usual, differing = DIFFERENCES[name]
    x = Cast(ctx)
    for ranks in some_wrong():
        message = raises_on_all_ranks(MismatchError, text, partial(differing if ctx.rank in ranks else usual, x))
        assert any(f"rank {rank}" in message for rank in ranks)
        check_product(ctx)
    differing(x)  # nothing is wrong with it when all do it
    check_product(ctx)


def test_nan_equals_nan_whatever_its_bits(ctx: Context) -> None:
    other_nan = -np.array([np.nan])[0]
    x = Cast(ctx)
    for ranks in culprits():
        d = pmatmul(x.a, x.b, alpha=float(other_nan) if ctx.rank in ranks else float("nan"))
        assert np.all(np.isnan(d.local))
    check_product(ctx)


def halves(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The largest numbers of float16 in the first row, which is rank 0's, and ones in all others."""
    values = np.ones(x.shape, np.float16)
    values[:1] = 60000
    return values


RESULTS: dict[str, Callable[[Context, pblas.DistMatrix, np.ndarray[Any, Any]], Any]] = {
    "gathered": lambda _, a, __: pmatmul(a, a, a, beta=2.0),
    "reduced": lambda _, a, __: pmatmul(a.T, a, a, beta=2.0, out=rows()),
    "reduced for all": lambda _, a, __: pmatmul(a.T, a, out=MatrixDescriptor.replicated(N, N, COMM.size)),
    "on a grid": lambda _, a, __: pmatmul(a, a.T, out=MatrixDescriptor(N, N, 5, 5, pblas.Grid(1, COMM.size))),
    "of C alone": lambda _, a, __: pmatmul(a, a, a, alpha=0.0, beta=2.0),
    "epilogue": lambda _, a, __: pmatmul(a, a, epilogue="x * x"),
    "normalised": lambda _, a, __: pmatmul(a, a, epilogue="rmsnorm", out=rows()),
    "redistributed": lambda _, a, __: pblas.redistribute(a, columns(), alpha=2.0),
    "added": lambda _, a, __: pblas.redistribute(a, out=a.redistribute(columns()), trans="T", beta=2.0),
    "dealt out": lambda ctx, _, x: ctx.from_global(1e9 * x.astype(float), rows(), 0, dtype="float16"),
    "everybody's": lambda ctx, _, x: ctx.from_global(1e9 * x.astype(float), rows(), None, dtype="float16"),
    "plain": lambda ctx, _, x: ctx.allreduce(x, epilogue="x * x"),
    "scattered": lambda ctx, _, x: ctx.reduce_scatter(x[: COMM.size], op="prod"),
    "by MPI": lambda ctx, _, x: ctx.allreduce(x, algorithm="naive"),
    "gradients": lambda ctx, _, x: pblas.tp.linear_reduce_scatter_backward(
        (x if ctx.rank == 0 else np.ones_like(x)) * np.float16(0.5),
        np.ones((N * COMM.size, 2), x.dtype),
        x[:, :2],
        ctx=ctx,
    ),
}


@pytest.mark.parametrize("transport", ["shared", "message", "push"])
@pytest.mark.parametrize("name", RESULTS)
def test_numpy_errors_on_one_rank_are_results(name: str, transport: str) -> None:
    """Infinities and NaN are results, also if the caller sets NumPy to raise errors for them."""
    with open_context(transport, timeout=TIMEOUT) as ctx:
        x = halves(np.empty((N, N)))
        a = ctx.from_global(x, rows(), None)
        with np.errstate(all="raise"):
            RESULTS[name](ctx, a, x)
        check_product(ctx)


OPERATIONS: dict[str, Callable[[Cast], object]] = {
    "zeros": lambda x: x.ctx.zeros(rows()),
    "random": lambda x: x.ctx.random(rows()),
    "from_global": lambda x: x.ctx.from_global(x.array, rows(), None),
    "from_local": lambda x: x.ctx.from_local(x.part, rows()),
    "to_global": lambda x: x.a.to_global(None),
    "save": lambda x: x.a.save("/nowhere/at/all.npy"),
    "plan_matmul": lambda x: pblas.plan_matmul(x.a, x.b),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_different_operations_on_different_ranks_are_named(ctx: Context, name: str) -> None:
    x = Cast(ctx)
    for ranks in some_wrong():
        message = raises_on_all_ranks(
            MismatchError,
            "ranks made different calls",
            partial(OPERATIONS[name], x) if ctx.rank in ranks else partial(pmatmul, x.a, x.b),
        )
        assert name in message
        assert "pmatmul" in message
        check_product(ctx)


EXECUTIONS: dict[str, tuple[type[Exception], str, Callable[[pblas.PlannedMatmul, Cast, Cast], object]]] = {
    "dtype of a": (DTypeError, "A is float32, planned was float64", lambda p, x, _: p.execute(x.single, x.b, x.c)),
    "dtype of c": (DTypeError, "C is float32, planned was float64", lambda p, x, _: p.execute(x.a, x.b, x.single)),
    "shape of b": (DescriptorError, "plan anew", lambda p, x, _: p.execute(x.a, x.short, x.c)),
    "layout of b": (DescriptorError, "plan anew", lambda p, x, _: p.execute(x.a, x.b.T, x.c)),
    "shape of out": (DescriptorError, "plan anew", lambda p, x, _: p.execute(x.a, x.b, x.c, out=x.wide)),
    "no matrix": (ArgumentError, "b must be a DistMatrix", lambda p, x, _: p.execute(x.a, x.array, x.c)),  # type: ignore[arg-type]
    "nothing": (ArgumentError, "a must be a DistMatrix", lambda p, x, _: p.execute(None, x.b, x.c)),  # type: ignore[arg-type]
    "no c": (ArgumentError, "there is no C", lambda p, x, _: p.execute(x.a, x.b)),
    "another context": (ArgumentError, "different contexts", lambda p, x, y: p.execute(x.a, y.b, x.c)),
    "out is read-only": (ArgumentError, "read-only", lambda p, x, _: p.execute(x.a, x.b, x.c, out=x.fixed)),
    "out is b": (ArgumentError, "out overlaps B", lambda p, x, _: p.execute(x.a, x.b, x.c, out=x.b)),
}


@pytest.mark.parametrize("name", EXECUTIONS)
def test_a_wrong_array_given_to_execute_is_refused_on_every_rank_and_the_plan_goes_on(name: str) -> None:
    kind, text, wrong = EXECUTIONS[name]
    with Context(timeout=TIMEOUT) as ctx, Context(timeout=TIMEOUT) as other:
        x, y = Cast(ctx), Cast(other)
        with pblas.plan_matmul(x.a, x.b, x.c, beta=1.0) as planned:
            expected = planned.execute(x.a, x.b, x.c).local.copy()
            for ranks in culprits():
                right = partial(planned.execute, x.a, x.b, x.c, out=x.d)
                raises_on_all_ranks(kind, text, partial(wrong, planned, x, y) if ctx.rank in ranks else right)
                assert np.array_equal(planned.execute(x.a, x.b, x.c).local, expected)


@pytest.mark.parametrize("name", EXECUTIONS)
def test_a_wrong_array_given_to_a_pushed_execution_on_all_ranks_is_refused_on_every_rank(name: str) -> None:
    kind, text, wrong = EXECUTIONS[name]
    with open_context("push", timeout=TIMEOUT) as ctx, Context(timeout=TIMEOUT) as other:
        x, y = Cast(ctx), Cast(other)
        planned = pblas.plan_matmul(x.a, x.b, x.c, beta=1.0)
        for _ in range(2):
            planned.execute(x.a, x.b, x.c, out=x.d)
            message = raises_on_all_ranks(kind, text, partial(wrong, planned, x, y))
            assert f"found on rank 0 of {ctx.nprocs}" in message
        check_product(ctx)


LINALG: Any = pblas.linalg  # for arguments of wrong types


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda ctx: ctx.zeros((-1, 2)), LayoutError, "zeros: m is -1; expected an integer >= 0"),
        (lambda ctx: ctx.from_function(lambda *_: np.ones(5), (N, N)), DescriptorError, "an array of shape (5,)"),
        (lambda ctx: LINALG.solve(ctx.eye(N), None), ArgumentError, "solve: b is None; pass an array"),
        (
            lambda ctx: LINALG.cg(ctx.eye(N), np.ones(N), maxiter=np.nan),
            ArgumentError,
            "maxiter must be an integer",
        ),
        (
            lambda ctx: LINALG.cg(ctx.eye(N), np.ones(N), maxiter=np.inf),
            ArgumentError,
            "maxiter must be an integer",
        ),
        (lambda _: LINALG.inv(3), ArgumentError, "got int; ctx.from_global(array, desc) makes one"),
    ],
)
def test_an_error_names_the_call_and_the_mistake(ctx: Context, call: Any, kind: type[Exception], text: str) -> None:
    raises_on_all_ranks(kind, text, lambda: call(ctx))


def test_progress_that_not_all_ranks_ask_for_is_named(ctx: Context) -> None:
    a, b = ctx.eye(N), ctx.ones((N, 2))
    if COMM.size > 1:
        text = "solve: progress differs between ranks: given on rank 0, not given on rank 1"
        raises_on_all_ranks(MismatchError, text, lambda: pblas.linalg.solve(a, b, progress=ctx.rank == 0))


PLANNERS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(pblas.linalg, f"plan_{name}") for name in ("cholesky", "lu", "qr", "eigh", "svd", "polar", "pinv")
    },
    **{name: getattr(pblas.blas, f"plan_{name}") for name in ("syrk", "herk")},
    "rsvd": lambda a, **options: pblas.linalg.plan_rsvd(a, 2, **options),
    "trsm": lambda a, **options: pblas.blas.plan_trsm(a, a, **options),
    "symm": lambda a, **options: pblas.blas.plan_symm(a, a, **options),
    "matmul": lambda a, **options: pblas.plan_matmul(a, a, **options),
    "redistribution": lambda a, **options: pblas.plan_redistribution(a, columns(), **options),
    "elementwise": lambda a, **options: pblas.plan_elementwise("2 * x", x=a, **options),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_options_of_descriptors_are_refused_with_matrices(ctx: Context, name: str) -> None:
    """The number of ranks and the dtype are those of the matrices: others would be ignored."""
    a, plan = ctx.eye((N, N)), PLANNERS[name]
    raises_on_all_ranks(ArgumentError, "nprocs is for planning from descriptors", lambda: plan(a, nprocs=99))
    kind = ArgumentError if name == "elementwise" else DTypeError
    raises_on_all_ranks(kind, "dtype", lambda: plan(a, dtype="float32"))
    raises_on_all_ranks(kind, "dtype", lambda: plan(a, dtype="banana"))


@pytest.mark.parametrize("name", ["cholesky", "lu", "qr", "eigh", "syrk", "symm", "matmul"])
def test_a_machine_to_plan_for_is_refused_with_matrices(ctx: Context, name: str) -> None:
    text = "hardware is for planning from descriptors"
    raises_on_all_ranks(ArgumentError, text, lambda: PLANNERS[name](ctx.eye((N, N)), hardware="nvlink"))


def test_a_plan_that_one_rank_has_closed_is_refused_on_every_rank(ctx: Context) -> None:
    x = Cast(ctx)
    for ranks in culprits():
        planned = pblas.plan_matmul(x.a, x.b)
        if ctx.rank in ranks:
            planned.close()
        raises_on_all_ranks(ContextError, "the planned product is closed", partial(planned.execute, x.a, x.b))
        check_product(ctx)


def test_ranks_keep_the_same_plans_after_an_error_on_one_of_them(ctx: Context) -> None:
    """Also plans that each rank makes alone, before it hears of the error: executions that push data compare none."""
    x, vector = Cast(ctx), np.ones(N)

    def calls(*, wrong: bool) -> None:
        odd: Any = "?" if wrong else 0.125
        for call in (
            lambda: pblas.elementwise("x * s - x * s", x=x.a, s=odd),
            lambda: ctx.allreduce(vector, out=np.ones(N + wrong), op="min"),
            lambda: pblas.tp.linear_allreduce(vector[None], vector[None], bias=np.ones(1 + wrong), ctx=ctx),
        ):
            if wrong_anywhere:
                raises_on_all_ranks(ArgumentError, "", call)
            else:
                call()

    for ranks in culprits():
        ctx.runtime.kept.close()
        for wrong_anywhere in (True, False):
            calls(wrong=wrong_anywhere and ctx.rank in ranks)
            plans = ctx.runtime.kept._plans.values()
            last_uses = ctx.runtime.backend.gather([(type(plan).__name__, plan.last_use) for plan in plans])
            assert last_uses == [last_uses[0]] * ctx.nprocs
            assert bool(last_uses[0]) != wrong_anywhere


def test_executions_of_two_plans_are_not_mistaken_for_each_other(ctx: Context) -> None:
    x = Cast(ctx)
    first, second = pblas.plan_matmul(x.a, x.b), pblas.plan_matmul(x.a, x.b)
    for ranks in some_wrong():
        raises_on_all_ranks(
            MismatchError,
            "ranks made different calls",
            partial((second if ctx.rank in ranks else first).execute, x.a, x.b),
        )
        check_product(ctx)


@pytest.mark.parametrize("which", ["b", "c", "out"])
def test_matrices_of_different_contexts_are_refused_on_every_rank(which: str) -> None:
    with Context(timeout=TIMEOUT) as ctx, Context(timeout=TIMEOUT) as other:
        x, y = Cast(ctx), Cast(other)
        calls: dict[str, Call] = {
            "b": lambda: pmatmul(x.a, y.b, x.c, beta=1.0, out=x.d),
            "c": lambda: pmatmul(x.a, x.b, y.c, beta=1.0, out=x.d),
            "out": lambda: pmatmul(x.a, x.b, x.c, beta=1.0, out=y.d),
        }
        right = lambda: pmatmul(x.a, x.b, x.c, beta=1.0, out=x.d)  # noqa: E731
        check(ctx, ArgumentError, "matrices of different contexts", calls[which], right)
        check_product(other)


def test_a_closed_context_refuses_every_call_on_every_rank() -> None:
    ctx = Context(timeout=TIMEOUT)
    x = Cast(ctx)
    planned = pblas.plan_matmul(x.a, x.b)
    ctx.close()
    calls: list[Call] = [
        lambda: pmatmul(x.a, x.b),
        lambda: x.a @ x.b,
        lambda: pblas.plan_matmul(x.a, x.b),
        lambda: planned.execute(x.a, x.b),
        lambda: ctx.zeros(rows()),
        lambda: ctx.from_global(x.array, rows()),
        lambda: ctx.from_local(x.part, rows()),
        lambda: ctx.random(rows()),
        lambda: ctx.load("nothing.npy", rows()),
        x.a.to_global,
        lambda: x.a.save("nothing.npy"),
        lambda: ctx.allreduce(x.array),
        lambda: x.a.local,
        lambda: x.a.T,
        lambda: x.a.H,
        lambda: x.a[1:, 1:],
    ]
    for call in calls:
        raises_on_all_ranks(ContextError, "the context is closed", call)
    ctx.close()  # closing twice is no mistake
    assert "12 x 12" in repr(x.a)  # its text is still available


def test_an_option_that_is_an_array_is_named(ctx: Context) -> None:
    """Its comparison with the values of the option gives an array, which has no truth value."""
    a, z, wrong = ctx.eye(6), ctx.eye(6, "complex128"), np.ones(2)
    b = ctx.ones((6, 2))
    calls: dict[str, Callable[[Any], object]] = {
        "assume_a": lambda x: pblas.linalg.solve(a, b, assume_a=x),
        "refine": lambda x: pblas.linalg.solve(a, b, refine=x),
        "mode": lambda x: pblas.linalg.qr(a, mode=x),
        "mode ": lambda x: pblas.linalg.qr_factor(a).q(mode=x),
        "side": lambda x: pblas.linalg.polar(a, side=x),
        "algorithm": lambda x: pblas.linalg.polar(a, algorithm=x),
        "algorithm ": lambda x: pblas.linalg.eigh(a, algorithm=x),
        " algorithm": lambda x: pblas.linalg.svd(a, algorithm=x),
        "type": lambda x: pblas.linalg.eigh(a, a, type=x),
        "p": lambda x: pblas.linalg.cond(a, x),
        "alpha": lambda x: pblas.blas.herk(z, alpha=x),
        "beta": lambda x: pblas.blas.her2k(z, z, z, beta=x),
        "distribution": lambda x: ctx.random((2, 2), distribution=x),
        "trans": lambda x: pblas.blas.trsm(a, b, trans=x),
    }
    for name, call in calls.items():
        raises_on_all_ranks(ArgumentError, f"{name.strip()} must be", partial(call, wrong))
    check_product(ctx)


def test_paths_of_a_trace_that_cannot_be_read_are_an_error_on_every_rank(ctx: Context) -> None:
    def paths() -> Any:
        if COMM.rank == COMM.size - 1:
            raise GeneratorExit("on purpose")
        yield "trace.json"

    a = ctx.eye(4)
    planned = pblas.plan_matmul(a, a)
    raises_on_all_ranks(pblas.PblasError, "GeneratorExit: on purpose", lambda: planned.trace(a, a, paths=paths()))
    check_product(ctx)


def test_conversion_of_a_distributed_matrix_to_an_array_names_to_global(ctx: Context) -> None:
    x = Cast(ctx)
    for call in (lambda: np.asarray(x.a), lambda: np.array(x.a, dtype="float32"), lambda: np.kron(x.a, x.b)):  # type: ignore[call-overload]
        raises_on_all_ranks(ArgumentError, "to_global", call)
    check_product(ctx)


def test_settings_that_differ_between_ranks_are_named_and_the_next_context_works(ctx: Context) -> None:
    for ranks in some_wrong():
        raises_on_all_ranks(
            MismatchError,
            "transport differs",
            partial(Context, timeout=TIMEOUT, transport="message" if COMM.rank in ranks else "auto"),
        )
    check_product(ctx)


@pytest.mark.parametrize(
    ("settings", "wrong", "text"),
    [
        ({"backend": "mpi"}, {"device": 0}, "device=0 names a GPU"),
        ({"transport": "message"}, {"device": 1}, "device=1 names a GPU"),
        ({}, {"device": "0"}, "device must be None or the number of a visible GPU, got '0'"),
        ({}, {"device": True}, "device must be None or the number of a visible GPU, got True"),
        ({"backend": "nvshmem"}, {"transport": "shared"}, "transport='shared' is a setting of backend='mpi'"),
        ({"backend": "nvshmem"}, {"ranks_per_node": 1}, "ranks_per_node is a setting of backend='mpi'"),
        ({"backend": "nvshmem"}, {"link": (1e-6, 1e9)}, "link is a setting of backend='mpi'"),
        ({}, {"transport": "pigeon"}, "transport must be 'auto', 'shared' or 'message', got 'pigeon'"),
        ({}, {"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
        ({}, {"timeout": "1"}, "timeout must be a positive number of seconds, got '1'"),
        ({}, {"timeout": float("nan")}, "timeout must be a positive number of seconds, got nan"),
        ({}, {"threads": 0}, "threads must be None or a positive integer, got 0"),
        ({}, {"threads": 1 << 31}, "threads must be at most 2147483647, got 2147483648"),
        ({}, {"threads": 10**30}, "threads must be at most 2147483647, got 10000"),
        ({}, {"debug": np.array([1, 2])}, "debug must be True or False, got array([1, 2])"),
        ({}, {"ranks_per_node": 0.5}, "ranks_per_node must be None or a positive integer, got 0.5"),
        ({}, {"transport": ["shared"]}, "transport must be 'auto', 'shared' or 'message', got ['shared']"),
        ({"transport": "message"}, {"link": (1e-6,)}, "link must be (seconds >= 0, bytes per second > 0)"),
        ({"transport": "message"}, {"link": (1e-6, 0)}, "link must be (seconds >= 0, bytes per second > 0)"),
        ({}, {"link": (1e-6, 1e9)}, "link delays messages, but transport='auto' sends none"),
    ],
)
def test_a_setting_that_is_wrong_on_one_rank_is_refused_on_every_rank(
    settings: dict[str, Any], wrong: dict[str, Any], text: str
) -> None:
    for ranks in culprits():
        own = settings | {"timeout": TIMEOUT} | (wrong if COMM.rank in ranks else {})
        raises_on_all_ranks(ArgumentError, text, partial(Context, **own))


def test_an_invalid_communicator_is_refused() -> None:
    for comm in (5, MPI.COMM_NULL):
        raises_on_all_ranks(ArgumentError, "comm must be None or an intracommunicator", partial(Context, comm))  # type: ignore[arg-type]


def test_gloo_needs_a_group_of_torch() -> None:
    for ranks in culprits():
        backend: Any = "gloo" if COMM.rank in ranks else "auto"
        text = "backend='gloo' needs ranks of torch.distributed; start with torchrun, and pass process_group="
        raises_on_all_ranks(pblas.BackendError, text, partial(Context, backend=backend, timeout=TIMEOUT))


LACK = "no GPU is visible; start the rank where there is one"


def pretend(patch: pytest.MonkeyPatch, state: int) -> None:
    """Let this rank have the GPU and the libraries that `state` describes, whatever it has."""
    patch.setattr(opening, "gpu_state", lambda *_, **__: (state, "" if state == opening.READY else LACK))


def test_a_rank_without_a_gpu_is_named_on_every_rank_that_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks in culprits():
        pretend(monkeypatch, opening.ABSENT if COMM.rank in ranks else opening.READY)
        outcome = raises_on_all_ranks(pblas.BackendError, LACK, partial(Context, backend="nvshmem", timeout=TIMEOUT))
        assert outcome.startswith("backend 'nvshmem' is not available: ")
        assert f"found on rank {min(ranks)} of {COMM.size}" in outcome
        for insisting in culprits():  # naming a GPU insists too, for all
            own = 0 if COMM.rank in insisting else None
            raises_on_all_ranks(pblas.BackendError, LACK, partial(Context, device=own, timeout=TIMEOUT))


@pytest.mark.parametrize("state", [opening.ABSENT, opening.UNFIT])
def test_all_ranks_use_cpus_and_warn_if_one_rank_lacks_a_gpu(state: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for ranks in some_wrong() if state == opening.ABSENT else culprits():
        pretend(monkeypatch, state if COMM.rank in ranks else opening.READY)
        with pytest.warns(PblasWarning, match=LACK) as call_args:
            ctx = Context(timeout=TIMEOUT)
        with ctx:
            assert ctx.runtime.backend.name == "mpi"
            check_product(ctx)
        (warning,) = call_args
        assert f"found on rank {min(ranks)} of {COMM.size}" in same_on_all_ranks(str(warning.message))
        assert warning.filename == __file__


def test_gpus_are_not_even_looked_for_where_cpus_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "gpu_state", lambda _: pytest.fail("looked for a GPU"))
    asked: list[dict[str, Any]] = [{"backend": "mpi"}, {"transport": "message"}, {"ranks_per_node": 1}]
    for settings in asked:
        with Context(timeout=TIMEOUT, **settings) as ctx:
            assert ctx.runtime.backend.name == "mpi"


def test_a_missing_cupy_is_named_in_the_error() -> None:
    if find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    for backend in ("nvshmem", "cuda"):
        call: Any = partial(Context, backend=backend, timeout=TIMEOUT)
        raises_on_all_ranks(pblas.BackendError, "pip install 'cupy-cuda13x[ctk]' ", call)
    with Context(timeout=TIMEOUT) as ctx:
        check_product(ctx)
    assert "pblas.backends.nvshmem.backend" not in sys.modules


class Broken(float):
    """A number whose methods all raise."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __index__ = __complex__ = __str__ = __fspath__ = __bool__ = __repr__  # type: ignore[assignment]


BROKEN: dict[str, Callable[[Cast, Any], object]] = {
    "alpha": lambda cast, x: pmatmul(cast.a, cast.b, alpha=x(1.0)),
    "chunks": lambda cast, x: pmatmul(cast.a, cast.b, chunks=x(1)),
    "transa": lambda cast, x: pmatmul(cast.a, cast.b, transa=x("N")),
    "epilogue": lambda cast, x: pmatmul(cast.a, cast.b, epilogue=x("relu(x)")),
    "diagonal": lambda cast, x: pblas.redistribute(cast.a, columns(), uplo="U", diagonal=x(1)),
    "root": lambda cast, x: cast.a.to_global(root=x(0)),
    "path of load": lambda cast, x: cast.ctx.load(x("/nowhere"), rows()),
    "path of save": lambda cast, x: cast.a.save(x("/nowhere/a.npy")),
    "seed": lambda cast, x: cast.ctx.random(rows(), seed=x(1)),
    "dtype": lambda cast, x: cast.ctx.zeros(rows(), x("float64")),
    "op": lambda cast, x: cast.ctx.allreduce(cast.array, op=x("sum")),
    "counts": lambda cast, x: cast.ctx.allgather(cast.array, counts=x([N] * COMM.size)),
    "copy": lambda cast, x: cast.ctx.from_local(cast.part, rows(), copy=x(False)),
}


@each_culprit
@pytest.mark.parametrize("name", BROKEN)
def test_an_argument_that_raises_when_read_is_an_error_on_every_rank(
    ctx: Context, name: str, wrong: frozenset[int]
) -> None:
    broken = Broken(1.0)
    cast = Cast(ctx)
    outcome = same_on_all_ranks(
        outcome_of(lambda: BROKEN[name](cast, lambda good: broken if COMM.rank in wrong else good))
    )
    assert issubclass(getattr(pblas, outcome[0]), pblas.PblasError), outcome
    check_product(ctx)
