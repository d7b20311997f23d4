"""A long mix of all public calls in one context: each is right or the same error on all ranks, and nothing is lost.

    mpiexec -n 4 python -m mpi4py -m tests.soak.job [--minutes 10] [--seed 0] [--first 0]

`make soak` runs it beside jobs that lose a rank (tests/soak/run.py). The calls are those of
tests/common/operations/catalogue.py, with all their variations: views, layouts, storage orders, memory of the caller;
and layers, files and routines of ScaLAPACK, without variations.
Among them are calls with an argument that differs on one rank or does not exist, with memory of one rank that cannot be
written or read by peers, with functions that raise, and calls that SIGINT interrupts. Call number i of a seed is always
the same, so that `--first i` begins with it.

Memory, also of /dev/shm, file descriptors and blocks of symmetric memory of each rank must not grow after the first
third of the time.
The last line says how many calls were wrong; the exit status is 1 if any was.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import pblas
from pblas import MatrixDescriptor
from tests.common.operations.calls import CALLS, Setting
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.conditions import CONDITIONS, Placed
from tests.common.operations.operation import Operand, Operation, Values, made, outcome, placed, wrong_result
from tests.common.ranks import COMM

TIMEOUT = 60.0  # seconds: the machine is busy
OTHERS = [name for name in CALLS if name not in OPERATIONS]
SIZES = (*range(1, 15), 33, 64, 130)
SAMPLE_SECONDS = 10.0  # between two looks at the resources
LATEST_SIGNAL = 3e-3  # seconds after the beginning of a call
GROWTH = {"MB": 16.0, "shared MB": 16.0, "descriptors": 0.0, "blocks": 0.0}
"""By how much a resource of a rank may be larger in the last third of the time than in the second."""


class Refused(Exception):
    """What a function of the user raises."""


@dataclass(slots=True)
class Soak:
    """The calls of one context, and what was wrong with them on this rank."""

    setting: Setting
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def ctx(self) -> pblas.Context:
        return self.setting.ctx

    def call(self, number: int, rng: np.random.Generator) -> None:
        """**Collective.** One random call, the same on all ranks."""
        kinds = {self.right: 60, self.differing: 12, self.of_memory: 12, self.misspelt: 3, self.raising: 3}
        kinds |= {self.interrupted: 10, self.other: 10}
        kind = rng.choice(len(kinds), p=np.array(list(kinds.values())) / sum(kinds.values()))
        run = list(kinds)[kind]
        self.counts[run.__name__] += 1
        operation = OPERATIONS[str(rng.choice(list(OPERATIONS)))]
        variations = [("", operation.values), *operation.variations()]
        text, values = variations[rng.integers(len(variations))]
        n = max(operation.least, int(rng.choice(SIZES)))
        said = run(rng, operation, text, values, n)
        everywhere = COMM.allgather(said)
        if any(everywhere):
            about = f"call {number}, {run.__name__}, {operation.name}, {text}, n={n}"
            self.failures.append(f"{about}: {next(filter(None, everywhere))}")
            if COMM.rank == 0:
                print(self.failures[-1], flush=True)

    def right(self, _: np.random.Generator, operation: Operation, __: str, values: Values, n: int) -> str:
        """**Collective.** What is wrong about a call that must give a result; "" for nothing."""
        matrices, arrays = made(self.ctx, values, n)
        kind, said, result = outcome(lambda: operation.call(self.ctx, **matrices))
        return f"{kind}: {said}" if kind else wrong_result(operation, result, arrays)

    def differing(self, rng: np.random.Generator, operation: Operation, _: str, values: Values, n: int) -> str:
        """**Collective.** As `right`, of a call whose arguments differ on one rank: one error, or the right result."""
        given, arrays = made(self.ctx, operation.values, n)
        other, others = made(self.ctx, values, n)
        if self.ctx.rank == rng.integers(COMM.size):
            given, arrays = other, others
        kind, said, result = outcome(lambda: operation.call(self.ctx, **given))
        if kind and kind != "MismatchError":
            return f"{kind}: {said}"
        return self.unequal(kind, said) or (
            "" if kind or values != operation.values else wrong_result(operation, result, arrays)
        )

    def of_memory(self, rng: np.random.Generator, operation: Operation, _: str, __: Values, n: int) -> str:
        """**Collective.** As `right`, of a call in which memory of one rank is unusual."""
        values = operation.values
        names = [name for name, value in values.items() if isinstance(value, Operand)]
        wrong, condition = int(rng.integers(COMM.size)), str(rng.choice(list(CONDITIONS)))
        place = Placed(str(rng.choice(names)), wrong, condition) if names else placed
        matrices, arrays = made(self.ctx, values, n, place)
        kind, said, result = outcome(lambda: operation.call(self.ctx, **matrices))
        if isinstance(place, Placed) and place.written():
            return "read-only memory was written"
        if kind and condition not in said:
            return f"{kind}: {said}"
        return self.unequal(kind, said) or ("" if kind else wrong_result(operation, result, arrays))

    def misspelt(self, _: np.random.Generator, operation: Operation, __: str, values: Values, n: int) -> str:
        """**Collective.** As `right`, of a call with an argument that does not exist."""
        matrices, _arrays = made(self.ctx, values, n)
        kind, said, _result = outcome(lambda: operation.call(self.ctx, **matrices, misspelt=1))
        return "" if kind in ("TypeError", "ArgumentError") else f"{kind or 'no error'}: {said}"

    def raising(self, rng: np.random.Generator, _: Operation, __: str, ___: Values, n: int) -> str:
        """**Collective.** As `right`, of a function of the user that raises on one rank."""
        wrong = int(rng.integers(COMM.size))

        def entries(i: Any, j: Any) -> Any:
            if self.ctx.rank == wrong:
                raise Refused("not today")
            return i + 0.0 * j

        kind, said, _result = outcome(lambda: self.ctx.from_function(entries, (n, n)))
        wanted = "not today" in said or 0 in MatrixDescriptor.default(n, n, COMM.size).local_shape(wrong)
        return self.unequal(kind, said) or ("" if wanted else f"{kind or 'no error'}: {said}")

    def other(self, rng: np.random.Generator, _: Operation, __: str, ___: Values, n: int) -> str:
        """**Collective.** As `right`, of a call that is not in the catalogue; other tests look at its result."""
        name = str(rng.choice(OTHERS))
        kind, said, _result = outcome(lambda: CALLS[name].run(self.setting, **CALLS[name].arguments(self.setting)))
        return f"{name}: {kind}: {said}" if kind else ""

    def interrupted(self, rng: np.random.Generator, operation: Operation, _: str, values: Values, n: int) -> str:
        """**Collective.** As `right`, of a call that SIGINT may interrupt on one rank, and of the next one."""
        matrices, arrays = made(self.ctx, values, n)
        wrong, seconds = int(rng.integers(COMM.size)), float(rng.uniform(0, LATEST_SIGNAL))
        with signalled_after(seconds) if self.ctx.rank == wrong else signalled_after(None):
            kind, said, result = uninterrupted(lambda: operation.call(self.ctx, **matrices))
        # A signal after the last agreement of a call is raised by the next call.
        then, text, _result = uninterrupted(lambda: self.ctx.zeros((n, n)))
        if {kind, then} - {"", "KeyboardInterrupt"}:
            return f"{kind} {said}; {then} {text}"
        self.counts["interrupts"] += bool(kind or then)
        return (
            self.unequal(kind, said)
            or self.unequal(then, text)
            or ("" if kind else wrong_result(operation, result, arrays))
        )

    def unequal(self, kind: str, said: str) -> str:
        """**Collective.** A text if the outcomes of the ranks differ."""
        everywhere = COMM.allgather((kind, said))
        return f"the ranks saw different outcomes: {everywhere}" if len(set(everywhere)) > 1 else ""


def uninterrupted(call: Callable[[], Any]) -> tuple[str, str, Any]:
    """As `outcome`, with KeyboardInterrupt among the exceptions."""
    try:
        return outcome(call)
    except KeyboardInterrupt as error:
        return "KeyboardInterrupt", str(error), None


def handle(number: int, frame: FrameType | None) -> None:
    """Handler of SIGINT: an interrupt inside a collective call, nothing between calls, where only one rank has it."""
    if sys._getframe(1).f_code.co_name == "_defer":
        raise KeyboardInterrupt


@contextmanager
def signalled_after(seconds: float | None) -> Iterator[None]:
    """A with block in which this process gets a SIGINT after a time, or at its end; none if `seconds` is None."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def resources(ctx: pblas.Context) -> dict[str, float]:
    """**Collective.** Memory, also of /dev/shm, descriptors and blocks of symmetric memory, without kept plans."""
    ctx.runtime.kept.close()
    gc.collect()
    ctx.zeros((1, 1)), ctx.zeros((1, 1))  # blocks come back in agreements
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    arena: Any = ctx.runtime.backend.arena
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    maps = (line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line)
    shared = sum(int(stop, 16) - int(start, 16) for start, stop in (span.split("-") for span, *_ in maps))
    return {
        "MB": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "shared MB": shared / 1e6,
        "descriptors": descriptors,
        "blocks": len(arena._blocks),
    }


