"""How fast is a planned product on CPUs compared with numpy.matmul with as many threads as there are ranks?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.matmul [--sections goals,plans,link,small,thin] [--repeats 9] [--json F]

All columns run in one job, in rounds: each round runs every column once, in rotated order. NumPy runs on rank 0 while
the other ranks sleep outside MPI, because a rank that waits inside MPI occupies a core. One more column is NumPy in a
separate process without MPI; the two columns must agree. All ranks sleep before each column, because OpenBLAS's worker
threads poll for a tenth of a second after a product. The time of a distributed product is from a barrier to the last
rank's return. Other load of the host can slow any round, so the best rounds are compared; the file also has the median
and the worst round.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import pblas
from benchmarks.cpu.alone import PAUSE, Alone, sleep_until_called
from benchmarks.cpu.machine import write
from benchmarks.rounds import rounds, together
from pblas import MatrixDescriptor, tp
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.cpu.blas import gemm
from pblas.matmul import choose as planner
from pblas.tp.products import Caller

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=150)


def timed(work: Callable[[], Any]) -> float:
    """Seconds of `work` on this rank."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A with block in which an attribute of `owner` has another value."""
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def layouts(plan: str, m: int, n: int, k: int) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of A (m x k), B (k x n) and D (m x n) for which a plan is chosen."""
    p, row, column = COMM.size, MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    return {
        "AG(B)": (row(m, k, p), row(k, n, p), row(m, n, p)),
        "AG(A)": (column(m, k, p), column(k, n, p), column(m, n, p)),
        "RS": (column(m, k, p), row(k, n, p), column(m, n, p)),
        "RS^T": (column(m, k, p), row(k, n, p), row(m, n, p)),
        "AG(A)^T": (row(m, k, p), column(k, n, p), column(m, n, p)),
        "AR": (column(m, k, p), row(k, n, p), MatrixDescriptor.replicated(m, n, p)),
    }[plan]


def summary(times: list[float], flops: float) -> dict[str, float]:
    """Best, median and worst seconds, and the best's GFLOP/s."""
    return {
        "best_s": min(times),
        "median_s": statistics.median(times),
        "worst_s": max(times),
        "gflops": flops / min(times) / 1e9,
    }


class Case:
    """One product under one plan and transport."""

    def __init__(self, ctx: pblas.Context, plan: str, sizes: tuple[int, int, int], **options: Any) -> None:
        m, n, k = sizes
        desc_a, desc_b, desc_d = layouts(plan, m, n, k)
        self.a, self.b, self.d = ctx.random(desc_a, seed=1), ctx.random(desc_b, seed=2), ctx.empty(desc_d)
        self.mm = pblas.plan_matmul(self.a, self.b, out=desc_d, **options)

    def execute(self) -> Any:
        """The planned product, into the same D."""
        return self.mm.execute(self.a, self.b, out=self.d)

    def move_only(self) -> Any:
        """The same execution without the GEMMs: the communication alone."""
        with patched(HostArrays, "gemm", lambda *_, **__: None):
            return self.execute()

    def once(self) -> Any:
        """The same product by pmatmul, which also checks its arguments and plans."""
        return pblas.pmatmul(self.a, self.b, out=self.d)


GOALS = (
    ("AG(B)", "shared", (4096, 4096, 4096), 0.95),
    ("RS", "shared", (4096, 4096, 4096), 0.95),
    ("AG(B)", "message", (4096, 4096, 4096), 0.85),
    ("AG(B)", "shared", (2048, 2048, 2048), 0.92),
    ("RS", "shared", (2048, 2048, 2048), 0.92),
    ("AG(B)", "shared", (1024, 1024, 1024), 0.85),
    ("RS", "shared", (1024, 1024, 1024), 0.85),
    ("AR", "shared", (2048, 2048, 8192), 0.90),
)


