"""Products in which one matrix has a triangle: rank-k updates, and triangular and symmetric matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pblas import errors
from pblas.backends.dtypes import Array, Dtype, Order, ProductDtypes
from pblas.core import checks
from pblas.core.call import call, is_of_descriptors, planned, planned_without_context
from pblas.core.operation import Bound, Executor, Operation
from pblas.core.options import Diag, Side, Trans, Uplo
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.placement import Placement
from pblas.matmul.local_gemm_run import Operands, Orders, RunScaling
from pblas.matmul.product import executor
from pblas.matmul.triangle import Triangle
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.transfer import own_memory
from pblas.runtime.runtime import Runtime, checked_factor, checked_flag, shared_descriptor
from pblas.simulation.hardware import Hardware, Topology
from pblas.simulation.hardware_file import find_hardware
from pblas.symmetric.choose import choose_rank_update, choose_symmetric, choose_triangular
from pblas.symmetric.completion_run import Completion, RunCompleted
from pblas.symmetric.structured_plan import (
    RankUpdate,
    Structure,
    SymmetricProduct,
    TriangleOfProduct,
    TriangularProduct,
)
from pblas.symmetric.structured_run import (
    RunRankUpdate,
    RunTriangleOfProduct,
    RunTriangleScaling,
    RunTriangularProduct,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike

    from pblas.backends.host_ranks import HostRanks


def check_update(opname: str, routine: str, trans: Trans, dtype: Dtype, alpha: complex, beta: complex) -> None:
    """Raise ArgumentError for a `trans` or a scalar with which the result is not symmetric, or not Hermitian."""
    if dtype.kind != "c":
        return
    if routine.startswith("sy"):
        if trans == "C":
            raise errors.ArgumentError(
                f"{opname}: trans must be 'N' or 'T' for complex matrices, got 'C'; {routine.replace('sy', 'he')} "
                f"conjugates"
            )
        return
    if trans == "T":
        raise errors.ArgumentError(
            f"{opname}: trans must be 'N' or 'C' for complex matrices, got 'T'; {routine.replace('he', 'sy')} "
            f"transposes"
        )
    for name, value in (("alpha", alpha), ("beta", beta)) if routine == "herk" else (("beta", beta),):
        if value.imag != 0:
            raise errors.ArgumentError(f"{opname}: {name} must be real, so that the result is Hermitian, got {value!r}")


def check_update_shapes(
    opname: str,
    trans: Trans,
    a: MatrixDescriptor,
    b: MatrixDescriptor | None,
    others: Mapping[str, MatrixDescriptor | None],
) -> None:
    """Raise DescriptorError unless A, B and the others, C and out, fit together in a rank-k update."""
    n, k = a.shape if trans == "N" else a.shape[::-1]
    if b is not None and b.shape != a.shape:
        raise errors.DescriptorError(f"{opname}: A is {a.m} x {a.n}, B is {b.m} x {b.n}; both must have one shape")
    for name, x in others.items():
        if x is not None and x.shape != (n, n):
            raise errors.DescriptorError(
                f"{opname}: {name} is {x.m} x {x.n}, op(A) is {n} x {k} (trans={trans!r}); {name} must be {n} x {n}"
            )


def check_side_shapes(
    opname: str,
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
            f"{opname}: A is {a.m} x {a.n}, B is {b.m} x {b.n}; with side={side!r} the {kind} A must be "
            f"{order} x {order}, as many as B has {line}"
        )
    for name, x in others.items():
        if x is not None and x.shape != b.shape:
            raise errors.DescriptorError(
                f"{opname}: {name} is {x.m} x {x.n}, B is {b.m} x {b.n}; give {name} this shape"
            )


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


@dataclass(frozen=True, slots=True)
class StructuredArguments:
    """The arguments of a call, not checked; see `symm`, `syrk` and `trmm`. A routine leaves out those that it lacks."""

    routine: str
    a: Any
    b: Any = None
    c: Any = None
    side: object = "L"
    uplo: object = "L"
    trans: object = "N"
    diag: object = "N"
    alpha: Any = 1.0
    beta: Any = None
    out: Any = None
    overlap: object = True
    dtype: DTypeLike | None = None

    @property
    def matrices(self) -> Mapping[str, Any]:
        """The arguments that may be matrices, by name (global)."""
        return {"A": self.a, "B": self.b, "C": self.c, "out": self.out}


@dataclass(frozen=True, eq=False)
class StructuredProduct(Operation[DistMatrix]):
    """D = alpha op(A) B + beta C and its relatives; options that a routine lacks keep their defaults."""

    keeps_workspace: ClassVar[bool] = True
    derived: ClassVar[frozenset[str]] = frozenset(("multiplies",))

    routine: str
    side: Side  # the side of A in the product, as in `symm`, like `uplo`, `trans` and `diag` in `trmm` (global)
    uplo: Uplo
    trans: Trans
    diag: Diag
    a: MatrixDescriptor  # descriptor of A; `b` and `c` are those of B and C, None without them (global)
    b: MatrixDescriptor | None
    c: MatrixDescriptor | None
    out: MatrixDescriptor | None  # descriptor of D as the call gives it, or None (global)
    dtype: Dtype
    conjugated: tuple[bool, bool]  # whether A, and B, are conjugated views (global)
    overlap: bool  # let data move while ranks multiply (global)
    aliased: bool  # D is written over B (global)
    multiplies: bool  # whether alpha is not 0 (global)

    @cached_property
    def d(self) -> MatrixDescriptor:
        """Descriptor of D: that of out, of C or, without them, of B; for syrk and its relatives as A on its grid."""
        return self.out or self.c or self.default_result

    @classmethod
    def bind(cls, opname: str, runtime: Runtime | None, given: StructuredArguments) -> Bound[DistMatrix]:
        routine, a, b, c, out = given.routine, given.a, given.b, given.c, given.out
        side, uplo = (
            checks.checked_letter(opname, "side", given.side, "LR"),
            checks.checked_letter(opname, "uplo", given.uplo, "LU"),
        )
        diag, trans = (
            checks.checked_letter(opname, "diag", given.diag, "NU"),
            checks.checked_trans(opname, "trans", given.trans),
        )
        overlap = checked_flag(opname, "overlap", given.overlap)
        reads = {"A": a} if routine in ("syrk", "herk") else {"A": a, "B": b}
        operands = reads if c is None else {**reads, "C": c}
        for name, x in operands.items():
            checks.check_operand(opname, name, x, placed=runtime is not None)
        checks.check_out(opname, out)
        dtype = checks.common_dtype(opname, {**operands, "out": out}, given.dtype)
        alpha = checked_factor(opname, "alpha", given.alpha, dtype)
        beta = checked_factor(opname, "beta", float(c is not None) if given.beta is None else given.beta, dtype)
        if issubclass(cls, RankUpdating):
            check_update(opname, routine, trans, dtype, alpha, beta)
        if beta != 0 and c is None:
            raise errors.ArgumentError(f"{opname}: beta is {beta!r} but there is no C to scale; pass c=, or beta=0")
        checks.check_not_conjugated(opname, "C", c)
        scalars = {"c is given": c is not None, "alpha": alpha, "beta": beta}
        if runtime is None:
            descs, conjugated, matrices = (a, b, c, out), (False, False), {}
        else:
            descs = a.desc, _layout(b), _layout(c), _layout(out)
            conjugated, matrices = (a.conjugated, b is not None and b.conjugated), reads
        desc_c, desc_d = descs[2:]
        if beta != 0 and desc_d is not None and not desc_c.same_distribution(desc_d):
            raise errors.DescriptorError(
                f"{opname}: C and out are distributed differently: {shared_descriptor(desc_c)}, "
                f"{shared_descriptor(desc_d)}; give them one layout"
            )
        placed, (new, nelements) = isinstance(out, DistMatrix), checks.checked_place(opname, runtime, out)
        layouts = [None if desc is None else desc.without_lld for desc in descs]
        aliased = routine == "trmm" and placed and out is b
        form = routine, side, uplo, trans, diag, *layouts, dtype, conjugated, overlap, aliased, alpha != 0
        target, old = out if placed else None, c if matrices else None
        return Bound(cls, form, scalars, matrices, target, old=old, new=new, nelements=nelements)

    @classmethod
    def made(cls, opname: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        operation = cls(*form)
        operation.check_shapes(opname, {"C": operation.c, "out": operation.out})
        checks.check_ranks(opname, operation.d, nprocs)
        return operation

    def check_shapes(self, opname: str, others: Mapping[str, MatrixDescriptor | None]) -> None:
        """Raise DescriptorError unless A, B and the others, C and out, fit together."""
        assert self.b is not None, "only syrk and herk have no B"
        kind = "triangular" if self.routine == "trmm" else "symmetric"
        check_side_shapes(opname, kind, self.side, self.a, self.b, others)

    @property
    def default_result(self) -> MatrixDescriptor:
        """Descriptor of a new D, without C."""
        assert self.b is not None, "only syrk and herk have no B"
        return self.b

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.d, self.dtype

    @property
    def transposes(self) -> tuple[Trans, Trans]:
        """How the left and the right operand of the product are transposed."""
        return (self.trans, "N") if self.side == "L" else ("N", self.trans)

    @property
    def descs(self) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
        """Descriptors of the left and the right operand of the product, transposed as they are multiplied, and of D."""
        a, b = self.a, self.a if self.b is None else self.b
        left, right = (a, b) if self.side == "L" else (b, a)
        transa, transb = self.transposes
        return left if transa == "N" else left.T, right if transb == "N" else right.T, self.d

    @cached_property
    def conj(self) -> tuple[bool, bool]:
        """Whether the product conjugates the elements in memory of its left and its right operand."""
        conj_a, conj_b = self.conjugated[0], self.conjugated[self.b is not None]
        views = (conj_a, conj_b) if self.side == "L" else (conj_b, conj_a)
        left, right = (view != (trans == "C") for view, trans in zip(views, self.transposes, strict=True))
        return (left, right) if self.dtype.kind == "c" else (False, False)

    @cached_property
    def structure(self) -> Structure:
        """The structure of op(A), for products with a triangular or symmetric A."""
        if self.routine == "trmm":
            structure = Structure("triangular", self.uplo, self.diag == "U")
            return structure if self.trans == "N" else structure.T
        return Structure("Hermitian" if self.routine == "hemm" else "symmetric", self.uplo)

    def completed(self, plan: SymmetricProduct, backend: HostRanks) -> Executor:
        """The executor of the product with a matrix that is completed first."""
        if not self.multiplies or not plan.product.k:
            return RunScaling(backend)
        orders, dtypes = self.orders(transposed=plan.transposed), ProductDtypes.of(self.dtype)
        structure, place = (plan.structure.T, plan.matrix.T) if plan.transposed else (plan.structure, plan.matrix)
        order = orders.left if plan.is_left else orders.right
        inner = executor(plan.inner, backend, dtypes, orders)
        completion, beside = Completion(backend, place, structure, self.dtype, order), None
        if self.aliased:
            beside = new_local(backend, Placement.of(self.d), self.dtype, self.d.order)
            beside = beside.T if plan.transposed else beside
        return RunCompleted(completion, inner, is_left=plan.is_left, beside=beside)

    def orders(self, *, transposed: bool) -> Orders:
        """Storage orders of the operands; of a plan for D^T those of the transposed operands."""
        left, right, d = self.descs
        return (
            Orders(left.T.order, d.T.order, right.T.order) if transposed else Orders(right.order, d.order, left.order)
        )

    def flips(self, executor: object) -> bool:
        """Whether the executor forms D^T."""
        return False

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> Operands:
        a = bound.reads["A"].stored(opname)
        b = a if self.b is None else bound.reads["B"].stored(opname)
        (left, right), (transa, transb) = (a, b) if self.side == "L" else (b, a), self.transposes
        left, right = left if transa == "N" else left.T, right if transb == "N" else right.T
        d, c, conj = result.stored(opname), bound.old, self.conj
        alpha, beta = bound.scalars["alpha"], bound.scalars["beta"]
        flips = self.flips(executor)
        if flips:
            left, right, d, conj = right.T, left.T, d.T, conj[::-1]
        old = None
        if c is not None and beta != 0:
            stored = c.stored(opname)
            # empty parts may differ in shape
            old = d if c is result or c.key == result.key or not stored.size else stored.T if flips else stored
        return Operands(left, right, d, old, conj, alpha, beta)


@dataclass(frozen=True, eq=False)
class RankUpdating(StructuredProduct):
    """One triangle of D = alpha op(A) op(A)^T + beta C, or of alpha op(A) op(B)^T + alpha op(B) op(A)^T + beta C."""

    noun: ClassVar[str] = "rank-k update"

    def check_shapes(self, opname: str, others: Mapping[str, MatrixDescriptor | None]) -> None:
        check_update_shapes(opname, self.trans, self.a, self.b, others)

    @property
    def default_result(self) -> MatrixDescriptor:
        return square(self.a if self.trans == "N" else self.a.T)

    @property
    def transposes(self) -> tuple[Trans, Trans]:
        flip: Trans = "C" if self.dtype.kind == "c" and self.routine.startswith("he") else "T"
        return ("N", flip) if self.trans == "N" else (flip, "N")

    def plan(self, nprocs: int, topology: Topology) -> RankUpdate | TriangleOfProduct:
        return choose_rank_update(
            *(self.routine, self.dtype.name, self.descs, self.uplo),
            nprocs=nprocs,
            topology=topology,
            overlap=self.overlap,
        )

    def executor(self, plan: RankUpdate | TriangleOfProduct, backend: HostRanks) -> Executor:
        place, order = Placement.of(self.d), self.d.order
        triangle = Triangle(backend, place, plan.trapezoid, order)
        hermitian = self.routine.startswith("he") and self.dtype.kind == "c"
        if not self.multiplies or not plan.product.k:
            return RunTriangleScaling(triangle, backend, hermitian=hermitian)
        orders, dtypes = self.orders(transposed=plan.transposed), ProductDtypes.of(self.dtype)
        if isinstance(plan, RankUpdate):
            return RunRankUpdate(plan, backend, dtypes, orders)
        terms = [
            executor(term, backend, dtypes, self.orders_of_term(number, transposed=term.transposed))
            for number, term in enumerate(plan.terms)
        ]
        whole = new_local(backend, place, self.dtype, order)
        return RunTriangleOfProduct(plan, backend, triangle, terms, whole, hermitian=hermitian)

    def orders_of_term(self, number: int, *, transposed: bool) -> Orders:
        """Storage orders of the first or the second product; of a plan for D^T those of the transposed operands."""
        orders = self.orders(transposed=transposed)
        return orders if number == 0 else replace(self.orders(transposed=not transposed), result=orders.result)

    def flips(self, executor: object) -> bool:
        return isinstance(executor, RunTriangleOfProduct) and executor.is_transposed

    def fresh(self, backend: HostRanks, result: DistMatrix) -> None:
        backend.fill(result.stored(self.routine))


@dataclass(frozen=True, eq=False)
class Rank2Updating(RankUpdating):
    """`RankUpdating` with two operands."""

    noun: ClassVar[str] = "rank-2k update"


@dataclass(frozen=True, eq=False)
class SymmetricMultiplication(StructuredProduct):
    """D = alpha A B + beta C, or alpha B A + beta C, with a symmetric or Hermitian A."""

    noun: ClassVar[str] = "symmetric product"

    def plan(self, nprocs: int, topology: Topology) -> SymmetricProduct:
        return choose_symmetric(
            *(self.dtype.name, self.descs, self.structure),
            right=self.side == "R",
            nprocs=nprocs,
            topology=topology,
            overlap=self.overlap,
        )

    def executor(self, plan: SymmetricProduct, backend: HostRanks) -> Executor:
        return self.completed(plan, backend)

    def flips(self, executor: object) -> bool:
        return isinstance(executor, RunCompleted) and executor.is_left == (self.side == "R")


@dataclass(frozen=True, eq=False)
class TriangularMultiplication(StructuredProduct):
    """D = alpha op(A) B, or alpha B op(A), with a triangular A."""

    noun: ClassVar[str] = "triangular product"
    may_overlap: ClassVar[bool] = True  # D may be B: `parts` checks

    @classmethod
    def agreed(cls, form: tuple[object, ...], fact: int) -> tuple[object, ...]:
        return (*form[:-2], bool(form[-2] or fact), form[-1])

    def parts(self, opname: str, runtime: Runtime, bound: Bound[DistMatrix]) -> Bound[DistMatrix]:
        a, b, out = bound.reads["A"], bound.reads["B"], bound.out
        if out is None:
            return bound
        is_b = out is b or _is_same(opname, out, b)
        checks.check_overlap(opname, {"A": a} if is_b else {"A": a, "B": b}, None, out)
        return bound._replace(fact=int(is_b and not self.aliased))

    def plan(self, nprocs: int, topology: Topology) -> TriangularProduct | SymmetricProduct:
        return choose_triangular(
            *(self.dtype.name, self.descs, self.structure),
            right=self.side == "R",
            aliased=self.aliased,
            nprocs=nprocs,
            topology=topology,
            overlap=self.overlap,
        )

    def executor(self, plan: TriangularProduct | SymmetricProduct, backend: HostRanks) -> Executor:
        if isinstance(plan, SymmetricProduct):
            return self.completed(plan, backend)
        if not self.multiplies or not plan.product.k:
            return RunScaling(backend)
        orders = self.orders(transposed=plan.transposed)
        return RunTriangularProduct(plan, backend, ProductDtypes.of(self.dtype), orders)

    def flips(self, executor: object) -> bool:
        if isinstance(executor, RunCompleted):
            return executor.is_left == (self.side == "R")
        return self.side == "R"


class PlannedStructured(Planned[DistMatrix]):
    """A planned product with a triangle: the plan, its workspace, and one call that runs it."""

    kind: ClassVar[type[StructuredProduct]]  # class of the operation (global)
    operation: StructuredProduct

    def _bound(self, a: object, b: object, c: Any, out: Any) -> Bound[DistMatrix]:
        runtime, operation, scalars = self._runtime, self.operation, self.bound.scalars
        assert runtime is not None, "it runs"
        reads = {"A": a} if operation.b is None else {"A": a, "B": b}
        descs = operation.a, operation.b or operation.a
        for (name, x), desc, conj in zip(reads.items(), descs, operation.conjugated, strict=False):
            checks.check_like_planned(name, x, runtime, operation.dtype, desc, conj=conj)
        for name, x, desc in (("C", c, operation.c or operation.d), ("out", out, operation.d)):
            if x is not None:
                checks.check_like_planned(name, x, runtime, operation.dtype, desc)
                checks.check_not_conjugated("execute", name, x)
        if c is None and scalars["beta"] != 0:
            raise errors.ArgumentError(f"execute: beta is {scalars['beta']!r} but there is no C to scale; pass c")
        if scalars["c is given"] != (c is not None):
            scalars = {**scalars, "c is given": c is not None}
        bound = self.bound._replace(scalars=scalars, reads=reads, old=c, out=out)
        checks.check_matrices("execute", runtime, bound)
        bound = operation.parts("execute", runtime, bound)
        if bound.fact:
            raise errors.ArgumentError("execute: out is B, unlike planned; plan with out=B")
        return bound


class PlannedRankUpdate(PlannedStructured):
    """A planned syrk or herk. Made by `plan_syrk` and `plan_herk`."""

    kind = RankUpdating
    plan: RankUpdate | TriangleOfProduct

    def execute(self, a: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** The triangle of D with matrices like the planned ones."""
        return self.run(lambda: self._bound(a, None, c, out))


