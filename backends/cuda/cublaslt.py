"""cuBLASLt's objects for one problem: descriptors, layouts, algorithms, the launch, and its time.

Results have the same bits in every run, and sums have the precision of the accumulator. Therefore some algorithms are
excluded: algorithms that split K and add the parts in place, in the order of arrival or in the output's 16 bits, and
algorithms that form a complex product with three multiplications.

Algorithms are measured in CUDA graphs, on random operands outside the L2 cache.

Source: cuBLAS documentation, "Using the cuBLASLt API".
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Self

import cupy
import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cublasLt
from nvmath.bindings.cublas import ComputeType

from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm_problem import ALIGNMENT, Problem
from pblas.backends.dtypes import Dtype, dtype_of_name
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable


_TYPES: dict[str, tuple[int, int, Dtype]] = {
    "float8_e4m3fn": (CudaDataType.CUDA_R_8F_E4M3, ComputeType.COMPUTE_32F, np.dtype(np.float32)),
    "float8_e5m2": (CudaDataType.CUDA_R_8F_E5M2, ComputeType.COMPUTE_32F, np.dtype(np.float32)),
    "float16": (CudaDataType.CUDA_R_16F, ComputeType.COMPUTE_32F, np.dtype(np.float32)),
    "bfloat16": (CudaDataType.CUDA_R_16BF, ComputeType.COMPUTE_32F, np.dtype(np.float32)),
    "float32": (CudaDataType.CUDA_R_32F, ComputeType.COMPUTE_32F, np.dtype(np.float32)),
    "float64": (CudaDataType.CUDA_R_64F, ComputeType.COMPUTE_64F, np.dtype(np.float64)),
    "complex64": (CudaDataType.CUDA_C_32F, ComputeType.COMPUTE_32F, np.dtype(np.complex64)),
    "complex128": (CudaDataType.CUDA_C_64F, ComputeType.COMPUTE_64F, np.dtype(np.complex128)),
}
"""cuBLASLt's data type, its compute type, and the dtype of alpha and beta."""
_OPERATIONS = {"N": 0, "T": 1, "C": 2}  # cublasOperation_t
_REDUCTIONS = (cublasLt.ReductionScheme.NONE, cublasLt.ReductionScheme.COMPUTE_TYPE)
_ALL_BUT_GAUSSIAN = (1 << 64) - 1 & ~(1 << 32)  # CUBLASLT_NUMERICAL_IMPL_FLAGS_GAUSSIAN
_ALIGNED = 256  # an aligned address, for queries about algorithms with a bias


class GemmAlgorithm:
    """A cublasLtMatmulAlgo_t at a fixed address."""

    __slots__ = ("_memory", "address", "data")

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data
        self._memory = np.frombuffer(data, np.uint64).copy()
        self.address: int = int(self._memory.ctypes.data)

    @property
    def ordered(self) -> bool:
        """Whether the algorithm adds the parts of a split K in a fixed order and in the accumulator's precision."""
        value, written = np.zeros(1, np.uint32), np.zeros(1, np.uint64)
        cublasLt.matmul_algo_config_get_attribute(
            self.address,
            cublasLt.MatmulAlgoConfigAttribute.REDUCTION_SCHEME,
            *(value.ctypes.data, value.nbytes, written.ctypes.data),
        )
        return int(value[0]) in _REDUCTIONS


