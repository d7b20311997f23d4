"""Arguments of pmatmul and plan_matmul, checked on one rank."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends.dtypes import RESULTS, Dtype, Order, ProductDtypes, accumulator_dtype, wire_of
from pblas.backends.engine_limits import MAX_QUEUES, Reproducible
from pblas.core import checks
from pblas.core.options import Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.choose import choose, choose_layouts, choose_output
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.local_gemm_run import Orders
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.runtime import (
    Runtime,
    checked_dtype,
    checked_factor,
    checked_flag,
    checked_reproducible,
    shared_descriptor,
)
from pblas.simulation.hardware import Hardware, Topology
from pblas.simulation.hardware_file import find_hardware

if TYPE_CHECKING:
    from pblas.matmul.product_plan import ProductPlan
    from pblas.runtime.measured import Measured


class ProductOptions(NamedTuple):
    """Options of a product that decide its plan, as in `plan_matmul` (global)."""

    transa: Trans = "N"
    transb: Trans = "N"
    overlap: bool = True
    chunks: int | None = None
    tf32: bool = False
    fast_accumulate: bool = False
    autotune: bool = False
    strict: bool = False
    memory_nbytes: int | None = None
    queue: int | None = None
    reproducible: Reproducible | None = None  # None, in a call: as the context says; then False has become None

    def checked(self, opname: str, runtime: Runtime | None = None) -> ProductOptions:
        """The options with one value for each meaning, checked on this rank."""
        by_default = None if runtime is None else runtime.reproducible or None
        if all(map(operator.is_, self, _DEFAULTS)):  # most calls
            return self._replace(reproducible=by_default) if by_default else self
        reproducible = by_default
        if self.reproducible is not None:
            reproducible = checked_reproducible(opname, self.reproducible) or None
        checked = self._replace(
            transa=checks.checked_trans(opname, "transa", self.transa),
            transb=checks.checked_trans(opname, "transb", self.transb),
            overlap=checked_flag(opname, "overlap", self.overlap),
            chunks=checks.checked_positive(opname, "chunks", self.chunks),
            tf32=checked_flag(opname, "tf32", self.tf32),
            fast_accumulate=checked_flag(opname, "fast_accumulate", self.fast_accumulate),
            autotune=checked_flag(opname, "autotune", self.autotune),
            strict=checked_flag(opname, "strict", self.strict),
            memory_nbytes=checks.checked_positive(opname, "memory_nbytes", self.memory_nbytes),
            reproducible=reproducible,
        )
        return checked._replace(queue=_checked_queue(opname, self.queue, overlap=checked.overlap))


_DEFAULTS = ProductOptions()


class ProductCall(NamedTuple):
    """The arguments of a call of pmatmul or plan_matmul, as there but for `scales`, not checked yet."""

    a: Any
    b: Any
    c: Any
    out: Any
    alpha: Any
    beta: Any
    options: ProductOptions
    epilogue: Any
    scales: tuple[Any, Any, Any, Any]  # scale_a, scale_b, scale_d and amax
    out_dtype: object
    wire_dtype: object
    dtype: Any = None
    nprocs: Any = None
    hardware: Any = None

    def check_kinds(self, opname: str, *, placed: bool) -> None:
        """Raise ArgumentError unless all operands are matrices, or all are descriptors if none is `placed`."""
        for name, x in (("a", self.a), ("b", self.b), ("c", self.c)):
            if name != "c" or x is not None:
                checks.check_operand(opname, name, x, placed=placed)
        checks.check_out(opname, self.out)
        for name, value in (("nprocs", self.nprocs), ("hardware", self.hardware)) if placed else ():
            if value is not None:
                raise errors.ArgumentError(f"{opname}: {name} is for planning from descriptors or sizes; leave it out")

    def dtypes(self, opname: str, *, reproducible: Reproducible | None = None) -> ProductDtypes:
        """The dtypes of the matrices, and of partial products, checked on this rank.

        D has the dtype of out, else out_dtype, else that of C, else the default for A.
        """
        if isinstance(self.a, MatrixDescriptor):
            if self.dtype is None:
                raise errors.DTypeError(f"{opname}: descriptors have no dtype; pass dtype='float64'")
            a = b = checked_dtype(opname, self.dtype, is_argument=True, stored=True)
        else:
            a, b = self.a.dtype, self.b.dtype
            if self.dtype is not None and a != checked_dtype(opname, self.dtype, is_argument=True, stored=True):
                raise errors.DTypeError(f"{opname}: A is {a.name}, dtype= says {self.dtype}; leave dtype out")
        c, out = (x.dtype if isinstance(x, DistMatrix) else None for x in (self.c, self.out))
        asked = None if self.out_dtype is None else checked_dtype(opname, self.out_dtype, is_argument=True)
        if asked is not None and out is not None and asked != out:  # to NumPy, None is equal to float64
            raise errors.DTypeError(f"{opname}: out is {out}, out_dtype= says {self.out_dtype}; leave out_dtype out")
        d = out or asked or c or RESULTS[a][0]
        if reproducible == "exact" and d.name not in ("float64", "float32"):
            raise errors.DTypeError(
                f"{opname}: reproducible='exact' is for float64 and float32, got {d.name}; pass reproducible=True"
            )
        wire = checked_wire(opname, self.wire_dtype, d)
        if reproducible and wire != accumulator_dtype(d):
            if self.wire_dtype is not None:
                raise errors.DTypeError(
                    f"{opname}: with reproducible=True partial products travel in {accumulator_dtype(d).name}, got "
                    f"wire_dtype={wire.name!r}; leave wire_dtype out"
                )
            wire = accumulator_dtype(d)
        dtypes = ProductDtypes(a, b, c or d, d, wire)
        if not a is b is dtypes.c is d is RESULTS[a][0]:  # otherwise all have one dtype
            dtypes.check(opname, "out" if out else "out_dtype" if asked else "C" if c else "D")
        return dtypes

    def factors(self, opname: str, dtype: Dtype) -> tuple[complex, complex]:
        given = float(self.c is not None) if self.beta is None else self.beta
        alpha, beta = checked_factor(opname, "alpha", self.alpha, dtype), checked_factor(opname, "beta", given, dtype)
        if beta != 0 and self.c is None:
            raise errors.ArgumentError(f"{opname}: beta is {beta!r} but there is no C to scale; pass c=, or beta=0")
        return alpha, beta

    def with_layouts(self, opname: str) -> ProductCall:
        """A call with sizes (m, n, k), rewritten with chosen layouts of A, B and D."""
        for name, value, least in (("m", self.a, 0), ("n", self.b, 0), ("k", self.c, 0), ("nprocs", self.nprocs, 1)):
            if not checks.is_integer(value, least):
                raise errors.ArgumentError(
                    f"{opname}: {name} must be an integer >= {least}, got {value!r}; "
                    f"plan_matmul(m, n, k, nprocs=8) chooses the layouts"
                )
        if self.out is not None:
            raise errors.ArgumentError(
                f"{opname}: out= gives a layout, but with sizes the planner chooses all layouts; leave out= out, or "
                f"pass descriptors of A and B"
            )
        options = self.options
        memory_nbytes = checks.checked_positive(opname, "memory_nbytes", options.memory_nbytes)
        requested = "float64" if self.dtype is None else self.dtype
        dtype = checked_dtype(opname, requested, is_argument=True, stored=True)
        asked = self.out_dtype
        result = RESULTS[dtype][0] if asked is None else checked_dtype(opname, asked, is_argument=True)
        m, n, k, nprocs = map(int, (self.a, self.b, self.c, self.nprocs))
        dtype_d = _other(result, dtype)
        hardware = None if self.hardware is None else find_hardware(self.hardware)
        topology = Topology(nprocs, shared=True) if hardware is None else hardware.topology
        context = PlanningContext(
            topology,
            nprocs,
            hardware=hardware,
            memory_nbytes=memory_nbytes,
            others=("", dtype_d),
            chunks=options.chunks,
            reproducible=options.reproducible or False,
        )
        a, b, d = choose_layouts(m, n, k, dtype.name, context=context)
        a, b = (a if options.transa == "N" else a.T), (b if options.transb == "N" else b.T)
        adds = self.beta is not None and self.beta != 0
        return self._replace(a=a, b=b, c=d if adds else None, out=d, dtype=dtype)


class ProductForm(NamedTuple):
    """The arguments of a product that decide its plan, checked on this rank (global)."""

    options: ProductOptions  # see `ProductOptions`
    dtypes: ProductDtypes  # dtypes of the matrices, and of partial products that travel
    a: MatrixDescriptor  # descriptor of A, without leading dimension like the next three
    b: MatrixDescriptor  # descriptor of B
    c: MatrixDescriptor | None  # descriptor of C; None without C
    out: MatrixDescriptor | None  # descriptor of out; None without out
    conj_views: tuple[bool, bool]  # whether A, and B, are conjugated views
    multiplies: bool  # whether alpha is not 0
    adds: bool  # whether beta is not 0
    expression: str | None = None  # of the epilogue; None for none
    kinds: tuple[tuple[str, str], ...] = ()  # name of each operand of the epilogue, and its dtype or "a number"
    scales: tuple[bool, bool] | None = None  # whether the scales of A and B are arrays; None without scales
    order: Order | None = None  # storage order of new results of the context; None for that of the operands

    @property
    def op_a(self) -> MatrixDescriptor:
        return self.a if self.options.transa == "N" else self.a.T

    @property
    def op_b(self) -> MatrixDescriptor:
        return self.b if self.options.transb == "N" else self.b.T

    @property
    def conj(self) -> tuple[bool, bool]:
        """Whether the product conjugates the elements in memory of A, and of B."""
        if self.dtypes.d.kind != "c":
            return False, False
        (conj_a, conj_b), options = self.conj_views, self.options
        return conj_a != (options.transa == "C"), conj_b != (options.transb == "C")

    @property
    def is_empty(self) -> bool:
        """Whether D is beta C, without a multiplication: alpha, m, n or k is 0. With m or n = 0, D has no elements."""
        return not self.multiplies or 0 in (*self.op_a.shape, self.op_b.n)

    def output(self, opname: str, nprocs: int) -> MatrixDescriptor:
        """Descriptor of D: that of out, else that of C, else the descriptor with the cheapest plan."""
        (m, k), (k_b, n), (transa, transb, *_) = self.op_a.shape, self.op_b.shape, self.options
        if k != k_b:
            raise errors.DescriptorError(
                f"{opname}: A and B disagree on K: op(A) is {m} x {k} (transa={transa!r}), "
                f"op(B) is {k_b} x {n} (transb={transb!r}); columns of op(A) must equal rows of op(B)"
            )
        for name, desc in (("C", self.c), ("out", self.out)):
            if desc is not None and desc.shape != (m, n):
                raise errors.DescriptorError(
                    f"{opname}: {name} is {desc.m} x {desc.n}, op(A) op(B) is {m} x {n}; give {name} this shape"
                )
        if self.adds and self.c and self.out and not self.c.same_distribution(self.out):
            raise errors.DescriptorError(
                f"{opname}: C and out are distributed differently: {shared_descriptor(self.c)}, "
                f"{shared_descriptor(self.out)}; give them one layout"
            )
        given = self.out or self.c
        if given is not None:
            checks.check_ranks(opname, given, nprocs)
            return given
        order = self.order or ("C" if self.a.order == self.b.order == "C" else "F")
        return choose_output(self.dtypes.a.name, self.op_a, self.op_b, nprocs=nprocs, order=order, others=self._others)

    def choose(
        self,
        opname: str,
        d: MatrixDescriptor,
        nprocs: int,
        topology: Topology,
        hardware: Hardware | None = None,
        measured: Measured | None = None,
    ) -> ProductPlan:
        """The plan for a D with descriptor `d`, on this machine or `hardware`; measured times replace estimates."""
        options, dtypes, known = self.options, self.dtypes, None
        if measured is not None:
            alone = not options.autotune  # without autotune, times without the epilogue are better than none
            known = lambda plan: (  # noqa: E731
                measured.times(self.key(plan)) or (measured.times(self.key(plan, alone=True)) if alone else ())
            )
        try:
            return choose(
                dtypes.a.name,
                self.op_a,
                self.op_b,
                d,
                context=PlanningContext(
                    topology,
                    nprocs,
                    overlap=options.overlap,
                    chunks=options.chunks,
                    hardware=hardware,
                    memory_nbytes=options.memory_nbytes,
                    known=known,
                    queue=options.queue,
                    wire=_other(dtypes.wire, dtypes.d),
                    others=self._others,
                    reproducible=options.reproducible or False,
                    adds=self.adds,
                ),
                strict=options.strict,
            )
        except errors.PlanError as error:
            raise errors.PlanError(f"{opname}: {error}") from None

    @property
    def _others(self) -> tuple[str, str]:
        """Names of the dtypes of B and D; "" for that of A."""
        return _other(self.dtypes.b, self.dtypes.a), _other(self.dtypes.d, self.dtypes.a)

    def key(self, plan: ProductPlan, *, alone: bool = False) -> str:
        """Key under which the times of a plan's algorithms are stored; `alone`: without the epilogue (global)."""
        queue = None if plan.queue is None else 0  # one key for all queues; plans without a queue have more algorithms
        product = replace(plan, algorithm=None, measured=(), why="", queue=queue)
        epilogue = ""
        if self.expression not in (None, "rmsnorm") and not alone:  # "rmsnorm" is a separate pass after the product
            arrays = ", ".join(name for name, kind in self.kinds if kind != "a number")
            epilogue = f", {self.expression} with arrays {arrays or 'none'}"
        epilogue += ", fast accumulation" if self.options.fast_accumulate else ""
        return f"{product!r}, tf32={self.options.tf32}, chunks={self.options.chunks}{epilogue}"

    def orders(self, plan: ProductPlan, d: MatrixDescriptor) -> Orders:
        """Storage orders ("F" or "C") of op(B), D and op(A).

        If the plan is for D^T = op(B)^T op(A)^T, they are the orders of op(A)^T, D^T and op(B)^T. A transpose in the
        same memory has the other order.
        """
        left, right, result = (self.op_b.T, self.op_a.T, d.T) if plan.transposed else (self.op_a, self.op_b, d)
        return Orders(right.order, result.order, left.order)

    def arguments(self) -> dict[str, Any]:
        """The arguments by the names that callers know; two forms differ in one of them."""
        matrices = {"a": self.a, "b": self.b, "c": self.c, "out": self.out}
        arguments: dict[str, Any] = {
            name: None if desc is None else shared_descriptor(desc) for name, desc in matrices.items()
        }
        names = "dtype", "dtype of b", "dtype of c", "dtype of out", "wire_dtype"
        arguments |= {name: dtype.name for name, dtype in zip(names, self.dtypes, strict=True)}
        arguments |= self.options._asdict() | {"conjugated": self.conj_views}
        if self.expression is not None:
            arguments["epilogue"] = self.expression, self.kinds
        return arguments | {"scales": self.scales, "alpha is not 0": self.multiplies, "beta is not 0": self.adds}

    def check_execution(
        self, runtime: Runtime, a: Any, b: Any, c: Any, out: Any, desc_d: MatrixDescriptor, beta: complex
    ) -> None:
        """Raise an error if a matrix of an execution does not fit the plan (local)."""
        dtypes = self.dtypes
        for name, x, dtype, desc, conj in (
            ("A", a, dtypes.a, self.a, self.conj_views[0]),
            ("B", b, dtypes.b, self.b, self.conj_views[1]),
        ):
            checks.check_like_planned(name, x, runtime, dtype, desc, conj=conj)
        for name, x, dtype, desc in (("C", c, dtypes.c, self.c or desc_d), ("out", out, dtypes.d, desc_d)):
            if x is not None:
                checks.check_like_planned(name, x, runtime, dtype, desc)
                checks.check_not_conjugated("execute", name, x)
        if c is None and beta != 0:
            raise errors.ArgumentError(f"execute: beta is {beta!r} but there is no C to scale; pass c")
        if out is not None:
            checks.check_writable("execute", out)
            checks.check_overlap("execute", {"A": a, "B": b}, c, out)


