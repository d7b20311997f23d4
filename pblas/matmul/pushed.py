"""Products of the push transport: ranks write into their peers' workspaces, and no execution needs an agreement."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends.local_step import local_error
from pblas.backends.push_engine import is_array
from pblas.matmul.product import Execution, Extras, PlannedMatmul, numbers
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.runtime.runtime import Runtime

_MAX_KNOWN = 256  # sets of matrices that a plan remembers, as of like layers of a model; each has two graphs on GPUs
_GRAPHS_NBYTES = 2 << 20
"""Bytes that a kept plan counts, for its graphs: its workspace is that of the context. So 64 such plans are kept."""
_ALIGNMENT = 16  # bytes: pblas and the GPU's libraries choose kernels by addresses modulo this


class _MemoryLayout(NamedTuple):
    """Memory layout of matrices and operands, as far as the launched kernels depend on it."""

    in_place: bool  # whether C is D, and beta is not 0
    reads_c: bool  # whether C is another matrix than D, and beta is not 0
    bound: int  # the address of D if the recording is valid for that address only; otherwise 0
    # alignment, shape and strides of the arrays whose addresses may change
    others: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    numbers: tuple[str, ...]  # the epilogue's numbers, as text


class _Bound(NamedTuple):
    """An execution that can be run any number of times (local)."""

    key: Any  # of its matrices, operands and scales; None if they are no matrices
    execution: Execution  # with checked scales
    d: DistMatrix
    extra: Any  # the epilogue's operands, checked
    body: Callable[[], None]  # see `PushedMatmul.body`


class PushedMatmul(PlannedMatmul):
    """A planned product whose data is pushed into the memory of peers, as on GPUs of one node.

    The ranks agree when they plan, and not when they execute. Each rank checks each set of arrays once. An error on one
    rank goes to `Runtime.reject`.
    """

    _executor: Any = None  # a `Pushed`
    _recorded: tuple[_MemoryLayout, Any] | None = None
    """The memory layout of the matrices, and the engine's recording for it."""
    _published_d: tuple[object, ...] | None = None
    """Address and strides of the D into which peers store results directly; None if there is none."""

    def rehearse(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, out: DistMatrix | None, *, autotune: bool
    ) -> None:
        """**Collective.** Choose the GEMMs' algorithms and load every kernel, so that no execution does it."""
        runtime = self._runtime
        assert runtime is not None, "planned with matrices"
        with runtime.local_step("plan_matmul: make D"):
            d = self._new_d("plan_matmul", runtime)  # not `out` itself: C may be in it
        runtime.agree("plan_matmul: make D", {})
        extra = self._extra(runtime, None, None)
        body = self.body(a, b, c, d, extra, self._scales)
        runtime.backend.engine(self.plan.queue).rehearse(body, autotune=autotune)
        assert self._executor is not None, "just planned"
        stored = None if out is None else out.stored("plan_matmul")
        self._executor.bind(stored.T if stored is not None and self.plan.transposed else stored)
        in_place = out is not None and c is not None and out.key == c.key
        if out is not None and self._executor.bound:
            d, self._published_d = out, out.key[:2]
        self._recorded = self._record(runtime, Execution(a, b, d if in_place else c, d, extra, scales=self._scales))

    def trial(self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix) -> Callable[[], None]:
        """The function of `body`, with the planned operands of the epilogue, which are only read (local)."""
        assert self._runtime is not None, "planned with matrices"
        return self.body(a, b, c, d, self._extra(self._runtime, None, None), self._scales)

    def body(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: Any = None, scales: Any = None
    ) -> Callable[[], None]:
        """The function that an engine runs for one execution with checked matrices, operands and scales (local)."""
        executor, runtime = self._executor, self._runtime
        extras = Extras(self._epilogue, extra, scales)
        assert runtime is not None, "planned with matrices"

        def body() -> None:
            assert executor is not None, "a closed plan was refused"
            executor.run(self.operation.operands(runtime, a, b, c, d, self._alpha, self._beta, extras))

        return body

    def serves(self, out: DistMatrix | None) -> bool:
        """Whether the plan can write to this `out`: peers store results directly into one D only, if at all (local)."""
        return self._published_d is None or (out is not None and out.key[:2] == self._published_d)

    def close(self) -> None:
        super().close()
        self._known.clear()
        self._recorded = None

    @property
    def _is_fused(self) -> bool:
        return self.operation.is_fused(self._epilogue)

    def prepare(self, runtime: Runtime) -> None:
        """**Collective.** Make the executor, and an empty table of known matrices."""
        self._known: OrderedDict[Any, tuple[Any, list[Any]]] = OrderedDict()
        """The engine's program for each known set of matrices, and the descriptors whose ids are in the set's key."""
        self._new = self.bound.new or self.out  # descriptor of a new D (global, but for its leading dimension)
        self._new_place = runtime.local_memory(self._new, self.operation.spec.dtypes.d, self.bound.nelements or None)
        self.kept_nbytes = _GRAPHS_NBYTES
        super().prepare(runtime)

    def launch(self, execution: Execution) -> DistMatrix:
        """**Collective.** `execute`: no agreement. On GPUs it returns once the kernels are launched."""
        runtime = self._runtime
        assert runtime is not None, "planned with matrices"
        with runtime.call("execute", self._begin):
            return self._run(runtime, execution)

    def _begin(self, opname: str) -> None:
        """Raise ContextError if the context is closed; the engine finds out whether it is broken (local)."""
        if self._runtime is not None and self._runtime.closed:
            self._runtime.check_open(opname)

    def bound_launch(self, execution: Execution) -> Callable[[Any], object]:
        runtime = self._runtime
        assert runtime is not None, "planned with matrices"
        bound = self._bound_to(runtime, execution)

        def launch(stream: object) -> None:
            runtime.backend.agreement.nexecutions += 1
            self._run_bound(runtime, bound, stream)

        return launch

    def _run(self, runtime: Runtime, execution: Execution) -> DistMatrix:
        """**Collective.** `launch`, inside a collective call."""
        runtime.backend.agreement.nexecutions += 1
        return self._run_bound(runtime, self._bound_to(runtime, execution), execution.stream)

    def _bound_to(self, runtime: Runtime, execution: Execution) -> _Bound:
        """An execution with a D, checked operands and scales (local)."""
        a, b, c, out, operands, *_ = execution
        try:
            d = out if out is not None else self._new_d("execute", runtime)
            key: Any = (a.key, b.key, None if c is None else c.key, d.key)
            hash(key)
        except errors.WorkspaceError as caught:
            runtime.reject(caught)
        except (AttributeError, TypeError):  # not a matrix: the checks raise
            key = None
        extra = scales = None
        try:
            if key is not None:
                scales = self._checked_scales(runtime, execution)
                extra = self._extra(runtime, self._with_scale(operands, scales), out)
        except Exception as caught:  # noqa: BLE001 - as in a `LocalStep`, in the hot path of every execution
            runtime.reject(local_error("execute", caught))
        if self._epilogue is not None and self._is_fused and extra is not None:
            key += self._epilogue.key(runtime, extra)
        if scales is not None and key is not None:
            key += scales.key(runtime.backend.address)
        return _Bound(key, execution._replace(scales=scales), d, extra, self.body(a, b, c, d, extra, scales))

    def _run_bound(self, runtime: Runtime, bound: _Bound, stream: object) -> DistMatrix:
        """**Collective.** Run an execution; its matrices are checked in the first one (local)."""
        key, execution, d, extra, body = bound
        scales = execution.scales
        known = self._known.get(key)
        if known is None:
            known = self._check(runtime, key, execution, d, extra)
        else:
            self._known.move_to_end(key)
        if runtime.debug:
            call_args = {
                "C is given": execution.c is not None,
                "out is given": execution.out is not None,
                **numbers(extra),
            }
            call_args |= {} if scales is None else scales.arguments()
            # Peers store results directly into D if it is the planned matrix on every rank.
            call_args["out is the planned matrix"] = d.key[:2] == self._published_d
            runtime.agree(self._call, call_args)
        runtime.backend.engine(self.plan.queue).run(known[0], body, stream)
        if not self._is_fused or scales is not None:
            self.operation.complete(runtime, d, Extras(self._epilogue, extra, scales, stream))
        return d

    def _check(
        self, runtime: Runtime, key: object, execution: Execution, d: DistMatrix, extra: Any
    ) -> tuple[Any, list[Any]]:
        """Check the matrices of an execution, and enter them into the table of known sets (local)."""
        runtime.check_open("execute")
        with runtime.rejecting("execute"):
            if self._executor is None:
                raise errors.ContextError("execute: the planned product is closed")
            self.operation.spec.check_execution(runtime, *execution[:4], self.out, self._beta)
            if execution.scales is not None and execution.out is not None:
                execution.scales.check_apart("execute", runtime, execution.out.stored("execute"))
        program = self._program(runtime, execution._replace(out=d, operands=extra))
        known = self._known[key] = program, [x.desc for x in execution[:4] if x is not None]
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    def _program(self, runtime: Runtime, execution: Execution) -> Any:
        """The engine's program for executions on these matrices (local)."""
        engine, recorded = runtime.backend.engine(self.plan.queue), self._recorded
        if recorded is None:
            return engine.program()
        arrays, layout = self._memory_layout(runtime, execution)
        if layout == recorded[0] and not recorded[1].is_current:
            recorded = self._recorded = self._record(runtime, execution)
        if recorded is None or layout != recorded[0]:
            return engine.program()
        return engine.program(recorded[1], [runtime.backend.address(x) for x in arrays])

    def _record(self, runtime: Runtime, execution: Execution) -> tuple[_MemoryLayout, Any] | None:
        """The memory layout of an execution, and its recorded launches; None if they cannot be recorded (local)."""
        a, b, c, d, extra, *_, scales = execution
        assert d is not None, "made before"
        arrays, layout = self._memory_layout(runtime, execution)

        def on_other_arrays(new_arrays: list[Any]) -> Callable[[], None]:
            remaining = iter(new_arrays)

            def like(x: DistMatrix) -> DistMatrix:
                return DistMatrix(x.desc, next(remaining), runtime, conj=x.conjugated)

            left, right = like(a), like(b)
            old = like(c) if c is not None and layout.reads_c else None
            result = d if layout.bound else like(d)
            operands = extra
            if extra and self._is_fused:
                operands = {name: next(remaining) if is_array(z) else z for name, z in extra.items()}
            moved = None if scales is None else scales.on(remaining)
            return self.body(left, right, result if layout.in_place else old, result, operands, moved)

        recording = runtime.backend.engine(self.plan.queue).record(arrays, on_other_arrays)
        return None if recording is None else (layout, recording)

    def _memory_layout(self, runtime: Runtime, execution: Execution) -> tuple[list[Any], _MemoryLayout]:
        """The arrays of an execution whose addresses may change, and their memory layout (local)."""
        assert self._executor is not None, "a closed plan was refused"
        a, b, c, d, extra, *_, scales = execution
        assert d is not None, "made before"
        in_place = self._beta != 0 and c is not None and c.key == d.key
        reads_c, bound = self._beta != 0 and not in_place, d.key[0] if self._executor.bound else 0
        matrices = [a, b, *([c] if c is not None and reads_c else ()), *(() if bound else (d,))]
        operands = list(extra.values()) if extra is not None and self._is_fused else []
        operands += [] if scales is None else [scales.a, scales.b]
        arrays = [x.stored("execute") for x in matrices] + [z for z in operands if is_array(z)]
        numbers = tuple(repr(z) for z in operands if not is_array(z))  # 0.0 == -0.0
        layouts = tuple((runtime.backend.address(x) % _ALIGNMENT, x.shape, x.strides) for x in arrays)
        return arrays, _MemoryLayout(in_place, reads_c, bound, layouts, numbers)

    def _new_d(self, opname: str, runtime: Runtime) -> DistMatrix:
        """A new D; WorkspaceError if this rank has no memory for it (local)."""
        place = self._new_place
        try:
            local = runtime.backend.engine(self.plan.queue).matrix(place.shape, place.strides, place.dtype)
        except MemoryError as caught:
            raise errors.WorkspaceError(
                f"{opname}: no memory for D, {place.nbytes} bytes: {caught}; use more ranks, or smaller matrices"
            ) from None
        return DistMatrix(self._new, local, runtime)
