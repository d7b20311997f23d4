"""`dry-run`: the time and the memory of a program on any number of ranks, without them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pblas.cli.output import Commands, Console, add_command, size
from pblas.cli.plan import machine
from pblas.errors import ArgumentError
from pblas.simulation.hardware import PRESETS

if TYPE_CHECKING:
    from argparse import Namespace

_DETAILS = """\
The script runs on one process as rank 0 of all ranks; no operation of pblas is executed, and MPI is not needed. Its
output is shown, with "?" for values that are not computed. Its assertions are left out, as by python -O: they judge
such values. It runs again, without output, to find the fewest ranks that have enough memory.

  python -m pblas dry-run solve.py --ranks 4096 --hardware fat-tree
  python -m pblas dry-run iterate.py --ranks 64 --value norm=1,1,1e-9 -- --n 100000
"""


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands, "dry-run", rank, run, "Predict the time and the memory of a program, without its ranks.", _DETAILS
    )
    parser.for_script = True
    parser.add_argument("script", metavar="SCRIPT.py", help="the program")
    parser.add_argument("arguments", nargs="*", default=[], help="its arguments, after -- if they begin with -")
    parser.add_argument("--ranks", type=size, default=4096, help="number of ranks (%(default)s)")
    names = ", ".join(PRESETS)
    parser.add_argument(
        "--hardware", type=machine, default="fat-tree", metavar="MACHINE", help=f"{names}, or FILE.toml (%(default)s)"
    )
    parser.add_argument(
        "--value",
        type=value,
        action="append",
        default=[],
        metavar="NAME=X[,X...]",
        help="what a call of this name returns; several numbers are for one call after the other",
    )


def value(text: str) -> tuple[str, list[float]]:
    """The name of a call, and the numbers that it returns.

    >>> value("norm=1,1e-9")
    ('norm', [1.0, 1e-09])
    """
    name, _, numbers = text.partition("=")
    try:
        return name, [float(x) for x in numbers.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=X[,X...], as norm=1e-9, got {text!r}") from None


def run(arguments: Namespace, console: Console) -> int:
    """Run the script dry, and print what it takes."""
    from pblas.dry import dry_run

    path = Path(arguments.script)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ArgumentError(f"dry-run: {path} cannot be read: {error.strerror}") from None
    code = compile(source, str(path), "exec", dont_inherit=True, optimize=1)
    before: Any = sys.argv, sys.path[:], sys.modules["__main__"]

    def program() -> None:
        module = ModuleType("__main__")
        module.__file__ = str(path)
        sys.argv, sys.path[0], sys.modules["__main__"] = [str(path), *arguments.arguments], str(path.parent), module
        try:
            exec(code, module.__dict__)  # noqa: S102 - the program of the user
        except SystemExit as caught:
            if caught.code not in (None, 0):
                raise
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = before

    result = dry_run(program, ranks=arguments.ranks, hardware=arguments.hardware, values=dict(arguments.value))
    console.print(str(result), soft_wrap=True)
    return 0
