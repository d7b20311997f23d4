"""Measures the tables of the pages on performance one after the other, the most valuable first, in a given time.

python -m benchmarks.all --gpus N --seconds S --out FOLDER      0 GPUs: the tables of CPUs
python -m benchmarks.all --gpus N --list                        tables, their commands and their deadlines

Each command runs until its deadline or the end of the time, and writes its rows to FOLDER as it has them: so does one
that is cut. A line for each says how it ended, and how pblas compares with the fastest peer in its rows; on 8 GPUs each
product's efficiency stands beside its goal. MPIEXEC names the launcher. PBLAS_COMMIT is the commit, outside of a
checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks import results_file
from benchmarks.tables import CPU, GPU, Table

ROOT = Path(__file__).parent.parent
LEAST = 10.0  # seconds in which a program starts


def command(table: Table, gpus: int, file: Path) -> list[str]:
    """The command line that measures a table."""
    ranks = table.ranks or gpus
    local = Path(sys.executable).parent / "mpiexec"
    mpiexec = os.environ.get("MPIEXEC") or (str(local) if local.exists() else "mpiexec")
    launcher = [mpiexec, "-n", str(ranks)] if ranks > 1 else []
    program, *arguments = shlex.split(table.command)
    module = [program] if program.endswith(".py") else ["-m", program]
    return [*launcher, sys.executable, "-m", "mpi4py", *module, *arguments, "--json", str(file)]


def run(line: list[str], seconds: float, log: Path) -> str:
    """Run a command line within a number of seconds, and return how it ended."""
    paths = {"PYTHONPATH": ROOT, "LD_LIBRARY_PATH": ROOT / "build/peer"}  # the latter has ScaLAPACK
    environment = os.environ | {"PBLAS_COMMIT": results_file.commit()}
    environment |= {name: f"{path}:{os.environ.get(name, '')}" for name, path in paths.items()}
    with log.open("w") as output:
        process = subprocess.Popen(
            line,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
            return "done" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            return "cut"
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(8)  # the launcher ends its ranks


def written(path: Path) -> int:
    """When a file was written, in nanoseconds; 0 if there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0


def verdict(table: Table, gpus: int, path: Path, before: int = 0) -> str:
    """A line on all rows of a file, and one for each row with a goal; `before`: when the file was written last."""
    if written(path) == before:
        return "nothing was measured"
    results = json.loads(path.read_text(encoding="utf-8"))
    results_file.write(path, results)
    rows = table.rows(gpus, results[-1] if isinstance(results, list) else results)
    ratios = sorted((row.ratio, row.label) for row in rows if row.ratio)
    text = f"{len(rows)} rows"
    if ratios:
        median, (least, label) = statistics.median(x for x, _ in ratios), ratios[0]
        text += f", fastest peer / pblas: median {median:.2f}, least {least:.2f} ({label})"
    for row in rows:
        if row.goal and "cublas" in row.beside:
            e = row.beside["cublas"] / row.ours
            text += f"\n  {row.label}: E {e:.3f}, goal {row.goal}{'' if e >= row.goal else ', missed'}"
            text += f"; fastest peer / pblas {row.ratio:.2f}" if row.ratio else ""
    return text


def main() -> None:
    """Measure the tables for which there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, required=True, help="number of GPUs; 0: the tables of CPUs")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time for all of them")
    parser.add_argument("--out", type=Path, default=results_file.RESULTS, help="folder of the files")
    parser.add_argument("--only", nargs="+", default=[], help="names of tables")
    parser.add_argument("--list", action="store_true", help="print tables, commands and deadlines")
    options = parser.parse_args()
    end, gpus, out = time.monotonic() + options.seconds, options.gpus, options.out.resolve()
    tables = [table for table in GPU if (table.ranks or 2) <= gpus] if gpus else CPU
    lines = dict[str, Table]()
    for table in tables:
        if not options.only or table.name in options.only:
            lines.setdefault(shlex.join(command(table, gpus, out / table.file(gpus))), table)
    for line, table in lines.items():
        if options.list:
            print(f"{table.name} -> {line} -> {table.seconds:.0f} s")
            continue
        left = min(table.seconds, end - time.monotonic())
        if left < LEAST:
            print(f"{table.name}: no time left", flush=True)
            continue
        out.mkdir(parents=True, exist_ok=True)
        path = out / table.file(gpus)
        start, before, log = time.monotonic(), written(path), out / f"{table.name.replace(' ', '_')}.log"
        ended = run(shlex.split(line), left, log)
        took = f"{time.monotonic() - start:.0f} s of {left:.0f}"
        print(f"{table.name}: {ended}, {took}; {verdict(table, gpus, path, before)}", flush=True)
        if ended != "done":
            print(*(f"  | {text}" for text in log.read_text(errors="replace").splitlines()[-6:]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
