"""Arguments of an elementwise operation, checked on one rank: the first wrong argument raises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from pblas import errors
from pblas.arrays.elementwise_plan import ElementwiseOperand, ElementwisePlan
from pblas.backends.dtypes import BFLOAT16, FLOAT8, FLOAT16, STORED, Array, Dtype, Order, accumulator_dtype
from pblas.backends.interop import has_memory
from pblas.core.checks import is_same_memory, shares_memory
from pblas.epilogues import FUNCTIONS, NAMED, NEED_REAL, PARTS, REAL_VALUED, Apply, Name, Node, Number, nodes, parse
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import part_of
from pblas.runtime.arrays import checked_array, compare_array
from pblas.runtime.runtime import Runtime, checked_dtype, shared_descriptor

_NUMBERS = int, float, complex, np.number
_OPTIONS = ("out", "dtype", "nprocs")


class Analysis(NamedTuple):
    """The properties of an elementwise operation that follow from the kinds of its operands (global)."""

    tree: Node  # the expression; operands that are conjugated views, and do not move, are arguments of "conj"
    plan: ElementwisePlan  # the plan, but for the ranks and their transport
    moved: tuple[str, ...]  # names of the operands that are redistributed
    compute: Dtype  # dtype of the computation
    dtype: Dtype  # of the result
    descriptions: Mapping[str, str]  # name and description of each operand and of the result


class Operands(NamedTuple):
    """The operands of an expression, checked on this rank."""

    values: Mapping[str, object]  # numbers, matrices or descriptors, and arrays of two dimensions, by name (local)
    numbers: Mapping[str, complex]  # the numbers among them (global)
    forms: tuple[OperandForm, ...]  # what the plan depends on (global)
    # the numbers and the local arrays of the matrices, by name; None if some operands are arrays or descriptors (local)
    local: Mapping[str, Any] | None


def checked_operands(
    opname: str, expression: object, operands: Mapping[str, object], asked: Dtype | None, runtime: Runtime | None
) -> Operands:
    """The operands of an expression; `asked` is the dtype of descriptors (local)."""
    if not isinstance(expression, str):
        kind = type(expression).__name__
        raise errors.ArgumentError(f"{opname}: the expression must be a string, as 'x * s + y', got {kind}")
    _check_names(opname, expression, tuple(operands))
    numbers: dict[str, complex] = {}
    changed: dict[str, object] = {}
    forms: list[OperandForm] = []
    local: dict[str, Any] = {}
    for name, z in operands.items():
        if isinstance(z, DistMatrix) and runtime is not None:
            forms.append((name, z.desc, z.dtype, z.conjugated))
            local[name] = z.memory  # which the call checks
            continue
        checked = _checked_operand(opname, name, z, runtime)
        if is_number(checked):
            numbers[name] = local[name] = checked
            is_complex = isinstance(checked, complex | np.complexfloating)
            forms.append((name, None, getattr(checked, "dtype", None), is_complex))
        elif isinstance(checked, MatrixDescriptor):
            forms.append((name, checked, asked, False))
        else:
            changed[name] = checked
            forms.append((name, checked.shape, checked.dtype, False))
    if runtime is not None:
        most = runtime.backend.arrays.traits.most_operands
        if len(operands) > most:
            raise errors.ArgumentError(
                f"{opname}: an expression on a GPU has {most} operands at most, got {len(operands)}; evaluate a part "
                f"of it first"
            )
    values = {**operands, **changed} if changed else operands
    return Operands(values, numbers, tuple(forms), local if len(local) == len(values) else None)


def is_number(z: object) -> TypeGuard[complex]:
    """Whether an operand is a number, not a matrix or an array."""
    return isinstance(z, _NUMBERS)


def local_values(
    opname: str, runtime: Runtime, operands: Mapping[str, Any], analysis: Analysis, result: DistMatrix | None
) -> dict[str, Any]:
    """Numbers, and this rank's parts of the operands that are not redistributed, by name (local).

    A part that overlaps the result without being the same memory is copied: it would change too early. One that is the
    result is the same object.
    """
    backend, moved, values = runtime.backend, analysis.moved, dict[str, Any]()
    target = None if result is None else result.stored(opname)
    for name, z in operands.items():
        if moved and name in moved:
            continue
        part: Any
        if isinstance(z, DistMatrix):
            part = z.memory  # which is there: the call has checked its matrices
        elif isinstance(z, _NUMBERS):
            values[name] = z
            continue
        else:
            part = part_of(z, spread(analysis.plan.out, z.shape), runtime.rank)
            if part.dtype.kind in "biu":
                part = part.astype(analysis.compute)
            if not backend.is_here(part):
                part = _uploaded(runtime, part)
        if target is not None and part.size:
            source, out = backend.memory_of(part), backend.memory_of(target)
            if not is_same_memory(source, out):
                part = part.copy() if shares_memory(source, out) else part
            elif part.dtype == target.dtype:
                part = target
        values[name] = part
    return values


def spread(target: MatrixDescriptor, shape: tuple[int, int]) -> MatrixDescriptor:
    """The distribution in which an operand's elements are where a result with distribution `target` needs them.

    A row or column that is broadcast is replicated along the dimension of the result in which it has one element.

    >>> from pblas.layouts.grid import Grid
    >>> spread(MatrixDescriptor(8, 6, 2, 2, Grid(2, 3)), (8, 1)).local_shape(5)
    (4, 1)
    """
    if shape == target.shape:
        return target.without_lld
    (m, n), grid = shape, target.grid
    rows = (target.mb, target.rsrc, target.imb) if m == target.m else (1, -1, None)
    columns = (target.nb, target.csrc, target.inb) if n == target.n else (1, -1, None)
    return MatrixDescriptor(
        *(m, n, rows[0], columns[0], grid, rows[1], columns[1], target.order), imb=rows[2], inb=columns[2]
    )


OperandForm = tuple[str, MatrixDescriptor | tuple[int, int] | None, Dtype | None, bool]
"""Name; the descriptor of a matrix, or the shape of an array; dtype; whether a matrix is a conjugated view, or a number
complex. A call makes it of each operand to find its plan, `Kind` is made once for a plan."""


class Kind(NamedTuple):
    """The properties of an operand on which the plan depends (global)."""

    name: str  # in the expression
    shape: tuple[int, int] | None  # of a matrix or an array; None for a number
    dtype: Dtype | None  # None for a number of Python, and for a descriptor of which no dtype is known
    desc: MatrixDescriptor | None  # of a matrix; None for an array or a number
    complex: bool  # whether its elements are complex
    conjugated: bool = False  # whether it is a conjugated view

    @classmethod
    def of(cls, form: OperandForm) -> Kind:
        """The kind of an operand."""
        name, place, dtype, flag = form
        if place is None:
            return cls(name, None, dtype, None, flag)
        is_complex = dtype is not None and dtype.kind == "c"
        if isinstance(place, MatrixDescriptor):
            return cls(name, place.shape, dtype, place.without_lld, is_complex, flag)
        return cls(name, place, dtype, None, is_complex)

    @property
    def is_python_number(self) -> bool:
        """Whether it is a number that changes no dtype but its kind."""
        return self.shape is None and self.dtype is None

    def description(self) -> str:
        """The operand as text: its layout, shape or kind, and its dtype."""
        if self.desc is not None:
            return f"{shared_descriptor(self.desc)}, {self.dtype}{', conjugated' if self.conjugated else ''}"
        if self.shape is not None:
            return f"{self.shape[0]} x {self.shape[1]} array equal on all ranks, {self.dtype}"
        return f"a number, {self.dtype or ('complex' if self.complex else 'real')}"


def analysed(
    opname: str,
    expression: str,
    kinds: tuple[Kind, ...],
    out: tuple[MatrixDescriptor, Dtype] | None,
    converted: Dtype | None,
    order: Order | None,
) -> Analysis:
    """The analysis of an operation."""
    tree = _parsed(opname, expression)
    shape = _broadcast_shape(opname, kinds)
    promoted = _promoted(opname, kinds, converts=isinstance(tree, Name))
    _check_functions(opname, expression, tree, promoted)
    dtype = promoted
    if promoted.kind == "c" and _is_real(tree, {kind.name for kind in kinds if not kind.complex}):
        dtype = np.empty(0, promoted).real.dtype
    if out is not None:
        if out[0].shape != shape:
            m, n = out[0].shape
            raise errors.DescriptorError(
                f"{opname}: out is {m} x {n}, the result is {shape[0]} x {shape[1]}; make them agree"
            )
        converted = out[1]
    if converted is not None:
        _check_conversion(opname, dtype, converted)
        dtype = converted
    target = _target(kinds, None if out is None else out[0], shape)
    if out is None and order not in (None, target.order):
        target = replace(target, order=order)
    plan = ElementwisePlan(
        NAMED.get(expression, expression),
        tuple(
            ElementwiseOperand(kind.name, kind.desc, str(kind.dtype), spread(target, kind.desc.shape))
            for kind in kinds
            if kind.desc is not None
        ),
        tuple((kind.name, kind.description()) for kind in kinds if kind.desc is None),
        *(target, dtype.name, 1),
    )
    moved = tuple([operand.name for operand in plan.moved])
    views = {kind.name for kind in kinds if kind.conjugated}.difference(moved)
    descriptions = {kind.name: kind.description() for kind in kinds}
    descriptions["the result"] = f"{shared_descriptor(target)}, {dtype}"
    tree = _conjugating(tree, views) if views else tree
    return Analysis(tree, plan, moved, accumulator_dtype(promoted), dtype, descriptions)


def _target(kinds: Iterable[Kind], out: MatrixDescriptor | None, shape: tuple[int, int]) -> MatrixDescriptor:
    """The distribution of the result."""
    if out is not None:
        return out.without_lld
    descs = [kind.desc for kind in kinds if kind.desc is not None]
    whole = [desc for desc in descs if desc.shape == shape]
    divided = [desc for desc in whole if not desc.is_replicated]
    if whole:
        return (divided or whole)[0].without_lld
    m, n = shape
    desc = next((desc for desc in descs if not desc.is_replicated and (desc.m == m or desc.n == n)), None)
    if desc is None:
        return MatrixDescriptor(m, n, max(1, m), max(1, n), descs[0].grid, -1, -1, descs[0].order)
    rows = (desc.mb, desc.rsrc, desc.imb) if desc.m == m else (max(1, m), desc.rsrc, None)
    columns = (desc.nb, desc.csrc, desc.inb) if desc.n == n else (max(1, n), desc.csrc, None)
    return MatrixDescriptor(
        *(m, n, rows[0], columns[0], desc.grid, rows[1], columns[1], desc.order), imb=rows[2], inb=columns[2]
    )


@lru_cache(maxsize=256)
def _parsed(opname: str, expression: str) -> Node:
    """The tree of an expression."""
    try:
        return parse(NAMED.get(expression, expression), parts=True)
    except errors.ArgumentError as caught:
        raise errors.ArgumentError(f"{opname}: {caught}") from None


@lru_cache(maxsize=256)
def _check_names(opname: str, expression: str, operands: tuple[str, ...]) -> None:
    """Raise ArgumentError if the names in an expression are not those of the operands."""
    tree = _parsed(opname, expression)
    used = dict.fromkeys(node.name for node in nodes(tree) if isinstance(node, Name))
    for name in used:
        if name in _OPTIONS or name in FUNCTIONS or name in PARTS:
            raise errors.ArgumentError(f"{opname}: {name} cannot be the name of an operand; give it another name")
        if name not in operands:
            raise errors.ArgumentError(
                f"{opname}: there is no operand {name}; pass {opname}({expression!r}, {name}=...)"
            )
    for name in operands:
        if name not in used:
            raise errors.ArgumentError(f"{opname}: {expression!r} does not use the operand {name}; leave it out")


def _checked_operand(opname: str, name: str, z: object, runtime: Runtime | None) -> Any:
    """An operand: a number, a matrix or descriptor, or an array of two dimensions (local)."""
    if isinstance(z, DistMatrix) and runtime is not None:
        return z
    expected = f"{opname}: {name} must be a DistMatrix, a number, or an array that is equal on all ranks"
    if isinstance(z, bool | np.bool_):
        raise errors.ArgumentError(f"{expected}, got {z!r}; pass {int(z)}")
    if isinstance(z, _NUMBERS):
        try:
            complex(z)
        except OverflowError:
            raise errors.ArgumentError(f"{opname}: {name} is too large for any dtype of pblas") from None
        return z
    if runtime is None:
        if not isinstance(z, MatrixDescriptor):
            raise errors.ArgumentError(
                f"{opname}: {name} must be a MatrixDescriptor or a number, got {type(z).__name__}"
            )
        return z
    if not has_memory(z) and not hasattr(z, "toarray"):  # a sparse matrix has an error of its own
        remedy = f"; pass np.asarray({name})" if isinstance(z, list | tuple) else ""
        raise errors.ArgumentError(f"{expected}, got {type(z).__name__}{remedy}")
    array = checked_array(opname, name, z, runtime)
    if array.ndim > 2:
        raise errors.ArgumentError(f"{expected} of at most two dimensions, got {array.ndim}")
    if array.dtype.kind not in "biu" and array.dtype not in STORED:
        raise errors.DTypeError(
            f"{opname}: {name} is an array of {array.dtype}, which pblas does not compute with; pass "
            f"{name}.astype('float64')"
        )
    compare_array(name, array, runtime)
    return array.reshape((1,) * (2 - array.ndim) + array.shape)


def _broadcast_shape(opname: str, kinds: Iterable[Kind]) -> tuple[int, int]:
    """Rows and columns of the result."""
    shapes = {kind.name: kind.shape for kind in kinds if kind.shape is not None}
    sizes = []
    for axis in range(2):
        lengths = {shape[axis] for shape in shapes.values()} - {1}
        if len(lengths) > 1:
            texts = ", ".join(f"{name} is {shape[0]} x {shape[1]}" for name, shape in shapes.items())
            raise errors.DescriptorError(
                f"{opname}: the shapes do not fit: {texts}; a dimension must be equal in all operands, or 1"
            )
        sizes.append(lengths.pop() if lengths else 1)
    return sizes[0], sizes[1]


def _promoted(opname: str, kinds: Iterable[Kind], *, converts: bool) -> Dtype:
    """The dtype of all operands together by NumPy's rules: a Python number changes the kind only.

    Operands of 8 bits are only converted, by an expression that is one name (`converts`).
    """
    names: dict[Dtype, str] = {}
    for kind in kinds:
        if kind.dtype is not None:
            names[kind.dtype] = kind.name
        elif kind.desc is not None:
            raise errors.DTypeError(f"{opname}: {kind.name} is a descriptor, which has no dtype; pass dtype='float64'")
    short = next((dtype for dtype in names if dtype in FLOAT8), None)
    if short is not None and not converts:
        raise errors.DTypeError(
            f"{opname}: {names[short]} is {short.name}, of which pblas has products and conversions only; "
            f"use {names[short]}.astype('float32')"
        )
    if {FLOAT16, BFLOAT16} <= names.keys():
        raise errors.DTypeError(
            f"{opname}: {names[FLOAT16]} is float16, {names[BFLOAT16]} is bfloat16, and neither holds the numbers of "
            f"the other; convert one of them with .astype('float32')"
        )
    try:
        result = np.result_type(*names)
    except TypeError as caught:
        raise errors.DTypeError(f"{opname}: {caught}") from None
    if any(kind.is_python_number and kind.complex for kind in kinds):
        result = np.result_type(accumulator_dtype(result), np.complex64)
    return checked_dtype(opname, result, stored=True)


def _is_real(node: Node, real_names: Iterable[str]) -> bool:
    """Whether the value of a node is real."""
    if isinstance(node, Number):
        return True
    if isinstance(node, Name):
        return node.name in real_names
    values = node.arguments[node.function == "where" :]
    return node.function in REAL_VALUED or all(_is_real(z, real_names) for z in values)


def _check_functions(opname: str, expression: str, tree: Node, promoted: Dtype) -> None:
    """Raise ArgumentError if a function of real numbers is used with complex operands."""
    if promoted.kind != "c":
        return
    used = (node.function for node in nodes(tree) if isinstance(node, Apply))
    function = next((name for name in used if name in NEED_REAL and name not in REAL_VALUED), None)
    if function is not None:
        raise errors.ArgumentError(
            f"{opname}: {expression!r}: {function} is for real numbers, the operands are {promoted.name}; pass x.real"
        )


def _check_conversion(opname: str, dtype: Dtype, result: Dtype) -> None:
    """Raise DTypeError if a result would lose its imaginary part."""
    if dtype.kind == "c" and result.kind != "c":
        raise errors.DTypeError(
            f"{opname}: complex numbers would lose their imaginary part as {result.name}; take A.real or abs(A)"
        )


def _conjugating(node: Node, views: Iterable[str]) -> Node:
    """A tree in which some operands are conjugated first."""
    if isinstance(node, Name) and node.name in views:
        return Apply("conj", (node,))
    if isinstance(node, Apply):
        return Apply(node.function, tuple(_conjugating(argument, views) for argument in node.arguments))
    return node


def _uploaded(runtime: Runtime, part: Array) -> Array:
    """A copy of an array in the backend's memory (local)."""
    array = runtime.backend.new(part.shape, part.dtype)
    runtime.backend.copy(part, array)
    return array
