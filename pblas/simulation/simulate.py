"""Predicts how long a plan takes on a machine that is described by a few numbers, without running it.

The work of one rank is a sequence of *phases*: equal steps, each a GEMM with the data before and after it. The state of
a rank is a few *clocks*: the times at which its core is free, its next operand has arrived, and each link is free. A
step changes the clocks by maxima and sums only. So a thousand equal steps are the thousandth power of one (max, +)
matrix, and a million of them cost twenty squarings. Ranks differ only in the sizes of their shards, so a few extreme
ranks are simulated: no cost is linear in the number of ranks.

Steps wait and overlap as the executors do: two operands are in flight while one is multiplied, two partial products
leave while the next is formed, and peers queue for a link that they share. Not modelled: contention inside the network,
ranks that are slower than others, and the packing of small cyclic blocks.

Source: Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992 (max-plus systems); LogGP for links.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pblas.simulation.hardware import Hardware, Transport
from pblas.simulation.phase import Phase, Traffic, View

_FEW = 40  # largest number of steps that are cheaper one by one than by squaring a matrix
_CALL_OF_A_GPU, _CALL_OF_GPUS = 1, 4
"""Steps of an executor that the hosts of one GPU, and of several, take for a call (H200: 10 and 40 us)."""
_POLLED = 2e-3  # seconds between two polls that let messages move while a rank multiplies (backends/mpi/progress.py)
_EVEN = 1e-9  # relative difference of times that are equal but for rounding


@dataclass(frozen=True, slots=True)
class Simulation:
    """Predicted time, bytes and memory of a plan on a machine: the maximum over ranks of each figure. `print` shows it.

    Args:
        plan: name of the plan.
        hardware: name of the hardware.
        nprocs: ranks.
        seconds: seconds from the call to the last rank's return.
        compute_seconds: seconds of GEMMs.
        communication_seconds: seconds in which the busiest link of a rank is in use; the other links work meanwhile.
        copy_seconds: seconds of packing, adding, and messages that the core moves itself.
        efficiency: floating-point rate of the plan over the GEMM rate of all ranks, 0 to 1.
        received_nbytes: bytes received from other ranks.
        messages: messages received.
        memory_nbytes: bytes of operands, result and workspace.
        memory_limit: bytes of memory of a rank.
        evaluated: number of ranks that were simulated.
    """

    plan: str
    hardware: str
    nprocs: int
    seconds: float
    compute_seconds: float
    communication_seconds: float
    copy_seconds: float
    efficiency: float
    received_nbytes: int
    messages: int
    memory_nbytes: int
    memory_limit: int
    evaluated: int

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which the busiest rank does not multiply: communication and copies that GEMMs do not hide."""
        return max(0.0, self.seconds - self.compute_seconds)

    @property
    def fits(self) -> bool:
        """Whether the plan fits into a rank's memory."""
        return self.memory_nbytes <= self.memory_limit

    def __str__(self) -> str:
        lack = "" if self.fits else ": DOES NOT FIT"
        rate = f", {self.efficiency:.0%} of the GEMM rate of all ranks" if self.compute_seconds else ""
        where = f"{self.nprocs:,} {'rank' if self.nprocs == 1 else 'ranks'} of {self.hardware}"
        return "\n".join(
            [
                f"{self.plan} on {where}: {duration(self.seconds)}{rate}",
                f"  compute        {duration(self.compute_seconds)}",
                f"  communication  {duration(self.communication_seconds)}, and {duration(self.copy_seconds)} of copies",
                f"  exposed        {duration(self.exposed_seconds)}, not hidden by GEMMs",
                f"  received       {self.received_nbytes:,} bytes in {self.messages:,} messages per rank at most",
                f"  memory         {self.memory_nbytes:,} bytes per rank at most, of {self.memory_limit:,}{lack}",
            ]
        )


def duration(seconds: float) -> str:
    """Seconds as text with a unit.

    >>> duration(0.0), duration(2.5e-6), duration(0.01234), duration(75.0)
    ('0 us', '2.5 us', '12.3 ms', '75 s')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


class _Plan(Protocol):
    """What a simulation asks of a plan; `pblas.Plan` answers it."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nprocs(self) -> int: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def flops(self) -> int: ...
    @property
    def memory_nbytes(self) -> int: ...
    def phases(self, view: View) -> Iterator[Phase]: ...
    def sent_nbytes(self, rank: int) -> int: ...
    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]: ...
    @property
    def busy_rank(self) -> int | None: ...


