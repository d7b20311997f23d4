"""Runs the tests: jobs of 1, 2, 3, 4 and 6 ranks, beside them jobs of one process; ends with one line of totals.

    python tests/harness/run.py                                everything; shares.py says which cases on which ranks
    python tests/harness/run.py --every                        everything on every number of ranks
    python tests/harness/run.py --quick                        what `make quick` runs: a minute's selection
    python tests/harness/run.py -n 2,4                         tests/mpi with 2 and with 4 ranks
    python tests/harness/run.py -n 3 tests/mpi/test_x.py -k y  with arguments of pytest
    python tests/harness/run.py --hosts 2x1,1+3 tests/mpi/test_x.py   on 2 hosts of a rank each, and of 1 and 3 ranks
    python tests/harness/run.py -n 3 -m openmpi                the tests of the short Open MPI leg
    python tests/harness/run.py --also .venv-openmpi/bin/python   everything, then that leg under another MPI
    python tests/harness/run.py --torch .venv-torch/bin/python    everything, and the tests that need torch with torch
    MPIEXEC=mpiexec python tests/harness/run.py -n 2,4         with an MPI that is not installed beside this Python

A job that crashes or deadlocks costs one failed test: it is started again without the tests that are done. A test that
runs when the deadline passes is cut, not failed: CUT names it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.harness.hosts import Hosts, leave, missing, parse_ranks  # noqa: E402
from tests.harness.shares import NUMBERS  # noqa: E402

MOST_RESTARTS = 20
SLOW = (
    "harness",
    "backends/test_kernels",
    "backends/test_hopper",
    "backends/test_launch",
    "backends/test_collective_kernels",
    "backends/test_elementwise_kernel",
    "docs/test_shell",
    "test_run",
)
"""Unit tests that --quick leaves out: they compile CUDA C++, or start jobs of their own."""
QUICK = tuple(
    f"tests/mpi/{name}.py"
    for name in (
        *("operations/test_epilogues", "operations/test_collectives", "tp/test_tp"),
        *("operations/test_redistribution", "operations/test_trsm", "faults/test_shortage"),
    )
)
"""Tests of several ranks that --quick runs, on 3."""
HOSTS = tuple(
    f"tests/mpi/{name}.py"
    for name in (
        *("operations/test_matmul", "operations/test_general", "operations/test_redistribution"),
        *("operations/test_collectives", "operations/test_unequal_nodes", "operations/test_every_routine"),
        *("tp/test_tp", "matrices/test_files"),
        *("faults/test_errors", "faults/test_lifetime", "faults/test_nodes"),
    )
)
"""Tests that run on several hosts, unless others are named."""
_MOST = "not (constant_memory or real_width or random_cases or float16 or complex64 or c_order or sleeps)"
_SOME = " or ".join(
    (
        *("test_unequal_nodes", "test_nodes"),  # products of every kind, on grids too
        "(any_layout_to_any_other and (shared or message))",
        *("reduce_scatter_splits", "(allreduce_is_numpys and float32)", "(is_that_of_one_rank and float32)"),
        *("(a_saved_matrix and C-float64)", "touches_its_own_part"),
        *("(wrong_product_is_refused and dtype)", "missing_from_context", "disjoint_ranks"),
    )
)
ALL_HOSTS = {"2x1": _MOST, "2x2": _SOME, "1+3": _SOME}
"""Ranks of each host in the legs of a whole run, and pytest's -k for them: about 80 s together on two idle cores."""
TORCH = "tests/unit/backends/test_process_group.py", "tests/unit/test_torch.py"
"""Tests of one process that need torch."""
FAULTS = "tests/hosts"
"""Tests of one process that make hosts and disturb them."""
SLOWEST = 8  # files of each leg whose times are printed
ENDING = 48  # lines at the end about failures: of a long log only the end may be kept
WIDTH = 300  # letters of each of them
PARTS = 9  # of the unit tests, so that the processors have about as much to do
ABANDONED = threading.Event()  # set to end all running jobs and start no more
PRINTING = threading.Lock()
COMPLETE = {0, 1, 5}  # pytest's statuses: all passed, some failed, none collected
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",  # ranks share the cores
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # otherwise every rank of every job compiles the package and all tests again
    # By default Open MPI does not run as root, as in a container, and starts no more ranks than there are cores.
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_osc": "^ucx",  # UCX prints a harmless error for every window
}
PLUMBING = (
    "/_pytest/",
    "/pluggy/",
    "/pytest/__main__",
    "/mpi4py/run.py",
    "/mpi4py/__main__.py",
    "<frozen runpy>",
)  # frames that are left out of printed stacks


