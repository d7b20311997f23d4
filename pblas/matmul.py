"""pmatmul and plan_matmul: validate on all ranks, plan, execute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from pblas import errors
from pblas.arguments import ProductArguments, enough_ranks, free_layouts, overlap_error
from pblas.epilogue_arguments import ProductEpilogue
from pblas.execute import executor, pushed
from pblas.execute.epilogue import finish
from pblas.execute.operands import Operands
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.machines import hardware
from pblas.matrix import DistMatrix
from pblas.one_dimensional import AllGatherGemm, GemmReduceScatter
from pblas.plan import Machine, Plan
from pblas.trace import Tracing
from pblas.tuning import tuned

if TYPE_CHECKING:
    from pblas.epilogues import Epilogue
    from pblas.execute import Executor, Pushed
    from pblas.machines import Hardware
    from pblas.runtime import Runtime
    from pblas.trace import Paths, Trace

Trans = Literal["N", "T", "C"]
Out = MatrixDescriptor | DistMatrix | None


class Multiplication:
    """A planned product: the plan, its workspace, and one call that runs it. Made by `plan_matmul`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    def __init__(
        self,
        spec: ProductArguments,
        plan: Plan,
        desc_d: MatrixDescriptor,
        runtime: Runtime | None,
        epilogue: ProductEpilogue | None = None,
    ) -> None:
        self.plan = plan
        """What will be run (global)."""
        self.out = desc_d
        """Descriptor of D (global)."""
        self.descriptors = spec.desc_a, spec.desc_b
        """Descriptors of A and B (global)."""
        self._spec, self._runtime, self._epilogue = spec, runtime, epilogue
        self._executor: Executor | None = None
        self._pushed: Pushed | None = None
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._number, self._shared = 0, False
        if runtime is not None:
            self._number = runtime.next_number()
            self._place = runtime.place(desc_d, spec.dtype, spec.nelements)
            if plan.transport == "push":
                self._prepare_pushed(runtime)
            else:
                self._prepare(runtime)
            runtime.matrices.add(self)

    def explain(self) -> str:
        """The plan, why it was chosen, and what it will move: ten lines."""
        text = self.plan.explain()
        if self._epilogue is not None:
            text += f"\n  epilogue   {self._epilogue.epilogue.expression}, {self._epilogue.where(self.plan)}"
        return text

    def forget_operands(self) -> None:
        """Let go of the epilogue's operands: every execution brings its own (local)."""
        if self._epilogue is not None:
            self._epilogue.forget()

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that this rank holds now (local)."""
        used = self._executor or self._pushed
        return used.workspace_nbytes if used else 0

    def execute(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        operands: Mapping[str, Any] | None = None,
        stream: Any = None,
    ) -> DistMatrix:
        """**Collective.** D = epilogue(alpha op(A) op(B) + beta C) with matrices like the planned ones.

        Args:
            a: like the A that was planned: same descriptor and dtype (global).
            b: like B (global).
            c: like C; needed if beta is not 0 (global).
            out: where D goes; may be `c`; None for a new matrix (global).
            operands: of the epilogue, by name, in place of those that it was planned with; None for these (local).
            stream: on GPUs, the CUDA stream on which to run: anything with `__cuda_stream__`; None for CuPy's current
                stream. The call returns at once, and what the stream runs next sees D (local).

        Returns:
            D, under the planned descriptor. When the call returns, a, b and c may be overwritten (on GPUs, by what
            `stream` runs next).

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap; a stream on CPUs.
            DescriptorError, DTypeError: a matrix that is not like the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        runtime = self._runtime
        if runtime is None:
            raise errors.ArgumentError(
                "execute: planned from descriptors, without a context; plan with matrices to execute"
            )
        if self.plan.transport == "push":
            return self._execute_pushed(runtime, a, b, c, out, operands, stream)
        runtime.check_open("execute")
        if self._executor is None:
            closed = errors.ContextError("execute: the planned product is closed")
            runtime.agree(f"execute of planned product {self._number}", _NOTHING, closed, (0, 0, 0, 0))
            raise AssertionError("an agreement with an error raises")
        try:
            if self._shared != runtime.backend.shared:  # the context has given up shared memory since
                self._prepare(runtime)
            return self._execute(runtime, self._executor, a, b, c, out, operands, stream)
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)
            return self._execute(runtime, self._executor, a, b, c, out, operands, stream)

    def trace(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        paths: Paths = (),
        title: str | None = None,
    ) -> Trace:
        """**Collective.** One `execute`, and what each rank did when; see `Context.trace`.

        The first execution of a plan touches memory that later ones find in place: trace the second.

        Args:
            a: as in `execute` (global).
            b: likewise (global).
            c: likewise (global).
            out: likewise; without it D is dropped (global).
            paths: files that rank 0 writes (global).
            title: of pictures; None for the plan (global).

        Returns:
            What all ranks did, on rank 0; a trace without events elsewhere.

        Raises:
            as `execute` and `Context.trace`.
        """
        if self._runtime is None:
            raise errors.ArgumentError(
                "trace: planned from descriptors, without a context; plan with matrices to trace"
            )
        plan, p = self.plan, self.plan.product
        how = "" if plan.overlap else ", overlap=False"
        known = f"{plan.name}, {p.m} x {p.n} x {p.k}, {p.dtype}, {p.nprocs} ranks{how}"
        with Tracing(self._runtime, paths, title or known) as trace:
            self.execute(a, b, c, out=out)
        return trace

    def _execute_pushed(
        self,
        runtime: Runtime,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        """Without an agreement: planning has made one; arrays are checked here, and an error is `Runtime.refuse`d."""
        if runtime.closed:
            runtime.check_open("execute")
        engine = runtime.backend.engine()
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

    @property
    def _finishes_itself(self) -> bool:
        """Whether executions of this plan apply the epilogue where the elements of D are formed."""
        one_dimensional = isinstance(self.plan, AllGatherGemm | GemmReduceScatter)
        return (
            self._epilogue is not None
            and not self._epilogue.epilogue.is_rmsnorm
            and (self.plan.transport == "push" or one_dimensional)
        )

    def _extra(self, runtime: Runtime, operands: Mapping[str, Any] | None, out: DistMatrix | None) -> Any:
        """The epilogue's operands on this rank."""
        if self._epilogue is not None:
            return self._epilogue.operands("execute", runtime, operands, None if out is None else out.stored("execute"))
        if operands is not None:
            raise errors.ArgumentError("execute: operands belong to an epilogue, and none was planned; leave them out")
        return None

    def _finish(self, runtime: Runtime, d: DistMatrix, extra: Any, stream: Any) -> None:
        """Apply the epilogue to D, which no other rank reads any more."""
        if self._epilogue is not None:
            local = d.stored("execute")
            finish(runtime.backend, self._epilogue.epilogue, local, extra, local, stream)

    def _new_result(self, runtime: Runtime) -> DistMatrix:
        place = self._place
        return DistMatrix(self.out, runtime.backend.engine().matrix(place.shape, place.strides, place.dtype), runtime)

    def _check(self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, key: Any) -> _Known:
        """Check the matrices of an execution, and remember that they are right."""
        error: errors.PblasError | None = None
        if self._pushed is None:
            error = errors.ContextError("execute: the planned product is closed")
        else:
            error = self._spec.execute_error(runtime, a, b, c, out, self.out)
        if error is not None:
            runtime.refuse(error)
        # The descriptors are kept because the key holds their ids.
        descs = tuple(x.desc for x in (a, b, c, out) if x is not None)
        known = self._known[key] = _Known(runtime.backend.engine().program(), descs)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return known

    def operation(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: Any = None
    ) -> Callable[[], None]:
        """What an engine runs for one execution with matrices and operands that were checked (local)."""
        pushed_ = self._pushed

        def body() -> None:
            assert pushed_ is not None, "a closed plan was refused"
            pushed_.run(self._operands(a, b, c, d, extra if self._finishes_itself else None))

        return body

    def _prepare_pushed(self, runtime: Runtime) -> None:
        """**Collective.** The executor with its part of the context's workspace."""
        spec = self._spec
        orders = spec.orders(self.plan, self.out)
        self._pushed = pushed(self.plan, runtime.backend, spec.dtype, spec.wire, orders, tf32=spec.tf32)

    def rehearse(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, out: DistMatrix | None, *, autotune: bool
    ) -> None:
        """**Collective.** On GPUs: choose the GEMMs' algorithms and load every kernel, so that executions need not."""
        assert self._runtime is not None, "planned with matrices"
        engine = self._runtime.backend.engine()
        d = self._new_result(self._runtime)
        if out is not None:  # as D will be laid out, but not D itself: C may be in it
            place = self._runtime.place(out.desc, out.dtype)
            d = DistMatrix(out.desc, engine.matrix(place.shape, place.strides, place.dtype), self._runtime)
        engine.rehearse(self.operation(a, b, c, d, self._extra(self._runtime, None, None)), autotune=autotune)
        assert self._pushed is not None, "just planned"
        stored = None if out is None else out.stored("plan_matmul")
        self._pushed.bind(stored.T if stored is not None and self.plan.transposed else stored)

    def _execute(
        self,
        runtime: Runtime,
        executor_: Executor,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        spec, verb, arrays = self._spec, f"execute of planned product {self._number}", runtime.backend.arrays
        given = {"C is given": c is not None, "out is given": out is not None}
        error, extra = spec.execute_error(runtime, a, b, c, out, self.out), None
        try:
            extra = None if error else self._extra(runtime, operands, out)
            arrays.begin(stream, tf32=spec.tf32, autotune=spec.autotune)
        except errors.PblasError as caught:
            error = error or caught
        if error is not None:
            runtime.agree(verb, given, error, (0, 0, 0, 0))
        with runtime.backend.provisional():  # a rank that found an error allocates nothing, and so must all
            result = out
            if result is None:
                result = DistMatrix(self.out, runtime.empty(self._place), runtime)
            x = self._operands(a, b, c, result, extra if self._finishes_itself else None)
            alone = executor_.publish(x)
            scratch = bool(runtime.agree(verb, given, None, (int(alone), 0, 0, 0))[0])
        nothing = spec.alpha == 0 or self.plan.product.k == 0
        if nothing:
            arrays.add_scaled(spec.beta, x.result if x.old is None else x.old, 0.0, x.result)
        else:
            if executor_.prepare(scratch=scratch):
                runtime.agree(f"{verb}: staged", _NOTHING)
            with runtime.middle_of(verb, spared=(errors.WorkspaceError,)):
                executor_.run(x)
        with runtime.middle_of(verb):
            arrays.settle()
        if runtime.backend.shared and runtime.nprocs > 1:
            runtime.agree(f"end of {verb}", _NOTHING)  # nobody reads this rank's operands any more
        if not self._finishes_itself or nothing:
            self._finish(runtime, result, extra, stream)
        return result

    def close(self) -> None:
        """Drop the workspace; its memory is reused once all ranks have dropped theirs (local)."""
        self._executor = self._pushed = None
        self._known = OrderedDict()

    detach = close  # what a context that ends asks of its matrices and plans alike

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Multiplication {self.plan.name} {self.plan.product.m} x {self.plan.product.n} x {self.plan.product.k}>"
        )

    def _prepare(self, runtime: Runtime) -> None:
        """**Collective.** Choose the plan and build its executor, with messages if shared memory does not suffice."""
        spec, backend = self._spec, runtime.backend
        self._executor = None
        if runtime.machine.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.machine)
        try:
            self._executor = executor(self.plan, backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))
            self._shared = backend.shared
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)

    def _operands(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: dict[str, Any] | None = None
    ) -> Operands:
        spec = self._spec
        left, right, result = a.stored("execute"), b.stored("execute"), d.stored("execute")
        if spec.transa != "N":
            left = left.T
        if spec.transb != "N":
            right = right.T
        old = None
        if c is not None and spec.beta != 0:
            old = result if c is d else c.stored("execute")
            if old is not result and (c.key == d.key or not old.size):  # empty parts may differ in shape
                old = result
        conj_a, conj_b = spec.conj
        finish = None
        if extra is not None:
            assert self._epilogue is not None, "it has operands"
            finish = self._epilogue.finish(extra, result)
        if self.plan.transposed:
            finish = None if finish is None else finish.of(lambda z: z.T)
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
        return Operands(left, right, result, old, (conj_a, conj_b), spec.alpha, spec.beta, finish)


