"""The result of a dry run: predicted time, memory over time, and the number of ranks that have enough memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pblas.errors import PlanError
from pblas.simulation.simulate import duration, predict

if TYPE_CHECKING:
    from pblas.simulation.hardware import Hardware

_ROWS, _COLUMNS, _SHOWN = 8, 60, 12
_LEVELS = " ▁▂▃▄▅▆▇█"
_NEW = "first writes to new memory", ""
_MOST_RANKS, _MOST_RUNS, _NEAR = 1 << 24, 16, 20


@dataclass(frozen=True, slots=True)
class Operations:
    """Equal operations of a dry run.

    Args:
        call: the public call.
        plan: its plan, or the plan of one of its steps, in one line; "" for a call without one.
        count: how often it was executed.
        seconds: predicted seconds of all of them; None if their time is not modelled.
        received_nbytes: bytes that the busiest rank receives in all of them.
    """

    call: str
    plan: str
    count: int
    seconds: float | None
    received_nbytes: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a program would take on a machine: see `pblas.dry_run`. `print` shows it.

    Args:
        hardware: name of the machine.
        nprocs: ranks.
        seconds: predicted seconds of all operations of pblas; the rest of the program is not counted.
        operations: equal operations together, those that take most time first.
        memory: (seconds, bytes of a rank) at each change of the memory that matrices and workspace take.
        peak_nbytes: the most memory of a rank, bytes.
        peak_call: the call in which it takes that.
        memory_limit: memory of a rank of the machine, bytes.
        least_ranks: the fewest ranks on which the program fits into that memory, to within 5 %; None if none was found.
        reads: how often each line of the program, as file:line, took a value for a number that was not computed.
        ended: the line whose assertion about such values ended the program; "" if it came to its end.
        value: what the function returned.
    """

    hardware: str
    nprocs: int
    seconds: float
    operations: tuple[Operations, ...]
    memory: tuple[tuple[float, int], ...]
    peak_nbytes: int
    peak_call: str
    memory_limit: int
    least_ranks: int | None
    reads: Mapping[str, int]
    ended: str
    value: object

    @property
    def fits(self) -> bool:
        """Whether the program fits into a rank's memory."""
        return self.peak_nbytes <= self.memory_limit

    def __str__(self) -> str:
        count = sum(entry.count for entry in self.operations)
        lack = "" if self.fits else ": DOES NOT FIT"
        if self.least_ranks is None:
            need = f"no number of ranks of {size(self.memory_limit)} was found on which it fits"
        else:
            need = f"P >= {_ranks(self.least_ranks)} of {size(self.memory_limit)}"
        peak = f" in {self.peak_call}" if self.peak_call else ""
        return "\n".join(
            [
                f"dry run on {_ranks(self.nprocs)} of {self.hardware}: {duration(self.seconds)} in {count} operations",
                f"  memory  {size(self.peak_nbytes)} per rank at most{peak}, of {size(self.memory_limit)}{lack}",
                f"  needs   {need}",
                *self._table(),
                *(() if len(self.memory) < 2 else ("", "memory per rank", *self._picture())),
                *self._notes(),
            ]
        )

    def _table(self) -> Iterator[str]:
        """The operations that take most time."""
        if not self.operations:
            return
        yield ""
        width = max(len(entry.call) for entry in self.operations[:_SHOWN])
        yield f"{'call':{width}}  {'time':>8} {'share':>5} {'count':>6} {'received':>9}  plan"
        for entry in self.operations[:_SHOWN]:
            time, share = "?", ""
            if entry.seconds is not None:
                time = duration(entry.seconds)
                share = f"{entry.seconds / self.seconds:.0%}" if self.seconds else ""
            line = f"{entry.call:{width}}  {time:>8} {share:>5} {entry.count:>6} {size(entry.received_nbytes):>9}  "
            yield (line + entry.plan).rstrip()
        if len(self.operations) > _SHOWN:
            yield f"and {len(self.operations) - _SHOWN} others, which take less"

    def _picture(self) -> Iterator[str]:
        """Memory over time, as bars of characters."""
        label = size(self.peak_nbytes)
        heights = self._heights()
        for row in range(_ROWS - 1, -1, -1):
            margin = label if row == _ROWS - 1 else "0" if row == 0 else ""
            levels = (max(0, min(8, round(8 * (_ROWS * height - row)))) for height in heights)
            yield f"{margin:>{len(label)}} |" + "".join(_LEVELS[level] for level in levels).rstrip()
        end = duration(self.seconds)
        yield f"{'':{len(label)}} +{'-' * _COLUMNS}"
        yield f"{'':{len(label)}}  0{end:>{_COLUMNS - 1}}"

    def _heights(self) -> list[float]:
        """The most memory in each column of the picture, as a part of the peak."""
        heights, start = [0.0] * _COLUMNS, 0
        nbytes = 0
        for seconds, following in [*self.memory, (self.seconds, 0)]:
            column = min(_COLUMNS - 1, int(_COLUMNS * seconds / self.seconds)) if self.seconds else 0
            for i in range(start, column + 1):
                heights[i] = max(heights[i], nbytes / max(1, self.peak_nbytes))
            start, nbytes = column, following
        return heights

    def _notes(self) -> Iterator[str]:
        """The lines that read values, and how the program ended."""
        if self.reads:
            yield ""
            yield "values that the program reads and a dry run does not compute: 0, or those of values={...}"
            for site, count in sorted(self.reads.items(), key=lambda entry: -entry[1])[:_SHOWN]:
                yield f"  {site}{f', {count} times' if count > 1 else ''}"
        if self.ended:
            yield f"the program ended at {self.ended}: an assertion about such values"


