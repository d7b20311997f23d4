"""Laws of pblas.run and pblas.Pool: results and errors come once, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.launch import channel, job

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
SECONDS = 60.0  # far more than anything here takes, far less than waiting for ever


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def left_of(pids: list[int]) -> list[int]:
    """Processes that have not ended after some seconds; they are killed."""
    end = time.monotonic() + 10
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    left = [pid for pid in pids if runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@pytest.fixture(scope="module", autouse=True)
def _one_thread_per_rank() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def kept() -> Iterator[pblas.Pool]:
    """A pool that all tests use which leave it usable: that is a law, too."""
    with pblas.Pool(RANKS, timeout=20.0) as pool:
        pids = pool.run(lambda _: os.getpid())
        yield pool
        assert repr(pool) == "<pblas.Pool: 3 ranks>"
        assert pool.run(lambda _: os.getpid()) == pids
    assert repr(pool) == "<pblas.Pool closed: 3 ranks>"
    assert left_of(pids) == []


class OwnError(Exception):
    """An exception with more than a text."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text, number)
        self.number = number


@pytest.mark.parametrize("ranks", [1, 3])
def test_run_returns_the_result_of_every_rank_and_leaves_nothing(ranks: int, tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("pblas-*"))

    def function(ctx: pblas.Context, n: int, *, scale: float) -> tuple[int, int, np.ndarray[Any, Any]]:
        (tmp_path / f"{ctx.rank}").touch()
        a = ctx.from_global(np.eye(n) * scale)
        return ctx.rank, os.getpid(), (a @ a).to_global(None)

    results = pblas.run(function, ranks, (5,), {"scale": 3.0}, timeout=SECONDS)
    assert [rank for rank, *_ in results] == list(range(ranks))
    for *_, product in results:
        np.testing.assert_array_equal(product, 9 * np.eye(5))
        assert product.flags.writeable
    assert len(list(tmp_path.iterdir())) == ranks
    assert left_of([pid for _, pid, _ in results]) == []
    assert set(Path(tempfile.gettempdir()).glob("pblas-*")) <= before


def test_state_stays_on_the_ranks_between_calls(kept: pblas.Pool) -> None:
    def make(ctx: Any, n: int) -> None:
        ctx.A = ctx.from_global(np.arange(n * n, dtype=float).reshape(n, n))

    assert kept.run(make, (7,)) == [None] * RANKS
    assert kept.run(lambda ctx: float(ctx.A.trace())) == [float(np.arange(0, 49, 8).sum())] * RANKS


def test_large_arrays_are_arguments_and_results(kept: pblas.Pool) -> None:
    x = np.random.default_rng(0).standard_normal(3 << 17)  # 3 MiB, more than sockets and pipes hold

    def function(ctx: pblas.Context, x: Any, y: Any) -> Any:
        x += ctx.rank  # arguments are the rank's own
        return x, {"y": y}

    results = kept.run(function, (x, x[::2]))
    for rank, (y, rest) in enumerate(results):
        np.testing.assert_array_equal(y, x + rank)
        np.testing.assert_array_equal(rest["y"], x[::2])


def test_output_comes_before_the_results(kept: pblas.Pool, capfd: Any) -> None:
    def function(ctx: pblas.Context) -> None:
        print(f"rank {ctx.rank}: größer", "x" * 10_000)
        print(f"error {ctx.rank}", file=sys.stderr)
        os.write(1, b"raw\n")

    kept.run(function)
    output, error = capfd.readouterr()
    assert output.count("raw\n") == RANKS
    assert sorted(error.split("\n")) == ["", "error 0", "error 1", "error 2"]
    for rank in range(RANKS):
        assert f"rank {rank}: größer {'x' * 10_000}\n" in output


@pytest.mark.parametrize("culprit", [0, 2])
def test_the_exception_of_one_rank_is_raised_once_while_others_wait_for_it(kept: pblas.Pool, culprit: int) -> None:
    def function(ctx: pblas.Context) -> None:
        a = ctx.ones((4, 4))
        if ctx.rank == culprit:
            raise OwnError("on purpose", 17)
        (a @ a).to_global()

    with pytest.raises(OwnError, match="on purpose") as caught:
        kept.run(function)
    assert caught.value.number == 17
    (note,) = caught.value.__notes__
    assert note.startswith(f"On rank {culprit} of {RANKS}:\nTraceback")
    assert "in function" in note
    assert "worker.py" not in note
    assert note.count("on purpose") == 2 or "Rank" not in note  # the source line and the exception


def test_the_lowest_rank_comes_first_and_the_others_are_in_the_note(kept: pblas.Pool) -> None:
    def function(ctx: pblas.Context) -> None:
        if ctx.rank:
            raise KeyError(ctx.rank)

    with pytest.raises(KeyError, match="1") as caught:
        kept.run(function)
    assert caught.value.__notes__[0].startswith("On rank 1 of 3:")
    assert "\nRank 2: KeyError: 2" in caught.value.__notes__[0]


def test_errors_that_all_ranks_agree_on_keep_their_type(kept: pblas.Pool) -> None:
    with pytest.raises(pblas.DescriptorError):
        kept.run(lambda ctx: ctx.ones((3, 4)) @ ctx.ones((3, 4)))
    with pytest.raises(pblas.PblasArgumentError) as caught:
        kept.run(lambda _: _raise(pblas.PblasArgumentError("text", -3)))
    assert caught.value.info == -3
    with pytest.raises(SystemExit):
        kept.run(lambda _: sys.exit(3))


def _raise(error: Exception) -> None:
    raise error


def test_ranks_that_make_different_calls_do_not_wait(kept: pblas.Pool) -> None:
    with pytest.raises(pblas.MismatchError, match=r"pblas\.run"):
        kept.run(lambda ctx: ctx.rank == 1 or ctx.ones((2, 2)))


class TwoArguments(Exception):
    """Python pickles it with one argument, and cannot unpickle it."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.b = b


def test_an_exception_whose_class_has_other_arguments_arrives_as_itself(kept: pblas.Pool) -> None:
    with pytest.raises(TwoArguments, match="1 and 2") as caught:
        kept.run(lambda _: _raise(TwoArguments(1, 2)))
    assert caught.value.b == 2
    for error in (FileNotFoundError(2, "No such file", "x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")):
        with pytest.raises(type(error)) as caught_too:
            kept.run(lambda _, error=error: _raise(error))
        assert str(caught_too.value) == str(error)


def test_an_exception_that_cannot_be_pickled_keeps_its_text(kept: pblas.Pool) -> None:
    with pytest.raises(pblas.PblasError, match=r"ValueError: .*lock"):
        kept.run(lambda _: _raise(ValueError(threading.Lock())))


BELONGINGS: dict[str, Callable[[pblas.Context], Any]] = {
    "the context": lambda ctx: ctx,
    "a plan": lambda ctx: pblas.plan_matmul(ctx.ones((4, 4)), ctx.ones((4, 4))),
    "a factor": lambda ctx: pblas.linalg.lu_factor(ctx.eye(4)),
}


def test_matrices_do_not_travel(kept: pblas.Pool) -> None:
    with pytest.raises(pblas.ArgumentError, match=r"the result of rank 0 .* A\.to_global\(\)"):
        kept.run(lambda ctx: [ctx.ones((2, 2))])
    with pytest.raises(pblas.ArgumentError, match="an argument of it cannot be sent"):
        kept.run(print, (threading.Lock(),))
    for name in ("the context", "a plan", "a factor"):
        with pytest.raises(
            pblas.ArgumentError, match=r"TypeError: a pblas\.Context, and what belongs to it, cannot|DistM"
        ):
            kept.run(BELONGINGS[name])


@pytest.mark.parametrize("closed", [True, False])
def test_a_closed_or_broken_context_is_replaced(kept: pblas.Pool, closed: bool) -> None:
    def function(ctx: Any) -> None:
        ctx.mark = True
        if closed:
            ctx.close()
        elif ctx.rank:
            ctx.runtime.backend.agreement.wait(lambda: False, "a message", 0.1)
        else:
            time.sleep(1)

    def again() -> None:
        assert kept.run(lambda ctx: (hasattr(ctx, "mark"), float(ctx.ones((2, 2)).sum()))) == [(False, 4.0)] * RANKS

    if closed:
        kept.run(function)
        again()
        return
    with pytest.raises(pblas.PeerTimeout) as caught:
        kept.run(function)
    assert "The context is broken: the next call gets a new one" in str(caught.value.__notes__)
    with pytest.warns(pblas.PblasWarning, match="lost the attributes of the old one: ."):
        again()


ERRORS: dict[str, Callable[[pblas.Context], Any]] = {
    "of one rank": lambda ctx: _raise(ValueError()) if ctx.rank == 1 else (ctx.ones((4, 4)) @ ctx.ones((4, 4))).sum(),
    "of all ranks": lambda _: _raise(ValueError()),
    "agreed": lambda ctx: ctx.ones((4, 3)) @ ctx.ones((4, 4)),
    "a misspelt argument": lambda ctx: ctx.ones((4, 3), typ="f4"),  # type: ignore[call-arg]
    "the end of one rank": lambda ctx: sys.exit(1) if ctx.rank == 1 else ctx.ones((4, 4)).sum(),
    "different calls": lambda ctx: ctx.rank == 1 or ctx.ones((2, 2)),
    "a result that cannot travel": lambda ctx: ctx.ones((2, 2)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_context_and_its_matrices_outlive_an_error(kept: pblas.Pool, name: str) -> None:
    def make(ctx: Any) -> None:
        ctx.A = ctx.ones((7, 7))

    kept.run(make)
    with pytest.raises((Exception, SystemExit)):
        kept.run(ERRORS[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept.run(lambda ctx: float(ctx.A.sum())) == [49.0] * RANKS


def in_fork(act: Callable[[], Any]) -> str:
    """What a fork of this process raises there, as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            text = "nothing"
        except BaseException as error:  # noqa: BLE001 - reported
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_is_refused_and_does_not_disturb_its_parent(kept: pblas.Pool) -> None:
    text = in_fork(lambda: kept.run(lambda ctx: ctx.rank))
    assert re.match(rf"ContextError: Pool\.run: the ranks belong to process {os.getpid()}, and this is its fork", text)
    in_fork(kept.close)

    def function(ctx: Any) -> tuple[str, float]:
        text = in_fork(lambda: ctx.ones((4, 4)))
        return text, float(ctx.ones((4, 4)).sum())

    for rank, (text, value) in enumerate(kept.run(function)):
        assert "the context belongs to the process" in text
        assert f"it would speak in the name of rank {rank}" in text
        assert value == 16.0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_that_returns_from_the_function_does_not_report(kept: pblas.Pool, capfd: Any) -> None:
    def function(ctx: pblas.Context) -> int:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return ctx.rank if pid else -1

    assert kept.run(function) == [0, 1, 2]
    assert "a fork of rank 1 returned" in capfd.readouterr().err


def test_inside_a_job_is_refused(kept: pblas.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pblas.BackendError, match=r"pblas\.run: this process is a rank of an MPI job already"):
        kept.run(lambda _: pblas.run(print, 2))
    monkeypatch.setenv("PMIX_RANK", "0")
    with pytest.raises(pblas.BackendError, match=r"pblas\.Pool: .*PMIX_RANK=0.*plain"):
        pblas.Pool(2)


