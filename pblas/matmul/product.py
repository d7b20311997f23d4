"""A product D = epilogue(alpha op(A) op(B) + beta C) as an operation, and planned products that are executed.

Ranks read each other's memory or send messages, and agree in every execution; `pushed.py` has those that push data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pblas import errors
from pblas.backends.dtypes import FLOAT8, Array, Dtype, ProductDtypes
from pblas.backends.push_engine import GemmModes, is_array
from pblas.core.checks import check_not_conjugated
from pblas.core.operation import Bound, Executor, Operation
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.allgather_gemm_run import RunAllGatherGemm
from pblas.matmul.arguments import ProductCall, ProductForm
from pblas.matmul.epilogue_arguments import SCALE_D, CheckedOperands, ProductEpilogue, Scales, scaled
from pblas.matmul.gemm_reduce_run import RunGemmReduce
from pblas.matmul.local_gemm_run import Operands, Orders, RunLocalGemm, RunScaling
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.reproducible_run import (
    RunReproducibleAllGatherGemm,
    RunReproducibleLocalGemm,
    RunReproducibleScaling,
    RunReproducibleSummaA,
    RunReproducibleSummaC,
)
from pblas.matmul.summa_plan import SummaA, SummaC
from pblas.matmul.summa_run import RunSummaA, RunSummaC
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import Runtime, spelled

if TYPE_CHECKING:
    from pblas.backends.device import Device
    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.product_plan import ProductPlan
    from pblas.matmul.push.base_run import Pushed
    from pblas.simulation.hardware import Topology


class Extras(NamedTuple):
    """The objects of one call besides its matrices."""

    epilogue: ProductEpilogue | None = None  # with the operands of the call that planned it; None for none (global)
    # the epilogue's operands on this rank, checked; None without an epilogue (local)
    operands: Mapping[str, Any] | None = None
    scales: Scales | None = None  # checked; None for none (local)
    stream: Any = None  # CUDA stream on which to run; None for the current one (local)


_NO_EXTRAS = Extras()


@dataclass(frozen=True, eq=False)
class Product(Operation[DistMatrix]):
    """D = epilogue(alpha op(A) op(B) + beta C)."""

    noun: ClassVar[str] = "product"
    keeps_workspace: ClassVar[bool] = True

    spec: ProductForm
    d: MatrixDescriptor
    chosen: ProductPlan

    @classmethod
    def bind(cls, opname: str, runtime: Runtime | None, call: ProductCall, nprocs: int = 0) -> Bound[DistMatrix]:
        """The arguments of a product, checked on this rank; `made` checks its form."""
        a, b, c, out = matrices = call[:4]
        call.check_kinds(opname, placed=runtime is not None)
        options = call.options.checked(opname, runtime)
        dtypes = call.dtypes(opname, reproducible=options.reproducible)
        alpha, beta = call.factors(opname, dtypes.d)
        check_not_conjugated(opname, "C", c)
        check_not_conjugated(opname, "out", out)
        desc_a, desc_b, desc_c, desc_out = (x.desc if isinstance(x, DistMatrix) else x for x in matrices)
        form = ProductForm(
            options,
            dtypes,
            a=desc_a.without_lld,
            b=desc_b.without_lld,
            c=None if desc_c is None else desc_c.without_lld,
            out=None if desc_out is None else desc_out.without_lld,
            conj_views=(False, False) if runtime is None else (a.conjugated, b.conjugated),
            multiplies=alpha != 0,
            adds=beta != 0,
            order=None if runtime is None else runtime.order,
        )
        bits = None
        if options.reproducible is True and runtime is not None and dtypes.a not in FLOAT8:
            bits = runtime.backend.arrays.fingerprint(dtypes.a)
        scalars: dict[str, Any] = {"c is given": c is not None, "alpha": alpha, "beta": beta, "reproducible sums": bits}
        written, extras = out if isinstance(out, DistMatrix) else None, _NO_EXTRAS
        (scale_a, scale_b, scale_d, amax), scales, value = call.scales, None, call.epilogue
        if not (scale_a is scale_b is scale_d is amax is None):
            scales = Scales.checked(opname, runtime, dtypes.a, scale_a, scale_b, scale_d, amax)
        if scales is not None:
            scalars |= scales.arguments()
            form, extras = form._replace(scales=scales.kinds), Extras(scales=scales)
            value = scaled(opname, value, scales.d)
        if value is not None:
            desc_d = form.output(opname, nprocs if runtime is None else runtime.nprocs)
            epilogue, operands = ProductEpilogue.checked(opname, value, dtypes.d, desc_d), None
            if runtime is not None:
                local = None if written is None else written.stored(opname)
                epilogue = epilogue.planned(opname, runtime, local)
                operands = epilogue.operands(opname, runtime, None, local)
                scalars |= numbers(operands)
            expression, kinds = epilogue.epilogue.expression, tuple(sorted(epilogue.kinds.items()))
            form, extras = form._replace(expression=expression, kinds=kinds), Extras(epilogue, operands, scales)
        new, nelements = None if written is not None else desc_out or desc_c, 0
        if new is not None and new.lld is not None and runtime is not None:
            runtime.check_place(opname, new, "out")
            nelements = runtime.nelements(new)
        else:
            new = None
        return Bound(cls, form, scalars, {"A": a, "B": b}, written, c, new, nelements, local=extras)

    @classmethod
    def made(cls, opname: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        spec = ProductForm(*form)
        if spec.options.reproducible is True and topology.gpus and spec.dtypes.a in FLOAT8:
            raise errors.DTypeError(
                f"{opname}: on GPUs reproducible=True is for matrices of 16 bits and more, got {spec.dtypes.a.name}; "
                f"convert A and B with astype"
            )
        desc_d = spec.output(opname, nprocs)
        return cls(spec, desc_d, spec.choose(opname, desc_d, nprocs, topology))

    @property
    def text(self) -> str:
        return spelled(self.spec.arguments())

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.d, self.spec.dtypes.d

    def plan(self, nprocs: int, topology: Topology) -> ProductPlan:
        return self.chosen

    def executor(self, plan: ProductPlan, backend: HostRanks) -> Any:
        spec = self.spec
        dtypes, orders = spec.dtypes.T if plan.transposed else spec.dtypes, spec.orders(plan, self.d)
        if plan.transport == "push":
            return pushed(plan, backend, dtypes, orders, self.modes)
        if not self.multiplies:
            return RunReproducibleScaling(backend) if plan.reproducible and not plan.gpus else RunScaling(backend)
        return executor(plan, backend, dtypes, orders)

    def begin(self, arrays: Device, bound: Bound[DistMatrix]) -> None:
        arrays.begin(bound.local.stream, self.modes, autotune=self.spec.options.autotune)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> Operands:
        a, b, scalars = bound.reads["A"], bound.reads["B"], bound.scalars
        return self.operands(runtime, a, b, bound.old, result, scalars["alpha"], scalars["beta"], bound.local)

    def finish(
        self, opname: str, runtime: Runtime, executor: object, bound: Bound[DistMatrix], result: DistMatrix
    ) -> DistMatrix:
        self.complete(runtime, result, bound.local)
        return result

    def complete(self, runtime: Runtime, result: DistMatrix, extras: Extras) -> None:
        """Apply the epilogue to D, unless the executor has done so, and find D's largest element (local)."""
        epilogue, operands, scales, stream = extras
        if epilogue is None and scales is None:
            return
        local = result.stored("execute")
        if epilogue is not None and not self.is_fused(epilogue):
            runtime.backend.arrays.finish(epilogue.epilogue, local, operands or {}, local, stream)
        if scales is not None and scales.amax is not None:
            runtime.backend.arrays.largest(local, scales.amax, stream)

    @property
    def is_pushed(self) -> bool:
        """Whether ranks write into their peers' memory, so that `PushedMatmul` executes the plan."""
        return self.chosen.transport == "push"

    @cached_property
    def modes(self) -> GemmModes:
        """How the GEMMs are computed."""
        return GemmModes(self.spec.options.tf32, self.spec.options.fast_accumulate)

    @property
    def multiplies(self) -> bool:
        """Whether anything is multiplied; otherwise D = beta C."""
        return self.spec.multiplies and self.chosen.product.k > 0

    def is_fused(self, epilogue: ProductEpilogue | None) -> bool:
        """Whether the executor applies the epilogue; otherwise `complete` does, in one more pass over D."""
        if epilogue is None or epilogue.epilogue.is_rmsnorm or self.chosen.reproducible:
            return False
        return self.is_pushed or (bool(self.chosen.finishes) and self.multiplies)

    def operands(
        self,
        runtime: Runtime,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        d: DistMatrix,
        alpha: complex,
        beta: complex,
        extras: Extras,
    ) -> Operands:
        """The local arrays of an execution as the executor takes them, transposed if the plan is for D^T (local)."""
        spec, options = self.spec, self.spec.options
        left, right, result = a.stored("execute"), b.stored("execute"), d.stored("execute")
        if options.transa != "N":
            left = left.T
        if options.transb != "N":
            right = right.T
        old = None
        if c is not None and beta != 0:
            old = result if c is d else c.stored("execute")
            if old is not result and (c.key == d.key or not old.size):  # empty parts may differ in shape
                old = result
        conj_a, conj_b = spec.conj
        factors: tuple[Any, Any] = (None, None)
        if extras.scales is not None:
            alpha, factors = _factors(runtime, self.chosen, alpha, extras.scales)
        fused = None
        if extras.operands is not None and self.is_fused(extras.epilogue):
            assert extras.epilogue is not None, "it has operands"
            fused = extras.epilogue.finish(extras.operands, result)
        if self.chosen.transposed:
            fused = None if fused is None else fused.of(lambda z: z.T)
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
            factors = factors[::-1]
        return Operands(left, right, result, old, (conj_a, conj_b), alpha, beta, fused, factors)