def _ranks(nprocs: int) -> str:
    """A number of ranks in words."""
    return "1 rank" if nprocs == 1 else f"{nprocs:,} ranks"


def size(nbytes: float) -> str:
    """Bytes as text with a decimal unit.

    >>> size(2_000_000_000), size(512)
    ('2 GB', '512 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


@dataclass
class Ledger:
    """What a dry run adds up while the program runs."""

    hardware: Hardware
    seconds: float = 0.0
    live_nbytes: int = 0
    peak_nbytes: int = 0
    peak_call: str = ""
    memory: list[tuple[float, int]] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    times: dict[tuple[str, str], tuple[float | None, int]] = field(default_factory=dict)
    _known: dict[int, tuple[object, float | None, int]] = field(default_factory=dict)

    def executed(self, call: str, plan: Any) -> None:
        """An operation is executed; some calls have no plan."""
        seconds, received = (None, 0) if plan is None else self._predicted(plan)
        key = call, "" if plan is None else f"{plan.name}, {plan.sizes}, {plan.dtypes_text}"
        self.counts[key] += 1
        before, before_received = self.times.get(key, (0.0, 0))
        self.times[key] = (None if seconds is None or before is None else before + seconds), before_received + received
        if self.peak_call == "" and self.live_nbytes == self.peak_nbytes:
            self.peak_call = call
        self.seconds += seconds or 0.0

    def _predicted(self, plan: Any) -> tuple[float | None, int]:
        """Seconds and received bytes of a plan; the same plan is executed again and again."""
        known = self._known.get(id(plan))
        if known is None:
            try:
                seconds: float | None = predict(plan, self.hardware)
            except PlanError:
                seconds = None
            ranks = plan.typical_ranks(self.hardware.ranks_per_node)
            known = self._known[id(plan)] = plan, seconds, max(map(plan.received_nbytes, ranks), default=0)
        return known[1:]

    def allocated(self, nbytes: int) -> None:
        """A rank allocates memory, or frees it."""
        self.live_nbytes += nbytes
        if self.live_nbytes > self.peak_nbytes:
            self._written_first(self.live_nbytes - self.peak_nbytes)
            self.peak_nbytes, self.peak_call = self.live_nbytes, ""
        self.memory.append((self.seconds, self.live_nbytes))

    def _written_first(self, nbytes: int) -> None:
        """Memory is new where a rank has never had as much: all other memory was used before, and has its pages."""
        seconds = nbytes / self.hardware.new_memory
        if seconds:
            before, _ = self.times.get(_NEW, (0.0, 0))
            self.times[_NEW] = (before or 0.0) + seconds, 0
            self.counts[_NEW] += 1
            self.seconds += seconds

    @property
    def operations(self) -> tuple[Operations, ...]:
        """Equal operations together, those that take most time first."""
        entries = (Operations(*key, self.counts[key], *self.times[key]) for key in self.counts)
        return tuple(sorted(entries, key=lambda entry: -(entry.seconds or 0.0)))


def least_ranks(peak_of: Callable[[int], int], nprocs: int, peak_nbytes: int, limit: int) -> int | None:
    """The fewest ranks, to within 1 / `_NEAR`, with a peak below the limit; the peak on `nprocs` ranks is known.

    >>> least_ranks(lambda p: 100 + 9600 // p, 4096, 102, 200)
    98
    """
    low, high, p, peak = 0, None, nprocs, peak_nbytes
    for turn in range(_MOST_RUNS):
        if peak <= limit:
            high = p
        else:
            low = p
        if high is not None and high - low <= max(1, high // _NEAR):
            break
        guess = -(-p * peak // limit)  # if all memory were divided among the ranks
        if high is None:
            p = max(guess, 2 * low)
            if p > _MOST_RANKS:
                break
        elif turn % 2:
            p = (low + high) // 2
        else:
            p = min(max(guess, low + 1), high - 1)
        peak = peak_of(p)
    return high
