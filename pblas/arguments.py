"""Arguments of a product, checked on one rank: what pmatmul and plan_matmul accept."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends.engine import MAX_QUEUES
from pblas.backends.gemm import accumulator_dtype
from pblas.execute.operands import Orders
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrix import DistMatrix
from pblas.planner import choose, choose_layouts, choose_output
from pblas.runtime import checked_dtype, checked_flag, checked_scalar, shared_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.gemm import Array
    from pblas.machines import Hardware
    from pblas.measured import Measured
    from pblas.plan import Machine, Plan, Times
    from pblas.runtime import Runtime


class ProductArguments:
    """Arguments of a product, checked on this rank: the error, if any, is in `error`."""

    def __init__(
        self,
        verb: str,
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
        tf32: Any,
        autotune: Any,
        strict: Any,
        memory_nbytes: Any = None,
        epilogue: Any = None,
        queue: Any = None,
    ) -> None:
        self.verb = verb
        self.transa, self.transb, self.overlap = transa, transb, checked_flag(verb, "overlap", overlap)
        self.tf32, self.autotune = checked_flag(verb, "tf32", tf32), checked_flag(verb, "autotune", autotune)
        self.strict = checked_flag(verb, "strict", strict)
        self.nelements: int | None = None
        self.given_epilogue = epilogue
        self.follows = ""  # what of it the times of roads depend on
        for name, trans in (("transa", transa), ("transb", transb)):
            if not isinstance(trans, str) or trans not in ("N", "T", "C"):
                raise errors.ArgumentError(f"{verb}: {name} must be 'N', 'T' or 'C', got {trans!r}")
        placed = any(isinstance(x, DistMatrix) for x in (a, b, c, out))
        allowed = DistMatrix if placed else MatrixDescriptor
        for name, x in (("a", a), ("b", b), ("c", c)):
            if not isinstance(x, allowed) and not (name == "c" and x is None):
                kind = "DistMatrix" if placed else "DistMatrix or MatrixDescriptor"
                raise errors.ArgumentError(f"{verb}: {name} must be a {kind}, got {type(x).__name__}")
        if out is not None and not isinstance(out, DistMatrix | MatrixDescriptor):
            raise errors.ArgumentError(
                f"{verb}: out must be a DistMatrix, a descriptor or None, got {type(out).__name__}"
            )
        self.chunks = _positive(verb, "chunks", chunks)
        self.memory_nbytes = _positive(verb, "memory_nbytes", memory_nbytes)
        self.queue = self._checked_queue(queue)
        self.dtype = self._common_dtype(a, b, c, out, dtype)
        self.wire = checked_wire(verb, wire_dtype, self.dtype)
        self.desc_a, self.desc_b, self.desc_c = (x.desc if isinstance(x, DistMatrix) else x for x in (a, b, c))
        self.desc_out = out.desc if isinstance(out, DistMatrix) else out
        self.alpha, self.beta = (
            checked_scalar(verb, name, value, self.dtype) for name, value in (("alpha", alpha), ("beta", beta))
        )
        self.marks = tuple(isinstance(x, DistMatrix) and x.conj for x in (a, b))
        conj = [trans == "C" for trans in (transa, transb)]
        self.conj = tuple(mark != c and self.dtype.kind == "c" for mark, c in zip(self.marks, conj, strict=True))
        self.op_a = self.desc_a if transa == "N" else self.desc_a.T
        self.op_b = self.desc_b if transb == "N" else self.desc_b.T
        self._check_sizes()
        if self.beta != 0 and c is None:
            raise errors.ArgumentError(f"{verb}: beta is {self.beta!r} but there is no C to scale; pass c=, or beta=0")
        for name, x in (("C", c), ("out", out)):
            if isinstance(x, DistMatrix) and x.conj:
                raise errors.ArgumentError(
                    f"{verb}: {name} is a conjugated view (.H), which cannot be written or added"
                )

    def _checked_queue(self, queue: Any) -> int | None:
        if queue is None:
            return None
        if isinstance(queue, bool) or not isinstance(queue, Integral) or not 0 <= int(queue) < MAX_QUEUES:
            raise errors.ArgumentError(
                f"{self.verb}: queue must be None or an integer of 0..{MAX_QUEUES - 1}, got {queue!r}"
            )
        if not self.overlap:
            raise errors.ArgumentError(
                f"{self.verb}: with overlap=False kernels wait that fill a GPU, beside which nothing runs: give a plan "
                "with a queue overlap=True"
            )
        return int(queue)

    def _common_dtype(self, a: Any, b: Any, c: Any, out: Any, dtype: Any) -> np.dtype[Any]:
        if isinstance(a, MatrixDescriptor):
            if dtype is None:
                raise errors.DTypeError(f"{self.verb}: descriptors have no dtype; pass dtype='float64'")
            return checked_dtype(self.verb, dtype)
        found: np.dtype[Any] = checked_dtype(self.verb, a.dtype if dtype is None else dtype)
        for name, x in (("A", a), ("B", b), ("C", c), ("out", out)):
            if isinstance(x, DistMatrix) and x.dtype != found:
                raise errors.DTypeError(
                    f"{self.verb}: {name} is {x.dtype.name}, {'A is ' if dtype is None else 'dtype= says '}{found.name}"
                    f"; all matrices must have one dtype: convert with ctx.from_local(X.local.astype(...), X.desc)"
                )
        return found

    def _check_sizes(self) -> None:
        (m, k), (k_b, n) = self.op_a.shape, self.op_b.shape
        if k != k_b:
            raise errors.DescriptorError(
                f"{self.verb}: A and B disagree on K: op(A) is {m} x {k} (transa={self.transa!r}), "
                f"op(B) is {k_b} x {n} (transb={self.transb!r}); columns of op(A) must equal rows of op(B)"
            )
        self.m, self.n, self.k = m, n, k
        for name, desc in (("C", self.desc_c), ("out", self.desc_out)):
            if desc is not None and desc.shape != (m, n):
                raise errors.DescriptorError(
                    f"{self.verb}: {name} is {desc.m} x {desc.n}, op(A) op(B) is {m} x {n}; make them agree"
                )

    def choose(
        self,
        d: MatrixDescriptor,
        nprocs: int,
        machine: Machine,
        hardware: Hardware | None = None,
        measured: Measured | None = None,
    ) -> Plan:
        """The plan for D under `d`, on this machine or on `hardware`, with the road that was measured if any was."""
        options: dict[str, Any] = {"overlap": self.overlap, "chunks": self.chunks, "strict": self.strict}
        options |= {"memory_nbytes": self.memory_nbytes, "hardware": hardware, "queue": self.queue}
        options["wire"] = "" if self.wire == self.dtype else self.wire.name
        if measured is not None:
            options["known"] = lambda plan: self._times(measured, plan)
        try:
            return choose(self.dtype.name, self.op_a, self.op_b, d, nprocs=nprocs, machine=machine, **options)
        except errors.PlanError as error:
            raise errors.PlanError(f"{self.verb}: {error}") from None

    def _times(self, measured: Measured, plan: Plan) -> Times:
        """Those of a plan's roads; if it shall not be measured, those without what follows are better than none."""
        found = measured.times(self.key(plan))
        return found or (() if self.autotune else measured.times(self.key(plan, alone=True)))

    def key(self, plan: Plan, *, alone: bool = False) -> str:
        """What the times of a plan's roads depend on beside the machine (global).

        Args:
            plan: of this product (global).
            alone: without what follows it (global).
        """
        queue = None if plan.queue is None else 0  # any: which roads are compared depends on it
        product = replace(plan, road=None, measured=(), why="", queue=queue)
        followed = f", {self.follows}" if self.follows and not alone else ""
        return f"{product!r}, tf32={self.tf32}, chunks={self.chunks}{followed}"

    def output(self, nprocs: int) -> MatrixDescriptor:
        """Descriptor of D: as asked for, as C, or where the cheapest plan puts it."""
        if self.desc_out is not None:
            if self.desc_c is not None and self.beta != 0 and not self.desc_c.same_distribution(self.desc_out):
                raise errors.DescriptorError(
                    f"{self.verb}: C and out are distributed differently: {shared_descriptor(self.desc_c)}, "
                    f"{shared_descriptor(self.desc_out)}; give them one layout"
                )
            return self.desc_out
        if self.desc_c is not None:
            return self.desc_c
        order: Literal["F", "C"] = "C" if self.desc_a.order == self.desc_b.order == "C" else "F"
        return choose_output(self.dtype.name, self.op_a, self.op_b, nprocs=nprocs, order=order)

    def orders(self, plan: Plan, d: MatrixDescriptor) -> Orders:
        """Storage orders of the operands as the plan sees them."""
        left, right, result = (self.op_b.T, self.op_a.T, d.T) if plan.transposed else (self.op_a, self.op_b, d)
        return Orders(right.order, result.order, left.order)

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
            "tf32": self.tf32,
            "autotune": self.autotune,
            "strict": self.strict,
            "memory_nbytes": self.memory_nbytes,
            "queue": self.queue,
            "conjugated": self.marks,
            "a": shared_descriptor(self.desc_a),
            "b": shared_descriptor(self.desc_b),
        }
        for name, desc in (("c", self.desc_c), ("out", self.desc_out)):
            found[name] = None if desc is None else shared_descriptor(desc)
        return found

    def check_execution(self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, desc_d: MatrixDescriptor) -> None:
        """Raise what is wrong with the matrices of an execution on this rank."""
        planned = (("A", a, self.desc_a), ("B", b, self.desc_b), ("C", c, self.desc_c or desc_d), ("out", out, desc_d))
        for name, x, desc in planned:
            if x is None and name in ("C", "out"):
                continue
            if not isinstance(x, DistMatrix):
                raise errors.ArgumentError(f"execute: {name} must be a DistMatrix, got {type(x).__name__}")
            if x.runtime is not runtime:
                raise errors.ArgumentError(
                    f"execute: {name} belongs to another context; make all matrices with one context"
                )
            if x.dtype != self.dtype:
                raise errors.DTypeError(f"execute: {name} is {x.dtype.name}, planned was {self.dtype.name}; plan anew")
            if x.desc is not desc and x.desc != desc and not _same_layout(x.desc, desc):
                raise errors.DescriptorError(
                    f"execute: {name} is {shared_descriptor(x.desc)}, planned was {shared_descriptor(desc)}; plan anew"
                )
            if name in ("A", "B") and x.conj != self.marks[name == "B"]:
                raise errors.ArgumentError(
                    f"execute: {name} is{'' if x.conj else ' not'} conjugated, unlike planned; plan anew"
                )
            if name in ("C", "out") and x.conj:
                raise errors.ArgumentError(
                    f"execute: {name} is a conjugated view (.H), which cannot be written or added"
                )
        if c is None and self.beta != 0:
            raise errors.ArgumentError(f"execute: beta is {self.beta!r} but there is no C to scale; pass c")
        if out is not None:
            check_overlap("execute", a, b, c, out)


