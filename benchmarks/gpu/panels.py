"""What does a panel of a factorization cost on a GPU, and what would 1 to 8 GPUs take for whole factorizations?

python -m benchmarks.gpu.panels --json FILE        measures panels on one GPU
python -m benchmarks.gpu.panels --estimate FILE    prints a table of estimates from the measured panels

Estimates, no measurements: a step takes the longer one of two chains. The first is the update of the columns of one
GPU, at the measured rate of such updates. The second is what the next panel takes: its update, its factorization, and
its way to the other GPUs, one after the other over the links of its owner. The sum is multiplied with what one GPU
was measured to take over this estimate. Redistributions are not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results_file

WIDTHS = {"cholesky": 1024, "lu": 512, "qr": 256}
"""Columns of a panel."""
ROWS = (1024, 4096, 16384, 65536, 131072)
SIZES = (8192, 16384, 32768, 65536, 131072)
GPUS = (1, 2, 4, 8)
LINK = 380e9
"""Bytes per second between two GPUs, as measured on 4 H200."""
MEASURED = {"cholesky": 1.2, "lu": 1.5, "qr": 1.3}
"""Measured times over estimates on one H200, n = 16384 and 32768: a panel and an update slow each other down."""
MEMORY = 120e9
"""Bytes of a matrix on a GPU at most; a larger one has no estimate."""
STEP = 20e-6
"""Time of a step's launches and signals."""


def measured() -> Iterator[dict[str, Any]]:
    """Seconds of each kind of panel, for some numbers of rows; and the rate of an update."""
    import cupy

    from pblas.backends.cuda.arrays import DeviceArrays

    arrays = DeviceArrays()
    arrays.begin()
    integers: Any = cupy.zeros(1025, cupy.int64)

    def cholesky(x: Any, width: int) -> None:
        arrays.cholesky(x[:width], integers[:1])
        arrays.solve_factored(x[:width], x[width:].T, conj=True)

    def lu(x: Any, width: int) -> None:
        arrays.lu(x, integers[1 : width + 1], integers[:1])
        arrays.swap_rows(x, integers[1 : width + 1])

    def qr(x: Any, width: int) -> None:
        arrays.qr(x, cupy.ndarray((width, width), x.dtype, triangle.data, order="F"))

    triangle: Any = cupy.empty((1024, 1024))
    kinds: dict[str, Callable[[Any, int], None]] = {"cholesky": cholesky, "lu": lu, "qr": qr}
    for kind, factor in kinds.items():
        width = WIDTHS[kind]
        for m in ROWS:
            a = cupy.asfortranarray(cupy.random.RandomState(m).standard_normal((m, width)))
            if kind == "cholesky":
                a[:width] = cupy.eye(width) * 4 * width
            x = a.copy(order="F")
            seconds = _best(partial(factor, x, width), partial(x.__setitem__, ..., a))
            yield {"kind": kind, "m": m, "width": width, "s": seconds}
    n, width = 16384, 512
    z, left = (cupy.zeros((n, k), order="F") for k in (n, width))
    seconds = _best(lambda: arrays.gemm(-1, left, left.T, 1, z), lambda: None)
    yield {"kind": "update", "flops": 2 * n * n * width, "s": seconds}


def _best(run: Callable[[], None], prepare: Callable[[], Any]) -> float:
    """The shortest of four times."""
    import cupy

    times = []
    for _ in range(4):
        prepare()
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        run()
        cupy.cuda.runtime.deviceSynchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def estimated(kind: str, n: int, gpus: int, rows: list[dict[str, Any]]) -> float:
    """Seconds of a factorization of an n x n matrix."""
    panels = [row for row in rows if row["kind"] == kind]
    heights, seconds = ([row[name] for row in panels] for name in ("m", "s"))
    update = next(row for row in rows if row["kind"] == "update")
    rate, width = update["flops"] / update["s"], WIDTHS[kind]
    passes = {"cholesky": 1, "lu": 2, "qr": 4}[kind]  # flops per element of the rest, over the width
    total = float(np.interp(n, heights, seconds))
    for start in range(0, n - width, width):
        m = n - start - width
        whole = passes * float(m) * m * width / rate
        nbytes = 8 * m * width * (gpus - 1)
        ahead = whole * width / m + float(np.interp(m, heights, seconds)) + nbytes / LINK
        if gpus > 1 or m > width:
            total += max(whole / gpus, ahead) + STEP
    return MEASURED[kind] * total


def main() -> None:
    """Measure panels, or print estimates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--estimate", type=Path)
    options = parser.parse_args()
    if options.estimate:
        rows = json.loads(options.estimate.read_text())["rows"]
        print("| n | " + " | ".join(f"{kind}, {gpus}" for kind in WIDTHS for gpus in GPUS) + " |")
        print("|---" * (1 + len(WIDTHS) * len(GPUS)) + "|")
        for n in SIZES:
            times = (
                estimated(kind, n, gpus, rows) if 8 * n * n < MEMORY * gpus else 0 for kind in WIDTHS for gpus in GPUS
            )
            print(f"| {n} | " + " | ".join(f"{1e3 * s:,.0f}" if s else "" for s in times) + " |")
        return
    import cupy

    from benchmarks.gpu.rows import about

    rows = []
    for row in measured():
        rows.append(row)
        print(row, flush=True)
    if options.json:
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        results_file.write(options.json, about(name, 1) | {"rows": rows})


if __name__ == "__main__":
    main()