def _factors(
    runtime: Runtime, plan: ProductPlan, alpha: complex, scales: Scales
) -> tuple[complex, tuple[Array | None, Array | None]]:
    """Alpha with the scales of A and B in it, and those that the executor applies, None for 1 (local).

    GPUs that push data read arrays when the product runs.
    """
    reads_later = plan.transport == "push" and runtime.backend.gpus
    later = [x if reads_later and is_array(x) else None for x in (scales.a, scales.b)]
    for x, postponed in zip((scales.a, scales.b), later, strict=True):
        if postponed is None:
            alpha *= float(runtime.backend.reading(x.reshape(1, 1))[0, 0]) if is_array(x) else x
    return alpha, (later[0], later[1])


def numbers(operands: Mapping[str, object] | None) -> dict[str, Any]:
    """The epilogue's operands that are numbers, by the names under which the ranks compare them (global)."""
    return {f"epilogue's {name}": z for name, z in sorted((operands or {}).items()) if not is_array(z)}


class Execution(NamedTuple):
    """The arguments of one execution of a product; see `PlannedMatmul.execute`."""

    a: DistMatrix
    b: DistMatrix
    c: DistMatrix | None
    out: DistMatrix | None
    operands: Mapping[str, Any] | None = None
    stream: Any = None
    # the name of the call that this execution is part of, and the arguments of that call on which the ranks agree,
    # `spelled`; None for `execute` itself (global)
    call: tuple[str, str] | None = None
    # checked `Scales`, or those that replace the planned ones, as (scale_a, scale_b, scale_d, amax); None for the
    # planned ones
    scales: Any = None


