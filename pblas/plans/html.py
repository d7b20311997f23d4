"""Plans in notebooks: the text of `explain`, and bars that compare the received bytes with the lower bound."""

from __future__ import annotations

from html import escape

from pblas.layouts.drawing.svg import COLOURS, FONT, GREY

_LABEL, _LENGTH, _ROW = 90, 400, 20  # pixels


def html_of(text: str, received: int, bound: float) -> str:
    """A plan as HTML.

    Args:
        text: of `explain`.
        received: bytes that the busiest rank receives (global).
        bound: lower bound of any plan, bytes (global).

    >>> html_of("C: a < b", 96, 48.0).count("<rect"), "C: a &lt; b" in html_of("C: a < b", 96, 48.0)
    (2, True)
    """
    return (
        f"<pre>{escape(text)}</pre>\n{_bars((('received', received, COLOURS[0]), ('lower bound', bound, COLOURS[3])))}"
    )


def _bars(rows: tuple[tuple[str, float, str], ...]) -> str:
    """Bars of numbers of bytes, on one scale: name, bytes and colour of each."""
    most, parts = max(nbytes for _, nbytes, _ in rows) or 1, []
    for i, (name, nbytes, colour) in enumerate(rows):
        top, length = _ROW * i, _LENGTH * nbytes / most
        parts += [
            f'<text x="0" y="{top + 14}" fill="{GREY}">{name}</text>',
            f'<rect x="{_LABEL}" y="{top + 3}" width="{length:.1f}" height="14" fill="{colour}"/>',
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 14}" fill="{GREY}">{nbytes:,.0f} bytes</text>',
        ]
    size = f'width="{_LABEL + _LENGTH + 200}" height="{_ROW * len(rows)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">{"".join(parts)}</svg>'
