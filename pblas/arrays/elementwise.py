"""elementwise and plan_elementwise: an expression of matrices of any layouts, arrays and numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pblas import errors
from pblas.arrays.elementwise_arguments import Analysis, Kind, analysed, checked_operands, local_values
from pblas.arrays.elementwise_plan import ElementwisePlan
from pblas.arrays.elementwise_run import ElementwiseOperands, RunElementwise
from pblas.core.call import call, is_of_descriptors, planned, planned_without_context
from pblas.core.checks import check_matrices, check_of_descriptors, check_out, shares_memory
from pblas.core.operation import Bound, Operation
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, checked_dtype, shared_descriptor, spelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class Elementwise(Operation[DistMatrix]):
    """An expression of matrices, arrays and numbers, evaluated element by element."""

    noun: ClassVar[str] = "elementwise operation"
    may_overlap: ClassVar[bool] = True

    expression: str  # with the names of the operands (global)
    kinds: tuple[Kind, ...]  # of the operands (global)
    # descriptor and dtype of the result's matrix; None for a new one (global)
    out: tuple[MatrixDescriptor, Dtype] | None
    converted: Dtype | None  # dtype to which a new result is converted, or None (global)
    overlaps: bool  # whether the result overwrites memory of an operand that is redistributed, on any rank (global)
    order: Order | None  # storage order of new results of the context; None for that of the operands (global)
    analysis: Analysis  # all that follows from these (global)

    @classmethod
    def bind(
        cls,
        opname: str,
        runtime: Runtime | None,
        expression: object,
        operands: Mapping[str, object],
        out: Any,
        dtype: Any,
    ) -> Bound[DistMatrix]:
        """The arguments of `elementwise`, checked on this rank; `dtype` is that of descriptors, or of a new result."""
        asked = None if dtype is None else checked_dtype(opname, dtype, is_argument=True, stored=True)
        values, numbers, forms, local = checked_operands(opname, expression, operands, asked, runtime)
        target = None
        if out is not None:
            check_out(opname, out, layouts=False)
            target = out.desc.without_lld, out.dtype
        converted, order = (None, None) if runtime is None else (asked, runtime.order)
        arrays = None if local is None or out is not None else (local, ())
        return Bound(cls, (expression, forms, target, converted, False, order), numbers, values, out, local=arrays)

    @classmethod
    def made(cls, opname: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        expression, forms, out, converted, overlaps, order = form
        kinds = tuple(map(Kind.of, forms))
        analysis = analysed(opname, expression, kinds, out, converted, order)
        return cls(expression, kinds, out, converted, overlaps, order, analysis)

    @classmethod
    def agreed(cls, form: tuple[object, ...], fact: int) -> tuple[object, ...]:
        return (*form[:4], bool(fact), form[5])

    @property
    def text(self) -> str:
        out = None if self.out is None else shared_descriptor(self.out[0])
        # A number has a line of its own, with its value: this one says of which kind it is.
        numbers = {kind.name for kind in self.kinds if kind.shape is None}
        described = {
            f"kind of {name}" if name in numbers else name: text for name, text in self.analysis.descriptions.items()
        }
        return spelled({"expression": self.expression, **described, "out": out})

    @property
    def is_local(self) -> bool:
        return not self.analysis.moved

    def in_order(self, executor: Any) -> bool:
        return self.is_local

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.analysis.plan.out, self.analysis.dtype

    def plan(self, nprocs: int, topology: Topology) -> ElementwisePlan:
        transport = topology.transport(nprocs)
        return replace(self.analysis.plan, nprocs=nprocs, transport=transport, overlaps=self.overlaps)

    def executor(self, plan: ElementwisePlan, backend: HostRanks) -> RunElementwise:
        return RunElementwise(backend, plan, self.analysis.compute)

    def parts(self, opname: str, runtime: Runtime, bound: Bound[DistMatrix]) -> Bound[DistMatrix]:
        if bound.local is not None and not self.analysis.moved:
            return bound
        values = local_values(opname, runtime, bound.reads, self.analysis, bound.out)
        if not self.analysis.moved:
            return Bound(*bound[:5], local=(values, ()))  # a `_replace` takes longer
        matrices = [bound.reads[name] for name in self.analysis.moved]
        sources = [(x.stored(opname), x.conjugated) for x in matrices]
        fact = 0
        if bound.out is not None:
            memory_of = runtime.backend.memory_of
            out = memory_of(bound.out.stored(opname))
            fact = int(any(shares_memory(memory_of(x), out) for x, _ in sources))
        return bound._replace(local=(values, sources), fact=fact)

    def arrays(
        self, opname: str, runtime: Runtime, executor: RunElementwise, bound: Bound[DistMatrix], result: DistMatrix
    ) -> ElementwiseOperands:
        values, sources = bound.local
        if sources:
            executor.reserve(self.analysis.tree, values, None if bound.out is None else bound.out.stored(opname))
        return ElementwiseOperands(self.analysis.tree, values, sources, result.stored(opname))


class PlannedElementwise(Planned[DistMatrix]):
    """A planned elementwise operation: the plan, its buffers, and one call. Made by `plan_elementwise`.

    Usable as a `with` block; `close` drops the buffers, as does dropping the object.
    """

    operation: Elementwise
    plan: ElementwisePlan

    def execute(self, *, out: DistMatrix | None = None, **operands: Any) -> DistMatrix:
        """**Collective.** The expression of operands like the planned ones.

        Args:
            out: the result's matrix, with the planned layout and dtype; None for a new matrix (global).
            operands: by name: matrices with the planned layouts and dtypes, arrays of the planned shapes and dtypes,
                and any numbers of the planned kinds (global).

        Returns:
            The result. The caller may overwrite the operands when the call has returned.

        Raises:
            ArgumentError, DescriptorError, DTypeError: operands that are not like the planned ones, on any rank.
            ContextError: the context or the plan is closed.
        """
        return self.run(lambda: self._bound(operands, out))

    def _bound(self, operands: Mapping[str, object], out: object) -> Bound[DistMatrix]:
        runtime, operation = self._runtime, self.operation
        assert runtime is not None, "it runs"
        named = {kind.name: operands[kind.name] for kind in operation.kinds if kind.name in operands}
        dtype = operation.analysis.dtype if out is None else None
        bound = Elementwise.bind("execute", runtime, operation.expression, named | dict(operands), out, dtype)
        now = (
            operation
            if bound.form == self.bound.form
            else Elementwise.made("execute", bound.form, runtime.nprocs, runtime.topology)
        )
        for name, description in now.analysis.descriptions.items():
            was = operation.analysis.descriptions[name]
            if description != was:
                raise errors.DescriptorError(f"execute: {name} is {description}, planned was {was}; plan anew")
        check_matrices("execute", runtime, bound)
        bound = operation.parts("execute", runtime, bound)
        if bound.fact and not operation.overlaps:
            raise errors.ArgumentError(
                "execute: out overlaps an operand that is redistributed, unlike planned; plan anew with this out="
            )
        return bound


def plan_elementwise(
    expression: str,
    /,
    *,
    out: DistMatrix | None = None,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    **operands: object,
) -> PlannedElementwise:
    """Plan an elementwise operation. **Collective** with matrices; with descriptors it needs no MPI.

    Planning checks the expression, chooses the transfers and allocates buffers once, for any number of executions.

    Args:
        expression: see `elementwise` (global).
        out: the result's matrix; None for new matrices (global).
        dtype: of all matrices, needed with descriptors (global).
        nprocs: ranks, when planning from descriptors; None for the largest grid (global).
        operands: as for `elementwise`; or descriptors, and numbers (global).

    Returns:
        The planned operation: `print(p.explain())`, `p.execute(x=A, y=B)`.

    Raises:
        as `elementwise`.

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> print(plan_elementwise("x * s + y", x=rows, y=columns, s=2.0, dtype="float64").explain())
    ElementwisePlan: x * s + y, 8 x 8, float64, on 4 ranks
      x          8 x 8 in blocks of 2 x 8 on a 4 x 1 grid, float64
      y          8 x 8 in blocks of 8 x 2 on a 1 x 4 grid, float64; redistributed to
                 8 x 8 in blocks of 2 x 8 on a 4 x 1 grid
      s          a number, real
      result     8 x 8 in blocks of 2 x 8 on a 4 x 1 grid, float64
      why        operands with another layout than the result are redistributed to it
      moves      y: read in place in the node's shared memory
                 y: 96 bytes per rank at most
      received   96 bytes per rank at most, 1.00 x the lower bound of any plan, 96
      workspace  256 bytes per rank at most (shared transport)
      memory     640 bytes per rank at most, of matrices and workspace
    """
    opname, matrices = "plan_elementwise", {**operands, "out": out}
    if is_of_descriptors(matrices):
        descs = [z for z in operands.values() if isinstance(z, MatrixDescriptor)]
        bound = Elementwise.bind(opname, None, expression, operands, out, dtype)
        return planned_without_context(opname, bound, PlannedElementwise, nprocs, descs)
    return planned(opname, PlannedElementwise, _bind_matrices, matrices, expression, operands, out, dtype, nprocs)


def elementwise(expression: str, /, *, out: DistMatrix | None = None, **operands: object) -> DistMatrix:
    """**Collective.** An expression of matrices of any layouts, arrays and numbers, element by element.

    Where all matrices have one layout nothing moves, and each rank makes one pass over its elements. Otherwise the
    others are redistributed first to the layout of the result: that of `out`, or of the first matrix that is neither
    replicated nor broadcast; `plan_elementwise(...).explain()` says which, and how many bytes move.

    Args:
        expression: in the language of `Epilogue`, in which any operand may have any name; in addition there are
            conj(x), real(x) and imag(x), and abs(x) of complex x (global).
        out: a matrix of the result's shape, of any layout; it may be one of the operands, or overlap them: the result
            is as if they were copied first. Elements outside a submatrix are not touched. None for a new matrix
            (global).
        operands: by name, at least one of them a matrix: matrices; numbers; arrays of one or two dimensions that are
            equal on all ranks. Shapes broadcast as in NumPy (global).

    Returns:
        `out` itself, or a new matrix. Its dtype is that of NumPy's promotion rules: Python's numbers do not widen a
        matrix, NumPy's do. It is computed in at least 32 bits, and rounded once.

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.eye(2), MatrixDescriptor.row_wise(2, 2, ctx.nprocs), root=None)
    ...     pblas.elementwise("x * s + y", x=A, s=2.0, y=np.array([1.0, 3.0])).to_global(root=None).tolist()
    [[3.0, 3.0], [1.0, 5.0]]
    """
    return call("elementwise", Elementwise.bind, {**operands, "out": out}, expression, operands, out, None)


def where(condition: object, x: object, y: object) -> DistMatrix:
    """**Collective.** Elements of x where a condition holds, and of y elsewhere, as numpy.where.

    Args:
        condition: a comparison as `A > 0`: a matrix of ones and zeros; any element other than 0 is true. It may be an
            array of bools or numbers that is equal on all ranks (global).
        x: a matrix of any layout, an array that is equal on all ranks, or a number (global).
        y: as x; one of the three is a matrix (global).

    Returns:
        A new matrix; layout and dtype are those of `elementwise` for the three operands.

    Raises:
        as `elementwise`.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_function(lambda i, j: i - j, (2, 3))
    ...     pblas.where(A < 0, 7, A).to_global(root=None).tolist()
    [[0.0, 7.0, 7.0], [1.0, 0.0, 7.0]]
    """
    return combined("where(condition != 0, x, y)", {"condition": condition, "x": x, "y": y}, opname="where")


def combined(
    expression: str,
    operands: Mapping[str, object],
    out: object = None,
    dtype: DTypeLike | None = None,
    opname: str = "elementwise",
) -> DistMatrix:
    """**Collective.** `elementwise`, with a dtype for the new result; None for that of the promotion rules (global)."""
    return call(opname, Elementwise.bind, {**operands, "out": out}, expression, operands, out, dtype)


def _bind_matrices(
    opname: str,
    runtime: Runtime,
    expression: object,
    operands: Mapping[str, object],
    out: object,
    dtype: object,
    nprocs: object,
) -> Bound[DistMatrix]:
    check_of_descriptors(opname, dtype=dtype, nprocs=nprocs)
    return Elementwise.bind(opname, runtime, expression, operands, out, None)
