"""Arguments of a redistribution, checked on one rank: the first wrong argument raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.dtypes import FLOAT8
from pblas.core.checks import (
    check_conjugation,
    check_like_planned,
    check_not_conjugated,
    check_overlap,
    checked_trans,
    matrix_remedy,
)
from pblas.core.options import Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.trapezoid import Trapezoid
from pblas.matrices.matrix import DistMatrix
from pblas.plans.redistribution import RedistributionPlan
from pblas.runtime.runtime import checked_dtype, checked_factor, shared_descriptor

if TYPE_CHECKING:
    from pblas.plans.plan import Topology
    from pblas.runtime.runtime import Runtime


class RedistributionRequest(NamedTuple):
    """The arguments of a call of redistribute or plan_redistribution, not checked yet."""

    verb: str
    a: Any
    desc: Any
    out: Any
    trans: Any
    alpha: Any
    beta: Any
    uplo: Any
    diagonal: Any
    dtype: Any = None
    nprocs: Any = None

    @property
    def matrices(self) -> list[DistMatrix]:
        """All of A and out that are matrices of a context."""
        return [x for x in (self.a, self.out) if isinstance(x, DistMatrix)]


class RedistributionArguments(NamedTuple):
    """Arguments of a redistribution that were checked on this rank. Made by `checked`; all are global.

    Args:
        trans: as in `redistribute`, like `alpha` and `beta`.
        trapezoid: the elements of B that are written; None for all.
        dtype: dtype of both matrices.
        desc_a: descriptor of A; `desc_b` is that of B.
        conj_view: whether A is a conjugated view.
        conj: whether the redistribution conjugates the elements in memory of A.
    """

    trans: Trans
    alpha: complex
    beta: complex
    trapezoid: Trapezoid | None
    dtype: np.dtype[Any]
    desc_a: MatrixDescriptor
    desc_b: MatrixDescriptor
    conj_view: bool
    conj: bool

    @classmethod
    def checked(cls, call: RedistributionRequest) -> RedistributionArguments:
        """The arguments of a call, checked on this rank.

        Raises:
            ArgumentError, DescriptorError, DTypeError: the first wrong argument.
        """
        verb, a, desc, out = call.verb, call.a, call.desc, call.out
        trans, uplo, diagonal = checked_trans(verb, "trans", call.trans), call.uplo, call.diagonal
        if uplo is not None and not (isinstance(uplo, str) and uplo in ("U", "L")):
            raise errors.ArgumentError(f"{verb}: uplo must be None, 'U' or 'L', got {uplo!r}")
        if isinstance(diagonal, bool) or not isinstance(diagonal, int | np.integer):
            raise errors.ArgumentError(f"{verb}: diagonal must be an integer, got {diagonal!r}")
        if diagonal and uplo is None:
            raise errors.ArgumentError(f"{verb}: diagonal is {diagonal} but uplo is None; pass uplo='U' or 'L'")
        trapezoid = None if uplo is None else Trapezoid(str(uplo), int(diagonal))  # type: ignore[arg-type]  # U or L
        placed = isinstance(out, DistMatrix)
        if not isinstance(a, DistMatrix) and (placed or not isinstance(a, MatrixDescriptor)):
            raise errors.ArgumentError(f"{verb}: a must be a DistMatrix, got {type(a).__name__}; {matrix_remedy(a)}")
        if (desc is None) == (out is None):
            which = "neither" if out is None else "both"
            raise errors.ArgumentError(f"{verb}: {which} of desc and out given; pass desc= for a new B, or out=B")
        if desc is not None and not isinstance(desc, MatrixDescriptor):
            raise errors.ArgumentError(f"{verb}: desc must be a MatrixDescriptor, got {type(desc).__name__}")
        if out is not None and not placed:
            raise errors.ArgumentError(
                f"{verb}: out must be a DistMatrix, got {type(out).__name__}; for a new matrix pass desc="
            )
        desc_a, conj_view = (a.desc, a.conjugated) if isinstance(a, DistMatrix) else (a, False)
        desc_b = out.desc if desc is None else desc
        dtype = _dtype_of(verb, a, call.dtype)
        if out is not None and out.dtype != dtype:
            raise errors.DTypeError(
                f"{verb}: out is {out.dtype.name}, A is {dtype.name}; both must have one dtype: "
                f"convert with A.astype({out.dtype.name!r})"
            )
        check_not_conjugated(verb, "out", out)
        alpha = checked_factor(verb, "alpha", call.alpha, dtype)
        beta = checked_factor(verb, "beta", call.beta, dtype)
        if dtype in FLOAT8 and (alpha, beta) != (1, 0):
            raise errors.DTypeError(
                f"{verb}: alpha is {alpha!r}, beta is {beta!r}, but {dtype.name} matrices are only moved; leave both "
                f"out, or convert with A.astype('float32')"
            )
        if beta != 0 and out is None:
            raise errors.ArgumentError(f"{verb}: beta is {beta!r} but there is no B to scale; pass out=")
        (m, n), (m_b, n_b) = desc_a.shape if trans == "N" else desc_a.shape[::-1], desc_b.shape
        if (m, n) != (m_b, n_b):
            raise errors.DescriptorError(
                f"{verb}: op(A) is {m} x {n} (trans={trans!r}), B is {m_b} x {n_b}; make them agree"
            )
        return cls(
            *(trans, alpha, beta, trapezoid, dtype, desc_a, desc_b, conj_view),
            conj=dtype.kind == "c" and (trans == "C") != conj_view,
        )

    def plan(self, nprocs: int, topology: Topology) -> RedistributionPlan:
        """The plan of the redistribution."""
        return RedistributionPlan(
            *(self.desc_a, self.desc_b, self.dtype.name, nprocs, self.trans, self.trapezoid),
            reads_a=self.alpha != 0,
            transport=topology.transport(nprocs),
        )

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        call_args = {name: getattr(self, name) for name in ("trans", "alpha", "beta", "trapezoid")}
        call_args |= {"dtype": self.dtype.name, "conjugated": self.conj_view}
        return call_args | {"a": shared_descriptor(self.desc_a), "b": shared_descriptor(self.desc_b)}

    def check_execution(self, runtime: Runtime, a: Any, out: Any) -> None:
        """Raise an error if a matrix of an execution does not fit the plan (local)."""
        if out is None and self.beta != 0:
            raise errors.ArgumentError(f"execute: beta is {self.beta!r} but there is no B to scale; pass out=")
        for name, x, desc, conj in (("A", a, self.desc_a, self.conj_view), ("out", out, self.desc_b, False)):
            if x is not None or name == "A":
                check_like_planned(name, x, runtime, self.dtype, desc, remedy="use one context", exact=True)
                check_conjugation(name, x, conj=conj)
        if out is not None:
            check_overlap("execute", a, None, None, out)


def _dtype_of(verb: str, a: DistMatrix | MatrixDescriptor, dtype: Any) -> np.dtype[Any]:
    """The dtype of A, or `dtype` if A is a descriptor."""
    requested = None if dtype is None else checked_dtype(verb, dtype, is_argument=True, stored=True)
    if isinstance(a, MatrixDescriptor):
        if requested is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        return requested
    if requested not in (None, a.dtype):
        raise errors.DTypeError(f"{verb}: dtype is {dtype}, A is {a.dtype.name}; leave dtype out")
    return checked_dtype(verb, a.dtype, stored=True)