class PlannedMatmul(Planned[DistMatrix]):
    """A planned product: the plan, its workspace, and one call that runs it. Made by `plan_matmul`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    operation: Product
    plan: ProductPlan

    def __init__(
        self, operation: Product, runtime: Runtime | None, nprocs: int, topology: Topology, bound: Bound[DistMatrix]
    ) -> None:
        extras: Extras = bound.local
        self._epilogue, self._scales = extras.epilogue, extras.scales
        self.descriptors: tuple[MatrixDescriptor, MatrixDescriptor] = operation.spec.a, operation.spec.b
        """Descriptors of A and B (global)."""
        self._alpha, self._beta = bound.scalars["alpha"], bound.scalars["beta"]
        super().__init__(operation, runtime, nprocs, topology, bound)

    def explain(self) -> str:
        text = super().explain()
        if self._epilogue is not None:
            text += f"\n  epilogue   {self._epilogue.epilogue.expression}, {self._epilogue.where(self.plan)}"
        return text

    def forget_operands(self) -> None:
        """Drop the epilogue's operands and the scales: from now on every execution brings its own (local)."""
        if self._epilogue is not None:
            self._epilogue = self._epilogue.without_operands
        self._scales = None

    def execute(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        operands: Mapping[str, Any] | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_d: Any = None,
        amax: Any = None,
        stream: Any = None,
    ) -> DistMatrix:
        """**Collective.** D = epilogue(alpha op(A) op(B) + beta C) with matrices like the planned ones.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            b: B, with the descriptor and the dtype that were planned (global).
            c: C, with the planned descriptor and dtype; needed if beta is not 0 (global).
            out: matrix that receives D; may be `c`; None for a new matrix (global).
            operands: operands of the epilogue, by name: numbers, the same on every rank, and arrays of this rank; None
                for the operands that were planned (global).
            scale_a: scale of A, of the planned kind, number or array; None for the planned one (global).
            scale_b: scale of B, as scale_a (global).
            scale_d: scale of D, as scale_a (global).
            amax: receives the largest modulus in this rank's part of D; None for the planned array (local).
            stream: on GPUs, the CUDA stream on which to run: an object with `__cuda_stream__`; None for CuPy's current
                stream. The call returns at once, and later work on the stream sees D (local).

        Returns:
            D, with the planned descriptor. The caller may overwrite a, b and c when the call has returned (on GPUs, by
            later work on `stream`).

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap; a stream on CPUs.
            DescriptorError, DTypeError: a matrix with another descriptor or dtype than the planned one, on any rank.
            MismatchError: ranks that passed different numbers, or C or out on some ranks only. On GPUs that push data,
                only `Context(debug=True)` compares these arguments.
            WorkspaceError: a rank without memory for a new D.
            ContextError: the context or the plan is closed.
            PeerTimeout: a rank does not arrive; the context is broken then.
        """
        given = scale_a, scale_b, scale_d, amax
        scales = None if all(value is None for value in given) else given
        return self.launch(Execution(a, b, c, out, operands, stream, scales=scales))

    def launch(self, execution: Execution) -> DistMatrix:
        """**Collective.** `execute`, perhaps inside another call: see `Execution`."""
        runtime = self._runtime
        if runtime is None:
            raise self._no_context_error("execute")
        opname = self._call if execution.call is None else execution.call[0]
        with runtime.call("execute"):
            return self.perform(opname, runtime, lambda: self._bound(runtime, execution))

    def bound_launch(self, execution: Execution) -> Callable[[Any], object]:
        """A function of the stream that launches an execution on these matrices, each time anew (local)."""
        return lambda stream: self.launch(execution._replace(stream=stream))

    def _bound(self, runtime: Runtime, execution: Execution) -> Bound[DistMatrix]:
        """The arguments of an execution, compared with the planned ones on this rank."""
        a, b, c, out, given, stream, call, _ = execution
        self.operation.spec.check_execution(runtime, a, b, c, out, self.out, self._beta)
        scales = self._checked_scales(runtime, execution)
        if scales is not None and out is not None:
            scales.check_apart("execute", runtime, out.stored("execute"))
        operands = self._extra(runtime, self._with_scale(given, scales), out)
        planned = self.bound
        scalars: Mapping[str, Any]
        if operands is None and scales is None and planned.scalars["c is given"] == (c is not None):
            scalars = planned.scalars
        else:
            scalars = {**planned.scalars, "c is given": c is not None, **numbers(operands)}
            scalars |= {} if scales is None else scales.arguments()
        extras = Extras(self._epilogue, operands, scales, stream)
        agrees = None if call is None else call[1]
        return planned._replace(scalars=scalars, reads={"A": a, "B": b}, old=c, out=out, local=extras, agrees=agrees)

    # Also for the push transport

    def _extra(self, runtime: Runtime, operands: Mapping[str, object] | None, out: DistMatrix | None) -> Any:
        """The epilogue's operands on this rank, checked; None without an epilogue (local)."""
        if self._epilogue is not None:
            return self._epilogue.operands("execute", runtime, operands, None if out is None else out.stored("execute"))
        if operands is not None:
            raise errors.ArgumentError("execute: operands belong to an epilogue, and none was planned; leave them out")
        return None

    def _checked_scales(self, runtime: Runtime, execution: Execution) -> Scales | None:
        """The scales of an execution, checked; None if there are none (local)."""
        scales = execution.scales
        if isinstance(scales, tuple):
            if self._scales is None:
                raise errors.ArgumentError(
                    "execute: scales belong to matrices of 8 bits, and none were planned; pass them to plan_matmul too"
                )
            return self._scales.replaced("execute", runtime, *scales)
        return self._scales if scales is None else scales

    def _with_scale(self, operands: Mapping[str, object] | None, scales: Scales | None) -> Any:
        """The operands of an execution's epilogue, with the scale of D, by which the epilogue ends (local)."""
        if scales is None or scales.d is None or isinstance(operands, CheckedOperands):
            return operands
        assert self._epilogue is not None, "a scale of D is an operand"
        own: object = self._epilogue.epilogue.operands if operands is None else operands
        return {**own, SCALE_D: scales.d} if isinstance(own, Mapping) else own


