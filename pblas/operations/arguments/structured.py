"""Arguments of syrk, symm, trmm and their relatives, checked on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
from pblas.core.options import Diag, Side, Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.product import ProductArguments, ProductRequest
from pblas.planner.structured import choose_rank_update, choose_symmetric, choose_triangular
from pblas.plans.structured import RankUpdate, Structure, SymmetricProduct, TriangularProduct, Uplo

if TYPE_CHECKING:
    from pblas.plans.plan import Topology
    from pblas.runtime.runtime import Runtime

Routine = Literal["syrk", "herk", "syr2k", "her2k", "symm", "hemm", "trmm"]
StructuredPlan = RankUpdate | SymmetricProduct | TriangularProduct


class StructuredRequest(NamedTuple):
    """The unchecked arguments of a call; arguments that a routine lacks keep their defaults."""

    verb: str
    routine: Routine
    a: Any
    b: Any = None
    c: Any = None
    side: Any = "L"
    uplo: Any = "L"
    trans: Any = "N"
    diag: Any = "N"
    alpha: Any = 1.0
    beta: Any = None
    out: Any = None
    overlap: Any = True
    dtype: Any = None
    nprocs: Any = None
    hardware: Any = None

    @property
    def matrices(self) -> list[DistMatrix]:
        """All operands that are matrices of a context."""
        return [x for x in (self.a, self.b, self.c, self.out) if isinstance(x, DistMatrix)]


class StructuredArguments(NamedTuple):
    """Arguments that were checked on this rank. Made by `checked`; all are global.

    Args:
        routine: name of the routine.
        product: arguments of the product D = op(A) op(A)^T, op(A) op(B)^T, or of A and B in the order of `side`.
        side: "L" if A is the left operand of the product.
        uplo: the triangle of A, or of C for syrk and its relatives.
        diag: "U" for a unit diagonal of A.
        aliased: D is written over B.
    """

    routine: Routine
    product: ProductArguments
    side: Side
    uplo: Uplo
    diag: Diag
    aliased: bool

    @classmethod
    def checked(cls, call: StructuredRequest) -> StructuredArguments:
        """The arguments of a call, checked on this rank.

        Raises:
            ArgumentError, DescriptorError, DTypeError: the first wrong argument.
        """
        verb, routine = call.verb, call.routine
        side, uplo, diag = (
            _option(verb, name, getattr(call, name), letters)
            for name, letters in (("side", "LR"), ("uplo", "LU"), ("diag", "NU"))
        )
        trans = checked_trans(verb, "trans", call.trans)
        _check_kinds(call)
        is_complex = _is_complex(call)
        updates, is_hermitian = _is_update(routine), routine.startswith("he") and is_complex
        if updates:
            transa, transb = _update_trans(verb, routine, trans, is_complex=is_complex)
            left, right = call.a, call.b if routine.endswith("2k") else call.a
            _check_update_shapes(call, trans)
        else:
            transa, transb = (trans, "N") if side == "L" else ("N", trans)
            left, right = (call.a, call.b) if side == "L" else (call.b, call.a)
            _check_side_shapes(call, side, trans)
        if is_hermitian and updates:
            for name in ("alpha", "beta") if routine == "herk" else ("beta",):
                _check_real(verb, name, getattr(call, name))
        request = ProductRequest(
            *(verb, left, right, call.c, transa, transb, call.alpha, call.beta, call.out, None, call.overlap),
            *(None, False, False, None, call.dtype),
        )
        product = ProductArguments.checked(request)
        aliased = isinstance(call.out, DistMatrix) and routine == "trmm" and _is_same(call.out, call.b)
        return cls(routine, product, side, uplo, diag, aliased)

    @property
    def verb(self) -> str:
        """Name of the call."""
        return self.product.verb

    def output(self) -> MatrixDescriptor:
        """Descriptor of D: that of out, of C or, without them, of B; for syrk and its relatives as A on its grid."""
        product = self.product
        if product.desc_out is not None or product.desc_c is not None:
            return product.output(1)
        if not _is_update(self.routine):
            return product.desc_b if self.side == "L" else product.desc_a
        return _square(product.op_a)

    def choose(self, d: MatrixDescriptor, nprocs: int, topology: Topology) -> StructuredPlan:
        """The plan for a D with descriptor `d`."""
        product, name = self.product, self.product.dtype.name
        descs, right = (product.op_a, product.op_b, d), self.side == "R"
        overlap = product.overlap
        if _is_update(self.routine):
            return choose_rank_update(
                self.routine, name, descs, self.uplo, nprocs=nprocs, topology=topology, overlap=overlap
            )
        structure = self.structure
        if structure.kind == "triangular":
            return choose_triangular(
                *(name, descs, structure),
                right=right,
                aliased=self.aliased,
                nprocs=nprocs,
                topology=topology,
                overlap=overlap,
            )
        return choose_symmetric(name, descs, structure, right=right, nprocs=nprocs, topology=topology, overlap=overlap)

    @property
    def structure(self) -> Structure:
        """The structure of op(A), for products with a triangular or symmetric A."""
        if self.routine == "trmm":
            structure = Structure("triangular", self.uplo, self.diag == "U")
            trans = self.product.transa if self.side == "L" else self.product.transb
            return structure if trans == "N" else structure.T
        return Structure("Hermitian" if self.routine == "hemm" else "symmetric", self.uplo)

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks."""
        own = {name: getattr(self, name) for name in ("routine", "side", "uplo", "diag")}
        return {**own, **self.product.arguments(), "out is B": self.aliased}

    def check_execution(self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, desc_d: MatrixDescriptor) -> None:
        """Raise an error if a matrix of an execution does not fit the plan (local).

        Args:
            runtime: runtime of the plan's context (global).
            a: A (global).
            b: B; None for a routine without it (global).
            c: C; None without one (global).
            out: the matrix for D; None for a new one (global).
            desc_d: planned descriptor of D (global).
        """
        product, remedy = self.product, "make all matrices with one context"
        operands = [("A", a, product.desc_a, product.conj_views[0]), ("B", b, product.desc_b, product.conj_views[1])]
        if self.side == "R":
            (_, _, *of_b), (_, _, *of_a) = operands
            operands = [("A", a, *of_a), ("B", b, *of_b)]
        if self.routine in ("syrk", "herk"):
            operands = operands[:1]
        for name, x, desc, conj in operands:
            check_like_planned(name, x, runtime, product.dtype, desc, remedy=remedy)
            check_conjugation(name, x, conj=conj)
        for name, x, desc in (("C", c, product.desc_c or desc_d), ("out", out, desc_d)):
            if x is not None:
                check_like_planned(name, x, runtime, product.dtype, desc, remedy=remedy)
                check_not_conjugated("execute", name, x)
        if c is None and product.beta != 0:
            raise errors.ArgumentError(f"execute: beta is {product.beta!r} but there is no C to scale; pass c")
        if out is not None:
            self.check_overlap("execute", a, b, c, out)

    def check_overlap(self, verb: str, a: Any, b: Any, c: Any, out: DistMatrix) -> None:
        """Raise ArgumentError if `out` overlaps an operand; trmm may overwrite all of B if that was planned (local)."""
        if self.routine == "trmm" and _is_same(out, b):
            if not self.aliased:
                raise errors.ArgumentError(f"{verb}: out is B, unlike planned; plan with out=B")
            b = None
        check_overlap(verb, a, b, c, out)


