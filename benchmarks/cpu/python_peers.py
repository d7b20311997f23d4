"""Times of linear algebra in heat and dask, for comparison with `benchmarks.cpu.factor` and `least_squares`.

    mpiexec -n 2 python -m mpi4py benchmarks/cpu/python_peers.py heat 1000000x64 200000x256 1024x1024
    python benchmarks/cpu/python_peers.py dask 1000000x64 200000x256 1024x1024 --threads 2
    python benchmarks/cpu/python_peers.py dask 20000x4000 --calls rsvd

In an environment with heat or dask; pblas is not needed. float64, matrices in rows, the best of some rounds. Tall
matrices: TSQR, for R alone (heat: mode="r") and for Q and R, and singular values and vectors; dask also least squares,
with two chunks of rows; "rsvd" is the randomized one of 50 values with 10 further vectors and 2 power iterations.
Square ones: heat's inverse, determinant and QR; dask's Cholesky, LU and solve, in square chunks of a quarter of the
rows. dask runs one BLAS thread in each of its threads.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import results_file

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np

VALUES = 50  # of rsvd


def heat_calls(m: int, n: int) -> tuple[dict[str, Callable[[], Any]], Callable[[], None], bool]:
    """Calls of heat, a barrier, and whether this rank prints."""
    import heat as ht
    from mpi4py import MPI

    ht.random.seed(0)
    a = ht.random.randn(m, n, dtype=ht.float64, split=0)
    calls = {"r": lambda: ht.linalg.qr(a, mode="r"), "qr": lambda: ht.linalg.qr(a)}
    calls |= {"svd": lambda: ht.linalg.svd(a), "rsvd": lambda: ht.linalg.rsvd(a, VALUES, 10, 2)}
    if m == n:
        calls |= {"inv": lambda: ht.linalg.inv(a), "det": lambda: ht.linalg.det(a)}
    return calls, MPI.COMM_WORLD.Barrier, MPI.COMM_WORLD.rank == 0


def dask_calls(m: int, n: int, threads: int) -> tuple[dict[str, Callable[[], Any]], Callable[[], None], bool]:
    """Calls of dask, with threads of one process."""
    import dask
    import dask.array as da

    dask.config.set(scheduler="threads", num_workers=threads)
    rng = np.random.default_rng(0)
    if m == n:
        x, chunks = rng.standard_normal((n, n)), (-(-n // 4), -(-n // 4))
        a, b = da.from_array(x, chunks=chunks), da.from_array(rng.standard_normal((n, 512)), chunks=(chunks[0], 512))
        spd = da.from_array(x @ x.T + n * np.eye(n), chunks=chunks)
        return (
            {
                "cholesky": lambda: dask.compute(da.linalg.cholesky(spd, lower=True)),
                "lu": lambda: dask.compute(*da.linalg.lu(a)),
                "solve512": lambda: dask.compute(da.linalg.solve(a, b)),
            },
            lambda: None,
            True,
        )
    a = da.from_array(rng.standard_normal((m, n)), chunks=(-(-m // threads), n))
    b = da.from_array(rng.standard_normal(m), chunks=-(-m // threads))
    calls = {
        "r": lambda: dask.compute(da.linalg.qr(a)[1]),
        "qr": lambda: dask.compute(*da.linalg.qr(a)),
        "lstsq": lambda: dask.compute(*da.linalg.lstsq(a, b)[:2]),
        "svd": lambda: dask.compute(*da.linalg.svd(a)),
        "rsvd": lambda: dask.compute(*da.linalg.svd_compressed(a, VALUES, n_power_iter=2, n_oversamples=10)),
    }
    return calls, lambda: None, True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["heat", "dask"])
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--calls", nargs="*", help="names of calls; by default all but rsvd")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = []
    for shape in options.shapes:
        m, n = map(int, shape.split("x"))
        calls, barrier, prints = heat_calls(m, n) if options.library == "heat" else dask_calls(m, n, options.threads)
        for name in options.calls or [name for name in calls if name != "rsvd"]:
            call, times = calls[name], list[float]()
            for _ in range(options.rounds):
                barrier()
                start = time.perf_counter()
                call()
                barrier()
                times.append(time.perf_counter() - start)
            report.append({"library": options.library, "call": name, "m": m, "n": n, "best_s": min(times)})
            if prints:
                print(f"{options.library} {name} {shape}: {1e3 * min(times):.1f} ms", flush=True)
    if options.json and prints:
        results_file.write(options.json, {"rows": report})


if __name__ == "__main__":
    main()
