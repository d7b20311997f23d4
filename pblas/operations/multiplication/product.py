"""A product D = epilogue(alpha op(A) op(B) + beta C) as an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pblas import errors
from pblas.backends.push_engine import GemmModes, is_array
from pblas.core.operation import Bound, Operation
from pblas.execute import executor, pushed
from pblas.execute.one_dimensional.local_gemm import RunScaling
from pblas.execute.operands import Operands
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.epilogue import ProductEpilogue
from pblas.operations.arguments.product import ProductArguments, ProductRequest
from pblas.operations.arguments.scales import Scales, scaled
from pblas.runtime.runtime import spelled

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.plans.plan import ProductPlan, Topology
    from pblas.runtime.runtime import Runtime


class Extras(NamedTuple):
    """The objects of one call besides its matrices.

    Args:
        epilogue: with the operands of the call that planned it; None for none (global).
        operands: the epilogue's operands on this rank, checked; None without an epilogue (local).
        scales: checked; None for none (local).
        stream: CUDA stream on which to run; None for the current one (local).
    """

    epilogue: ProductEpilogue | None = None
    operands: Mapping[str, Any] | None = None
    scales: Scales | None = None
    stream: Any = None


@dataclass(frozen=True, eq=False)
class Product(Operation[DistMatrix]):
    """D = epilogue(alpha op(A) op(B) + beta C).

    Args:
        spec: the arguments, but for scalars and leading dimensions: see `ProductArguments.form` (global).
        d: descriptor of D (global).
        expression: of the epilogue; None for none (global).
        kinds: name of each operand of the epilogue, and its dtype or "a number" (global).
        scales: whether the scales of A and B are arrays; None without scales (global).
        chosen: the plan (global).
    """

    noun: ClassVar[str] = "product"
    keeps_workspace: ClassVar[bool] = True

    spec: ProductArguments
    d: MatrixDescriptor
    expression: str | None
    kinds: tuple[tuple[str, str], ...]
    scales: tuple[bool, bool] | None
    chosen: ProductPlan

    @classmethod
    def bind(cls, verb: str, runtime: Runtime | None, request: ProductRequest, nprocs: int = 0) -> Bound[DistMatrix]:
        """The arguments of a product, checked on this rank.

        Raises:
            ArgumentError, DescriptorError, DTypeError: the first wrong argument.
        """
        for name, value in (("nprocs", request.nprocs), ("hardware", request.hardware)):
            if value is not None and runtime is not None:
                raise errors.ArgumentError(f"{verb}: {name} is for planning from descriptors or sizes; leave it out")
        spec = ProductArguments.checked(request)
        desc_d = spec.output(nprocs if runtime is None else runtime.nprocs)
        out = request.out if isinstance(request.out, DistMatrix) else None
        scalars: dict[str, Any] = {"c is given": request.c is not None, "alpha": spec.alpha, "beta": spec.beta}
        scales = Scales.checked(
            verb, runtime, spec.dtypes.a, request.scale_a, request.scale_b, request.scale_d, request.amax
        )
        epilogue, operands, expression = None, None, None
        kinds: tuple[tuple[str, str], ...] = ()
        value = scaled(verb, request.epilogue, None if scales is None else scales.d)
        if value is not None:
            epilogue = ProductEpilogue.checked(verb, value, spec.dtype, desc_d)
            spec, expression = spec._replace(epilogue=epilogue.form), epilogue.epilogue.expression
        if scales is not None:
            scalars |= scales.arguments()
        if runtime is not None:
            runtime.check_place(verb, desc_d, "out")
            if epilogue is not None:
                epilogue = epilogue.planned(verb, runtime, None if out is None else out.stored(verb))
                operands = epilogue.operands(verb, runtime, None, None if out is None else out.stored(verb))
                kinds = tuple(sorted(epilogue.kinds.items()))
                scalars |= numbers(operands)
        form = spec.form, desc_d.without_lld, expression, kinds, None if scales is None else scales.kinds
        new, nelements = None, 0
        if desc_d.lld is not None and out is None and runtime is not None:
            new, nelements = desc_d, runtime.nelements(desc_d)
        reads = {"A": request.a, "B": request.b}
        extras = Extras(epilogue, operands, scales)
        return Bound(cls, form, scalars, reads, out, request.c, new, nelements, local=extras)

    @classmethod
    def made(cls, verb: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        spec, desc_d, expression, kinds, scales = form
        chosen = spec._replace(verb=verb).choose(desc_d, nprocs, topology)
        return cls(spec, desc_d, expression, kinds, scales, chosen)

    @property
    def text(self) -> str:
        arguments = self.spec.arguments()
        if self.expression is not None:
            arguments["epilogue"] = self.expression, self.kinds
        return spelled(arguments)

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.d, self.spec.dtype

    def plan(self, nprocs: int, topology: Topology) -> ProductPlan:
        return self.chosen

    def executor(self, plan: ProductPlan, backend: HostRanks) -> Any:
        spec = self.spec
        dtypes, orders = spec.dtypes.T if plan.transposed else spec.dtypes, spec.orders(plan, self.d)
        if plan.transport == "push":
            return pushed(plan, backend, dtypes, orders, GemmModes(spec.tf32, spec.fast_accumulate))
        return executor(plan, backend, dtypes, orders) if self.multiplies else RunScaling(backend)

    def begin(self, arrays: Device, bound: Bound[DistMatrix]) -> None:
        spec = self.spec
        options = {"tf32": spec.tf32, "fast_accumulate": spec.fast_accumulate, "autotune": spec.autotune}
        arrays.begin(bound.local.stream, **options)

    def arrays(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> Operands:
        a, b, scalars = bound.reads["A"], bound.reads["B"], bound.scalars
        return self.operands(runtime, a, b, bound.old, result, scalars["alpha"], scalars["beta"], bound.local)

    def finish(
        self, verb: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> DistMatrix:
        self.complete(runtime, result, bound.local)
        return result

    def complete(self, runtime: Runtime, result: DistMatrix, extras: Extras) -> None:
        """Apply the epilogue to D, unless the executor has done so, and find D's largest element (local)."""
        local, (epilogue, operands, scales, stream) = result.stored("execute"), extras
        if epilogue is not None and not self.is_fused(epilogue):
            runtime.backend.arrays.finish(epilogue.epilogue, local, operands or {}, local, stream)
        if scales is not None and scales.amax is not None:
            runtime.backend.arrays.largest(local, scales.amax, stream)

    @property
    def multiplies(self) -> bool:
        """Whether anything is multiplied; otherwise D = beta C."""
        return self.spec.alpha != 0 and self.chosen.product.k > 0

    def is_fused(self, epilogue: ProductEpilogue | None) -> bool:
        """Whether the executor applies the epilogue; otherwise `complete` does, in one more pass over D."""
        if epilogue is None or epilogue.epilogue.is_rmsnorm:
            return False
        return self.chosen.transport == "push" or (bool(self.chosen.finishes) and self.multiplies)

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
        spec = self.spec
        left, right, result = a.stored("execute"), b.stored("execute"), d.stored("execute")
        if spec.transa != "N":
            left = left.T
        if spec.transb != "N":
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


def numbers(operands: Mapping[str, Any] | None) -> dict[str, Any]:
    """The epilogue's operands that are numbers, by the names under which the ranks compare them (global)."""
    return {f"epilogue's {name}": z for name, z in sorted((operands or {}).items()) if not is_array(z)}
