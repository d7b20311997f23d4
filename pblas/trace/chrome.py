"""The file format of Perfetto and chrome://tracing: a rank is a process, a lane a thread, times are microseconds.

Source: Google, "Trace Event Format" (2016).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pblas.backends.recorder import Event

if TYPE_CHECKING:
    from collections.abc import Sequence


def place(lane: str) -> tuple[int, str]:
    """Sort key of a lane within its rank: GEMMs first, then copies, then the host, then messages.

    >>> sorted(["from rank 0", "host", "side", "main"], key=place)
    ['main', 'side', 'host', 'from rank 0']
    """
    return {"main": 0, "copy": 1, "side": 1, "host": 2}.get(lane, 3), lane


def lanes(events: Sequence[Event]) -> dict[tuple[int, str], int]:
    """The number of each lane among the lanes of its rank, by (rank, lane)."""
    ordered = sorted({(e.rank, e.lane) for e in events}, key=lambda row: (row[0], place(row[1])))
    counts: dict[int, int] = {}
    numbers = {}
    for rank, lane in ordered:
        numbers[rank, lane] = counts[rank] = counts.get(rank, -1) + 1
    return numbers


def text(title: str, nprocs: int, is_whole: bool, events: Sequence[Event]) -> bytes:
    """The content of a file in this format."""
    numbers = lanes(events)
    entries: list[dict[str, Any]] = []
    for rank in range(nprocs):
        entries += _names(rank, None, "process", f"rank {rank}", rank)
    for (rank, lane), number in numbers.items():
        entries += _names(rank, number, "thread", lane, number)
    entries += [
        {
            "name": e.name,
            "cat": e.kind,
            "ph": "X",
            "ts": 1e6 * e.start,
            "dur": 1e6 * (e.stop - e.start),
            "pid": e.rank,
            "tid": numbers[e.rank, e.lane],
            "args": e.details,
        }
        for e in events
    ]
    other = {"title": title, "ranks": nprocs, "complete": is_whole}
    return json.dumps({"traceEvents": entries, "displayTimeUnit": "ns", "otherData": other}).encode()


def read(content: bytes) -> tuple[str, int, bool, tuple[Event, ...]]:
    """Parse a file that `text` has made."""
    trace = json.loads(content)
    other, entries = trace["otherData"], trace["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    events = tuple(
        Event(e["pid"], lanes[e["pid"], e["tid"]], e["cat"], e["name"], start, start + 1e-6 * e["dur"], e["args"])
        for e in entries
        if e["ph"] == "X"
        for start in [1e-6 * e["ts"]]
    )
    return other["title"], other["ranks"], other["complete"], events


def _names(rank: int, lane: int | None, what: str, name: str, place: int) -> list[dict[str, Any]]:
    """The name and the sort index of a process or thread."""
    entry = {"ph": "M", "pid": rank} | ({} if lane is None else {"tid": lane})
    return [
        entry | {"name": f"{what}_name", "args": {"name": name}},
        entry | {"name": f"{what}_sort_index", "args": {"sort_index": place}},
    ]
