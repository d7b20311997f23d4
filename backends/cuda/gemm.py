"""Products on this rank's GPU, by cuBLASLt: Z := alpha X Y + beta Z, on any stream, eagerly or while it is captured.

`pblas.backends.cuda.gemm_problem` handles storage orders. This module prepares descriptors and an algorithm for a
problem once; repeated calls look them up and pass pointers.

The algorithm is the first one of cuBLASLt's heuristics, or the fastest one that `tune` measured. All algorithms add in
a fixed order (see `pblas.backends.cuda.cublaslt`).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Self

import cupy
from nvmath.bindings import cublasLt

from pblas.backends.cuda.cublaslt import GemmAlgorithm, Product, Stopwatch
from pblas.backends.cuda.gemm_problem import (
    ALIGNMENT,
    Choice,
    Choices,
    Problem,
    copies_of,
    epilogue_of,
    needs_copy,
    read,
)
from pblas.backends.cuda.kernels import Stream, give
from pblas.backends.gpu_info import INSTALL_CTK
from pblas.backends.push_engine import EXACT, Finish, GemmModes
from pblas.errors import BackendError, PblasWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from pblas.backends.cache_file import Ranks
    from pblas.backends.dtypes import GpuArray

__all__ = ["Gemm", "Problem", "copies_of", "needs_copy", "read"]

WORKSPACE_NBYTES = 32 << 20
"""cuBLAS's own workspace size on Hopper: a smaller one excludes algorithms, a larger one gains nothing."""

_MOST_PRODUCTS = 1024  # prepared at a time, a few KB each
_MOST_CALLS = 8 * _MOST_PRODUCTS
_FINALISTS = 4  # algorithms that are timed again, in more rounds
_GAIN = 0.99  # a tuned algorithm must take less than this fraction of the default's time


