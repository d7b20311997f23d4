"""The chart of the GPU benchmark as SVG, without a library: E of pblas, of the fastest other library, and at the bound.

E is the time of cuBLAS alone over the time of a column.
"""

from __future__ import annotations

from html import escape
from typing import Any

from benchmarks.gpu.rows import MODELS, OPS, best_other

TITLES = {"ag_gemm": "AG+GEMM", "gemm_rs": "GEMM+RS", "gemm_ar": "GEMM+AR"}
LEAST_M = 512
COLOURS = {"pblas": "#44bb99", "others": "#77aadd"}
GREY = "#757b84"
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"
LEFT, TOP, HEIGHT, GAP, BAR, FOOT = 46, 34, 150, 14, 13, 66


def chart(file: dict[str, Any]) -> str:
    """One panel per op, of rows with the most GPUs; two bars and a line at the bound for each model and M >= 512."""
    gpus = max((row["gpus"] for row in file["rows"]), default=0)
    drawn = [row for row in file["rows"] if row["gpus"] == gpus and row["m"] >= LEAST_M and "e" in row]
    panels = [op for op in OPS if any(row["op"] == op for row in drawn)]
    parts, width = [], 0.0
    for place, op in enumerate(panels):
        panel, right = _panel([row for row in drawn if row["op"] == op], TITLES[op], place * (TOP + HEIGHT + FOOT))
        parts += panel
        width = max(width, right)
    width, height = max(width, 420.0), len(panels) * (TOP + HEIGHT + FOOT) + 30
    legend = _legend(file, gpus, height - 14)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="{escape(FONT)}" font-size="11" fill="{GREY}">'
    )
    return "\n".join([head, *parts, *legend, "</svg>\n"])


def _panel(rows: list[dict[str, Any]], title: str, top: float) -> tuple[list[str], float]:
    base, x = top + TOP + HEIGHT, float(LEFT)
    parts = [f'<text x="{LEFT}" y="{top + 20}" font-size="13" font-weight="600">{title}</text>']
    for model in MODELS:
        group = sorted((row for row in rows if row["model"] == model), key=lambda row: row["m"])
        start = x
        for row in group:
            alone = row["us"]["cublas"]
            other = best_other(row)
            bars = [("pblas", row["e"]["median"], "pblas")]
            if other:
                bars.append(("others", alone / other[1], other[0]))
            for place, (colour, e, name) in enumerate(bars):
                high = HEIGHT * min(e, 1.1)
                tip = f"{title} {model} M={row['m']}: {name}, E {e:.2f}"
                parts.append(
                    f'<rect x="{x + place * BAR:.1f}" y="{base - high:.1f}" width="{BAR - 1}" height="{high:.1f}" '
                    f'fill="{COLOURS[colour]}"><title>{escape(tip)}</title></rect>'
                )
            bound = base - HEIGHT * alone / row["bound_us"]
            parts.append(f'<path d="M{x - 2:.1f} {bound:.1f}h{2 * BAR + 3}" stroke="{GREY}" stroke-width="1.5"/>')
            parts.append(f'<text x="{x + BAR:.1f}" y="{base + 14}" text-anchor="middle">{_short(row["m"])}</text>')
            x += 2 * BAR + GAP
        if group:
            middle = (start + x - GAP) / 2
            parts.append(f'<text x="{middle:.1f}" y="{base + 30}" text-anchor="middle">{model}</text>')
            x += GAP
    for e in (0.0, 0.5, 1.0):
        y = base - HEIGHT * e
        parts.insert(1, f'<path d="M{LEFT - 4} {y:.1f}H{x:.1f}" stroke="{GREY}" stroke-opacity="0.35"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{e:.1f}</text>')
    return parts, x


def _legend(file: dict[str, Any], gpus: int, y: float) -> list[str]:
    parts, x = [], float(LEFT)
    for colour, words in ((COLOURS["pblas"], "pblas"), (COLOURS["others"], "fastest of the others")):
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="{y}">{words}</text>')
        x += 40 + 6.2 * len(words)
    parts.append(
        f'<path d="M{x} {y - 4}h14" stroke="{GREY}" stroke-width="1.5"/><text x="{x + 19}" y="{y}">bound</text>'
    )
    where = f"E = cuBLAS alone / column, by M; {gpus} x {file.get('device', '')}, {file.get('date', '')}"
    parts.append(f'<text x="{LEFT}" y="{y - 20}">{escape(where)}</text>')
    return parts


def _short(m: int) -> str:
    """M in at most three characters.

    >>> [_short(m) for m in (512, 2048, 16384)]
    ['512', '2k', '16k']
    """
    return f"{m // 1024}k" if m >= 1024 else str(m)