def simulate(plan: _Plan, hardware: Hardware, ranks: Iterable[int]) -> Simulation:
    """Predict time, bytes and memory of a plan on a machine."""
    p, ranks = plan.nprocs, sorted(ranks)
    simulated = list(_simulated(plan, hardware, ranks))
    seconds = agreeing(p, plan.transport, hardware) + max(rank.end for rank in simulated)
    return Simulation(
        plan=plan.name,
        hardware=hardware.name,
        nprocs=p,
        seconds=seconds,
        compute_seconds=max(rank.compute for rank in simulated),
        communication_seconds=max(rank.communication for rank in simulated),
        copy_seconds=max(rank.copies for rank in simulated),
        efficiency=plan.flops / (p * hardware.flops_per_second(plan.dtype) * seconds) if seconds else 1.0,
        received_nbytes=max(rank.nbytes for rank in simulated),
        messages=max(rank.messages for rank in simulated),
        memory_nbytes=plan.memory_nbytes,
        memory_limit=hardware.memory_nbytes,
        evaluated=len(ranks),
    )


def predict(plan: _Plan, hardware: Hardware, enough: float = math.inf) -> float:
    """Seconds of a plan on a machine: those of the slowest of `plan.typical_ranks`, which are few for any nprocs.

    The planner compares plans by it. It has the same model and the same rates as `simulate`, which takes more ranks.
    If the plan takes at least `enough` seconds, the result may be any number from `enough` on.
    """
    agreements, busy, seconds = agreeing(plan.nprocs, plan.transport, hardware), plan.busy_rank, 0.0
    if busy is not None and enough < math.inf:  # one of the typical ranks, which take longer to find
        alone = _Rank(hardware, plan.dtype)
        alone.run(plan.phases(*_views(plan, hardware, [busy])), 1.0)
        seconds = agreements + alone.end
    if seconds < enough:
        for rank in _simulated(plan, hardware, plan.typical_ranks(hardware.ranks_per_node)):
            seconds = max(seconds, agreements + rank.end)
            if seconds >= enough:
                break
    return seconds


def least(plan: _Plan, hardware: Hardware) -> float:
    """Lower bound of the predicted seconds of a plan: the work of a busy rank's core, or the use of its links."""
    rank = plan.busy_rank
    if rank is None:
        return 0.0
    return bound(plan.phases(*_views(plan, hardware, [rank])), hardware, plan.dtype, plan.nprocs, plan.transport)


def bound(phases: Iterable[Phase], hardware: Hardware, dtype: str, nprocs: int, transport: Transport) -> float:
    """Lower bound of the predicted seconds of a plan one of whose ranks takes these phases, or longer ones."""
    return agreeing(nprocs, transport, hardware) + _Rank(hardware, dtype).least(phases)


def _simulated(plan: _Plan, hardware: Hardware, ranks: Iterable[int]) -> Iterator[_Rank]:
    """The simulations of ranks, one for all ranks that take the same phases: they take the same time."""
    views = _views(plan, hardware, ranks)
    sequences: Iterator[list[Phase]] = (list(plan.phases(view)) for view in views)
    stretch = 1.0
    if sent := max(plan.sent_nbytes(view.rank) for view in views):
        # A rank that sends more bytes than any rank receives delays receivers.
        sequences, every = itertools.tee(sequences)
        received = max(sum(phase.nbytes for phase in phases) for phases in every)
        stretch = max(1.0, sent / received) if received else 1.0
    known: list[list[Phase]] = []
    for phases in sequences:
        if phases not in known:
            known.append(phases)
            rank = _Rank(hardware, plan.dtype)
            rank.run(phases, stretch)
            yield rank


def _views(plan: _Plan, hardware: Hardware, ranks: Iterable[int]) -> list[View]:
    return [View(rank, plan.nprocs, hardware.ranks_per_node, plan.transport) for rank in ranks]


def agreeing(nprocs: int, transport: Transport, hardware: Hardware) -> float:
    """Seconds of the agreements of a call, or of the hosts of GPUs, which start it."""
    if transport == "push":
        return hardware.step * (_CALL_OF_A_GPU if nprocs == 1 else _CALL_OF_GPUS)
    link = hardware.near if nprocs <= hardware.ranks_per_node else hardware.far
    agreements = 1 if transport == "message" else 2
    return agreements * (nprocs - 1).bit_length() * (link.latency + link.overhead)


Clocks = tuple[float, ...]
"""Times of a rank before step i, seconds: its core is free, the operand of step i has arrived, the near link is free,
the far link is free, the partial products of steps i - 1 and i - 2 have arrived."""


