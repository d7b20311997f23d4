"""Arguments of factorizations and of solves with their factors, checked on one rank: the first wrong one raises."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from pblas import errors
from pblas.core.checks import (
    check_context,
    check_not_conjugated,
    check_of_descriptors,
    check_writable,
    common_dtype,
    enough_ranks,
    not_a_matrix,
    shares_memory,
)
from pblas.factor.choose import FactorizationAlgorithm, Kind, QrAlgorithm
from pblas.factor.grid_lu_plan import Pivoting
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.arrays import converted_array, equal_array
from pblas.runtime.runtime import Runtime, checked_dtype, fail_without_context
from pblas.simulation.hardware import Topology
from pblas.simulation.hardware_file import find_hardware

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.core.options import MatrixOrArray
    from pblas.simulation.hardware import Hardware


def runtime_of(opname: str, a: object) -> Runtime:
    """The runtime of a matrix; ArgumentError for any other value, see `fail_without_context` (local)."""
    if not isinstance(a, DistMatrix):
        fail_without_context(opname, not_a_matrix(opname, "a", a))
    return a.runtime


def check_matrix(opname: str, name: str, x: object, runtime: Runtime, dtype: Dtype | None = None) -> None:
    """Check an operand: a matrix of this context, of 32 bits at least (local)."""
    if not isinstance(x, DistMatrix):
        raise not_a_matrix(opname, name.lower(), x)
    check_context(opname, x, runtime)
    x.stored(opname)
    check_dtype(opname, name, x.dtype)
    if dtype is not None and x.dtype != dtype:
        raise errors.DTypeError(
            f"{opname}: A is {dtype.name}, {name} is {x.dtype.name}; both must have one dtype: convert with .astype"
        )


def check_planned(opname: str, a: DistMatrix, runtime: Runtime, dtype: object, **options: object) -> None:
    """Check the matrix of a planning function; `dtype` must be its own, and options are for descriptors (local)."""
    check_of_descriptors(opname, **options)
    check_matrix(opname, "A", a, runtime)
    common_dtype(opname, {"A": a}, dtype)


def of_descriptor(
    opname: str, a: MatrixDescriptor, dtype: object, nprocs: object, hardware: Hardware | str | None = None
) -> tuple[Dtype, int, Topology]:
    """The dtype, the number of ranks and the machine of a plan that is made from a descriptor (global)."""
    if dtype is None:
        raise errors.DTypeError(f"{opname}: descriptors have no dtype; pass dtype='float64'")
    checked, ranks = check_dtype(opname, "dtype", dtype), enough_ranks(opname, nprocs, (a,))
    if hardware is None:
        return checked, ranks, Topology(ranks, shared=True)
    machine = find_hardware(hardware)
    alone = ranks > 1 == machine.ranks_per_node
    return checked, ranks, replace(machine.topology, gpus=machine.gpus, alone=alone)


def check_dtype(opname: str, name: str, dtype: object) -> Dtype:
    """The dtype, if it can be factored: float32, float64, complex64 or complex128; DTypeError otherwise."""
    checked = checked_dtype(opname, dtype)
    if checked.itemsize < np.dtype(np.float32).itemsize:
        raise errors.DTypeError(
            f"{opname}: {name} is {checked.name}, which has too few bits to solve equations; convert with "
            f".astype('float32')"
        )
    return checked


def check_algorithm(opname: str, kind: Kind, desc: MatrixDescriptor, algorithm: object, *, gpus: bool) -> None:
    """Raise an error for an algorithm that is unknown or does not fit, or a matrix that cannot be factored so."""
    known = get_args(QrAlgorithm if kind == "qr" else FactorizationAlgorithm)
    if algorithm not in known:
        names = ", ".join(map(repr, known))
        raise errors.ArgumentError(f"{opname}: algorithm must be one of {names}, got {algorithm!r}")
    if kind == "cholesky":
        check_square(opname, desc)
    if algorithm == "tsqr" and gpus:
        raise errors.BackendError(f"{opname}: algorithm={algorithm!r} runs on CPUs, not on GPUs; leave it out")
    if algorithm in ("tsqr", "cholesky") and desc.m < desc.n:
        raise errors.ArgumentError(
            f"{opname}: algorithm={algorithm!r} is for matrices with at least as many rows as columns; A is "
            f"{desc.m} x {desc.n}: leave algorithm out"
        )


def checked_pivoting(opname: str, pivoting: object) -> Pivoting | None:
    """How LU chooses rows; None: the planner says so (global)."""
    if pivoting is None or pivoting in get_args(Pivoting):
        return pivoting  # type: ignore[return-value]
    names = ", ".join(map(repr, get_args(Pivoting)))
    raise errors.ArgumentError(f"{opname}: pivoting must be one of {names}, got {pivoting!r}")


def check_not_given_up(opname: str, a: DistMatrix, b: DistMatrix | Array, overwrite_a: object) -> None:
    """Raise ArgumentError if B is in memory of A, which overwrite_a=True gives up (local)."""
    if not overwrite_a or not isinstance(b, DistMatrix):
        return
    if shares_memory(*(a.runtime.backend.memory_of(x.stored(opname)) for x in (a, b))):
        raise errors.ArgumentError(f"{opname}: B is in memory of A, which overwrite_a=True gives up; pass B.copy()")


def check_square(opname: str, desc: MatrixDescriptor) -> None:
    """Raise DescriptorError unless a matrix is square."""
    if desc.m != desc.n:
        raise errors.DescriptorError(f"{opname}: A is {desc.m} x {desc.n}; it must be square")


def check_rows(opname: str, shape: tuple[int, int], rows: int, what: str) -> None:
    """Raise DescriptorError unless B has as many rows as A, which has this shape."""
    m, n = shape
    if rows != m:
        raise errors.DescriptorError(f"{opname}: A is {m} x {n}, B has {rows} {what}; make them agree")


def check_out(opname: str, out: Any, a: DistMatrix) -> None:
    """Check the matrix for a result of the shape and dtype of A; it may be A itself (local)."""
    check_matrix(opname, "out", out, a.runtime, a.dtype)
    check_not_conjugated(opname, "out", out)
    if out.shape != a.shape:
        sizes = " and ".join(f"{m} x {n}" for m, n in (a.shape, out.shape))
        raise errors.DescriptorError(f"{opname}: A and out are {sizes}; make them agree")
    check_writable(opname, out)


def checked_right(
    opname: str, b: MatrixOrArray, shape: tuple[int, int], dtype: Dtype, runtime: Runtime
) -> tuple[MatrixOrArray, object]:
    """The right-hand sides of equations with an A of this shape, and their text for the agreement.

    An array, which is equal on all ranks, is in host memory and has the dtype of A.
    """
    if isinstance(b, DistMatrix):
        check_matrix(opname, "B", b, runtime, dtype)
        check_rows(opname, shape, b.shape[0], "rows")
        return b, b.signature()
    array = equal_array(opname, "b", b, runtime)
    if array.ndim not in (1, 2):
        raise errors.ArgumentError(
            f"{opname}: b must be a DistMatrix, or an array of one or two dimensions that is equal on all ranks, got "
            f"{type(b).__name__} of {array.ndim} dimensions"
        )
    check_rows(opname, shape, len(array), "elements" if array.ndim == 1 else "rows")
    return converted_array(opname, "b", array, dtype), array.shape


def columns_of(b: Array) -> Array:
    """An array of one or two dimensions as a matrix of columns: a vector is one."""
    return b[:, None] if b.ndim == 1 else b
