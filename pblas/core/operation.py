"""An operation as a value: the part of a call on which its plan depends. It is the key of the kept plan.

A call has three parts. The *form* decides the plan: descriptors without leading dimension, dtypes, flags. The *scalars*
must be equal on all ranks, and change no plan: alpha, beta, numbers in an expression. The *objects* belong to one call,
and no plan keeps them: matrices and arrays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.runtime.runtime import Runtime, shared_descriptor, spelled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.backends.dtypes import Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.matrices.matrix import DistMatrix
    from pblas.plans.base import Plan
    from pblas.simulation.hardware import Topology

ResultT = TypeVar("ResultT")  # what a call returns


class Bound(NamedTuple, Generic[ResultT]):
    """The arguments of one call, checked on this rank."""

    operation: type[Operation[ResultT]]  # class of the operation (global)
    form: tuple[Any, ...]  # its fields (global)
    scalars: Mapping[str, complex]  # numbers by name, agreed on but not planned for (global)
    reads: Mapping[str, Any]  # matrices and arrays that are read, by name (global)
    out: DistMatrix | None  # the matrix that is written; None for a new one (global)
    old: DistMatrix | None = None  # a matrix that is added, and that `out` may be: C (global)
    # descriptor of a new result with its leading dimension; None: that of the operation, without (local)
    new: MatrixDescriptor | None = None
    nelements: int = 0  # elements of memory that this rank's part of a `new` result takes; 0 without `new` (local)
    fact: int = 0  # a fact of this rank alone that changes the plan, 0 on most ranks: see `Operation.agreed` (local)
    local: Any = None  # what `Operation.parts` has made of `reads`, or other objects of this call (local)
    # whether the calling step drops what is read, so that no peer's reading of it must end (global)
    is_temporary: bool = False
    # text for the agreement of a planned execution, as a part of another call; None: `text` (global)
    agrees: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Key of the kept plan (global)."""
        return self[:2]

    @property
    def text(self) -> str:
        """The scalars, and whether there is an out, as text for the agreement (global)."""
        given = "\nout is given=False" if self.out is None else "\nout is given=True"
        return spelled(self.scalars) + given if self.scalars else given


class Executor(Protocol):
    """Runs a plan on one rank, between agreements of all ranks."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that this rank holds (local)."""

    @property
    def peers_read(self) -> bool:
        """Whether peers read memory of this rank that may be overwritten before the next agreement (global)."""

    def publish(self, x: Any) -> bool:
        """Publish the locations of an execution's arrays; true if peers cannot reach them there (local)."""

    def prepare(self, *, scratch: bool) -> bool:
        """Copy arrays to memory that peers reach, if the arrays of any rank need it.

        Returns:
            Whether all ranks must agree before they run.
        """

    def run(self, x: Any) -> object:
        """**Collective.** Run the plan with these arrays; the value of an operation that has no result matrix."""


class WithoutMemory:
    """What executors have in common that hold no memory between executions, and whose arrays no peer reads in place."""

    peers_read = False
    workspace_nbytes = 0

    def publish(self, x: Any) -> bool:
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return False

    def free_buffers(self) -> None:
        """Nothing (local)."""


@dataclass(frozen=True, eq=False)
class Operation(ABC, Generic[ResultT]):
    """The value of a call without its scalars and matrices; made once for each kept plan.

    A subclass is a frozen dataclass of the form's fields. Besides the methods below it has a function that checks the
    arguments of the public call on one rank and returns them `Bound`.
    """

    noun: ClassVar[str]  # name of the operation, for messages
    may_overlap: ClassVar[bool] = False  # whether out may share memory with an operand
    keeps_workspace: ClassVar[bool] = False
    """Whether a kept plan keeps its workspace between calls, instead of freeing its buffers after each."""
    uses_lanes: ClassVar[bool] = True
    """Whether an execution may use the device's lanes; otherwise its work is in the caller's stream."""
    needs_agreement: ClassVar[bool] = False
    """Whether peers read what `publish` lays out in memory of the context, though the executor has none that is shared:
    each rank makes it without the others, and an agreement starts each execution."""
    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that follow from the scalars, so that the agreement does not name them."""

    @property
    @abstractmethod
    def result(self) -> tuple[MatrixDescriptor, Dtype] | None:
        """Descriptor and dtype of the result; None: `run` of the executor returns it, equal on all ranks (global)."""

    @abstractmethod
    def plan(self, nprocs: int, topology: Topology) -> Plan:
        """The plan (global)."""

    @abstractmethod
    def executor(self, plan: Any, backend: HostRanks) -> Executor:
        """**Collective.** The executor of the plan; WorkspaceError on all ranks if shared memory does not suffice."""

    @abstractmethod
    def arrays(self, opname: str, runtime: Runtime, executor: Any, bound: Bound[ResultT], result: DistMatrix) -> Any:
        """The local arrays and scalars of a call, as the executor takes them (local)."""

    @classmethod
    def made(cls, opname: str, form: tuple[object, ...], nprocs: int, topology: Topology) -> Self:
        """The operation of a form, after the checks that need no memory of this rank: they are made once (local)."""
        return cls(*form)

    @classmethod
    def agreed(cls, form: tuple[object, ...], fact: int) -> tuple[object, ...]:
        """The form once the ranks know the largest `Bound.fact` of all (global)."""
        return form

    def parts(self, opname: str, runtime: Runtime, bound: Bound[ResultT]) -> Bound[ResultT]:
        """The arguments with this rank's parts of them, and with its `fact`, before the ranks agree (local)."""
        return bound

    @property
    def is_local(self) -> bool:
        """Whether the executor has no memory that ranks share, so that each rank makes it without the others."""
        return False

    @property
    def closes(self) -> bool:
        """Whether `finish` writes to memory that peers read, so that a step too ends with an agreement."""
        return False

    def in_order(self, executor: Any) -> bool:
        """Whether the executor's work needs no peer and no stream but the caller's, where it may run after the call."""
        return False

    def begin(self, arrays: Any, bound: Bound[ResultT]) -> None:
        """Begin an execution that is not `in_order` on this rank's arrays (local)."""
        arrays.begin()

    def fresh(self, backend: HostRanks, result: DistMatrix) -> None:
        """Write the elements of a new result that the executor leaves out (local)."""

    def finish(
        self, opname: str, runtime: Runtime, executor: object, bound: Bound[ResultT], result: DistMatrix
    ) -> ResultT:
        """The value of the call, after the closing agreement; raises the errors that all ranks know (global).

        Without a result matrix, `result` is what the executor has returned.
        """
        value: Any = result
        returned: ResultT = value
        return returned

    def unknown(self, runtime: Runtime) -> Any:
        """In a dry run what the executor would return without a result; allocates what it would keep (global)."""

    @property
    def text(self) -> str:
        """The form as text for the agreement: a line for each field (global)."""
        named = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.derived}
        return spelled(
            {n: _Text(shared_descriptor(x)) if isinstance(x, MatrixDescriptor) else x for n, x in named.items()}
        )


class _Text(str):
    """A text that is its own repr."""

    __slots__ = ()
    __repr__ = str.__str__
