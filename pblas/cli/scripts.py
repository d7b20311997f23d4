"""`run`: start ranks for a script; and `python -m pblas script.py`, one rank of a job that a launcher has started."""

from __future__ import annotations

import argparse
import runpy
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pblas.cli.output import Commands, Console, add_command, size
from pblas.launch.job import launcher, refuse_inside_a_job

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_DETAILS = """\
The same as mpiexec -n 4 python -m mpi4py script.py: an error on one rank ends the whole job. The mpiexec is that of
MPIEXEC, else that of this Python's environment, else that on the path. Under a batch system start the ranks with it:

  srun -n 64 python -m pblas script.py
"""


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(commands, "run", rank, run, "Start a script on several ranks.", _DETAILS)
    parser.add_argument("-n", "--ranks", type=size, required=True, help="ranks to start")
    parser.add_argument("script", metavar="script.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def run(arguments: Namespace, _: Console) -> int:
    """Run `mpiexec`; its status is that of the command."""
    refuse_inside_a_job("run")
    command = [*launcher("run"), "-n", str(arguments.ranks), sys.executable, "-m", "mpi4py"]
    return subprocess.run([*command, arguments.script, *arguments.arguments], check=False).returncode


def is_script(words: Sequence[str]) -> bool:
    """Whether the words of a command line are a script and its arguments."""
    return bool(words) and words[0].endswith(".py")


def run_script(words: Sequence[str]) -> int:
    """Run a script as one rank, as `python -m mpi4py` does: an error ends the job."""
    if find_spec("mpi4py") is None:
        print("pblas: error: a script needs mpi4py: pip install mpi4py mpich", file=sys.stderr)
        return 1
    sys.argv[1:] = words
    runpy.run_module("mpi4py", run_name="__main__")
    return 0