def _option(verb: str, name: str, value: Any, letters: str) -> Any:
    """A value that is one of some letters; ArgumentError for any other."""
    if not isinstance(value, str) or len(value) != 1 or value not in letters:
        raise errors.ArgumentError(f"{verb}: {name} must be {' or '.join(map(repr, letters))}, got {value!r}")
    return value


def _check_kinds(call: StructuredRequest) -> None:
    """Raise ArgumentError unless all operands are matrices, or all are descriptors."""
    verb, placed = call.verb, bool(call.matrices)
    operands = [("A", call.a)]
    if call.routine not in ("syrk", "herk"):
        operands.append(("B", call.b))
    if call.c is not None:
        operands.append(("C", call.c))
    for name, x in operands:
        if not isinstance(x, DistMatrix if placed else MatrixDescriptor):
            kind = "DistMatrix" if placed else "DistMatrix or MatrixDescriptor"
            raise errors.ArgumentError(f"{verb}: {name} must be a {kind}, got {type(x).__name__}; {matrix_remedy(x)}")


def _is_update(routine: Routine) -> bool:
    """Whether a routine updates a triangle of C."""
    return routine in ("syrk", "herk", "syr2k", "her2k")


def _is_complex(call: StructuredRequest) -> bool:
    """Whether the matrices of a call are complex."""
    if isinstance(call.a, DistMatrix):
        return bool(call.a.dtype.kind == "c")
    return str(call.dtype).startswith("complex")


