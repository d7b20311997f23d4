"""Executor of an elementwise operation: redistribute operands with another layout, then evaluate the expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.backends.dtypes import Array, Dtype, dtype_of_name
from pblas.epilogues import Name, Node
from pblas.layouts.placement import Placement
from pblas.redistribution.packing import Put, Scaling
from pblas.redistribution.redistribution_run import RedistributionOperands, RunRedistribution
from pblas.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pblas.arrays.elementwise_plan import ElementwisePlan
    from pblas.backends.host_ranks import HostRanks


class ElementwiseOperands(NamedTuple):
    """Local arrays of one execution."""

    tree: Node  # the expression (global)
    values: Mapping[str, Any]  # numbers, and parts of operands that are not redistributed, by name (local)
    # parts of operands that are redistributed, in the order of the plan, and whether to conjugate them (local)
    sources: Sequence[tuple[Array, bool]]
    result: Array  # this rank's part of the result (local)


class RunElementwise:
    """**Collective.** Result := an expression of operands with any layouts."""

    def __init__(self, backend: HostRanks, plan: ElementwisePlan, compute: Dtype) -> None:
        self._backend, self._plan, self._compute = backend, plan, compute
        self._moved = plan.moved
        self._dtypes = [dtype_of_name(operand.dtype) for operand in self._moved]
        self._movements = [
            RunRedistribution(backend, Placement.of(x.desc), Placement.of(x.target), dtype, x.desc.order)
            for x, dtype in zip(self._moved, self._dtypes, strict=True)
        ]
        self._parts: dict[int, Array] = {}
        self.peers_read: bool = bool(self._movements)
        """Whether peers read operands of this rank until the closing agreement (global)."""

    @property
    def workspace_nbytes(self) -> int:
        parts = sum(part.nbytes for part in self._parts.values())
        return sum(movement.workspace_nbytes for movement in self._movements) + parts

    def reserve(self, tree: Node, values: Mapping[str, object], out: Array | None) -> None:
        """Allocate memory for the redistributed operands that `run` does not put into the result (local)."""
        if out is not None and self._combining(tree, values, out) is not None:
            return
        first = self._in_result(values, out)
        for number, (operand, dtype) in enumerate(zip(self._moved, self._dtypes, strict=True)):
            if number not in self._parts and number != first:
                shape = operand.target.local_shape(self._backend.rank)
                memory = own_memory(self._backend, shape[0] * shape[1] * dtype.itemsize)
                self._parts[number] = self._backend.arrays.array(memory, shape, dtype, operand.target.order)

    def _combining(self, tree: Node, values: Mapping[str, object], out: Array) -> Put | None:
        """Evaluates the expression in the result's memory while the only moving operand arrives: A += B (local)."""
        plan = self._plan
        if plan.overlaps or len(self._moved) != 1:
            return None
        (operand,) = self._moved
        if (operand.dtype, operand.target.shape) != (plan.dtype, plan.out.shape) or not values:
            return None
        put: Put | None = self._backend.arrays.combining(tree, values, operand.name, self._compute, out)
        return put

    def _in_result(self, values: Mapping[str, Any], out: Array | None) -> int | None:
        """Number of a redistributed operand that the result's memory can hold until the evaluation overwrites it."""
        memory_of, plan = self._backend.memory_of, self._plan
        if plan.overlaps:
            return None
        arrays = [z for z in values.values() if hasattr(z, "strides") and z.ndim]
        if out is not None and any(np.may_share_memory(memory_of(z), memory_of(out)) for z in arrays):
            return None
        fitting = (i for i, x in enumerate(self._moved) if (x.dtype, x.target.shape) == (plan.dtype, plan.out.shape))
        return next(fitting, None)

    def publish(self, x: ElementwiseOperands) -> bool:
        pairs = zip(self._movements, x.sources, strict=True)
        alone = [movement.publish(RedistributionOperands(source, x.result)) for movement, (source, _) in pairs]
        return any(alone)

    def prepare(self, *, scratch: bool) -> bool:
        staged = [movement.prepare(scratch=scratch) for movement in self._movements]
        return any(staged)

    def run(self, x: ElementwiseOperands) -> None:
        """Result := the expression."""
        if not self._movements:
            if x.tree.__class__ is not Name or x.values[x.tree.name] is not x.result:
                self._backend.arrays.evaluate(x.tree, x.values, self._compute, x.result)
            return
        values = dict(x.values)
        combine = self._combining(x.tree, values, x.result)
        if combine is not None:  # R[i, j] = f(..., X[i, j]) as the elements of X arrive
            ((source, conj),) = x.sources
            put = (lambda z, out: combine(np.conjugate(z), out)) if conj else combine
            self._movements[0].run(RedistributionOperands(source, x.result, put))
            return
        first = self._in_result(values, x.result)
        moves = zip(self._moved, self._movements, x.sources, strict=True)
        for number, (operand, movement, (source, conj)) in enumerate(moves):
            # X in the layout of the result
            part = x.result if number == first else self._parts[number]
            movement.run(RedistributionOperands(source, part, Scaling(conj=conj)))
            values[operand.name] = part
        self._backend.arrays.synchronize()
        if self._plan.overlaps:  # a peer may still read memory that this rank is about to overwrite
            self._backend.agree("elementwise: operands are redistributed")
        self._evaluate(x, values)

    def _evaluate(self, x: ElementwiseOperands, values: Mapping[str, object]) -> None:
        """Result := the expression, unless that is the result itself (local)."""
        if not isinstance(x.tree, Name) or values[x.tree.name] is not x.result:
            self._backend.arrays.evaluate(x.tree, values, self._compute, x.result)

    def free_buffers(self) -> None:
        self._parts = {}
        for movement in self._movements:
            movement.free_buffers()
