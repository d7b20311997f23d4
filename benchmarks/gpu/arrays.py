"""How fast are calls of arrays on one GPU, compared with CuPy's and cuBLAS' on the same elements, and on several?

[mpiexec -n P] python -m benchmarks.gpu.arrays [--sizes 8192,8] [--dtypes float64,float32] [--only sum,eye]
[--calls 1] [--json FILE]

Matrices are n x n. A row is one public call that returns a new result, beside a call of CuPy that gives the same, on
elements in C order. The two run in rounds of rotated order, each from an idle GPU until it is idle again. Level 2 is
compared with cuBLAS, `to_global` and `from_global` with a copy between the GPU and page-locked memory. On several ranks
there are no peers: a time is that of the slowest rank, for the speedup over one. With `--calls` a measurement is of
several calls in a row, which a loop in a program feels.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import pblas
from benchmarks import results_file
from benchmarks.gpu.elementwise import device_name
from benchmarks.gpu.rows import about
from benchmarks.rounds import rounds, together
from pblas import blas, linalg

Call = Callable[[], Any]


def cases(ctx: pblas.Context, n: int, dtype: str) -> dict[str, tuple[Call, Call]]:
    """The calls of each row, by its name: ours, and its peer's."""
    import cupy
    from nvmath.bindings import cublas

    shape = n, n
    A, B, D = (ctx.random(shape, dtype, seed=seed) for seed in range(3))
    x = cupy.random.rand(n).astype(dtype)
    # The same elements in C order, in which CuPy is fast.
    a, b, d = tuple[Any, ...](cupy.ascontiguousarray(matrix.local) for matrix in (A, B, D))
    host = A.to_global(None)
    pinned: Any = np.frombuffer(cupy.cuda.alloc_pinned_memory(host.nbytes), dtype, n * n).reshape(shape)
    v = ctx.from_global(cupy.asnumpy(x)[:, None])
    handle = cublas.create()
    one, letter = np.ones(1, dtype), "d" if dtype == "float64" else "s"
    y = cupy.zeros_like(x)
    upper, lower = cublas.FillMode.UPPER, cublas.FillMode.LOWER
    plain, straight = cublas.DiagType.NON_UNIT, cublas.Operation.N
    rows, columns = slice(n // 4, None), slice(n // 2)
    part = A[rows, columns]
    some = np.random.default_rng(0).permutation(n)[: n // 2]
    some_there, M = cupy.asarray(some), A > 0.99
    m = a > 0.99
    scalar = one.ctypes.data
    T = ctx.random(shape, dtype, seed=4)
    pblas.elementwise("t / n + e", t=T, n=float(n), e=ctx.eye(shape, dtype), out=T)
    t: Any = T.local

    def routine(name: str, *arguments: Any) -> Call:
        return lambda: getattr(cublas, letter + name)(handle, *arguments)

    return {
        "A + B": (lambda: A + B, lambda: a + b),
        "2 * A": (lambda: 2 * A, lambda: 2 * a),
        "abs(A)": (lambda: abs(A), lambda: abs(a)),
        "np.exp(A)": (lambda: np.exp(A), lambda: cupy.exp(a)),
        "A > B": (lambda: A > B, lambda: (a > b).astype(dtype)),
        "where": (lambda: pblas.where(A, B, D), lambda: cupy.where(a, b, d)),
        "A.copy()": (A.copy, a.copy),
        "astype": (lambda: A.astype("float32"), lambda: a.astype("float32")),
        "A.sum()": (A.sum, lambda: float(a.sum())),
        "A.sum(axis=0)": (lambda: A.sum(axis=0), lambda: a.sum(axis=0).get()),
        "A.sum(axis=1)": (lambda: A.sum(axis=1), lambda: a.sum(axis=1).get()),
        "A.max()": (A.max, lambda: float(a.max())),
        "A.argmax()": (A.argmax, lambda: int(a.argmax())),
        "norm": (lambda: linalg.matrix_norm(A), lambda: float(cupy.linalg.norm(a))),
        "norm(1)": (lambda: linalg.matrix_norm(A, ord=1), lambda: float(abs(a).sum(axis=0).max())),
        "norm(max)": (lambda: linalg.matrix_norm(A, ord="max"), lambda: float(abs(a).max())),
        "submatrix": (part.copy, a[rows, columns].copy),
        "A[list]": (lambda: A[some], lambda: a[some_there]),
        "A[list] = 2": (lambda: B.__setitem__(some, 2.0), lambda: b.__setitem__(some_there, 2.0)),
        "A[mask]": (lambda: A[M], lambda: cupy.asnumpy(a[m])),
        "A[:] = 2": (lambda: D.__setitem__(slice(None), 2.0), lambda: d.fill(2.0)),
        "A[:] = B": (lambda: pblas.elementwise("b", b=B, out=D), lambda: cupy.copyto(d, b)),
        "tril": (lambda: pblas.tril(A), lambda: cupy.tril(a)),
        "diagonal": (A.diagonal, lambda: cupy.diag(a).get()),
        "vstack": (lambda: pblas.vstack([A, B]), lambda: cupy.vstack([a, b])),
        "zeros": (lambda: ctx.zeros(shape, dtype), lambda: cupy.zeros(shape, dtype)),
        "full": (lambda: ctx.full(shape, 3, dtype=dtype), lambda: cupy.full(shape, 3, dtype)),
        "eye": (lambda: ctx.eye(shape, dtype), lambda: cupy.eye(n, dtype=dtype)),
        "random": (
            lambda: ctx.random(shape, dtype, seed=3),
            lambda: cupy.random.random_sample(shape, dtype=dtype),
        ),
        "random normal": (
            lambda: ctx.random(shape, dtype, seed=3, distribution="normal"),
            lambda: cupy.random.standard_normal(shape, dtype=dtype),
        ),
        "from_function": (
            lambda: ctx.from_function(lambda i, j: i + 2.0 * j, shape, dtype),
            lambda: (cupy.arange(n)[:, None] + 2.0 * cupy.arange(n)).astype(dtype, copy=False),
        ),
        "to_global": (A.to_global, lambda: a.get(out=pinned)),
        "from_global": (lambda: ctx.from_global(host), lambda: d.set(pinned)),
        "from_global, order C": (lambda: ctx.from_global(host.T), lambda: d.set(pinned)),
        "gemv": (
            lambda: blas.gemv(A, v),
            routine("gemv", straight, n, n, scalar, a.data.ptr, n, x.data.ptr, 1, scalar, y.data.ptr, 1),
        ),
        "symv": (
            lambda: blas.symv(A, v),
            routine("symv", lower, n, scalar, a.data.ptr, n, x.data.ptr, 1, scalar, y.data.ptr, 1),
        ),
        "trmv": (
            lambda: blas.trmv(T, v),
            routine("trmv", lower, straight, plain, n, t.data.ptr, n, y.data.ptr, 1),
        ),
        "trsv": (
            lambda: blas.trsv(T, v, uplo="U"),
            routine("trsv", upper, straight, plain, n, t.data.ptr, n, y.data.ptr, 1),
        ),
        "ger": (
            lambda: blas.ger(v, v, D),
            routine("ger", n, n, scalar, x.data.ptr, 1, x.data.ptr, 1, d.data.ptr, n),
        ),
        "syr": (lambda: blas.syr(v, D), routine("syr", lower, n, scalar, x.data.ptr, 1, d.data.ptr, n)),
    }


def repeated(call: Call, count: int) -> Call:
    """So many calls in a row."""

    def calls() -> None:
        for _ in range(count):
            call()

    return call if count == 1 else calls


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", default="8192,8", help="n of the n x n matrices")
    options.add_argument("--dtypes", default="float64,float32", help="dtypes of the matrices")
    options.add_argument("--only", default="", help="rows whose names contain one of these words")
    options.add_argument("--repeats", type=int, default=11, help="number of rounds")
    options.add_argument("--calls", type=int, default=1, help="calls in a row, whose mean time is one measurement")
    options.add_argument("--json", type=Path, help="write the results to this file")
    arguments = options.parse_args()
    import cupy

    wait = partial(cupy.cuda.runtime.deviceSynchronize)
    words = arguments.only.split(",")
    table = Table("n", "dtype", "call", "us", "peer us", "ratio", title=f"Medians of {arguments.repeats}")
    rows = []
    with pblas.Context(timeout=60.0) as ctx:
        for n in map(int, arguments.sizes.split(",")):
            for dtype in arguments.dtypes.split(","):
                for name, (ours, peers) in cases(ctx, n, dtype).items():
                    if not any(word in name for word in words):
                        continue
                    columns = {"pblas": partial(together, repeated(ours, arguments.calls), wait)}
                    if ctx.nprocs == 1:
                        columns["peer"] = partial(together, repeated(peers, arguments.calls), wait)
                    times = rounds(columns, arguments.repeats)
                    medians = {k: statistics.median(v) / arguments.calls for k, v in times.items()}
                    rows.append({"n": n, "dtype": dtype, "call": name} | {k: 1e6 * v for k, v in medians.items()})
                    texts = [f"{1e6 * seconds:.0f}" for seconds in medians.values()]
                    texts += [f"{medians['pblas'] / medians['peer']:.2f}"] if ctx.nprocs == 1 else []
                    table.add_row(str(n), dtype, escape(name), *texts)
        if ctx.rank:
            return
        nprocs = ctx.nprocs
    Console(width=100).print(table)
    if arguments.json is not None:
        results_file.write(arguments.json, about(device_name(), nprocs) | {"calls": arguments.calls, "rows": rows})


if __name__ == "__main__":
    main()
