"""Output without rich: the part of its interface that the commands use. Text is printed as it is."""

from __future__ import annotations

from typing import Self

SIMPLE_HEAD = None


class Console:
    """Prints, unless it is quiet; other options of rich's console have no effect."""

    is_terminal = False

    def __init__(self, *, quiet: bool = False, **_: object) -> None:
        self.quiet = quiet

    def print(self, text: object = "", *, end: str = "\n", **_: object) -> None:
        """Print a text or a table."""
        if not self.quiet:
            print(text, end=end)


class Table:
    """Cells in columns.

    >>> table = Table(title="sizes", show_header=False)
    >>> table.add_row("m", "1000")
    >>> table.add_row("rows", "10")
    >>> print(table)
    sizes
    m     1000
    rows  10
    """

    def __init__(self, *, title: str = "", show_header: bool = True, **_: object) -> None:
        self._title, self._show_header = title, show_header
        self._headers: list[str] = []
        self._rows: list[tuple[str, ...]] = []
        self._right: set[int] = set()

    def add_column(self, header: str = "", *, justify: str = "left", **_: object) -> None:
        """Add a column."""
        if justify == "right":
            self._right.add(len(self._headers))
        self._headers.append(header)

    def add_row(self, *cells: str, **_: object) -> None:
        """Add a row."""
        self._rows.append(tuple(cell.replace("\n", "; ") for cell in cells))

    def add_section(self) -> None:
        """Leave a line free after the last row."""
        self._rows.append(())

    def __str__(self) -> str:
        rows = [tuple(self._headers), *self._rows] if self._show_header else self._rows
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows), default=0))]
        lines = (
            "  ".join(
                cell.rjust(widths[i]) if i in self._right else cell.ljust(widths[i]) for i, cell in enumerate(row)
            )
            for row in rows
        )
        return "\n".join([*[self._title] * bool(self._title), *(line.rstrip() for line in lines)])


class Progress:
    """No progress bar."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def add_task(self, *_: object, **__: object) -> int:
        """The number of a task."""
        return 0

    def update(self, *_: object, **__: object) -> None:
        """Nothing is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...


BarColumn = TextColumn = TimeElapsedColumn = Progress
