"""The base class of plans: the bytes that move, the memory that is needed, `explain` and `simulate`.

A plan is one global value made of integers: the same on every rank, comparable and printable. The plan of an operation
is a frozen dataclass derived from `Plan`. It has the fields or properties `why`, `dtype`, `nprocs` and `transport`, and
implements the abstract methods. A plan that can be simulated also defines `phases`, `flops`, `operands_nbytes` and
`sent_elements`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from pblas.errors import PlanError
from pblas.simulation.hardware import ITEMSIZE, Hardware, Transport
from pblas.simulation.hardware_file import find_hardware
from pblas.simulation.phase import Phase, View

if TYPE_CHECKING:
    import os

    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.simulate import Simulation


_ASK_FEW = 4  # about how many ranks are simulated for a prediction
_DRAW_ALL = 64  # largest number of ranks that all have bars in a picture
_ASK_ALL = 1024  # largest number of ranks that are all examined to find the busiest


def ranks_text(nprocs: int) -> str:
    """A number of ranks in words.

    >>> ranks_text(1), ranks_text(8)
    ('1 rank', '8 ranks')
    """
    return "1 rank" if nprocs == 1 else f"{nprocs} ranks"


_PUBLIC = frozenset(
    (
        *(
            "explain",
            "flops",
            "itemsize",
            "label",
            "lower_bound",
            "max_received_nbytes",
            "memory_nbytes",
            "moves",
            "name",
        ),
        *(
            "messages",
            "panels",
            "plot",
            "received_elements",
            "received_nbytes",
            "simulate",
            "sizes",
            "steps",
            "workspace_nbytes",
        ),
    )
)
"""Names that TAB shows besides the fields; the others are for executors and the planner."""


class Plan(ABC):
    """The data movement and computation of a collective operation, as a value. `print(plan)` prints `explain()`."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Plan.__repr__  # type: ignore[method-assign]  # a dataclass would make one of all fields

    name: ClassVar[str]

    if TYPE_CHECKING:  # at run time dataclass would take a property of this class for the default of the field

        @property
        def why(self) -> str:
            """The rule that chose this plan (global)."""

        @property
        def dtype(self) -> str:
            """Name of the dtype of the matrices (global)."""

        @property
        def nprocs(self) -> int:
            """Ranks that take part (global)."""

        @property
        def transport(self) -> Transport:
            """How the ranks reach each other (global)."""

    # Each plan defines these

    @property
    @abstractmethod
    def sizes(self) -> str:
        """The sizes of the matrices as text."""

    @abstractmethod
    def received_elements(self, rank: int) -> int:
        """Elements that `rank` receives from other ranks, or reads in their memory (each counted once)."""

    @property
    def lower_bound(self) -> float:
        """Lower bound on the elements that the busiest rank receives, under any plan; 0 if none is known."""
        return 0.0

    @property
    @abstractmethod
    def workspace_nbytes(self) -> int:
        """Upper bound on the bytes of workspace of any rank."""

    @property
    def buffer_nbytes(self) -> int:
        """The part of `workspace_nbytes` that an executor holds between executions."""
        return self.workspace_nbytes

    @property
    def staged_nbytes(self) -> int:
        """The part of `workspace_nbytes` for copies of operands that peers read, but that are in memory of the caller.

        Matrices that the context has made need none.
        """
        return 0

    @property
    def transient_nbytes(self) -> int:
        """The part of `workspace_nbytes` that an execution allocates, and frees before it ends."""
        return 0

    @abstractmethod
    def operands_nbytes(self, rank: int) -> int:
        """Bytes of operands and results on a rank."""

    @abstractmethod
    def moves(self) -> str:
        """The data that moves and the ranks that receive it, as text for `explain`."""

    @abstractmethod
    def extreme_ranks(self) -> set[int]:
        """A few ranks; among them are the ranks that receive most, send most and hold most."""

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """A few ranks for `predict`, among them one that takes about as long as the slowest; it comes first."""
        ranks = sorted(self.extreme_ranks())
        return list(dict.fromkeys((*ranks[:: max(1, len(ranks) // _ASK_FEW)], ranks[-1])))

    @property
    def busy_rank(self) -> int | None:
        """A rank that takes about as long as most, found at once; None if `typical_ranks` is as quick."""
        return None

    @abstractmethod
    def title(self) -> str:
        """The operation and its sizes, for the first line of `explain`."""

    @abstractmethod
    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """Lines of `explain`: the distribution of each matrix, and other arguments."""

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way."""
        return False

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        """Lines of `explain` about the transfer of data; none if nothing moves."""
        return iter(())

    @property
    def flops(self) -> int:
        """Real additions and multiplications, summed over all ranks."""
        return 0

    def phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank in order, equal ones as one phase; all its bytes are in its phases, which tests check.

        Args:
            view: the rank, and the links over which data reaches it (local).
        """
        raise PlanError(f"simulate: {self.name} cannot be simulated; rank {view.rank} has no phases")

    def sent_elements(self, rank: int) -> int:
        """Elements that `rank` sends, or that other ranks read in its memory (counted once for each reader).

        Elements that a rank passes on to its node count as sent by their owner.
        """
        raise AssertionError(f"{self.name} defines no sent_elements, which rank {rank} needs to simulate it")

    # All plans share these

    def sent_nbytes(self, rank: int) -> int:
        """Bytes that `rank` sends, counted as `sent_elements` counts."""
        return self.sent_elements(rank) * self.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives."""
        return self.received_elements(rank) * self.itemsize

    @property
    def max_received_nbytes(self) -> int:
        """Bytes that the busiest rank receives: the maximum over `extreme_ranks`."""
        return max(self.received_nbytes(rank) for rank in self.extreme_ranks())

    @property
    def memory_nbytes(self) -> int:
        """Bytes of operands, results and workspace on the rank that holds most; the context has made the operands."""
        return max(map(self.operands_nbytes, self.extreme_ranks())) + self.workspace_nbytes - self.staged_nbytes

    @property
    def lower_bound_nbytes(self) -> float:
        """Lower bound on the bytes that the busiest rank receives, under any plan."""
        return self.lower_bound * self.itemsize

    @property
    def dtypes_text(self) -> str:
        """The dtypes of the matrices, for texts."""
        return self.dtype

    @property
    def label(self) -> str:
        """The plan in one line, for the titles of pictures."""
        return f"{self.name}, {self.sizes}, {self.dtypes_text}, {ranks_text(self.nprocs)}"

    @property
    def choice(self) -> str:
        """The plan and the reason for it in one line, for the log."""
        return f"{self.label} ({self.transport} transport): {self.why}"

    def over(self, transport: Transport) -> Plan:
        """The same plan with another transport."""
        fields: Any = self
        plan: Plan = replace(fields, transport=transport)
        return plan

    def simulate(self, hardware: Hardware | str) -> Simulation:
        """Predict time, bytes and memory of this plan on a described machine, without running it.

        If this plan's transport is "shared" or "mixed", the simulation uses the transport of that machine: shared
        memory within a node if the hardware has it, else messages.

        Args:
            hardware: a `pblas.Hardware`, the name of a preset ("laptop", "fat-tree", "nvlink"), or of a TOML file
                that `pblas bench --hardware` writes (global).

        Returns:
            The simulation; `print` shows it.

        Raises:
            ArgumentError: no preset has that name.
            PlanError: the time of this kind of plan is not modelled.

        >>> from pblas.layouts.split import Split
        >>> from pblas.matmul.one_dimensional_plan import AllGatherGemm
        >>> from pblas.matmul.product_plan import Product, Distribution
        >>> rows = Distribution("rows", Split(4096, 512, 8))
        >>> plan = AllGatherGemm(Product(4096, 4096, 4096, "bfloat16", 8, rows, rows, rows), "rows are together")
        >>> plan.simulate("nvlink").received_nbytes == plan.max_received_nbytes
        True
        """
        from pblas.simulation.simulate import simulate

        described, plan = find_hardware(hardware), self
        if self.transport in ("shared", "mixed"):
            plan = self.over(described.topology.transport(self.nprocs))
        return simulate(plan, described, self.extreme_ranks())

    def explain(self) -> str:
        """Describe the plan in about ten lines of text.

        The lines are the distributions of the operands, the reason for the choice of the plan, the data that moves, and
        the bytes of the busiest rank compared with the lower bound.
        """
        received, bound = self.max_received_nbytes, self.lower_bound_nbytes
        limit = f"{received / bound if bound else 1:.2f} x the lower bound of any plan, {bound:,.0f}"
        if received and not bound:
            limit = "the lower bound that is known for any plan is 0"
        staged = self.staged_nbytes
        copies = f", and {staged:,} for copies of arrays that the context has not made" if staged else ""
        lines = [
            *self.operand_lines(),
            ("why", self.why),
            ("moves", self.moves()),
            *self.detail_lines(),
            ("received", f"{received:,} bytes per rank at most, {limit}"),
            (
                "workspace",
                f"{self.workspace_nbytes - staged:,} bytes per rank at most ({self.transport} transport){copies}",
            ),
            ("memory", f"{self.memory_nbytes:,} bytes per rank at most, of matrices and workspace"),
        ]
        title = f"{self.name}: {self.title()}, {self.dtypes_text}, on {ranks_text(self.nprocs)}"
        return "\n".join([title, *(f"  {key:<10} {text}" for key, text in lines)])

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the bytes that each rank receives, beside the lower bound, and those that it holds (local).

        Of more than 64 ranks a few have bars, those that receive and hold most among them.

        Args:
            path: path that ends in .png, .svg or .pdf; an old file is replaced (local).

        Raises:
            ArgumentError: another suffix.
            BackendError: Matplotlib is not installed.
            FileFormatError: the file cannot be written.
        """
        from pblas.plans.drawing import Bars, draw

        ranks: Sequence[int] = range(self.nprocs)
        if self.nprocs > _DRAW_ALL:
            extreme = sorted(self.extreme_ranks())
            ranks = extreme[:: 1 + len(extreme) // _DRAW_ALL]
        received, matrices = ([f(rank) for rank in ranks] for f in (self.received_nbytes, self.operands_nbytes))
        workspace = self.workspace_nbytes - self.staged_nbytes
        draw(path, self.label, Bars(ranks, received, self.lower_bound_nbytes, matrices, workspace))

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"<{self.label}>"

    def _repr_html_(self) -> str:
        """The text of `explain` and bars of bytes, for notebooks."""
        from pblas.layouts.drawing.svg import html_of

        return html_of(self.explain(), self.max_received_nbytes, self.lower_bound_nbytes)

    def __dir__(self) -> list[str]:
        plan: Any = self
        public = _PUBLIC.union(field.name for field in fields(plan))
        return [name for name in super().__dir__() if name.startswith("__") or name in public]


class StationaryPlan(Plan):
    """A plan in which the matrix `a` stays, and each rank works on its own elements of it."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def a(self) -> MatrixDescriptor:
            """Distribution of the matrix (global)."""

    def contributes(self, rank: int) -> bool:
        """Whether `rank` holds elements, and no lower coordinate holds the same ones."""
        myrow, mycol = self.a.grid.coordinates(rank)
        first = myrow >= 0 and (self.a.rsrc >= 0 or myrow == 0) and (self.a.csrc >= 0 or mycol == 0)
        return first and prod(self.a.local_shape(rank)) > 0

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of the matrix on a rank."""
        return ITEMSIZE[self.dtype] * prod(self.a.local_shape(rank))

    def extreme_ranks(self) -> set[int]:
        """All ranks; of many, the first, the last of the grid, and the first outside it."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        return {0, 1, self.a.nprocs - 1, min(self.a.nprocs, self.nprocs - 1)}

    @property
    def sizes(self) -> str:
        """m x n of the matrix, as text."""
        return f"{self.a.m} x {self.a.n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distribution of the matrix."""
        grid = self.a.grid
        yield "A", f"{self.sizes} in blocks of {self.a.mb} x {self.a.nb} on a {grid.nprow} x {grid.npcol} grid"
