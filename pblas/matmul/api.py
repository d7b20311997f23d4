"""pmatmul and plan_matmul: validate on all ranks, plan, execute."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING

from pblas.core.call import agreed, call, made, planned, runtime_of, step
from pblas.core.checks import enough_ranks
from pblas.core.options import Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.arguments import ProductCall, ProductOptions
from pblas.matmul.product import Execution, Extras, PlannedMatmul, Product
from pblas.matmul.pushed import PushedMatmul
from pblas.matrices.matrix import DistMatrix
from pblas.simulation.hardware import Hardware, Topology
from pblas.simulation.hardware_file import find_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Scalar
    from pblas.backends.engine_limits import Reproducible
    from pblas.core.operation import Bound
    from pblas.epilogues import Epilogue
    from pblas.matmul.product_plan import ProductPlan
    from pblas.runtime.runtime import Runtime

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
    dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    wire_dtype: DTypeLike | None = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    autotune: bool = False,
    strict: bool = False,
    reproducible: Reproducible | None = None,
    epilogue: str | Epilogue | None = None,
    scale_a: object = None,
    scale_b: object = None,
    scale_d: object = None,
    amax: object = None,
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
        out: matrix that receives D, or descriptor of D; None for the layout of C, or without C the layout
            whose plan is predicted to be the fastest (global).
        dtype: dtype of A and B. Needed with descriptors; None for that of A, or with sizes float64 (global).
        out_dtype: dtype of D. A and B of 16 bits may have a D of their dtype or float32. A and B of 8 bits,
            "float8_e4m3fn" or one of them "float8_e5m2", may have a D in bfloat16, float16 or float32. None for that of
            `out` or C, else that of A, or bfloat16 for 8 bits. C has the dtype of D, or 16 bits if D is float32
            (global).
        wire_dtype: dtype in which partial products travel if D has 16 bits: "float32", or that of D. None for that of
            a bfloat16 D, and for "float32" of a float16 D, whose partial products may overflow (global).
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
        reproducible: D gets the same bits for any number of ranks, any layouts, storage orders, transports, chunks, and
            with overlap on or off, on processors, or GPUs, of one kind. "exact", for float64 and float32: also with any
            BLAS, and on any processor and GPU; products of pieces of K are exact and rounded once. None for that of the
            context (global).
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
            limit. If no plan fits, the planner takes the one that needs least. Not counted are copies of operands in
            memory of the caller, as of `from_local`, that other ranks read (global).
        queue: stream slot, 0..7. On GPUs that push data, executions of this plan may run concurrently with executions
            of plans with other queues, on other streams, but not with other calls. Each queue has its own workspace,
            and 64 MiB for GEMMs. All ranks must still call in the same order. None: executions run alone (global).
        hardware: machine to plan for, when planning from descriptors or sizes: a `Hardware`, the name of a preset or
            of a TOML file, see `Plan.simulate`; None for one node whose ranks share its memory (global).

    Returns:
        The planned product: `print(mm.explain())`, `mm.execute(a, b)`.

    Raises:
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
        PlanError: strict=True, and the layouts do not conform; the text says where.
        WorkspaceError: a rank without memory for the workspace, or for a new D.
        BackendError: reproducible=True, and the BLAS of this processor or GPU forms elements in different orders.
        ContextError: the context is closed or broken.
        PeerTimeout: a rank does not arrive; the context is broken then.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(8, 8, 4)
    >>> plan_matmul(rows, rows, dtype="float64").plan.name
    'AllGatherGemm'
    >>> plan_matmul(512, 512, 65536, nprocs=8).plan.name
    'GemmReduceScatter'
    """
    opname = "plan_matmul"
    modes = tf32, fast_accumulate, autotune
    options = ProductOptions(transa, transb, overlap, chunks, *modes, strict, memory_nbytes, queue, reproducible)
    scales = scale_a, scale_b, scale_d, amax
    arguments = ProductCall(
        a, b, c, out, alpha, beta, options, epilogue, scales, out_dtype, wire_dtype, dtype, nprocs, hardware
    )
    matrices = {"a": a, "b": b, "c": c, "out": out}
    if not any(isinstance(x, DistMatrix) for x in matrices.values()):
        return _plan_layouts(opname, arguments)
    runtime = runtime_of(opname, matrices)
    if not runtime.topology.push:
        return planned(opname, PlannedMatmul, Product.bind, matrices, arguments)
    with runtime.call(opname):
        bound, operation = _agreed(opname, runtime, partial(Product.bind, opname, runtime, arguments))
        if operation.is_pushed:
            return _pushed(opname, runtime, bound, operation)
        return made(opname, runtime, bound, PlannedMatmul)


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
    out_dtype: DTypeLike | None = None,
    wire_dtype: DTypeLike | None = None,
    overlap: bool = True,
    chunks: int | None = None,
    tf32: bool = False,
    fast_accumulate: bool = False,
    strict: bool = False,
    reproducible: Reproducible | None = None,
    epilogue: str | Epilogue | None = None,
    scale_a: object = None,
    scale_b: object = None,
    scale_d: object = None,
    amax: object = None,
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
            layout, or without C in the layout whose plan is predicted to be the fastest (global).
        overlap: move data while the GEMM runs (global).
        out_dtype, wire_dtype, chunks, tf32, fast_accumulate, strict, reproducible, epilogue: see `plan_matmul`
            (global).
        scale_a, scale_b, scale_d: see `plan_matmul` (global).
        amax: see `plan_matmul` (local).

    Returns:
        D, `out` itself if that is a matrix. The caller may overwrite a, b and c when the call has returned.

    Raises:
        as `plan_matmul`.

    `plan_matmul(...).explain()` shows the number of bytes that move. Calls with the same layouts, scalars and options
    use one plan, whatever the matrices: a context keeps the plans of the last calls, if their workspace has at most
    32 MiB. Where GPUs push data it keeps the last 64, which share their workspace.

    Source: PBLAS, p?gemm.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.from_function(lambda i, j: i + 2.0 * j, (2, 3))
    ...     pblas.pmatmul(a, a, transb="T").to_global(None).tolist()
    [[20.0, 26.0], [26.0, 35.0]]
    """
    opname = "pmatmul"
    modes = tf32, fast_accumulate
    options = ProductOptions(transa, transb, overlap, chunks, *modes, strict=strict, reproducible=reproducible)
    scales = scale_a, scale_b, scale_d, amax
    arguments = ProductCall(a, b, c, out, alpha, beta, options, epilogue, scales, out_dtype, wire_dtype)
    matrices = {"a": a, "b": b, "c": c, "out": out}
    runtime = runtime_of(opname, matrices)
    if not runtime.topology.push:
        return call(opname, Product.bind, matrices, arguments)
    with runtime.call(opname):
        return _pushed_now(opname, runtime, arguments)


def _plan_layouts(opname: str, arguments: ProductCall) -> PlannedMatmul:
    """The planned product of a call with descriptors or sizes: it cannot be executed."""
    if any(isinstance(x, Integral) for x in arguments[:3]):
        arguments = arguments.with_layouts(opname)
    arguments.check_kinds(opname, placed=False)
    ranks = enough_ranks(opname, arguments.nprocs, [desc for desc in arguments[:4] if desc is not None])
    hardware = None if arguments.hardware is None else find_hardware(arguments.hardware)
    topology = Topology(ranks, shared=True) if hardware is None else hardware.topology
    bound = Product.bind(opname, None, arguments, ranks)
    operation = Product.made(opname, bound.form, ranks, topology)
    if hardware is not None:
        operation = replace(operation, chosen=operation.spec.choose(opname, operation.d, ranks, topology, hardware))
    return PlannedMatmul(operation, None, ranks, topology, bound)


def _pushed_now(opname: str, runtime: Runtime, arguments: ProductCall) -> DistMatrix:
    """**Collective.** A product where ranks may push data, by a kept plan if all ranks have one that serves `out`."""

    def bind() -> Bound[DistMatrix]:
        bound = Product.bind(opname, runtime, arguments)
        kept = runtime.kept.get(_key(bound), PushedMatmul)
        return bound._replace(fact=int(kept is None or not kept.serves(bound.out)))

    bound, operation = _agreed(opname, runtime, bind)
    if not operation.is_pushed:
        return step(opname, runtime, lambda: bound._replace(fact=0))
    key = _key(bound)
    pushed = None if bound.fact else runtime.kept.get(key, PushedMatmul)
    if pushed is None:
        pushed = _pushed(opname, runtime, bound, operation)
        pushed.forget_operands()
    runtime.kept.keep(key, pushed)
    extras: Extras = bound.local
    a, b = bound.reads.values()
    return pushed.launch(Execution(a, b, bound.old, bound.out, extras.operands, scales=extras.scales))


def _agreed(opname: str, runtime: Runtime, bind: Callable[[], Bound[DistMatrix]]) -> tuple[Bound[DistMatrix], Product]:
    bound, operation = agreed(opname, runtime, bind)
    assert isinstance(operation, Product), "bound above"
    return bound, operation


def _key(bound: Bound[DistMatrix]) -> tuple[object, ...]:
    """Key of a kept plan of the push transport: its launches contain alpha and beta (global)."""
    return *bound.key, bound.scalars["alpha"], bound.scalars["beta"]


def _pushed(opname: str, runtime: Runtime, bound: Bound[DistMatrix], operation: Product) -> PushedMatmul:
    spec, operands = operation.spec, (*bound.reads.values(), bound.old, bound.out)
    plan = spec.choose(opname, operation.d, runtime.nprocs, runtime.topology, measured=runtime.measured)

    def pushed(plan: ProductPlan) -> PushedMatmul:
        chosen = replace(operation, chosen=plan)
        return PushedMatmul(chosen, runtime, runtime.nprocs, runtime.topology, bound)

    autotune = spec.options.autotune
    if autotune:
        from pblas.matmul.autotune import tuned

        plan = tuned(runtime, spec, plan, operation.d, pushed, operands)
    planned = pushed(plan)
    planned.rehearse(*operands, autotune=autotune)
    runtime.agree(f"{opname}: workspace", {})
    return planned
