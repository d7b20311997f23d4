"""`bench`: products, collectives and factorizations on this machine, beside what NumPy or CuPy needs for the same."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pblas.backends.cpu.threads import usable_cores
from pblas.cli.bench_cases import measure
from pblas.cli.bench_hardware import measured_hardware
from pblas.cli.output import SIMPLE_HEAD, Commands, Console, Table, add_command, size
from pblas.errors import ArgumentError, FileFormatError
from pblas.launch import run as run_on_ranks
from pblas.launch.job import rank_variable
from pblas.plans.base import ranks_text
from pblas.simulation.hardware_file import hardware_text

if TYPE_CHECKING:
    from argparse import Namespace

ResultT = TypeVar("ResultT")
_MOST_RANKS = 16  # that are started without --ranks
_HEADERS = ("", "size", "pblas, ms", "rate", "peer, ms", "ratio", "rounds", "peer")
_NUMBERS = slice(2, 7)
_DETAILS = """\
Without mpiexec it starts its ranks itself, one for each core. NumPy runs on rank 0 with all cores while the other ranks
wait; on GPUs, CuPy runs on rank 0's GPU. Times are medians of rounds. Ratio: time of the peer / time of pblas; above 1,
pblas is faster. Sizes are the largest ones that fit into the time. Other programs on the machine disturb both columns.
"""
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8" /><title>{title}</title>
<style>body {{ font-family: sans-serif }} td, th {{ padding: 0.2em 0.8em; text-align: left }}
.number {{ text-align: right }} tr:nth-child(even) {{ background: #f2f2f2 }}</style></head>
<body><h1>{title}</h1>
<table>{rows}</table>
<p>{legend}</p>
<h2>Machine</h2>
<table>{machine}</table>
</body></html>
"""


def seconds(text: str) -> float:
    """A positive number of seconds.

    >>> seconds("60")
    60.0
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return number


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands, "bench", rank, run, "Measure this machine, beside NumPy or CuPy, in a minute.", _DETAILS
    )
    parser.add_argument("--seconds", type=seconds, default=60.0, help="time for all rows (%(default)s)")
    parser.add_argument("--ranks", type=size, help=f"ranks to start (one for each core, at most {_MOST_RANKS})")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write it as an HTML table")
    parser.add_argument(
        "--hardware", metavar="FILE.toml", help="measure rates only, and write them for plan --simulate"
    )


def run(arguments: Namespace, console: Console) -> int:
    """Measure, print and write."""
    for path in filter(
        None, (arguments.json, arguments.html, arguments.hardware)
    ):  # before the work, with the same result on every rank
        if not (folder := Path(path).parent).is_dir():
            raise FileFormatError(f"{path}: cannot be written: there is no folder {folder}; make it first")
    if arguments.hardware and not arguments.hardware.endswith(".toml"):
        raise ArgumentError(f"bench: --hardware {arguments.hardware}: expected a name that ends in .toml")
    started = _on_ranks if rank_variable() is None else _as_ranks
    if arguments.hardware:
        text = hardware_text(started(arguments, measured_hardware))
        if not console.quiet:
            Path(arguments.hardware).write_text(text, encoding="utf-8")
            console.print(text, soft_wrap=True)
        return 0
    report = started(arguments, measure, arguments.seconds)
    if console.quiet:
        return 0
    console.print(_table(report))
    console.print(f"{legend(report)}\n", soft_wrap=True)
    for name, value in report["machine"].items():
        console.print(f"{name}: {' '.join(value.split())}", soft_wrap=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.html:
        Path(arguments.html).write_text(html(report), encoding="utf-8")
    return 0


def _on_ranks(arguments: Namespace, measured: Callable[..., ResultT], *options: float) -> ResultT:
    """What ranks measure that this process starts."""
    ranks = arguments.ranks or min(len(usable_cores()), _MOST_RANKS)
    result: ResultT = run_on_ranks(measured, ranks, options)[0]
    return result


def _as_ranks(arguments: Namespace, measured: Callable[..., ResultT], *options: float) -> ResultT:
    """**Collective.** What the ranks measure that a launcher has started."""
    from pblas.context import Context

    with Context() as ctx:
        if arguments.ranks not in (None, ctx.nprocs):
            raise ArgumentError(
                f"bench: --ranks is {arguments.ranks}, but {ctx.nprocs} ranks are running; leave it out"
            )
        return measured(ctx, *options)


def legend(report: dict[str, Any]) -> str:
    """The meaning of the columns, in one paragraph."""
    threads = report["peer threads"]
    return (
        f"Medians on {ranks_text(report['ranks'])}, measured in {report['seconds']} s. The peer runs on rank 0 with "
        f"{threads} thread{'s' * (threads != 1)}. Ratio: time of the peer / time of pblas; above 1, pblas is faster."
    )


def texts(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a row, without its group."""
    if row["error"]:
        return row["name"], row["size"], *[""] * 5, row["error"]
    return (
        *(row["name"], row["size"], f"{row['seconds'] * 1e3:.3g}", f"{row['rate']:.3g} {row['unit']}"),
        *(f"{row['peer_seconds'] * 1e3:.3g}", f"{row['ratio']:.2f}", str(row["rounds"]), row["peer"]),
    )


def _table(report: dict[str, Any]) -> Table:
    """The report for a terminal."""
    table = Table(title="pblas bench", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, header in enumerate(_HEADERS):
        table.add_column(header, justify="right" if i in range(*_NUMBERS.indices(len(_HEADERS))) else "left")
    before = report["rows"][0]["group"]
    for row in report["rows"]:
        if row["group"] != before:
            table.add_section()
        before = row["group"]
        table.add_row(*texts(row))
    return table


def html(report: dict[str, Any]) -> str:
    """The report as a page that needs no other file."""
    rows = [_HEADERS, *(texts(row) for row in report["rows"])]
    facts = ([name, " ".join(value.split())] for name, value in report["machine"].items())
    return _PAGE.format(
        title="pblas bench",
        rows="".join(_line(row, "td" if i else "th") for i, row in enumerate(rows)),
        legend=escape(legend(report)),
        machine="".join(_line(fact, "td") for fact in facts),
    )


def _line(cells: Any, tag: str) -> str:
    """A row of an HTML table."""
    numbers = range(*_NUMBERS.indices(len(_HEADERS)))
    attributes = [' class="number"' * (i in numbers) for i in range(len(cells))]
    inner = "".join(f"<{tag}{extra}>{escape(cell)}</{tag}>" for cell, extra in zip(cells, attributes, strict=True))
    return f"<tr>{inner}</tr>\n"