_NOTHING: dict[str, Any] = {}
_MAX_KNOWN = 64
"""Sets of matrices that a plan remembers, on GPUs with two graphs each."""


class _Known:
    """Matrices that were checked: the engine's program for them, and what keeps their key unique."""

    __slots__ = ("_descs", "program")

    def __init__(self, program: Any, descs: tuple[MatrixDescriptor, ...]) -> None:
        self.program, self._descs = program, descs


def plan_matmul(
    a: DistMatrix | MatrixDescriptor | int,
    b: DistMatrix | MatrixDescriptor | int,
    c: DistMatrix | MatrixDescriptor | int | None = None,
    *,
    transa: Trans = "N",
    transb: Trans = "N",
    alpha: complex = 1.0,
    beta: complex = 0.0,
    out: Out = None,
    dtype: Any = None,
    wire_dtype: Any = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    autotune: bool = False,
    strict: bool = False,
    epilogue: str | Epilogue | None = None,
    nprocs: int | None = None,
    memory_nbytes: int | None = None,
    machine: Hardware | str | None = None,
) -> Multiplication:
    """Plan D = epilogue(alpha op(A) op(B) + beta C). **Collective** with matrices; with descriptors it needs no MPI.

    Everything slow happens here; `execute` on the result is one call. With three sizes in place of matrices,
    `plan_matmul(m, n, k, nprocs=8)`, the layouts are chosen too: those of A and B are `descriptors` of
    the result, that of D is `out`, and matrices made with them are multiplied by this plan.

    Args:
        a: m x k matrix, or k x m with transa other than "N"; or its descriptor (global).
        b: k x n matrix, or n x k with transb other than "N"; or its descriptor (global).
        c: m x n matrix or descriptor, needed if beta is not 0 (global).
        transa: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read (global).
        out: D's matrix or descriptor; None for the layout of C, or else the one that moves the fewest bytes (global).
        dtype: of the matrices, needed with descriptors; with sizes None is float64 (global).
        wire_dtype: dtype in which partial products of 16-bit matrices travel: their own, or "float32" (global).
        overlap: move data while the GEMM runs (global).
        chunks: parts in which each shard moves, on GPUs GEMMs that the product is cut into; None lets the planner
            choose (global).
        tf32: multiply float32 matrices in TF32 on GPUs: ten bits of mantissa, eight times the speed (global).
        autotune: where data is pushed, as on GPUs of a node, measure the roads that may be the fastest and take the one
            that is; try several GEMM algorithms on GPUs. What is found is kept on disk, and later contexts take it,
            also without `autotune` (global).
        strict: refuse layouts that do not conform, instead of moving what has to be moved (global).
        epilogue: what is done to D before it is returned: an expression, as "relu(x)", or an `Epilogue`, whose arrays
            have the shape of this rank's part of D, or one element for each of its columns; None for nothing.
            Computed in 32 bits at least, of elements that are not rounded yet where it is part of the last addition or
            of a GEMM, and else of rounded ones: `explain` says which (global).
        nprocs: ranks, when planning from descriptors or sizes; None for the largest grid (global).
        memory_nbytes: what a rank may use for matrices and workspace; None for what `machine` has, or no limit. If no
            plan fits, it is the one that needs least (global).
        machine: what to plan for, when planning from descriptors or sizes: a `Hardware` or the name of a preset, see
            `Plan.simulate`; None for one node whose ranks share its memory (global).

    Returns:
        The planned product: `print(mm.explain())`, `mm.execute(a, b)`.

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.
        PlanError: strict=True, and the layouts do not conform; the text says where.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(8, 8, 4)
    >>> plan_matmul(rows, rows, dtype="float64").plan.name
    'AllGatherGemm'
    >>> plan_matmul(512, 512, 65536, nprocs=8).plan.name
    'GemmReduceScatter'
    """
    options = _options(locals())
    if isinstance(a, int) or isinstance(b, int) or isinstance(c, int):
        a, b, out = free_layouts(a, b, c, options, nprocs, memory_nbytes)
        c = out if beta != 0 else None
        options["out"] = out
    return _plan("plan_matmul", a, b, c, options, nprocs, machine)


