"""The state that the matrices of one context share: ranks, memory, and whether the context is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakSet, ref

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.backends.dtypes import DTYPES, FLOAT8, STORED, Array, Dtype, dtype_of_name
from pblas.backends.local_step import AgreedError, LocalStep, local_error
from pblas.backends.shared_workspace import WorkspacePool
from pblas.layouts.descriptor import MatrixDescriptor, Order
from pblas.runtime.calls import Calls, CollectiveCall
from pblas.runtime.kept_plans import KeptPlans
from pblas.simulation.hardware import Topology, Transport

if TYPE_CHECKING:
    from pblas.backends.engine_limits import Reproducible
    from pblas.backends.host_ranks import HostRanks
    from pblas.runtime.measured import Measured

Planned = TypeVar("Planned")

_BOOLS, _NUMBERS = bool | np.bool_, int | float | complex | np.number
_COUNTABLE = 1 << 62  # elements: 64 bits travel with agreements
_ADDRESSABLE = (1 << 63) - 1  # bytes
_CLOSED = "{}: the context is closed; use its matrices inside its with block"


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """The memory of one rank's part of a matrix; strides in bytes. Every rank allocates `nbytes`."""

    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: Dtype
    nbytes: int


class Referents:
    """The objects that end with a context, and that it does not keep alive: a WeakSet without a call at their end."""

    __slots__ = ("_references",)

    def __init__(self) -> None:
        self._references: set[ref[Any]] = set()

    def add(self, x: Any) -> None:
        """Add an object (local)."""
        self._references.add(ref(x, self._references.discard))

    def __iter__(self) -> Iterator[Any]:
        alive = [reference() for reference in list(self._references)]
        return iter([x for x in alive if x is not None])