class PlannedWithTwo(PlannedStructured):
    """A planned product of two matrices, to which a third one may be added."""

    def execute(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** D with matrices like the planned ones: of syr2k and her2k the triangle."""
        return self.run(lambda: self._bound(a, b, c, out))


class PlannedRank2Update(PlannedWithTwo):
    """A planned syr2k or her2k. Made by `plan_syr2k` and `plan_her2k`."""

    kind = Rank2Updating
    plan: RankUpdate | TriangleOfProduct


class PlannedSymmetricProduct(PlannedWithTwo):
    """A planned symm or hemm. Made by `plan_symm` and `plan_hemm`."""

    kind = SymmetricMultiplication
    plan: SymmetricProduct


class PlannedTriangularProduct(PlannedStructured):
    """A planned trmm. Made by `plan_trmm`."""

    kind = TriangularMultiplication
    plan: TriangularProduct | SymmetricProduct

    def execute(self, a: DistMatrix, b: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** D = alpha op(A) B, or alpha B op(A), with matrices like the planned ones."""
        return self.run(lambda: self._bound(a, b, None, out))


PlannedT = TypeVar("PlannedT", bound=PlannedStructured)


def planned_structured(
    kind: type[PlannedT], given: StructuredArguments, nprocs: int | None, hardware: Hardware | str | None
) -> PlannedT:
    """The planned product of a plan_ function. **Collective** with matrices."""

    def bind(opname: str, runtime: Runtime | None) -> Bound[DistMatrix]:
        if runtime is not None:
            checks.check_of_descriptors(opname, nprocs=nprocs, hardware=hardware)
        return kind.kind.bind(opname, runtime, given)

    opname = f"plan_{given.routine}"
    if not is_of_descriptors(given.matrices):
        return planned(opname, kind, bind, given.matrices)
    bound = bind(opname, None)
    descs = [desc for desc in bound.form[5:9] if desc is not None]
    topology = None if hardware is None else find_hardware(hardware).topology
    return planned_without_context(opname, bound, kind, nprocs, descs, topology)


def structured(kind: type[StructuredProduct], given: StructuredArguments) -> DistMatrix:
    """**Collective.** The product of a call."""
    return call(given.routine, kind.bind, given.matrices, given)


def new_local(backend: HostRanks, place: Placement, dtype: Dtype, order: Order) -> Array:
    """Memory for this rank's shard of a matrix, not shared with other ranks (local)."""
    shape = place.local_shape(backend.rank)
    memory = own_memory(backend, shape[0] * shape[1] * dtype.itemsize)
    return backend.arrays.array(memory, shape, dtype, order)


def _layout(x: DistMatrix | MatrixDescriptor | None) -> MatrixDescriptor | None:
    """The descriptor of a matrix, or of a new one."""
    return x.desc if isinstance(x, DistMatrix) else x


def _is_same(opname: str, out: DistMatrix, b: DistMatrix) -> bool:
    """Whether two matrices are the same elements, at least one, in the same memory of this rank."""
    memory_of, x = out.runtime.backend.memory_of, b.stored(opname)
    return out.desc == b.desc and bool(x.size) and checks.is_same_memory(memory_of(x), memory_of(out.stored(opname)))