def against_numpy(repeats: int) -> list[dict[str, Any]]:
    """The products of GOALS compared with numpy.matmul with as many threads as ranks, size by size."""
    rows = []
    for sizes in dict.fromkeys(sizes for _, _, sizes, _ in GOALS):
        m, n, k = sizes
        goals = [goal for goal in GOALS if goal[2] == sizes]
        transports = dict.fromkeys(transport for _, transport, _, _ in goals)
        contexts = {transport: pblas.Context(transport=transport, threads=1) for transport in transports}
        rng = np.random.default_rng(0)
        a, b, d = (rng.random(s) if COMM.rank == 0 else None for s in ((m, k), (k, n), (m, n)))
        arrays = f"rng.random(({m}, {k})), rng.random(({k}, {n})), np.empty(({m}, {n}))"
        alone = Alone(f"rng = np.random.default_rng(0); a, b, d = {arrays}")

        def numpy_on_rank_0(a: Any = a, b: Any = b, d: Any = d) -> float:
            with threadpool_limits(COMM.size, user_api="blas"):
                return timed(lambda: np.matmul(a, b, out=d))

        columns: dict[str, Callable[[], float]] = {
            "numpy": lambda run=numpy_on_rank_0: sleep_until_called(run),
            "numpy alone": lambda alone=alone: alone.seconds("np.matmul(a, b, out=d)"),
        }
        for plan, transport, _, _ in goals:
            case = Case(contexts[transport], plan, sizes)
            columns[f"{plan} {transport}"] = lambda case=case: together(case.execute)
            columns[f"{plan} {transport} pmatmul"] = lambda case=case: together(case.once)
            if transport == "message":
                serial = Case(contexts[transport], plan, sizes, overlap=False)
                columns[f"{plan} {transport} serial"] = lambda case=serial: together(case.execute)
        times = rounds(columns, repeats if n > 1024 else 3 * repeats, pause=PAUSE)
        alone.close()
        flops = 2.0 * m * n * k
        summaries = {name: summary(seconds, flops) for name, seconds in times.items()}
        numpy_best = summaries["numpy"]["best_s"]
        for plan, transport, _, goal in goals:
            name = f"{plan} {transport}"
            row = {"plan": plan, "transport": transport, "m": m, "n": n, "k": k, "goal": goal}
            row["ratio"] = numpy_best / summaries[name]["best_s"]
            row["ratio_of_medians"] = summaries["numpy"]["median_s"] / summaries[name]["median_s"]
            row["ratio_pmatmul"] = numpy_best / summaries[f"{name} pmatmul"]["best_s"]
            row["numpy_alone_over_numpy"] = summaries["numpy alone"]["best_s"] / numpy_best
            if transport == "message":
                row["overlap_over_serial"] = summaries[name]["best_s"] / summaries[f"{name} serial"]["best_s"]
            rows.append(row | {"columns": summaries})
        for context in contexts.values():
            context.close()
    return rows