class Runtime:
    """Backend of a context and the state that all its matrices need."""

    def __init__(self, backend: HostRanks) -> None:
        self.backend = backend
        self.bandwidth: float = 0.0  # measured bytes per second of messages between nodes; 0: not measured (global)
        self.debug = False  # whether ranks also agree on executions of push plans, which need no agreement (global)
        self.order: Order | None = None  # of new matrices without a descriptor; None: as their operands (global)
        self.reproducible: Reproducible = (
            False  # whether products are reproducible unless a call says otherwise (global)
        )
        self.nstreams = 0  # streams of random numbers that calls without a seed have drawn (global)
        self.matrices = Referents()
        self.kept: KeptPlans = KeptPlans()
        """Plans of operations and of products of `pblas.tp`, and forms of calls on plain arrays (global)."""
        self.workspace_pool: WorkspacePool = WorkspacePool()  # workspace that the plans of `pblas.tp` share (global)
        self.matrices.add(self.workspace_pool)
        self.repeats: Any = None  # calls of `pblas.tp` that can be repeated; None before the first one (local)
        self.staging: Any = None  # memory for collectives on plain arrays; None before the first such call (global)
        self.measured: Measured | None = None
        """Measured times of algorithms; None where plans have no algorithms, as on CPUs (global)."""
        if backend.push:
            from pblas.runtime.measured import Measured

            self.measured = Measured(backend)
        self._calls = Calls(backend)
        self._topology: tuple[Any, Topology] | None = None

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: contexts, plans, factors and layers refer to this object."""
        raise TypeError(
            "a pblas.Context, and what belongs to it, cannot be pickled: it is of this process. Functions of pblas.run "
            "and Pool.run get the Context of their rank; a plan made from descriptors can be pickled"
        )

    @property
    def closed(self) -> bool:
        """Whether the context is closed (global)."""
        return self._calls.closed

    @closed.setter
    def closed(self, value: bool) -> None:
        self._calls.closed = value

    @property
    def called(self) -> str:
        """The name of the public call that is under way, or of the last one (global)."""
        return self._calls.called

    @property
    def rank(self) -> int:
        """This rank's number in the context (local)."""
        return self.backend.rank

    @property
    def nprocs(self) -> int:
        """Ranks of the context (global)."""
        return self.backend.size

    @property
    def topology(self) -> Topology:
        """The properties of the machine that the planner needs (global)."""
        backend = self.backend
        state = backend.ranks_per_node, backend.shared, backend.push, backend.gpus, backend.tiles, self.bandwidth
        reproducible = self.reproducible is True
        if self._topology is None or self._topology[0] != (state, reproducible):
            groups = backend.groups
            nodes = tuple(map(len, groups)) if backend.shared and len(groups) < backend.size else ()
            self._topology = (state, reproducible), Topology(*state, nodes, backend.alone, reproducible)
        return self._topology[1]

    @property
    def transport(self) -> Transport:
        """How the ranks of the context exchange data (global)."""
        return self.topology.transport(self.nprocs)

    def close_plans(self) -> None:
        """Close all kept plans (local)."""
        self.kept.close()

    def next_number(self) -> int:
        """A number for a planned operation: how many agreements the context has made so far (global)."""
        return self.backend.agreement.ncalls

    def begin_reading(self) -> int:
        """Note that peers read memory of this rank until the next agreement; the number of the last one (global)."""
        self._calls.read_since = self.backend.agreement.ncalls
        return self._calls.read_since

    def end_reading(self, opname: str, maxima: tuple[int, ...] = ()) -> tuple[int, ...]:
        """**Collective.** Agree unless there was an agreement since `begin_reading`; then no peer reads memory here.

        With `maxima` the ranks agree in any case; the result is the largest of each.
        """
        return self._calls.end_reading(opname, maxima)

    def call(self, opname: str, begin: Callable[[str], object] | None = None) -> CollectiveCall:
        """A with block around a public collective call, which may be a part of another one (local).

        In the outermost block one thread uses the context, a SIGINT waits for the next agreement, and an exception that
        no agreement has raised breaks the context: all ranks raise it. Local work that may fail is therefore done in a
        `local_step`, after which the context stays usable.
        """
        return CollectiveCall(self._calls, opname, begin or self._begin)

    def _begin(self, opname: str) -> None:
        """Raise ContextError if the context is closed or broken; on all ranks, if they may be in another context."""
        if self._calls.closed:
            fail_without_context(opname, errors.ContextError(_CLOSED.format(opname)))
        self.check_open(opname)

    def users_function(self, opname: str) -> AbstractContextManager[None]:
        """A with block in which a function of the user runs, with the caller's `np.seterr` (local).

        A collective call in it raises ContextError.
        """
        return self._calls.users_function(opname)

    def check_open(self, opname: str) -> None:
        """Raise ContextError if the context is closed or broken, without communication (local)."""
        backend = self.backend
        if self._calls.closed:
            raise errors.ContextError(_CLOSED.format(opname))
        if backend.peers.is_over():
            self._raise_over(opname)
        if backend.agreement.broken is not None:
            raise errors.ContextError(
                f"{opname}: the context is broken since this happened: {backend.agreement.broken}"
            )
        backend.check()

    def check_running(self, opname: str) -> None:
        """Raise ContextError if the program has finalized MPI, which would end the process (local)."""
        if self.backend.peers.is_over():
            self._raise_over(opname)

    def _raise_over(self, opname: str) -> NoReturn:
        self.mark_broken("MPI has been finalized")
        raise errors.ContextError(f"{opname}: MPI has been finalized; close the context before MPI.Finalize()")

    def mark_broken(self, reason: str) -> None:
        """Break the context: the next operation could receive messages of one that ended half way (local)."""
        agreement = self.backend.agreement
        agreement.broken = agreement.broken or reason

    def agree(
        self,
        opname: str,
        arguments: Mapping[str, Any] | str | Callable[[], str],
        error: AgreedError | None = None,
        maxima: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """**Collective.** All ranks call the same operation with equal arguments, or all raise the same exception.

        One rank compares nothing, so it makes no text of the arguments.
        """
        self.check_open(opname)
        try:
            if self.backend.size == 1:
                call = opname
            elif callable(arguments):
                call = opname + arguments()
            else:
                call = opname + (arguments if isinstance(arguments, str) else spelled(arguments))
        except Exception as caught:  # noqa: BLE001 - a user's __repr__; the other ranks must not wait for this one
            call, error = opname, error or local_error(opname, caught)
        return self.backend.agree(call, error, maxima=maxima).maxima

    def fail(self, opname: str, error: AgreedError) -> NoReturn:
        """**Collective.** Raise an error of this rank's on all ranks, which agree on this call."""
        self.agree(opname, {}, error)
        raise AssertionError("an agreement with an error raises")

    def local_step(self, opname: str) -> LocalStep:
        """A with block of local work: an exception of the block is agreed on and raised on every rank (local)."""
        self.backend.arena.frozen = opname
        return LocalStep(self.fail, opname)

    @contextmanager
    def agreed_step(self, opname: str, what: str = "") -> Iterator[None]:
        """**Collective.** A with block of local work, and the agreement that follows it: see `local_step`."""
        with self.local_step(opname):
            yield
        self.agree(f"{opname}: {what}" if what else opname, {})

    def gathered(self, number: int) -> list[int]:
        """**Collective.** An integer of each rank, in the order of ranks."""
        return self.backend.gather(number)

    def reject(self, error: AgreedError) -> None:
        """Raise an error of a call that starts without an agreement (local).

        If all ranks reject the same call, the context stays usable. Otherwise the other ranks raise the error when they
        next wait, and the context breaks.
        """
        self.backend.reject(error)

    @contextmanager
    def building(self, opname: str) -> Iterator[None]:
        """**Collective.** A with block that takes memory of the context, and ends in an agreement.

        An exception of any rank is raised on all ranks, which give back all that they have taken.
        """
        held = self.workspace_pool.held.copy()
        try:
            with self.backend.provisional:
                with self.local_step(opname):
                    yield
                self.backend.agree(f"{opname}: workspace")
        except BaseException:
            self.workspace_pool.held = held
            raise

    def rejecting(self, opname: str) -> LocalStep:
        """As `local_step`, in a call that starts without an agreement: see `reject` (local)."""
        return LocalStep(lambda _, error: self.reject(error), opname)

    def check_place(self, opname: str, desc: MatrixDescriptor, name: str) -> None:
        """Raise LayoutError if a new matrix needs too many ranks, or its lld is too small on this rank (local)."""
        if desc.nprocs > self.nprocs:
            raise errors.LayoutError(
                f"{opname}: the grid is {desc.grid.nprow} x {desc.grid.npcol}, the context has {self.nprocs} "
                f"rank{'s' * (self.nprocs > 1)}; use a smaller grid"
            )
        if desc.lld is not None:
            desc.check_lld(self.backend.rank, name)

    def nelements(self, desc: MatrixDescriptor) -> int:
        """Elements of memory that this rank's part takes, gaps below its leading dimension included (local)."""
        return _nelements(desc, desc.lld, self.rank)

    def local_memory(self, desc: MatrixDescriptor, dtype: Dtype, nelements: int | None = None) -> LocalMemory:
        """Shape, strides and size of this rank's part of a matrix in memory, for `empty` (local).

        `nelements` is the largest `nelements(desc)` over all ranks; None if no rank gives a leading dimension (global).
        """
        return _local_memory(desc, desc.lld, dtype, nelements, self.rank)

    def empty(self, memory: LocalMemory) -> Array:
        """**Collective.** Uninitialised local array, in memory that peers on the node can read in place."""
        return self.backend.view(self.allocate(memory.nbytes), memory.shape, memory.strides, memory.dtype)

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Symmetric memory, or private memory if the context shares none between its ranks.

        If there is too little shared memory and the context may fall back (transport="auto"), all ranks first make sure
        that each can allocate as much private memory. Then the context gives up shared memory: it switches to messages.
        A rank allocates private memory in a local step, so the caller's next collective call must be an agreement.
        """
        if not self.backend.shared:
            with self.local_step("allocate"):
                return self.backend.allocate(nbytes)
        try:
            return self.backend.allocate(nbytes)
        except errors.WorkspaceError as caught:
            if not (caught.shared and self.backend.falls_back):
                raise
            with self.agreed_step("allocate private memory"):
                self.backend.private(nbytes)
            self.give_up_shared_memory()
        return self.backend.allocate(nbytes)

    def give_up_shared_memory(self) -> bool:
        """Switch the context to messages, if transport= allows it, after an error that all ranks raised (global)."""
        given_up = self.backend.falls_back and self.backend.shared
        if given_up:
            self.backend.shared = False
            log.write(log.INFO, self.rank, "too little shared memory: data goes by messages from now on")
        return given_up


@lru_cache(maxsize=256)
def _nelements(desc: MatrixDescriptor, lld: int | None, rank: int) -> int:
    """See `Runtime.nelements`; descriptors with different `lld` are equal."""
    rows, columns = desc.local_shape(rank)
    if not rows * columns:
        return 0
    count = (desc.min_lld(rank) if lld is None else lld) * (columns if desc.order == "F" else rows)
    return min(count, _COUNTABLE)  # no memory is that large


@lru_cache(maxsize=256)
def _local_memory(
    desc: MatrixDescriptor, lld: int | None, dtype: Dtype, nelements: int | None, rank: int
) -> LocalMemory:
    """See `Runtime.local_memory`; descriptors with different `lld` are equal."""
    shape, itemsize = desc.local_shape(rank), dtype.itemsize
    if lld is None or 0 in shape:
        lld = desc.min_lld(rank)
    strides = (itemsize, lld * itemsize) if desc.order == "F" else (lld * itemsize, itemsize)
    nbytes = itemsize * max(1, desc.max_local_nelements if nelements is None else nelements)
    extent = itemsize * max(1, desc.rows.max_count) * max(1, desc.columns.max_count)
    if extent > _ADDRESSABLE:  # no array has this shape, not even an empty one, so ask for more than there is
        nbytes = max(nbytes, extent)
    return LocalMemory(shape, strides, dtype, nbytes)


def spelled(arguments: Mapping[str, object]) -> str:
    """Arguments as a text that is equal on ranks which agree on them: NumPy's scalars are written as Python's (global).

    >>> spelled({"alpha": np.float64(0.5), "trans": np.str_("T")}).split()
    ['alpha=0.5', "trans='T'"]
    """
    text = ""
    for name, value in arguments.items():
        text += f"\n{name}={value.item() if isinstance(value, np.generic) else value!r}"
    return text


def is_one_of(value: object, *choices: object) -> bool:
    """Whether an option has one of these values. No array has, whose comparison gives an array.

    >>> is_one_of("r", "reduced", "r"), is_one_of(np.ones(2), 1, 2)
    (True, False)
    """
    return isinstance(value, str | int | float | np.generic | None) and value in choices


def checked_order(opname: str, order: object) -> Order | None:
    """A storage order, or None for the default; ArgumentError for any other value."""
    if order is None or (isinstance(order, str) and order in ("F", "C")):
        return order  # type: ignore[return-value]  # one of the three
    raise errors.ArgumentError(f"{opname}: order must be 'F' (by columns) or 'C' (by rows), got {order!r}")


def check_root(opname: str, root: object, nprocs: int) -> None:
    """Raise ArgumentError unless root is None or a rank, 0 to nprocs - 1."""
    is_rank = isinstance(root, int | np.integer) and not isinstance(root, bool) and 0 <= root < nprocs
    if root is not None and not is_rank:
        raise errors.ArgumentError(f"{opname}: root must be None or a rank 0..{nprocs - 1}, got {root!r}")


def checked_dtype(opname: str, dtype: object, *, is_argument: bool = False, stored: bool = False) -> Dtype:
    """A value as one of the dtypes that pblas computes with, or stores.

    >>> checked_dtype("zeros", "bfloat16")
    dtype(bfloat16)
    """
    checked: Dtype | None
    known = STORED if stored else DTYPES
    if isinstance(dtype, np.dtype) and dtype in known:
        return dtype
    try:
        checked = dtype_of_name(dtype)
    except (TypeError, ValueError, SyntaxError):  # NumPy raises several for an invalid dtype
        checked = None
    if checked is None or checked not in known:
        names = ", ".join(d.name for d in known)
        remedy = "convert with .astype('float64'), or a tensor with .double()"
        if checked in FLOAT8:
            remedy = f"of {checked.name} pblas has products and conversions: convert with .astype('float32')"
        if is_argument:
            remedy = "pass dtype='float64'"
        raise errors.DTypeError(f"{opname}: dtype must be one of {names}, got {dtype}; {remedy}")
    return checked


@lru_cache
def name_of(dtype: Dtype) -> str:
    """A dtype's name, cached, because NumPy composes it again each time.

    >>> name_of(np.dtype("f4"))
    'float32'
    """
    return dtype.name


def checked_flag(opname: str, name: str, value: object) -> bool:
    """A value as a bool; ArgumentError unless it is True, False, 1 or 0."""
    if not isinstance(value, int | np.bool_) or value not in (0, 1):
        raise errors.ArgumentError(f"{opname}: {name} must be True or False, got {value!r}")
    return bool(value)


def checked_reproducible(opname: str, value: object) -> Reproducible:
    """A value of reproducible=; ArgumentError unless it is True, False, 1, 0 or "exact"."""
    if isinstance(value, str) and value == "exact":
        return "exact"
    if not isinstance(value, int | np.bool_) or value not in (0, 1):
        raise errors.ArgumentError(f"{opname}: reproducible must be True, False or 'exact', got {value!r}")
    return bool(value)


def checked_scalar(opname: str, name: str, value: object, dtype: Dtype) -> complex:
    """A scalar factor for matrices of a dtype, real if the dtype is real.

    >>> checked_scalar("pmatmul", "alpha", np.int8(2), np.dtype("float32"))
    2.0
    """
    if isinstance(value, _BOOLS) or not isinstance(value, _NUMBERS):
        raise errors.ArgumentError(f"{opname}: {name} must be a number, got {value!r}")
    try:
        number = complex(value)
    except OverflowError:
        raise errors.ArgumentError(f"{opname}: {name} is too large for any dtype of pblas") from None
    if dtype.kind == "c":
        return number
    if number.imag != 0:
        raise errors.ArgumentError(f"{opname}: {name} is {value!r}, the matrices are {dtype.name}; it must be real")
    return number.real


def checked_factor(opname: str, name: str, value: object, dtype: Dtype) -> complex:
    """As `checked_scalar`, for alpha and beta: -0.0 becomes 0.0, which does the same.

    >>> checked_factor("pmatmul", "beta", -0.0, np.dtype("float32"))
    0.0
    """
    return checked_scalar(opname, name, value, dtype) + 0.0


@lru_cache(maxsize=256)
def shared_descriptor(desc: MatrixDescriptor) -> str:
    """A descriptor as text that is equal on all ranks: without the local leading dimension."""
    imb, inb = (f", {k}={v}" if v is not None else "" for k, v in (("imb", desc.imb), ("inb", desc.inb)))
    grid = desc.grid
    return (
        f"MatrixDescriptor({desc.m}, {desc.n}, {desc.mb}, {desc.nb}, Grid({grid.nprow}, {grid.npcol}, {grid.order!r}), "
        f"{desc.rsrc}, {desc.csrc}, {desc.order!r}{imb}{inb})"
    )


OPEN: WeakSet[Runtime] = WeakSet()
"""Runtimes of the contexts that this process has made and not dropped; closed ones may be among them (local)."""


def fail_without_context(opname: str, error: errors.PblasError) -> NoReturn:
    """Raise an error of a collective call whose arguments belong to no open context. **Collective** if one is open.

    Other ranks may have called with its matrices. If this process has one usable context, all ranks raise the error
    there. If it has several, nothing says which one the others are in. Then this rank raises the error alone, as
    without any.
    """
    usable = [runtime for runtime in OPEN if not runtime.closed and runtime.backend.agreement.broken is None]
    if len(usable) == 1:
        with usable[0].call(opname):
            usable[0].fail(opname, error)
    raise error
