"""Helpers of the commands: output on rank 0 only, a progress bar, and parsers of option values."""

from __future__ import annotations

import argparse
import codecs
import io
import os
import sys
import time
from decimal import Decimal, InvalidOperation
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeAlias

try:
    from rich.box import SIMPLE_HEAD as SIMPLE_HEAD  # noqa: PLC0414 - for the commands
    from rich.console import Console as Console  # noqa: PLC0414 - for the commands
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table as Table  # noqa: PLC0414 - for the commands
except ImportError:
    if not TYPE_CHECKING:
        from pblas.cli.plain import (  # noqa: F401 - for the commands
            SIMPLE_HEAD,
            BarColumn,
            Console,
            Progress,
            Table,
            TextColumn,
            TimeElapsedColumn,
        )

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import SupportsWrite

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - to which a command adds its parser

# Environment variables with the rank of a process: of MPICH and Intel MPI, Open MPI, PMIx, MVAPICH, Slurm.
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_HEAD_START = 0.5  # seconds
_ASCII = {**dict.fromkeys("─━═╌┄╴╶", "-"), **dict.fromkeys("│┃║╎┆", "|"), "×": "x", "…": ".", "·": ".", "–": "-"}
_ASCII |= dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰╒╕╘╛╞╡╤╧╪┏┓┗┛", "+")
"""ASCII replacements of characters that the standard output cannot print."""
_DIGITS = 18  # of an integer, at most
_WIDTH = 120  # characters, if the output is not a terminal


def launcher_rank() -> int:
    """This process's rank from the launcher's environment, without MPI; 0 without a launcher."""
    for name in _RANKS:
        rank = os.environ.get(name, "")
        if rank.isdigit():
            return int(rank)
    return 0


def wait_for_rank_0(rank: int) -> None:
    """Let rank 0 print first: the first rank to exit with an error ends the job."""
    if sys.stdout is not None:  # it is None if the shell has closed it
        sys.stdout.flush()
    if rank:
        time.sleep(_HEAD_START)


def make_console(rank: int) -> Console:
    """A console that prints on rank 0 and is silent on other ranks.

    Open MPI gives its ranks a pseudo-terminal even if the job's output goes to a file, so its output is treated as a
    file.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # None if the shell has closed it
        codecs.register_error("pblas.plain", _plain)
        sys.stdout.reconfigure(errors="pblas.plain")
    plain = "OMPI_COMM_WORLD_RANK" in os.environ or sys.stdout is None or not sys.stdout.isatty()
    options: dict[str, Any] = {"width": _WIDTH, "force_terminal": False} if plain else {}
    return Console(markup=False, highlight=False, quiet=rank != 0, **options)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by ASCII: an error handler of `codecs`, for pictures on old terminals.

    >>> _plain(UnicodeEncodeError("ascii", "│ 2 × 3", 0, 1, ""))
    ('|', 1)
    """
    assert isinstance(error, UnicodeEncodeError), "text is written"
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def make_progress(console: Console) -> Progress:
    """A progress bar, on a terminal only, which disappears when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    shown = console.is_terminal and not console.quiet
    target = console if shown else Console(quiet=True)  # rich 13 and 14 print an empty line in place of no bar
    return Progress(*columns, console=target, transient=True, disable=not shown)


class Parser(argparse.ArgumentParser):
    """An argument parser that prints on rank 0 and exits on all ranks."""

    def __init__(self, prog: str, *, rank: int, description: str = "", epilog: str | None = None, **more: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            prog, description=description, epilog=epilog, formatter_class=formatter, allow_abbrev=False, **more
        )
        self.rank = rank
        self.for_script = False  # whether the command takes `arguments` for a script

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words; of a command for a script, those after -- are the script's, wherever its options are."""
        if not self.for_script:
            return super().parse_known_args(args, namespace)
        end = args.index("--") if "--" in args else len(args)
        namespace, unknown = super().parse_known_args(args[:end], namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}; the script's own come after it, or after --")
        namespace.arguments = [*namespace.arguments, *args[end + 1 :]]
        return namespace, []

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if self.rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End this process; only rank 0 prints, and it exits first."""
        if message:
            self._print_message(message, sys.stderr)
        if status:
            wait_for_rank_0(self.rank)
        sys.exit(status)

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]
        """Print the help on rank 0."""
        if self.rank == 0:
            super().print_help(file)


def add_command(
    commands: Commands,
    name: str,
    rank: int,
    run: Callable[[argparse.Namespace, Console], int],
    text: str,
    details: str = "",
) -> Parser:
    """Add a command."""
    parser: Parser = commands.add_parser(name, rank=rank, help=text, description=f"{text}\n\n{details}".rstrip())
    parser.set_defaults(run=run)
    return parser


def integer(text: str, least: int) -> int:
    """An integer of at least `least`, also as 1e6 or 1_000_000.

    >>> integer("4096", 1), integer("1e6", 1), integer("1_000", 1)
    (4096, 1000000, 1000)
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or number < least or number.adjusted() > _DIGITS or number != int(number):
        raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
    return int(number)


def size(text: str) -> int:
    """A size of a matrix or a number of ranks, at least 1."""
    return integer(text, 1)


def extent(text: str) -> int:
    """A number of rows or columns, possibly 0."""
    return integer(text, 0)


def bounds(text: str) -> slice:
    """A range of indices, as 10:20; either end may be missing.

    >>> bounds("10:20"), bounds(":5")
    (slice(10, 20, None), slice(None, 5, None))
    """
    first, colon, last = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"expected a range of indices, as 10:20, got {text!r}")
    start, stop = (extent(part) if part else None for part in (first, last))
    return slice(start, stop)


def pair(text: str) -> tuple[int, int]:
    """Two integers of at least 1, as 2x3.

    >>> pair("2x3")
    (2, 3)
    """
    try:
        first, second = map(size, text.lower().split("x"))
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected two integers of at least 1, as 2x3, got {text!r}") from None
    return first, second


def pairs(text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """One pair for both operands, or two with a comma between them.

    >>> pairs("1x4"), pairs("1x4,4x1")
    (((1, 4), (1, 4)), ((1, 4), (4, 1)))
    """
    parts = [pair(part) for part in text.split(",")]
    if len(parts) > 2:
        raise argparse.ArgumentTypeError(f"expected one pair, or one for A and one for B, got {text!r}")
    return parts[0], parts[-1]


def scalar(text: str) -> complex:
    """A number; complex ones as 1+2j.

    >>> scalar("2"), scalar("1+2j")
    (2.0, (1+2j))
    """
    try:
        number = complex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, as 2 or 1+2j, got {text!r}") from None
    return number if number.imag else number.real


def dtype(text: str) -> str:
    """The name of a dtype that pblas multiplies.

    >>> dtype("bfloat16")
    'bfloat16'
    """
    from pblas.backends.dtypes import DTYPES  # NumPy is not needed to print help

    names = [known.name for known in DTYPES]
    if text not in names:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, got {text!r}")
    return text


def trans(text: str) -> str:
    """N, T or C, in either case."""
    if text.upper() not in {"N", "T", "C"}:
        raise argparse.ArgumentTypeError(f"expected N, T or C, got {text!r}")
    return text.upper()