_EXECUTORS: dict[type[ProductPlan], Any] = {
    LocalGemm: RunLocalGemm,
    AllGatherGemm: RunAllGatherGemm,
    GemmReduceScatter: RunGemmReduce,
    GemmAllReduce: RunGemmReduce,
    SummaC: RunSummaC,
    SummaA: RunSummaA,
}

_REPRODUCIBLE: dict[type[ProductPlan], Any] = {
    LocalGemm: RunReproducibleLocalGemm,
    AllGatherGemm: RunReproducibleAllGatherGemm,
    SummaC: RunReproducibleSummaC,
    SummaA: RunReproducibleSummaA,
}


def executor(plan: ProductPlan, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> Executor:
    """**Collective.** The executor of a plan, with its workspace."""
    runners = _REPRODUCIBLE if plan.reproducible else _EXECUTORS
    runner: Executor = runners[type(plan)](plan, backend, dtypes, orders)
    return runner


def pushed(plan: ProductPlan, backend: object, dtypes: ProductDtypes, orders: Orders, modes: GemmModes) -> Pushed:
    """**Collective.** The executor of a plan of the push transport, which runs on the backend's engine."""
    from pblas.matmul.push.allgather_gemm_run import RunPushGather
    from pblas.matmul.push.base_run import RunLocal, RunReproducibleLocal
    from pblas.matmul.push.gemm_reduce_run import RunPushReduce

    runners: dict[type[ProductPlan], Any] = {
        LocalGemm: RunReproducibleLocal if plan.reproducible else RunLocal,
        AllGatherGemm: RunPushGather,
        GemmReduceScatter: RunPushReduce,
        GemmAllReduce: RunPushReduce,
    }
    runner: Pushed = runners[type(plan)](plan, backend, dtypes, orders, modes)
    return runner
