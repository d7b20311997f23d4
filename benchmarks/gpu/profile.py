"""What limits the Hopper kernel in each of its modes? Nsight Compute profiles one GPU as one of several ranks.

python -m benchmarks.gpu.profile [--models 8B 70B] [--m 4096] [--gpus 8] [--json FILE]

The products are those of one of 8 ranks, in bfloat16, as in `gemm.py`. "gemm" is the up-projection in one part. "ag" is
the up-projection in one part per rank; all flags are set. "rs" is the down-projection: the kernel forms and signals the
parts of the peers, then forms its own part and adds the peers' partial products. "ar" is "rs" in two pieces, whose sums
are stored twice. The data of the peers are in memory before the launch: the profiler repeats a launch for each group of
counters, so a kernel that waited for another one would hang.

The clocks are not fixed, so times are those of a GPU at or below its power limit. The shares of tensor cores are of the
time from the launch to the end, on all multiprocessors and on the busiest one. These two differ by rounds of tiles that
do not fill the GPU. The busiest one differs from 100 % by its work other than multiplying.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks import results_file
from benchmarks.gpu.rows import MODELS, about

if TYPE_CHECKING:
    from pblas.backends.nvshmem.hopper.compile import Part

MODES = ("gemm", "ag", "rs", "ar")
PIECES = 2
SECONDS = 100  # deadline of a kernel that waits
LIMIT = 120  # seconds for one profile
SHARE = "avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active"
METRICS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "mhz": ("gpc__cycles_elapsed.avg.per_second", 1e-6),
    "tensor": (f"{TENSOR}.{SHARE}", 1.0),
    "busiest": (f"{TENSOR}.max.pct_of_peak_sustained_elapsed", 1.0),
    "l2": (f"lts__throughput.{SHARE}", 1.0),
    "l2_hits": ("lts__t_sector_hit_rate.pct", 1.0),
    "memory": (f"dram__throughput.{SHARE}", 1.0),
    "issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1.0),
    "registers": ("launch__registers_per_thread", 1.0),
}
"""Metrics by their names in the file: the name in Nsight Compute, and the factor to the unit of the file."""


def parts_of(mode: str, x: Any, y: Any, z: Any, gpus: int) -> tuple[list[Part], Any]:
    """The parts of a launch in the order in which a rank forms them, and their flags."""
    import cupy

    from pblas.backends.nvshmem.hopper.compile import Part, Term

    pieces = PIECES if mode == "ar" else 1
    flags, copy = cupy.zeros((3, pieces * gpus), cupy.uint32), cupy.empty_like(z)
    come, made, stored = ([int(word.data.ptr) for word in words] for words in flags)
    if mode == "gemm":
        return [Part(x, y, z)], flags
    rows = [slice(i * len(x) // (pieces * gpus), (i + 1) * len(x) // (pieces * gpus)) for i in range(pieces * gpus)]
    if mode == "ag":
        return [Part(x[r], y, z[r], flag=come[i] if i else 0, source=i) for i, r in enumerate(rows)], flags
    parts, sums = list[Part](), list[Part]()
    for first in range(0, pieces * gpus, gpus):
        peers = range(first + 1, first + gpus)
        parts += [Part(x[rows[i]], y, z[rows[i]], signal=made[i], partial=True) for i in peers] + sums
        terms = tuple(Term(copy[rows[i]], come[i], i - first) for i in peers)
        own = rows[first]
        places, signal = ((copy[own],), stored[first]) if mode == "ar" else ((), 0)
        sums = [Part(x[own], y, z[own], signal=signal, terms=terms, places=places)]
    return parts + sums, flags


def launch(mode: str, model: str, m: int, gpus: int) -> None:
    """Launch the kernel twice: the first launch warms up, the profiler records the second."""
    import cupy

    from benchmarks.gpu.gemm import matrix
    from pblas.backends.nvshmem.hopper.gemm import Hopper
    from pblas.backends.nvshmem.kernels.arguments import Watch

    n, k = sizes(mode, model)
    rng, stream, hopper = cupy.random.default_rng(1), cupy.cuda.Stream(non_blocking=True), Hopper()
    x, y, z = matrix(rng, m, k, "C"), matrix(rng, k, n, "F"), matrix(rng, m, n, "C")
    parts, flags = parts_of(mode, x, y, z, gpus)
    for _ in range(2):
        flags[...] = 1
        cupy.cuda.runtime.deviceSynchronize()
        hopper.matmul(stream.ptr, 1.0, parts, 0.0, watch=Watch(SECONDS * 10**9))
        stream.synchronize()


def sizes(mode: str, model: str) -> tuple[int, int]:
    """N and K of the GEMM of one of 8 ranks."""
    hidden, forward = MODELS[model]
    return (forward // 8, hidden) if mode in {"gemm", "ag"} else (hidden, forward // 8)


def profiler() -> str:
    """The path of Nsight Compute."""
    programs = sorted(Path("/opt/nvidia/nsight-compute").glob("*/ncu"))
    path = shutil.which("ncu") or (str(programs[-1]) if programs else None)
    if path is None:
        raise SystemExit("Nsight Compute (ncu) is not on PATH; install the CUDA Toolkit, which has it")
    return path


def profiled(mode: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Profile the second launch of a process; its metrics."""
    names = ",".join(name for name, _ in METRICS.values())
    choice = ["--kernel-name", "hopper_gemm", "--launch-skip", "1", "--launch-count", "1", "--metrics", names]
    ncu = [profiler(), "--clock-control", "none", "--print-units", "base", "--csv", "--page", "raw", *choice]
    itself = [sys.executable, __file__, "--launch", mode, "--models", model]
    sized = ["--m", str(options.m), "--gpus", str(options.gpus)]
    ended = subprocess.run([*ncu, *itself, *sized], capture_output=True, text=True, timeout=LIMIT, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith('"')]
    if ended.returncode or len(lines) != 3:
        raise SystemExit(f"ncu ended with status {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")
    metrics = dict(zip(*list(csv.reader(lines))[::2], strict=True))
    values = {key: float(metrics[name].replace(",", "")) * unit for key, (name, unit) in METRICS.items()}
    n, k = sizes(mode, model)
    return {"mode": mode, "model": model, "m": options.m, "n": n, "k": k} | values