Told = tuple[dict[str, str], dict[str, list[str]]]
"""Of tests, by name: the outcomes, and the texts of failures."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A set of tests on a number of ranks, 0 for one process without mpiexec; `part` is the end of its name.

    With `hosts` the ranks run on several hosts, which are network namespaces; the text gives the ranks of each.
    """

    ranks: int
    python: Path
    arguments: tuple[str, ...]
    part: str = ""
    hosts: str = ""

    @property
    def name(self) -> str:
        if self.hosts:
            return f"hosts of {self.hosts} ranks"
        size = f"one process{self.part}" if self.ranks == 0 else f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return size if self.python == Path(sys.executable) else f"{size}, {os.path.relpath(self.python, ROOT)}"

    @property
    def job(self) -> str:
        """Stands for a test where no test is to blame."""
        return f"(the job of {self.name})"

    @property
    def is_first(self) -> bool:
        """Whether it has several ranks on this host, or deadlines: one such leg runs at a time; the others yield."""
        return (self.ranks > 1 and not self.hosts) or FAULTS in self.arguments

    @property
    def mpiexec(self) -> str:
        return os.environ.get("MPIEXEC") or str(self.python.parent / "mpiexec")

    def command(self, options: argparse.Namespace, folder: Path, hosts: Hosts | None) -> list[str]:
        python = str(self.python)
        start = [python, "-m", "pytest"]
        if self.ranks:
            start = [python, "-m", "mpi4py", "-m", "pytest", "--with-mpi"]
        timeout = options.timeout if self.ranks else 5 * options.timeout  # unit tests start jobs of their own
        own = ["-q", "--tb=short", "-p", "tests.harness.plugin", "-p", "no:cacheprovider"]
        own += ["-c", str(ROOT / "pyproject.toml")]
        limits = [f"--rank-timeout={timeout}", f"--rank-grace={options.grace}", f"--journal={folder}"]
        rank = [*start, *own, f"--rootdir={ROOT}", *limits, *self.arguments]
        if hosts is not None:
            return hosts.command(self.mpiexec, parse_ranks(self.hosts), rank)
        return [self.mpiexec, "-n", str(self.ranks), *rank] if self.ranks else rank


@dataclass
class Attempt:
    """The outcome of one job: its exit status, the outcomes of its tests, and the texts of their failures."""

    status: int | None  # exit status of the process; None at the deadline
    finished: int | None = None  # pytest's own exit status; None if pytest did not end
    outcomes: dict[str, str] = field(default_factory=dict)
    texts: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # of the tests of each file

    def read(self, journal: Path) -> None:
        file, start = "", 0.0
        for line in journal.read_text().splitlines() if journal.exists() else ():
            event = json.loads(line)
            if "time" in event:
                if file:
                    self.seconds[file] += event["time"] - start
                file, start = event.get("test", "").partition("::")[0], event["time"]
            if "finished" in event:
                self.finished = event["finished"]
                continue
            name = event["test"]
            if self.outcomes.get(name) != "failed":  # a failed call outweighs its teardown
                self.outcomes[name] = event["outcome"]
            if event.get("text"):
                self.texts[name].append(event["text"])

    @property
    def is_cut(self) -> bool:
        """Whether the deadline of the whole run has ended the job."""
        return self.status is None

    @property
    def complete(self) -> bool:
        return self.finished in COMPLETE

    def lost(self) -> list[str]:
        """Tests that started and did not end: the job ended during one of them."""
        return [name for name, outcome in self.outcomes.items() if outcome == "started"]


