"""A product D = epilogue(alpha op(A) op(B) + beta C) as an operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from pblas.backends.push_engine import GemmModes, is_array
from pblas.core.checks import check_not_conjugated
from pblas.core.operation import Bound, Operation
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.arguments import ProductCall, ProductForm
from pblas.matmul.epilogue_arguments import ProductEpilogue
from pblas.matmul.executors import executor, pushed
from pblas.matmul.local_gemm_run import RunScaling
from pblas.matmul.operands import Operands
from pblas.matmul.scales import Scales, scaled
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import spelled

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.product_plan import ProductPlan
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


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


_NO_EXTRAS = Extras()


@dataclass(frozen=True, eq=False)
class Product(Operation[DistMatrix]):
    """D = epilogue(alpha op(A) op(B) + beta C).

    Args:
        spec: the arguments that decide the plan (global).
        d: descriptor of D (global).
        chosen: the plan (global).
    """

    noun: ClassVar[str] = "product"
    keeps_workspace: ClassVar[bool] = True

    spec: ProductForm
    d: MatrixDescriptor
    chosen: ProductPlan

    @classmethod
    def bind(cls, verb: str, runtime: Runtime | None, call: ProductCall, nprocs: int = 0) -> Bound[DistMatrix]:
        """The arguments of a product, checked on this rank; `made` checks its form."""
        a, b, c, out = matrices = call[:4]
        call.check_kinds(verb, placed=runtime is not None)
        options, dtypes = call.options.checked(verb), call.dtypes(verb)
        alpha, beta = call.factors(verb, dtypes.d)
        check_not_conjugated(verb, "C", c)
        check_not_conjugated(verb, "out", out)
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
        )
        scalars: dict[str, Any] = {"c is given": c is not None, "alpha": alpha, "beta": beta}
        written, extras = out if isinstance(out, DistMatrix) else None, _NO_EXTRAS
        scales = Scales.checked(verb, runtime, dtypes.a, *call.scales)
        if scales is not None:
            scalars |= scales.arguments()
            form, extras = form._replace(scales=scales.kinds), Extras(scales=scales)
        value = scaled(verb, call.epilogue, None if scales is None else scales.d)
        if value is not None:
            desc_d = form.output(verb, nprocs if runtime is None else runtime.nprocs)
            epilogue, operands = ProductEpilogue.checked(verb, value, dtypes.d, desc_d), None
            if runtime is not None:
                local = None if written is None else written.stored(verb)
                epilogue = epilogue.planned(verb, runtime, local)
                operands = epilogue.operands(verb, runtime, None, local)
                scalars |= numbers(operands)
            expression, kinds = epilogue.epilogue.expression, tuple(sorted(epilogue.kinds.items()))
            form, extras = form._replace(expression=expression, kinds=kinds), Extras(epilogue, operands, scales)
        new, nelements = None if written is not None else desc_out or desc_c, 0
        if new is not None and new.lld is not None and runtime is not None:
            runtime.check_place(verb, new, "out")
            nelements = runtime.nelements(new)
        else:
            new = None
        return Bound(cls, form, scalars, {"A": a, "B": b}, written, c, new, nelements, local=extras)

    @classmethod
    def made(cls, verb: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        spec = ProductForm(*form)
        desc_d = spec.output(verb, nprocs)
        return cls(spec, desc_d, spec.choose(verb, desc_d, nprocs, topology))

    @property
    def text(self) -> str:
        return spelled(self.spec.arguments())

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.d, self.spec.dtypes.d

    def plan(self, nprocs: int, topology: Topology) -> ProductPlan:
        return self.chosen

    def executor(self, plan: ProductPlan, backend: HostRanks) -> Any:
        spec = self.spec
        dtypes, orders = spec.dtypes.T if plan.transposed else spec.dtypes, spec.orders(plan, self.d)
        if plan.transport == "push":
            return pushed(plan, backend, dtypes, orders, self.modes)
        return executor(plan, backend, dtypes, orders) if self.multiplies else RunScaling(backend)

    def begin(self, arrays: Device, bound: Bound[DistMatrix]) -> None:
        arrays.begin(bound.local.stream, self.modes, autotune=self.spec.options.autotune)

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
        if epilogue is None or epilogue.epilogue.is_rmsnorm:
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


def numbers(operands: Mapping[str, Any] | None) -> dict[str, Any]:
    """The epilogue's operands that are numbers, by the names under which the ranks compare them (global)."""
    return {f"epilogue's {name}": z for name, z in sorted((operands or {}).items()) if not is_array(z)}