class Gemm:
    """Products on the current device, for one thread. Close it when no graph with its products will run again.

    A captured product keeps its algorithm and its lane's workspace.
    """

    forgotten: ClassVar[int] = 0
    """Number of times that products of any instance were dropped; recordings of dropped products are invalid."""

    def __init__(self, lanes: Sequence[Hashable] = ("main",), workspace_nbytes: int = WORKSPACE_NBYTES) -> None:
        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.workspace_nbytes = workspace_nbytes
        self._l2_nbytes = int(properties["l2CacheSize"])
        self._memory: dict[Hashable, cupy.cuda.Memory] = {}  # not from CuPy's pool
        self._workspaces: dict[Hashable, int] = {}
        self.add_lanes(lanes)
        try:
            self._handle = cublasLt.create()
            self.version: int = int(cublasLt.get_version())
        except Exception as error:
            raise BackendError(f"cuBLASLt does not start: {error}. {INSTALL_CTK}") from error
        self.choices: Choices = Choices(
            properties["name"].decode(), properties["multiProcessorCount"], self.version, workspace_nbytes
        )
        """Tuned algorithms: of this rank, of the file, or of rank 0."""
        self._products: dict[tuple[Problem, str], tuple[Product, GemmAlgorithm]] = {}
        # By the layouts of a call: the product, its algorithm, whether X and Y are exchanged, and the epilogue.
        self._calls: dict[Any, tuple[Product, GemmAlgorithm, bool, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def add_lanes(self, lanes: Iterable[Hashable]) -> None:
        """Allocate a workspace for each of these lanes."""
        for lane in lanes:
            self._memory[lane] = memory = cupy.cuda.Memory(self.workspace_nbytes)
            self._workspaces[lane] = int(memory.ptr)

    def close(self) -> None:
        """Free descriptors, handle and workspaces."""
        if self._handle:
            self._forget()
            cublasLt.destroy(self._handle)
            self._handle = 0
            self._workspaces.clear()
            self._memory.clear()

    def matmul(
        self,
        stream: Stream,
        alpha: complex,
        x: GpuArray,
        y: GpuArray,
        beta: complex,
        z: GpuArray,
        *,
        conj: tuple[bool, bool] = (False, False),
        lane: Hashable = "main",
        modes: GemmModes = EXACT,
        scales: tuple[Any, Any] = (None, None),
        tune: int | None = None,
        finish: Finish | None = None,
        c: GpuArray | None = None,
    ) -> bool:
        """Z := alpha X Y + beta C, in stream order; whether the epilogue was applied too, before Z was rounded.

        C has the strides and the alignment of Z; without it C is Z.
        """
        assert alpha != 0, "a product with alpha = 0 is a scaling of Z"
        address_x, address_y, address_z = x.data.ptr, y.data.ptr, z.data.ptr
        if not z.size:
            return True
        low = address_x % ALIGNMENT, address_y % ALIGNMENT, address_z % ALIGNMENT
        epilogue, bias = ("", 0) if finish is None else epilogue_of(finish, x, z)
        key = (
            *(x.shape, x.strides, y.shape, y.strides, z.shape, z.strides),
            *(x.dtype, y.dtype, z.dtype, low, conj, modes, tune is not None, epilogue),
        )
        call = self._calls.get(key)
        if call is None:
            problem, swapped = read(x, y, z, conj, modes)
            if tune is not None:
                assert isinstance(stream, int), "a recorded product is not tuned"
                cupy.cuda.runtime.streamSynchronize(stream)
                self.tune([problem], tune)
            call = self._prepare(key, problem, swapped, epilogue)
        product, algorithm, swapped, epilogue = call
        scale_x, scale_y = (0 if scale is None else scale.data.ptr for scale in scales)
        if swapped:
            address_x, address_y, scale_x, scale_y = address_y, address_x, scale_y, scale_x
        words = [
            address_x,
            address_y,
            address_z,
            bias if epilogue else 0,
            scale_x,
            scale_y,
            0 if c is None else c.data.ptr,
        ]
        workspace = self._workspaces[lane]

        def start(handle: int) -> None:
            a, b, address_z, *others = words
            product.launch(algorithm, alpha, a, b, beta, address_z, workspace, handle, *others)

        give(stream, start, words)
        return finish is None or bool(epilogue)

    def load(self) -> None:
        """Add the algorithms of the file; a corrupt file is ignored with a warning (local)."""
        self._change(self.choices.load)

    def share(self, ranks: Ranks) -> None:
        """**Collective.** Add the algorithms of rank 0, on ranks with the same GPU.

        All ranks have the same algorithms if only rank 0 tunes and loads.
        """
        self._change(lambda: self.choices.share(ranks))

    def tune(self, problems: Iterable[Problem], stream: int, *, candidates: int = 32) -> None:
        """Measure the candidate algorithms and keep the fastest; synchronises, and allocates operands.

        On an H100 in bfloat16 the best candidate was up to 14 % faster than the heuristics' first, and from 128 rows on
        within 1 % of the best of some 300 algorithms (within 5 % at 16 rows).
        """
        todo = dict.fromkeys(problem for problem in problems if problem not in self.choices.entries)
        tuned = {problem: self._tune(problem, stream, candidates) for problem in todo}
        self._change(lambda: self.choices.entries.update(tuned))

    def _prepare(
        self, key: object, problem: Problem, swapped: bool, epilogue: str
    ) -> tuple[Product, GemmAlgorithm, bool, str]:
        """Prepare a call and keep it under `key`."""
        if len(self._calls) >= _MOST_CALLS:
            self._calls.clear()
        try:
            ready = self._ready(problem, epilogue)
        except BackendError:
            if not epilogue:
                raise
            ready, epilogue = self._ready(problem, ""), ""
        self._calls[key] = call = (*ready, swapped, epilogue)
        return call

    def _ready(self, problem: Problem, epilogue: str) -> tuple[Product, GemmAlgorithm]:
        """The product of a problem, and its algorithm."""
        key = problem, epilogue
        if key not in self._products:
            if len(self._products) >= _MOST_PRODUCTS:
                self._forget()
            product = Product(self._handle, self.workspace_nbytes, problem, epilogue)
            try:
                self._products[key] = product, self._algorithm(product, warned=bool(epilogue))
            except BaseException:
                product.close()
                raise
        return self._products[key]

    def _algorithm(self, product: Product, *, warned: bool) -> GemmAlgorithm:
        choice = self.choices.entries.get(product.problem)
        if choice is not None:
            algorithm = product.checked(choice.algorithm)
            if algorithm is not None:
                return algorithm
            if not warned:  # with an epilogue other algorithms may be needed
                text = f"cuBLASLt refuses the algorithm that was tuned for {product.problem}"
                warnings.warn(text, PblasWarning, stacklevel=2)
        return product.heuristics(8)[0]

    def _change(self, change: Callable[[], None]) -> None:
        """Change the choices, and drop all prepared products if one of them has another choice now."""
        before, entries = self.choices.entries.copy(), self.choices.entries
        change()
        if any(entries.get(problem) != before.get(problem) for problem, _ in self._products):
            self._forget()

    def _forget(self) -> None:
        """Drop all prepared products but not the choices; launches and captured graphs do not refer to products."""
        Gemm.forgotten += 1
        self._calls.clear()
        for product, _ in self._products.values():
            product.close()
        self._products.clear()

    def _tune(self, problem: Problem, stream: int, candidates: int) -> Choice:
        product = Product(self._handle, self.workspace_nbytes, problem)
        try:
            algorithms = self._candidates(product, candidates)
            with Stopwatch(product, stream, self._l2_nbytes) as stopwatch:
                rough = stopwatch.seconds(algorithms, rounds=3)
                default = next(iter(rough))  # the heuristics' first that runs
                finalists = dict.fromkeys((default, *sorted(rough, key=rough.__getitem__)[:_FINALISTS]))
                seconds = stopwatch.seconds(finalists, rounds=11)
        finally:
            product.close()
        best = min(seconds, key=seconds.__getitem__)
        if seconds[best] > _GAIN * seconds[default]:
            best = default
        return Choice(best.data, seconds[best], seconds[default])

    def _candidates(self, product: Product, count: int) -> list[GemmAlgorithm]:
        """The heuristics' algorithms, best first (cuBLASLt returns 8), then usable ones of related problems."""
        algorithms = {algorithm.data: algorithm for algorithm in product.heuristics(count)}
        for relative in product.problem.relatives():
            related = Product(self._handle, self.workspace_nbytes, relative)
            try:
                for algorithm in related.heuristics(count):
                    if algorithm.data not in algorithms and product.checked(algorithm.data):
                        algorithms[algorithm.data] = algorithm
            except BackendError:
                continue
            finally:
                related.close()
        return list(algorithms.values())[:count]