def run_leg(leg: Leg, options: argparse.Namespace, end: float) -> Told:
    """Outcomes of all tests of a leg, in as many jobs as needed, and texts of failures; prints both, and one line."""
    start = time.monotonic()
    outcomes: dict[str, str] = {}
    texts: defaultdict[str, list[str]] = defaultdict(list)
    seconds: defaultdict[str, float] = defaultdict(float)
    for _ in range(MOST_RESTARTS):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / "done").write_text("\n".join(outcomes))
            attempt = run_job(leg, options, folder, end)
            at = [*(test for test, how in attempt.outcomes.items() if how == "failed"), *attempt.lost()][-1:]
            for test in attempt.lost():
                attempt.outcomes[test] = "cut" if attempt.is_cut else "failed"
                cause = "the deadline passed here" if attempt.is_cut else "the job died here"
                attempt.texts[test].append(f"{cause} (exit status {attempt.status})")
            if not attempt.complete:
                if not attempt.outcomes or attempt.is_cut:
                    attempt.outcomes[leg.job] = "cut" if attempt.is_cut else "failed"
                text = "\n".join(output_of(folder).splitlines()[-ENDING:])
                attempt.texts[(at or [leg.job])[0]] += stacks(folder) or [text]
            if not attempt.complete or "failed" in attempt.outcomes.values():
                with PRINTING:
                    show_failure(attempt, folder)
        outcomes |= attempt.outcomes
        for test, told in attempt.texts.items():
            texts[test] += told
        for file, spent in attempt.seconds.items():
            seconds[file] += spent
        if attempt.complete or leg.job in outcomes:
            break
    else:
        outcomes[leg.job] = "failed"
        texts[leg.job].append(f"it was aborted {MOST_RESTARTS} times")
    with PRINTING:
        cut = ", cut by the deadline" if "cut" in outcomes.values() else ""
        print(f"{leg.name}: {summary(count(outcomes))}{cut} in {time.monotonic() - start:.1f} s", flush=True)
        for file, spent in sorted(seconds.items(), key=lambda entry: -entry[1])[:SLOWEST]:
            print(f"    {spent:6.1f} s {file}", flush=True)
    return outcomes, texts


def run_job(leg: Leg, options: argparse.Namespace, folder: Path, end: float) -> Attempt:
    if time.monotonic() >= end:
        attempt = Attempt(None)
        attempt.texts[leg.job].append("the deadline of the whole run (--deadline) had passed before")
        return attempt
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}
    made = Hosts(len(parse_ranks(leg.hosts))) if leg.hosts else nullcontext()
    with made as hosts, (folder / "output").open("w") as output:
        process = subprocess.Popen(
            leg.command(options, folder, hosts),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None if options.live else output,
            stderr=None if options.live else subprocess.STDOUT,
            start_new_session=True,
        )
        if not leg.is_first:
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        try:
            attempt = Attempt(await_end(process, end))
        finally:
            stop(process)
    if attempt.status is None:
        attempt.texts[leg.job].append("the deadline of the whole run (--deadline) has passed")
    attempt.read(folder / "journal")
    return attempt


def await_end(process: subprocess.Popen[bytes], end: float) -> int | None:
    """Exit status of a job, None at the deadline.

    Raises:
        SystemExit: all jobs are abandoned.
    """
    while process.poll() is None and time.monotonic() < end:
        if ABANDONED.wait(0.02):
            raise SystemExit
    return process.returncode


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a job by SIGTERM, on which every mpiexec ends its ranks; on SIGINT not all do."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def show_failure(attempt: Attempt, folder: Path) -> None:
    """Print pytest's report; after an abort also the texts of failures so far, and the stacks."""
    print(output_of(folder))
    if not attempt.complete:
        for test, told in attempt.texts.items():
            print(test, *told, "", sep="\n")
    print(flush=True)


def output_of(folder: Path) -> str:
    """What a job has printed."""
    output = folder / "output"
    return output.read_text(errors="replace") if output.exists() else ""


def stacks(folder: Path) -> list[str]:
    """The stacks of ranks that were late, the innermost frame of the main thread last."""
    texts = []
    for path in sorted(folder.glob("stacks.*")):
        lines = [line for line in path.read_text().splitlines() if not any(part in line for part in PLUMBING)]
        threads = re.split(r"^(?=.*\(most recent call first\):$)", "\n".join(lines), flags=re.MULTILINE)
        if lines:
            turned = [
                [head, *reversed(frames)] for head, *frames in (thread.splitlines() for thread in threads if thread)
            ]
            text = "\n".join(line for thread in turned for line in thread)
            texts.append(f"[rank {path.suffix[1:]}] stacks\n{text.replace('call first', 'call last')}")
    return texts


