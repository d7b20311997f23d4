"""How long do the first calls of each kind take on a GPU, without compiled kernels on disk and with them?

python -m benchmarks.gpu.first_calls [--only qr,svd] [--n 1024] [--dtype float64] [--programs] [--json FILE]

Each call runs in a process of its own, once with an empty folder for CuPy's cache and once more with what the first run
left there. Python's modules are compiled before, as pip does when it installs a wheel. A time begins after `Context()`
and after the operands are on the GPU, and ends when the GPU is idle. NVRTC is the time that it took for all programs,
which may be longer than the call where threads compile several at a time; `--programs` prints the time of each.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import results_file
from benchmarks.gpu.rows import about


class Operands(NamedTuple):
    """What the calls take."""

    ctx: Any
    linalg: Any
    A: Any  # a general matrix
    S: Any  # a positive definite one


CALLS: dict[str, Callable[[Operands], Any]] = {
    "random": lambda x: x.ctx.random(x.A.shape, x.A.dtype, seed=1),
    "A + B": lambda x: x.A + x.S,
    "A.sum()": lambda x: x.A.sum(),
    "A @ B": lambda x: x.A @ x.S,
    "norm": lambda x: x.linalg.matrix_norm(x.A),
    "cholesky": lambda x: x.linalg.cholesky(x.S),
    "solve": lambda x: x.linalg.solve(x.A, x.S),
    "qr": lambda x: x.linalg.qr(x.A),
    "eigvalsh": lambda x: x.linalg.eigvalsh(x.S),
    "eigh": lambda x: x.linalg.eigh(x.S),
    "svd": lambda x: x.linalg.svd(x.A),
}


def measure(kind: str, n: int, dtype: str, *, shows_programs: bool) -> None:
    """Print the seconds of the first call and those of NVRTC in it."""
    start = time.perf_counter()
    from cupy.cuda import compiler, runtime

    import pblas
    from pblas import linalg

    programs: list[tuple[float, str]] = []
    compile_program = compiler._NVRTCProgram.compile  # noqa: SLF001 - CuPy has no other place to measure this

    def timed(program: Any, *arguments: Any) -> Any:
        begin = time.perf_counter()
        compiled = compile_program(program, *arguments)
        named = program.name_expressions or [line for line in program.src.splitlines() if "__global__" in line]
        programs.append((time.perf_counter() - begin, ", ".join(named)[:100]))
        return compiled

    compiler._NVRTCProgram.compile = timed  # noqa: SLF001
    imports = time.perf_counter() - start
    with pblas.Context() as ctx:
        a = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
        operands = Operands(ctx, linalg, ctx.from_global(a), ctx.from_global(a @ a.T / n + np.eye(n, dtype=dtype)))
        runtime.deviceSynchronize()
        context = time.perf_counter() - start - imports
        programs.clear()
        start = time.perf_counter()
        result = CALLS[kind](operands)
        runtime.deviceSynchronize()
        seconds = time.perf_counter() - start
        del result
    if shows_programs:
        for taken, name in sorted(programs, reverse=True):
            print(f"    {taken:.3f} {name}", file=sys.stderr, flush=True)
    print(seconds, sum(taken for taken, _ in programs), len(programs), imports, context)


def main() -> None:
    """Measure the chosen calls, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CALLS))
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--programs", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    arguments = parser.parse_args()
    if unknown := set(arguments.only.split(",")) - set(CALLS):
        parser.error(f"--only: {', '.join(sorted(unknown))}: the calls are {', '.join(CALLS)}")
    if arguments.here:
        measure(arguments.only, arguments.n, arguments.dtype, shows_programs=arguments.programs)
        return
    package = find_spec("pblas")
    assert package is not None
    assert package.origin is not None
    for folder in {path.resolve() for path in Path(package.origin).parent.iterdir() if path.is_dir()}:
        compileall.compile_dir(folder, quiet=2)
    table = Table("first call", "caches empty", "of which NVRTC", "programs", "caches filled", "imports", "context")
    reports = list[dict[str, Any]]()
    command = [sys.executable, "-m", "benchmarks.gpu.first_calls", "--here", f"--n={arguments.n}"]
    command += [f"--dtype={arguments.dtype}", *["--programs"] * arguments.programs]
    for kind in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows = []
            for _ in range(2):
                run = subprocess.run(
                    [*command, f"--only={kind}"],
                    env=os.environ | {"CUPY_CACHE_DIR": folder},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                rows.append([float(x) for x in run.stdout.splitlines()[-1].split()])
        (empty, nvrtc, count, *_), (filled, *_, imports, context) = rows
        reports.append({"call": kind, "n": arguments.n, "s": {"caches empty": empty, "caches filled": filled}})
        table.add_row(
            kind,
            *(f"{x:.2f}" for x in (empty, nvrtc)),
            f"{count:.0f}",
            f"{filled:.2f}",
            f"{imports:.2f}",
            f"{context:.2f}",
        )
        print(f"{kind}: {empty:.2f} s, of which NVRTC {nvrtc:.2f}, {filled:.2f} with caches filled", flush=True)
        if arguments.json:
            from benchmarks.gpu.elementwise import device_name

            results_file.write(arguments.json, about(device_name(), 1) | {"rows": reports})
    Console().print(table)


if __name__ == "__main__":
    main()