class _Rank:
    """The simulation of one rank: its phases in sequence."""

    def __init__(self, hardware: Hardware, dtype: str) -> None:
        self._hardware, self._dtype = hardware, dtype
        self.compute = self.copies = self.communication = self.end = 0.0
        self.nbytes = self.messages = 0

    def run(self, phases: Iterable[Phase], stretch: float) -> None:
        """Simulate all steps; `stretch` is the factor by which the busiest sender slows every transfer."""
        idle, busy = Phase(1), [0.0] * 3
        queue = [phase for phase in phases if phase.steps] or [idle]
        clocks = self._first(queue[0], stretch)
        for phase, following in itertools.pairwise([*queue, idle]):
            # While a step runs, the operand of the next one travels.
            if phase.steps > 1:
                clocks = power(self._step(phase, phase, stretch), phase.steps - 1, clocks)
            clocks = self._step(phase, following, stretch)(clocks)
            gemm, copies = self._costs(phase)
            self.compute += phase.steps * gemm
            self.copies += phase.steps * copies
            self.nbytes += phase.nbytes
            self.messages += phase.messages
            busy = [total + phase.steps * part for total, part in zip(busy, self._busy(phase, stretch), strict=True)]
        self.end, self.communication = max(clocks), max(busy)

    def least(self, phases: Iterable[Phase]) -> float:
        """Lower bound of `end`: steps follow each other on the core, and transfers on each link."""
        core = near = far = 0.0
        for phase in phases:
            if phase.waits == "sent":
                core = max(core, near, far)
            gemm, copies = self._costs(phase)
            now_near, now_far, read = self._busy(phase, 1.0)
            core += phase.steps * (max(gemm, read) + copies)
            near, far = near + phase.steps * now_near, far + phase.steps * now_far
            after = phase.after
            if after.near_messages:
                near = max(near, core + self._hardware.near.seconds(after.near, after.near_messages))
            if after.far_messages:
                far = max(far, core + self._hardware.far.seconds(after.far, after.far_messages))
        return max(core, near, far)

    def _costs(self, phase: Phase) -> tuple[float, float]:
        """Seconds of a step's GEMM, and of the core's other work in the step."""
        hardware = self._hardware
        copies = phase.copied / (phase.cores * hardware.memory_bandwidth) + self._moved(phase)
        gemm = phase.gemms * hardware.gemm_seconds(*phase.gemm, self._dtype) / phase.cores
        copies += hardware.rounds_seconds(*phase.rounds)
        if phase.launch == "executor":
            copies += hardware.step
        elif phase.launch == "none" and gemm:
            gemm -= hardware.call
        return gemm + (hardware.panel_seconds(phase.panel, self._dtype) if phase.panel else 0.0), copies

    def _moved(self, phase: Phase) -> float:
        """Seconds in which the core itself moves the messages of a step."""
        near, far = phase.before.near + phase.after.near, phase.before.far + phase.after.far
        return near / self._hardware.near.core + far / self._hardware.far.core

    def _prepared(self, phase: Phase) -> float:
        """Seconds in which the sender of a step's operand updates and factors it."""
        if not phase.factored:
            return 0.0
        hardware = self._hardware
        updated = hardware.gemm_seconds(*phase.updated, self._dtype)
        rounds = hardware.rounds_seconds(*phase.factored_rounds)
        return updated + rounds + hardware.panel_seconds(phase.factored, self._dtype)

    def _transferred(self, traffic: Traffic) -> float:
        """Seconds of messages from their post to their arrival."""
        return max(self._deliver(traffic, 0.0, 0.0, 0.0, 1.0))

    def _stalled(self, traffic: Traffic, gemm: float) -> float:
        """Seconds in which posted messages do not move, because the core that moves them multiplies."""
        links = (self._hardware.near, traffic.near), (self._hardware.far, traffic.far)
        return min(gemm, _POLLED) if any(nbytes and link.core < math.inf for link, nbytes in links) else 0.0

    def _busy(self, phase: Phase, stretch: float) -> tuple[float, float, float]:
        """Seconds in a step during which the near link, the far link and the memory of other ranks are in use."""
        near = far = read = 0.0
        reading = self._hardware.memory_bandwidth if self._hardware.shared else self._hardware.near.bandwidth
        for traffic, slow in ((phase.before, stretch * phase.slow), (phase.after, stretch)):
            near += slow * self._hardware.near.seconds(traffic.near, traffic.near_messages)
            far += slow * self._hardware.far.seconds(traffic.far, traffic.far_messages)
            read += slow * traffic.read / reading
        return near, far, read

    def _first(self, phase: Phase, stretch: float) -> Clocks:
        """The clocks before the first step."""
        before = phase.before
        prepared = self._prepared(phase)
        near, far = self._deliver(before, 0.0, 0.0, prepared, stretch * phase.slow)
        arrived = max(near if before.near_messages else prepared, far if before.far_messages else prepared)
        return (0.0, arrived, near, far, 0.0, 0.0)

    def _deliver(self, traffic: Traffic, near: float, far: float, posted: float, stretch: float) -> tuple[float, float]:
        """The times at which the near and the far link have delivered the traffic."""
        hardware = self._hardware
        if traffic.near_messages:
            busy = hardware.near.seconds(traffic.near, traffic.near_messages)
            near = max(near, posted + hardware.near.latency) + stretch * busy
        if traffic.far_messages:
            busy = hardware.far.seconds(traffic.far, traffic.far_messages)
            far = max(far, posted + hardware.far.latency) + stretch * busy
        return near, far

    def _step(self, phase: Phase, following: Phase, stretch: float) -> Callable[[Clocks], Clocks]:
        """One step as a function of the clocks that uses maxima and additions only."""
        gemm, copies = self._costs(phase)
        read = self._busy(phase, stretch)[2]
        moved = self._moved(phase)
        core = max(gemm, read) + copies - moved
        after, before, slow = phase.after, following.before, stretch * following.slow
        prepared, deliver = self._prepared(following), self._deliver
        ahead, sent, queued = following.ahead, phase.waits == "sent", phase.queued
        awaited = (
            None if following.awaited is None else self._transferred(following.awaited) + self._stalled(before, gemm)
        )
        arrives_near, arrives_far = before.near_messages > 0, before.far_messages > 0
        arrives, leaves = arrives_near or arrives_far, after.near_messages > 0 or after.far_messages > 0

        def step(clocks: Clocks) -> Clocks:
            ended, operand, near, far, last, before_last = clocks
            start = max(ended + moved, operand, before_last)  # messages arrive while the core moves them
            start = max(start, last) if sent else start
            end = start + core
            requested = end if not ahead else ended if awaited is None else start + awaited
            arrived = posted = requested + prepared
            if arrives:
                near, far = deliver(before, near, far, posted, slow)
                arrived = max(near if arrives_near else posted, far if arrives_far else posted)
            if leaves:
                near, far = deliver(after, near, far, end, stretch)
            if not queued:
                return end, arrived, near, far, last, before_last
            left = max(last, near if after.near_messages else last, far if after.far_messages else last)
            return end, arrived, near, far, left, last

        return step