def by_plan(repeats: int) -> list[dict[str, Any]]:
    """Compute, communication and total time of every plan, with and without overlap, on both transports."""
    n, rows = 2048, []
    for transport in ("shared", "message"):
        with pblas.Context(transport=transport, threads=1) as ctx:
            for plan in ("AG(B)", "AG(A)", "RS", "AR"):
                for overlap in (True, False):
                    before = ctx.runtime.backend.arena.live_nbytes
                    case = Case(ctx, plan, (n, n, n), overlap=overlap)
                    local = np.asfortranarray(np.random.default_rng(0).random((n // COMM.size, n)))
                    whole, result = (
                        np.asfortranarray(np.random.default_rng(1).random((n, n))),
                        np.empty(local.shape, order="F"),
                    )
                    columns: dict[str, Callable[[], float]] = {
                        "compute": lambda a=local, b=whole, d=result: together(lambda: gemm(1.0, a, b, 0.0, d)),
                        "communication": lambda case=case: together(case.move_only),
                        "total": lambda case=case: together(case.execute),
                    }
                    times = rounds(columns, repeats)
                    rows.append(
                        {
                            "plan": plan,
                            "transport": transport,
                            "overlap": overlap,
                            "n": n,
                            "chunks": case.mm.plan.chunks,
                        }
                        | {name: min(seconds) for name, seconds in times.items()}
                        | {"workspace_nbytes": COMM.allreduce(case.mm.workspace_nbytes, MPI.MAX)}
                        | {"announced_nbytes": case.mm.plan.workspace_nbytes, "live_before": before}
                    )
                    del case, columns
    return rows


def on_a_link(repeats: int) -> list[dict[str, Any]]:
    """Overlap on emulated networks that take 0.5, 1 and 2 times as long as the GEMM, and no CPU time."""
    n, rows = 1536, []
    a = np.asfortranarray(np.random.default_rng(0).random((n // COMM.size, n)))
    b = np.asfortranarray(np.random.default_rng(1).random((n, n)))
    d = np.empty((n // COMM.size, n), order="F")
    with pblas.Context(transport="message", threads=1):
        compute = min(together(lambda: gemm(1.0, a, b, 0.0, d)) for _ in range(5))
    nbytes = 8 * n * n * (COMM.size - 1) / COMM.size
    for share in (0.5, 1.0, 2.0):
        with pblas.Context(transport="message", threads=1, link=(1e-4, nbytes / (share * compute))) as ctx:
            for plan in ("AG(B)", "RS", "AR"):
                cases = {overlap: Case(ctx, plan, (n, n, n), overlap=overlap, chunks=4) for overlap in (True, False)}
                columns: dict[str, Callable[[], float]] = {
                    "compute": lambda: together(lambda: gemm(1.0, a, b, 0.0, d)),
                    "communication": lambda case=cases[False]: together(case.move_only),
                    "overlap": lambda case=cases[True]: together(case.execute),
                    "serial": lambda case=cases[False]: together(case.execute),
                }
                times = {name: statistics.median(seconds) for name, seconds in rounds(columns, repeats).items()}
                received = 4 * (COMM.size - 1) * (2 if plan == "AR" else 1)
                chunk = max(times["compute"] / (4 * COMM.size), times["communication"] / received)
                bound = 1.1 * max(times["compute"], times["communication"]) + chunk
                rows.append({"plan": plan, "n": n, "link_over_compute": share, **times, "bound": bound})
    return rows


def small(repeats: int, n: int = 64) -> list[dict[str, Any]]:
    """The cost of `execute` and of planning without the GEMM, at a size where the GEMM is short, and of small layers.

    Layers of few tokens run a collective and a local GEMM (decision 14); "planned" is their time with plans. Their
    plans may differ from those of the other columns, for which `strict` excludes general plans.
    """
    rows = []
    with pblas.Context(threads=1) as ctx:
        rng, share = np.random.default_rng(0), n // COMM.size
        local, whole = np.asfortranarray(rng.random((share, n))), np.asfortranarray(rng.random((n, n)))
        x_rows, x_columns, result = rng.random((share, n)), rng.random((n, share)), np.empty(local.shape, order="F")
        for plan, kind, x in (
            ("AG(B)", "allgather", x_rows),
            ("RS", "reduce_scatter", x_columns),
            ("AR", "allreduce", x_columns),
        ):
            case, layer = Case(ctx, plan, (n, n, n), strict=True), tp.Linear(x, kind, ctx=ctx)
            y = layer(x)
            works: dict[str, Callable[[], Any]] = {
                "execute": case.execute,
                "execute, new D": lambda case=case: case.mm.execute(case.a, case.b),
                "gemm": lambda: gemm(1.0, local, whole, 0.0, result),
                "barrier": COMM.Barrier,
                "planning": lambda case=case: pblas.plan_matmul(case.a, case.b, out=case.d.desc, strict=True),
                "layer": lambda layer=layer, x=x, y=y: layer(x, out=y),
                "gradients": lambda layer=layer, x=x, y=y: layer.backward(y, x),
            }
            works |= {f"{name}, planned": works[name] for name in ("layer", "gradients")}
            samples: dict[str, list[float]] = {name: [] for name in works}
            for _, (name, work) in product(range(repeats), works.items()):
                with patched(Caller, "is_apart", lambda *_: False) if "planned" in name else nullcontext():
                    samples[name] += [timed(work) for _ in range(200)]
            times = {name: statistics.median(seconds) for name, seconds in samples.items()}
            beyond = times["execute"] - times["gemm"] - 2 * times["barrier"]
            rows.append({"plan": plan, "n": n, "ranks": COMM.size, "beyond": beyond} | times)
    return rows


THIN = (
    *product(("RS", "RS^T", "AG(A)^T"), ((64, 64, 64), (256, 256, 256), (512, 512, 512), (1024, 1024, 1024))),
    ("RS", (256, 64, 256)),
    ("RS", (4096, 64, 256)),
    ("RS", (4096, 256, 2048)),
    ("RS^T", (64, 256, 256)),
    ("RS^T", (100, 4096, 256)),
    ("RS^T", (256, 4096, 2048)),
    ("AG(B)", (1024, 256, 256)),
    ("AG(B)", (4096, 1024, 256)),
    ("AG(B)", (4096, 4096, 256)),
    ("AG(A)^T", (256, 4096, 256)),
    ("AG(A)^T", (256, 4096, 2048)),
    ("AR", (64, 256, 2048)),
)


def thin(repeats: int) -> list[dict[str, Any]]:
    """Small products and shards of few rows: the one-dimensional plan compared with a plan over a grid, if they differ.

    The columns are "plain" (one-dimensional), "grids" (general) and "taken" (the planner's choice).
    """
    # the part of a one-dimensional plan's time that a general plan must be predicted to take less than
    rows, margins = [], {"plain": 0.0, "grids": math.inf, "taken": planner._MUCH_QUICKER}  # noqa: SLF001
    for transport, (plan, (m, n, k)) in product(("shared", "message"), THIN):
        with pblas.Context(ranks_per_node=1 if transport == "message" else None) as ctx:
            cases = dict[str, Case]()
            for name, margin in margins.items():
                planner._completed.cache_clear()  # noqa: SLF001
                with patched(planner, "_MUCH_QUICKER", margin):
                    cases[name] = Case(ctx, plan, (m, n, k))
            names = {name: case.mm.plan.name for name, case in cases.items()}
            if names["plain"] == names["grids"]:
                continue
            received = {f"{name}_nbytes": cases[name].mm.plan.max_received_nbytes for name in ("plain", "grids")}
            columns = {name: partial(together, cases[name].execute) for name in ("plain", "grids")}
            times = {name: statistics.median(seconds) for name, seconds in rounds(columns, repeats).items()}
            row = {"plan": plan, "transport": transport, "ranks": COMM.size, "m": m, "n": n, "k": k}
            measured = {"over": names["grids"]} | received | times
            rows.append(row | measured | {"ratio": times["plain"] / times["grids"], "taken": names["taken"]})
    return rows


def print_rows(title: str, rows: list[dict[str, Any]], formats: dict[str, str]) -> None:
    """A table of some columns of the rows."""
    table = Table(title=title, title_justify="left")
    for name in formats:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*("" if name not in row else format(row[name], form) for name, form in formats.items()))
    CONSOLE.print(table)


def main() -> None:
    """Run the sections of --sections, print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default="goals,plans,link,small,thin")
    parser.add_argument("--repeats", type=int, default=9, help="number of rounds; use at least 7 for published figures")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    sections, report = options.sections.split(","), {}
    ms = ".2f"
    if "goals" in sections:
        report["goals"] = against_numpy(options.repeats)
        formats = dict.fromkeys(("plan", "transport", "m", "n", "k"), "") | {"goal": ".2f", "ratio": ".3f"}
        formats |= {"ratio_of_medians": ".3f", "ratio_pmatmul": ".3f", "numpy_alone_over_numpy": ".3f"}
        print_rows(
            f"speed over numpy.matmul with {COMM.size} threads, best of {options.repeats} rounds",
            report["goals"],
            formats | {"overlap_over_serial": ".3f"},
        )
        for row in report["goals"]:
            lines = [
                {"column": name, **{key: value * (1e3 if key.endswith("_s") else 1) for key, value in values.items()}}
                for name, values in row["columns"].items()
            ]
            if row is next(other for other in report["goals"] if other["columns"] is row["columns"]):
                sizes = f"{row['m']} x {row['n']} x {row['k']}, ms and GFLOP/s"
                print_rows(sizes, lines, {"column": "", "best_s": ms, "median_s": ms, "worst_s": ms, "gflops": ".1f"})
    if "plans" in sections:
        report["plans"] = by_plan(options.repeats)
        scaled = [
            row | {name: row[name] * 1e3 for name in ("compute", "communication", "total")} for row in report["plans"]
        ]
        formats = {
            "plan": "",
            "transport": "",
            "overlap": "",
            "chunks": "",
            "compute": ms,
            "communication": ms,
            "total": ms,
        }
        print_rows("best, ms", scaled, formats | {"workspace_nbytes": ",", "announced_nbytes": ","})
    if "link" in sections:
        report["link"] = on_a_link(options.repeats)
        names = ("compute", "communication", "overlap", "serial", "bound")
        scaled = [row | {name: row[name] * 1e3 for name in names} for row in report["link"]]
        formats = {"plan": "", "link_over_compute": ".1f"} | dict.fromkeys(names, ms)
        print_rows(
            "emulated link, medians, ms; bound = 1.1 max(compute, communication) + a chunk's GEMM or transfer",
            scaled,
            formats,
        )
    if "small" in sections:
        report["small"] = small(options.repeats)
        calls = ["beyond", "execute", "execute, new D", "gemm", "barrier", "planning"]
        calls += ["layer", "layer, planned", "gradients", "gradients, planned"]
        scaled = [row | {name: row[name] * 1e6 for name in calls} for row in report["small"]]
        print_rows("n = 64, medians, us", scaled, {"plan": "", "ranks": ""} | dict.fromkeys(calls, ".1f"))
    if "thin" in sections:
        report["thin"] = thin(options.repeats)
        scaled = [row | {name: row[name] * 1e3 for name in ("plain", "grids")} for row in report["thin"]]
        formats = dict.fromkeys(("plan", "transport", "m", "n", "k", "over"), "")
        formats |= {"plain_nbytes": ",", "grids_nbytes": ","} | {"plain": ms, "grids": ms}
        print_rows("shards of few rows, medians, ms", scaled, formats | {"ratio": ms, "taken": ""})
    write(options.json, report)


if __name__ == "__main__":
    main()
