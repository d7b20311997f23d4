"""The tables of the pages on performance: which command measures each, and what its file compares with what."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, NamedTuple

from benchmarks.results_file import RESULTS

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "median_us": 1e-6}
FAMILIES = (
    *("products", "collectives", "redistributions", "arrays", "small calls", "levels 1 and 2", "level 3"),
    *("factorizations", "solves", "eigenvalues", "singular values", "layers"),
)
"""Rows of the pictures."""
OPS = {"ag_gemm": "AG", "gemm_rs": "RS", "gemm_ar": "AR"}


class Comparison(NamedTuple):
    """A row of a table: median seconds of pblas, of its peers, and of columns that are no peers."""

    label: str
    ours: float
    peers: dict[str, float]
    beside: dict[str, float]
    goal: float | None = None

    @property
    def best(self) -> tuple[str, float] | None:
        """The fastest peer and its seconds."""
        return min(self.peers.items(), key=lambda item: item[1], default=None)

    @property
    def is_lost(self) -> bool:
        """Whether a peer is faster, to two digits after the point."""
        return self.ratio is not None and round(self.ratio, 2) < 1

    @property
    def ratio(self) -> float | None:
        """Seconds of the fastest peer over those of pblas, which is faster if they are above 1."""
        return self.best[1] / self.ours if self.best else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A benchmark, and what its file compares.

    Args:
        name: what is measured.
        stem: name of the file of results, before the number of GPUs.
        command: module, or script, and its arguments but for the file.
        family: one of FAMILIES; "" if no peer was measured.
        label: text of a row, from its fields.
        compared: a column of pblas, what it adds to the label, and patterns of the columns that are its peers.
        beside: patterns of the columns that are shown and are no peers.
        ranks: processes; 0: one for each GPU.
        seconds: deadline of the command.
        unit: of the times on the page: s, ms or us.
        alone: name of the table whose times of one GPU are shown beside.
        routines: those of the file that belong to the table; () for all.
    """

    name: str
    stem: str
    command: str
    family: str = ""
    label: str = "{n}, {dtype}"
    compared: tuple[tuple[str, ...], ...] = (("pblas", "", "*"),)
    beside: tuple[str, ...] = ()
    ranks: int = 0
    seconds: float = 60.0
    unit: str = "ms"
    alone: str = ""
    routines: tuple[str, ...] = ()

    def file(self, gpus: int) -> str:
        """Name of the file of results."""
        return f"{self.stem}.json" if self.ranks or gpus < 2 else f"{self.stem}_{gpus}_gpus.json"

    def rows(self, gpus: int = 1, results: dict[str, Any] | None = None) -> list[Comparison]:
        """The rows of the file of a number of GPUs, or of other results."""
        results = results_of(self.file(gpus)) if results is None else results
        one = {row.label: row.ours for row in TABLES["GPU", self.alone].rows()} if self.alone else {}
        rows = results.get("rows", results.get("goals", []))
        kept = [row for row in rows if not self.routines or row["routine"] in self.routines]
        return [found for row in kept for found in self._of(row, one)]

    def _of(self, row: dict[str, Any], one: dict[str, float]) -> Iterator[Comparison]:
        times, label = times_of(row), self.label.format_map(row | words(row))
        for column, text, *peers in self.compared:
            ours = column.format_map(row)
            if ours not in times:
                continue
            shown = {x: y for x, y in times.items() if any(fnmatch(x, pattern) for pattern in self.beside)}
            rivals = {x: y for x, y in times.items() if any(fnmatch(x, pattern) for pattern in peers)}
            rivals = {x: y for x, y in rivals.items() if x != ours and x not in shown}
            if label + text in one:
                shown = {"one GPU": one[label + text], **shown}
            yield Comparison(label + text, times[ours], rivals, shown, row.get("goal"))


def results_of(file: str) -> dict[str, Any]:
    """A file of results, of several runs the last one; {} if there is none."""
    path = RESULTS / file
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results[-1] if isinstance(results, list) else results


