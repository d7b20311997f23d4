"""pytest plugin: the ranks of an MPI job agree on the outcome of every test, and no rank waits for ever.

pytest-mpi brings the marks (`@pytest.mark.mpi(min_size=2)`) and the option `--with-mpi`. It runs one pytest per rank,
without communication between them, so a test that fails on one rank leaves the others in a collective call. With this
plugin the ranks exchange their outcomes after each phase (setup, call, teardown) on a communicator of its own:

* The worst outcome counts on all ranks. Outcomes that differ are a failure.
* If a rank is later than `--rank-timeout` seconds, or `--rank-grace` seconds once another rank has failed, the plugin
  writes the stack of the late rank to a file and aborts the job. tests/harness/run.py starts the job again without the
  tests that are done.

Only rank 0 reports. With `--journal DIR` it writes progress for the runner to DIR, one JSON object per line.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest

from tests.harness.shares import share

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from mpi4py import MPI

TAGS = 30000  # MPI guarantees tags up to 32767
LONGEST_PAUSE = 2e-3  # seconds between two polls; the pause is an eighth of the time waited, up to this


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks", "agreement of the ranks of an MPI job")
    group.addoption(
        "--rank-timeout", type=float, default=60.0, help="seconds that ranks wait for each other after a phase"
    )
    group.addoption("--rank-grace", type=float, default=5.0, help="the same once a rank has failed")
    group.addoption("--journal", type=Path, help="existing folder for progress and stacks")
    group.addoption("--share", action="store_true", help="of large families, the cases for this number of ranks only")


@pytest.hookimpl(trylast=True)  # after pytest's own reporter, which all ranks but 0 unregister
def pytest_configure(config: pytest.Config) -> None:
    comm = _world(config)
    rank = comm.rank if comm else 0
    journal = Journal(config.getoption("--journal"), rank)
    timeout, grace = config.getoption("--rank-timeout"), config.getoption("--rank-grace")
    config.pluginmanager.register(Restart(journal))
    config.pluginmanager.register(Torch())
    config.pluginmanager.register(Watchdog(timeout + 2 * grace, journal))
    if rank == 0:
        config.pluginmanager.register(Progress(journal))
    else:
        config.pluginmanager.unregister(name="terminalreporter")
    if comm and config.getoption("--share"):
        config.pluginmanager.register(Share(comm.size))
    if comm:
        config.pluginmanager.register(Numbers(comm.size))
        config.pluginmanager.register(RankReports(Agreement(comm, timeout, grace, journal)))


def pytest_collection_finish() -> None:
    """Leave what modules and tests consist of out of the search for garbage, which tests ask for hundreds of times."""
    gc.collect()
    gc.freeze()


def _world(config: pytest.Config) -> MPI.Intracomm | None:
    """COMM_WORLD with `--with-mpi`; otherwise None, and MPI is not imported."""
    if not config.getoption("--with-mpi", default=False):
        return None
    from mpi4py import MPI

    return MPI.COMM_WORLD


class Journal:
    """The folder shared with the runner: `journal` (events), `done` (tests to leave out), `stacks.RANK`."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._folder = folder
        # A file, because pytest captures the error stream while tests run.
        self.stacks: TextIO = (
            (folder / f"stacks.{rank}").open("w", buffering=1) if folder else os.fdopen(os.dup(2), "w", buffering=1)
        )
        if folder:  # ranks that share a temporary folder race to clean it
            root = folder / f"tmp.{rank}"
            root.mkdir(exist_ok=True)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(root)

    def write(self, **event: object) -> None:
        if self._folder:
            with (self._folder / "journal").open("a") as file:
                file.write(json.dumps(event) + "\n")

    @property
    def kept(self) -> bool:
        """Whether there is a folder, from which the runner reads the journal."""
        return self._folder is not None

    def done(self) -> set[str]:
        path = self._folder / "done" if self._folder else None
        return set(path.read_text().splitlines()) if path and path.exists() else set()


class Watchdog:
    """Ends a rank that hangs when no other rank is left to notice.

    faulthandler does it in a thread of its own, so it works while the interpreter is inside an MPI call.
    """

    def __init__(self, timeout: float, journal: Journal) -> None:
        self._timeout = timeout
        self._file = journal.stacks
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            self.pytest_runtest_logstart()  # each phase has its own time

    def pytest_runtest_logstart(self) -> None:
        faulthandler.dump_traceback_later(self._timeout, exit=True, file=self._file)

    def pytest_runtest_logfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()


class Restart:
    """Leaves out the tests that an earlier, aborted job has done."""

    def __init__(self, journal: Journal) -> None:
        self._done = journal.done()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        left_out = [item for item in items if item.nodeid in self._done]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in self._done]


class Share:
    """Leaves out the cases that run on other numbers of ranks; see `tests.harness.shares`."""

    def __init__(self, nprocs: int) -> None:
        self._nprocs = nprocs

    @pytest.hookimpl(tryfirst=True)  # families are counted before others leave tests out
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = share(items, self._nprocs)
        left_out = set(items) - set(kept)
        if left_out:
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = kept


class Progress:
    """Writes the start and the outcome of every test to the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._journal.write(test=nodeid, outcome="started", time=time.monotonic())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = report.longreprtext if report.failed else ""
            self._journal.write(test=report.nodeid, outcome=report.outcome, text=text)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._journal.write(finished=int(exitstatus), time=time.monotonic())


class Torch:
    """Skips tests with the mark `torch` where torch is not installed."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("torch") and not find_spec("torch"):
            pytest.skip("torch is not installed")


