"""How fast are singular values, polar factors and refined solutions on one GPU, compared with cuSOLVER and products?

python -m mpi4py -m benchmarks.gpu.singular_values [--cases solve svd polar newton_schulz] [--json FILE]

Columns of a case, on the same matrix, are timed in rounds of rotated order, after one call of each. "gesvdp" is
cusolverDnXgesvdp called by itself, "GEMM" one product of two n x n matrices by cuBLAS, "products" the 15 products by
torch of five steps of Newton and Schulz. Calls of pblas count with copies and agreements. Residuals, at most 30, are
over eps n: of solutions norm(B - A x) / (norm(A) norm(x)); of decompositions the larger one of norm(A x - U S Vh x)
over norm(A) norm(x), and norm(U^T U x - x) over norm(x), for a random x. Those of newton_schulz are not computed.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cusolverDn
from rich.console import Console

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about, rotated
from pblas import linalg

EPS = 2.0**-52
MOST = 30.0
LARGE = 32768  # equations from which GMRES with factors of 11 bits is left out: it takes seconds


class Case(NamedTuple):
    """Calls that are compared, each with a function of its result that gives the residual."""

    name: str
    columns: dict[str, Callable[[], Any]]
    residual: Callable[[str, Any], float]


def matrix(ctx: pblas.Context, n: int, condition: float) -> pblas.DistMatrix:
    """A matrix of this condition, with singular values in a geometric sequence."""
    q, p = (linalg.orth(ctx.random((n, n), seed=seed, distribution="normal")) for seed in (1, 2))
    return pblas.elementwise("x * s", x=q, s=np.geomspace(1, 1 / condition, n)) @ p.T


def size(x: Any) -> float:
    """The length of an array of the GPU."""
    return float(cupy.linalg.norm(x))


def local(x: Any) -> Any:
    """The array of a matrix of one rank, or an array of the GPU itself."""
    return x.local if isinstance(x, pblas.DistMatrix) else cupy.asarray(x)


def orthogonality(u: Any) -> float:
    """norm(U^T U x - x) / norm(x) for a random x."""
    x = cupy.random.RandomState(1).standard_normal(u.shape[1])
    return size(u.T @ (u @ x) - x) / size(x)


def solutions(ctx: pblas.Context, n: int, condition: float) -> Case:
    """Solutions with one right-hand side."""
    a, b = matrix(ctx, n, condition), ctx.random((n, 1), seed=3)
    columns: dict[str, Callable[[], Any]] = {"float64": lambda: linalg.solve(a, b, check=False)}
    for name in ("float32", "tf32", "float16") if n < LARGE else ("float32", "tf32"):
        refine: Any = name
        columns[f"refine={name}"] = partial(linalg.solve, a, b, check=False, refine=refine)

    def residual(_: str, x: Any) -> float:
        return size(b.local - a.local @ x.local) / (size(a.local) * size(x.local))

    return Case(f"solve {n}, condition {condition:.0e}", columns, residual)


class Gesvdp:
    """cusolverDnXgesvdp of one matrix."""

    def __init__(self, a: Any) -> None:
        self._a, n = a, len(a)
        self._x, self._u, self._v = (cupy.empty((n, n), np.float64, order="F") for _ in range(3))
        self._s, self._info = cupy.empty(n), cupy.zeros(1, np.int32)
        self._handle, self._params = cusolverDn.create(), cusolverDn.create_params()
        real = int(CudaDataType.CUDA_R_64F)
        matrices = list[int]()
        for x in (self._x, self._s, self._u, self._v):
            matrices += [real, x.data.ptr, *([n] if x.ndim == 2 else [])]
        self._matrix = 1, 0, n, n, *matrices, real
        device, host = map(int, cusolverDn.xgesvdp_buffer_size(self._handle, self._params, *self._matrix))
        self._work, self._host = cupy.empty(device, np.uint8), np.empty(host, np.uint8)

    def __call__(self) -> Any:
        """U, S and V."""
        self._x[...] = self._a
        cusolverDn.set_stream(self._handle, cupy.cuda.get_current_stream().ptr)
        work = self._work.data.ptr, self._work.nbytes, self._host.ctypes.data, self._host.nbytes
        cusolverDn.xgesvdp(self._handle, self._params, *self._matrix, *work, self._info.data.ptr)
        assert not int(self._info[0]), "it converges"
        return self._u, self._s, self._v.T


def decompositions(ctx: pblas.Context, n: int) -> Case:
    """Singular values and vectors of a random matrix, and the two parts of which they consist."""
    a = ctx.random((n, n), seed=1, distribution="normal")
    _, h = linalg.polar(a)

    def residual(name: str, result: Any) -> float:
        if name == "svdvals":
            return 0.0
        if name in ("polar", "eigh of P"):
            return orthogonality(local(result[0] if name == "polar" else result[1]))
        u, s, vh = map(local, result)
        x = cupy.random.RandomState(1).standard_normal(n)
        return max(size(a.local @ x - u @ (s * (vh @ x))) / (size(a.local) * size(x)), orthogonality(u))

    columns: dict[str, Callable[[], Any]] = {
        "svd": lambda: linalg.svd(a),
        "svdvals": lambda: linalg.svdvals(a),
        "gesvdp": Gesvdp(a.local),
        "polar": lambda: linalg.polar(a),
        "eigh of P": lambda: linalg.eigh(h),
    }
    return Case(f"svd {n}", columns, residual)


def polar(ctx: pblas.Context, n: int, condition: float) -> Case:
    """A polar decomposition."""
    a = matrix(ctx, n, condition)
    x, y = a.local, cupy.empty((n, n), order="F")

    def residual(name: str, result: Any) -> float:
        if name == "GEMM":
            return 0.0
        u, p = map(local, result)
        v = cupy.random.RandomState(1).standard_normal(n)
        return max(size(x @ v - u @ (p @ v)) / (size(x) * size(v)), orthogonality(u))

    columns = {"polar": lambda: linalg.polar(a), "GEMM": lambda: cupy.matmul(x, x, out=y)}
    return Case(f"polar {n}, condition {condition:.0e}", columns, residual)


def newton_schulz(ctx: pblas.Context, n: int) -> Case:
    """Five steps in bfloat16, and the products of which they consist."""
    import torch

    a = ctx.random((n, n), seed=1, distribution="normal").astype("bfloat16")
    x = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    y, z = torch.empty_like(x), torch.empty_like(x)

    def products() -> None:
        for _ in range(5):  # X X^T, its square, and that times X
            torch.matmul(x, x.T, out=y)
            torch.matmul(y, y, out=z)
            torch.matmul(z, x, out=y)

    return Case(f"newton_schulz {n}", {"pblas": lambda: linalg.newton_schulz(a), "products": products}, lambda *_: 0.0)


def cases(ctx: pblas.Context, names: list[str]) -> Iterator[Case]:
    """The cases, the most important ones first."""
    makers: dict[str, list[Callable[[], Case]]] = {
        "svd": [partial(decompositions, ctx, 4096)],
        "solve": [partial(solutions, ctx, 16384, 1e3)],
        "newton_schulz": [partial(newton_schulz, ctx, 8192)],
        "polar": [partial(polar, ctx, 16384, 1e4)],
        "large_svd": [partial(decompositions, ctx, 8192)],
        "large_solve": [partial(solutions, ctx, 32768, 1e3)],
    }
    for name in names or list(makers):
        for make in makers[name]:
            yield make()


class Iterations(logging.Handler):
    """Keeps what the log says about refinements."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text about factors in fewer bits."""
        text = record.getMessage()
        if "factors in" in text:
            self.texts.append(text)


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """The time of a call, and its result."""
    cupy.cuda.runtime.deviceSynchronize()
    start = time.perf_counter()
    result = call()
    cupy.cuda.runtime.deviceSynchronize()
    return time.perf_counter() - start, result