def _is_same(out: Any, b: Any) -> bool:
    """Whether two matrices are the same elements in the same memory."""
    if out is b:
        return True
    same = isinstance(b, DistMatrix) and out.runtime is b.runtime and out.desc == b.desc
    return same and is_same_memory(*(x.runtime.backend.shadow(x.stored("out")) for x in (out, b)))


def _update_trans(verb: str, routine: Routine, trans: Trans, *, is_complex: bool) -> tuple[Trans, Trans]:
    """Transpositions of the left and the right operand of a rank-k update."""
    if is_complex and routine.startswith("sy") and trans == "C":
        raise errors.ArgumentError(
            f"{verb}: trans must be 'N' or 'T' for complex matrices, got 'C'; {routine.replace('sy', 'he')} conjugates"
        )
    if is_complex and routine.startswith("he") and trans == "T":
        raise errors.ArgumentError(
            f"{verb}: trans must be 'N' or 'C' for complex matrices, got 'T'; {routine.replace('he', 'sy')} transposes"
        )
    flip: Trans = "C" if is_complex and routine.startswith("he") else "T"
    return ("N", flip) if trans == "N" else (flip, "N")


def _check_real(verb: str, name: str, value: Any) -> None:
    """Raise ArgumentError for a scalar of a Hermitian update that is not real."""
    if getattr(value, "imag", 0) != 0:
        raise errors.ArgumentError(f"{verb}: {name} must be real, so that the result is Hermitian, got {value!r}")


def _desc(x: Any) -> MatrixDescriptor:
    """The descriptor of an operand."""
    desc: MatrixDescriptor = x.desc if isinstance(x, DistMatrix) else x
    return desc


def _check_update_shapes(call: StructuredRequest, trans: Trans) -> None:
    """Raise DescriptorError unless A, B and C, out fit together in a rank-k update."""
    verb, (n, k) = call.verb, _desc(call.a).shape if trans == "N" else _desc(call.a).shape[::-1]
    if call.routine.endswith("2k") and _desc(call.b).shape != _desc(call.a).shape:
        raise errors.DescriptorError(
            f"{verb}: A is {_desc(call.a).m} x {_desc(call.a).n}, B is {_desc(call.b).m} x {_desc(call.b).n}; "
            f"both must have one shape"
        )
    for name, x in (("C", call.c), ("out", call.out)):
        if isinstance(x, DistMatrix | MatrixDescriptor) and _desc(x).shape != (n, n):
            raise errors.DescriptorError(
                f"{verb}: {name} is {_desc(x).m} x {_desc(x).n}, op(A) is {n} x {k} (trans={trans!r}); "
                f"{name} must be {n} x {n}"
            )


def _check_side_shapes(call: StructuredRequest, side: Side, trans: Trans) -> None:
    """Raise DescriptorError unless the square A fits B."""
    verb, a, b = call.verb, _desc(call.a), _desc(call.b)
    order, line = (b.m, "rows") if side == "L" else (b.n, "columns")
    if a.shape != (order, order):
        kind = "triangular" if call.routine == "trmm" else "symmetric"
        raise errors.DescriptorError(
            f"{verb}: A is {a.m} x {a.n}, B is {b.m} x {b.n}; with side={side!r} the {kind} A must be "
            f"{order} x {order}, as many as B has {line}"
        )
    for name, x in (("C", call.c), ("out", call.out)):
        if isinstance(x, DistMatrix | MatrixDescriptor) and _desc(x).shape != b.shape:
            raise errors.DescriptorError(
                f"{verb}: {name} is {_desc(x).m} x {_desc(x).n}, B is {b.m} x {b.n}; give {name} this shape"
            )
    del trans


def _square(op_a: MatrixDescriptor) -> MatrixDescriptor:
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
