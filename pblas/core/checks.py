"""Checks of arguments that all operations share, with one wording for each mistake."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import Array, Dtype, address_of
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, checked_dtype, shared_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pblas.core.operation import Bound
    from pblas.core.options import Trans


def check_like_planned(
    name: str,
    x: object,
    runtime: Runtime,
    dtype: Dtype,
    desc: MatrixDescriptor,
    *,
    conj: bool | None = None,
    exact: bool = False,
) -> None:
    """Raise an error unless a matrix of an execution has the planned dtype and distribution: `exact`, the layout.

    It must be a conjugated view as `conj` says; None: it may be one.
    """
    if not isinstance(x, DistMatrix):
        raise not_a_matrix("execute", name.lower(), x)
    check_context("execute", x, runtime)
    if conj is not None and x.conjugated != conj:
        view = "conjugated" if x.conjugated else "not conjugated"
        raise errors.ArgumentError(f"execute: {name} is {view}, unlike planned; plan anew")
    if x.dtype != dtype:
        raise errors.DTypeError(f"execute: {name} is {x.dtype.name}, planned was {dtype.name}; plan anew")
    if x.desc is desc or x.desc == desc:
        return
    if exact or x.desc.order != desc.order or not x.desc.same_distribution(desc):
        raise errors.DescriptorError(
            f"execute: {name} is {shared_descriptor(x.desc)}, planned was {shared_descriptor(desc)}; plan anew, "
            f"or redistribute it"
        )


def check_not_conjugated(opname: str, name: str, x: object) -> None:
    """Raise ArgumentError if a matrix that is written or added is a conjugated view."""
    if isinstance(x, DistMatrix) and x.conjugated:
        raise errors.ArgumentError(
            f"{opname}: {name} is a conjugated view (.H or .conj()), which cannot be written or added here; "
            f"pass its copy(), or write to it by x[...] = y"
        )


def checked_trans(opname: str, name: str, value: object) -> Trans:
    """A value as "N", "T" or "C"; ArgumentError for any other value."""
    if not isinstance(value, str) or value not in ("N", "T", "C"):
        raise errors.ArgumentError(f"{opname}: {name} must be 'N', 'T' or 'C', got {value!r}")
    return value  # type: ignore[return-value]  # one of the three


def checked_letter(opname: str, name: str, value: object, letters: str) -> Any:
    """A value as one of some letters; ArgumentError for any other value.

    >>> checked_letter("trsm", "side", "L", "LR")
    'L'
    """
    if not isinstance(value, str) or len(value) != 1 or value not in letters:
        raise errors.ArgumentError(f"{opname}: {name} must be {' or '.join(map(repr, letters))}, got {value!r}")
    return value


def enough_ranks(opname: str, nprocs: Any, descs: Iterable[MatrixDescriptor]) -> int:
    """The number of ranks to plan for: `nprocs`, or by default the size of the largest grid."""
    largest = max(desc.nprocs for desc in descs)
    if nprocs is None:
        return largest
    if not is_integer(nprocs, largest):
        raise errors.ArgumentError(
            f"{opname}: nprocs must be an integer >= {largest}, the ranks of the largest grid, got {nprocs!r}"
        )
    return int(nprocs)


def check_of_descriptors(opname: str, **values: object) -> None:
    """Raise ArgumentError for an option that was given with matrices, and is for planning from descriptors."""
    for name, value in values.items():
        if value is not None:
            raise errors.ArgumentError(f"{opname}: {name} is for planning from descriptors; leave it out")


def checked_positive(opname: str, name: str, value: Any) -> int | None:
    """A value that is None or a positive integer; ArgumentError for any other."""
    if value is not None and not is_integer(value, 1):
        raise errors.ArgumentError(f"{opname}: {name} must be None or a positive integer, got {value!r}")
    return None if value is None else int(value)


def is_integer(value: object, least: int) -> bool:
    """Whether a value is an integer of at least `least`, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def matrix_remedy(value: object, opname: str = "") -> str:
    """The end of a message of a call about a value that is not a `DistMatrix`: how to pass one.

    >>> matrix_remedy(np.eye(2))
    'ctx.from_global(array, desc) makes one'
    """
    if isinstance(value, MatrixDescriptor):
        return "pass matrices only, or plan with descriptors only"
    if isinstance(value, Integral) and opname == "plan_matmul":
        return "plan_matmul(m, n, k, nprocs=8) plans for sizes"
    if type(value).__module__ == "pblas.launch.handles":  # a package above this one
        return "a handle is for pool.linalg, pool.blas and functions that pool.call and pool.run call on the ranks"
    array, column = "array", ""
    with suppress(Exception):  # of another library's object
        array = "x.toarray()" if hasattr(value, "toarray") else "array"  # sparse matrices of SciPy have toarray
        column = "[:, None]" if getattr(value, "ndim", 2) == 1 else ""
    return f"ctx.from_global({array}{column}, desc) makes one"