class Product:
    """Descriptors and launches of one problem."""

    def __init__(self, handle: int, workspace_nbytes: int, problem: Problem, epilogue: str = "") -> None:
        self.problem: Problem = problem
        self.workspace_nbytes: int = workspace_nbytes
        self._handle = handle
        kind, compute, scalar = _TYPES[problem.dtype]
        kind_b = _TYPES[problem.dtype_b or problem.dtype][0]
        self._scalars = np.zeros(2, scalar)
        self._alpha = int(self._scalars.ctypes.data)
        self._beta = self._alpha + scalar.itemsize
        self._values: tuple[complex, complex] = (0, 0)
        if problem.tf32 or problem.float16:
            compute = ComputeType.COMPUTE_32F_FAST_TF32 if problem.tf32 else ComputeType.COMPUTE_32F_FAST_16F
        self._operation = cublasLt.matmul_desc_create(compute, _TYPES[scalar.name][0])
        names = cublasLt.MatmulDescAttribute
        for attribute, value in (
            (names.TRANSA, _OPERATIONS[problem.transa]),
            (names.TRANSB, _OPERATIONS[problem.transb]),
        ):
            _set(cublasLt.matmul_desc_set_attribute, self._operation, attribute, value, np.int32)
        if problem.fast_accumulate:
            _set(cublasLt.matmul_desc_set_attribute, self._operation, names.FAST_ACCUM, 1, np.int8)
        self._addresses = [0, 0, 0]
        if epilogue:
            number = cublasLt.Epilogue[epilogue].value
            _set(cublasLt.matmul_desc_set_attribute, self._operation, names.EPILOGUE, number, np.uint32)
        if epilogue.endswith("BIAS"):
            kind_z = _TYPES[problem.dtype_z][0]
            _set(cublasLt.matmul_desc_set_attribute, self._operation, names.BIAS_DATA_TYPE, kind_z, np.int32)
            self._point([_ALIGNED, 0, 0])
        self._layouts = (
            _layout(kind, problem.stored_a, problem.lda, problem.batch, problem.stridea),
            _layout(kind_b, problem.stored_b, problem.ldb, problem.batch, problem.strideb),
            _layout(_TYPES[problem.dtype_z][0], (problem.m, problem.n), problem.ldz, problem.batch, problem.stridez),
        )

    def close(self) -> None:
        """Free the descriptors; launches and captured graphs do not refer to them."""
        for layout in self._layouts:
            cublasLt.matrix_layout_destroy(layout)
        cublasLt.matmul_desc_destroy(self._operation)

    def launch(
        self,
        algorithm: GemmAlgorithm,
        alpha: complex,
        a: int,
        b: int,
        beta: complex,
        z: int,
        workspace: int,
        stream: int,
        bias: int = 0,
        scale_a: int = 0,
        scale_b: int = 0,
        c: int = 0,
    ) -> None:
        """Z := the epilogue of alpha scale_a scale_b op(A) op(B) + beta C; without the address of a C it is Z."""
        if [bias, scale_a, scale_b] != self._addresses:
            self._point([bias, scale_a, scale_b])
        if self._values != (alpha, beta):
            values = np.array((alpha, beta), np.complex128)
            self._scalars[:] = values if self._scalars.dtype.kind == "c" else values.real
            self._values = alpha, beta
        layout_a, layout_b, layout_z = self._layouts
        cublasLt.matmul(
            *(self._handle, self._operation, self._alpha, a, layout_a, b, layout_b),
            *(self._beta, c or z, layout_z, z, layout_z),
            *(algorithm.address, workspace, self.workspace_nbytes, stream),
        )

    def _point(self, addresses: list[int]) -> None:
        """Set the addresses of the bias and the scales that have changed."""
        names = cublasLt.MatmulDescAttribute
        pointers = names.BIAS_POINTER, names.A_SCALE_POINTER, names.B_SCALE_POINTER
        for name, address, before in zip(pointers, addresses, self._addresses, strict=True):
            if address != before:
                _set(cublasLt.matmul_desc_set_attribute, self._operation, name, address, np.uint64)
        self._addresses = addresses

    def heuristics(self, count: int) -> list[GemmAlgorithm]:
        """At most `count` algorithms that cuBLASLt expects to be fast, best first."""
        problem, names = self.problem, cublasLt.MatmulPreferenceAttribute
        results, count_found = np.zeros(count, cublasLt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        layout_a, layout_b, layout_z = self._layouts
        preference = cublasLt.matmul_preference_create()
        try:
            for attribute, value, dtype in (
                (names.MAX_WORKSPACE_BYTES, self.workspace_nbytes, np.uint64),
                (names.REDUCTION_SCHEME_MASK, _REDUCTIONS[1], np.uint32),
                (names.IMPL_MASK, _ALL_BUT_GAUSSIAN, np.uint64),
                (names.MIN_ALIGNMENT_A_BYTES, problem.aligna, np.uint32),
                (names.MIN_ALIGNMENT_B_BYTES, problem.alignb, np.uint32),
                (names.MIN_ALIGNMENT_C_BYTES, problem.alignz, np.uint32),
                (names.MIN_ALIGNMENT_D_BYTES, problem.alignz, np.uint32),
            ):
                _set(cublasLt.matmul_preference_set_attribute, preference, attribute, value, dtype)
            cublasLt.matmul_algo_get_heuristic(
                *(self._handle, self._operation, layout_a, layout_b, layout_z, layout_z),
                *(preference, count, results.ctypes.data, count_found.ctypes.data),
            )
        except cublasLt.cuBLASLtError as error:
            raise BackendError(f"cuBLASLt has no algorithm for {problem}: {error}") from error
        finally:
            cublasLt.matmul_preference_destroy(preference)
        algorithms = [algorithm for result in results[: count_found[0]] if (algorithm := self._accepted(result))]
        if not algorithms:
            raise BackendError(f"cuBLASLt has no algorithm that adds in a fixed order for {problem}")
        return algorithms

    def checked(self, data: bytes) -> GemmAlgorithm | None:
        """The algorithm with these bytes; None if it does not support this problem."""
        algorithm, result = GemmAlgorithm(data), np.zeros(1, cublasLt.matmul_heuristic_result_dtype)
        layout_a, layout_b, layout_z = self._layouts
        try:
            cublasLt.matmul_algo_check(
                *(self._handle, self._operation, layout_a, layout_b, layout_z, layout_z),
                *(algorithm.address, result.ctypes.data),
            )
        except cublasLt.cuBLASLtError:
            return None
        return algorithm if self._fits(algorithm, result[0]) else None

    def _accepted(self, result: Any) -> GemmAlgorithm | None:
        algorithm = GemmAlgorithm(result["algo"].tobytes())
        return algorithm if self._fits(algorithm, result) else None

    def _fits(self, algorithm: GemmAlgorithm, result: Any) -> bool:
        return result["state"] == 0 and result["workspace_size"] <= self.workspace_nbytes and algorithm.ordered


def _set(setter: Any, target: int, attribute: int, value: int, dtype: type[np.generic]) -> None:
    buffer = np.array([value], dtype)
    setter(target, attribute, buffer.ctypes.data, buffer.nbytes)


def _layout(kind: int, shape: tuple[int, int], ld: int, batch: int, stride: int) -> int:
    layout: int = cublasLt.matrix_layout_create(kind, *shape, ld)
    names = cublasLt.MatrixLayoutAttribute
    _set(cublasLt.matrix_layout_set_attribute, layout, names.BATCH_COUNT, batch, np.int32)
    _set(cublasLt.matrix_layout_set_attribute, layout, names.STRIDED_BATCH_OFFSET, stride, np.int64)
    return layout


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
