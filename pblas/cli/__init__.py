"""The command line: `python -m pblas`, on one process or under `mpiexec -n P python -m mpi4py -m pblas`.

Each command is two functions, `add_parser` and `run`; `run` returns the exit status. Rank 0 alone prints.
"""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Sequence

import pblas
from pblas.cli import bench, demo, dry_run, files, info, layout, plan, scripts
from pblas.cli.output import Parser, launcher_rank, make_console, wait_for_rank_0
from pblas.errors import DTypeError, FileFormatError, PblasError, PeerTimeout

_COMMANDS = (
    *(demo.add_parser, bench.add_parser, files.add_matmul, files.add_solve, files.add_eigh, files.add_svd),
    *(files.add_convert, scripts.add_parser),
    *(plan.add_plan, dry_run.add_parser, plan.add_trace, layout.add_parser, info.add_parser),
)
_EPILOG = """\
A script of your own runs on 4 ranks by `pblas run -n 4 script.py`, or by `mpiexec -n 4 python -m pblas script.py`.
Under MPI start every command as

  mpiexec -n 4 python -m mpi4py -m pblas demo

With -m mpi4py an error on one rank ends the whole job. `bench` starts its ranks itself, unless mpiexec has done so.
`plan`, `layout`, `info` and `trace FILE.json` also work without MPI. Exit status: 0, or 1 after an error or a failed
check, or 2 for wrong arguments.
"""


_FUNCTION = re.compile(r"^(plan_matmul|plan_lu|plan_cholesky|plan_qr|plan_eigh|eigvalsh|random): ")


def make_parser(rank: int) -> Parser:
    """The parser of all commands; it prints on rank 0 only."""
    parser = Parser(
        "pblas",
        rank=rank,
        description="Distributed dense matrix products, systems of equations and eigenvalues from the shell.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"pblas {pblas.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for add_parser in _COMMANDS:
        add_parser(commands, rank)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of the command line."""
    rank = launcher_rank()
    words = sys.argv[1:] if argv is None else argv
    if scripts.is_script(words):
        return scripts.run_script(words)
    arguments: Namespace = make_parser(rank).parse_args(words)
    try:
        status: int = arguments.run(arguments, make_console(rank))
    except (PblasError, OSError) as error:
        if rank == 0 or isinstance(error, PeerTimeout):  # rank 0 may be the rank that did not arrive
            print(f"pblas: error: {_text(arguments, error)}{_remedy(arguments, error)}", file=sys.stderr, flush=True)
        status = 1
    if status:
        wait_for_rank_0(rank)
    return status


def _text(arguments: Namespace, error: Exception) -> str:
    """The error's text; the name of the command replaces the name of the Python function."""
    return _FUNCTION.sub(f"{arguments.command}: ", str(error))


def _remedy(arguments: Namespace, error: Exception) -> str:
    """The option that helps, where the error's text names a Python argument."""
    if (
        isinstance(error, DTypeError)
        and arguments.command in ("demo", "matmul", "solve", "eigh", "svd", "convert")
        and arguments.dtype is None
    ):
        return "; from the shell, --dtype gives all matrices one"
    if (
        isinstance(error, FileFormatError)
        and arguments.command in ("matmul", "solve", "eigh", "svd", "convert")
        and "dataset=" in str(error)
    ):
        option = ", --overwrite replaces it" if "overwrite=" in str(error) else ""
        return f"; from the shell, --dataset A=NAME names that of A, and so on{option}"
    if type(error).__name__ == "NotPositiveDefiniteError":  # of a module that imports NumPy
        return "; from the shell, --assume-a gen solves it by LU"
    return ""
