"""Memory that processes of this host can still get."""

from __future__ import annotations

from math import inf
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_nbytes() -> float:
    """Bytes that are free on this host, and that the control group grants; infinite where the system does not say.

    Source: Linux, proc_meminfo(5); Documentation/admin-guide/cgroup-v2.rst, memory.max, memory.stat.
    """
    try:
        host = _numbers(Path("/proc/meminfo"))
        free = 1024.0 * (host["MemAvailable:"] + host["SwapFree:"])
    except (OSError, ValueError, KeyError):
        return inf
    try:
        used, files = int((_GROUP / "memory.current").read_text()), _numbers(_GROUP / "memory.stat")
        granted = int((_GROUP / "memory.max").read_text())  # or "max": no limit
        return min(free, granted - used + files["inactive_file"] + files["active_file"])
    except (OSError, ValueError, KeyError):
        return free


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    return {words[0]: int(words[1]) for words in map(str.split, path.read_text(encoding="ascii").splitlines())}
