"""Options of benchmarks on CPUs, and their files, which begin with date, processor, commit and versions."""

from __future__ import annotations

import argparse
import datetime as dt
import platform
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from benchmarks import results_file
from pblas.config import processor


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """A parser of --repeats, --transport and --json.

    Args:
        description: the benchmark's docstring.
        repeats: default number of rounds.
    """
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--repeats", type=int, default=repeats, help="number of rounds")
    result.add_argument("--transport", default="auto", help="transport of the context")
    result.add_argument("--json", type=Path, help="write the results to this file")
    return result


def header() -> dict[str, Any]:
    """Date, device, commit and versions."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "device": processor(),
        "commit": results_file.commit(),
        "ranks": MPI.COMM_WORLD.size,
        "mpi": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def write(path: Path | None, report: dict[str, Any]) -> None:
    """On rank 0, write a report with its header to a file, if one was asked for."""
    if path is not None and MPI.COMM_WORLD.rank == 0:
        results_file.write(path, header() | report)