def grown(samples: list[dict[str, float]]) -> list[str]:
    """Resources that the last third of the samples has more of than the second."""
    third = len(samples) // 3
    texts = []
    for name, most in GROWTH.items():
        before, after = (
            max((x[name] for x in part), default=0.0) for part in (samples[third : 2 * third], samples[2 * third :])
        )
        if third and after > before + most:
            texts.append(f"{name} of rank {COMM.rank}: {before:.0f}, later {after:.0f}")
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, handle)
    start, samples, number = time.monotonic(), list[dict[str, float]](), options.first
    with Setting(timeout=TIMEOUT) as setting:
        soak = Soak(setting)
        while COMM.bcast(time.monotonic() - start < 60 * options.minutes):
            for _ in range(25):
                soak.call(number, np.random.default_rng((options.seed, number)))
                number += 1
            if COMM.bcast(time.monotonic() - start > SAMPLE_SECONDS * len(samples)):
                samples.append(resources(soak.ctx))
    more = [text for part in COMM.allgather(grown(samples)) for text in part]
    texts = [*soak.failures, *more]
    if COMM.rank == 0:
        for text in more:
            print(text)
        said = ", ".join(f"{count} {name}" for name, count in soak.counts.most_common())
        print(f"{number - options.first} calls of seed {options.seed}: {said}")
        ends = {name: (round(samples[len(samples) // 3][name]), round(samples[-1][name])) for name in GROWTH}
        print("rank 0 after a third and at the end:", ", ".join(f"{x} {name} -> {y}" for name, (x, y) in ends.items()))
        print(f"{len(texts)} wrong", flush=True)
    return 1 if texts else 0


if __name__ == "__main__":
    sys.exit(main())
