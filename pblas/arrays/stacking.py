"""tril, triu, vstack and hstack: new matrices made of parts of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pblas import errors
from pblas.arrays.elementwise_plan import ElementwiseOperand, ElementwisePlan
from pblas.arrays.reductions import described
from pblas.backends.dtypes import accumulator_dtype
from pblas.core.call import call, checked_call, step
from pblas.core.checks import check_matrix, common_dtype
from pblas.core.operation import Bound, Operation
from pblas.epilogues import parse
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.layouts.placement import Placement
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import Redistribution
from pblas.redistribution.packing import Scaling
from pblas.redistribution.redistribution_run import RedistributionOperands, RunRedistribution
from pblas.runtime.runtime import Runtime, fail_without_context

if TYPE_CHECKING:
    from pblas.backends.dtypes import Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.redistribution.redistribution_plan import RedistributionPlan
    from pblas.simulation.hardware import Topology

Bounds = tuple[int, int, int, int]
"""First and last row, and first and last column, half-open."""


def tril(a: DistMatrix, k: int = 0) -> DistMatrix:
    """**Collective.** The lower triangle of a matrix, and zeros above it.

    Args:
        a: m x n matrix (global).
        k: the last diagonal that is kept: 0 for the main one, above it positive, as in numpy.tril (global).

    Returns:
        A new m x n matrix in the layout of A.

    Raises:
        ArgumentError: not a matrix, or k is not an integer.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.tril(ctx.ones((2, 3))).to_global().tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    return _triangle("tril", a, "L", k)


def triu(a: DistMatrix, k: int = 0) -> DistMatrix:
    """**Collective.** The upper triangle of a matrix, and zeros below it.

    Args:
        a: m x n matrix (global).
        k: the first diagonal that is kept: 0 for the main one, above it positive, as in numpy.triu (global).

    Returns:
        A new m x n matrix in the layout of A.

    Raises:
        ArgumentError: not a matrix, or k is not an integer.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.triu(ctx.ones((2, 3)), k=1).to_global(None).tolist()
    [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    """
    return _triangle("triu", a, "U", k)


def vstack(matrices: Sequence[DistMatrix]) -> DistMatrix:
    """**Collective.** Matrices one below the other.

    Args:
        matrices: m_i x n matrices of one context and dtype, at least one (global).

    Returns:
        A new matrix on the process grid of the first one. It has the blocks of the first one; if there each process row
        has at most one block, the rows are divided evenly.

    Raises:
        ArgumentError: not a sequence of matrices of one context.
        DescriptorError: different numbers of columns.
        DTypeError: different dtypes.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.vstack([ctx.ones((2, 3)), ctx.zeros((1, 3))]).shape
    (3, 3)
    """
    return _stacked("vstack", matrices, 0)


def hstack(matrices: Sequence[DistMatrix]) -> DistMatrix:
    """**Collective.** Matrices side by side; as `vstack`, with rows and columns exchanged.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.hstack([ctx.ones((2, 1)), ctx.zeros((2, 2))]).to_global(None).tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    return _stacked("hstack", matrices, 1)


class RunTriangle(RunRedistribution):
    """Copies a triangle of a matrix to zeros, in its layout: nothing moves."""

    def __init__(self, backend: HostRanks, plan: RedistributionPlan, dtype: Dtype) -> None:
        super().__init__(backend, plan.source, plan.target, dtype, plan.a.order, plan.trapezoid, alone=True)
        self._arrays = backend.arrays

    def run(self, x: RedistributionOperands) -> None:
        """This rank's part of the result (local)."""
        self._arrays.fill_whole(x.target, 0)
        super().run(x)


class Triangle(Redistribution):
    """A triangle of a matrix, in its layout: work of the caller's stream."""

    @property
    def is_local(self) -> bool:
        return True

    def in_order(self, executor: RunTriangle) -> bool:
        return True

    def executor(self, plan: RedistributionPlan, backend: HostRanks) -> RunTriangle:
        return RunTriangle(backend, plan, self.dtype)

    def fresh(self, backend: HostRanks, result: DistMatrix) -> None:
        """Nothing: the executor writes all elements (local)."""


@dataclass(frozen=True, slots=True)
class StackPlan(ElementwisePlan):
    """Matrices that are redistributed to their places of a larger one; `expression` is the name of the call."""

    name: ClassVar[str] = "StackPlan"
    why: ClassVar[str] = "each rank copies the elements of its part of the result"

    @property
    def moved(self) -> tuple[ElementwiseOperand, ...]:
        """All matrices; those that are in place are copied."""
        return self.operands

    @property
    def workspace_nbytes(self) -> int:
        return sum(self.redistribution(operand).workspace_nbytes for operand in self.operands)


class RunStack:
    """**Collective.** Redistributes matrices to their places, all at the same time."""

    peers_read = True

    def __init__(self, backend: HostRanks, plan: StackPlan, dtype: Dtype) -> None:
        self._movements = [
            RunRedistribution(backend, Placement.of(x.desc), Placement.of(x.target), dtype, x.desc.order)
            for x in plan.operands
        ]

    @property
    def workspace_nbytes(self) -> int:
        return sum(movement.workspace_nbytes for movement in self._movements)

    def publish(self, x: list[RedistributionOperands]) -> bool:
        pairs = zip(self._movements, x, strict=True)
        alone = [movement.publish(part) for movement, part in pairs]
        return any(alone)

    def prepare(self, *, scratch: bool) -> bool:
        staged = [movement.prepare(scratch=scratch) for movement in self._movements]
        return any(staged)

    def run(self, x: list[RedistributionOperands]) -> None:
        """**Collective.** Write this rank's part of the result."""
        for movement, part in zip(self._movements, x, strict=True):
            movement.run(part)

    def free_buffers(self) -> None:
        for movement in self._movements:
            movement.free_buffers()


