"""Arguments of a triangular solve, checked on one rank: the first wrong argument raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.core.checks import (
    check_conjugation,
    check_like_planned,
    check_not_conjugated,
    check_overlap,
    checked_trans,
    is_same_memory,
    matrix_remedy,
)
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.planner.choose_trsm import choose_trsm
from pblas.plans.triangular import PANEL, PANEL_ON_GPUS, TriangularOperands
from pblas.runtime.runtime import checked_dtype, checked_scalar, shared_descriptor

if TYPE_CHECKING:
    import numpy as np

    from pblas.plans.pipelined_trsm import PipelinedTrsm
    from pblas.plans.plan import Topology
    from pblas.plans.trsm import TrsmPlan
    from pblas.runtime.runtime import Runtime


class TrsmRequest(NamedTuple):
    """The arguments of a call of trsm or plan_trsm, not checked yet."""

    verb: str
    a: Any
    b: Any
    side: Any
    uplo: Any
    trans: Any
    diag: Any
    alpha: Any
    out: Any
    dtype: Any = None
    nprocs: Any = None

    @property
    def matrices(self) -> list[DistMatrix]:
        """All of A, B and out that are matrices of a context."""
        return [x for x in (self.a, self.b, self.out) if isinstance(x, DistMatrix)]


class TrsmArguments(NamedTuple):
    """Arguments of a triangular solve that were checked on this rank. Made by `checked`; all are global.

    Args:
        operands: distributions of A, B and X, and the options.
        alpha: scalar.
        dtype: dtype of the matrices.
        views: whether A and B are conjugated views.
    """

    operands: TriangularOperands
    alpha: complex
    dtype: np.dtype[Any]
    views: tuple[bool, bool]

    @classmethod
    def checked(cls, call: TrsmRequest) -> TrsmArguments:
        """The arguments of a call, checked on this rank.

        Raises:
            ArgumentError, DescriptorError, DTypeError: the first wrong argument.
        """
        verb, out = call.verb, call.out
        side = checked_letter(verb, "side", call.side, "LR")
        uplo, diag = checked_letter(verb, "uplo", call.uplo, "LU"), checked_letter(verb, "diag", call.diag, "NU")
        trans = checked_trans(verb, "trans", call.trans)
        kind = DistMatrix if call.matrices else MatrixDescriptor
        for name, x in (("a", call.a), ("b", call.b)):
            if not isinstance(x, kind):
                raise errors.ArgumentError(
                    f"{verb}: {name} must be a {kind.__name__}, got {type(x).__name__}; {matrix_remedy(x)}"
                )
        if out is not None and not isinstance(out, DistMatrix | MatrixDescriptor):
            raise errors.ArgumentError(
                f"{verb}: out must be a DistMatrix, a MatrixDescriptor or None, got {type(out).__name__}"
            )
        desc_a, desc_b = (x.desc if isinstance(x, DistMatrix) else x for x in (call.a, call.b))
        desc_x = desc_b if out is None else out.desc if isinstance(out, DistMatrix) else out
        dtype = _common_dtype(call)
        check_not_conjugated(verb, "out", out)
        alpha = checked_scalar(verb, "alpha", call.alpha, dtype)
        if desc_a.m != desc_a.n:
            raise errors.DescriptorError(f"{verb}: A is {desc_a.m} x {desc_a.n}; it must be square")
        extent = desc_b.m if side == "L" else desc_b.n
        if desc_a.n != extent:
            product = "op(A) X" if side == "L" else "X op(A)"
            raise errors.DescriptorError(
                f"{verb}: A is {desc_a.m} x {desc_a.n} and B is {desc_b.m} x {desc_b.n}; with side={side!r} the system "
                f"is {product} = alpha B, so B must have {desc_a.n} {'rows' if side == 'L' else 'columns'}"
            )
        if desc_x.shape != desc_b.shape:
            raise errors.DescriptorError(
                f"{verb}: out is {desc_x.m} x {desc_x.n}, B is {desc_b.m} x {desc_b.n}; make them agree"
            )
        views = tuple(isinstance(x, DistMatrix) and x.conjugated for x in (call.a, call.b))
        operands = TriangularOperands(desc_a, desc_b, desc_x, side, uplo, trans, diag == "U")
        return cls(operands, alpha, dtype, views)  # type: ignore[arg-type]  # two flags

    @property
    def conj(self) -> tuple[bool, bool]:
        """Whether the elements of A and of B in memory are conjugated."""
        if self.dtype.kind != "c":
            return False, False
        return (self.operands.trans == "C") != self.views[0], self.views[1]

    def plan(self, nprocs: int, topology: Topology) -> TrsmPlan | PipelinedTrsm:
        """The plan of the solve."""
        reads = self.alpha != 0 and 0 not in self.operands.b.shape
        width = PANEL_ON_GPUS if topology.gpus else PANEL
        return choose_trsm(self.operands, self.dtype.name, nprocs, reads=reads, width=width, topology=topology)

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        operands = self.operands
        call_args: dict[str, Any] = {name: getattr(operands, name) for name in ("side", "uplo", "trans", "unit")}
        call_args |= {"alpha": self.alpha, "dtype": self.dtype.name, "conjugated": self.views}
        return call_args | {name: shared_descriptor(getattr(operands, name)) for name in ("a", "b", "x")}

    def check_execution(self, runtime: Runtime, a: Any, b: Any, out: Any) -> bool:
        """Raise an error if a matrix of an execution does not fit the plan (local).

        Returns:
            Whether X overwrites B (local).
        """
        operands, (conj_a, conj_b) = self.operands, self.views
        planned = (("A", a, operands.a, conj_a), ("B", b, operands.b, conj_b), ("out", out, operands.x, False))
        for name, x, desc, conj in planned:
            if x is not None or name != "out":
                check_like_planned(name, x, runtime, self.dtype, desc, remedy="use one context", exact=name != "out")
                check_conjugation(name, x, conj=conj)
        return out is not None and check_output("execute", a, b, out)


def check_output(verb: str, a: DistMatrix, b: DistMatrix, out: DistMatrix) -> bool:
    """Raise ArgumentError if `out` overlaps A, or B in part; return whether it is B (local)."""
    shadow = out.runtime.backend.shadow
    x, y = shadow(b.stored(verb)), shadow(out.stored(verb))
    in_place = out is b or (not b.conjugated and b.desc.same_distribution(out.desc) and is_same_memory(x, y))
    try:
        check_overlap(verb, a, None if in_place else b, None, out)
    except errors.ArgumentError as caught:
        if "overlaps B" not in str(caught):
            raise
        raise errors.ArgumentError(f"{verb}: out overlaps B in part; give it memory of its own, or pass B") from None
    return in_place


def checked_letter(verb: str, name: str, value: Any, letters: str) -> Any:
    """A value as one of some letters; ArgumentError for any other value.

    >>> checked_letter("trsm", "side", "L", "LR")
    'L'
    """
    if not isinstance(value, str) or len(value) != 1 or value not in letters:
        raise errors.ArgumentError(f"{verb}: {name} must be {' or '.join(map(repr, letters))}, got {value!r}")
    return value


def _common_dtype(call: TrsmRequest) -> np.dtype[Any]:
    """The dtype of A and B, or `dtype` if they are descriptors; 16-bit dtypes are refused."""
    verb, requested = call.verb, None
    if call.dtype is not None:
        requested = checked_dtype(verb, call.dtype, is_argument=True)
    if not call.matrices:
        if requested is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        dtype = requested
    else:
        dtype = checked_dtype(verb, call.a.dtype)
        if requested not in (None, dtype):
            raise errors.DTypeError(f"{verb}: dtype is {call.dtype}, A is {dtype.name}; leave dtype out")
        for name, x in (("B", call.b), ("out", call.out)):
            if isinstance(x, DistMatrix) and x.dtype != dtype:
                raise errors.DTypeError(
                    f"{verb}: A is {dtype.name}, {name} is {x.dtype.name}; all must have one dtype: convert with astype"
                )
    if dtype.itemsize <= 2:
        raise errors.DTypeError(f"{verb}: {dtype.name} has too few bits for a solve; convert with A.astype('float32')")
    return dtype
