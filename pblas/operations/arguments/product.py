"""Arguments of pmatmul and plan_matmul, checked on one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.dtypes import RESULTS, ProductDtypes, accumulator_dtype
from pblas.backends.lanes import MAX_QUEUES
from pblas.core.checks import (
    check_conjugation,
    check_like_planned,
    check_not_conjugated,
    check_overlap,
    checked_positive,
    checked_trans,
    is_integer,
    matrix_remedy,
)
from pblas.core.options import Trans
from pblas.execute.operands import Orders
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.planner.choose import choose, choose_layouts, choose_output
from pblas.runtime.runtime import checked_dtype, checked_factor, checked_flag, shared_descriptor

if TYPE_CHECKING:
    from pblas.plans.plan import ProductPlan
    from pblas.runtime.runtime import Runtime
    from pblas.runtime.timings import Measured
    from pblas.simulation.hardware import Hardware, Topology


class ProductRequest(NamedTuple):
    """The arguments of a call of pmatmul or plan_matmul, not checked yet.

    Args:
        dtype: this and the next five are arguments of plan_matmul only.
        mixed: whether A and B, C and D may have different dtypes.
    """

    verb: str
    a: Any
    b: Any
    c: Any
    transa: Any
    transb: Any
    alpha: Any
    beta: Any
    out: Any
    wire_dtype: Any
    overlap: Any
    chunks: Any
    tf32: Any
    strict: Any
    epilogue: Any
    dtype: Any = None
    autotune: Any = False
    nprocs: Any = None
    memory_nbytes: Any = None
    queue: Any = None
    hardware: Any = None
    out_dtype: Any = None
    scale_a: Any = None
    scale_b: Any = None
    scale_d: Any = None
    amax: Any = None
    fast_accumulate: Any = False
    mixed: bool = False

    @property
    def matrices(self) -> list[DistMatrix]:
        """Those of A, B, C and out that are a DistMatrix, not a descriptor or None."""
        return [x for x in (self.a, self.b, self.c, self.out) if isinstance(x, DistMatrix)]


class ProductArguments(NamedTuple):
    """Arguments of a product that were checked on this rank. Made by `checked`; all are global.

    Args:
        verb: name of the call, for messages.
        transa: as in `plan_matmul`, like all fields that are not listed here.
        dtypes: dtypes of the matrices, and of partial products that travel.
        desc_a: descriptor of A; `desc_b`, `desc_c` and `desc_out` are those of the others, None without C or out.
        op_a: descriptor of op(A); `op_b` is that of op(B).
        conj_views: whether A, and B, are conjugated views.
        conj: whether the product conjugates the elements in memory of A, and of B.
        epilogue: key of the epilogue for measured times; see `ProductEpilogue.form`.
    """

    verb: str
    transa: Trans
    transb: Trans
    dtypes: ProductDtypes
    desc_a: MatrixDescriptor
    desc_b: MatrixDescriptor
    desc_c: MatrixDescriptor | None
    desc_out: MatrixDescriptor | None
    op_a: MatrixDescriptor
    op_b: MatrixDescriptor
    conj_views: tuple[bool, bool]
    conj: tuple[bool, bool]
    overlap: bool
    tf32: bool
    autotune: bool
    strict: bool
    chunks: int | None
    memory_nbytes: int | None
    queue: int | None
    alpha: complex
    beta: complex
    fast_accumulate: bool = False
    epilogue: str = ""

    @classmethod
    def checked(cls, call: ProductRequest) -> ProductArguments:
        """The arguments of a call, checked on this rank.

        Raises:
            ArgumentError, DescriptorError, DTypeError: the first wrong argument.
        """
        verb, a, b, c, out = call.verb, call.a, call.b, call.c, call.out
        flags = ("overlap", "tf32", "autotune", "strict", "fast_accumulate")
        options: dict[str, Any] = {name: checked_flag(verb, name, getattr(call, name)) for name in flags}
        transa, transb = checked_trans(verb, "transa", call.transa), checked_trans(verb, "transb", call.transb)
        _check_kinds(call)
        options |= {name: checked_positive(verb, name, getattr(call, name)) for name in ("chunks", "memory_nbytes")}
        options["queue"] = _checked_queue(verb, call.queue, overlap=options["overlap"])
        dtypes = _checked_dtypes(call)
        dtype = dtypes.d
        beta = float(c is not None) if call.beta is None else call.beta
        options |= {name: checked_factor(verb, name, x, dtype) for name, x in (("alpha", call.alpha), ("beta", beta))}
        desc_a, desc_b, desc_c, desc_out = (x.desc if isinstance(x, DistMatrix) else x for x in (a, b, c, out))
        conj_a, conj_b = (isinstance(x, DistMatrix) and x.conjugated for x in (a, b))
        is_complex = dtype.kind == "c"
        spec = cls(
            *(verb, transa, transb, dtypes, desc_a, desc_b, desc_c, desc_out),
            op_a=desc_a if transa == "N" else desc_a.T,
            op_b=desc_b if transb == "N" else desc_b.T,
            conj_views=(conj_a, conj_b),
            conj=(is_complex and conj_a != (transa == "C"), is_complex and conj_b != (transb == "C")),
            **options,
        )
        (m, k), (k_b, n) = spec.op_a.shape, spec.op_b.shape
        if k != k_b:
            raise errors.DescriptorError(
                f"{verb}: A and B disagree on K: op(A) is {m} x {k} (transa={transa!r}), "
                f"op(B) is {k_b} x {n} (transb={transb!r}); columns of op(A) must equal rows of op(B)"
            )
        for name, desc in (("C", desc_c), ("out", desc_out)):
            if desc is not None and desc.shape != (m, n):
                raise errors.DescriptorError(
                    f"{verb}: {name} is {desc.m} x {desc.n}, op(A) op(B) is {m} x {n}; give {name} this shape"
                )
        if spec.beta != 0 and c is None:
            raise errors.ArgumentError(f"{verb}: beta is {spec.beta!r} but there is no C to scale; pass c=, or beta=0")
        for name, x in (("C", c), ("out", out)):
            check_not_conjugated(verb, name, x)
        return spec

    @property
    def form(self) -> ProductArguments:
        """The arguments on which a plan depends: of scalars whether they are 0, and no leading dimensions."""
        return self._replace(
            verb="",
            desc_a=self.desc_a.without_lld,
            desc_b=self.desc_b.without_lld,
            desc_c=None if self.desc_c is None else self.desc_c.without_lld,
            desc_out=None if self.desc_out is None else self.desc_out.without_lld,
            op_a=self.op_a.without_lld,
            op_b=self.op_b.without_lld,
            alpha=float(self.alpha != 0),
            beta=float(self.beta != 0),
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of D."""
        return self.dtypes.d

    @property
    def is_empty(self) -> bool:
        """Whether D is beta C, without a multiplication: alpha, m, n or k is 0. With m or n = 0, D has no elements."""
        return 0 in (self.alpha, *self.op_a.shape, self.op_b.n)

    def choose(
        self,
        d: MatrixDescriptor,
        nprocs: int,
        topology: Topology,
        hardware: Hardware | None = None,
        measured: Measured | None = None,
    ) -> ProductPlan:
        """The plan for a D with descriptor `d`, on this machine or `hardware`; measured times replace estimates."""
        options: dict[str, Any] = {"overlap": self.overlap, "chunks": self.chunks, "strict": self.strict}
        options |= {"memory_nbytes": self.memory_nbytes, "hardware": hardware, "queue": self.queue}
        options |= {"wire": self._other(self.dtypes.wire, self.dtype), "others": self._others}
        if measured is not None:
            alone = not self.autotune  # without autotune, times without the epilogue are better than none
            options["known"] = lambda plan: (
                measured.times(self.key(plan)) or (measured.times(self.key(plan, alone=True)) if alone else ())
            )
        try:
            return choose(self.dtypes.a.name, self.op_a, self.op_b, d, nprocs=nprocs, topology=topology, **options)
        except errors.PlanError as error:
            raise errors.PlanError(f"{self.verb}: {error}") from None

    @staticmethod
    def _other(dtype: np.dtype[Any], first: np.dtype[Any]) -> str:
        """The name of a dtype; "" if it is `first`."""
        return "" if dtype == first else dtype.name

    @property
    def _others(self) -> tuple[str, str]:
        """Names of the dtypes of B and D; "" for that of A."""
        return self._other(self.dtypes.b, self.dtypes.a), self._other(self.dtypes.d, self.dtypes.a)

    def key(self, plan: ProductPlan, *, alone: bool = False) -> str:
        """Key under which the times of a plan's algorithms are stored; `alone`: without the epilogue (global)."""
        queue = None if plan.queue is None else 0  # one key for all queues; plans without a queue have more algorithms
        product = replace(plan, algorithm=None, measured=(), why="", queue=queue)
        epilogue = f", {self.epilogue}" if self.epilogue and not alone else ""
        epilogue += ", fast accumulation" if self.fast_accumulate else ""
        return f"{product!r}, tf32={self.tf32}, chunks={self.chunks}{epilogue}"

    def output(self, nprocs: int) -> MatrixDescriptor:
        """Descriptor of D: that of out, else that of C, else the descriptor with the cheapest plan."""
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
        options: dict[str, Any] = {"nprocs": nprocs, "order": order, "others": self._others}
        return choose_output(self.dtypes.a.name, self.op_a, self.op_b, **options)

    def orders(self, plan: ProductPlan, d: MatrixDescriptor) -> Orders:
        """Storage orders ("F" or "C") of op(B), D and op(A).

        If the plan is for D^T = op(B)^T op(A)^T, they are the orders of op(A)^T, D^T and op(B)^T. A transpose in the
        same memory has the other order.
        """
        left, right, result = (self.op_b.T, self.op_a.T, d.T) if plan.transposed else (self.op_a, self.op_b, d)
        return Orders(right.order, result.order, left.order)

    def arguments(self) -> dict[str, Any]:
        """Arguments that must be equal on all ranks, but for scalars."""
        options = {name: getattr(self, name) for name in ("transa", "transb")}
        kinds = self.dtypes
        dtypes = {"dtype": kinds.a.name, "dtype of b": kinds.b.name, "dtype of c": kinds.c.name}
        dtypes |= {"dtype of out": kinds.d.name, "wire_dtype": kinds.wire.name}
        names = ("overlap", "chunks", "tf32", "fast_accumulate", "autotune", "strict", "memory_nbytes", "queue")
        options |= {name: getattr(self, name) for name in names}
        matrices = {"a": self.desc_a, "b": self.desc_b, "c": self.desc_c, "out": self.desc_out}
        descs = {name: None if desc is None else shared_descriptor(desc) for name, desc in matrices.items()}
        return {**descs, **dtypes, **options, "conjugated": self.conj_views}

    def check_execution(self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, desc_d: MatrixDescriptor) -> None:
        """Raise an error if a matrix of an execution does not fit the plan (local)."""
        dtypes, remedy = self.dtypes, "make all matrices with one context"
        for name, x, dtype, desc, conj in (
            ("A", a, dtypes.a, self.desc_a, self.conj_views[0]),
            ("B", b, dtypes.b, self.desc_b, self.conj_views[1]),
        ):
            check_like_planned(name, x, runtime, dtype, desc, remedy=remedy)
            check_conjugation(name, x, conj=conj)
        for name, x, dtype, desc in (("C", c, dtypes.c, self.desc_c or desc_d), ("out", out, dtypes.d, desc_d)):
            if x is not None:
                check_like_planned(name, x, runtime, dtype, desc, remedy=remedy)
                check_not_conjugated("execute", name, x)
        if c is None and self.beta != 0:
            raise errors.ArgumentError(f"execute: beta is {self.beta!r} but there is no C to scale; pass c")
        if out is not None:
            check_overlap("execute", a, b, c, out)