class Numbers:
    """Skips tests whose mark `ranks` does not name the number of ranks; see `tests.harness.shares`."""

    def __init__(self, nprocs: int) -> None:
        self._nprocs = nprocs

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("ranks"):
            if self._nprocs not in mark.args:
                pytest.skip(mark.kwargs["reason"])


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a phase on one rank, with the text of its failure."""

    outcome: str
    text: str


class Agreement:
    """An exchange of verdicts with a deadline, on a communicator of its own."""

    def __init__(self, comm: MPI.Intracomm, timeout: float, grace: float, journal: Journal) -> None:
        self._comm = comm.Dup()
        self._timeout = timeout
        self._grace = grace
        self.journal = journal
        self._pids: list[int] = comm.allgather(os.getpid())  # tests run on one host
        self._step = 0

    def exchange(self, mine: Verdict, test: str, phase: str) -> list[Verdict]:
        """**Collective.** Verdicts of all ranks, in order of rank; aborts the job if a rank is late."""
        self._step += 1
        tag = self._step % TAGS  # with one tag for all, messages of two steps were seen to mix on Open MPI
        sent = [self._comm.isend((self._step, mine), dest=rank, tag=tag) for rank in range(self._comm.size)]
        arrived: dict[int, Verdict] = {}
        start = time.monotonic()
        while len(arrived) < self._comm.size:
            if self._receive(tag, arrived):
                continue
            waited = time.monotonic() - start
            failed = any(verdict.outcome == "failed" for verdict in arrived.values())
            if waited > (self._grace if failed else self._timeout):
                self._give_up(arrived, waited, test, phase)
            time.sleep(min(1e-5 + waited / 8, LONGEST_PAUSE))
        for request in sent:
            request.wait()
        return [arrived[rank] for rank in range(self._comm.size)]

    def _receive(self, tag: int, arrived: dict[int, Verdict]) -> bool:
        from mpi4py import MPI

        status = MPI.Status()
        message = self._comm.improbe(source=MPI.ANY_SOURCE, tag=tag, status=status)
        if message is None:
            return False
        step, verdict = message.recv()
        assert step == self._step, f"rank {status.source} is at step {step}, this rank at {self._step}"
        arrived[status.source] = verdict
        return True

    def _give_up(self, arrived: dict[int, Verdict], waited: float, test: str, phase: str) -> None:
        """On the lowest rank that has arrived: write the reason to the journal, and abort the job."""
        if self._comm.rank != min(arrived):
            time.sleep(self._grace)  # it aborts meanwhile; if it cannot, the next round of polling ends here again
            del arrived[min(arrived)]
            return
        late = [rank for rank in range(self._comm.size) if rank not in arrived]
        report = [f"{test} {phase}: ranks {late} did not arrive within {waited:.1f} s; the job is aborted"]
        report += [f"[rank {rank}]\n{v.text}" for rank, v in sorted(arrived.items()) if v.outcome == "failed"]
        self.journal.write(test=test, outcome="failed", text="\n".join(report))
        if not self.journal.kept:
            self.journal.stacks.write("\n".join(report) + "\n")
        for rank in late:
            os.kill(self._pids[rank], signal.SIGUSR1)
        time.sleep(0.3)  # the stacks are written by signal handlers
        self._comm.Abort(70)


class RankReports:
    """Replaces each rank's outcome by the common outcome of all ranks."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._collection_errors: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._collection_errors.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        outcome = "failed" if self._collection_errors else "passed"
        text = "\n\n".join(self._collection_errors or [item.nodeid for item in items])
        verdicts = self._agreement.exchange(Verdict(outcome, text), "(collection)", "of tests")
        if any(verdict.outcome == "failed" for verdict in verdicts):
            pytest.exit(f"tests could not be collected\n{failure_text(verdicts)}", pytest.ExitCode.INTERRUPTED)
        if any(verdict.text != text for verdict in verdicts):
            pytest.exit("the ranks collected different tests", pytest.ExitCode.INTERRUPTED)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Wait until rank 0 has reported: the first rank that exits with a failure ends the job."""
        sys.stdout.flush()
        self._agreement.exchange(Verdict("passed", ""), "(session)", "end")

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost, so that xfail has been applied
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        mine = Verdict(outcome, report.longreprtext if report.failed else "")
        verdicts = self._agreement.exchange(mine, report.nodeid, report.when)
        if any(verdict.outcome == "failed" or verdict.outcome != outcome for verdict in verdicts):
            report.outcome = "failed"
            report.longrepr = failure_text(verdicts)
            report.__dict__.pop("wasxfail", None)
        return report


def failure_text(verdicts: Sequence[Verdict]) -> str:
    """One text about the failures of all ranks; ranks with the same text are named together.

    >>> print(failure_text([Verdict("passed", ""), Verdict("failed", "boom"), Verdict("failed", "boom")]))
    [ranks 1, 2]
    boom
    >>> failure_text([Verdict("passed", ""), Verdict("skipped", "")])
    'the outcome differs between ranks: passed, skipped'
    """
    ranks_by_text: dict[str, list[int]] = {}
    for rank, verdict in enumerate(verdicts):
        if verdict.outcome == "failed":
            ranks_by_text.setdefault(verdict.text, []).append(rank)
    if not ranks_by_text:
        return "the outcome differs between ranks: " + ", ".join(verdict.outcome for verdict in verdicts)
    if len(verdicts) == 1:
        return verdicts[0].text
    return "\n".join(
        f"[rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}]\n{text}" for text, ranks in ranks_by_text.items()
    )
