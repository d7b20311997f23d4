"""How far does a plan scale, by simulation up to a million ranks, and how accurate is the simulation?

mpiexec -n 8 python -m mpi4py -m benchmarks.cpu.scaling --emulate [--repeats 3] [--json FILE]
python -m benchmarks.cpu.scaling [--json FILE] [--charts DIRECTORY]

The first form measures products by every plan over emulated links, with and without overlap. Pauses replace the GEMMs,
so that eight ranks on two cores behave as if each had its own core and link. The best round is compared with the
simulation. The second form needs no MPI: it simulates strong and weak scaling on the presets, simulates the products
that cpu_matmul.json has measured with real GEMMs, and draws all charts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pblas
from benchmarks import results_file
from benchmarks.charts.scaling_chart import Line, lines_chart, scatter_chart
from benchmarks.results_file import RESULTS
from pblas import Grid, Hardware, Link, MatrixDescriptor
from pblas.matmul.choose import choose, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.product_plan import ProductPlan
from pblas.simulation.hardware import FAT_TREE, LAPTOP, NVLINK

CHARTS = Path(__file__).parents[2] / "docs" / "performance"
RANKS = [4**i for i in range(11)]
Sizes = tuple[int, int, int]


def weak(base: int) -> dict[str, Callable[[int], Sizes]]:
    """Functions of the number of ranks P that return m, n and k: each rank does the work of base x base x base."""
    return {
        "square": lambda p: (round(base * p ** (1 / 3)),) * 3,
        "tall": lambda p: (base * p, base, base),
        "large K": lambda p: (base, base, base * p),
    }


def strong(base: int) -> dict[str, Callable[[int], Sizes]]:
    """Functions that return the same m, n and k for any number of ranks: 512 or 1024 times base x base x base."""
    return {
        "square": lambda _: (8 * base, 8 * base, 8 * base),
        "tall": lambda _: (1024 * base, base, base),
        "large K": lambda _: (base, base, 1024 * base),
    }


KINDS = (
    *("gather or reduce", "1D layouts, as planned", "2D layouts that conform", "2D layouts that do not"),
    "layouts left open",
)


def planned(kind: str, shape: str, sizes: Sizes, nprocs: int, machine: Hardware, dtype: str) -> ProductPlan:
    """The plan for layouts of a kind in KINDS."""
    m, n, k = sizes
    row, column = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    if kind == "layouts left open":
        return pblas.plan_matmul(m, n, k, nprocs=nprocs, dtype=dtype, hardware=machine).plan
    if kind in KINDS[:2]:
        by_k = shape == "large K"
        descs = (
            (column(m, k, nprocs), row(k, n, nprocs), column(m, n, nprocs))
            if by_k
            else (row(m, k, nprocs), row(k, n, nprocs), row(m, n, nprocs))
        )
        if kind == KINDS[0]:
            plan = next(one_dimensional(dtype, *descs, nprocs))
            transport = machine.topology.transport(nprocs)
            return replace(plan, transport=transport, chunks=1 if transport == "shared" else 4)
    else:
        nprow = 2 ** (math.isqrt(nprocs).bit_length() - 1)
        grid = Grid(nprow, nprocs // nprow)
        blocks = [max(1, -(-extent // grid.npcol)) for extent in (m, n, k)]
        if kind == KINDS[3]:
            blocks = [max(8, block // 32) for block in blocks]
        mb, nb, kb = blocks
        kb_b = kb + 1 if kind == KINDS[3] else kb  # different blocks of K, so that panels span several owners
        shapes = ((m, k, mb, kb), (k, n, kb_b, nb), (m, n, mb, nb))
        descs = tuple(MatrixDescriptor(*shape_, grid) for shape_ in shapes)  # type: ignore[assignment]
    return choose(dtype, *descs, context=PlanningContext(machine.topology, nprocs, hardware=machine))


def curves(sizes: dict[str, Callable[[int], Sizes]], machine: Hardware, dtype: str) -> list[dict[str, Any]]:
    """Simulations of every shape, kind and number of ranks."""
    rows = []
    for shape, of in sizes.items():
        for kind in KINDS:
            for nprocs in RANKS:
                plan = planned(kind, shape, of(nprocs), nprocs, machine, dtype)
                simulation = plan.simulate(machine)
                facts = {"seconds": simulation.seconds, "efficiency": simulation.efficiency, "fits": simulation.fits}
                facts |= {"received_nbytes": simulation.received_nbytes, "exposed_seconds": simulation.exposed_seconds}
                rows.append({"shape": shape, "kind": kind, "ranks": nprocs, "plan": simulation.plan} | facts)
    return rows


def chart(rows: list[dict[str, Any]], value: str, y_label: str, note: str) -> str:
    """A chart with a panel for each shape; points that do not fit into memory are left out."""
    panels: dict[str, list[Line]] = {}
    for shape in dict.fromkeys(row["shape"] for row in rows):
        lines = []
        for kind in KINDS:
            points = [row for row in rows if (row["shape"], row["kind"], row["fits"]) == (shape, kind, True)]
            lines.append(Line(kind, tuple((row["ranks"], row[value]) for row in points)))
        panels[shape] = [line for line in lines if line.points]
        if value == "seconds":
            work = min(row["seconds"] * row["efficiency"] * row["ranks"] for row in rows if row["shape"] == shape)
            first = min(x for line in lines for x, _ in line.points)
            panels[shape].append(Line("ideal", ((first, work / first), (RANKS[-1], work / RANKS[-1]))))
    return lines_chart(panels, y_label, note)


def write_charts(file: dict[str, Any], directory: Path) -> None:
    """Simulate on the presets, and draw all charts."""
    directory.mkdir(parents=True, exist_ok=True)
    for machine, dtype, base in ((FAT_TREE, "float64", 4096), (NVLINK, "bfloat16", 16384)):
        where = f"{machine.name}, {dtype}, {machine.ranks_per_node} ranks per node"
        rows = {"strong": curves(strong(base), machine, dtype), "weak": curves(weak(base), machine, dtype)}
        sizes = ", ".join(f"{' x '.join(map(str, of(1)))}" for of in strong(base).values())
        figure = chart(rows["strong"], "seconds", "seconds", f"{where}; m x n x k: {sizes}")
        (directory / f"scaling_strong_{machine.name}.svg").write_text(figure, encoding="utf-8")
        note = f"{where}; each rank multiplies as much as {base} x {base} x {base}"
        figure = chart(rows["weak"], "efficiency", "part of the GEMM rate", note)
        (directory / f"scaling_weak_{machine.name}.svg").write_text(figure, encoding="utf-8")
    groups: dict[str, list[tuple[float, float, str]]] = {"2 ranks, real GEMMs": real_gemms()}
    for row in sorted(file.get("emulated", []), key=lambda row: row["ranks"]):
        label = f"{row['case']}, {row['ranks']} ranks, overlap {row['overlap']}"
        groups.setdefault(f"{row['ranks']} ranks, pauses", []).append((row["best_s"], row["simulated_s"], label))
    for name, points in groups.items():
        ratios = sorted(simulated / measured for measured, simulated, _ in points)
        quantiles = ", ".join(f"{ratios[round(q * (len(ratios) - 1))]:.2f}" for q in (0, 0.1, 0.5, 0.9, 1))
        print(f"{name}: simulated / measured of {len(ratios)} points: {quantiles} (0, 10, 50, 90, 100 %)")
    figure = scatter_chart(groups, "best of all rounds; plans of all kinds, with and without overlap")
    (directory / "scaling_measured.svg").write_text(figure, encoding="utf-8")


def real_gemms() -> list[tuple[float, float, str]]:
    """(measured, simulated, label) of the products in cpu_matmul.json, in shared memory and over emulated links."""
    file, points = json.loads((RESULTS / "cpu_matmul.json").read_text(encoding="utf-8")), []
    nprocs = file["ranks"]

    def add(name: str, n: int, machine: Hardware, seconds: float, **options: Any) -> None:
        a, b, d = layouts(name, n, nprocs)
        plan = replace(next(one_dimensional("float64", a, b, d, nprocs)), **options)
        label = f"{name}, n = {n}, {options['transport']}, overlap {options['overlap']}"
        points.append((seconds, plan.simulate(machine).seconds, label))

    for row in file["plans"]:
        options = {name: row[name] for name in ("transport", "chunks", "overlap")}
        add(row["plan"], row["n"], replace(LAPTOP, shared=row["transport"] == "shared"), row["total"], **options)
    for row in file["link"]:
        nbytes = 8 * row["n"] ** 2 * (nprocs - 1) / nprocs
        bandwidth = nbytes / (row["link_over_compute"] * row["compute"])
        far = Link(1e-4, bandwidth, overhead=LAPTOP.near.overhead, core=LAPTOP.near.core)
        machine = replace(LAPTOP, shared=False, ranks_per_node=1, far=far)
        for name, overlap in (("overlap", True), ("serial", False)):
            add(row["plan"], row["n"], machine, row[name], transport="message", chunks=4, overlap=overlap)
    return points


def layouts(plan: str, n: int, nprocs: int) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of square A, B and D for which a plan is chosen."""
    row, column = MatrixDescriptor.row_wise(n, n, nprocs), MatrixDescriptor.column_wise(n, n, nprocs)
    nprow = 2 ** (math.isqrt(nprocs).bit_length() - 1)
    grid = Grid(nprow, nprocs // nprow)
    large = MatrixDescriptor(n, n, -(-n // grid.nprow), -(-n // grid.npcol), grid)
    small, shifted = MatrixDescriptor(n, n, 8, 8, grid), MatrixDescriptor(n, n, 9, 8, grid)
    return {
        "AG(B)": (row, row, row),
        "AG(A)": (column, column, column),
        "RS": (column, row, column),
        "AR": (column, row, MatrixDescriptor.replicated(n, n, nprocs)),
        "2D, large blocks": (large, large, large),
        "2D, small blocks": (small, shifted, small),
        "A row-wise, B and D 2D": (row, large, large),
    }[plan]


def emulate(repeats: int, n: int = 512, seconds: float = 0.4) -> list[dict[str, Any]]:
    """Best seconds of products over emulated links, with and without overlap, and their simulation.

    Pauses replace the GEMMs. Links and pauses take time but no core, so any number of ranks fits on any number of
    cores. Steps, messages and waits are those of a real execution.
    """
    from mpi4py.MPI import COMM_WORLD as COMM

    from benchmarks.rounds import rounds, together
    from pblas.backends.cpu.blas import gemm

    rate = 2 * n**3 / COMM.size / seconds

    def pause(*operands: Any, **_: Any) -> None:
        _, x, y, _, z = operands
        z[...] = 0
        time.sleep(2 * x.shape[0] * x.shape[1] * y.shape[1] / rate)

    users: list[Any] = [module for module in sys.modules.values() if getattr(module, "gemm", None) is gemm]
    for module in users:
        module.gemm = pause
    nbytes, rows = 8 * n * n * (COMM.size - 1) / COMM.size, []
    names = ("AG(B)", "RS", "AR", "2D, large blocks", "2D, small blocks", "A row-wise, B and D 2D")
    for share in (0.25, 1.0, 4.0):
        link = Link(2e-4, nbytes / seconds / share)
        machine = Hardware("emulated", 1, link, link, rate, rate, rate, LAPTOP.memory_bandwidth, LAPTOP.memory_nbytes)
        works: dict[Any, Callable[[], float]] = {}
        plans: dict[Any, ProductPlan] = {}
        with pblas.Context(transport="message", threads=1, link=(link.latency, link.bandwidth)) as ctx:
            for name in names if COMM.size > 2 else names[:3]:
                descs = layouts(name, n, COMM.size)
                a, b, d = ctx.random(descs[0], seed=1), ctx.random(descs[1], seed=2), ctx.empty(descs[2])
                for overlap in (True, False):
                    chunks = 4 if name in names[:3] else 16
                    mm = pblas.plan_matmul(a, b, out=descs[2], overlap=overlap, chunks=chunks)
                    plans[name, overlap] = mm.plan
                    works[name, overlap] = lambda mm=mm, a=a, b=b, d=d: together(lambda: mm.execute(a, b, out=d))
            for (name, overlap), times in rounds(works, repeats).items():
                plan = plans[name, overlap]
                row = {"case": name, "plan": plan.name, "ranks": COMM.size, "overlap": overlap, "link_over_gemm": share}
                row |= {"best_s": min(times), "simulated_s": plan.simulate(machine).seconds}
                rows.append(row)
                if COMM.rank == 0:
                    print(row, flush=True)
    for module in users:
        module.gemm = gemm
    return rows


def main() -> None:
    """Measure, or simulate and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--emulate", action="store_true", help="measure over emulated links, on any number of ranks")
    parser.add_argument("--repeats", type=int, default=3, help="number of rounds")
    parser.add_argument("--json", type=Path, default=RESULTS / "scaling.json", help="file of emulated products")
    parser.add_argument("--charts", type=Path, default=CHARTS, help="directory of the charts")
    options = parser.parse_args()
    file = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    if options.emulate:
        from mpi4py.MPI import COMM_WORLD as COMM

        from pblas.config import processor

        file |= {"date": dt.datetime.now(dt.UTC).date().isoformat(), "device": processor()}
        others = [row for row in file.get("emulated", []) if row["ranks"] != COMM.size]
        file["emulated"] = others + emulate(options.repeats)
        if COMM.rank:
            return
    else:
        write_charts(file, options.charts)
    results_file.write(options.json, file)


if __name__ == "__main__":
    main()
