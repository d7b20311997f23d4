"""Products of the push transport: ranks write into their peers' workspaces, and no call starts with an agreement."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.execute import pushed
from pblas.matrix import DistMatrix
from pblas.multiplication.base import Multiplication

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pblas.execute import Pushed
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime import Runtime

_MAX_KNOWN = 64
"""Sets of matrices that a plan remembers, on GPUs with two graphs each."""


class PushedMultiplication(Multiplication):
    """What `plan_matmul` returns where data is pushed, as on GPUs.

    Planning has made an agreement; arrays are checked once, on this rank, and an error is `Runtime.refuse`d.
    """

    _executor: Pushed | None = None

    def rehearse(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, out: DistMatrix | None, *, autotune: bool
    ) -> None:
        """**Collective.** On GPUs: choose the GEMMs' algorithms and load every kernel, so that executions need not."""
        assert self._runtime is not None, "planned with matrices"
        engine = self._runtime.backend.engine(self.plan.queue)
        d = self._new_result(self._runtime)
        if out is not None:  # as D will be laid out, but not D itself: C may be in it
            place = self._runtime.place(out.desc, out.dtype)
            d = DistMatrix(out.desc, engine.matrix(place.shape, place.strides, place.dtype), self._runtime)
        engine.rehearse(self.operation(a, b, c, d, self._extra(self._runtime, None, None)), autotune=autotune)
        assert self._executor is not None, "just planned"
        stored = None if out is None else out.stored("plan_matmul")
        self._executor.bind(stored.T if stored is not None and self.plan.transposed else stored)

    def operation(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: Any = None
    ) -> Callable[[], None]:
        """What an engine runs for one execution with matrices and operands that were checked (local)."""
        executor = self._executor

        def body() -> None:
            assert executor is not None, "a closed plan was refused"
            executor.run(self._operands(a, b, c, d, extra if self._finishes_itself else None))

        return body

    def close(self) -> None:
        """Drop the workspace, and what is known of matrices (local)."""
        super().close()
        self._known.clear()

    def _prepare(self, runtime: Runtime) -> None:
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        spec = self._spec
        orders = spec.orders(self.plan, self.out)
        self._executor = pushed(self.plan, runtime.backend, spec.dtype, spec.wire, orders, tf32=spec.tf32)

    def _execute(
        self,
        runtime: Runtime,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        if runtime.closed:
            runtime.check_open("execute")
        engine = runtime.backend.engine(self.plan.queue)
        runtime.backend.exchange.nexecutions += 1
        try:
            d = out if out is not None else self._new_result(runtime)
            key: Any = (a.key, b.key, None if c is None else c.key, d.key)
            hash(key)
        except (AttributeError, TypeError):  # no matrix at all, which the checks will say
            key = None
        extra = None
        try:
            if key is not None:
                extra = self._extra(runtime, operands, out)
        except errors.PblasError as caught:
            runtime.refuse(caught)
        if self._epilogue is not None and self._finishes_itself and extra is not None:
            key += self._epilogue.key(runtime, extra)
        known = self._known.get(key)
        if known is None:
            runtime.check_open("execute")
            known = self._check(runtime, a, b, c, out, key)
        else:
            self._known.move_to_end(key)
        if runtime.debug:
            runtime.agree(f"execute of planned product {self._number}", {"C is given": c is not None})
        engine.run(known.program, self.operation(a, b, c, d, extra), stream)
        if not self._finishes_itself:
            self._finish(runtime, d, extra, stream)
        return d

    def _new_result(self, runtime: Runtime) -> DistMatrix:
        place = self._place
        return DistMatrix(
            self.out, runtime.backend.engine(self.plan.queue).matrix(place.shape, place.strides, place.dtype), runtime
        )

    def _check(self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, key: Any) -> _Known:
        """Check the matrices of an execution, and remember that they are right."""
        error: errors.PblasError | None = None
        if self._executor is None:
            error = errors.ContextError("execute: the planned product is closed")
        else:
            error = self._spec.execute_error(runtime, a, b, c, out, self.out)
        if error is not None:
            runtime.refuse(error)
        # The descriptors are kept because the key holds their ids.
        descs = tuple(x.desc for x in (a, b, c, out) if x is not None)
        known = self._known[key] = _Known(runtime.backend.engine(self.plan.queue).program(), descs)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return known


class _Known:
    """Matrices that were checked: the engine's program for them, and what keeps their key unique."""

    __slots__ = ("_descs", "program")

    def __init__(self, program: Any, descs: tuple[MatrixDescriptor, ...]) -> None:
        self.program, self._descs = program, descs
