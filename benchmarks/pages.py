"""Writes the figures of the pages on performance, their pictures and the README's table from the files of results.

python -m benchmarks.pages

A page has them between `<!-- families -->`, or `<!-- table: GPU products on 2 GPUs -->`, and `<!-- end -->`. On one GPU
the number is left out; `<!-- table: CPU level 3 in level3_mkl.json -->` names another file than that of the table. The
pictures need Matplotlib.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from math import log10
from pathlib import Path
from typing import Any

from benchmarks.tables import CPU, FAMILIES, GPU, TABLES, UNITS, Comparison, Table, results_of

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/performance.md", "docs/performance/cpu.md", "docs/performance/gpu.md")
BLOCK = re.compile(
    r"(<!-- (?:table: (CPU|GPU) ([\w -]+?)(?: on (\d+) GPUs)?(?: in (\w+\.json))?|families) -->\n).*?(<!-- end -->)",
    re.DOTALL,
)
MOST_PEERS = 3
FASTER, SLOWER, GREY = "#44bb99", "#ee8866", "#757b84"  # on white and on black
EDGE = 8.0
Families = dict[str, list[Comparison]]


def digits(x: float) -> str:
    """A number with three digits.

    >>> [digits(x) for x in (0.01234, 1.5, 98.76, 1234.5, 0, -0.5)]
    ['0.0123', '1.50', '98.8', '1234', '0', '-0.500']
    """
    return f"{x:.{max(0, 2 - int(log10(abs(x)) // 1))}f}" if x else "0"


def head(table: Table, gpus: int, results: dict[str, Any], link: str) -> str:
    """Where, when and by which command the rows were measured."""
    rows = results.get("rows", results.get("goals", []))
    commits = list(dict.fromkeys(row.get("commit") or results.get("commit") for row in rows))
    commits = list(filter(None, commits))
    dates = sorted({(row.get("date") or results["date"])[:10] for row in rows})
    ranks = 1 if table.ranks == 1 else results.get("ranks", table.ranks or gpus)
    started = f"mpiexec -n {ranks} python -m mpi4py" if ranks > 1 else "python"
    same = {x.command for x in (CPU if table in CPU else GPU) if (x.stem, x.ranks) == (table.stem, table.ranks)}
    line = table.command if len(same) == 1 else table.command.split()[0]  # several commands have filled the file
    program = line if line.startswith("examples") else f"-m {line}"
    if "rounds" in results:
        program = re.sub(r"--rounds \d+", f"--rounds {results['rounds']}", program)
    program += " --library mkl" if str(results.get("library")).lower() == "mkl" else ""
    device = re.sub(r"\(R\)| Processor", "", results.get("device", "AMD EPYC"))
    where = device if table in CPU else f"{gpus} {device}" if gpus > 1 else f"one {device}"
    rounds = f" of {results['rounds']} rounds" if "rounds" in results else ""
    parts = [where, " to ".join(dict.fromkeys((dates[0], dates[-1])))]
    parts += [f"commit{'s' if len(commits) > 1 else ''} {' and '.join(commits)}"] if commits else []
    text = f"{', '.join(parts)}, medians{rounds}, {table.unit}: `{started} {program}` ([file]({link}))."
    return text[0].upper() + text[1:]


def block(table: Table, gpus: int, file: str, path: str) -> str:
    """The rows of a table in Markdown, and the names of those in which a peer is faster."""
    results = results_of(file)
    rows, unit = table.rows(gpus, results), UNITS[table.unit]
    if not rows:
        return "Not measured.\n"
    link = f"{'../' * path.count('/')}benchmarks/results/{file}"
    beside = list(dict.fromkeys(name for row in rows for name in row.beside))
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    one = len(beside) == 1 and not table.name.startswith("factor")
    shown = peers if len(peers) <= MOST_PEERS else ["fastest peer"]
    heads = ["", *beside, "pblas", *shown, *["fastest peer / pblas"] * bool(peers)]
    heads += [f"{name} / pblas" for name in beside if one]
    goals = any(row.goal and "cublas" in row.beside for row in rows)
    heads += ["goal"] * goals
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row.label, *(time(row.beside.get(name), unit) for name in beside), time(row.ours, unit)]
        if len(peers) > MOST_PEERS:
            cells.append(f"{time(row.best[1], unit)} ({row.best[0]})" if row.best else "")
        else:
            cells += [time(row.peers.get(name), unit) for name in peers]
        cells += [ratio(row.ratio)] * bool(peers)
        cells += [ratio(row.beside[x] / row.ours if x in row.beside else None) for x in beside if one]
        cells += [f"{row.goal:.2f}" if row.goal else ""] * goals
        lines.append("| " + " | ".join(cells) + " |")
    text = head(table, gpus, results, link) + "\n\n" + "\n".join(lines) + "\n"
    return text + (f"\n{losses(rows)}\n" if peers else "")


def time(seconds: float | None, unit: float) -> str:
    """A cell with a time."""
    return "" if seconds is None else digits(seconds / unit)


def ratio(value: float | None) -> str:
    """A cell with a ratio, bold if pblas is as fast at least."""
    return "" if value is None else f"**{value:.2f}**" if round(value, 2) >= 1 else f"{value:.2f}"


def losses(rows: Iterable[Comparison]) -> str:
    """The rows in which a peer is faster, from the largest loss on."""
    lost = sorted((row for row in rows if row.is_lost), key=lambda row: row.ratio or 0)
    compared = sum(row.ratio is not None for row in rows)
    if not lost:
        return f"pblas is the fastest in all {compared} rows."
    names = ", ".join(f"{row.label} ({row.ratio:.2f}, {row.best[0] if row.best else ''})" for row in lost)
    return f"**A peer is faster in {len(lost)} of {compared} rows:** {names}."


def families(where: str) -> Families:
    """The rows with peers of each family of operations, by the number of GPUs."""
    result: Families = {}
    tables = [table for table in (CPU if where == "CPU" else GPU) if table.family]
    for table in sorted(tables, key=lambda table: FAMILIES.index(table.family)):
        for gpus in (1,) if where == "CPU" or table.ranks else (2, 4, 8):
            rows = [row for row in table.rows(gpus) if row.ratio]
            name = table.family if where == "CPU" else f"{table.family}, {gpus} GPU{'s' * (gpus > 1)}"
            if rows:
                result.setdefault(name, []).extend(rows)
    return result


def summary() -> str:
    """The families of both pictures as a table."""
    lines = ["| | fastest peer / pblas, median | least and largest | rows | pblas slower in |", "|---|---|---|---|---|"]
    for where in ("CPU", "GPU"):
        for name, rows in families(where).items():
            ratios = sorted(row.ratio or 0 for row in rows)
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            lost = sum(row.is_lost for row in rows)
            title = f"{name}, CPUs" if where == "CPU" else name
            lines.append(f"| {title} | {ratio(statistics.median(ratios))} | {spread} | {len(ratios)} | {lost or ''} |")
    return "\n".join(lines) + "\n"


def written(path: str, text: str) -> str:
    """The text of a page with the figures of the files."""

    def replaced(match: re.Match[str]) -> str:
        start, where, name, number, file, end = match.groups()
        if where:
            table, gpus = TABLES[where, name], int(number or 1)
            body = block(table, gpus, file or table.file(gpus), path)
        else:
            body = summary()
        return f"{start}\n{body}\n{end}"

    return BLOCK.sub(replaced, text)


def picture(rows: Families, path: Path) -> None:
    """Draw a dot for each row at its ratio, in a line for each family, as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    style: dict[str, Any] = dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
    style |= {"svg.hashsalt": "pblas", "svg.fonttype": "none", "font.size": 9, "axes.labelcolor": GREY}
    with mpl.rc_context(style):
        figure = Figure(figsize=(8, 0.8 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, (name, compared) in enumerate(rows.items()):
            ratios = [row.ratio or 0 for row in compared]
            dots = axes.scatter(
                [clipped(x) for x in ratios],
                [-place] * len(ratios),
                s=22,
                c=[SLOWER if row.is_lost else FASTER for row in compared],
                alpha=0.7,
                linewidths=0,
            )
            dots.set_gid(name)
            axes.scatter([clipped(statistics.median(ratios))], [-place], marker="|", s=180, c=GREY)
        axes.set_xscale("log", base=2)
        axes.set_xlim(0.9 / EDGE, 1.1 * EDGE)
        ticks = [2.0**i for i in range(-3, 4)]
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.set_yticks([-place for place in range(len(rows))], list(rows))
        axes.axvline(1, color=GREY, linewidth=1)
        axes.grid(axis="x", color=GREY, alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_xlabel("time of the fastest peer / time of pblas; right of 1 pblas is faster; | median")
        figure.savefig(path, transparent=True, metadata={"Date": None})


def clipped(value: float) -> float:
    """A ratio within the picture: larger and smaller ones are drawn at its edge."""
    return min(max(value, 1 / EDGE), EDGE)


def main() -> None:
    """Write the pages and draw the pictures."""
    for path in PAGES:
        page = ROOT / path
        page.write_text(written(path, page.read_text(encoding="utf-8")), encoding="utf-8")
    for where in ("CPU", "GPU"):
        picture(families(where), ROOT / f"docs/performance/ratios_{where.lower()}.svg")


if __name__ == "__main__":
    main()