def table(file: dict[str, Any]) -> Table:
    """The rows of a file as a table."""
    result = Table(
        title=f"the Hopper kernel on one {file['device']} as one of {file['gpus']} ranks", title_justify="left"
    )
    heads = ("tensor cores %", "of the busiest %", "L2 %", "L2 hits %", "memory %", "issue slots %")
    for head in ("mode", "model", "M", "N", "K", "us", "MHz", "TFLOP/s", *heads):
        result.add_column(head, justify="left" if head in {"mode", "model"} else "right")
    for row in file["rows"]:
        shares = (f"{row[name]:.1f}" for name in ("tensor", "busiest", "l2", "l2_hits", "memory", "issue"))
        rate = 2e-6 * row["m"] * row["n"] * row["k"] / row["us"]
        sized = (row["mode"], row["model"], *(str(row[name]) for name in "mnk"))
        result.add_row(*sized, f"{row['us']:.0f}", f"{row['mhz']:.0f}", f"{rate:.0f}", *shares)
    return result


def main() -> None:
    """Profile each mode of each model; with --launch, run the profiled process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--m", type=int, default=4096, help="rows of the activations")
    parser.add_argument("--gpus", type=int, default=8, help="number of ranks, one of which this GPU emulates")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launch", choices=MODES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launch:
        launch(options.launch, options.models[0], options.m, options.gpus)
        return
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    file = about(device, options.gpus) | {"rows": []}
    for model in options.models:
        for mode in options.modes:
            file["rows"].append(profiled(mode, model, options))
            if options.json:
                results_file.write(options.json, file)
    Console(width=150).print(table(file))


if __name__ == "__main__":
    main()