def power(step: Callable[[Clocks], Clocks], times: int, clocks: Clocks) -> Clocks:
    """Apply `step` to the clocks `times` times, in O(log times); the step must be linear over (max, +).

    >>> power(lambda x: (max(x[0], x[1]) + 1.0, x[1] + 3.0), 1000, (0.0, 0.0))
    (2998.0, 3000.0)
    """
    rate = 0.0  # by which clocks grew in the step before, if all that grew did so equally
    for done in range(1, min(times, _FEW) + 1):
        following, left = step(clocks), times - done
        growth = [b - a for a, b in zip(clocks, following, strict=True)]
        clocks, before, rate = following, rate, max(growth)
        even = all(g == 0.0 or rate - g <= _EVEN * rate for g in growth)
        if left > 1 and even and abs(rate - before) <= _EVEN * rate:
            # Clocks that grow depend on others that do, and go on growing by as much. Those at rest may be overtaken.
            late = tuple(a + (left - 1) * rate if g else a for a, g in zip(clocks, growth, strict=True))
            ended = step(late)
            if all(g or a == b for a, b, g in zip(late, ended, growth, strict=True)):
                return ended
        rate = rate if even else math.inf
    times -= min(times, _FEW)
    if not times:
        return clocks
    size = range(len(clocks))
    columns = [step(tuple(0.0 if i == j else -math.inf for i in size)) for j in size]
    rows = [[(j, columns[j][i]) for j in size if columns[j][i] > -math.inf] for i in size]
    while times:
        if times & 1:
            clocks = tuple(max(a + clocks[j] for j, a in row) for row in rows)
        times >>= 1
        if times:
            rows = [_product(row, rows) for row in rows]
    return clocks


def _product(row: list[tuple[int, float]], rows: list[list[tuple[int, float]]]) -> list[tuple[int, float]]:
    """One row of a product of two (max, +) matrices, without entries of -inf."""
    total: dict[int, float] = {}
    for j, a in row:
        for k, b in rows[j]:
            if a + b > total.get(k, -math.inf):
                total[k] = a + b
    return list(total.items())
