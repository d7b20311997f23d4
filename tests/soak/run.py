"""A long mix of all public calls (tests/soak/job.py), and beside it jobs of which a rank is lost at a random moment.

    make soak
    python tests/soak/run.py [--minutes 10] [--seed 0] [--ranks 4]

Every 30 seconds the rank of one of three hosts (tests/harness/hosts.py) is killed, stopped, or cut off the network in
the middle of a product or a factorization: a killed rank ends the job, a stopped one or one that is cut off is named by
the others within the timeout. Hosts need Linux and root; without them, the mix runs alone, and the last lines say so.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.common.host_job import HOST, PART, SLACK, Job, cut_off, paused, slow_hosts  # noqa: E402
from tests.common.outside import outside  # noqa: E402
from tests.harness.hosts import Hosts, leave, missing  # noqa: E402

EVERY = 30.0  # seconds between two lost ranks
TIMEOUT = 10.0  # seconds, of contexts whose rank is lost: the mix keeps the machine busy
LOOK = 10.0  # seconds between two looks at the files of the mix
ENDS = 120.0  # seconds after its time in which the mix must have ended


def lose_a_rank(hosts: Hosts, work: str, how: str, part: int) -> None:
    """Run a job, disturb host 2 when it has received `part` bytes, and assert that the other ranks end as they must."""
    with Job(hosts, (1, 1, 1), (work, TIMEOUT)) as job:
        job.begin(part)
        if how == "killed":
            hosts.signal(HOST, signal.SIGKILL)
            assert job.status() != 0
        else:
            with (cut_off if how == "cut off" else paused)(hosts):
                job.check_timeout(TIMEOUT)
                assert job.status() != 0
        end = time.monotonic() + SLACK
        while left := [pid for number in range(1, hosts.count + 2) for pid in hosts.processes(number)]:
            assert time.monotonic() < end, f"processes {left} have not ended"
            time.sleep(0.05)


def shared_files(mark: str) -> set[str]:
    """Files in /dev/shm that processes map whose environment has a mark."""
    files = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended
            if mark in (process / "environ").read_text(errors="replace"):
                files |= {word for word in (process / "maps").read_text().split() if word.startswith("/dev/shm/")}
    return files


def main() -> int:
    """Run both until the time is over; the exit status is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, leave)
    rng, start, counts, failures = random.Random(options.seed), time.monotonic(), Counter[str](), list[str]()
    end = start + 60 * options.minutes
    command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(options.ranks), sys.executable, "-m", "mpi4py"]
    command += ["-m", "tests.soak.job", "--minutes", str(options.minutes), "--seed", str(options.seed)]
    mark, files, looked = f"the-mix-of-{os.getpid()}", set[str](), start
    environment = {**os.environ, **outside(), "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "SOAK_MIX": mark}
    with ExitStack() as stack:
        hosts = None if missing() else stack.enter_context(slow_hosts())
        mix = subprocess.Popen(command, cwd=ROOT, env=environment)
        stack.callback(mix.terminate)
        while mix.poll() is None and time.monotonic() < end + ENDS:
            time.sleep(0.5)
            if time.monotonic() > looked:
                files, looked = files | shared_files(mark), time.monotonic() + LOOK
            if hosts is None or time.monotonic() > end or time.monotonic() < start + EVERY * (counts.total() + 1):
                continue
            work, how = rng.choice(["product", "factorization"]), rng.choice(["killed", "stopped", "cut off"])
            part = rng.randrange(PART)
            counts[how] += 1
            try:
                lose_a_rank(hosts, work, how, part)
            except (AssertionError, pytest.fail.Exception) as error:
                failures.append(f"{how} after {part} bytes of a {work}: {error}")
        status = mix.poll()
    failures += [] if status == 0 else [f"the mix ended with status {status}"]
    left = sorted(filter(os.path.exists, files)) if status == 0 else []  # MPICH leaves files when a job fails
    failures += [f"the mix has left {left}"] if left else []
    failures += [] if files else ["no file of the mix was seen in /dev/shm, so none can be missed"]
    for text in failures:
        print(text)
    lost = ", ".join(f"{count} {how}" for how, count in sorted(counts.items())) or missing()
    print(f"{counts.total()} ranks lost ({lost}); {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
