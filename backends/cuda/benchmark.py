"""Measurement of algorithms for one product: in CUDA graphs, on random operands outside the L2 cache."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Self

import cupy
import numpy as np
from nvmath.bindings import cublasLt

from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm_problem import ALIGNMENT
from pblas.backends.dtypes import dtype_of_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.cuda.cublaslt import GemmAlgorithm, Product
    from pblas.backends.cuda.gemm_problem import Problem
    from pblas.backends.dtypes import Dtype

_GRAPH_SECONDS = 150e-6  # long enough to hide the launch of the next graph
_MOST_LAUNCHES = 64  # in one graph
_RANDOM = 1 << 20  # random numbers; operands repeat them


class Operands:
    """Uninitialised A, B and Z of a problem, with exactly the alignment that the problem states."""

    def __init__(self, problem: Problem) -> None:
        itemsize, itemsize_z = (dtype_of_name(name).itemsize for name in (problem.dtype, problem.dtype_z))
        a, b, z = problem.spans
        nbytes = (a * itemsize, b * itemsize, z * itemsize_z)
        self.memory: list[Any] = [cupy.cuda.Memory(n + ALIGNMENT) for n in nbytes]
        aligned = (problem.aligna, problem.alignb, problem.alignz)
        self.addresses: list[int] = [int(m.ptr) + n % ALIGNMENT for m, n in zip(self.memory, aligned, strict=True)]

    @property
    def nbytes(self) -> int:
        """Bytes of A, B and Z together."""
        return sum(memory.size for memory in self.memory)


class Stopwatch:
    """Measures a product on several sets of operands, which together are larger than the L2 cache."""

    def __init__(self, product: Product, stream: int, l2_nbytes: int) -> None:
        self._product, self._stream = product, cupy.cuda.Stream.from_external(streams.Handle(stream))
        self._workspace = cupy.cuda.Memory(product.workspace_nbytes)
        self._sets = [Operands(product.problem)]
        count = min(math.ceil(2 * l2_nbytes / self._sets[0].nbytes), _MOST_LAUNCHES)
        self._sets += [Operands(product.problem) for _ in range(count - 1)]
        self._fill(product.problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.synchronize()
        self._sets.clear()
        del self._workspace

    def seconds(self, algorithms: Iterable[GemmAlgorithm], rounds: int) -> dict[GemmAlgorithm, float]:
        """Median seconds of a launch for each algorithm that runs; in each round every algorithm runs once."""
        running = [algorithm for algorithm in algorithms if self._runs(algorithm)]
        launches = max(len(self._sets), min(math.ceil(_GRAPH_SECONDS / self._estimate(running[0])), _MOST_LAUNCHES))
        graphs = {algorithm: self._captured(algorithm, launches) for algorithm in running}
        times: dict[GemmAlgorithm, list[float]] = {algorithm: [] for algorithm in running}
        for _ in range(rounds):
            graphs[running[0]].launch(self._stream)  # keeps the GPU busy while the host launches the first timed graph
            events = [self._event()]
            for graph in graphs.values():
                graph.launch(self._stream)
                events.append(self._event())
            self._stream.synchronize()
            for algorithm, begin, end in zip(running, events, events[1:], strict=False):
                times[algorithm].append(1e-3 * cupy.cuda.get_elapsed_time(begin, end) / launches)
        return {algorithm: statistics.median(values) for algorithm, values in times.items()}

    def _fill(self, problem: Problem) -> None:
        """Fill operands with normal random numbers: constants draw less power, so their products run faster."""
        numbers = np.random.default_rng(0).standard_normal(_RANDOM).astype(_real(dtype_of_name(problem.dtype)))
        block = cupy.cuda.Memory(numbers.nbytes)
        runtime = cupy.cuda.runtime
        runtime.memcpy(block.ptr, numbers.ctypes.data, numbers.nbytes, runtime.memcpyHostToDevice)
        for operands in self._sets:
            for part in operands.memory[:2]:
                for start in range(0, part.size, numbers.nbytes):
                    size = min(numbers.nbytes, part.size - start)
                    runtime.memcpyAsync(
                        part.ptr + start, block.ptr, size, runtime.memcpyDeviceToDevice, self._stream.ptr
                    )
        self._stream.synchronize()

    def _runs(self, algorithm: GemmAlgorithm) -> bool:
        try:
            self._launch(algorithm, 0)
        except cublasLt.cuBLASLtError:
            return False
        return True

    def _launch(self, algorithm: GemmAlgorithm, turn: int) -> None:
        a, b, z = self._sets[turn % len(self._sets)].addresses
        self._product.launch(algorithm, 1.0, a, b, 0.0, z, self._workspace.ptr, self._stream.ptr)

    def _estimate(self, algorithm: GemmAlgorithm) -> float:
        """Rough seconds of a launch."""
        self._stream.synchronize()
        begin = self._event()
        for turn in range(4):
            self._launch(algorithm, turn)
        end = self._event()
        end.synchronize()
        return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end)) / 4

    def _captured(self, algorithm: GemmAlgorithm, launches: int) -> cupy.cuda.Graph:
        self._stream.begin_capture()
        try:
            for turn in range(launches):
                self._launch(algorithm, turn)
        finally:
            graph = self._stream.end_capture()
        return graph

    def _event(self) -> cupy.cuda.Event:
        event = cupy.cuda.Event()
        event.record(self._stream)
        return event


def _real(dtype: Dtype) -> Dtype:
    """dtype of the real part."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype
