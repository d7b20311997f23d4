"""Laws of pblas.run and pblas.Pool: results and errors come once, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas.launch import channel, job
from pblas.launch.channel import segments_of

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


def test_an_exception_that_cannot_be_pickled_keeps_its_text(kept: pblas.Pool) -> None:
    def function(ctx: pblas.Context) -> None:
        class Odd(Exception):
            def __init__(self, a: int, b: int) -> None:
                super().__init__(f"{a} and {b}")

        raise Odd(1, 2)

    with pytest.raises(pblas.PblasError, match="Odd: 1 and 2"):
        kept.run(function)


def test_matrices_do_not_travel(kept: pblas.Pool) -> None:
    with pytest.raises(pblas.ArgumentError, match=r"the result of rank 0 .* A\.to_global\(\)"):
        kept.run(lambda ctx: [ctx.ones((2, 2))])
    with pytest.raises(pblas.ArgumentError, match="an argument of it cannot be sent"):
        kept.run(print, (threading.Lock(),))


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

    if closed:
        kept.run(function)
    else:
        with pytest.raises(pblas.PeerTimeout):
            kept.run(function)
    assert kept.run(lambda ctx: (hasattr(ctx, "mark"), float(ctx.ones((2, 2)).sum()))) == [(False, 4.0)] * RANKS


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
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(pblas.BackendError, match=r"pip install 'pblas\[run\]'"):
        channel.packed("pblas.run", 1, "it")
    monkeypatch.setenv("MPIEXEC", "/nowhere/mpiexec -x")
    with pytest.raises(pblas.BackendError, match=r"no '/nowhere/mpiexec' to start ranks.*pblas\[mpi\]"):
        job.launcher("pblas.run")
    monkeypatch.setenv("MPIEXEC", "mpiexec --some 'more of it'")
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert job.launcher("pblas.run") == ["mpiexec", "--some", "more of it"]


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

    with pytest.raises(pblas.ContextError, match="rank 1 of 2 died, with exit status 3"):
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
    segments = segments_of(int(path.suffix[1:]) for path in tmp_path.glob("pid.*"))
    process.send_signal(number)
    output, error = process.communicate(timeout=SECONDS)
    pids = [int(path.suffix[1:]) for path in tmp_path.glob("pid.*")]
    assert len(pids) == 2, error
    assert output == "the same class\n"
    assert process.returncode == -number if number != signal.SIGINT else "KeyboardInterrupt" in error
    assert left_of(pids) == []
    assert list(tmp_path.glob("pblas-*")) == []
    assert [path for path in segments if path.exists()] == []