def check_overlap(opname: str, reads: Mapping[str, object], old: DistMatrix | None, out: DistMatrix) -> None:
    """Raise ArgumentError if `out` overlaps a matrix that is read, or `old`, which it may be itself (local)."""
    memory_of = out.runtime.backend.memory_of
    d = memory_of(out.stored(opname))
    for name, x, may_be in (*((name, x, False) for name, x in reads.items()), ("C", old, True)):
        if not isinstance(x, DistMatrix):
            continue
        part = memory_of(x.stored(opname))
        if shares_memory(part, d) and not (may_be and is_same_memory(part, d)):
            same = " in part; it may be C itself" if may_be else ""
            raise errors.ArgumentError(f"{opname}: out overlaps {name}{same}; give it memory of its own")


def shares_memory(x: Array, y: Array) -> bool:
    """Whether two arrays overlap; also True where the exact test would take too long."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]  # the stub knows two values only
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(x: Array) -> bool:
    """Whether the strides of an array let two of its elements share memory; also True if that is hard to say."""
    if x.size == 0 or x.flags.c_contiguous:
        return False
    axes = sorted((abs(step), count) for step, count in zip(x.strides, x.shape, strict=True) if count > 1)
    span = int(x.itemsize)
    for step, count in axes:
        if step < span:
            break
        span += step * (count - 1)
    else:
        return False
    if len(axes) != 2 or axes[0][0] == 0 or any(step % x.itemsize for step, _ in axes):
        return True
    (fast, m), (slow, n) = axes
    unit = math.gcd(fast, slow)
    return slow // unit < m and fast // unit < n


def is_writeable(x: Array) -> bool:
    """Whether an array can be written; arrays on GPUs always can."""
    return getattr(x.flags, "writeable", True)  # CuPy has no such flag


def check_written(what: str, x: Array) -> None:
    """Raise ArgumentError unless an array can be written, and each element has its own memory (local)."""
    if not is_writeable(x):
        raise errors.ArgumentError(f"{what} is read-only; give it memory that can be written")
    if overlaps_itself(x):
        raise errors.ArgumentError(
            f"{what} has elements that share memory (strides {x.strides}); give each element memory of its own, as in "
            f"a copy"
        )


def is_same_memory(x: Array, y: Array) -> bool:
    """Whether two arrays are the same elements in the same places."""
    return x.shape == y.shape and x.strides == y.strides and address_of(x) == address_of(y)


def check_matrices(opname: str, runtime: Runtime, bound: Bound[Any]) -> None:
    """Raise an error unless the matrices of a call are open, of this context, and out can be written (local)."""
    out, old = bound.out, bound.old
    for x in (*bound.reads.values(), old, out):
        if isinstance(x, DistMatrix):
            if x.runtime is not runtime:
                check_context(opname, x, runtime)
            if x.memory is None:
                x.stored(opname)  # raises
    if out is not None:
        check_writable(opname, out)
        if not bound.operation.may_overlap:
            check_overlap(opname, bound.reads, old, out)


def not_a_matrix(opname: str, name: str, x: object) -> errors.ArgumentError:
    """The error of an argument that must be a matrix and is none.

    >>> print(not_a_matrix("det", "a", 3.0))
    det: a must be a DistMatrix, got float; ctx.from_global(array, desc) makes one
    """
    return errors.ArgumentError(f"{opname}: {name} must be a DistMatrix, got {type(x).__name__}; {matrix_remedy(x)}")


def check_context(opname: str, x: DistMatrix, runtime: Runtime) -> None:
    """Raise ArgumentError if a matrix is not of this context (local)."""
    if x.runtime is not runtime:
        raise errors.ArgumentError(f"{opname}: matrices of different contexts; make all of them with one context")


def check_matrix(opname: str, name: str, x: object, runtime: Runtime) -> None:
    """Raise ArgumentError unless an argument is a matrix of this context, which is open (local)."""
    if not isinstance(x, DistMatrix):
        raise not_a_matrix(opname, name, x)
    check_context(opname, x, runtime)
    x.stored(opname)


def check_writable(opname: str, x: DistMatrix, name: str = "out") -> None:
    """Raise ArgumentError if the local array of a matrix that is written is read-only (local)."""
    if not is_writeable(x.stored(opname)):  # BLAS would write all the same
        raise errors.ArgumentError(
            f"{opname}: {name} is made from a read-only array; make it from one that can be written"
        )


def check_operand(opname: str, name: str, x: object, *, placed: bool) -> None:
    """Raise ArgumentError unless an operand is a matrix, or if no operand is `placed` in memory a descriptor."""
    if not isinstance(x, DistMatrix if placed else MatrixDescriptor):
        kind = "DistMatrix" if placed else "DistMatrix or MatrixDescriptor"
        raise errors.ArgumentError(
            f"{opname}: {name} must be a {kind}, got {type(x).__name__}; {matrix_remedy(x, opname)}"
        )


def check_out(opname: str, out: object, *, layouts: bool = True) -> None:
    """Raise ArgumentError unless `out` is None, a matrix that can be written, or if they are allowed a layout."""
    if out is not None and not isinstance(out, DistMatrix | MatrixDescriptor if layouts else DistMatrix):
        kinds = "a DistMatrix, a MatrixDescriptor or None" if layouts else "a DistMatrix or None"
        raise errors.ArgumentError(f"{opname}: out must be {kinds}, got {type(out).__name__}")
    check_not_conjugated(opname, "out", out)


def common_dtype(opname: str, matrices: Mapping[str, Any], dtype: object, *, stored: bool = False) -> Dtype:
    """The dtype of all matrices of a call: `dtype`, needed with descriptors, or that of the first one."""
    first = next(iter(matrices.values()))
    if isinstance(first, MatrixDescriptor) and dtype is None:
        raise errors.DTypeError(f"{opname}: descriptors have no dtype; pass dtype='float64'")
    given = first.dtype if dtype is None else dtype
    common = checked_dtype(opname, given, is_argument=dtype is not None, stored=stored)
    for name, x in matrices.items():
        if isinstance(x, DistMatrix) and x.dtype != common:
            remedy = f"A.astype({x.dtype.name!r})" if name == "out" else f"{name}.astype({common.name!r})"
            raise errors.DTypeError(
                f"{opname}: {name} is {x.dtype.name}, {'A is' if dtype is None else 'dtype= says'} {common.name}; "
                f"all matrices must have one dtype: convert with {remedy}"
            )
    return common


def checked_place(
    opname: str, runtime: Runtime | None, out: object, name: str = "out"
) -> tuple[MatrixDescriptor | None, int]:
    """`new` and `nelements` of `Bound`: `out` may be the layout of a new result, with a leading dimension (local)."""
    if runtime is None or not isinstance(out, MatrixDescriptor) or out.lld is None:
        return None, 0
    runtime.check_place(opname, out, name)
    return out, runtime.nelements(out)


def check_ranks(opname: str, desc: MatrixDescriptor, nprocs: int) -> None:
    """Raise LayoutError if the grid of a new matrix has more processes than the context has ranks."""
    if desc.nprocs > nprocs:
        raise errors.LayoutError(
            f"{opname}: the grid is {desc.grid.nprow} x {desc.grid.npcol}, the context has {nprocs} "
            f"rank{'s' * (nprocs > 1)}; use a smaller grid"
        )