def words(row: dict[str, Any]) -> dict[str, str]:
    """Fields of a row as a reader writes them."""
    result = {}
    if "nbytes" in row:
        k = row["nbytes"] >> 10
        result = {"bytes": f"{k >> 10} MiB" if k >= 1024 else f"{k} KiB"}
        result["with"] = f", {row['epilogue'].partition('(')[0]}" if row["epilogue"] else ""
    if "grid" in row:
        result["grid"] = " x ".join(map(str, row["grid"]))
    if row.get("op") in OPS:
        result["op"] = OPS[row["op"]]
    return result


def times_of(row: dict[str, Any]) -> dict[str, float]:
    """Median seconds of the columns of a row of any file.

    >>> times_of({"n": 8, "ms": {"pblas": 2.0}}), times_of({"columns": {"NumPy": {"best_s": 1.0, "median_s": 1.5}}})
    ({'pblas': 0.002}, {'NumPy': 1.5})
    """
    for field, unit in UNITS.items():
        if isinstance(row.get(field), dict):
            return {name: unit * x for name, x in row[field].items()}
    if "columns" in row:
        return {
            name: x.get("median_s", x["best_s"]) if isinstance(x, dict) else x for name, x in row["columns"].items()
        }
    if isinstance(row.get("seconds"), dict):
        return {name: statistics.median(x) for name, x in row["seconds"].items()}
    if "plain" in row:
        return {"pblas": row["seconds"], "NCCL": row["plain"]}
    return {name: 1e-6 * row[name] for name in ("pblas", "peer") if name in row}


PRODUCTS: dict[str, Any] = {
    "stem": "gpu_overlap",
    "label": "{op} {model}, M = {m}",
    "compared": (("pblas", "", "cublas+*", "torch", "triton", "cublasmp"),),
    "beside": ("cublas",),
    "unit": "us",
}
ARRAYS: dict[str, Any] = {"label": "{call}", "compared": (("pblas", "", "peer"),), "unit": "us"}
FILES: dict[str, Any] = {
    "stem": "gpu_files",
    "command": "benchmarks.gpu.files .",
    "label": "order {order}",
    "compared": (("A.save", ", save", "np.save, fsync"), ("ctx.load", ", load", "np.load, to the GPU")),
    "beside": ("np.save", "np.load"),
}
EIGENVALUES = "benchmarks.gpu.eigenvalues --dtypes float64 --sizes "
CALLS = "benchmarks.gpu.arrays --dtypes float64 --sizes "
OVERLAP = "benchmarks.gpu.overlap --models "

FACTOR: dict[str, Any] = {
    "label": "{routine}, {n}, {dtype}",
    "compared": (("pblas", "", "SciPy", "stock", "tuned", "MKL*", "heat*"),),
    "beside": ("copied", "rows", "GEMM"),
    "ranks": 2,
}
FACTORIZATIONS, SOLVES = ("cholesky", "lu", "qr"), ("solve1", "solve512", "inv")
LEVEL_3: dict[str, Any] = {
    "family": "level 3",
    "label": "{routine}, {grid}, {n}",
    "compared": (("pblas", "", "SciPy", "stock", "tuned", "MKL"),),
    "beside": ("GEMM",),
    "ranks": 2,
}
SCALAPACK: dict[str, Any] = {
    "stem": "scalapack",
    "command": "benchmarks.cpu.scalapack",
    "label": "{grid}, n = {n}, nb = {nb}",
    "compared": (("pblas", "", "stock", "tuned", "MKL"),),
    "beside": ("GEMM",),
    "ranks": 2,
}
MEMORY: dict[str, Any] = {"compared": (("pblas", "", "numpy"),), "beside": ("parts",), "ranks": 2}
FACTOR_RUN = "benchmarks.cpu.factor --kinds cholesky,lu,qr,solve1,solve512,inv --rounds 7 --blocks 64,128 --sizes "

