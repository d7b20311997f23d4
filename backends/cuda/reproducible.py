"""Products on a GPU whose bits depend on the elements alone: not on sizes, storage orders or places of the matrices.

cuBLASLt multiplies by algorithms that add in one order. Each is tested: a few rows and columns that recur must give
equal elements at all places, and those of one algorithm that stands for the GPU. Operands are multiplied in one storage
order, along K, with zeros up to multiples of 16 rows, columns and elements of K; others are copied first.
"""

from __future__ import annotations

import itertools
import warnings
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast
from zlib import crc32

import cupy
import numpy as np

from pblas import errors
from pblas.backends.cpu.reproducible import DEEP, Kernel, equal_elements, trial_shapes, trial_vectors
from pblas.backends.cuda import transfer
from pblas.backends.cuda.cublaslt import GemmAlgorithm, Product
from pblas.backends.cuda.gemm import Gemm
from pblas.backends.cuda.gemm_problem import ALIGNMENT, Problem
from pblas.backends.cuda.strided_copy import StridedRegion
from pblas.backends.dtypes import Array, Dtype, GpuArray, accumulator_dtype
from pblas.backends.engine_limits import padded, pieces_nbytes
from pblas.backends.pieces import PieceProducts, PieceSizes, TreeSum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.cuda.kernels import Stream

_ORDER = 4096  # rows and columns of the product whose best algorithm stands for the GPU
_DEEPEST = 4096  # elements of K in a test
_KERNEL = Kernel(np.dtype(np.float32), ALIGNMENT, least=ALIGNMENT)
"""Multiples of 16: cuBLASLt refuses some algorithms for other numbers of rows, and forms single rows otherwise."""
_COUNT = 8  # algorithms that are tested for one shape


class TreeProducts(Protocol):
    """A kernel that forms products of 16 bits: adds those of pieces of K along the tree, or computes one triangle."""

    def serves(self, x: GpuArray, y: GpuArray, z: GpuArray) -> bool:
        """Whether it can form Z := X Y."""

    def reserve(self, pieces: int) -> None:
        """Reserve memory for the sums of so many pieces."""

    def matmul(self, stream: Stream, x: GpuArray, y: GpuArray, z: GpuArray, width: int) -> None:
        """Z := X Y with pieces of `width` elements of K."""

    def multiply_symmetric(
        self, stream: Stream, alpha: float, x: GpuArray, y: GpuArray, beta: float, c: GpuArray | None, z: GpuArray
    ) -> bool:
        """Z := alpha X Y + beta C, where X Y is symmetric; false if it cannot form it."""