def _other(dtype: Dtype, first: Dtype) -> str:
    """The name of a dtype; "" if it is `first`."""
    return "" if dtype == first else dtype.name


def checked_wire(opname: str, wire_dtype: object, dtype: Dtype) -> Dtype:
    """The dtype in which partial products travel: `wire_dtype`, or the default for that of D.

    >>> import numpy as np
    >>> checked_wire("pmatmul", "float32", np.dtype("float16"))
    dtype('float32')
    """
    if wire_dtype is None:
        return wire_of(dtype)
    total = accumulator_dtype(dtype)
    try:
        wire = checked_dtype(opname, wire_dtype)
    except errors.DTypeError:
        wire = None
    if wire is None or wire not in (dtype, total):
        names = " or ".join(dict.fromkeys((dtype.name, total.name)))
        raise errors.DTypeError(f"{opname}: wire_dtype must be None or {names}, got {wire_dtype}")
    return wire


def _checked_queue(opname: str, queue: Any, *, overlap: bool) -> int | None:
    if queue is None:
        return None
    if not checks.is_integer(queue, 0) or queue >= MAX_QUEUES:
        raise errors.ArgumentError(f"{opname}: queue must be None or an integer of 0..{MAX_QUEUES - 1}, got {queue!r}")
    if not overlap:
        raise errors.ArgumentError(
            f"{opname}: queue= requires overlap=True: with overlap=False the waiting kernels occupy the whole GPU"
        )
    return int(queue)
