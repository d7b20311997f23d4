"""pmatmul and plan_matmul: validate on all ranks, plan, execute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import ml_dtypes
import numpy as np

from pblas import errors
from pblas.backends.gemm import accumulator_dtype, add_scaled
from pblas.execute import executor
from pblas.execute.operands import Operands, Orders
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrix import DistMatrix
from pblas.plan import Machine, Plan
from pblas.planner import choose, choose_output
from pblas.runtime import checked_dtype, shared_descriptor

if TYPE_CHECKING:
    from pblas.backends.gemm import Array
    from pblas.execute import Executor
    from pblas.runtime import Runtime

Trans = Literal["N", "T", "C"]
Out = MatrixDescriptor | DistMatrix | None


class Multiplication:
    """A planned product: the plan, its workspace, and one call that runs it. Made by `plan_matmul`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    def __init__(self, spec: _Spec, plan: Plan, desc_d: MatrixDescriptor, runtime: Runtime | None) -> None:
        self.plan = plan
        """What will be run (global)."""
        self.out = desc_d
        """Descriptor of D (global)."""
        self._spec, self._runtime = spec, runtime
        self._executor: Executor | None = None
        self._number = 0
        if runtime is not None:
            self._number = runtime.next_number()
            self._executor = self._prepare(runtime)
            runtime.matrices.add(self)

    def explain(self) -> str:
        """The plan, why it was chosen, and what it will move: ten lines."""
        return self.plan.explain()

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that this rank holds now (local)."""
        return self._executor.workspace_nbytes if self._executor else 0

    def execute(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** D = alpha op(A) op(B) + beta C with matrices like the planned ones.

        Args:
            a: like the A that was planned: same descriptor and dtype (global).
            b: like B (global).
            c: like C; needed if beta is not 0 (global).
            out: where D goes; may be `c`; None for a new matrix (global).

        Returns:
            D, under the planned descriptor. When the call returns, a, b and c may be overwritten.

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap.
            DescriptorError, DTypeError: a matrix that is not like the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        runtime, executor_, spec = self._runtime, self._executor, self._spec
        if runtime is None:
            raise errors.ArgumentError(
                "execute: planned from descriptors, without a context; plan with matrices to execute"
            )
        runtime.check_open("execute")
        if executor_ is None:
            raise errors.ContextError("execute: the planned product is closed")
        error = spec.execute_error(runtime, a, b, c, out, self.out)
        verb = f"execute of planned product {self._number}"
        if error is not None:
            runtime.agree(verb, _NOTHING, error, (0, 0, 0, 0))
            raise AssertionError("an agreement with an error raises")
        if out is None and (c is None or not spec.in_place):
            local = runtime.empty(self.out, spec.dtype, spec.nelements)
            result = DistMatrix(self.out, local, runtime)
        else:
            result = c if out is None and c is not None else out  # type: ignore[assignment]
        operands = self._operands(a, b, c, result)
        scratch = executor_.publish(operands)
        scratch = bool(runtime.agree(verb, _NOTHING, None, (int(scratch), 0, 0, 0))[0])
        if spec.alpha == 0 or self.plan.product.k == 0:
            add_scaled(spec.beta, operands.result if operands.old is None else operands.old, 0.0, operands.result)
        else:
            if executor_.prepare(scratch=scratch):
                runtime.agree(f"{verb}: staged", _NOTHING)
            executor_.run(operands, scratch=scratch)
        if runtime.backend.shared and runtime.nprocs > 1:
            runtime.agree(f"end of {verb}", _NOTHING)
        return result

    def close(self) -> None:
        """Drop the workspace; its memory is reused once all ranks have dropped theirs (local)."""
        self._executor = None

    def detach(self) -> None:
        """Forget the workspace: the context is about to free it."""
        self._executor = None

    def __enter__(self) -> Multiplication:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Multiplication {self.plan.name} {self.plan.product.m} x {self.plan.product.n} x {self.plan.product.k}>"
        )

    def _prepare(self, runtime: Runtime) -> Executor:
        spec = self._spec
        try:
            return executor(self.plan, runtime.backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))
        except errors.WorkspaceError:
            if not runtime.backend.falls_back:
                raise
            runtime.backend.shared = False  # raised on all ranks alike: from here on the context sends messages
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.machine)
            return executor(self.plan, runtime.backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))

    def _operands(self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix) -> Operands:
        spec = self._spec
        left, right, result = a.stored("execute"), b.stored("execute"), d.stored("execute")
        if spec.transa != "N":
            left = left.T
        if spec.transb != "N":
            right = right.T
        old = None
        if c is not None and spec.beta != 0:
            old = result if c is d else c.stored("execute")
            if old is not result and _same_memory(old, result):
                old = result
        conj_a, conj_b = spec.conj
        if self.plan.transposed:
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
        return Operands(left, right, result, old, (conj_a, conj_b), spec.alpha, spec.beta)


_NOTHING: dict[str, Any] = {}


class _Spec:
    """Arguments of a product, checked on this rank: the error, if any, is in `error`."""

    def __init__(
        self,
        a: Any,
        b: Any,
        c: Any,
        *,
        transa: Any,
        transb: Any,
        alpha: Any,
        beta: Any,
        out: Any,
        dtype: Any,
        wire_dtype: Any,
        overlap: Any,
        chunks: Any,
    ) -> None:
        self.transa, self.transb, self.overlap, self.chunks = transa, transb, bool(overlap), chunks
        self.in_place = False
        self.nelements: int | None = None
        for name, trans in (("transa", transa), ("transb", transb)):
            if trans not in ("N", "T", "C"):
                raise errors.ArgumentError(f"pmatmul: {name} must be 'N', 'T' or 'C', got {trans!r}")
        kinds = {isinstance(x, DistMatrix) for x in (a, b)} | ({isinstance(c, DistMatrix)} if c is not None else set())
        allowed = DistMatrix if True in kinds else MatrixDescriptor
        for name, x in (("a", a), ("b", b), ("c", c)):
            if not isinstance(x, allowed) and not (name == "c" and x is None):
                kind = "DistMatrix" if True in kinds else "DistMatrix or MatrixDescriptor"
                raise errors.ArgumentError(f"pmatmul: {name} must be a {kind}, got {type(x).__name__}")
        if out is not None and not isinstance(out, DistMatrix | MatrixDescriptor):
            raise errors.ArgumentError(
                f"pmatmul: out must be a DistMatrix, a descriptor or None, got {type(out).__name__}"
            )
        if chunks is not None and not (isinstance(chunks, int) and chunks >= 1):
            raise errors.ArgumentError(f"pmatmul: chunks must be None or a positive integer, got {chunks!r}")
        self.dtype = self._common_dtype(a, b, c, out, dtype)
        self.wire = self._wire(wire_dtype)
        self.desc_a, self.desc_b, self.desc_c = (x.desc if isinstance(x, DistMatrix) else x for x in (a, b, c))
        self.desc_out = out.desc if isinstance(out, DistMatrix) else out
        self.alpha, self.beta = self._scalar("alpha", alpha), self._scalar("beta", beta)
        self.marks = tuple(isinstance(x, DistMatrix) and x.conj for x in (a, b))
        conj = [trans == "C" for trans in (transa, transb)]
        self.conj = tuple(mark != c and self.dtype.kind == "c" for mark, c in zip(self.marks, conj, strict=True))
        self.op_a = self.desc_a if transa == "N" else self.desc_a.T
        self.op_b = self.desc_b if transb == "N" else self.desc_b.T
        self._check_sizes()
        if self.beta != 0 and c is None:
            raise errors.ArgumentError(f"pmatmul: beta is {self.beta!r} but there is no C to scale; pass c=, or beta=0")
        for name, x in (("C", c), ("out", out)):
            if isinstance(x, DistMatrix) and x.conj:
                raise errors.ArgumentError(
                    f"pmatmul: {name} is a conjugated view (.H), which cannot be written or added"
                )

    @staticmethod
    def _common_dtype(a: Any, b: Any, c: Any, out: Any, dtype: Any) -> np.dtype[Any]:
        if isinstance(a, MatrixDescriptor):
            if dtype is None:
                raise errors.DTypeError("plan_matmul: descriptors have no dtype; pass dtype='float64'")
            return checked_dtype("plan_matmul", dtype)
        found: np.dtype[Any] = checked_dtype("pmatmul", a.dtype if dtype is None else dtype)
        for name, x in (("A", a), ("B", b), ("C", c), ("out", out)):
            if isinstance(x, DistMatrix) and x.dtype != found:
                raise errors.DTypeError(
                    f"pmatmul: {name} is {x.dtype.name}, {'A is ' if dtype is None else 'dtype= says '}{found.name}; "
                    f"all matrices must have one dtype: convert with ctx.from_local(X.local.astype(...), X.desc)"
                )
        return found

    def _wire(self, wire_dtype: Any) -> np.dtype[Any]:
        total = accumulator_dtype(self.dtype)
        wire = (
            self.dtype
            if wire_dtype is None
            else np.dtype(ml_dtypes.bfloat16 if wire_dtype == "bfloat16" else wire_dtype)
        )
        if wire not in (self.dtype, total):
            raise errors.DTypeError(f"pmatmul: wire_dtype must be {self.dtype.name} or {total.name}, got {wire_dtype}")
        return wire

    def _scalar(self, name: str, value: Any) -> complex:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | complex | np.number):
            raise errors.ArgumentError(f"pmatmul: {name} must be a number, got {value!r}")
        number = complex(value)
        if self.dtype.kind != "c":
            if number.imag != 0:
                raise errors.ArgumentError(
                    f"pmatmul: {name} is {value!r}, the matrices are {self.dtype.name}; it must be real"
                )
            return number.real
        return number

    def _check_sizes(self) -> None:
        (m, k), (k_b, n) = self.op_a.shape, self.op_b.shape
        if k != k_b:
            raise errors.DescriptorError(
                f"pmatmul: A and B disagree on K: op(A) is {m} x {k} (transa={self.transa!r}), op(B) is {k_b} x {n} "
                f"(transb={self.transb!r}); columns of op(A) must equal rows of op(B)"
            )
        self.m, self.n, self.k = m, n, k
        for name, desc in (("C", self.desc_c), ("out", self.desc_out)):
            if desc is not None and desc.shape != (m, n):
                raise errors.DescriptorError(
                    f"pmatmul: {name} is {desc.m} x {desc.n}, op(A) op(B) is {m} x {n}; make them agree"
                )

    def choose(self, d: MatrixDescriptor, nprocs: int, machine: Machine) -> Plan:
        """The plan for D under `d`."""
        sizes = (self.m, self.n, self.k, self.dtype.name)
        options = {"overlap": self.overlap, "chunks": self.chunks}
        return choose(*sizes, self.op_a, self.op_b, d, nprocs=nprocs, machine=machine, **options)  # type: ignore[arg-type]

    def output(self, nprocs: int) -> MatrixDescriptor:
        """Descriptor of D: as asked for, as C, or where the cheapest plan puts it."""
        if self.desc_out is not None:
            if self.desc_c is not None and self.beta != 0 and not self.desc_c.same_distribution(self.desc_out):
                raise errors.DescriptorError(
                    f"pmatmul: C and out are distributed differently: {shared_descriptor(self.desc_c)}, "
                    f"{shared_descriptor(self.desc_out)}; give them one layout"
                )
            return self.desc_out
        if self.desc_c is not None:
            return self.desc_c
        order: Literal["F", "C"] = "C" if self.desc_a.order == self.desc_b.order == "C" else "F"
        return choose_output(self.m, self.n, self.k, self.dtype.name, self.op_a, self.op_b, nprocs=nprocs, order=order)

    def orders(self, plan: Plan, d: MatrixDescriptor) -> Orders:
        """Storage orders of the operands as the plan sees them."""
        right, result = (self.op_a.T, d.T) if plan.transposed else (self.op_b, d)
        return Orders(right.order, result.order)

    def arguments(self) -> dict[str, Any]:
        """What must be equal on all ranks."""
        found = {
            "transa": self.transa,
            "transb": self.transb,
            "alpha": self.alpha,
            "beta": self.beta,
            "dtype": self.dtype.name,
            "wire_dtype": self.wire.name,
            "overlap": self.overlap,
            "chunks": self.chunks,
            "conjugated": self.marks,
            "a": shared_descriptor(self.desc_a),
            "b": shared_descriptor(self.desc_b),
        }
        for name, desc in (("c", self.desc_c), ("out", self.desc_out)):
            found[name] = None if desc is None else shared_descriptor(desc)
        return found

    def execute_error(
        self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, desc_d: MatrixDescriptor
    ) -> errors.PblasError | None:
        """What is wrong with the matrices of an execution on this rank."""
        planned = (("A", a, self.desc_a), ("B", b, self.desc_b), ("C", c, self.desc_c or desc_d), ("out", out, desc_d))
        for name, x, desc in planned:
            if x is None and name in ("C", "out"):
                continue
            if not isinstance(x, DistMatrix):
                return errors.ArgumentError(f"execute: {name} must be a DistMatrix, got {type(x).__name__}")
            if x.runtime is not runtime:
                return errors.ArgumentError(
                    f"execute: {name} belongs to another context; make all matrices with one context"
                )
            if x.dtype != self.dtype:
                return errors.DTypeError(f"execute: {name} is {x.dtype.name}, planned was {self.dtype.name}; plan anew")
            if x.desc is not desc and x.desc != desc:
                return errors.DescriptorError(
                    f"execute: {name} is {shared_descriptor(x.desc)}, planned was {shared_descriptor(desc)}; plan anew"
                )
            if name in ("A", "B") and x.conj != self.marks[name == "B"]:
                return errors.ArgumentError(
                    f"execute: {name} is{'' if x.conj else ' not'} conjugated, unlike planned; plan anew"
                )
            if name in ("C", "out") and x.conj:
                return errors.ArgumentError(
                    f"execute: {name} is a conjugated view (.H), which cannot be written or added"
                )
        if c is None and self.beta != 0:
            return errors.ArgumentError(f"execute: beta is {self.beta!r} but there is no C to scale; pass c")
        return overlap_error("execute", a, b, c, out) if out is not None else None


def overlap_error(
    verb: str, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, out: DistMatrix
) -> errors.PblasError | None:
    """What is wrong with where D goes: it may be C itself, and must not overlap anything else."""
    d = out.stored(verb)
    for name, x in (("A", a.stored(verb)), ("B", b.stored(verb)), ("C", None if c is None else c.stored(verb))):
        if x is None or not np.may_share_memory(x, d) or (name == "C" and _same_memory(x, d)):
            continue
        try:
            overlaps = np.shares_memory(x, d, max_work=10_000)
        except np.exceptions.TooHardError:
            overlaps = True
        if overlaps:
            same = " in part; it may be C itself" if name == "C" else ""
            return errors.ArgumentError(f"{verb}: out overlaps {name}{same}; give D memory of its own")
    return None


def _same_memory(x: Array, y: Array) -> bool:
    return (
        x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
        and x.strides == y.strides
        and x.shape == y.shape
    )


def plan_matmul(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
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
    nprocs: int | None = None,
) -> Multiplication:
    """Plan D = alpha op(A) op(B) + beta C. **Collective** with matrices; with descriptors it needs no MPI.

    Everything slow happens here; `execute` on the result is one call.

    Args:
        a: m x k matrix, or k x m with transa other than "N"; or its descriptor (global).
        b: k x n matrix, or n x k with transb other than "N"; or its descriptor (global).
        c: m x n matrix or descriptor, needed if beta is not 0 (global).
        transa: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read (global).
        out: D's matrix or descriptor; None for the layout of C, or else the one that moves the fewest bytes (global).
        dtype: of the matrices, needed with descriptors (global).
        wire_dtype: dtype in which partial products of 16-bit matrices travel: their own, or "float32" (global).
        overlap: move data while the GEMM runs (global).
        chunks: parts in which each shard moves; None lets the planner choose (global).
        nprocs: ranks, when planning from descriptors; None for the largest grid (global).

    Returns:
        The planned product: `print(mm.explain())`, `mm.execute(a, b)`.

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.
        PlanError: layouts that no plan serves; the text says what to change.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(8, 8, 4)
    >>> plan_matmul(rows, rows, dtype="float64").plan.name
    'AllGatherGemm'
    """
    return _plan("plan_matmul", a, b, c, _options(locals()), nprocs)


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
) -> DistMatrix:
    """**Collective.** D = alpha op(A) op(B) + beta C: `plan_matmul` and `execute` in one call.

    Args:
        a: m x k matrix, or k x m with transa other than "N" (global).
        b: k x n matrix, or n x k with transb other than "N" (global).
        c: m x n matrix, needed if beta is not 0 (global).
        transa: "N", "T" or "C" (global).
        transb: the same for b (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read (global).
        out: where D goes: a matrix, which may be `c` itself; a descriptor of a new one; None for a new one in C's layout
            or the layout that moves the fewest bytes (global).
        wire_dtype: see `plan_matmul` (global).
        overlap: move data while the GEMM runs (global).
        chunks: see `plan_matmul` (global).

    Returns:
        D, `out` itself if that is a matrix. When the call returns, a, b and c may be overwritten.

    Raises:
        as `plan_matmul`.

    Source: PBLAS, PxGEMM; the bytes that move are those of the plan, see `plan_matmul(...).explain()`.
    """
    if not isinstance(a, DistMatrix) and not isinstance(b, DistMatrix):
        raise errors.ArgumentError(
            f"pmatmul: a must be a DistMatrix, got {type(a).__name__}; ctx.from_global makes one"
        )
    with _plan("pmatmul", a, b, c, _options(locals() | {"dtype": None}), None) as planned:
        return planned.execute(a, b, c, out=out if isinstance(out, DistMatrix) else None)


_OPTIONS = ("transa", "transb", "alpha", "beta", "out", "dtype", "wire_dtype", "overlap", "chunks")


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _OPTIONS}


def _plan(verb: str, a: Any, b: Any, c: Any, options: dict[str, Any], nprocs: int | None) -> Multiplication:
    runtimes = [x.runtime for x in (a, b, c, options["out"]) if isinstance(x, DistMatrix)]
    if not runtimes:
        spec = _Spec(a, b, c, **options)
        descs = [desc for desc in (spec.op_a, spec.op_b, spec.desc_c, spec.desc_out) if desc is not None]
        ranks = nprocs or max(desc.nprocs for desc in descs)
        desc_d = spec.output(ranks)
        return Multiplication(spec, spec.choose(desc_d, ranks, Machine(ranks)), desc_d, None)
    runtime = runtimes[0]
    runtime.check_open(verb)
    error: errors.PblasError | None = None
    spec = plan = desc_d = None  # type: ignore[assignment]
    try:
        if any(other is not runtime for other in runtimes):
            raise errors.ArgumentError(f"{verb}: matrices of different contexts; make all of them with one context")
        spec = _Spec(a, b, c, **options)
        if isinstance(options["out"], DistMatrix):
            error = overlap_error(verb, a, b, c, options["out"])
        desc_d = spec.output(runtime.nprocs)
        plan = spec.choose(desc_d, runtime.nprocs, runtime.machine)
        arguments, needed = spec.arguments(), runtime.nelements(desc_d)
    except errors.PblasError as caught:
        error = caught
    if error is not None:
        runtime.agree(verb, {}, error, (0, 0, 0, 0))
    assert spec is not None and desc_d is not None and plan is not None, "an agreement with an error raises"
    spec.nelements = runtime.agree(verb, arguments, None, (needed, 0, 0, 0))[0]
    return Multiplication(spec, plan, desc_d, runtime)