class UniformGemm(Gemm):
    """Products of packed operands by algorithms that form all elements alike."""

    def __init__(self, tree_gemm: Callable[[], TreeProducts] | None = None) -> None:
        super().__init__()
        self._tree = None if tree_gemm is None else tree_gemm()
        self._passing: dict[tuple[str, int], bool] = {}  # by dtype and K of a test: whether that kernel passes it
        # By the dtypes of operands and result and K of a test: its elements, and whether algorithms pass it.
        self._tested: dict[tuple[str, str, int], tuple[Array, dict[bytes, bool]]] = {}

    def prepare(self, dtype: Dtype, shape: tuple[int, int], depth: int, result: Dtype) -> bool:
        """Test algorithms for products of this K: those that are best for a shape, on the current device.

        Returns:
            whether some algorithm passes. With a result of the accumulator's dtype, one does, or the call raises.
        """
        total, depth = accumulator_dtype(dtype), padded(depth)
        deep = min(depth, _DEEPEST)
        for name in dict.fromkeys((total, result)):
            key = dtype.name, name.name, deep
            if key not in self._tested:
                standard = self._tested.get((dtype.name, total.name, deep))
                self._tested[key] = self._standard(dtype, deep) if standard is None else (standard[0].astype(name), {})
        elements, tested = self._tested[dtype.name, result.name, deep]
        with closing(self._product(dtype, *shape, depth, result)) as product:
            for algorithm in product.heuristics(_COUNT):
                if algorithm.data not in tested:
                    found = self._elements(algorithm, dtype, depth, result)
                    tested[algorithm.data] = found is not None and np.array_equal(found, elements)
                if tested[algorithm.data]:
                    return True
        return any(tested.values())

    def multiply(self, stream: Stream, x: GpuArray, y: GpuArray, beta: float, z: GpuArray) -> None:
        """Z := X Y + beta Z, for a K and dtypes that are prepared.

        cuBLASLt may refuse all tested algorithms for a shape. Then halves of Z are formed, whose elements have the bits
        that Z would have; each algorithm has formed a product of 16 rows and columns in its test.
        """
        try:
            self.matmul(stream, 1, x, y, beta, z)
        except _UnfitError:
            rows, columns = z.shape
            half = padded(max(rows, columns) // 2)
            if half >= max(rows, columns):
                raise errors.BackendError(
                    f"reproducible=True: cuBLASLt {self.version} refuses a product of {rows} x {columns} elements by "
                    f"the algorithm of its test"
                ) from None
            for part in (slice(half), slice(half, None)):
                if rows >= columns:
                    self.multiply(stream, x[part], y, beta, z[part])
                else:
                    self.multiply(stream, x, y[:, part], beta, z[:, part])

    def tree(self, dtype: Dtype, depths: set[int], pieces: int) -> TreeProducts | None:
        """The kernel that adds so many pieces of K, if it forms the elements of these depths as cuBLASLt does."""
        if self._tree is None or dtype.itemsize != 2:
            return None
        try:
            self._tree.reserve(pieces)
            passes = all(self._passes(self._tree, dtype, min(padded(depth), _DEEPEST)) for depth in depths)
        except errors.BackendError as caught:  # D has the same bits without it
            warnings.warn(f"reproducible products take more time: {caught}", errors.PblasWarning, stacklevel=2)
            return None
        return self._tree if passes else None

    def _passes(self, tree: TreeProducts, dtype: Dtype, depth: int) -> bool:
        if (dtype.name, depth) not in self._passing:
            elements, _ = self._tested[dtype.name, accumulator_dtype(dtype).name, depth]

            def multiply(left: GpuArray, right: GpuArray, z: GpuArray) -> None:
                tree.matmul(cupy.cuda.get_current_stream().ptr, left, right.T, z, left.shape[1])

            found = equal_elements(_products(dtype, depth, dtype, multiply))
            self._passing[dtype.name, depth] = found is not None and np.array_equal(found, elements.astype(dtype))
        return self._passing[dtype.name, depth]

    def fingerprint(self, dtype: Dtype) -> str:
        """Bits of a product: ranks whose GPU or cuBLASLt adds in another order have another one."""
        total = accumulator_dtype(dtype)
        self.prepare(dtype, (_KERNEL.unit, _KERNEL.unit), DEEP, total)
        return f"{crc32(self._tested[dtype.name, total.name, DEEP][0].tobytes()):08x}"

    def _product(self, dtype: Dtype, m: int, n: int, k: int, result: Dtype) -> Product:
        """Z := X Y with packed operands, each stored along K."""
        names = dtype.name, result.name
        problem = Problem(m, n, k, "T", "N", k, k, m, 1, 0, 0, 0, *names)
        return Product(self._handle, self.workspace_nbytes, problem)

    def _standard(self, dtype: Dtype, depth: int) -> tuple[Array, dict[bytes, bool]]:
        total = accumulator_dtype(dtype)
        with closing(self._product(dtype, _ORDER, _ORDER, depth, total)) as product:
            for algorithm in product.heuristics(_COUNT):
                elements = self._elements(algorithm, dtype, depth, total)
                if elements is not None:
                    return elements, {algorithm.data: True}
        raise errors.BackendError(
            f"reproducible=True: no algorithm of cuBLASLt {self.version} forms all elements of a product of "
            f"{dtype.name} matrices in one order; pass reproducible='exact' for float64 or float32, or leave it out"
        )

    def _elements(self, algorithm: GemmAlgorithm, dtype: Dtype, depth: int, result: Dtype) -> Any:
        """The elements of a test; None if they differ, or if the algorithm does not support all shapes."""
        try:
            return equal_elements(_products(dtype, depth, result, partial(self._multiply, algorithm)))
        except _UnfitError:
            return None

    def _multiply(self, algorithm: GemmAlgorithm, left: GpuArray, right: GpuArray, z: GpuArray) -> None:
        """Z := X Y by columns, given X and Y^T by rows."""
        (m, k), n = left.shape, len(right)
        with closing(self._product(left.dtype, m, n, k, z.dtype)) as product:
            checked = product.checked(algorithm.data)
            if checked is None:
                raise _UnfitError
            workspace, stream = self._workspaces["main"], cupy.cuda.get_current_stream()
            product.launch(checked, 1, left.data.ptr, right.data.ptr, 0, z.data.ptr, workspace, stream.ptr)

    def _algorithm(self, product: Product, *, warned: bool) -> GemmAlgorithm:
        problem = product.problem
        _, tested = self._tested[problem.dtype, problem.dtype_z, min(problem.k, _DEEPEST)]
        for algorithm in product.heuristics(_COUNT):
            if tested.get(algorithm.data):
                return algorithm
        for data, fits in tested.items():
            checked = product.checked(data) if fits else None
            if checked is not None:
                return checked
        raise _UnfitError


class _UnfitError(Exception):
    """No tested algorithm supports a problem."""


def _products(
    dtype: Dtype, depth: int, result: Dtype, multiply: Callable[[GpuArray, GpuArray, GpuArray], None]
) -> Iterator[Array]:
    """Products, in host memory, in which rows and columns recur: multiply(X by rows, Y^T by rows, Z by columns)."""
    vectors = [
        transfer.on_gpu(np.ascontiguousarray(w).view(np.uint8)) for w in trial_vectors(dtype, min(depth, _DEEPEST))
    ]
    stream = cupy.cuda.get_current_stream()
    for m, n in trial_shapes(_KERNEL):
        words = (cupy.take(w, cupy.arange(length) % len(w), axis=0) for length, w in zip((m, n), vectors, strict=True))
        left, right = (transfer.new_array((len(w), w.shape[1] // dtype.itemsize), dtype, w.data) for w in words)
        z = cupy.empty((n, m * result.itemsize), np.uint8)
        multiply(left, right, transfer.new_array((m, n), result, z.data, order="F"))
        stream.synchronize()
        yield z.get().view(result).T


class PieceGemm(PieceProducts):
    """The products of `Device.piece_gemm`, launched on the lane of `arrays`, the `DeviceArrays` of this GPU."""

    _direct = False
    """Whether K is one piece, and cuBLASLt rounds its product to D."""
    _tree: TreeProducts | None = None
    """The kernel that adds the pieces itself, if there is one for the dtype."""

    def __init__(
        self, arrays: Any, sizes: PieceSizes, dtype: Dtype, last: int, allocate: Callable[[int], Array]
    ) -> None:
        width, shape, pieces, total, transposed = sizes
        self._arrays, self._width, self._dtype, self._transposed = arrays, width, total, transposed
        m, n = shape[::-1] if transposed else shape
        self._tile, lengths = pieces_nbytes(m, n, width, total.itemsize, TreeSum.depth(pieces))
        for depth in {width, last}:
            arrays.uniform_gemm.prepare(dtype, self._tile, depth, total)
        rows, columns = padded(max(m, 1)), padded(max(n, 1))
        self._direct = (pieces, last) == (1, width) and all(
            arrays.uniform_gemm.prepare(dtype, shape, width, dtype)
            for shape in ((rows, columns), (columns, rows))  # D may be stored by columns or by rows
        )
        self._tree = arrays.uniform_gemm.tree(dtype, {width, last}, pieces)
        self._is_served: dict[object, bool] = {}  # whether the kernel serves matrices of these sizes and strides
        self._operands, self._sums = self._divided(lengths, allocate, 2)

    def _divided(self, lengths: list[int], allocate: Callable[[int], Array], count: int) -> tuple[list[Any], list[Any]]:
        """Memory of these lengths: the first ones, and the others."""
        starts = list(itertools.accumulate(lengths, initial=0))
        memory = allocate(starts[-1])
        self.nbytes = int(memory.nbytes)
        blocks = [memory[start:] for start in starts[:-1]]
        return blocks[:count], blocks[count:]

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        if beta == 0:
            gpu_x, gpu_y, gpu_z = cast("tuple[GpuArray, GpuArray, GpuArray]", (x, y, z))
            self.launch(self._arrays.stream, alpha, gpu_x, gpu_y, gpu_z, conj)
        else:
            self._finish(alpha, x, y, beta, z, conj)

    def launch(
        self, stream: Stream, alpha: complex, x: GpuArray, y: GpuArray, z: GpuArray, conj: tuple[bool, bool]
    ) -> None:
        """Z := alpha X Y on a stream."""
        if alpha == 1 and z.dtype == x.dtype and z.size:
            if self._tree is not None and self._serves(x, y, z):
                self._tree.matmul(stream, x, y, z, self._width)
                return
            if self._direct and self._is_direct(x, y, z, conj):
                self._arrays.uniform_gemm.multiply(stream, x, y, 0, z)
                return
        with self._arrays.on_stream(int(stream)):
            self._finish(alpha, x, y, 0, z, conj)

    def _finish(self, alpha: complex, x: Any, y: Any, beta: complex, z: Any, conj: tuple[bool, bool]) -> None:
        for block, total in self.totals(x, y, conj):
            self._arrays.finish_sum(alpha, total, beta, z[block])

    def _is_direct(self, x: GpuArray, y: GpuArray, z: GpuArray, conj: tuple[bool, bool]) -> bool:
        """Whether cuBLASLt can form Z, whose K is one piece, in its memory: no operand is copied."""
        lines = z if z.strides[1] == z.itemsize else z.T
        aligned = lines.strides[1] == z.itemsize and not (z.data.ptr % ALIGNMENT or lines.strides[0] % ALIGNMENT)
        ready = _is_packed(x, conj=conj[0]) and _is_packed(y.T, conj=conj[1])
        return bool(aligned and ready and x.shape[1] == self._width)

    def _serves(self, x: GpuArray, y: GpuArray, z: GpuArray) -> bool:
        """Whether the kernel that adds pieces can form Z from operands that are stored along K."""
        assert self._tree is not None, "it is asked"
        arrays = x, y, z
        key = *(w.shape for w in arrays), *(w.strides for w in arrays), *(w.data.ptr % ALIGNMENT for w in arrays)
        if key not in self._is_served:
            along_k = x.strides[1] == y.strides[0] == x.itemsize
            self._is_served[key] = along_k and self._tree.serves(x, y, z)
        return self._is_served[key]

    def totals(
        self, x: Array, y: Array, conj: tuple[bool, bool] = (False, False)
    ) -> Iterator[tuple[tuple[slice, slice], Array]]:
        if self._transposed:
            x, y, conj = y.T, x.T, conj[::-1]
        (m, k), n, (tile_m, tile_n) = x.shape, y.shape[1], self._tile
        for i in range(0, m, tile_m):
            rows = slice(i, min(i + tile_m, m))
            for j in range(0, n, tile_n):
                columns = slice(j, min(j + tile_n, n))
                tree = TreeSum(self._new_sums((rows.stop - i, columns.stop - j)), self._add)
                for start in range(0, k, self._width):
                    inner = slice(start, min(start + self._width, k))
                    is_packed = j > 0 and k <= self._width  # X is that of the block before
                    # sum[m, n] = X[m, k] Y[k, n], or += with the second of two pieces
                    tree.add(partial(self._form, x[rows, inner], y[inner, columns], conj, is_packed=is_packed))
                total = tree.total[: rows.stop - i, : columns.stop - j]
                if self._transposed:
                    yield (columns, rows), total.T
                else:
                    yield (rows, columns), total

    def _new_sums(self, shape: tuple[int, int]) -> list[Array]:
        """Arrays of this shape, padded to multiples of 16, for sums along the tree."""
        whole = padded(shape[0]), padded(shape[1])
        return [self._arrays.array(memory, whole, self._dtype) for memory in self._sums]

    def _add(self, x: Any, z: Any) -> None:
        self._arrays.add_scaled(1, x, 1, z)

    def _form(
        self, x: GpuArray, y: GpuArray, conj: tuple[bool, bool], z: GpuArray, *, adds: bool, is_packed: bool
    ) -> None:
        """Z := X Y, or Z += X Y, rounded once more."""
        left = self._packed(self._operands[0], x, conj=conj[0], is_packed=is_packed)
        right = self._packed(self._operands[1], y.T, conj=conj[1])
        self._arrays.uniform_gemm.multiply(self._arrays.stream, left, right.T, float(adds), z)

    def _packed(self, memory: Array, x: GpuArray, *, conj: bool, is_packed: bool = False) -> GpuArray:
        """X by rows, with zeros up to multiples of 16 rows and columns: X itself if that is all."""
        arrays, (m, k) = self._arrays, x.shape
        if _is_packed(x, conj=conj):
            return x
        conj = conj and x.dtype.kind == "c"
        whole = arrays.array(memory, (padded(m), padded(k)), x.dtype, "C")
        if is_packed:
            return whole
        if whole.shape != x.shape or not conj:
            arrays.strided_copy.pad(arrays.stream, x, whole)
        if conj:
            regions = StridedRegion.of(x), StridedRegion.of(whole)
            arrays.strided_copy.combine(arrays.stream, (x.dtype, x.dtype), x.shape, *regions, 1, 0, conj=True)
        return whole


def _is_packed(x: GpuArray, *, conj: bool) -> bool:
    """Whether X is by rows, with multiples of 16 rows and columns at multiples of 16 bytes, and not conjugated."""
    misaligned = (*x.shape, x.data.ptr, x.strides[0])
    by_rows = x.strides[1] == x.itemsize and not any(length % ALIGNMENT for length in misaligned)
    return bool(by_rows and not (conj and x.dtype.kind == "c"))
