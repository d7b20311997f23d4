"""The two forms of a trace: a JSON file for Perfetto and chrome://tracing, and a picture with Matplotlib.

In JSON a rank is a process, a lane a thread, and times are microseconds. In a picture each rank has a group of rows,
one row for each of its lanes.

Source: Google, "Trace Event Format" (2016).
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from pblas.backends.recorder import Event
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pblas.backends.traced import Kind


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


def json_text(title: str, nprocs: int, is_whole: bool, events: Sequence[Event]) -> bytes:
    """The content of a file in this format."""
    numbers = lanes(events)
    entries: list[dict[str, object]] = []
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


def read_json(content: bytes) -> tuple[str, int, bool, tuple[Event, ...]]:
    """Parse a file that `json_text` has made."""
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


def _names(rank: int, lane: int | None, what: str, name: str, place: int) -> list[dict[str, object]]:
    """The name and the sort index of a process or thread."""
    entry = {"ph": "M", "pid": rank} | ({} if lane is None else {"tid": lane})
    return [
        entry | {"name": f"{what}_name", "args": {"name": name}},
        entry | {"name": f"{what}_sort_index", "args": {"sort_index": place}},
    ]


COLOURS: dict[Kind, str] = {
    "gemm": "#4477aa",
    "factor": "#66ccee",
    "sum": "#228833",
    "copy": "#ee8866",
    "message": "#ccbb44",
    "signal": "#aa3377",
    "wait": "#dddddd",
    "agree": "#bbbbbb",
}
LABELS: dict[Kind, str] = {"gemm": "GEMM", "sum": "reduction", "agree": "agreement"}
_WIDTH, _ROW, _FRAME = 8.0, 0.16, 0.95  # inches
_MOST_RANKS = 16
_IN, _GAP = "in", 0.6


def can_draw() -> bool:
    """Whether Matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check() -> None:
    """Raise BackendError unless Matplotlib is installed."""
    if not can_draw():
        raise BackendError("trace: pictures need Matplotlib, which is not installed; pip install matplotlib")


def picture(title: str, nprocs: int, events: Iterable[Event], form: str) -> bytes:
    """Draw a timeline of the first 16 ranks."""
    from matplotlib.figure import Figure

    ranks = range(min(nprocs, _MOST_RANKS))
    events = [event for event in events if event.rank in ranks]
    rows: dict[tuple[int, str], float] = {}
    height = 0.0
    for rank in ranks:
        lanes = {_row(event.lane) for event in events if event.rank == rank}
        for lane in sorted(lanes, key=place):
            rows[rank, lane] = height
            height += 1
        height += _GAP
    last = max((event.stop for event in events), default=0.0)
    unit, scale = ("ms", 1e3) if last >= 2e-3 else ("us", 1e6)
    figure = Figure((_WIDTH, _FRAME + _ROW * height), layout="constrained")
    axes = figure.subplots()
    for kind, colour in COLOURS.items():
        bars: dict[float, list[tuple[float, float]]] = {}
        for event in events:
            if event.kind == kind:
                row = rows[event.rank, _row(event.lane)]
                bars.setdefault(row, []).append((scale * event.start, scale * (event.stop - event.start)))
        alpha = 0.6 if kind == "message" else 1.0  # messages from several ranks share a row and may overlap
        for row, spans in bars.items():
            axes.broken_barh(spans, (row, 0.9), facecolor=colour, alpha=alpha)
        if bars:
            axes.broken_barh([], (0, 0), facecolor=colour, label=LABELS.get(kind, kind))
    axes.set_yticks([row + 0.45 for row in rows.values()], [f"{rank} {lane}" for rank, lane in rows])
    axes.tick_params(labelsize=7, length=0, axis="y")
    axes.tick_params(labelsize=8, axis="x")
    axes.set_ylim(height - _GAP, -0.1)
    axes.set_xlim(0, scale * last or 1)
    axes.set_xlabel(unit, fontsize=8, loc="left")
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    if events:
        figure.legend(ncols=len(COLOURS), fontsize=7, frameon=False, loc="outside lower right")
    drawn = BytesIO()
    figure.savefig(drawn, format=form, dpi=120)
    return drawn.getvalue()


def _row(lane: str) -> str:
    """The row of a lane: messages from all ranks share one row."""
    return _IN if lane.startswith("from") else lane