def essence(text: str, most: int) -> list[str]:
    """The lines around the last error of each rank in a text of failures, about `most` in all, of fewer ranks if few.

    >>> essence("[rank 0]\\na.py:1: in f\\n    g()\\nE   first\\n\\nb.py:2: in g\\nE   last\\n[rank 1]\\nx", 8)
    ['[rank 0]', 'E   first', '', 'b.py:2: in g', 'E   last', '[rank 1]', 'x']
    >>> essence("[rank 0]\\nE   first\\n[rank 1]\\nE   last", 2), essence("[rank 0]\\nE   first", -1)
    (['[rank 0]', 'E   first'], [])
    """
    parts, lines = re.split(r"^(?=\[ranks? )", text.strip(), flags=re.MULTILINE), list[str]()
    parts = [part for part in parts if part][: max(0, most // 2)]
    each = max(3, most // max(1, len(parts)))
    for part in parts:
        head, *own = part.rstrip().splitlines()
        errors = [i for i, line in enumerate(own) if line.startswith("E ") and not own[i - 1].startswith("E ")]
        start = max(0, min(len(own), (errors or [len(own)])[-1] + each // 2) - each)
        lines += [head, *own[start : start + each]]
    return lines


def count(outcomes: dict[str, str]) -> Counter[str]:
    return Counter(outcomes.values())


def summary(counts: Counter[str]) -> str:
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def run_legs(legs: list[Leg], options: argparse.Namespace, end: float) -> list[Told]:
    """What is told of legs. Those of several ranks of this host run one after the other, as they share its processors.

    They leave time, as ranks wait for each other and for deadlines. So the others run beside them, one a processor and
    one more, since some wait for jobs of their own.
    """
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor((os.cpu_count() or 1) + 1) as beside:
        lanes = [first if leg.is_first or options.live else beside for leg in legs]
        begun = [lane.submit(run_leg, leg, options, end) for lane, leg in zip(lanes, legs, strict=True)]
        try:
            return [leg.result() for leg in begun]
        except BaseException:
            ABANDONED.set()
            for leg in begun:
                leg.cancel()
            raise


def choose_legs(options: argparse.Namespace, arguments: list[str]) -> list[Leg]:
    """The legs that the command line selects: all, or those of its paths and numbers of ranks."""
    python = Path(sys.executable)
    before = ["", *arguments]  # the value of an option may be the name of a folder: -k pblas
    paths = [
        argument
        for option, argument in zip(before, arguments, strict=False)
        if option not in {"-k", "-m", "-o", "-p"} and Path(ROOT, argument.partition("::")[0]).exists()
    ]
    flags = [argument for argument in arguments if argument not in paths]
    single = [path for path in paths if is_single(path)]
    spread = [path for path in paths if path not in single]
    shares = [single] if single else []
    if not paths:
        files = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/unit/**/test_*.py"))
        files, spread = [path for path in files if path not in TORCH or not options.torch], ["tests/mpi"]
        if options.quick:
            slow = tuple(f"tests/unit/{name}" for name in SLOW)
            files, spread = [path for path in files if not path.startswith(slow)], list(QUICK)
        shares = [files[part::PARTS] for part in range(PARTS)]
        shares[-1] += [*(f"tests/harness/{name}.py" for name in ("plugin", "run", "shares")), "pblas"]
    legs = []
    if options.ranks is None and not options.hosts:
        parts = [f", part {part}" if len(shares) > 1 else "" for part in range(1, len(shares) + 1)]
        legs += [Leg(0, python, (*flags, *share), part) for part, share in zip(parts, shares, strict=True)]
    everything = not (paths or options.quick or options.ranks)
    hosts = options.hosts or (ALL_HOSTS if everything else ())
    why = missing() if hosts else ""
    on_hosts = []
    for each in hosts:
        selected = () if paths or each not in ALL_HOSTS else ("-k", ALL_HOSTS[each])
        tests = (*selected, *flags, *(spread if paths else HOSTS))
        on_hosts.append(Leg(sum(parse_ranks(each)), python, tests, hosts=each))
    if everything and not options.hosts:
        on_hosts.append(Leg(0, python, (*flags, FAULTS), ", which disturbs hosts"))
    if why:
        print(*(f"{leg.name}: skipped, {why}" for leg in on_hosts), sep="\n", flush=True)
    else:
        legs += on_hosts
    if spread and not options.hosts:
        ranks = options.ranks or ((3,) if options.quick and not paths else NUMBERS)
        shared: tuple[str, ...] = ("--share",) if everything and not options.every else ()
        shared += ("-m", "not torch") if options.torch or options.quick else ()
        legs += [Leg(n, python, (*shared, *flags, *spread)) for n in ranks]
        if options.also:
            legs.append(Leg(3, options.also.absolute(), (*flags, "-m", "openmpi", *marked("openmpi", spread))))
        if options.torch:
            python = options.torch.absolute()
            legs.append(Leg(0, python, (*flags, *TORCH)))
            legs += [Leg(n, python, (*flags, "-m", "torch", *marked("torch", spread))) for n in NUMBERS]
    return legs


def marked(mark: str, paths: list[str]) -> list[str]:
    """Paths, with the files that have a mark in place of their folders: to read all takes seconds on each rank."""
    folders = [path for path in paths if Path(ROOT, path).is_dir()]
    files = [file for folder in folders for file in sorted(Path(ROOT, folder).rglob("test_*.py"))]
    found = [str(file.relative_to(ROOT)) for file in files if f"mark.{mark}" in file.read_text(encoding="utf-8")]
    return [*(path for path in paths if path not in folders), *found] or paths


def is_single(path: str) -> bool:
    """Whether the tests of a path run without mpiexec: unit tests and the doctests of the package."""
    place = Path(ROOT, path.partition("::")[0])
    folders = ("tests/unit", FAULTS, "tests/harness", "pblas")
    return any(place.is_relative_to(ROOT / folder) for folder in folders)


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("-n", dest="ranks", type=numbers, help="numbers of ranks, 2,4; leaves out the one process")
    parser.add_argument("--hosts", type=lambda text: text.split(","), help="ranks of each host, 2x1,1+3")
    parser.add_argument("--also", type=Path, metavar="PYTHON", help="its MPI runs the tests marked openmpi, 3 ranks")
    parser.add_argument("--torch", type=Path, metavar="PYTHON", help="it has torch, and runs the tests marked torch")
    parser.add_argument(
        "--timeout", type=float, default=60, help="seconds that ranks wait for each other (%(default)s)"
    )
    parser.add_argument("--grace", type=float, default=5, help="the same once one has failed (%(default)s)")
    parser.add_argument("--deadline", type=float, default=3600, help="seconds for everything (%(default)s)")
    parser.add_argument("--every", action="store_true", help="all cases of all tests on every number of ranks")
    parser.add_argument("--quick", action="store_true", help="a selection that takes about a minute")
    parser.add_argument("--live", action="store_true", help="show pytest's output as it comes")
    return parser.parse_known_args(arguments)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    for signum in (signal.SIGINT, signal.SIGTERM):  # a shell may have made a job in the background ignore SIGINT
        signal.signal(signum, leave)
    options, arguments = parse(sys.argv[1:])
    end = time.monotonic() + options.deadline
    total: Counter[str] = Counter()
    wrong: list[tuple[str, str]] = []
    legs = choose_legs(options, arguments)
    for leg in legs:
        if leg.ranks and not shutil.which(leg.mpiexec):
            sys.exit(f"there is no {leg.mpiexec}; say what starts ranks of {leg.python}, as MPIEXEC=/usr/bin/mpiexec")
    for leg, (outcomes, texts) in zip(legs, run_legs(legs, options, end), strict=True):
        total += count(outcomes)
        for test, how in outcomes.items():
            if how in ("failed", "cut"):
                wrong.append((f"{how.upper()} {test} [{leg.name}]", "\n".join(texts[test])))
    for name, text in wrong:
        print(name, *(f"    {line[:WIDTH]}" for line in essence(text, ENDING // len(wrong) - 1)), sep="\n")
    print(summary(total), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
