"""Memory that processes of this host can still get, and the limits of control groups, as those of containers and jobs.

Source: Linux, proc_meminfo(5), cgroups(7); Documentation/admin-guide/cgroup-v2.rst, memory.max, memory.current,
memory.stat; cgroup-v1/memory.rst, memory.limit_in_bytes, memory.usage_in_bytes, total_inactive_file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path, PurePosixPath

_HOST = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MOUNTED = Path("/sys/fs/cgroup")


def free_nbytes() -> float:
    """Bytes that are free on this host, and that all control groups grant; infinite where the system does not say."""
    try:
        host = _numbers(_HOST)
        free = 1024.0 * (host["MemAvailable:"] + host["SwapFree:"])
    except (OSError, ValueError, KeyError):
        return inf
    return min([free, *(granted - used for granted, used in _groups())])


def limit_nbytes() -> float:
    """The bytes that a control group grants this process and its companions; infinite if that is no less than all."""
    try:
        total = 1024.0 * _numbers(_HOST)["MemTotal:"]
    except (OSError, ValueError, KeyError):
        total = inf
    limit = min((granted for granted, _ in _groups()), default=inf)
    return limit if limit < total else inf


def _groups() -> Iterator[tuple[int, int]]:
    """The limit of each control group around this process, and the bytes of it that are in use and cannot be freed."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):  # version 2, version 1
            continue
        mount = _MOUNTED / controllers
        limit, used, prefix = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            if controllers
            else ("memory.max", "memory.current", "")
        )
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):  # each of them limits this process; a container sees some
            with suppress(OSError, ValueError, KeyError):  # or "max": no limit
                granted, files = int((mount / group / limit).read_text()), _numbers(mount / group / "memory.stat")
                cached = files[f"{prefix}inactive_file"] + files[f"{prefix}active_file"]
                yield granted, int((mount / group / used).read_text()) - cached


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    return {words[0]: int(words[1]) for words in map(str.split, path.read_text(encoding="ascii").splitlines())}