def main() -> None:
    """Measure all cases, print the medians, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, reports, log = Console(soft_wrap=True), list[dict[str, Any]](), Iterations()
    logging.getLogger("pblas").addHandler(log)
    logging.getLogger("pblas").setLevel(logging.INFO)
    with pblas.Context(backend="cuda", timeout=120.0) as ctx:
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        for case in cases(ctx, options.cases):
            log.texts = []
            residuals, times = dict[str, float](), {column: list[float]() for column in case.columns}
            for column, call in case.columns.items():
                result = seconds(call)[1]
                residuals[column] = round(case.residual(column, result) / EPS / local_size(result), 3)
                del result
            texts = list(log.texts)
            for turn in range(options.rounds):
                for column in rotated(list(times), turn):
                    times[column].append(1e3 * seconds(case.columns[column])[0])
            medians = {column: round(statistics.median(values), 2) for column, values in times.items()}
            wrong = {column: value for column, value in residuals.items() if not value <= MOST}
            reports.append({"case": case.name, "ms": medians, "residuals": residuals, "wrong": wrong, "log": texts})
            console.print(reports[-1], highlight=False, markup=False)
            if options.json:
                rows = {"rounds": options.rounds, "rows": reports}
                results_file.write(options.json, about(name, 1) | rows)
            del case, call
            cupy.get_default_memory_pool().free_all_blocks()


def local_size(result: Any) -> int:
    """The rows of a result, or of the first matrix of several."""
    while isinstance(result, tuple):
        result = result[0]
    return 1 if result is None else len(result)


if __name__ == "__main__":
    main()
