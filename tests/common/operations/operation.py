"""Operations as values: how to make the operands of a call, how to call, and what NumPy says about the result.

catalogue.py lists all public collective calls in this form; the laws in tests/mpi/laws go over the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

import numpy as np

import pblas
from pblas import DistMatrix, Grid, MatrixDescriptor
from tests.common.gauge import THRESHOLD, Array, dtype_of, eps_of
from tests.common.ranks import COMM

Values = Mapping[str, Any]
"""Arguments by name. "dtype" is that of all operands, and is not passed on."""

N = 8
PLACES: tuple[dict[str, Any], ...] = (
    {"layout": "columns"},
    {"layout": "grid"},
    {"order": "C"},
    {"gap": 3},
    {"offset": (1, 2)},
    {"offset": (2, 1)},
    {"own": True},
)
"""The ways in which one operand can differ from another one with the same elements."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix that a call makes for an argument.

    Args:
        kind: of its elements and shape, see `elements` (global).
        layout: "rows", "columns", "grid", "whole" (replicated) or "first" (all on rank 0) (global).
        order: storage order (global).
        gap: elements of memory between two columns, or rows (global).
        offset: place in a larger matrix, which is NaN around it (global).
        own: in memory that is not the context's (local).
        conj: a conjugated view (global).
        dtype: None for that of the call (global).
    """

    kind: str = "general"
    layout: str = "rows"
    order: Literal["F", "C"] = "F"
    gap: int = 0
    offset: tuple[int, int] = (0, 0)
    own: bool = False
    conj: bool = False
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Same:
    """The matrix of another argument, itself."""

    name: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A descriptor of an n x n matrix as an argument."""

    layout: str = "rows"
    gap: int | None = None
    kind: str = "general"


@dataclass(frozen=True, slots=True)
class Operation:
    """A public collective call.

    Args:
        name: as in tests/common/public.py; with a comment after a colon where a call has several entries.
        call: called with the context and the arguments by name.
        expected: the result by NumPy, of the same arguments with arrays in place of matrices; or None.
        residual: the error of a result, in units of eps, of the result and these arguments; instead of `expected`.
        values: the arguments of the base call.
        options: other values of an argument, each for one variation.
        views: operands that may be conjugated views.
        shares: operands that may be the same matrix: pairs of names.
        mask: which elements of the result count; all by default.
        dtypes: other dtypes of all operands.
        least: the smallest n.
    """

    name: str
    call: Callable[..., Any]
    expected: Callable[..., Any] | None = None
    residual: Callable[..., float] | None = None
    values: Values = field(default_factory=dict)
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    views: tuple[str, ...] = ()
    shares: tuple[tuple[str, str], ...] = ()
    mask: Callable[..., Any] | None = None
    dtypes: tuple[str, ...] = ("complex64",)
    least: int = 1

    @property
    def function(self) -> str:
        """Name of the public function or method."""
        return self.name.partition(":")[0]

    @property
    def operands(self) -> dict[str, Operand]:
        return {name: value for name, value in self.values.items() if isinstance(value, Operand)}

    def new_results(self) -> Iterator[tuple[str, Layout]]:
        """(argument, value) of the first descriptor of a new result for each argument that may be one."""
        for name in {**self.values, **self.options}:
            given = [self.values[name]] if name in self.values else []
            layouts = [x for x in (*given, *self.options.get(name, ())) if isinstance(x, Layout) and x.gap is None]
            yield from ((name, x) for x in layouts[:1])

    def variations(self) -> Iterator[tuple[str, Values]]:
        """(text, arguments) of calls that differ from the base call in one argument."""

        def varied(name: str, value: Any) -> tuple[str, Values]:
            return f"{name}={text_of(value)}", {**self.values, name: value}

        for name, others in self.options.items():
            yield from (varied(name, value) for value in others)
        for name, operand in self.operands.items():
            places = [*PLACES, *([{"conj": True}] if name in self.views else [])]
            yield from (varied(name, replace(operand, **place)) for place in places)
        yield from (varied(name, Same(other)) for name, other in self.shares)
        yield from (varied("dtype", dtype) for dtype in self.dtypes)


