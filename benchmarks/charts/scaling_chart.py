"""Line charts with logarithmic axes, and a scatter of simulated against measured times, as SVG without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#997700", "#ee8866", "#77aadd", "#44bb99", "#aa4499")
GREY = "#757b84"
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
LEFT, TOP, WIDTH, HEIGHT, GAP, FOOT = 64, 34, 250, 190, 58, 74


@dataclass(frozen=True, slots=True)
class Line:
    """One curve: its points, in the units of the axes."""

    name: str
    points: tuple[tuple[float, float], ...]


def lines_chart(panels: dict[str, Sequence[Line]], y_label: str, note: str, *, x_label: str = "ranks") -> str:
    """Panels side by side with the same logarithmic axes; `ideal` lines are grey and dashed."""
    lines = [line for panel in panels.values() for line in panel]
    xs, ys = ([point[i] for line in lines for point in line.points] for i in (0, 1))
    x_axis, y_axis = (min(xs), max(xs)), _decades(min(ys), max(ys))
    names = list(dict.fromkeys(line.name for line in lines))
    parts = []
    for place, (title, panel) in enumerate(panels.items()):
        left = LEFT + place * (WIDTH + GAP)
        parts += _frame(left, title, x_axis, y_axis, x_label, y_label if place == 0 else "")
        for line in panel:
            path = " ".join(
                f"{left + WIDTH * _at(x, x_axis):.1f},{TOP + HEIGHT * (1 - _at(y, y_axis)):.1f}" for x, y in line.points
            )
            parts.append(f'<polyline points="{path}" fill="none" {_stroke(line.name, names)}/>')
            for point, (x, y) in zip(path.split(), line.points, strict=True):
                cx, cy = point.split(",")
                tip = escape(f"{title}, {line.name}: {x:,g} {x_label}, {y:.3g}")
                fill = _colour(line.name, names)
                parts.append(f'<circle cx="{cx}" cy="{cy}" r="2.2" fill="{fill}"><title>{tip}</title></circle>')
    width = LEFT + len(panels) * (WIDTH + GAP)
    return _document(width, [*parts, *_legend(names, note)])


def scatter_chart(groups: dict[str, Sequence[tuple[float, float, str]]], note: str) -> str:
    """Points (measured, simulated, what) in seconds, both axes logarithmic, with the diagonal."""
    every = [value for points in groups.values() for x, y, _ in points for value in (x, y)]
    axis = (min(every) / 1.15, max(every) * 1.15)
    size, names = 340, list(groups)
    parts = _frame(LEFT, "simulated against measured", axis, axis, "measured, ms", "simulated, ms", size, size, 1e3)
    parts.append(f'<path d="M{LEFT} {TOP + size}L{LEFT + size} {TOP}" stroke="{GREY}" stroke-dasharray="4 3"/>')
    for name, points in groups.items():
        for x, y, label in points:
            tip = f"{label}: measured {x * 1e3:.1f} ms, simulated {y * 1e3:.1f} ms"
            parts.append(
                f'<circle cx="{LEFT + size * _at(x, axis):.1f}" cy="{TOP + size * (1 - _at(y, axis)):.1f}" r="4" '
                f'fill="{_colour(name, names)}" fill-opacity="0.75"><title>{escape(tip)}</title></circle>'
            )
    return _document(LEFT + size + 260, [*parts, *_legend(names, note, size)], size)


def _decades(low: float, high: float) -> tuple[float, float]:
    return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))


def _at(value: float, axis: tuple[float, float]) -> float:
    return math.log(value / axis[0]) / math.log(axis[1] / axis[0])


def _colour(name: str, names: Sequence[str]) -> str:
    return GREY if name == "ideal" else COLOURS[[n for n in names if n != "ideal"].index(name) % len(COLOURS)]


def _stroke(name: str, names: Sequence[str]) -> str:
    dashes = ' stroke-dasharray="4 3"' if name == "ideal" else ' stroke-width="1.8"'
    return f'stroke="{_colour(name, names)}"{dashes}'


def _frame(
    left: float,
    title: str,
    x_axis: tuple[float, float],
    y_axis: tuple[float, float],
    x_label: str,
    y_label: str,
    width: float = WIDTH,
    height: float = HEIGHT,
    scale: float = 1.0,
) -> list[str]:
    """Title, grid lines at the ticks, and labels."""
    parts = [f'<text x="{left}" y="{TOP - 14}" font-size="13" font-weight="600">{escape(title)}</text>']
    for value in _ticks(x_axis, scale):
        x = left + width * _at(value, x_axis)
        parts.append(f'<path d="M{x:.1f} {TOP}v{height}" stroke="{GREY}" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + height + 16}" text-anchor="middle">{_short(value * scale)}</text>')
    for value in _ticks(y_axis, scale):
        y = TOP + height * (1 - _at(value, y_axis))
        parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="{GREY}" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{left - 7}" y="{y + 4:.1f}" text-anchor="end">{_short(value * scale)}</text>')
    middle = left + width / 2
    parts.append(f'<text x="{middle}" y="{TOP + height + 33}" text-anchor="middle">{escape(x_label)}</text>')
    if y_label:
        x, y = left - 50, TOP + height / 2
        parts.append(
            f'<text x="{x}" y="{y}" text-anchor="middle" transform="rotate(-90 {x} {y})">{escape(y_label)}</text>'
        )
    return parts


def _ticks(axis: tuple[float, float], scale: float) -> list[float]:
    """Powers of ten inside an axis; of narrow axes also 2 and 5 times these."""
    low, high = axis[0] * scale * (1 - 1e-9), axis[1] * scale * (1 + 1e-9)
    steps = (1,) if high / low > 200 else (1, 2, 5)
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**i / scale for i in tens for step in steps if low <= step * 10.0**i <= high]


def _short(value: float) -> str:
    """A number in few letters.

    >>> [_short(value) for value in (0.01, 1.0, 20.0, 1e4, 1e6)]
    ['0.01', '1', '20', '10k', '1M']
    """
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def _legend(names: Sequence[str], note: str, height: float = HEIGHT) -> list[str]:
    parts, x, y = [], float(LEFT), TOP + height + 54
    for name in names:
        parts.append(f'<path d="M{x} {y - 4}h18" stroke-width="3" stroke="{_colour(name, names)}"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(name)}</text>')
        x += 44 + 6.2 * len(name)
    return [*parts, f'<text x="{LEFT}" y="{y + 17}">{escape(note)}</text>']


def _document(width: float, parts: Sequence[str], height: float = HEIGHT) -> str:
    total = TOP + height + FOOT + 6
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{total:.0f}" '
        f'viewBox="0 0 {width:.0f} {total:.0f}" font-family="{escape(FONT)}" font-size="11" fill="{GREY}">'
    )
    return "\n".join([head, *parts, "</svg>\n"])
