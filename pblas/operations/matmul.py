"""pmatmul and plan_matmul: validate on all ranks, plan, execute."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.core.checks import check_context, check_overlap, enough_ranks, not_a_matrix
from pblas.core.options import Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.epilogue import ProductEpilogue
from pblas.operations.arguments.product import ProductArguments, ProductRequest, with_layouts
from pblas.operations.arguments.scales import Scales, scaled
from pblas.operations.autotune import tuned
from pblas.operations.multiplication.base import PlannedMatmul
from pblas.operations.multiplication.pushed import PushedMatmul
from pblas.plans.plan import Topology
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import spelled
from pblas.simulation.hardware import find_hardware

if TYPE_CHECKING:
    from pblas.backends.dtypes import Scalar
    from pblas.epilogues import Epilogue
    from pblas.plans.plan import ProductPlan
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Hardware

Out = MatrixDescriptor | DistMatrix | None


def plan_matmul(
    a: DistMatrix | MatrixDescriptor | int,
    b: DistMatrix | MatrixDescriptor | int,
    c: DistMatrix | MatrixDescriptor | int | None = None,
    *,
    transa: Trans = "N",
    transb: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: Out = None,
    dtype: Any = None,
    out_dtype: Any = None,
    wire_dtype: Any = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    autotune: bool = False,
    strict: bool = False,
    epilogue: str | Epilogue | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_d: Any = None,
    amax: Any = None,
    nprocs: int | None = None,
    memory_nbytes: int | None = None,
    queue: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedMatmul:
    """Plan D = epilogue(alpha op(A) op(B) + beta C). **Collective** with matrices; with descriptors it needs no MPI.

    Planning checks the arguments, allocates the workspace and, on GPUs, loads the kernels, so that `execute` has none
    of that to do. With three sizes instead of matrices, `plan_matmul(m, n, k, nprocs=8)`, the planner chooses the
    layouts too. The result has the descriptors of A and B in `descriptors`, and that of D in `out`.

    Args:
        a: m x k matrix, or k x m with transa other than "N"; or its descriptor (global).
        b: k x n matrix, or n x k with transb other than "N"; or its descriptor (global).
        c: m x n matrix or descriptor, which is added; needed if beta is not 0 (global).
        transa: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read; None: 1 if c is given, else 0 (global).
        out: matrix that receives D, or descriptor of D; None for the layout of C, or without C the layout that moves
            the fewest bytes (global).
        dtype: dtype of A and B. Needed with descriptors; None for that of A, or with sizes float64 (global).
        out_dtype: dtype of D. A and B of 16 bits may have a D of their dtype or float32. A and B of 8 bits,
            "float8_e4m3fn" or one of them "float8_e5m2", may have a D in bfloat16, float16 or float32. None for that of
            `out` or C, else that of A, or bfloat16 for 8 bits. C has the dtype of D, or 16 bits if D is float32
            (global).
        wire_dtype: dtype in which partial products travel if D has 16 bits: "float32", or None for that of D (global).
        overlap: move data while the GEMM runs (global).
        chunks: parts in which each shard moves; on GPUs the number of GEMMs of the product. None lets the planner
            choose (global).
        tf32: multiply float32 matrices in TF32 on GPUs: ten bits of mantissa, eight times the speed (global).
        fast_accumulate: add products of 8-bit matrices with about 14 bits of mantissa on Hopper GPUs, which is up to
            4 % faster; otherwise partial sums are moved to float32 often (global).
        autotune: on GPUs, measure several GEMM algorithms and, for plans that push data (GPUs of one node), the
            candidate algorithms of the plan; take the fastest. The times are kept on disk. Later contexts use them,
            also without `autotune` (global).
        strict: raise PlanError for layouts that do not conform, instead of redistributing operands (global).
        epilogue: elementwise function applied to D before it is returned; None for none. An expression, as "relu(x)",
            or an `Epilogue`, whose arrays have the shape of this rank's part of D, or one element for each column of
            that part. The epilogue is computed in at least 32 bits. Where possible it is fused into the last addition
            or into the GEMM, before D is rounded. Otherwise an extra pass reads the rounded D. `explain` names the
            place (global).
        scale_a: factor of A, for 8-bit matrices. A number, or an array of one float32 in the memory of the matrices,
            which each execution reads, on GPUs in stream order (global).
        scale_b: factor of B, as scale_a (global).
        scale_d: factor of D, after the epilogue, as scale_a (global).
        amax: array of one float32 that receives the largest modulus in this rank's part of D, scale_d included; NaN
            if D has one (local; given on all ranks or on none).
        nprocs: ranks, when planning from descriptors or sizes; None for the largest grid (global).
        memory_nbytes: bytes that a rank may use for matrices and workspace; None for the memory of `hardware`, or no
            limit. If no plan fits, the planner takes the one that needs least (global).
        queue: stream slot, 0..7. On GPUs that push data, executions of this plan may run concurrently with executions
            of plans with other queues, on other streams, but not with other calls. Each queue has its own workspace,
            and 64 MiB for GEMMs. All ranks must still call in the same order. None: executions run alone (global).
        hardware: machine to plan for, when planning from descriptors or sizes: a `Hardware` or the name of a preset,
            see `Plan.simulate`; None for one node whose ranks share its memory (global).

    Returns:
        The planned product: `print(mm.explain())`, `mm.execute(a, b)`.

    Raises:
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
        PlanError: strict=True, and the layouts do not conform; the text says where.
        WorkspaceError: a rank without memory for the workspace, or for a new D.
        ContextError: the context is closed or broken.
        PeerTimeout: a rank does not arrive; the context is broken then.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(8, 8, 4)
    >>> plan_matmul(rows, rows, dtype="float64").plan.name
    'AllGatherGemm'
    >>> plan_matmul(512, 512, 65536, nprocs=8).plan.name
    'GemmReduceScatter'
    """
    call = ProductRequest(verb="plan_matmul", mixed=True, **locals())  # the arguments, and nothing else yet
    if call.matrices:
        runtime = call.matrices[0].runtime
        with runtime.call(call.verb):
            return _kept(call, runtime, _agreed(call, runtime))
    return _plan_layouts(with_layouts(call) if any(isinstance(x, Integral) for x in (a, b, c)) else call)


def pmatmul(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    transa: Trans = "N",
    transb: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: Out = None,
    out_dtype: Any = None,
    wire_dtype: Any = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    strict: bool = False,
    epilogue: str | Epilogue | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_d: Any = None,
    amax: Any = None,
) -> DistMatrix:
    """**Collective.** D = epilogue(alpha op(A) op(B) + beta C): `plan_matmul` and `execute` in one call.

    Args:
        a: m x k matrix, or k x m with transa other than "N" (global).
        b: k x n matrix, or n x k with transb other than "N" (global).
        c: m x n matrix, which is added; needed if beta is not 0 (global).
        transa: "N", "T" or "C" (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read; None: 1 if c is given, else 0 (global).
        out: matrix that receives D, possibly `c` itself, or descriptor of a new matrix. None for a new matrix in C's
            layout, or without C in the layout that moves the fewest bytes (global).
        out_dtype: see `plan_matmul` (global).
        wire_dtype: see `plan_matmul` (global).
        overlap: move data while the GEMM runs (global).
        chunks: see `plan_matmul` (global).
        tf32: see `plan_matmul` (global).
        fast_accumulate: see `plan_matmul` (global).
        strict: see `plan_matmul` (global).
        epilogue: see `plan_matmul` (global).
        scale_a: see `plan_matmul` (global).
        scale_b: see `plan_matmul` (global).
        scale_d: see `plan_matmul` (global).
        amax: see `plan_matmul` (local).

    Returns:
        D, `out` itself if that is a matrix. The caller may overwrite a, b and c when the call has returned.

    Raises:
        as `plan_matmul`.

    `plan_matmul(...).explain()` shows the number of bytes that move. Calls with the same layouts, scalars and options
    use one plan, whatever the matrices: a context keeps those of the last eight different calls, but none with an
    epilogue, with scales or with a workspace above 16 MiB. Where GPUs push data each call plans.

    Source: PBLAS, p?gemm.
    """
    call = ProductRequest(verb="pmatmul", mixed=True, **locals())  # the arguments, and nothing else yet
    if not call.matrices:
        error = not_a_matrix("pmatmul", "a", a)
        fail_without_context(call.verb, error)
    runtime = call.matrices[0].runtime
    with runtime.call(call.verb):
        agreed = _agreed(call, runtime)
        keeps = agreed.plan.transport != "push" and agreed.epilogue is None and agreed.scales is None
        using = runtime.plans.using(agreed.key, lambda: _kept(call, runtime, agreed)) if keeps else None
        with using or _planned(call, runtime, agreed) as planned:
            return planned.execute(a, b, c, out=out if isinstance(out, DistMatrix) else None)


def _plan_layouts(call: ProductRequest) -> PlannedMatmul:
    """The planned product of a call with descriptors: it cannot be executed."""
    spec = ProductArguments.checked(call)
    descs = [desc for desc in (spec.op_a, spec.op_b, spec.desc_c, spec.desc_out) if desc is not None]
    ranks = enough_ranks(call.verb, call.nprocs, descs)
    hardware = None if call.hardware is None else find_hardware(call.hardware)
    topology = Topology(ranks, shared=True) if hardware is None else hardware.topology
    desc_d = spec.output(ranks)
    scales = _scales(call, spec, None)
    epilogue = _epilogue(call, spec, desc_d, scales)
    return PlannedMatmul(spec, spec.choose(desc_d, ranks, topology, hardware), desc_d, None, epilogue, scales=scales)


class _Agreed(NamedTuple):
    """The checked and agreed arguments of a call with matrices.

    Args:
        spec: the arguments (global).
        plan: of the product (global).
        desc_d: descriptor of D (global).
        epilogue: with operands that were checked; None for none (global).
        scales: checked; None for none (global).
        nelements: elements of memory of a new D (global).
        key: equal for calls that can use one planned product, if they have neither epilogue nor scales (global).
    """

    spec: ProductArguments
    plan: ProductPlan
    desc_d: MatrixDescriptor
    epilogue: ProductEpilogue | None
    scales: Scales | None
    nelements: int
    key: Any


def _agreed(call: ProductRequest, runtime: Runtime) -> _Agreed:
    """**Collective.** The checked and agreed arguments of a call with matrices, and its plan."""
    verb, matrices = call.verb, call.matrices
    out = call.out if isinstance(call.out, DistMatrix) else None
    with runtime.local_step(verb):
        for x in matrices:
            check_context(verb, x, runtime)
        for name, value in (("nprocs", call.nprocs), ("hardware", call.hardware)):
            if value is not None:
                raise errors.ArgumentError(f"{verb}: {name} is for planning from descriptors or sizes; leave it out")
        spec = ProductArguments.checked(call)
        desc_d = spec.output(runtime.nprocs)
        runtime.check_place(verb, desc_d, "out")
        scales = _scales(call, spec, runtime)
        epilogue = _epilogue(call, spec, desc_d, scales)
        if epilogue is not None:
            spec = spec._replace(epilogue=epilogue.form)
        plan = spec.choose(desc_d, runtime.nprocs, runtime.topology, measured=runtime.measured)
        arguments, needed = spec.arguments(), runtime.nelements(desc_d)
        shared = arguments.copy()
        if epilogue is not None:
            shared |= epilogue.arguments()
            epilogue = epilogue.planned(verb, runtime, None if out is None else out.stored(verb))
        if scales is not None:
            shared |= scales.arguments()
        if out is not None:
            check_overlap(verb, call.a, call.b, call.c, out)
    nelements = runtime.agree(verb, shared, None, (needed,))[0]
    return _Agreed(spec, plan, desc_d, epilogue, scales, nelements, (plan, nelements, spelled(arguments)))


def _kept(call: ProductRequest, runtime: Runtime, agreed: _Agreed) -> PlannedMatmul:
    """**Collective.** The planned product of a call, which all ranks have, or none."""
    planned = _planned(call, runtime, agreed)
    runtime.agree(f"{call.verb}: workspace", {})
    return planned


def _planned(call: ProductRequest, runtime: Runtime, agreed: _Agreed) -> PlannedMatmul:
    """**Collective.** The planned product of a call; the next collective call is an agreement."""
    spec, plan, desc_d, epilogue, scales, nelements, _ = agreed
    if plan.transport != "push":
        with runtime.building(call.verb):
            return PlannedMatmul(spec, plan, desc_d, runtime, epilogue, nelements, scales)
    operands = call.a, call.b, call.c, call.out if isinstance(call.out, DistMatrix) else None

    def pushed(plan: ProductPlan) -> PushedMatmul:
        return PushedMatmul(spec, plan, desc_d, runtime, epilogue, nelements, scales)

    planned = pushed(tuned(runtime, spec, plan, desc_d, pushed, operands) if spec.autotune else plan)
    planned.rehearse(*operands, autotune=spec.autotune)
    return planned


def _scales(call: ProductRequest, spec: ProductArguments, runtime: Runtime | None) -> Scales | None:
    given = call.scale_a, call.scale_b, call.scale_d, call.amax
    return Scales.checked(call.verb, runtime, spec.dtypes.a, *given)


def _epilogue(
    call: ProductRequest, spec: ProductArguments, desc_d: MatrixDescriptor, scales: Scales | None
) -> ProductEpilogue | None:
    """The epilogue of a call, with the multiplication by scale_d as its last step."""
    epilogue = scaled(call.verb, call.epilogue, None if scales is None else scales.d)
    return None if epilogue is None else ProductEpilogue.checked(call.verb, epilogue, spec.dtype, desc_d)
