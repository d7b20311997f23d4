"""Jobs on several hosts whose network, processes or memory fail: right results, or one error on all ranks, in time.

A test starts a job (fault_job.py) on hosts (tests/harness/hosts.py), and disturbs host 2 while the ranks work.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.common.host_job import HOST, PART, RANK, SHORT, SLACK, Job, cut_off, paused, slow_hosts
from tests.harness.hosts import Hosts, missing

LONG = 60.0  # seconds: the timeout of a context that waits for a short disturbance
MOMENT = 1.0  # seconds of a disturbance that is no error

_REASON = missing()
pytestmark = pytest.mark.skipif(bool(_REASON), reason=_REASON or "hosts can be made")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Three hosts with slow links."""
    with slow_hosts() as made:
        yield made


@pytest.mark.parametrize(
    ("work", "part", "disturbed"),
    [("product", PART, cut_off), ("agreement", 0, cut_off), ("product", PART, paused)],
    ids=["product cut off", "agreement cut off", "product paused"],
)
def test_a_short_disturbance_delays_and_a_long_one_is_an_error_on_all_ranks(
    hosts: Hosts, work: str, part: int, disturbed: Callable[[Hosts], AbstractContextManager[None]]
) -> None:
    """The link comes back, or the host goes on, before and after the deadline; then a new context works."""
    with Job(hosts, (1, 1, 1), (work, LONG), (work, SHORT), (work, LONG)) as job:
        job.begin(part)
        with disturbed(hosts):
            time.sleep(MOMENT + (work == "agreement"))  # until after the late rank has arrived
            assert job.unfinished(), "the disturbance is in the middle of the work"
        job.check_right()
        job.begin(part)
        with disturbed(hosts):
            job.check_timeout()
        own = job.outcomes()[RANK]
        assert own["error"] == "PeerTimeout", own
        assert "did not arrive" in own["text"]
        job.begin()
        job.check_right()
        assert job.status() == 0


@pytest.mark.parametrize("work", ["product", "factorization", "grid", "cholesky", "qr", "eigenvalues"])
def test_a_host_that_is_cut_off_for_good_ends_the_job(hosts: Hosts, work: str) -> None:
    with Job(hosts, (1, 1, 1), (work, SHORT)) as job:
        job.begin(PART)
        with cut_off(hosts):
            job.check_timeout()
            assert job.status() != 0


@pytest.mark.parametrize("work", ["grid", "cholesky", "qr"])
def test_a_host_that_is_killed_ends_the_job(hosts: Hosts, work: str) -> None:
    with Job(hosts, (1, 1, 1), (work, LONG)) as job:
        job.begin(PART)
        hosts.signal(HOST, signal.SIGKILL)
        assert job.status() != 0
        end = time.monotonic() + SLACK
        while left := [pid for number in range(1, hosts.count + 2) for pid in hosts.processes(number)]:
            assert time.monotonic() < end, left
            time.sleep(0.05)


def test_too_little_shared_memory_on_one_host_is_an_error_on_all_ranks_or_messages() -> None:
    with (
        Hosts(2, shm={HOST: "8m"}) as hosts,  # MPICH takes some of it; a window of two ranks needs 8 MiB
        Job(hosts, (2, 2), ("messages", LONG), ("product", LONG, "shared"), ("messages", LONG)) as job,
    ):
        job.begin()
        job.check_right()
        job.begin()
        errors = {(each["error"], each["text"]) for each in job.outcomes()}
        assert len(errors) == 1, errors
        name, text = errors.pop()
        assert name == "WorkspaceError"
        assert text.startswith("shared memory: ")
        assert text.endswith("found on rank 2 of 4")
        job.begin()
        job.check_right()
        assert job.status() == 0


def test_clocks_of_hosts_may_differ() -> None:
    with Hosts(2, clocks={HOST: 5000}) as hosts, Job(hosts, (1, 1), ("trace", LONG)) as job:
        job.begin()
        job.check_right()
        assert job.status() == 0


def test_hosts_may_have_unequal_numbers_of_ranks_and_unequal_speed() -> None:
    """Host 1 has one rank and a core that is also busy with something else; host 2 has three ranks."""
    busy = ["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]
    with Hosts(2) as hosts, Job(hosts, (1, 3), ("every_kind", LONG)) as job, subprocess.Popen(busy) as other:
        try:
            job.begin()
            job.check_right()
            assert job.status() == 0
        finally:
            other.kill()