WRONG: dict[str, dict[str, Any]] = {
    "ranks": {"function": print, "ranks": 0},
    "ranks must": {"function": print, "ranks": True},
    "function": {"function": 3},
    "args": {"function": print, "args": 3},
    "kwargs": {"function": print, "kwargs": 3},
    "timeout": {"function": print, "timeout": -1.0},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_start_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    with pytest.raises(pblas.ArgumentError, match=rf"^pblas\.run: {name}"):
        pblas.run(**WRONG[name])


def test_what_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIEXEC", "/nowhere/mpiexec -x")
    with pytest.raises(pblas.BackendError, match=r"no '/nowhere/mpiexec' to start ranks: pip install mpi4py mpich"):
        job.launcher("pblas.run")
    monkeypatch.setenv("MPIEXEC", "mpiexec --some 'more of it'")
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert job.launcher("pblas.run") == ["mpiexec", "--some", "more of it"]


def test_without_cloudpickle_functions_of_modules_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    monkeypatch.setattr(channel, "find_spec", lambda _: None)
    assert channel.unpacked(channel.packed("pblas.run", (left_of, np.eye(3)), "it"))[0] is left_of
    monkeypatch.setattr(left_of, "__module__", "__main__")  # as of a script
    for value in (lambda: 1, left_of):
        with pytest.raises(pblas.ArgumentError, match=r"it cannot be sent: .*; pip install cloudpickle"):
            channel.packed("pblas.run", value, "it")


def test_a_launcher_that_fails_is_named_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPIEXEC", f"{sys.executable} -c \"print('no such thing'); raise SystemExit(4)\"")
    with pytest.raises(pblas.BackendError, match=r"did not start \(exit status 4\): no such thing"):
        pblas.run(print, 2)


def test_a_wrong_option_of_the_context_keeps_its_type() -> None:
    with pytest.raises(pblas.ArgumentError, match="transport"):
        pblas.Pool(2, transport="pigeons")


def test_a_dead_rank_ends_the_pool() -> None:
    pool = pblas.Pool(2)
    pids = pool.run(lambda _: os.getpid())

    def function(ctx: pblas.Context) -> None:
        if ctx.rank == 1:
            os._exit(3)
        time.sleep(1000)

    with pytest.raises(pblas.ContextError, match=r"rank 1 of 2 died \(exit status of the job: [39]\)"):
        pool.run(function)
    assert pool.closed
    with pytest.raises(pblas.ContextError, match="the pool is closed"):
        pool.run(function)
    assert left_of(pids) == []


def test_a_rank_that_is_killed_in_the_middle_of_a_factorization_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    def function(ctx: pblas.Context) -> None:
        from pblas.factor.lu_run import RunLu

        (tmp_path / str(os.getpid())).touch()
        usual, calls = RunLu.factor, iter((False, True))

        def factor(*arguments: Any) -> Any:
            if ctx.rank == 1 and next(calls):  # its second panel, of more than two
                os.kill(os.getpid(), signal.SIGKILL)
            return usual(*arguments)

        RunLu.factor = factor  # type: ignore[assignment, method-assign]
        pblas.linalg.lu_factor(ctx.eye(600))

    with pytest.raises(pblas.ContextError, match="rank 1 of 2 died"):
        pblas.run(function, 2)
    assert left_of([int(path.name) for path in tmp_path.iterdir()]) == []


def test_a_time_limit_names_the_late_ranks_and_leaves_nothing(tmp_path: Path) -> None:
    def function(ctx: pblas.Context) -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(1000 * ctx.rank)

    pool = pblas.Pool(2)
    with pytest.raises(pblas.PeerTimeout, match=r"Pool\.run: rank 1 of 2 did not return within 2 s"):
        pool.run(function, timeout=2)
    assert pool.closed
    assert left_of([int(path.name) for path in tmp_path.iterdir()]) == []


@pytest.mark.parametrize("stopped", ["before its arguments arrive", "while it sends its result", "in the function"])
def test_a_time_limit_is_kept_while_a_message_is_under_way(stopped: str) -> None:
    x = np.ones(5 << 20)  # 40 MiB
    pool = pblas.Pool(2)
    pids = pool.run(lambda _: os.getpid())

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def function(ctx: pblas.Context, *_: Any) -> Any:
        if ctx.rank and stopped == "in the function":
            stop()
        if ctx.rank and stopped == "while it sends its result":
            threading.Timer(0.5, stop).start()
            return np.ones(200 << 20)  # 1.6 GB
        return None

    if stopped == "before its arguments arrive":
        os.kill(pids[1], signal.SIGSTOP)
    with pytest.raises(pblas.PeerTimeout, match=r"rank (0, )?1 of 2 did not return within 3 s"):
        pool.run(function, (x, x), timeout=3)
    assert pool.closed
    assert left_of(pids) == []


