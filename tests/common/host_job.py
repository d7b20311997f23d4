"""Jobs on several hosts that are disturbed while their ranks work (tests/hosts/fault_job.py)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.common.outside import outside
from tests.harness.hosts import Hosts

ROOT = Path(__file__).resolve().parents[2]
HOST, RANK, OTHERS = 2, 1, (0, 2)  # the disturbed host, its rank, and the ranks of hosts 1 and 3
RATE, PART = "20mbit", 600_000  # of a link, and the bytes of a product that have arrived when host 2 is disturbed
SHORT = 2.0  # seconds: the timeout of a context
SLACK = 10.0  # seconds by which a busy machine may be late
PATIENCE = 60.0  # seconds that a test waits for its job: after a cut a new context takes 2 to 4 on an idle machine


class Job:
    """A job on hosts, until the end of a `with` block.

    Args:
        hosts: where it runs.
        ranks: ranks of each host.
        rounds: (work, timeout) of each round, and the transport if it is not "auto": see fault_job.py.
    """

    def __init__(self, hosts: Hosts, ranks: Sequence[int], *rounds: tuple[str, float] | tuple[str, float, str]) -> None:
        self.hosts, self._ranks, self._round = hosts, range(sum(ranks)), -1
        self._temporary = tempfile.TemporaryDirectory(prefix="pblas-faults-")
        self._folder = Path(self._temporary.name)
        texts = [f"{work},{timeout},{(*transport, 'auto')[0]}" for work, timeout, *transport in rounds]
        rank = [sys.executable, "-m", "mpi4py", "tests/hosts/fault_job.py", str(self._folder), *texts]
        command = hosts.command(str(Path(sys.executable).parent / "mpiexec"), ranks, rank)
        environment = {**outside(), "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with (self._folder / "output").open("w") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *caught: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for number in range(1, self.hosts.count + 1):
            self.hosts.signal(number, signal.SIGKILL)
        self._temporary.cleanup()

    def begin(self, part: int = 0) -> None:
        """Begin the next round when all ranks are ready; return when host 2 has received `part` bytes in it."""
        if self._round >= 0:
            (self._folder / f"next.{self._round}").touch()
        self._round += 1
        self._wait_for("ready", self._ranks)
        before = self.hosts.received_nbytes(HOST)
        (self._folder / f"go.{self._round}").touch()
        self._wait(lambda: self.hosts.received_nbytes(HOST) >= before + part, f"host {HOST} has received {part} bytes")

    def outcomes(self, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The outcomes of ranks in this round, when they have all written it; of all ranks by default."""
        ranks = self._ranks if ranks is None else ranks
        self._wait_for("outcome", ranks)
        return [json.loads((self._folder / f"outcome.{self._round}.{rank}").read_text()) for rank in ranks]

    def unfinished(self) -> bool:
        """Whether no rank has written its outcome of this round."""
        return not list(self._folder.glob(f"outcome.{self._round}.*"))

    def check_right(self) -> None:
        """Assert that the result of this round is right on all ranks, and that nothing stays in /dev/shm."""
        outcomes = self.outcomes()
        assert all(each["right"] and not each["left"] for each in outcomes), outcomes

    def check_timeout(self, seconds: float = SHORT) -> None:
        """Assert that all ranks but that of host 2 raise an error that names it, in time: a timeout of `seconds`."""
        for each in self.outcomes(OTHERS):
            assert each["error"] == "PeerTimeout", each
            assert f"rank {RANK} of 3 did not arrive within {seconds:g} s" in each["text"]
            assert each["seconds"] < seconds + SLACK
            assert not each["left"]

    def status(self) -> int:
        """The exit status of mpiexec, after the last round."""
        (self._folder / f"next.{self._round}").touch()
        try:
            return self._process.wait(SHORT + SLACK)
        except subprocess.TimeoutExpired:
            pytest.fail(f"mpiexec has not ended:\n{self._output}")

    @property
    def _output(self) -> str:
        return (self._folder / "output").read_text(errors="replace")

    def _wait_for(self, name: str, ranks: Sequence[int]) -> None:
        """Wait until ranks have written a file of this round."""
        paths = [self._folder / f"{name}.{self._round}.{rank}" for rank in ranks]
        self._wait(lambda: all(path.exists() for path in paths), f"{name} of ranks {list(ranks)}")

    def _wait(self, happened: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not happened():
            if self._process.poll() is not None and not happened():
                pytest.fail(f"the job ended too early: {what}\n{self._output}")
            if time.monotonic() > end:
                pytest.fail(f"not within {PATIENCE} s: {what}\n{self._output}")
            time.sleep(0.005)


@contextmanager
def cut_off(hosts: Hosts) -> Iterator[None]:
    """A with block in which the link of host 2 is down."""
    hosts.connect(HOST, up=False)
    try:
        yield
    finally:
        hosts.connect(HOST, up=True)


@contextmanager
def paused(hosts: Hosts) -> Iterator[None]:
    """A with block in which the processes of host 2 are stopped."""
    hosts.signal(HOST, signal.SIGSTOP)
    try:
        yield
    finally:
        hosts.signal(HOST, signal.SIGCONT)


@contextmanager
def slow_hosts() -> Iterator[Hosts]:
    """Three hosts with slow links, in a with block."""
    with Hosts(3) as made:
        made.limit(RATE, queue="100ms")  # in a long queue TCP learns to wait long before it sends lost bytes again
        yield made
