"""Pictures of traces with Matplotlib: each rank has a group of rows, one row for each of its lanes."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from pblas.errors import BackendError
from pblas.trace.chrome import place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.recorder import Event
    from pblas.backends.traced import Kind

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
        raise BackendError("trace: pictures need Matplotlib, which is not installed; pip install 'pblas[plot]'")


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