def pmatmul(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    transa: Trans = "N",
    transb: Trans = "N",
    alpha: complex = 1.0,
    beta: complex = 0.0,
    out: Out = None,
    wire_dtype: Any = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    strict: bool = False,
    epilogue: str | Epilogue | None = None,
) -> DistMatrix:
    """**Collective.** D = epilogue(alpha op(A) op(B) + beta C): `plan_matmul` and `execute` in one call.

    Args:
        a: m x k matrix, or k x m with transa other than "N" (global).
        b: k x n matrix, or n x k with transb other than "N" (global).
        c: m x n matrix, needed if beta is not 0 (global).
        transa: "N", "T" or "C" (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read (global).
        out: where D goes: a matrix, which may be `c` itself; a descriptor of a new one; None for a new one in C's
            layout or the layout that moves the fewest bytes (global).
        wire_dtype: see `plan_matmul` (global).
        overlap: move data while the GEMM runs (global).
        chunks: see `plan_matmul` (global).
        tf32: see `plan_matmul` (global).
        strict: see `plan_matmul` (global).
        epilogue: see `plan_matmul` (global).

    Returns:
        D, `out` itself if that is a matrix. When the call returns, a, b and c may be overwritten.

    Raises:
        as `plan_matmul`.

    Source: PBLAS, PxGEMM; the bytes that move are those of the plan, see `plan_matmul(...).explain()`.
    """
    if not any(isinstance(x, DistMatrix) for x in (a, b)):
        raise errors.ArgumentError(
            f"pmatmul: a must be a DistMatrix, got {type(a).__name__}; ctx.from_global makes one"
        )
    with _plan(
        "pmatmul", a, b, c, _options(locals() | {"dtype": None, "autotune": False, "memory_nbytes": None}), None
    ) as planned:
        return planned.execute(a, b, c, out=out if isinstance(out, DistMatrix) else None)


