"""Several hosts on one machine: Linux network namespaces on one bridge, joined by TCP.

Each host has its own address, host name, /dev/shm and, in turn, one core. Ranks of different hosts share no memory, so
MPI sees as many nodes. The rate at which a host receives can be limited, and its link can be cut.

    python tests/harness/hosts.py 2x1 -- .venv/bin/python -m mpi4py examples/matmul.py    2 hosts, 1 rank on each
    python tests/harness/hosts.py 1+3 --rate 1gbit -- ...                          1 rank on one host, 3 on the other

Needs root, `ip`, `tc`, `nsenter` and `unshare` (Debian: iproute2, util-linux), and an mpiexec by Hydra (MPICH).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase
from types import TracebackType
from typing import NoReturn, Self

_SHELL = """#!/bin/sh
# Starts a command on a host, as ssh would: {name} [options] ADDRESS COMMAND...
while [ "${{1#-}}" != "$1" ]; do shift; done
number=${{1##*.}}; shift
case $number in {shm} esac
clock=; case $number in {clocks} esac
exec nsenter --net=/run/netns/{prefix}$number taskset -c $(( (number - 1) % {cores} )) \\
    unshare --uts --mount --ipc ${{clock:+--time --fork --monotonic $clock}} \\
    sh -c "hostname {prefix}$number; mount -t tmpfs -o size=$shm tmpfs /dev/shm; exec $*"
"""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""They wait while hosts are made or removed."""
_NUMBERS = itertools.count(1)
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""How TCP adapts to the network. BBR, the default of some machines, takes the round trip of bytes that a limited link
lets pass at once for that of all. So after a cut it sends 4 packets a round trip: seconds to minutes for a megabyte."""


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks of each host.

    >>> parse_ranks("2x3"), parse_ranks("1+3")
    ((3, 3), (1, 3))
    """
    hosts, times, ranks = text.partition("x")
    return (int(ranks),) * int(hosts) if times else tuple(map(int, text.split("+")))


def missing() -> str:
    """The reason why hosts cannot be made on this machine; "" if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts are made of network namespaces, which need Linux and root"
    tools = [tool for tool in ("ip", "tc", "nsenter", "unshare", "taskset") if not shutil.which(tool)]
    if tools:
        return f"hosts are made of network namespaces, which need {', '.join(tools)}"
    name = f"pb{os.getpid()}try{next(_NUMBERS)}"  # two threads may ask at once
    with _undisturbed():
        tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
        if tried.returncode:
            return f"no network namespace can be made: {tried.stderr.strip()}"
        subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class Hosts:
    """Hosts 1 to `count`, and one more that starts the jobs and has no ranks. A `with` block makes and removes them.

    Their names contain the number of this process. SIGINT and SIGTERM wait while hosts are made or removed; a program
    that gets SIGTERM must leave the block, by an exception.

    Args:
        count: number of hosts that run ranks.
        shm: size of the /dev/shm of some hosts by their number, as `mount` reads it; 1 GiB on the others.
        clocks: whole seconds, from 1 on, by which the monotonic clocks of some hosts are ahead, by number of the host.

    Raises:
        OSError: hosts cannot be made here; the text says why.
    """

    def __init__(
        self, count: int, *, shm: Mapping[int, str] | None = None, clocks: Mapping[int, int] | None = None
    ) -> None:
        self.count, self._shm, self._clocks = count, dict(shm or {}), dict(clocks or {})
        # Names of interfaces have 15 characters at most; one process may make hosts several times.
        self._prefix = f"pb{os.getpid()}{ascii_lowercase[next(_NUMBERS) % 26]}"
        self._subnet = f"10.77.{os.getpid() % 250}"
        self._folder = contextlib.ExitStack()

    def __enter__(self) -> Self:
        reason = missing()
        if reason:
            raise OSError(reason)
        try:
            with _undisturbed():
                self._make()
        except BaseException:  # also of a signal that has waited
            with _undisturbed():
                self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _undisturbed():
            self._remove()

    def limit(self, rate: str | None, *, queue: str = "3000ms") -> None:
        """Limit what each host receives to a rate, as "1gbit"; None: no limit.

        The queue of a limited link holds what arrives in the time `queue`: if it is short TCP loses packets.
        """
        for number in range(1, self.count + 1):
            link = ("dev", self._link(number), "root")
            subprocess.run(["tc", "qdisc", "del", *link], capture_output=True, check=False)
            if rate is not None:
                _call("tc", "qdisc", "add", *link, "tbf", "rate", rate, "burst", "256kb", "latency", queue)

    def received_nbytes(self, number: int) -> int:
        """Bytes that a host has received so far, headers included."""
        return int(Path("/sys/class/net", self._link(number), "statistics/tx_bytes").read_text())

    def connect(self, number: int, *, up: bool) -> None:
        """Cut a host off the others, or join it again."""
        _ip("link", "set", self._link(number), "up" if up else "down")

    def processes(self, number: int) -> list[int]:
        """Process numbers of all processes on a host."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self._name(number)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in listed.stdout.split()]

    def signal(self, number: int, signum: signal.Signals) -> None:
        """Send a signal to all processes of a host."""
        for pid in self.processes(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def command(self, mpiexec: str, ranks: Sequence[int], command: Sequence[str]) -> list[str]:
        """The command that starts a job.

        Args:
            mpiexec: path of MPICH's mpiexec.
            ranks: number of ranks on each host, from host 1 on.
            command: command of each rank.
        """
        places = [f"{self._subnet}.{number}:{n}" for number, n in enumerate(ranks, 1)]
        return [
            *("ip", "netns", "exec", self._name(self.count + 1), mpiexec),
            *(
                "-localhost",
                f"{self._subnet}.{self.count + 1}",
                "-launcher",
                "ssh",
                "-launcher-exec",
                str(self._script),
            ),
            *("-hosts", ",".join(places), "-n", str(sum(ranks)), *command),
        ]

    @property
    def _bridge(self) -> str:
        return f"{self._prefix}br"

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _link(self, number: int) -> str:
        return f"{self._prefix}v{number}"

    def _add(self, number: int) -> None:
        name, link = self._name(number), self._link(number)
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")
        # Every kernel has Reno, and lets a namespace choose it.
        _ip("netns", "exec", name, "sh", "-c", f"echo reno >{_CONGESTION}")

    def _make(self) -> None:
        """Write the script that starts commands on hosts, and make the bridge and the namespaces."""
        settings = {
            "shm": " ".join(f"{number}) shm={size};;" for number, size in self._shm.items()) + " *) shm=1g;;",
            "clocks": " ".join(f"{number}) clock={seconds};;" for number, seconds in self._clocks.items()),
        }
        folder = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="hosts-of-pblas-"))
        self._script = Path(folder, "on-host")
        text = _SHELL.format(name=self._script.name, prefix=self._prefix, cores=os.cpu_count(), **settings)
        self._script.write_text(text)
        self._script.chmod(0o755)
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for number in range(1, self.count + 2):
            self._add(number)

    def _remove(self) -> None:
        """Remove everything that exists: remaining processes, links, namespaces, the bridge."""
        for number in range(1, self.count + 2):
            self.signal(number, signal.SIGKILL)
            for words in (("link", "del", self._link(number)), ("netns", "del", self._name(number))):
                subprocess.run(["ip", *words], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)
        self._folder.close()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A with block in which SIGINT and SIGTERM wait, also those of the programs that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave(signum: int, frame: object) -> NoReturn:
    """Handler of signals: raise, so that blocks of `Hosts` end."""
    raise SystemExit(128 + signum)


def _call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{shlex.join(words)}: {done.stderr.strip()}")


def _ip(*words: str) -> None:
    _call("ip", *words)


def main() -> int:
    """Run a command on hosts; the exit status is that of mpiexec."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ranks", type=parse_ranks, help="ranks of the hosts: 2x1 or 1+3")
    parser.add_argument("--rate", help="limit of what a host receives, as 1gbit or 500mbit; default: none")
    parser.add_argument("--mpiexec", default=str(Path(sys.executable).parent / "mpiexec"), help="%(default)s")
    parser.add_argument("command", nargs="+", help="what a rank runs, after --")
    options = parser.parse_args()
    for signum in _SIGNALS:  # a shell may have made a job in the background ignore SIGINT
        signal.signal(signum, leave)
    with Hosts(len(options.ranks)) as hosts:
        hosts.limit(options.rate)
        return subprocess.run(hosts.command(options.mpiexec, options.ranks, options.command), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