def checked_wire(verb: str, wire_dtype: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which partial products of matrices of a dtype travel: by default their own.

    Raises:
        DTypeError: neither that nor the dtype in which they are added.

    >>> checked_wire("pmatmul", "float32", np.dtype("float16"))
    dtype('float32')
    """
    if wire_dtype is None:
        return dtype
    total = accumulator_dtype(dtype)
    try:
        wire = checked_dtype(verb, wire_dtype)
    except errors.DTypeError:
        wire = None
    if wire is None or wire not in (dtype, total):
        names = " or ".join(dict.fromkeys((dtype.name, total.name)))
        raise errors.DTypeError(f"{verb}: wire_dtype must be None or {names}, got {wire_dtype}")
    return wire


def enough_ranks(verb: str, nprocs: Any, descs: Iterable[MatrixDescriptor]) -> int:
    """The ranks that are planned for: those asked for, or as many as the largest grid has.

    Raises:
        ArgumentError: no number of ranks, or fewer than a grid has.
    """
    largest = max(desc.nprocs for desc in descs)
    if nprocs is None:
        return largest
    if isinstance(nprocs, bool) or not isinstance(nprocs, Integral) or nprocs < largest:
        raise errors.ArgumentError(
            f"{verb}: nprocs must be an integer >= {largest}, the ranks of the largest grid, got {nprocs!r}"
        )
    return int(nprocs)


def _positive(verb: str, name: str, value: Any) -> int | None:
    """A value that is None or a positive integer; ArgumentError for any other."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise errors.ArgumentError(f"{verb}: {name} must be None or a positive integer, got {value!r}")
    return int(value)


def free_layouts(
    m: Any, n: Any, k: Any, options: dict[str, Any], nprocs: Any, memory_nbytes: Any
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of A, B and D for sizes that stand in place of matrices.

    Raises:
        ArgumentError: what is no size, no number of ranks, or does not go with free layouts.
    """
    for name, value, least in (("m", m, 0), ("n", n, 0), ("k", k, 0), ("nprocs", nprocs, 1)):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise errors.ArgumentError(
                f"plan_matmul: {name} must be an integer >= {least}, got {value!r}; "
                f"plan_matmul(m, n, k, nprocs=8) chooses the layouts"
            )
    memory_nbytes = _positive("plan_matmul", "memory_nbytes", memory_nbytes)
    if options["out"] is not None:
        raise errors.ArgumentError("plan_matmul: out= says a layout, sizes leave all of them open; pass descriptors")
    options["dtype"] = "float64" if options["dtype"] is None else options["dtype"]
    dtype = checked_dtype("plan_matmul", options["dtype"])
    m, n, k, nprocs = map(int, (m, n, k, nprocs))
    a, b, d = choose_layouts(m, n, k, dtype.name, nprocs=nprocs, memory_nbytes=memory_nbytes)
    return (a if options["transa"] == "N" else a.T), (b if options["transb"] == "N" else b.T), d


def check_overlap(verb: str, a: DistMatrix, b: DistMatrix | None, c: DistMatrix | None, out: DistMatrix) -> None:
    """Raise ArgumentError unless D can be written in `out`, which may be C itself and overlaps nothing else."""
    shadow = out.runtime.backend.shadow
    if not getattr(out.stored(verb).flags, "writeable", True):  # BLAS would write all the same; CuPy has no such flag
        raise errors.ArgumentError(f"{verb}: out is made of a read-only array; give it memory that can be written")
    d = shadow(out.stored(verb))
    for name, matrix in (("A", a), ("B", b), ("C", c)):
        if matrix is None:
            continue
        x = shadow(matrix.stored(verb))
        if name == "C" and is_same_memory(x, d):
            continue
        if shares_memory(x, d):
            same = " in part; it may be C itself" if name == "C" else ""
            raise errors.ArgumentError(f"{verb}: out overlaps {name}{same}; give it memory of its own")


def _same_layout(first: MatrixDescriptor, second: MatrixDescriptor) -> bool:
    return first.order == second.order and first.same_distribution(second)


def shares_memory(x: Array, y: Array) -> bool:
    """Whether two arrays overlap, or so it seems where that is hard to find out."""
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]  # the stub knows two values only
    except np.exceptions.TooHardError:
        return True


def is_same_memory(x: Array, y: Array) -> bool:
    """Whether two arrays are the same elements in the same places."""
    return (
        x.shape == y.shape
        and x.strides == y.strides
        and x.__array_interface__["data"][0] == y.__array_interface__["data"][0]
    )