_OPTIONS = (
    "transa",
    "transb",
    "alpha",
    "beta",
    "out",
    "dtype",
    "wire_dtype",
    "overlap",
    "chunks",
    "tf32",
    "autotune",
    "strict",
    "memory_nbytes",
    "epilogue",
)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _OPTIONS}


def _plan(
    verb: str,
    a: Any,
    b: Any,
    c: Any,
    options: dict[str, Any],
    nprocs: int | None,
    machine: Hardware | str | None = None,
) -> Multiplication:
    runtimes = [x.runtime for x in (a, b, c, options["out"]) if isinstance(x, DistMatrix)]
    if not runtimes:
        spec = ProductArguments(a, b, c, **options)
        descs = [desc for desc in (spec.op_a, spec.op_b, spec.desc_c, spec.desc_out) if desc is not None]
        ranks = enough_ranks(verb, nprocs, descs)
        described = None if machine is None else hardware(machine)
        facts = Machine(ranks, shared=True) if described is None else described.facts
        desc_d = spec.output(ranks)
        epilogue = _epilogue(verb, spec, desc_d)
        return Multiplication(spec, spec.choose(desc_d, ranks, facts, described), desc_d, None, epilogue)
    runtime = runtimes[0]
    runtime.check_open(verb)
    error: errors.PblasError | None = None
    spec = plan = desc_d = epilogue = None  # type: ignore[assignment]
    try:
        if any(other is not runtime for other in runtimes):
            raise errors.ArgumentError(f"{verb}: matrices of different contexts; make all of them with one context")
        if machine is not None:
            raise errors.ArgumentError(f"{verb}: machine is for planning from descriptors or sizes; leave it out")
        spec = ProductArguments(a, b, c, **options)
        if isinstance(options["out"], DistMatrix):
            error = overlap_error(verb, a, b, c, options["out"])
        desc_d = spec.output(runtime.nprocs)
        runtime.check_place(verb, desc_d, "out")
        epilogue = _epilogue(verb, spec, desc_d)
        plan = spec.choose(desc_d, runtime.nprocs, runtime.machine, measured=runtime.measured)
        arguments, needed = spec.arguments(), runtime.nelements(desc_d)
        if epilogue is not None:
            arguments |= epilogue.arguments()
            out = options["out"]
            epilogue.operands(verb, runtime, None, out.stored(verb) if isinstance(out, DistMatrix) else None)
    except errors.PblasError as caught:
        error = caught
    if error is not None:
        runtime.agree(verb, {}, error, (0, 0, 0, 0))
    assert spec is not None, "an agreement with an error raises"
    assert desc_d is not None, "so does this"
    assert plan is not None, "and this"
    spec.nelements = runtime.agree(verb, arguments, None, (needed, 0, 0, 0))[0]
    out = options["out"] if isinstance(options["out"], DistMatrix) else None
    if plan.transport == "push" and spec.autotune:
        trial = partial(Multiplication, spec, desc_d=desc_d, runtime=runtime)
        plan = tuned(runtime, spec, plan, desc_d, trial, (a, b, c, out))
    planned = Multiplication(spec, plan, desc_d, runtime, epilogue)
    if plan.transport == "push":
        planned.rehearse(a, b, c, out, autotune=spec.autotune)
    return planned


def _epilogue(verb: str, spec: ProductArguments, desc_d: MatrixDescriptor) -> ProductEpilogue | None:
    """What is done to D, if anything."""
    given, spec.given_epilogue = spec.given_epilogue, None  # its arrays are not the plan's to keep
    return None if given is None else ProductEpilogue(verb, given, spec.dtype, desc_d)
