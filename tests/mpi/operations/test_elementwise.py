"""Laws of elementwise operations: equal to NumPy on the collected arrays, for any layouts; nothing else is touched."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pblas
from pblas import ArgumentError, DescriptorError, DistMatrix, DTypeError, Grid, MatrixDescriptor, MismatchError
from tests.common.gauge import BFLOAT16, NAMES, Array, dtype_of, entries, eps_of
from tests.common.ranks import COMM, Contexts, check_product, collected, few, raises_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

SETTINGS = ("shared", "message", "mixed", "push")
pytestmark = [pytest.mark.mpi, few]

EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "y / x": lambda x, y: y / x,
    "x * 3 + y": lambda x, y: x * 3 + y,
    "x * x - y * x + 0.5": lambda x, y: x * x - y * x + 0.5,
    "sqrt(x * x + 1) - y ** 2": lambda x, y: np.sqrt(x * x + 1) - y * y,
    "-exp(x) + y": lambda x, y: -np.exp(x) + y,
    "conj(x) * y": lambda x, y: np.conj(x) * y,
    "real(x) + imag(y)": lambda x, y: np.real(x) + np.imag(y),
    "abs(x * y) + 1": lambda x, y: np.abs(x * y) + 1,
}
REAL_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "maximum(x, y) * 2": lambda x, y: np.maximum(x, y) * 2,
    "where(x > y, x, 0) + relu(y)": lambda x, y: np.where(x > y, x, 0 * x) + np.maximum(y, 0),
    "minimum(x, 0.25) * sigmoid(y)": lambda x, y: np.minimum(x, 0.25) / (1 + np.exp(-y)),
}


IN_PLACE: dict[str, Callable[..., Any]] = {
    "x + y": lambda x, y, _s: x + y,
    "y - x": lambda x, y, _s: y - x,
    "x * s + y": lambda x, y, s: x * s + y,
    "s * (y / x) - x": lambda x, y, s: s * (y / x) - x,
    "x + conj(y)": lambda x, y, _s: x + np.conj(y),
    "y": lambda _x, y, _s: y,
    "y * s": lambda _x, y, s: y * s,
    "sqrt(x * x) - y": lambda x, y, _s: np.sqrt(x * x) - y,
}


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.clongdouble if np.asarray(x).dtype.kind == "c" else np.longdouble)


def promoted(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    return np.result_type(*dtypes)


def matrix(ctx: pblas.Context, x: Array, desc: MatrixDescriptor) -> DistMatrix:
    return ctx.from_global(x, desc, root=None)


def check_close(result: DistMatrix, exact: Any, dtype: np.dtype[Any], terms: float = 1.0) -> None:
    """The matrix has a dtype, and is exact up to some units of that dtype, relative to numbers of size `terms`."""
    assert result.dtype == dtype
    values = collected(result)
    assert values.shape == exact.shape
    error = np.abs(wide(values) - exact)
    assert (error <= 16 * eps_of(dtype) * (np.abs(exact) + terms)).all(), error.max(initial=0)


class Case:
    """One random operation of two guarded matrices with any layouts, and a third for the result or a new one."""

    def __init__(self, ctx: pblas.Context, seed: int) -> None:
        rng = random.Random(seed)
        m, n = rng.choice([0, 1, 7, 8, 9, 23]), rng.choice([0, 1, 2, 7, 8, 9, 31])
        names = rng.choice([(name, name) for name in NAMES] + [("float32", "complex128"), ("bfloat16", "float32")])
        dtypes = [dtype_of(name) for name in names]
        is_complex = any(dtype.kind == "c" for dtype in dtypes)
        self.text = rng.choice([*EXPRESSIONS, *([] if is_complex else REAL_EXPRESSIONS)])
        function = (EXPRESSIONS | REAL_EXPRESSIONS)[self.text]
        shapes = [(m, n), rng.choice([(m, n), (m, n), (m, 1), (1, n), (1, 1)])]
        if rng.random() < 0.3:
            shapes.reverse()
        self.same = rng.random() < 0.4  # one layout for all
        first = some_descriptor(rng, m + 3, n + 2, ctx.nprocs)
        self.matrices, arrays = [], []
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            place = (1, 1 + shape[0], 2, 2 + shape[1])
            desc = first if self.same else some_descriptor(rng, shape[0] + 3, shape[1] + 2, ctx.nprocs)
            if desc.shape != (shape[0] + 3, shape[1] + 2):
                desc = some_descriptor(rng, shape[0] + 3, shape[1] + 2, ctx.nprocs)
            guarded = Guarded(ctx, desc, dtype, place, rng.choice(["own", "shared"]))
            array = entries(shape, dtype, 3 * seed + number)
            guarded.fill(array)
            self.matrices.append(guarded)
            arrays.append(array)
        total = promoted(*dtypes)
        with np.errstate(all="ignore"):
            self.exact = np.broadcast_to(function(*map(wide, arrays)), (m, n))
        self.dtype = total if self.exact.dtype.kind == "c" else np.empty(0, total).real.dtype
        views = [guarded.view for guarded in self.matrices]
        self.operands: dict[str, Any] = dict(zip("xy", views, strict=True))
        self.out: Guarded | None = None
        self.shape = m, n
        if rng.random() < 0.6:
            desc = first if self.same else some_descriptor(rng, m + 3, n + 2, ctx.nprocs)
            self.out = Guarded(ctx, desc, self.dtype, (1, 1 + m, 2, 2 + n), rng.choice(["own", "shared"]))
            self.out.fill(np.full((m, n), np.nan, self.dtype))


@pytest.mark.openmpi
@pytest.mark.parametrize("setting", SETTINGS)
def test_any_layouts_give_what_numpy_gives(contexts: Contexts, setting: str) -> None:
    """The result, the bytes that the plan announced, and all elements that must stay, on all transports."""
    context = contexts[setting]
    backend = context.runtime.backend
    for seed in range(60):
        case = Case(context, seed)
        before = [guarded.remember() for guarded in case.matrices]
        out = None if case.out is None else case.out.view
        with pblas.plan_elementwise(case.text, out=out, **case.operands) as planned:
            counted = backend.channel.received_nbytes + backend.read_nbytes
            result = planned.execute(out=out, **case.operands)
            counted = backend.channel.received_nbytes + backend.read_nbytes - counted
            assert counted == planned.plan.received_nbytes(context.rank), planned.plan
            assert planned.plan.max_received_nbytes >= planned.plan.lower_bound * case.dtype.itemsize
        check_close(result, case.exact, case.dtype)
        assert out is None or result is out
        once = pblas.elementwise(case.text, out=out, **case.operands)
        check_close(once, case.exact, case.dtype)
        assert np.array_equal(once.local, result.local)
        assert [guarded.remember() for guarded in case.matrices] == before
        if case.out is not None:
            case.out.check_untouched_outside()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_result_may_be_an_operand_whatever_the_layouts(contexts: Contexts, setting: str) -> None:
    """Also where the expression is evaluated while the other operand arrives, in pieces."""
    context = contexts[setting]
    for seed in range(30):
        rng = random.Random(seed)
        m, n, dtype = rng.choice([1, 7, 9, 40]), rng.choice([1, 8, 31]), dtype_of(rng.choice(NAMES))
        scalar = 0.5 if dtype.kind != "c" else 0.5 - 1j
        text = rng.choice(list(IN_PLACE))
        arrays, views = [], []
        for number in range(2):
            guarded = Guarded(context, some_descriptor(rng, m + 2, n + 1, context.nprocs), dtype, (1, 1 + m, 1, 1 + n))
            arrays.append(entries((m, n), dtype, 2 * seed + number))
            guarded.fill(arrays[-1])
            views.append(guarded)
        given: dict[str, Any] = {"x": views[0].view, "y": views[1].view, "s": scalar}
        operands = {name: z for name, z in given.items() if name in text.replace("sqrt", "").replace("conj", "")}
        x, y, s = (wide(z) for z in (*arrays, scalar))
        exact = IN_PLACE[text](x, y, s)
        before = views[1].remember()
        out = views[0].view
        assert pblas.elementwise(text, out=out, **operands) is out
        check_close(out, exact, dtype, 16)
        assert views[1].remember() == before
        views[0].check_untouched_outside()


def test_equal_layouts_move_nothing(ctx: pblas.Context) -> None:
    desc = MatrixDescriptor(9, 8, 2, 3, Grid(1, ctx.nprocs))
    A, B = ctx.random(desc, seed=1), ctx.random(desc, seed=2)
    planned = pblas.plan_elementwise("x * s + y", x=A, y=B, s=2.0)
    assert planned.plan.moved == ()
    assert planned.plan.max_received_nbytes == planned.workspace_nbytes == 0
    assert "nothing" in planned.explain()
    assert planned.execute(x=A, y=B, s=3.0).desc == desc


def test_the_result_has_the_layout_of_the_first_operand_that_is_divided(ctx: pblas.Context) -> None:
    p = ctx.nprocs
    rows, columns = MatrixDescriptor.row_wise(7, 6, p), MatrixDescriptor.column_wise(7, 6, p)
    R, A, B = ctx.zeros(MatrixDescriptor.replicated(7, 6, p)), ctx.zeros(rows), ctx.zeros(columns)
    v = ctx.zeros(MatrixDescriptor.column_wise(1, 6, p))
    assert (R + A).desc.same_distribution(rows)
    assert (v * B + A).desc.same_distribution(columns)
    assert (v + A).desc.same_distribution(rows)
    assert (R + R).desc.same_distribution(R.desc)
    C = ctx.zeros(columns)
    assert pblas.elementwise("x + y", x=A, y=A, out=C) is C
    text = pblas.plan_elementwise("x + y", x=A, y=B).explain()
    assert ("redistributed to" in text) == (p > 1)


@pytest.mark.parametrize("name", NAMES)
def test_operators_are_those_of_numpy(ctx: pblas.Context, name: str) -> None:
    dtype, p = dtype_of(name), ctx.nprocs
    a, b = entries((8, 7), dtype, 1), entries((8, 7), dtype, 2)
    A, B = matrix(ctx, a, MatrixDescriptor.row_wise(8, 7, p)), matrix(ctx, b, MatrixDescriptor.column_wise(8, 7, p))
    row = b[0]
    for function in (operator.add, operator.sub, operator.mul, operator.truediv):
        check_close(function(A, B), function(wide(a), wide(b)), dtype, 8)
        check_close(function(A, row), function(wide(a), wide(row)), dtype, 8)
        check_close(function(row, A), function(wide(row), wide(a)), dtype, 8)
        check_close(function(A, 2), function(wide(a), 2), dtype, 8)
        check_close(function(2.5, A), function(2.5, wide(a)), dtype, 8)
        check_close(function(b, A), function(wide(b), wide(a)), dtype, 8)
    check_close(-A, -wide(a), dtype)
    check_close(+A, wide(a), dtype)
    check_close(A**2, wide(a) ** 2, dtype)
    check_close(2**A, 2 ** wide(a), dtype)
    check_close(abs(A), abs(wide(a)), np.empty(0, dtype).real.dtype)
    check_close(A.conj(), wide(a).conj(), dtype)
    check_close(A.H + B.T, wide(a).conj().T + wide(b).T, dtype)
    check_close(A.real, wide(a).real, np.empty(0, dtype).real.dtype)
    check_close(A.imag, wide(a).imag, np.empty(0, dtype).real.dtype)
    copy = A.H.copy()
    addresses = {ctx.runtime.backend.address(x.stored("")) for x in (copy, A) if x.stored("").size}
    assert len(addresses) in {0, 2}
    assert np.array_equal(collected(copy), a.conj().T)
    assert copy.desc == A.desc.T


def test_augmented_assignment_writes_in_place(ctx: pblas.Context) -> None:
    p = ctx.nprocs
    a, b = entries((8, 8), np.dtype("float64"), 1), entries((8, 8), np.dtype("float64"), 2)
    A, B = matrix(ctx, a, MatrixDescriptor.row_wise(8, 8, p)), matrix(ctx, b, MatrixDescriptor.column_wise(8, 8, p))
    same, memory = A, A.local
    A += B
    A -= 1
    A *= 2.0
    A /= b[0]
    A **= 2
    assert A is same
    assert A.local is memory
    check_close(A, (((wide(a) + b) - 1) * 2 / b[0]) ** 2, A.dtype, 100)
    narrow = A.astype("float32")
    narrow += B  # as in NumPy: out keeps its dtype
    assert narrow.dtype == np.float32


def test_a_result_may_overlap_operands(ctx: pblas.Context) -> None:
    """The result is as if the operands were copied first."""
    p = ctx.nprocs
    for desc in (
        MatrixDescriptor.row_wise(9, 9, p),
        MatrixDescriptor.column_wise(9, 9, p),
        MatrixDescriptor(9, 9, 2, 2, Grid(1, p), order="C"),
        MatrixDescriptor.replicated(9, 9, p),
    ):
        a = entries((9, 9), np.dtype("float64"), 5)
        A = matrix(ctx, a, desc)
        A += A.T
        a = a + a.T
        assert np.array_equal(collected(A), a)
        T = A[1:9, :]
        T += A[0:8, :]
        a[1:9] = a[1:9] + a[0:8]
        assert np.array_equal(collected(A), a)
        pblas.elementwise("x - y * 2", x=A[0:8, 1:9], y=A[1:9, 0:8], out=A[0:8, 0:8])
        a[0:8, 0:8] = a[0:8, 1:9] - a[1:9, 0:8] * 2
        assert np.array_equal(collected(A), a)
        with pblas.plan_elementwise("x * y", x=A, y=A.T, out=A) as planned:
            planned.execute(x=A, y=A.T, out=A)
            a = a * a.T
            planned.execute(x=A, y=A.T, out=A)
            assert np.array_equal(collected(A), a * a.T)


def test_replicated_memory_of_the_caller_may_overlap_too(ctx: pblas.Context) -> None:
    """An operand that is an array, and memory of the result."""
    desc = MatrixDescriptor.replicated(5, 5, ctx.nprocs, order="C")
    a = entries((5, 5), np.dtype("float64"), 3)
    A = matrix(ctx, a, desc)
    A += A.local[2]
    assert np.array_equal(collected(A), a + a[2])


@pytest.mark.parametrize(
    ("name", "other", "expected"),
    [
        ("float32", 2, "float32"),
        ("float32", 2.5, "float32"),
        ("float32", 1j, "complex64"),
        ("float16", 2.5, "float16"),
        ("bfloat16", 2.5, "bfloat16"),
        ("bfloat16", 1j, "complex64"),
        ("float32", np.float64(2), "float64"),
        ("float64", np.float32(2), "float64"),
        ("bfloat16", np.float32(2), "float32"),
        ("complex64", np.float64(2), "complex128"),
        ("float64", 1 + 1j, "complex128"),
        ("float32", np.complex64(1j), "complex64"),
        ("float16", np.zeros(3, "float32"), "float32"),
        ("complex64", np.zeros((2, 1)), "complex128"),
        ("float32", np.array(2.0), "float64"),
    ],
)
def test_promotion(ctx: pblas.Context, name: str, other: Any, expected: str) -> None:
    A = ctx.zeros(MatrixDescriptor.row_wise(2, 3, ctx.nprocs), name)
    assert (A + other).dtype.name == (other + A).dtype.name == expected


def test_astype_converts_and_rounds_once(ctx: pblas.Context) -> None:
    a = entries((7, 5), np.dtype("float64"), 4)
    A = matrix(ctx, a, MatrixDescriptor.column_wise(7, 5, ctx.nprocs))
    for name in NAMES:
        converted = A.astype(name)
        assert converted.dtype == dtype_of(name)
        rounded = a.astype("float32") if name in ("float16", "bfloat16") else a
        assert np.array_equal(collected(converted), rounded.astype(dtype_of(name)))
    raises_on_all_ranks(DTypeError, "take A.real", lambda: A.astype("complex64").astype("float32"))
    raises_on_all_ranks(DTypeError, "must be one of", lambda: A.astype("int32"))


def test_special_numbers_are_results(ctx: pblas.Context) -> None:
    """Infinities and NaN come without warnings, which the tests make errors."""
    a = np.array([[0.0, 1.0, np.inf], [np.nan, -1.0, -0.0]])
    A = matrix(ctx, a, MatrixDescriptor.row_wise(2, 3, ctx.nprocs))
    with np.errstate(all="ignore"):
        assert np.array_equal(collected(1 / A), 1 / a, equal_nan=True)
        assert np.array_equal(collected(A.astype("float32") * 1e300), (a * np.inf).astype("float32"), equal_nan=True)
        assert np.array_equal(collected(pblas.elementwise("log(x)", x=A)), np.log(a), equal_nan=True)


def test_long_rows_and_mixed_orders(ctx: pblas.Context) -> None:
    """More elements than one piece of the evaluation has, stored by rows and by columns."""
    p = ctx.nprocs
    a, b = entries((300, 700), np.dtype("float64"), 1), entries((300, 700), np.dtype("float64"), 2)
    for orders in ("FC", "CF", "CC"):
        A, B = (
            matrix(ctx, x, MatrixDescriptor(300, 700, 64, 700, Grid(p, 1), order=order))  # type: ignore[arg-type]
            for x, order in zip((a, b), orders, strict=True)
        )
        assert np.array_equal(collected(A * 2 + B), a * 2 + b)
        narrow = pblas.elementwise("x * 2 + y", x=A.astype("float16"), y=B.astype("float16"))
        exact = wide(a.astype("float16")) * 2 + wide(b.astype("float16"))
        check_close(narrow, exact, np.dtype("float16"))
    long = ctx.random(MatrixDescriptor.row_wise(2, 200_000, p, order="C"), seed=1)
    assert np.array_equal((long * long).local, long.local**2)


def test_names_of_epilogues(ctx: pblas.Context) -> None:
    a = entries((4, 6), np.dtype("float32"), 1)
    A = matrix(ctx, a, MatrixDescriptor.row_wise(4, 6, ctx.nprocs))
    check_close(pblas.elementwise("bias", x=A, bias=np.ones(6, "float32")), wide(a) + 1, A.dtype)


class Two:
    """Arguments of a call on all ranks; those of some ranks are wrong."""

    def __init__(self, ctx: pblas.Context, wrong: frozenset[int]) -> None:
        p = ctx.nprocs
        self.ctx, self.is_wrong = ctx, ctx.rank in wrong
        self.A = ctx.zeros(MatrixDescriptor.row_wise(6, 4, p))
        self.B = ctx.zeros(MatrixDescriptor.column_wise(4, 6, p))
        self.half, self.brain = (ctx.zeros(self.A.desc, name) for name in ("float16", "bfloat16"))
        self.columns = ctx.zeros(MatrixDescriptor.column_wise(6, 4, p))
        self.Z = ctx.zeros(self.A.desc, "complex64")
        frozen = np.zeros(self.A.desc.local_shape(ctx.rank), order="F")
        frozen.flags.writeable = False
        self.frozen = ctx.from_local(frozen, self.A.desc)


ERRORS: dict[str, tuple[type[Exception], str, Callable[[Two], Any]]] = {
    "shape": (DescriptorError, "the shapes do not fit", lambda x: x.A + x.B),
    "array's shape": (DescriptorError, "the shapes do not fit", lambda x: x.A + np.zeros(5)),
    "16 bits": (DTypeError, "astype('float32')", lambda x: x.half + x.brain),
    "16-bit number": (DTypeError, "astype('float32')", lambda x: x.brain + np.float16(1)),
    "objects": (DTypeError, "astype('float64')", lambda x: x.A + np.arange(4).astype(object)),
    "text": (ArgumentError, "must be a DistMatrix, a number", lambda x: x.A + "1"),
    "None": (ArgumentError, "must be a DistMatrix, a number", lambda x: x.A + None),
    "too large": (ArgumentError, "too large", lambda x: x.A * 10**400),
    "bool": (ArgumentError, "pass 1", lambda x: x.A * True),
    "list": (ArgumentError, "must be a DistMatrix, a number", lambda x: [1.0] * 4 + x.A),
    "three dimensions": (ArgumentError, "at most two", lambda x: x.A + np.zeros((1, 6, 4))),
    "syntax": (ArgumentError, "column 3", lambda x: pblas.elementwise("x @ x", x=x.A)),
    "no text": (ArgumentError, "must be a string", lambda x: pblas.elementwise(3, x=x.A)),  # type: ignore[arg-type]
    "missing": (ArgumentError, "no operand y", lambda x: pblas.elementwise("x + y", x=x.A)),
    "unused": (ArgumentError, "does not use", lambda x: pblas.elementwise("x + 1", x=x.A, y=x.A)),
    "name": (ArgumentError, "another name", lambda x: pblas.elementwise("x + dtype", x=x.A, dtype=1)),
    "real function": (ArgumentError, "is for real", lambda x: pblas.elementwise("maximum(x, 0)", x=x.Z)),
    "complex into real": (DTypeError, "imaginary part", lambda x: pblas.elementwise("x", x=x.Z, out=x.A)),
    "out's shape": (DescriptorError, "make them agree", lambda x: pblas.elementwise("x", x=x.A, out=x.B)),
    "out's kind": (ArgumentError, "out must be", lambda x: pblas.elementwise("x", x=x.A, out=x.A.local)),  # type: ignore[arg-type]
    "out conjugated": (
        ArgumentError,
        "conjugated view",
        lambda x: pblas.elementwise("x", x=x.A.T, out=x.Z.H),
    ),
    "read-only": (ArgumentError, "read-only", lambda x: pblas.elementwise("x", x=x.A, out=x.frozen)),
    "options": (ArgumentError, "leave it out", lambda x: pblas.plan_elementwise("x", x=x.A, nprocs=2)),
    "left product": (ArgumentError, "one or two dimensions", lambda x: [1.0, 2.0] @ x.A),  # type: ignore[operator]
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_arguments_of_all_ranks(ctx: pblas.Context, case: str) -> None:
    kind, text, call = ERRORS[case]
    x = Two(ctx, frozenset(range(ctx.nprocs)))
    raises_on_all_ranks(kind, text, lambda: call(x))
    check_product(ctx)


@pytest.mark.parametrize("case", [name for name in ERRORS if name not in ("options", "left product", "read-only")])
def test_wrong_arguments_of_some_ranks(ctx: pblas.Context, case: str) -> None:
    kind, text, call = ERRORS[case]
    for wrong in some_wrong():
        x = Two(ctx, wrong)
        raises_on_all_ranks(kind, text, lambda x=x: call(x) if x.is_wrong else x.A + 1)  # type: ignore[misc]
    check_product(ctx)


def test_arguments_that_differ_between_ranks(ctx: pblas.Context) -> None:
    x = Two(ctx, frozenset())
    rank = ctx.rank
    if ctx.nprocs > 1:
        calls: list[Callable[[], Any]] = [
            lambda: x.A * rank,
            lambda: x.A + (1.0 if rank else 1),
            lambda: pblas.elementwise("x + 1" if rank else "1 + x", x=x.A),
            lambda: x.A + np.zeros(4 if rank else (1, 1)),
            lambda: pblas.elementwise("x", x=x.A, out=x.A if rank else None),
        ]
        for call in calls:
            raises_on_all_ranks(MismatchError, "rank", call)
    check_product(ctx)


def test_operands_unlike_the_planned_ones(ctx: pblas.Context) -> None:
    x = Two(ctx, frozenset())
    with pblas.plan_elementwise("x * s + y", x=x.A, y=x.columns, s=2.0) as planned:
        raises_on_all_ranks(DescriptorError, "plan anew", lambda: planned.execute(x=x.A, y=x.A[0:1, :], s=2.0))
        raises_on_all_ranks(DTypeError, "imaginary part", lambda: planned.execute(x=x.A, y=x.columns, s=2j))
        raises_on_all_ranks(DescriptorError, "plan anew", lambda: planned.execute(x=x.half, y=x.columns, s=2.0))
        raises_on_all_ranks(ArgumentError, "no operand s", lambda: planned.execute(x=x.A, y=x.columns))
        if ctx.nprocs > 1:
            raises_on_all_ranks(MismatchError, "rank", lambda: planned.execute(x=x.A, y=x.columns, s=ctx.rank))
            raises_on_all_ranks(DescriptorError, "y is", lambda: planned.execute(x=x.A, y=x.A, s=1))
            raises_on_all_ranks(
                DescriptorError, "the result", lambda: planned.execute(y=x.columns, x=x.A, s=1, out=x.columns)
            )
        assert planned.execute(x=x.A, y=x.columns, s=3).shape == (6, 4)
    raises_on_all_ranks(pblas.ContextError, "closed", lambda: planned.execute(x=x.A, y=x.columns, s=2.0))
    square = ctx.zeros(MatrixDescriptor.row_wise(6, 6, ctx.nprocs))
    with pblas.plan_elementwise("x + y", x=square, y=square.T) as planned:
        if ctx.nprocs > 1:
            overlapping = partial(planned.execute, x=square, y=square.T, out=square)
            raises_on_all_ranks(ArgumentError, "overlaps", overlapping)
    without = pblas.plan_elementwise("x + 1", x=x.A.desc, dtype="float32")
    raises_on_all_ranks(ArgumentError, "without a context", lambda: without.execute(x=x.A))


def test_a_plan_is_used_again_and_its_buffers_are_freed(ctx: pblas.Context) -> None:
    p = ctx.nprocs
    A = ctx.random(MatrixDescriptor.row_wise(9, 7, p), seed=1)
    B = ctx.random(MatrixDescriptor.column_wise(9, 7, p), seed=2)
    expected = collected(A) + collected(B)
    for _ in range(3):
        assert np.array_equal(collected(pblas.elementwise("x + y", x=A, y=B)), expected)
    C = ctx.random(MatrixDescriptor.column_wise(9, 7, p, nb=1), seed=3)
    with pblas.plan_elementwise("x + y + z", x=A, y=B, z=C, out=A) as planned:
        planned.execute(x=A, y=B, z=C, out=A)
        assert (planned.workspace_nbytes > 0) == (p > 1 and A.local.size > 0)
        assert planned.workspace_nbytes <= planned.plan.workspace_nbytes
    assert planned.workspace_nbytes == 0


def test_a_trace_shows_the_evaluation(ctx: pblas.Context) -> None:
    A, B = (ctx.zeros(make(9, 9, ctx.nprocs)) for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise))
    with pblas.plan_elementwise("x + y", x=A, y=B) as planned:
        trace = planned.trace(x=A, y=B)
    if ctx.rank == 0:
        assert {event.rank for event in trace.events if event.name == "evaluate"} == set(range(ctx.nprocs))


def test_matrices_of_two_contexts(ctx: pblas.Context) -> None:
    with pblas.Context(timeout=20.0) as other:
        a, b = (c.zeros(MatrixDescriptor.row_wise(4, 4, COMM.size)) for c in (ctx, other))
        raises_on_all_ranks(ArgumentError, "different contexts", lambda: a + b)


def test_bfloat16_is_the_same_as_ml_dtypes(ctx: pblas.Context) -> None:
    a = entries((6, 5), BFLOAT16, 1)
    A = matrix(ctx, a, MatrixDescriptor.row_wise(6, 5, ctx.nprocs))
    expected = (a.astype("float32") * np.float32(1.5) + 1).astype(ml_dtypes.bfloat16)
    assert np.array_equal(collected(A * 1.5 + 1), ((a.astype("float32") * 1.5).astype(BFLOAT16) + 1).astype(BFLOAT16))
    assert np.array_equal(collected(pblas.elementwise("x * 1.5 + 1", x=A)), expected)


def test_a_long_sum_is_not_nested(ctx: pblas.Context) -> None:
    a = ctx.from_global(np.arange(12.0).reshape(3, 4), root=None)
    assert np.array_equal(collected(pblas.elementwise("+".join(["x"] * 200), x=a)), 200 * np.arange(12.0).reshape(3, 4))


def test_powers_of_complex_infinities_are_those_of_numpy(ctx: pblas.Context) -> None:
    x = np.array([[complex(np.inf, 0), complex(0, np.inf), complex(np.inf, 1), complex(-np.inf, 0), 0, 2j]])
    a = ctx.from_global(x, root=None)
    with np.errstate(all="ignore"):
        for exponent in (-1, 2):
            assert np.array_equal(collected(a**exponent), x**exponent, equal_nan=True)
