"""Checks of the arguments of syrk, symm, trmm and their relatives, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.layouts.descriptor import MatrixDescriptor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pblas.core.options import Side, Trans

Routine = Literal["syrk", "herk", "syr2k", "her2k", "symm", "hemm", "trmm"]


def is_update(routine: Routine) -> bool:
    """Whether a routine updates a triangle of C."""
    return routine in ("syrk", "herk", "syr2k", "her2k")


def check_update(verb: str, routine: Routine, trans: Trans, dtype: np.dtype[Any], alpha: Any, beta: Any) -> None:
    """Raise ArgumentError for a `trans` or a scalar with which the result is not symmetric, or not Hermitian."""
    if dtype.kind != "c":
        return
    if routine.startswith("sy"):
        if trans == "C":
            raise errors.ArgumentError(
                f"{verb}: trans must be 'N' or 'T' for complex matrices, got 'C'; {routine.replace('sy', 'he')} "
                f"conjugates"
            )
        return
    if trans == "T":
        raise errors.ArgumentError(
            f"{verb}: trans must be 'N' or 'C' for complex matrices, got 'T'; {routine.replace('he', 'sy')} transposes"
        )
    for name, value in (("alpha", alpha), ("beta", beta)) if routine == "herk" else (("beta", beta),):
        if getattr(value, "imag", 0) != 0:
            raise errors.ArgumentError(f"{verb}: {name} must be real, so that the result is Hermitian, got {value!r}")


def check_update_shapes(
    verb: str,
    trans: Trans,
    a: MatrixDescriptor,
    b: MatrixDescriptor | None,
    others: Mapping[str, MatrixDescriptor | None],
) -> None:
    """Raise DescriptorError unless A, B and the others, C and out, fit together in a rank-k update."""
    n, k = a.shape if trans == "N" else a.shape[::-1]
    if b is not None and b.shape != a.shape:
        raise errors.DescriptorError(f"{verb}: A is {a.m} x {a.n}, B is {b.m} x {b.n}; both must have one shape")
    for name, x in others.items():
        if x is not None and x.shape != (n, n):
            raise errors.DescriptorError(
                f"{verb}: {name} is {x.m} x {x.n}, op(A) is {n} x {k} (trans={trans!r}); {name} must be {n} x {n}"
            )


def check_side_shapes(
    verb: str,
    kind: str,
    side: Side,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    others: Mapping[str, MatrixDescriptor | None],
) -> None:
    """Raise DescriptorError unless the square A of a `kind` fits B, and the others, C and out, have B's shape."""
    order, line = (b.m, "rows") if side == "L" else (b.n, "columns")
    if a.shape != (order, order):
        raise errors.DescriptorError(
            f"{verb}: A is {a.m} x {a.n}, B is {b.m} x {b.n}; with side={side!r} the {kind} A must be "
            f"{order} x {order}, as many as B has {line}"
        )
    for name, x in others.items():
        if x is not None and x.shape != b.shape:
            raise errors.DescriptorError(f"{verb}: {name} is {x.m} x {x.n}, B is {b.m} x {b.n}; give {name} this shape")


def square(op_a: MatrixDescriptor) -> MatrixDescriptor:
    """The layout of an n x n result on the grid of op(A), n x k: rows as those of op(A), columns in equal blocks."""
    n, grid = op_a.m, op_a.grid
    if op_a.is_replicated:
        return MatrixDescriptor.replicated(n, n, op_a.nprocs, order=op_a.order)
    if op_a.rsrc >= 0:
        mb, rsrc, imb = op_a.mb, op_a.rsrc, op_a.imb
    else:
        mb, rsrc, imb = max(1, -(-n // grid.nprow)), 0, None
    nb = max(1, min(mb, -(-n // grid.npcol))) if grid.npcol > 1 else max(1, n)
    return MatrixDescriptor(n, n, mb, nb, grid, rsrc, max(op_a.csrc, 0), op_a.order, imb=imb)
