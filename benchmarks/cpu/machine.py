"""The header of the files of benchmarks on CPUs: date, processor and versions."""

from __future__ import annotations

import datetime as dt
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI


def processor() -> str:
    """The processor's name, as Linux gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="ascii", errors="ignore").splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def facts() -> dict[str, Any]:
    """Date, device and versions."""
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="minutes"),
        "device": processor(),
        "ranks": MPI.COMM_WORLD.size,
        "mpi": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def write(path: Path | None, report: dict[str, Any]) -> None:
    """On rank 0, write a report with the facts to a file, if one was asked for."""
    if path is not None and MPI.COMM_WORLD.rank == 0:
        path.write_text(json.dumps(facts() | report, indent=1) + "\n", encoding="utf-8")
