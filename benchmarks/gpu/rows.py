"""Rows of the GPU benchmark, without a GPU: shapes, bounds, rotation, statistics, and merging runs into one file.

A row is one product; a column is one way to compute it. E is the time of cuBLAS alone over the time of pblas.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import statistics
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import results_file

Op = Literal["ag_gemm", "gemm_rs", "gemm_ar"]
OPS: tuple[Op, ...] = ("ag_gemm", "gemm_rs", "gemm_ar")
MODELS = {"8B": (4096, 14336), "70B": (8192, 28672), "405B": (16384, 53248)}
"""Llama 3: hidden and feed-forward size."""
TOKENS = (16, 64, 128, 512, 2048, 4096, 8192, 16384)
ITEMSIZE = 2
SET_NBYTES = 240_000_000
"""Bytes over which operands rotate: four times the L2 cache of an H200, so that no operand is cached."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "ag_gemm": (
        "cublas",
        "cublas+nccl",
        "cublas+nccl graph",
        "torch",
        "triton",
        "cublasmp",
        "pblas",
        "pblas symmetric",
    ),
    "gemm_rs": ("cublas", "cublas+nccl", "cublas+nccl graph", "torch", "cublasmp", "pblas", "pblas symmetric"),
    "gemm_ar": (
        "cublas",
        "cublas+nccl",
        "cublas+nccl graph",
        "cublas+two-shot",
        "torch",
        "cublasmp",
        "pblas",
        "pblas symmetric",
    ),
}
"""Columns of a complete row, under "us" in the file. An absent column is under "missing", with the reason."""

ALONE = ("cublas", "torch.mm", "cublasLt", "cublasmp anchor")
"""Columns that multiply without moving data."""
OURS = ("pblas", "pblas symmetric")

GOALS: dict[Op, dict[str, tuple[float, ...]]] = {
    "ag_gemm": {"8B": (0.58, 0.70, 0.78, 0.80), "70B": (0.68, 0.93, 0.95, 0.96), "405B": (0.82, 0.94, 0.95, 0.95)},
    "gemm_rs": {"8B": (0.50, 0.65, 0.75, 0.80), "70B": (0.62, 0.91, 0.93, 0.94), "405B": (0.80, 0.95, 0.96, 0.96)},
    "gemm_ar": {"8B": (0.39, 0.38, 0.41, 0.43), "70B": (0.47, 0.72, 0.80, 0.82), "405B": (0.62, 0.86, 0.88, 0.89)},
}
"""Goals for E on 8 H200 at M = 512, 4096, 8192, 16384."""
GOAL_TOKENS = (512, 4096, 8192, 16384)

NOT_RUN = {
    "cublasmp": "benchmarks/gpu/cublasmp.py, which measures it in a separate process, was not run for this row",
}

HBM = 4.3e12
"""Bytes per second, read and written, of a copy on one H200."""
FLOPS = 720e12
"""FLOP/s of cuBLAS in bfloat16 at M >= 4096 with all 8 H200 busy (measured: 645e12 to 762e12)."""
TRANSFERS = (
    (0.0, 3.5e-6),  # an all-to-all flag barrier in a graph
    (7 / 8 * 8 * 2**20, 30.0e-6),  # SM push, 112 blocks
    (7 / 8 * 32 * 2**20, 93.6e-6),  # SM push, 112 blocks
    (7 / 8 * 128 * 2**20, 352.7e-6),  # copy engine, one stream
    (7 / 8 * 256 * 2**20, 654.4e-6),  # copy engine, one stream
)
"""(bytes that each rank receives, seconds) of the fastest all-gathers on 8 H200, in a CUDA graph, without multicast."""


