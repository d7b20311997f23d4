"""How far does a plan scale? Simulated, up to a million ranks; and how good is the simulation, on two ranks?

mpiexec -n 2 python -m mpi4py benchmarks/scaling.py --measure [--repeats 7] [--json FILE]
mpiexec -n 8 python -m mpi4py benchmarks/scaling.py --emulate [--repeats 3] [--json FILE]
python benchmarks/scaling.py [--json FILE] [--charts DIRECTORY]

The first form runs products by every plan in shared memory, by messages, and over emulated links, with and without
overlap, and simulates each on the preset `laptop` with the link put in. The second puts pauses in the place of GEMMs,
so that eight ranks have GEMMs and links of their own on two cores. The best of all rounds is compared, since hosts of
virtual machines slow them without a trace. The third needs no MPI: it simulates strong and weak scaling on the presets,
and draws all charts.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaling_chart import Line, lines_chart, scatter_chart

import pblas
from pblas import Grid, Hardware, Link, MatrixDescriptor
from pblas.machines import FAT_TREE, LAPTOP, NVLINK
from pblas.plan import Plan
from pblas.planner import choose

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance"
RANKS = [2**i for i in range(21)]
Sizes = tuple[int, int, int]

# m, n, k on P ranks if the work of a rank stays, and if the problem stays.
WEAK: dict[str, Callable[[int], Sizes]] = {
    "square": lambda p: (round(4096 * p ** (1 / 3)),) * 3,
    "tall": lambda p: (4096 * p, 4096, 4096),
    "large K": lambda p: (4096, 4096, 4096 * p),
}
STRONG: dict[str, Callable[[int], Sizes]] = {
    "square": lambda _: (32768, 32768, 32768),
    "tall": lambda _: (1 << 22, 4096, 4096),
    "large K": lambda _: (4096, 4096, 1 << 22),
}
KINDS = ("one-dimensional", "2D, large blocks", "2D, small blocks", "chosen freely")


def planned(kind: str, shape: str, sizes: Sizes, nprocs: int, machine: Hardware, dtype: str) -> Plan:
    """A plan for layouts of a kind."""
    m, n, k = sizes
    row, column = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    if kind == "chosen freely":
        return pblas.plan_matmul(m, n, k, nprocs=nprocs, dtype=dtype, machine=machine).plan
    if kind == "one-dimensional" and shape == "large K":
        descs = column(m, k, nprocs), row(k, n, nprocs), column(m, n, nprocs)
    elif kind == "one-dimensional":
        descs = row(m, k, nprocs), row(k, n, nprocs), row(m, n, nprocs)
    else:
        nprow = 2 ** (math.isqrt(nprocs).bit_length() - 1)
        grid = Grid(nprow, nprocs // nprow)
        blocks = [max(1, -(-extent // grid.npcol)) for extent in (m, n, k)]
        if kind == "2D, small blocks":
            blocks = [min(block, 8) for block in blocks]
        mb, nb, kb = blocks
        # op(B) is cut a little differently along K, so that panels have the order of K, not that of their owners.
        other = kb + 1 if kind == "2D, small blocks" else kb
        shapes = ((m, k, mb, kb), (k, n, other, nb), (m, n, mb, nb))
        descs = tuple(MatrixDescriptor(*shape_, grid) for shape_ in shapes)  # type: ignore[assignment]
    return choose(*sizes, dtype, *descs, nprocs=nprocs, machine=machine.facts)


def curves(sizes: dict[str, Callable[[int], Sizes]], machine: Hardware, dtype: str) -> list[dict[str, Any]]:
    """Simulations of every shape, kind and number of ranks."""
    rows = []
    for shape, of in sizes.items():
        for kind in KINDS:
            for nprocs in RANKS:
                plan = planned(kind, shape, of(nprocs), nprocs, machine, dtype)
                found = plan.simulate(machine)
                facts = {"seconds": found.seconds, "efficiency": found.efficiency, "fits": found.fits}
                facts |= {"received_nbytes": found.received_nbytes, "exposed_seconds": found.exposed_seconds}
                rows.append({"shape": shape, "kind": kind, "ranks": nprocs, "plan": found.plan} | facts)
    return rows


def chart(rows: list[dict[str, Any]], value: str, y_label: str, note: str) -> str:
    """A panel for each shape; ranks that lack memory are left out."""
    panels: dict[str, list[Line]] = {}
    for shape in dict.fromkeys(row["shape"] for row in rows):
        lines = []
        for kind in KINDS:
            found = [row for row in rows if (row["shape"], row["kind"], row["fits"]) == (shape, kind, True)]
            lines.append(Line(kind, tuple((row["ranks"], row[value]) for row in found)))
        panels[shape] = [line for line in lines if line.points]
        if value == "seconds":
            work = min(row["seconds"] * row["efficiency"] * row["ranks"] for row in rows if row["shape"] == shape)
            first = min(x for line in lines for x, _ in line.points)
            panels[shape].append(Line("ideal", ((first, work / first), (RANKS[-1], work / RANKS[-1]))))
    return lines_chart(panels, y_label, note)


def write_charts(file: dict[str, Any], directory: Path) -> None:
    """Simulate on the presets, and draw."""
    for machine, dtype in ((FAT_TREE, "float64"), (NVLINK, "bfloat16")):
        where = f"{machine.name}, {dtype}, {machine.ranks_per_node} ranks per node"
        strong, weak = curves(STRONG, machine, dtype), curves(WEAK, machine, dtype)
        sizes = "square 32768^3, tall 4M x 4096 x 4096, large K 4096 x 4096 x 4M (m x n x k)"
        figure = chart(strong, "seconds", "seconds", f"strong scaling on {where}: {sizes}")
        (directory / f"scaling_strong_{machine.name}.svg").write_text(figure, encoding="utf-8")
        figure = chart(
            weak, "efficiency", "part of the GEMM rate", f"weak scaling on {where}: the work of 4096^3 a rank"
        )
        (directory / f"scaling_weak_{machine.name}.svg").write_text(figure, encoding="utf-8")
        file[machine.name] = {"strong": strong, "weak": weak}
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for row in file.get("measured", []):
        group = "real GEMMs, over links" if row["bandwidth"] else "real GEMMs, in memory"
        what = f"{row['case']}, n = {row['n']}, {row['transport']}, overlap {row['overlap']}"
        groups.setdefault(group, []).append((row["best_s"], row["simulated_s"], what))
    for row in file.get("emulated", []):
        what = f"{row['case']}, {row['ranks']} ranks, overlap {row['overlap']}"
        groups.setdefault(f"{row['ranks']} ranks, pauses", []).append((row["best_s"], row["simulated_s"], what))
    if groups:
        note = f"{file['device']}, {file['date']}"
        (directory / "scaling_measured.svg").write_text(scatter_chart(groups, note), encoding="utf-8")


def layouts(plan: str, n: int, nprocs: int) -> tuple[MatrixDescriptor, ...]:
    """Layouts of square A, B and D for which a plan is chosen."""
    row, column = MatrixDescriptor.row_wise(n, n, nprocs), MatrixDescriptor.column_wise(n, n, nprocs)
    nprow = 2 ** (math.isqrt(nprocs).bit_length() - 1)
    grid = Grid(nprow, nprocs // nprow)
    large = MatrixDescriptor(n, n, -(-n // grid.nprow), -(-n // grid.npcol), grid)
    small, other = MatrixDescriptor(n, n, 8, 8, grid), MatrixDescriptor(n, n, 9, 8, grid)
    return {
        "AG": (row, row, row),
        "RS": (column, row, column),
        "AR": (column, row, MatrixDescriptor.replicated(n, n, nprocs)),
        "2D, large blocks": (large, large, large),
        "2D, small blocks": (small, other, small),
        "A row-wise, B and D 2D": (row, large, large),
    }[plan]


def compare(
    transport: str, link: tuple[float, float] | None, machine: Hardware, sizes: tuple[int, ...], repeats: int
) -> list[dict[str, Any]]:
    """Best seconds of every plan, with and without overlap, and what the simulation says."""
    from cpu_matmul import COMM, rounds, together

    rows = []
    with pblas.Context(transport=transport, threads=1, link=link) as ctx:
        for n in sizes:
            works: dict[tuple[str, bool], Callable[[], float]] = {}
            plans: dict[tuple[str, bool], Plan] = {}
            names = ("AG", "RS", "AR", "2D, large blocks", "2D, small blocks", "A row-wise, B and D 2D")
            for name in names if COMM.size > 2 else names[:3]:
                descs = layouts(name, n, COMM.size)
                a, b, d = ctx.random(descs[0], seed=1), ctx.random(descs[1], seed=2), ctx.empty(descs[2])
                for overlap in (True, False):
                    chunks = None if transport == "window" else 4 if name in {"AG", "RS", "AR"} else 16
                    mm = pblas.plan_matmul(a, b, out=descs[2], overlap=overlap, chunks=chunks)
                    plans[name, overlap] = mm.plan
                    works[name, overlap] = lambda mm=mm, a=a, b=b, d=d: together(lambda: mm.execute(a, b, out=d))
            for key, times in rounds(works, repeats).items():  # type: ignore[arg-type]
                found, best = plans[key].simulate(machine), min(times)
                row = {"case": key[0], "plan": plans[key].name, "ranks": COMM.size, "n": n, "overlap": key[1]}
                row |= {"transport": transport, "latency": link[0] if link else 0, "bandwidth": link[1] if link else 0}
                row |= {"best_s": best, "median_s": statistics.median(times), "simulated_s": found.seconds}
                rows.append(row | {"compute_s": found.compute_seconds, "ratio": found.seconds / best})
                if COMM.rank == 0:
                    where = f"{COMM.size} ranks, {transport}, {link}, n = {n}"
                    print(f"{where}: {key} {plans[key].name} {best:.4f} s, simulated {found.seconds:.4f} s", flush=True)
    return rows


def measure(repeats: int) -> list[dict[str, Any]]:
    """Real products on two ranks, on the laptop of the presets: in memory, by messages, over emulated links."""
    sizes, found = (768, 1536, 2560), []
    found += compare("window", None, LAPTOP, sizes, repeats)
    found += compare("message", None, replace(LAPTOP, shared=False), sizes, repeats)
    for link in ((1e-4, 3e8), (1e-4, 1e9)):
        far = Link(*link, overhead=LAPTOP.near.overhead, core=LAPTOP.near.core)
        machine = replace(LAPTOP, shared=False, ranks_per_node=1, far=far)
        found += compare("message", link, machine, sizes, repeats)
    return found


def emulate(repeats: int, n: int = 512, seconds: float = 0.4) -> list[dict[str, Any]]:
    """Links and GEMMs that only take time, of which any number of ranks have their own on any number of cores.

    All else is what an execution does: its steps, its messages, its waits.
    """
    from cpu_matmul import COMM

    from pblas.backends.gemm import gemm

    rate = 2 * n**3 / COMM.size / seconds

    def pause(*operands: Any, **_: Any) -> None:
        _, x, y, _, z = operands
        z[...] = 0
        time.sleep(2 * x.shape[0] * x.shape[1] * y.shape[1] / rate)

    users: list[Any] = [module for module in sys.modules.values() if getattr(module, "gemm", None) is gemm]
    for module in users:
        module.gemm = pause
    nbytes, found = 8 * n * n * (COMM.size - 1) / COMM.size, []
    for share in (0.25, 1.0, 4.0):
        link = (2e-4, nbytes / seconds / share)
        machine = Hardware("emulated", 1, Link(*link), Link(*link), rate, rate, rate, 30e9, 1 << 33)
        found += compare("message", link, machine, (n,), repeats)
    for module in users:
        module.gemm = gemm
    return found


def main() -> None:
    """Measure, or simulate and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="real products, on 2 ranks")
    parser.add_argument("--emulate", action="store_true", help="products of pauses, on any number of ranks")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--json", type=Path, default=PERFORMANCE / "scaling.json", help="what is measured and simulated"
    )
    parser.add_argument("--charts", type=Path, default=PERFORMANCE, help="directory of the charts")
    options = parser.parse_args()
    file = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
    if options.measure or options.emulate:
        from cpu_matmul import COMM, processor

        file |= {"date": dt.datetime.now(dt.UTC).date().isoformat(), "device": processor()}
        if options.measure:
            file["measured"] = measure(options.repeats)
        if options.emulate:
            others = [row for row in file.get("emulated", []) if row["ranks"] != COMM.size]
            file["emulated"] = others + emulate(options.repeats)
        if COMM.rank:
            return
    else:
        write_charts(file, options.charts)
    options.json.write_text(json.dumps(file, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
