"""What does a panel of a factorization cost on a GPU?

python -m benchmarks.gpu.panels --json FILE        measures panels on one GPU
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import results_file

WIDTHS = {"cholesky": 1024, "lu": 512, "qr": 256}
"""Columns of a panel."""
ROWS = (1024, 4096, 16384, 65536, 131072)


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


def main() -> None:
    """Measure panels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
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