CPU = (
    Table(
        name="eigenvalues",
        family="eigenvalues",
        stem="eigenvalues_2_ranks",
        command="benchmarks.cpu.eigenvalues --sizes 1024,2048",
        compared=(
            ("all", ", eigh", "evd", "pdsyevd"),
            ("values", ", eigvalsh", "evd values", "pdsye* values"),
            ("tenth", ", lowest tenth", "evr tenth", "pdsye* tenth"),
            ("generalized", ", generalized", "gvd"),
        ),
        ranks=2,
        seconds=80,
    ),
    Table(
        name="products",
        family="products",
        stem="cpu_products",
        command="benchmarks.cpu.matmul --sections goals --repeats 7",
        label="{plan}, {m} x {n} x {k}, {transport}",
        compared=(("{plan} {transport}", "", "numpy"),),
        ranks=2,
        seconds=300,
    ),
    Table(
        name="factorizations",
        family="factorizations",
        stem="factor_2_ranks",
        command=FACTOR_RUN + "1024,2048",
        routines=FACTORIZATIONS,
        seconds=400,
        **FACTOR,
    ),
    Table(
        name="solves",
        family="solves",
        stem="factor_2_ranks",
        command=FACTOR_RUN + "1024,2048",
        routines=SOLVES,
        **FACTOR,
    ),
    Table(
        name="all-reduces",
        family="collectives",
        stem="cpu_allreduce_2_ranks",
        command="benchmarks.cpu.allreduce",
        label="{KiB} KiB",
        compared=(("auto", "", "MPI"),),
        beside=("shared", "fused", "apart"),
        ranks=2,
        unit="us",
    ),
    Table(
        name="redistributions",
        family="redistributions",
        stem="redistribute_2_ranks",
        command="benchmarks.cpu.redistribute",
        label="{case}, {n}",
        compared=(("call", "", "Alltoallv"),),
        ranks=2,
    ),
    Table(
        name="elementwise",
        family="arrays",
        stem="elementwise_2_ranks",
        command="benchmarks.cpu.elementwise --sizes 4096",
        label="",
        compared=(
            ("equal", "x + y", "numpy"),
            ("equal, fma", "x * s + y", "fma, numpy"),
            ("moved", "A + B, redistributed", "numpy"),
        ),
        beside=("parts",),
        ranks=2,
    ),
    Table(
        name="norms",
        family="arrays",
        stem="norms_2_ranks",
        command="benchmarks.cpu.norms --sizes 4096 --cases 'norm, fro'",
        label="{case}, {n}",
        **MEMORY,
    ),
    Table(
        name="levels 1 and 2",
        family="levels 1 and 2",
        stem="level2_2_ranks",
        command="benchmarks.cpu.level2 --sizes 4096 --repeats 9",
        label="{case}, {n}",
        **MEMORY,
    ),
    Table(
        name="small calls",
        family="small calls",
        stem="small_calls",
        command="benchmarks.cpu.small_calls --jobs 2 --repeats 8",
        label="{call}",
        compared=(("pblas", "", "peer"),),
        ranks=1,
        unit="us",
    ),
    Table(
        name="singular values",
        family="singular values",
        stem="singular_values_2_ranks",
        command="benchmarks.cpu.singular_values --rounds 3",
        label="{case}",
        compared=(
            ("svd", "", "gesdd", "pdgesvd", "heat*", "dask*"),
            ("svdvals", ", values alone", "values"),
            ("rsvd", "", "scikit-learn", "heat*", "dask*"),
            ("polar newton", ", Newton", "SciPy"),
            ("polar svd", ", by singular values", "SciPy"),
            ("polar qdwh", ", QDWH", "SciPy"),
            ("float32", ", refined"),
        ),
        beside=("None",),
        ranks=2,
        seconds=100,
    ),
    Table(
        name="least squares",
        family="solves",
        stem="lstsq_2_ranks",
        command="benchmarks.cpu.least_squares --rounds 3",
        label="{m} x {n}",
        ranks=2,
    ),
    Table(
        name="QR of tall matrices",
        family="factorizations",
        stem="qr_tall_2_ranks",
        command="benchmarks.cpu.factor --kinds qr --sizes '' --tall 1000000x64,200000x256 --rounds 2 --blocks 64",
        **{**FACTOR, "label": "{m} x {n}"},
    ),
    Table(
        name="level 3",
        stem="level3_2_ranks_epyc",
        command="benchmarks.cpu.level3 --blocks 128 --rounds 3",
        seconds=300,
        **LEVEL_3,
    ),
    Table(name="pdgemm", family="products", routines=("pdgemm",), seconds=600, **SCALAPACK),
    Table(name="pdtran", family="redistributions", routines=("pdtran",), **SCALAPACK),
    Table(name="pdgemr2d", family="redistributions", routines=("pdgemr2d",), **SCALAPACK),
    Table(
        name="factorizations on two hosts",
        stem="factor_2_hosts",
        command="benchmarks.cpu.factor_on_hosts --rate 1gbit --sizes 2048 --rounds 5 --blocks 64",
        seconds=200,
        **{**FACTOR, "ranks": 1},
    ),
)
GPU = (
    Table(name="products", family="products", command=OVERLAP + "8B 70B --m 512 4096 16384", seconds=150, **PRODUCTS),
    Table(
        name="all-reduces",
        family="collectives",
        stem="gpu_allreduce",
        command="benchmarks.gpu.allreduce",
        label="{bytes}{with}",
        compared=(("pblas", "", "nccl", "torch*"),),
        beside=("pblas symmetric",),
        unit="us",
    ),
    Table(
        name="level 3",
        family="level 3",
        stem="gpu_level3",
        command="benchmarks.gpu.level3",
        label="{routine}, {n}, {dtype}",
        ranks=1,
    ),
    Table(
        name="factorizations",
        family="factorizations",
        stem="gpu_factor",
        command="benchmarks.gpu.factor --sizes 8192 16384",
        label="{kind}, {n}",
        compared=(
            ("blocked 1024", "", "cuSOLVER"),
            ("blocked", "", "cuSOLVER"),
            ("auto, Q and R", ", 4000000 rows, with Q"),
        ),
        beside=("local", "blocked with Q", "local with Q", "two passes of products"),
        ranks=1,
    ),
    Table(
        name="eigenvalues",
        family="eigenvalues",
        stem="gpu_eigenvalues",
        command=EIGENVALUES + "4096 8192 --columns eigh eigvalsh cuSOLVER 'cuSOLVER values'",
        label="{n}",
        compared=(
            ("eigh", ", eigh", "cuSOLVER", "CuPy"),
            ("eigvalsh", ", eigvalsh", "cuSOLVER values", "CuPy values"),
        ),
        ranks=1,
    ),
    Table(
        name="singular values",
        family="singular values",
        stem="gpu_singular_values",
        command="benchmarks.gpu.singular_values --cases svd newton_schulz large_svd polar",
        label="{case}",
        compared=(
            ("svd", "", "gesvdp"),
            ("svdvals", ", values alone", "gesvdp"),
            ("pblas", "", "products"),
            ("polar", ", polar"),
        ),
        beside=("GEMM",),
        ranks=1,
    ),
    Table(
        name="one GPU",
        stem="gpu_scaling",
        command="benchmarks.gpu.scaling --rounds 3",
        label="{operation}, {n}",
        ranks=1,
    ),
    Table(
        name="scaling",
        stem="gpu_scaling",
        command="benchmarks.gpu.scaling --rounds 3",
        label="{operation}, {n}",
        alone="one GPU",
    ),
    Table(
        name="layers",
        family="layers",
        stem="torch_layers",
        command="benchmarks.torch_layers --what training decode muon host",
        label="{what}, {model}",
        compared=(
            ("pblas", "", "parallelize_module", "NCCL", "*-shot", "layer-sharded", "gather*", "every*"),
            ("pblas compiled", ", compiled", "async TP compiled"),
            ("pblas graphs", ", in graphs", "async TP graphs"),
        ),
        seconds=120,
    ),
    Table(name="arrays", family="arrays", stem="gpu_arrays", command=CALLS + "8192 --repeats 9", ranks=1, **ARRAYS),
    Table(
        name="small arrays",
        family="small calls",
        stem="gpu_arrays_small",
        command=CALLS + "8 --calls 100 --repeats 11",
        ranks=1,
        **ARRAYS,
    ),
    Table(name="arrays of one GPU", stem="gpu_arrays_large", command=CALLS + "16384 --repeats 5", ranks=1, **ARRAYS),
    Table(
        name="large arrays",
        stem="gpu_arrays_large",
        command=CALLS + "16384 --repeats 5",
        alone="arrays of one GPU",
        **ARRAYS,
    ),
    Table(
        name="eigenvalues of several GPUs",
        stem="gpu_eigenvalues",
        command=EIGENVALUES + "16384 --backend nvshmem --columns eigh 'one GPU'",
        label="{n}",
        compared=(("eigh", ""),),
        beside=("one GPU",),
    ),
    Table(
        name="products over grids",
        stem="gpu_summa",
        command="benchmarks.gpu.summa --backends nvshmem",
        label="{grid}, {n}, {dtype}",
        compared=(("nvshmem", "", "cublasmp"),),
        beside=("alone",),
    ),
    Table(
        name="reproducible products",
        stem="gpu_reproducible",
        command="benchmarks.gpu.reproducible",
        label="{op} {model}, M = {m}",
        compared=(("pblas", ""),),
        beside=("without",),
    ),
    Table(
        name="exact products",
        stem="gpu_exact",
        command="benchmarks.gpu.exact",
        compared=(("pblas", ""),),
        beside=("cuBLASLt",),
        ranks=1,
    ),
    Table(name="files of one GPU", ranks=1, **FILES),
    Table(name="files", **FILES),
    Table(
        name="first calls",
        stem="gpu_first_calls",
        command="benchmarks.gpu.first_calls",
        label="{call}",
        compared=(("caches empty", ""),),
        beside=("caches filled",),
        ranks=1,
        unit="s",
        seconds=120,
    ),
    Table(
        name="epilogues",
        stem="gpu_epilogues",
        command="benchmarks.gpu.epilogues",
        label="{op} {model}, M = {m}",
        compared=tuple((x, f", {x}", f"{x} apart") for x in ("relu(x + bias)", "gelu", "x + h")),
        beside=("product",),
        unit="us",
    ),
    Table(
        name="refined solutions",
        stem="gpu_solve",
        command="benchmarks.gpu.singular_values --cases solve",
        label="{case}",
        compared=(("float64", ""),),
        beside=("refine=*",),
        ranks=1,
    ),
    Table(
        name="Llama 3 8B",
        family="layers",
        stem="tp_llama",
        command="examples/tp_llama.py --size 8B --tokens 4096 --batch 1 16 64",
        label="{phase}, {tokens}, {ranks} GPUs",
        seconds=100,
    ),
    Table(
        name="eight emulated ranks",
        stem="gpu_emulated_8",
        command="benchmarks.gpu.emulated --gpus 8 --models 8B 70B --m 512 4096",
        label="{op} {model}, M = {m}",
        compared=(("pblas", ""),),
        beside=("cublas",),
        ranks=2,
        unit="us",
        seconds=100,
    ),
    Table(name="more products", command=OVERLAP + "8B 70B 405B --m 8192 2048", seconds=150, **PRODUCTS),
    Table(name="the largest products", command=OVERLAP + "405B --m 512 4096 16384", seconds=100, **PRODUCTS),
    Table(name="few tokens", command=OVERLAP + "8B 70B 405B --m 1 16 64 128", seconds=200, **PRODUCTS),
    Table(
        name="the Hopper kernel",
        stem="gpu_gemm",
        command="benchmarks.gpu.gemm",
        label="{row[model]} {row[op]}, M = {row[m]}",
        compared=(("hopper", "", "cublas"),),
        ranks=1,
        unit="us",
    ),
)

TABLES = {("GPU" if table in GPU else "CPU", table.name): table for table in (*CPU, *GPU)}