@pytest.mark.parametrize("status", [0, 3])
def test_a_rank_that_exits_leaves_no_shared_memory(status: int) -> None:
    def function(ctx: pblas.Context) -> None:
        time.sleep(0.5 * ctx.rank)
        os._exit(status)

    names = set(pblas.run(lambda _: named_segments(), 2))
    assert names == {frozenset()}
    with pytest.raises(pblas.ContextError, match="died"):
        pblas.run(function, 2)


class Dying:
    """An option of the context at which ranks die when they read it: MPI runs, and there is no context yet."""

    def __init__(self, deaths: str) -> None:
        self.deaths = deaths

    def __reduce__(self) -> tuple[Callable[[str], float], tuple[str]]:
        return die, (self.deaths,)


def die(deaths: str) -> float:
    from mpi4py import MPI

    if deaths == "all exit" or MPI.COMM_WORLD.Get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL) if deaths == "one is killed" else os._exit(3)
    return 20.0


@pytest.mark.parametrize("deaths", ["all exit", "one exits", "one is killed"])
def test_ranks_that_die_before_their_context_leave_no_shared_memory_and_delete_no_other(deaths: str) -> None:
    folder = Path("/dev/shm")
    with tempfile.NamedTemporaryFile(prefix="mpich_shm_of_another_job_", dir=folder) as other:
        before = set(folder.glob("mpich_*"))
        with pytest.raises(pblas.ContextError, match=r"rank \d of 2 died"):
            pblas.Pool(2, timeout=Dying(deaths))
        assert Path(other.name).exists()
        assert not [path for path in set(folder.glob("mpich_*")) - before if is_unused(path)]


def is_unused(path: Path) -> bool:
    """Whether no process has mapped a file: other jobs may run beside these tests."""
    lists = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            lists.append(maps.read_text())
    return not any(str(path) in text for text in lists) and path.exists()


def named_segments() -> frozenset[str]:
    """MPICH's shared memory of this process that has a name, and would stay if the process were killed."""
    maps = Path("/proc/self/maps").read_text()
    return frozenset(line for line in maps.splitlines() if "/dev/shm" in line and not line.endswith("(deleted)"))


def test_a_long_folder_of_temporary_files_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert pblas.run(lambda ctx: ctx.rank, 2) == [0, 1]
    assert list(long.iterdir()) == []


def test_a_pool_that_nobody_refers_to_ends() -> None:
    pool = pblas.Pool(1)
    pids = pool.run(lambda _: os.getpid())
    del pool
    gc.collect()
    assert left_of(pids) == []


# A rank that computes without end in functions of a script, whose caller is then disturbed.
SCRIPT = """
import os, pathlib, sys, time
import pblas

class OwnError(Exception):
    pass

def function(ctx):
    if ctx.rank == 0:
        raise OwnError("of the script")

def endless(ctx, folder):
    (pathlib.Path(folder) / f"pid.{os.getpid()}").touch()
    while True:
        time.sleep(0.1)

if __name__ == "__main__":
    with pblas.Pool(2) as pool:
        try:
            pool.run(function)
        except OwnError as error:
            print("the same class", flush=True)
        pool.run(endless, (sys.argv[1],))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_caller(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + SECONDS
    while len(list(tmp_path.glob("pid.*"))) < 2 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    output, error = process.communicate(timeout=SECONDS)
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 2, error
    assert output == "the same class\n"
    assert process.returncode == -number if number != signal.SIGINT else "KeyboardInterrupt" in error
    assert left_of(pids) == []
    assert list(tmp_path.glob("pblas-*")) == []
