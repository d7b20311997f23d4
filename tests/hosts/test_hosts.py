"""Hosts are removed however their program ends, and nothing of one run meets another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.common.outside import outside
from tests.harness.hosts import Hosts, missing

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0

_REASON = missing()
pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON or "hosts can be made")


def names_of(pid: int) -> set[str]:
    """Network namespaces and interfaces that a process has made."""
    listed = [
        subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
        for words in (("netns", "list"), ("-o", "link"))
    ]
    words = " ".join(listed).replace("@", " ").replace(":", " ").split()
    return {word for word in words if word.startswith(f"pb{pid}")}


def wait_until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, f"not within {SECONDS} s"
        time.sleep(0.02)


def started(*command: str) -> subprocess.Popen[bytes]:
    """The harness, which runs a command on two hosts."""
    program = [sys.executable, "tests/harness/hosts.py", "2x1", "--", *command]
    return subprocess.Popen(
        program, cwd=ROOT, env=outside(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["while hosts are made", "while ranks run"])
def test_a_signal_ends_the_job_and_removes_the_hosts(signum: signal.Signals, moment: str, tmp_path: Path) -> None:
    process = started(sys.executable, "-c", f"open('{tmp_path}/runs','w').close();__import__('time').sleep(99)")
    wait_until(lambda: bool(names_of(process.pid)))
    if moment == "while ranks run":
        wait_until((tmp_path / "runs").exists)
    process.send_signal(signum)
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signum, output
    assert not names_of(process.pid)


def test_a_command_that_fails_gives_its_status_and_leaves_nothing() -> None:
    process = started("sh", "-c", "false")
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, output
    assert not names_of(process.pid)


def test_hosts_that_cannot_all_be_made_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, made = names_of(os.getpid()), set()
    add = Hosts._add

    def fail(self: Hosts, number: int) -> None:
        if number == 2:
            made.update(names_of(os.getpid()))
            raise OSError("no more")
        add(self, number)

    monkeypatch.setattr(Hosts, "_add", fail)
    with pytest.raises(OSError, match="no more"), Hosts(2):
        pass
    assert made > before
    assert names_of(os.getpid()) == before


def test_one_process_may_make_hosts_several_times_at_once() -> None:
    with Hosts(1) as first, Hosts(2) as second:
        assert len(names_of(os.getpid())) == 2 * 2 + 1 + 2 * 3 + 1  # a namespace and a link each, and the bridges
        assert first.processes(1) == second.processes(2) == []
    assert not names_of(os.getpid())


def test_the_reason_why_there_are_no_hosts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(OSError, match="need Linux and root"), Hosts(1):
        pass
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "ip" else tool)
    with pytest.raises(OSError, match=r"need ip$"), Hosts(1):
        pass