def checked_wire(verb: str, wire_dtype: Any, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which partial products travel: `wire_dtype`, or by default that of the matrices.

    Raises:
        DTypeError: wire_dtype is neither the dtype of the matrices nor the dtype in which partial products are added.

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


def _check_kinds(call: ProductRequest) -> None:
    """Raise ArgumentError unless all operands are matrices, or all are descriptors."""
    verb, placed = call.verb, bool(call.matrices)
    allowed = DistMatrix if placed else MatrixDescriptor
    for name, x in (("a", call.a), ("b", call.b), ("c", call.c)):
        if not isinstance(x, allowed) and not (name == "c" and x is None):
            kind = "DistMatrix" if placed else "DistMatrix or MatrixDescriptor"
            raise errors.ArgumentError(f"{verb}: {name} must be a {kind}, got {type(x).__name__}; {matrix_remedy(x)}")
    if call.out is not None and not isinstance(call.out, DistMatrix | MatrixDescriptor):
        raise errors.ArgumentError(
            f"{verb}: out must be a DistMatrix, a descriptor or None, got {type(call.out).__name__}"
        )


def _checked_queue(verb: str, queue: Any, *, overlap: bool) -> int | None:
    if queue is None:
        return None
    if not is_integer(queue, 0) or queue >= MAX_QUEUES:
        raise errors.ArgumentError(f"{verb}: queue must be None or an integer of 0..{MAX_QUEUES - 1}, got {queue!r}")
    if not overlap:
        raise errors.ArgumentError(
            f"{verb}: queue= requires overlap=True: with overlap=False the waiting kernels occupy the whole GPU"
        )
    return int(queue)


def _common_dtype(call: ProductRequest) -> np.dtype[Any]:
    """The dtype of all matrices of a call."""
    verb, dtype = call.verb, call.dtype
    if isinstance(call.a, MatrixDescriptor):
        if dtype is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        return checked_dtype(verb, dtype, is_argument=True)
    common: np.dtype[Any] = checked_dtype(verb, call.a.dtype if dtype is None else dtype, is_argument=dtype is not None)
    for name, x in (("A", call.a), ("B", call.b), ("C", call.c), ("out", call.out)):
        if isinstance(x, DistMatrix) and x.dtype != common:
            raise errors.DTypeError(
                f"{verb}: {name} is {x.dtype.name}, {'A is ' if dtype is None else 'dtype= says '}{common.name}"
                f"; all matrices must have one dtype: convert with ctx.from_local(X.local.astype(...), X.desc)"
            )
    return common


def _checked_dtypes(call: ProductRequest) -> ProductDtypes:
    """The dtypes of the matrices of a call, and of its partial products.

    D has the dtype of out, else out_dtype, else that of C, else the default for A.

    Raises:
        DTypeError: dtypes that do not fit together, or that pblas does not multiply.
    """
    verb = call.verb
    if not call.mixed:
        dtype = _common_dtype(call)
        return ProductDtypes.of(dtype, checked_wire(verb, call.wire_dtype, dtype))
    if isinstance(call.a, MatrixDescriptor):
        if call.dtype is None:
            raise errors.DTypeError(f"{verb}: descriptors have no dtype; pass dtype='float64'")
        a = b = checked_dtype(verb, call.dtype, is_argument=True, stored=True)
    else:
        a, b = (checked_dtype(verb, x.dtype, stored=True) for x in (call.a, call.b))
        if call.dtype is not None and a != checked_dtype(verb, call.dtype, is_argument=True, stored=True):
            raise errors.DTypeError(f"{verb}: A is {a.name}, dtype= says {call.dtype}; leave dtype out")
    asked = None if call.out_dtype is None else checked_dtype(verb, call.out_dtype, is_argument=True)
    c, out = (x.dtype if isinstance(x, DistMatrix) else None for x in (call.c, call.out))
    if None not in (asked, out) and asked != out:
        raise errors.DTypeError(f"{verb}: out is {out}, out_dtype= says {call.out_dtype}; leave out_dtype out")
    sources = {"out": out, "out_dtype": asked, "C": c, "D": RESULTS[a][0]}
    source, d = next((name, dtype) for name, dtype in sources.items() if dtype is not None)
    dtypes = ProductDtypes(a, b, d if c is None else c, d, d)
    dtypes.check(verb, source)
    return replace(dtypes, wire=checked_wire(verb, call.wire_dtype, d))


def with_layouts(call: ProductRequest) -> ProductRequest:
    """A call with sizes (m, n, k), rewritten with chosen layouts of A, B and D.

    Raises:
        ArgumentError: a wrong size or number of ranks, or an option that needs given layouts.
    """
    for name, value, least in (("m", call.a, 0), ("n", call.b, 0), ("k", call.c, 0), ("nprocs", call.nprocs, 1)):
        if not is_integer(value, least):
            raise errors.ArgumentError(
                f"{call.verb}: {name} must be an integer >= {least}, got {value!r}; "
                f"plan_matmul(m, n, k, nprocs=8) chooses the layouts"
            )
    memory_nbytes = checked_positive(call.verb, "memory_nbytes", call.memory_nbytes)
    if call.out is not None:
        raise errors.ArgumentError(
            f"{call.verb}: out= gives a layout, but with sizes the planner chooses all layouts; leave out= out, or "
            f"pass descriptors of A and B"
        )
    requested = "float64" if call.dtype is None else call.dtype
    dtype = checked_dtype(call.verb, requested, is_argument=True, stored=True)
    m, n, k, nprocs = map(int, (call.a, call.b, call.c, call.nprocs))
    asked = call.out_dtype
    result = RESULTS[dtype][0] if asked is None else checked_dtype(call.verb, asked, is_argument=True)
    options: dict[str, Any] = {"nprocs": nprocs, "memory_nbytes": memory_nbytes}
    options["dtype_d"] = "" if result == dtype else result.name
    a, b, d = choose_layouts(m, n, k, dtype.name, **options)
    a, b = (a if call.transa == "N" else a.T), (b if call.transb == "N" else b.T)
    adds = call.beta is not None and call.beta != 0
    return call._replace(a=a, b=b, c=d if adds else None, out=d, dtype=dtype)