@dataclass(frozen=True, eq=False)
class Stack(Operation[DistMatrix]):
    """Matrices at their places of a larger one."""

    noun: ClassVar[str] = "stack"

    opname: str
    places: tuple[Bounds, ...]
    parts_of: tuple[MatrixDescriptor, ...]  # those of the matrices (global)
    conjugated: tuple[bool, ...]  # whether each is a conjugated view (global)
    whole: MatrixDescriptor
    dtype: Dtype

    @classmethod
    def bind(
        cls, opname: str, runtime: Runtime, parts: Mapping[str, Any], places: tuple[Bounds, ...], out: DistMatrix
    ) -> Bound[DistMatrix]:
        descs, conjugated = zip(*((x.desc.without_lld, x.conjugated) for x in parts.values()), strict=True)
        return Bound(cls, (opname, places, descs, conjugated, out.desc.without_lld, out.dtype), {}, parts, out)

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.whole, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> StackPlan:
        name = self.dtype.name
        operands = (
            ElementwiseOperand(f"matrix {i}", desc, name, self.whole.submatrix(*place))
            for i, (desc, place) in enumerate(zip(self.parts_of, self.places, strict=True))
        )
        transport = topology.transport(nprocs)
        return StackPlan(self.opname, tuple(operands), (), self.whole, name, nprocs, transport=transport)

    def executor(self, plan: StackPlan, backend: HostRanks) -> RunStack:
        return RunStack(backend, plan, self.dtype)

    def arrays(
        self, opname: str, runtime: Runtime, executor: RunStack, bound: Bound[DistMatrix], result: DistMatrix
    ) -> list[RedistributionOperands]:
        views = (result[i0:i1, j0:j1].stored(opname) for i0, i1, j0, j1 in self.places)
        return [
            RedistributionOperands(x.stored(opname), view, Scaling(conj=x.conjugated))
            for x, view in zip(bound.reads.values(), views, strict=True)
        ]


def _triangle(opname: str, a: object, uplo: Literal["L", "U"], k: object) -> DistMatrix:
    """**Collective.** A triangle of a matrix, in its layout, and zeros elsewhere."""
    if not isinstance(a, DistMatrix):
        fail_without_context(opname, errors.ArgumentError(f"{opname}: expected a DistMatrix, got {type(a).__name__}"))
    return call(opname, _bind_triangle, {"A": a}, a, uplo, k)


def _bind_triangle(
    opname: str, runtime: Runtime, a: DistMatrix, uplo: Literal["L", "U"], k: object
) -> Bound[DistMatrix]:
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise errors.ArgumentError(f"{opname}: k must be an integer, got {k!r}")
    return Triangle.bind(opname, runtime, a, a.desc.without_lld, uplo=uplo, diagonal=int(k))


def _stacked(opname: str, matrices: object, axis: int) -> DistMatrix:
    """**Collective.** The matrices stacked along an axis."""
    parts = list(matrices) if isinstance(matrices, list | tuple) else []
    if not any(isinstance(x, DistMatrix) for x in parts):
        got = "one without matrices" if isinstance(matrices, list | tuple) else type(matrices).__name__
        text = f"{opname}: expected a list or a tuple of matrices, got {got}"
        fail_without_context(opname, errors.ArgumentError(text))
    named = {f"matrix {i}": x for i, x in enumerate(parts)}
    with checked_call(opname, _checked_bounds, named, named, axis) as (runtime, bounds):
        runtime.agree(opname, lambda: described(**named))
        desc, dtype = parts[0].desc, parts[0].dtype
        desc = resized(desc, (bounds[-1], desc.n) if axis == 0 else (desc.m, bounds[-1]))
        out = DistMatrix(desc, runtime.empty(runtime.local_memory(desc, dtype)), runtime)
        m, n = desc.shape
        places = [(i, j, 0, n) if axis == 0 else (0, m, i, j) for i, j in pairwise(bounds)]
        are_local = (x.desc.same_distribution(desc.submatrix(*at)) for x, at in zip(parts, places, strict=True))
        if runtime.backend.dry is not None or not all(are_local):
            return step(opname, runtime, partial(Stack.bind, opname, runtime, named, tuple(places), out))
        arrays, whole = runtime.backend.arrays, out.stored(opname)
        for x, (i0, _, j0, _) in zip(parts, places, strict=True):
            tree, z = parse("conj(x)" if x.conjugated else "x", parts=True), x.stored(opname)
            i, j = desc.local_offset(i0, j0, runtime.rank)
            arrays.evaluate(tree, {"x": z}, accumulator_dtype(dtype), whole[i : i + len(z), j : j + z.shape[1]])
        arrays.hand_over()
        return out


def _checked_bounds(opname: str, runtime: Runtime, parts: Mapping[str, Any], axis: int) -> list[int]:
    """Bounds of the matrices along the axis of the stack, after checks that they fit each other; begins (local)."""
    for name, x in parts.items():
        check_matrix(opname, name, x, runtime)
    common_dtype(opname, parts, None, stored=True)
    first, *others = parts.values()
    for x in others:
        if x.shape[1 - axis] != first.shape[1 - axis]:
            sizes = " and ".join(f"{y.shape[0]} x {y.shape[1]}" for y in (first, x))
            raise errors.DescriptorError(f"{opname}: matrices of {sizes} do not fit each other")
    runtime.backend.arrays.begin(in_order=True)
    return list(accumulate((x.shape[axis] for x in parts.values()), initial=0))
