"""The columns of QR for `benchmarks.gpu.factor`: by panels, by cuSOLVER, and with Q."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.backends.cuda.lapack import Lapack

EPS = 2.0**-53


def _residual(a: Any, result: Any) -> float:
    """The residual and the loss of orthogonality of Q and R, with a random vector."""
    (m, n), x = a.shape, cupy.random.RandomState(1).standard_normal(a.shape[1])
    q, r = result.Q.local, result.R.local
    size = float(cupy.linalg.norm(a)) * float(cupy.linalg.norm(x))
    residual = float(cupy.linalg.norm(a @ x - q @ (r @ x))) / (max(m, n) * size * EPS)
    return max(residual, float(cupy.linalg.norm(q.T @ (q @ x) - x)) / (m * float(cupy.linalg.norm(x)) * EPS))


class QrCase:
    """QR of one m x n matrix. "with Q" columns are calls of `linalg.qr`, copies and agreements included.

    Args:
        ctx: a context of one rank on a GPU.
        m, n: rows and columns of the matrix.
        widths: columns of panels.
    """

    def __init__(self, ctx: pblas.Context, m: int, n: int, widths: list[int]) -> None:
        self.shape = m, n
        rng = cupy.random.RandomState(n)
        self.matrix = ctx.empty(MatrixDescriptor.column_wise(m, n, 1), "float64")
        self.a: Any = self.matrix.local
        step = max(1, (1 << 24) // m)
        for j in range(0, n, step):
            self.a[:, j : j + step] = rng.standard_normal((m, min(step, n - j)))
        self._memory: list[Any] = []
        self._lapack = Lapack(self._empty, self._memory.append)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._plans: list[Any] = []
        self._tau: Any = cupy.empty(min(m, n))
        self.result: Any = None
        self.flops = 2 * max(m, n) * min(m, n) ** 2 - 2 * min(m, n) ** 3 / 3
        self.columns: dict[str, Callable[[], None]] = {}
        self._inputs: dict[str, Any] = {}
        work = cupy.empty((m, n), order="F")
        self._add("cuSOLVER", work, lambda: self._library(work))
        options: dict[str, tuple[Any, Any]] = {
            f"blocked {width}": (ctx.from_local(self.a, MatrixDescriptor.column_wise(m, n, 1, nb=width)), "blocked")
            for width in widths
        }
        options["blocked"] = self.matrix, "blocked"
        options["local"] = self.matrix, "local"
        for name, (matrix, algorithm) in options.items():
            self._add_plan(ctx, name, linalg.plan_qr(matrix, algorithm=algorithm))
            self.columns[f"{name} with Q"] = lambda matrix=matrix, algorithm=algorithm: self._with_q(matrix, algorithm)

    def _empty(self, nbytes: int) -> Any:
        self._memory.append(cupy.empty(nbytes, cupy.uint8))
        return self._memory[-1]

    def _add(self, name: str, work: Any, run: Callable[[], None]) -> None:
        self._inputs[name], self.columns[name] = work, run

    def _add_plan(self, ctx: pblas.Context, name: str, planned: Any) -> None:
        """The column of a plan: its executor, between the agreements of an execution."""
        self._plans.append(planned)
        executor, arrays = planned._executor, planned._runtime.backend.arrays  # noqa: SLF001 - the copy is not timed
        w = ctx.empty(planned.plan.w, "float64").local
        arrays.begin()

        def run() -> None:
            executor.publish(w)
            executor.run(w)
            arrays.synchronize()
            executor.finish()

        self._add(name, w[: self.shape[0]], run)

    def _library(self, work: Any) -> None:
        self._lapack.geqrf(int(self._stream.ptr), work, self._tau)
        self._stream.synchronize()

    def _with_q(self, matrix: Any, algorithm: Any) -> None:
        self.result = linalg.qr(matrix, algorithm=algorithm)
        cupy.cuda.runtime.deviceSynchronize()

    def seconds(self, name: str) -> float:
        """Time of one execution."""
        self.result = None
        if name in self._inputs:
            self._inputs[name][...] = self.a
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        self.columns[name]()
        return time.perf_counter() - start

    def check(self, name: str) -> float:
        """The residual and the loss of orthogonality, with a random vector; of the columns with Q only."""
        self.seconds(name)
        if self.result is None:
            return 0.0
        residual = _residual(self.a, self.result)
        self.result = None
        return residual

    def close(self) -> None:
        """Free plans and memory."""
        self._lapack.close()
        for planned in self._plans:
            planned.close()


class TallCase:
    """QR of one tall matrix by Gram matrices, and the products of its two passes.

    Args:
        ctx: a context of one rank on a GPU.
        m, n: rows and columns of the matrix.
    """

    def __init__(self, ctx: pblas.Context, m: int, n: int) -> None:
        self.shape, self.flops = (m, n), 8 * m * n**2
        self.matrix = ctx.empty(MatrixDescriptor.row_wise(m, n, 1), "float64")
        self.a: Any = self.matrix.local
        for j in range(n):
            self.a[:, j] = cupy.random.RandomState(j).standard_normal(m)
        self._arrays: Any = ctx.runtime.backend.arrays
        self._r, self._product = cupy.asfortranarray(cupy.eye(n)), cupy.empty((m, n), order="F")
        self.result: Any = None
        self.columns: dict[str, Callable[[], None]] = {
            "two passes of products": self._products,
            "cholesky, Q and R": lambda: self._qr("cholesky"),
            "auto, Q and R": lambda: self._qr("auto"),
            "blocked, Q and R": lambda: self._qr("blocked"),
        }

    def _products(self) -> None:
        self._arrays.begin()
        for _ in range(2):
            self._arrays.gram(self.a)
            self._arrays.gemm(1, self.a, self._r, 0, self._product)
        self._arrays.synchronize()

    def _qr(self, algorithm: Any) -> None:
        self.result = linalg.qr(self.matrix, algorithm=algorithm)
        cupy.cuda.runtime.deviceSynchronize()

    def seconds(self, name: str) -> float:
        """Time of one execution."""
        self.result = None
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        self.columns[name]()
        return time.perf_counter() - start

    def check(self, name: str) -> float:
        """As of QrCase."""
        self.seconds(name)
        return 0.0 if self.result is None else _residual(self.a, self.result)

    def close(self) -> None:
        """Free the result."""
        self.result = None