@dataclass(frozen=True, slots=True)
class Row:
    """One product: an op, a model's layer, and M rows of activations, on some GPUs.

    Args:
        op: "ag_gemm", "gemm_rs" or "gemm_ar".
        model: key of MODELS.
        m: rows of the activations (global).
        tp: tensor-parallel size, which determines N and K of a rank (global).
        gpus: number of ranks (global).

    >>> row = Row("gemm_rs", "70B", 4096, 8, 4)
    >>> row.n, row.k, row.sets, row.moved_nbytes
    (8192, 3584, 3, 50331648)
    """

    op: Op
    model: str
    m: int
    tp: int
    gpus: int

    @property
    def n(self) -> int:
        """Columns of one rank's GEMM: F/tp of the up-projection, the hidden size of the down-projection."""
        hidden, inner = MODELS[self.model]
        return inner // self.tp if self.op == "ag_gemm" else hidden

    @property
    def k(self) -> int:
        """Inner length of one rank's GEMM."""
        hidden, inner = MODELS[self.model]
        return hidden if self.op == "ag_gemm" else inner // self.tp

    @property
    def key(self) -> tuple[str, str, int, int]:
        """The fields that identify a row in the file."""
        return self.op, self.model, self.m, self.gpus

    @property
    def title(self) -> str:
        """The row as text."""
        return f"{self.op} {self.model} M={self.m} N={self.n} K={self.k}"

    @property
    def a_shape(self) -> tuple[int, int]:
        """Rows and columns of a rank's shard of A (local)."""
        return (self.m // self.gpus if self.op == "ag_gemm" else self.m), self.k

    @property
    def d_shape(self) -> tuple[int, int]:
        """Rows and columns of a rank's shard of D (local)."""
        return (self.m // self.gpus if self.op == "gemm_rs" else self.m), self.n

    @property
    def goal(self) -> float | None:
        """The goal for E; None for rows without a goal."""
        if (self.tp, self.gpus) != (8, 8) or self.m not in GOAL_TOKENS:
            return None
        return GOALS[self.op][self.model][GOAL_TOKENS.index(self.m)]

    @property
    def sets(self) -> int:
        """Number of sets of operands with SET_NBYTES bytes together, at least 2."""
        (am, ak), (dm, dn) = self.a_shape, self.d_shape
        return max(2, math.ceil(SET_NBYTES / (ITEMSIZE * (am * ak + self.k * self.n + dm * dn))))

    @property
    def flops(self) -> float:
        """Floating-point operations of one rank."""
        return 2.0 * self.m * self.n * self.k

    @property
    def moved_nbytes(self) -> int:
        """Bytes that each rank has to receive; an all-reduce counts as a reduce-scatter and an all-gather."""
        whole = ITEMSIZE * self.m * (self.k if self.op == "ag_gemm" else self.n)
        return (2 if self.op == "gemm_ar" else 1) * whole * (self.gpus - 1) // self.gpus

    def unfit(self) -> str | None:
        """The reason why the row cannot be cut into equal parts, which other libraries need; None if it can."""
        _, inner = MODELS[self.model]
        if inner % (2 * self.tp):
            return f"{inner} columns of the layer do not divide by TP = {self.tp} into even numbers"
        if self.op != "gemm_ar" and self.m % self.gpus:
            return f"M = {self.m} does not divide by {self.gpus} GPUs"
        return None


def rows(ops: Iterable[Op], models: Iterable[str], tokens: Sequence[int], tp: int, gpus: int) -> list[Row]:
    """The rows of a run, in the order of the run; without `tokens`, GEMM+AR starts at M = 1."""
    default = {op: (1, *TOKENS) if op == "gemm_ar" else TOKENS for op in OPS}
    return [Row(op, model, m, tp, gpus) for op in ops for model in models for m in tokens or default[op]]


def descriptors(row: Row) -> tuple[Any, Any, Any]:
    """Distributions of A, B and D for which pblas plans the row's op, with local arrays of the row's shapes."""
    from pblas import MatrixDescriptor

    p, m, n, k = row.gpus, row.m, row.n, row.k
    rows, columns = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    if row.op == "ag_gemm":
        return rows(m, k, p, order="C"), columns(k, n * p, p, order="F"), columns(m, n * p, p, order="C")
    d = rows(m, n, p, order="C") if row.op == "gemm_rs" else MatrixDescriptor.replicated(m, n, p, order="C")
    return columns(m, k * p, p, order="C"), rows(k * p, n, p, order="F"), d


def heap_nbytes(measured: Sequence[Row]) -> int:
    """Bytes of symmetric memory for the largest row: A and D of all sets, and double-buffered workspace.

    >>> heap_nbytes([Row("gemm_ar", "405B", 16384, 8, 8)]) >> 30
    5
    """
    most = 0
    for row in measured:
        (am, ak), (dm, dn) = row.a_shape, row.d_shape
        elements = row.m * (row.k if row.op == "ag_gemm" else row.n)
        most = max(most, ITEMSIZE * (row.sets * (am * ak + dm * dn) + 4 * elements))
    return (most // 2**30 + 2) * 2**30


def gemm_seconds(row: Row) -> float:
    """Estimated seconds of one rank's GEMM: of its operations, or of its bytes if they take longer; for --dry-run."""
    nbytes = ITEMSIZE * (row.m * row.k + row.k * row.n + row.m * row.n)
    return max(row.flops / FLOPS, nbytes / HBM) + 2e-6


def transfer_seconds(nbytes: float) -> float:
    """Seconds in which each of 8 ranks receives `nbytes` bytes, interpolated and extrapolated from TRANSFERS.

    >>> round(transfer_seconds(7 / 8 * 32 * 2**20) * 1e6, 1)
    93.6
    """
    points = list(itertools.pairwise(TRANSFERS))
    (x0, y0), (x1, y1) = next((pair for pair in points if nbytes <= pair[1][0]), points[-1])
    return y0 + (y1 - y0) * (nbytes - x0) / (x1 - x0)


def bound_seconds(row: Row, gemm: float) -> float:
    """The least seconds that the measured bandwidths allow, given the GEMM alone.

    Let t_g be the time of the GEMM and t_c the time of the transfer. AG and RS take max(t_g, t_c + t_g/P): the last
    part is multiplied after it arrives (AG), and the first part is multiplied before it is sent (RS). AR takes
    max(t_g, t_c) + min(t_g, t_c)/P, with both of its phases in t_c and the product in P pieces. The bound leaves out
    flags and barriers (5 to 10 us), GEMMs of parts that do not fill the GPU, and reductions in a separate pass.

    Args:
        row: the sizes of the product.
        gemm: seconds of cuBLAS alone, measured in the same run.
    """
    p = row.gpus
    if p == 1:
        return gemm
    if row.op == "gemm_ar":
        both = 2 * transfer_seconds(row.moved_nbytes / 2)
        return max(gemm, both) + min(gemm, both) / p
    return max(gemm, transfer_seconds(row.moved_nbytes) + gemm / p)


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The columns in the order of round `turn`: each round starts with the next column.

    >>> rotated(["a", "b", "c"], 4)
    ['b', 'c', 'a']
    """
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def seed_of(*parts: Any) -> int:
    """A seed of 31 bits that depends on all parts and is the same in every process.

    >>> seed_of("A", 3, 1) != seed_of("A", 3, 2)
    True
    """
    return zlib.crc32(repr(parts).encode()) >> 1


def rounds_within(seconds: float, budget: float, gemm: float, wanted: int = 0) -> int:
    """Number of rounds of a row: `wanted`, or 40 (15 if the GEMM takes more than 2 ms), limited by the budget.

    Args:
        seconds: measured seconds of one round.
        budget: seconds for all rounds of the row.
        gemm: seconds of cuBLAS alone.
        wanted: number of rounds from the options; 0 for the default.

    Returns:
        The number of rounds, at least 3.
    """
    rule = wanted or (15 if gemm > 2e-3 else 40)
    return max(3, min(rule, int(budget / max(seconds, 1e-9))))


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles.

    >>> quartiles([1.0, 2.0, 3.0, 4.0, 5.0])
    {'median': 3.0, 'q1': 2.0, 'q3': 4.0}
    """
    if len(values) == 1:
        return dict.fromkeys(("median", "q1", "q3"), values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def efficiency(alone: Sequence[float], whole: Sequence[float]) -> dict[str, float]:
    """E: median and quartiles over the rounds of the ratio alone / whole.

    >>> efficiency([100.0, 110.0, 300.0], [200.0, 220.0, 400.0])["median"]
    0.5
    """
    return quartiles([a / w for a, w in zip(alone, whole, strict=True)])


def report(row: Row, times: dict[str, list[float]], missing: dict[str, str], **extra: Any) -> dict[str, Any]:
    """A row of the file.

    Args:
        row: the sizes of the product.
        times: seconds for each column and round, maxima over ranks; "cublas" is the faster of "torch.mm" and
            "cublasLt".
        missing: reasons for missing columns, by column.
        extra: further fields of the row.
    """
    alone = [name for name in ("torch.mm", "cublasLt") if name in times]
    times = dict(times)
    result: dict[str, Any] = {"op": row.op, "model": row.model, "m": row.m, "n": row.n, "k": row.k}
    result |= {"tp": row.tp, "gpus": row.gpus}
    if alone:
        result["cublas_is"] = min(alone, key=lambda name: statistics.median(times[name]))
        times["cublas"] = times[result["cublas_is"]]
    spread = {name: {key: 1e6 * value for key, value in quartiles(values).items()} for name, values in times.items()}
    result["us"] = {name: round(values["median"], 3) for name, values in spread.items()}
    result["us_quartiles"] = {name: [round(v["q1"], 3), round(v["q3"], 3)] for name, v in spread.items()}
    if alone:
        for key, name in (("e", "pblas"), ("e_symmetric", "pblas symmetric")):
            if name in times:
                result[key] = {k: round(v, 4) for k, v in efficiency(times["cublas"], times[name]).items()}
        median = statistics.median(times["cublas"])
        result["bound_us"] = round(1e6 * bound_seconds(row, median), 3)
    result["tflops"] = {name: round(row.flops / us / 1e6, 1) for name, us in result["us"].items()}
    moving = {name: us for name, us in result["us"].items() if name not in ALONE}
    result["gb_per_s"] = {name: round(row.moved_nbytes / us / 1e3, 1) for name, us in moving.items()}
    if row.goal is not None:
        result["goal"] = row.goal
    return result | {"missing": missing} | extra


def best_other(row: dict[str, Any]) -> tuple[str, float] | None:
    """Name and microseconds of the fastest column that is neither pblas nor a GEMM alone; None without one."""
    others = {name: us for name, us in row["us"].items() if name not in (*OURS, *ALONE)}
    return min(others.items(), key=lambda item: item[1]) if others else None


def merged_row(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge two measurements of a row: columns of `new`, measured or missing, replace those of `old`."""
    replaced = set(new.get("us", {})) | set(new.get("missing", {}))
    merged = old | new
    for key, value in new.items():
        if isinstance(value, dict) and key not in {"e", "e_symmetric"}:
            kept = {name: entry for name, entry in old.get(key, {}).items() if name not in replaced}
            merged[key] = kept | value
    names = COLUMNS[merged["op"]]
    reasons = {name: why for name, why in merged.get("missing", {}).items() if name not in merged.get("us", {})}
    reasons |= {
        name: NOT_RUN.get(name, "not measured")
        for name in names
        if name not in merged.get("us", {}) and name not in reasons
    }
    return merged | {"missing": reasons}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge the rows of a new run into a file; rows are identified by op, model, m and gpus."""

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return OPS.index(row["op"]), list(MODELS).index(row["model"]), row["gpus"], row["m"]

    rows = {key(row): row for row in old.get("rows", [])}
    for row in new["rows"]:
        rows[key(row)] = merged_row(rows.get(key(row), {}), row)
    ordered = [rows[k] for k in sorted(rows)]
    return old | new | {"gpus": max((row["gpus"] for row in ordered), default=new.get("gpus", 0)), "rows": ordered}


def write_merged(path: Path, part: dict[str, Any]) -> dict[str, Any]:
    """Merge rows into a file; an interrupted run leaves the previous complete file."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    whole = merged(old, part)
    results_file.write(path, whole)
    return whole


def about(device: str, gpus: int) -> dict[str, Any]:
    """The header of a file."""
    date = dt.datetime.now(dt.UTC).date().isoformat()
    return {"date": date, "device": device, "gpus": gpus, "commit": results_file.commit()}