def text_of(value: Any) -> str:
    """An argument, with what differs from the defaults only."""
    if not isinstance(value, Operand):
        return str(value)
    default = Operand()
    names = (name for name in value.__slots__ if getattr(value, name) != getattr(default, name))
    return "Operand(" + ", ".join(f"{name}={getattr(value, name)}" for name in names) + ")"


def elements(kind: str, name: str, n: int, dtype: np.dtype[Any]) -> Array:
    """Small integers, so that sums and products are exact; different for each name of an argument.

    Kinds: "general" is n x n, "column" n x 1, "row" 1 x n, "tall" n x (n // 2); "triangular" has diagonal 2, and both
    triangles; "definite" is Hermitian positive definite. "new column" is a column of NaN, and so are the others.
    """
    shape = kind.removeprefix("new ")
    m, k = {"column": (n, 1), "row": (1, n), "tall": (n, n // 2)}.get(shape, (n, n))
    if shape != kind:
        return np.full((m, k), np.nan).astype(dtype)
    rng = np.random.default_rng(crc32(name.encode()))
    most = 1 if kind in ("triangular", "definite") else 3
    x: Array = rng.integers(-most, most + 1, (m, k)).astype("float64")
    if dtype.kind == "c":
        x = x + 1j * rng.integers(-most, most + 1, (m, k))
    if kind == "triangular":
        np.fill_diagonal(x, 2)
    if kind == "definite":
        x = x + x.conj().T
        np.fill_diagonal(x, 4 * n)
    return x.astype(dtype)


def descriptor(layout: str, shape: tuple[int, ...], order: Literal["F", "C"] = "F") -> MatrixDescriptor:
    """The descriptor of a named layout; "grid" has blocks of 2 x 3 and does not begin on rank 0."""
    size, (m, n) = COMM.size, shape
    if layout == "rows":
        return MatrixDescriptor.row_wise(m, n, size, order=order)
    if layout == "columns":
        return MatrixDescriptor.column_wise(m, n, size, order=order)
    if layout == "whole":
        return MatrixDescriptor.replicated(m, n, size, order=order)
    if layout == "first":
        return MatrixDescriptor.row_wise(m, n, size, mb=max(1, m), order=order)
    grid = Grid(size // 2, 2) if size % 2 == 0 else Grid(size, 1)
    return MatrixDescriptor(m, n, 2, 3, grid, grid.nprow - 1, grid.npcol - 1, order)


def part(x: Array, desc: MatrixDescriptor) -> Array:
    """This rank's elements of a global array."""
    rows, columns = ([i for r in ranges for i in range(*r)] for ranges in desc.global_ranges(COMM.rank))
    return x[np.ix_(rows, columns)]


def padded(x: Array, order: str, gap: int) -> Array:
    """A copy of an array with `gap` elements of NaN between its columns, or rows."""
    rows, columns = x.shape
    fast, slow = (rows, columns) if order == "F" else (columns, rows)
    memory = np.full((slow, fast + gap), np.nan).astype(x.dtype)[:, :fast]
    result = memory.T if order == "F" else memory
    result[...] = x
    return result


def placed(ctx: pblas.Context, _: str, x: Array, operand: Operand) -> DistMatrix:
    """**Collective.** A matrix with the elements of x, as an operand says."""
    (m, n), (i, j) = x.shape, operand.offset
    whole = np.full((m + 2 * i, n + 2 * j), np.nan).astype(x.dtype)
    whole[i : i + m, j : j + n] = x
    desc = descriptor(operand.layout, whole.shape, operand.order)
    if operand.own or (operand.gap and operand.order == "C"):
        matrix = ctx.from_local(padded(part(whole, desc), operand.order, operand.gap), desc)
    else:
        most = max(desc.local_shape(rank)[0] for rank in range(COMM.size))
        lld = max(1, most) + operand.gap if operand.gap else None
        matrix = ctx.empty(replace(desc, lld=lld), x.dtype)
        matrix.local[...] = part(whole, desc)
    view = matrix if operand.offset == (0, 0) else matrix[i : i + m, j : j + n]
    return view.conj() if operand.conj else view


def made(
    ctx: pblas.Context, values: Values, n: int = N, place: Callable[..., DistMatrix] = placed
) -> tuple[dict[str, Any], dict[str, Any]]:
    """**Collective.** The arguments of a call, and the same with arrays in place of matrices."""
    matrices, arrays = dict[str, Any](), dict[str, Any]()
    for name, value in values.items():
        if name == "dtype":
            continue
        if isinstance(value, Operand):
            x = elements(value.kind, name, n, dtype_of(value.dtype or values["dtype"]))
            matrices[name] = place(ctx, name, x, value)
            arrays[name] = x.conj() if value.conj else x
        elif isinstance(value, Layout):
            m, k = elements(value.kind, name, n, np.dtype("float64")).shape
            desc = descriptor(value.layout, (m, k))
            most = max(desc.local_shape(rank)[0] for rank in range(COMM.size))
            lld = None if value.gap is None else max(1, most) + value.gap
            matrices[name] = arrays[name] = replace(desc, lld=lld)
        elif not isinstance(value, Same):
            matrices[name] = arrays[name] = value
    for name, value in values.items():
        if isinstance(value, Same):
            matrices[name], arrays[name] = matrices[value.name], arrays[value.name]
    return matrices, arrays


def result_given(operation: Operation) -> Iterator[Values]:
    """The arguments of the base call, without and with memory for the result."""
    yield operation.values
    outs = [value for value in operation.options.get("out", ()) if isinstance(value, Operand)]
    if outs:
        yield {**operation.values, "out": outs[0]}


def wrong_result(operation: Operation, result: Any, arrays: Values) -> str:
    """**Collective** for residuals. What is wrong about a result, on this rank; "" for nothing."""
    if operation.residual is not None:
        error = operation.residual(*map(gathered, result if isinstance(result, tuple) else (result,)), **arrays)
        return "" if error <= THRESHOLD else f"the residual is {error:.3g} units"
    assert operation.expected is not None
    expected = operation.expected(**arrays)
    results, all_expected = (x if isinstance(x, tuple) else (x,) for x in (result, expected))
    if len(results) != len(all_expected):
        return f"{len(results)} results instead of {len(all_expected)}"
    mask = True if operation.mask is None else operation.mask(**arrays)
    texts = (
        _difference(x, np.asarray(y), np.broadcast_to(mask, np.shape(y)))
        for x, y in zip(results, all_expected, strict=True)
    )
    out = arrays.get("out")
    place = _leading_dimension(result, out) if isinstance(out, MatrixDescriptor) else ""
    return "; ".join(filter(None, (*texts, place)))


def gathered(x: Any) -> Any:
    """**Collective.** All elements of a matrix; anything else as it is."""
    return x.to_global(root=None) if isinstance(x, DistMatrix) else x


def _difference(x: Any, y: Array, mask: Array) -> str:
    """What is wrong about one matrix, array or number."""
    if isinstance(x, DistMatrix):
        if x.shape != y.shape:
            return f"the result is {x.shape}, expected {y.shape}"
        y, mask, x = part(y, x.desc), part(mask, x.desc), x.local
    x = np.asarray(x)
    if x.shape != y.shape:
        return f"the result is {x.shape}, expected {y.shape}"
    wide = "complex128" if x.dtype.kind == "c" or y.dtype.kind == "c" else "float64"
    eps = eps_of(x.dtype) if x.dtype.kind not in "ib" else 0.0
    error = np.abs(x.astype(wide) - y.astype(wide))
    right = (error <= THRESHOLD * eps * np.abs(y.astype(wide))) | ~mask
    return "" if right.all() else f"{(~right).sum()} of {right.size} elements are wrong, as {x[~right][0]}"


def _leading_dimension(x: DistMatrix, desc: MatrixDescriptor) -> str:
    """A text if the memory of a new matrix has another leading dimension than a descriptor says, or than it needs."""
    fast, slow = (0, 1) if desc.order == "F" else (1, 0)
    if x.local.size == 0 or x.local.shape[slow] == 1:
        return ""
    lld, right = x.local.strides[slow] // x.local.itemsize, desc.lld or x.local.shape[fast]
    return "" if lld == right else f"the leading dimension is {lld}, expected {right}"


def outcome(call: Callable[[], Any]) -> tuple[str, str, Any]:
    """(class of the exception or "", its text, the result) of a call on this rank."""
    try:
        return "", "", call()
    except Exception as error:  # noqa: BLE001 - whatever it is, all ranks must see the same
        return type(error).__name__, str(error), None
