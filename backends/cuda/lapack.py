"""Factorizations of local blocks on a GPU, by cuSOLVER's routines of 64 bits and kernels of ours.

All work is launched on a stream, and the host waits for nothing: INFO and pivots stay in the GPU's memory.

See `pblas.backends.cpu.lapack`. QR takes panels by one kernel, other matrices by cuSOLVER. cuSOLVER's geqrf takes 9 us
for each column of a panel of 8192 rows, since it launches several kernels for it (H200, float64); the kernel's CTAs
wait for each other instead.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime
from nvmath import CudaDataType
from nvmath.bindings import cusolverDn

from pblas.backends.cuda import streams
from pblas.backends.cuda.programs import Program, compiling
from pblas.backends.gpu_info import INSTALL_CTK
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from pblas.backends.dtypes import Array, Dtype, GpuArray


_TYPES = {"f": "float", "d": "double", "F": "float2", "D": "double2"}
"""Types of elements, by NumPy's letters of dtypes."""
_EXCHANGING, _COOPERATIVE = {"reflectors", "chase"}, {"chase"}
"""Files after exchange.cuh, and those all of whose CTAs are resident at a time, or the launch fails."""
THREADS = 256  # of a CTA, where a kernel does not ask for another number


class DtypeKernels:
    """The kernels of one source file of this folder, templates whose first argument is the type of elements.

    Each is a program of its own, compiled at its first use or after `start`.

    Args:
        name: the file's, without its ending.
        macros: definitions with integers.
    """

    def __init__(self, name: str, **macros: int) -> None:
        folder = Path(__file__).parent
        names = "scalars.cuh", *(["exchange.cuh"] if name in _EXCHANGING else []), f"{name}.cu"
        self._code = "".join([f"#define {key} {value}\n" for key, value in macros.items()])
        self._code += "".join((folder / name).read_text(encoding="utf-8") for name in names)
        self._cooperative = name in _COOPERATIVE
        self._names = tuple(_KERNELS.findall(self._code))
        self._programs: dict[str, Future[Program]] = {}
        self._functions: dict[tuple[str, str], Any] = {}

    def programs(self, letter: str, *kernels: str) -> dict[str, Program]:
        """The programs of kernels by their instances; without names, of all that have no argument but the dtype."""
        instances = [_instance(name, letter) for name in kernels or self._names]
        return {x: Program(self._code, (x,), cooperative=self._cooperative) for x in instances}

    def start(self, letter: str, *kernels: str) -> None:
        """Begin to compile the `programs` of kernels."""
        new = {key: x for key, x in self.programs(letter, *kernels).items() if key not in self._programs}
        self._programs |= dict(zip(new, compiling([*new.values()]), strict=True))

    def launch(
        self,
        stream: int,
        name: str,
        letter: str,
        ctas: int,
        arguments: tuple[object, ...],
        *,
        shared_nbytes: int = 0,
        threads: int = THREADS,
    ) -> None:
        """Launch a kernel; `name: arguments` names one whose template has arguments after the dtype."""
        function = self._function(name, letter, shared_nbytes)
        with cupy.cuda.Stream.from_external(streams.Handle(stream)):
            function((ctas,), (threads,), arguments, shared_mem=shared_nbytes)

    def most_resident(self, name: str, letter: str, threads: int, shared_nbytes: int) -> int:
        """CTAs of a kernel with this dynamic shared memory that the current device holds at a time."""
        kernel = self._function(name, letter, shared_nbytes).kernel
        ctas = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.ptr, threads, shared_nbytes)
        return int(ctas) * int(cupy.cuda.Device().attributes["MultiProcessorCount"])

    def _function(self, name: str, letter: str, shared_nbytes: int) -> Any:
        """A kernel, which is compiled the first time."""
        key = name, letter
        function = self._functions.get(key)
        if function is None:
            instance = _instance(name, letter)
            if instance not in self._programs:
                self.start(letter, name)
            function = self._functions[key] = self._programs[instance].result().get_function(instance)
        if shared_nbytes > function.max_dynamic_shared_size_bytes:
            attributes = cupy.cuda.Device().attributes
            most = attributes["MaxSharedMemoryPerBlockOptin"] - function.shared_size_bytes
            function.max_dynamic_shared_size_bytes = most
        return function


_KERNELS = re.compile(
    r"^template <class \w+(?:, class Real = real_of<T>)?>\n__global__ void(?: __launch_bounds__\(.*\))?\s+(\w+)\(",
    re.MULTILINE,
)
"""Kernels of a source that have no other argument than the dtype."""


def _instance(name: str, letter: str) -> str:
    """The instance of a template for a dtype.

    >>> _instance("lower", "d"), _instance("invert: 4, true", "F")
    ('lower<double>', 'invert<float2, 4, true>')
    """
    kernel, _, arguments = name.partition(": ")
    return f"{kernel}<{', '.join(filter(None, (_TYPES[letter], arguments)))}>"


_KINDS = {
    "f": CudaDataType.CUDA_R_32F,
    "d": CudaDataType.CUDA_R_64F,
    "F": CudaDataType.CUDA_C_32F,
    "D": CudaDataType.CUDA_C_64F,
}
"""cuSOLVER's data types, by NumPy's letters of dtypes."""
_LOWER = 0  # cublasFillMode_t
_INVERTING = 128, 4  # threads that invert a triangle, and columns that they invert: `COLUMNS` of invert.cu
_PIECES = 4, 8, 16  # of 32 rows each, that a warp holds in registers
MOST_INVERTED = 32 * max(_PIECES)  # order of a triangle that is inverted at most
INVERTED = 128
"""Order of the inverted blocks of any triangle; those of a factor may be larger, since they are well conditioned.
Source: MAGMA, magmablas_dtrsm, inverts blocks of 128."""
_MOST_EXCHANGES = 512
"""Exchanges of one list: its 4 integers each, and the elements of twice as many rows, are in shared memory."""


class Lapack:
    """cuSOLVER on the current device, for one thread, with a workspace for each stream that it is used on.

    Until the streams are idle, memory of `empty` is not reused, and `keep` keeps memory that larger one replaces.
    """

    def __init__(self, empty: Callable[[int], Any], keep: Callable[[Any], None]) -> None:
        self._empty, self._keep = empty, keep
        try:
            self._handle, self._params = cusolverDn.create(), cusolverDn.create_params()
        except Exception as error:
            raise BackendError(f"cuSOLVER does not start: {error}. {INSTALL_CTK}") from error
        self._kernels, self.inversion = DtypeKernels("lapack"), DtypeKernels("invert")
        self._splits = DtypeKernels("split")
        self._memory: dict[tuple[int, str], Any] = {}
        self._hosts: list[Any] = [np.empty(0, np.uint8)]
        self._sizes: dict[Any, tuple[int, int]] = {}

    def close(self) -> None:
        """Free cuSOLVER's handle; nothing runs any more."""
        cusolverDn.destroy_params(self._params)
        cusolverDn.destroy(self._handle)
        self._memory.clear()

    def potrf(self, stream: int, x: GpuArray, info: GpuArray) -> None:
        """X := L with X = L L^H, for the lower triangle of a Hermitian X; 0 above the diagonal."""
        n, ld = x.shape[0], lda(x)
        if not n:
            return
        self._kernels.start(x.dtype.char, "lower", "find_nan")
        self.lower(stream, x)
        matrix = _LOWER, n, _KINDS[x.dtype.char], x.data.ptr, ld, _KINDS[x.dtype.char]
        buffers = self._buffers(stream, cusolverDn.xpotrf_buffer_size, matrix)
        cusolverDn.xpotrf(self._handle, self._params, *matrix, *buffers, info.data.ptr)
        found = *place(x), np.int32(n), np.int64(info.data.ptr)
        self._kernels.launch(stream, "find_nan", x.dtype.char, 1, found)

    def lower(self, stream: int, x: GpuArray) -> None:
        """X := its lower triangle, with 0 above the diagonal and real elements on it."""
        if x.size:
            self._kernels.launch(stream, "lower", x.dtype.char, x.shape[1], place(x))

    def mirror(self, stream: int, x: GpuArray) -> None:
        """Above the diagonal X := the adjoint of its lower triangle."""
        if x.size:
            tiles = -(-len(x) // 32)
            self._kernels.launch(stream, "mirror", x.dtype.char, tiles * tiles, (*place(x), np.int32(len(x))))

    def fix_signs(self, stream: int, x: GpuArray) -> None:
        """Multiply each column of X so that the first of its largest elements is real and positive."""
        if x.size:
            self._kernels.launch(stream, "fix_signs", x.dtype.char, x.shape[1], (*place(x), np.int32(len(x))))

    def split(self, stream: int, x: GpuArray, *, is_left: bool, conj: bool) -> Any:
        """[hi, hi, lo] of X = hi + lo on the left, or [hi; lo; hi], in TF32, until the next call for the stream.

        Source: Ootomo, Yokota, Recovering single precision accuracy from Tensor Cores, 2022.
        """
        (m, n), use = x.shape, "left" if is_left else "right"
        shape = (m, 3 * n) if is_left else (3 * m, n)
        y = cupy.ndarray(shape, x.dtype, self.memory(stream, f"split {use}", 3 * m * n * x.itemsize).data, order="F")
        step = m * n if is_left else m
        strides = (np.int64(stride // x.itemsize) for stride in x.strides)
        places = np.int64(x.data.ptr), *strides, np.int32(m), *place(y[:, :n] if is_left else y)
        arguments = *places, np.int64(step), np.int64(2 * step), np.int32(not is_left), np.int32(conj)
        self._splits.launch(stream, "split", x.dtype.char, n, arguments)
        return y

    def inverse(self, stream: int, t: GpuArray, *, unit: bool) -> GpuArray:
        """T^-1 of a lower triangle of at most MOST_INVERTED rows; see `inverses`."""
        return self.inverses(stream, t, unit=unit, order=MOST_INVERTED)

    def inverses(self, stream: int, t: GpuArray, *, unit: bool, order: int) -> Any:
        """Inverses of the blocks on the diagonal of a lower triangle, side by side, until the next call for the stream.

        All of them are computed at once.
        """
        n = t.shape[0]
        rows = min(n, order)
        x = cupy.ndarray((rows, n), t.dtype, self.memory(stream, "inverse", rows * n * t.itemsize).data, order="F")
        threads, columns = _INVERTING
        kernel = inversion(rows, by_columns=t.strides[0] == t.itemsize)
        strides = (np.int64(stride // t.itemsize) for stride in t.strides)
        self.inversion.launch(
            *(stream, kernel, t.dtype.char, -(-n // columns)),
            (np.int64(t.data.ptr), *strides, *place(x), np.int32(n), np.int32(order), np.int32(unit)),
            threads=threads,
        )
        return x

    def getrf(self, stream: int, x: GpuArray, pivots: GpuArray, info: GpuArray) -> None:
        """X := L and U with P X = L U by partial pivoting; the diagonal of L is 1 and not stored."""
        if not x.size:
            return
        kind = _KINDS[x.dtype.char]
        matrix = *x.shape, kind, x.data.ptr, lda(x)
        buffers = self._buffers(stream, cusolverDn.xgetrf_buffer_size, (*matrix, kind))
        cusolverDn.xgetrf(self._handle, self._params, *matrix, pivots.data.ptr, kind, *buffers, info.data.ptr)

    def syevd(self, stream: int, x: GpuArray, *, vectors: bool) -> tuple[Array, int]:
        """The eigenvalues of the lower triangle of a Hermitian X, in host memory, and INFO; X := V, or is lost.

        Waits for the stream. The workspace, of more elements than X has, is not kept.
        """
        real = np.zeros(0, x.dtype).real.dtype
        values = self._empty(len(x) * real.itemsize).view(real)
        place = _KINDS[x.dtype.char], x.data.ptr, lda(x), _KINDS[real.char], values.data.ptr
        matrix = int(vectors), _LOWER, len(x), *place, _KINDS[x.dtype.char]
        cusolverDn.set_stream(self._handle, stream)
        on_device, on_host = map(int, cusolverDn.xsyevd_buffer_size(self._handle, self._params, *matrix))
        memory, host, info = self._empty(on_device), np.empty(on_host, np.uint8), self._empty(4).view(np.int32)
        work = memory.data.ptr, on_device, host.ctypes.data, on_host
        cusolverDn.xsyevd(self._handle, self._params, *matrix, *work, info.data.ptr)
        runtime.streamSynchronize(stream)
        return values.get(), int(info.get()[0])

    def geqrf(self, stream: int, x: GpuArray, tau: GpuArray) -> None:
        """X := R and V with X = Q R and Q = H_1 H_2 ..., H_j = I - tau_j v_j v_j^H; the ones of V are not stored."""
        kind, info = _KINDS[x.dtype.char], self.memory(stream, "info", 8)
        matrix = *x.shape, kind, x.data.ptr, lda(x), kind, tau.data.ptr, kind
        buffers = self._buffers(stream, cusolverDn.xgeqrf_buffer_size, matrix)
        cusolverDn.xgeqrf(self._handle, self._params, *matrix, *buffers, info.data.ptr)

    def swap_rows(self, stream: int, x: GpuArray, pivots: GpuArray, start: int = 0, *, backward: bool = False) -> None:
        """Exchange row i of X with row pivots[i], one after the other for i from `start` on."""
        if not x.size:
            return
        starts, ld = range(start, len(pivots), _MOST_EXCHANGES), lda(x)
        self._kernels.start(x.dtype.char, "list_exchanges", "move_rows")
        lists = self.memory(stream, "lists", 4 * _MOST_EXCHANGES * 4).view(np.int32)
        for first in reversed(starts) if backward else starts:
            count = min(_MOST_EXCHANGES, len(pivots) - first)
            to, origin = lists[: 2 * count], lists[2 * _MOST_EXCHANGES :][: 2 * count]
            part = pivots[first : first + count]
            places = np.int64(to.data.ptr), np.int64(origin.data.ptr)
            exchanges = np.int64(part.data.ptr), np.int64(first), np.int32(count), np.int32(backward)
            letter = x.dtype.char
            listed = exchanges + places
            self._kernels.launch(stream, "list_exchanges", letter, 1, listed, shared_nbytes=4 * 4 * count)
            rows = np.int64(x[first:].data.ptr), np.int64(ld), *places, np.int32(2 * count)
            nbytes = 2 * count * x.itemsize
            self._kernels.launch(stream, "move_rows", letter, x.shape[1], rows, shared_nbytes=nbytes)

    def _buffers(self, stream: int, ask: Callable[..., Any], matrix: tuple[object, ...]) -> tuple[int, int, int, int]:
        """cuSOLVER's workspace on the GPU and on the host, addresses and bytes, for a routine on a stream."""
        cusolverDn.set_stream(self._handle, stream)
        key = ask.__name__, matrix[:3], matrix[4]
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = ask(self._handle, self._params, *matrix)
        on_device, on_host = map(int, sizes)
        if self._hosts[-1].nbytes < on_host:  # cuSOLVER may still read the smaller ones
            self._hosts.append(np.empty(on_host, np.uint8))
        memory = self.memory(stream, "workspace", on_device)
        return int(memory.data.ptr), on_device, int(self._hosts[-1].ctypes.data), on_host

    def memory(self, stream: int, use: str, nbytes: int) -> Any:
        """Memory for one use on one stream, whose work is in order."""
        memory = self._memory.get((stream, use))
        if memory is None or memory.nbytes < nbytes:
            if memory is not None:
                self._keep(memory)
            memory = self._memory[stream, use] = self._empty(nbytes)
        return memory


def inversion(rows: int, *, by_columns: bool) -> str:
    """The kernel that inverts triangles of this many rows, whose columns or rows are contiguous."""
    pieces = next(count for count in _PIECES if rows <= 32 * count)
    return f"invert: {pieces}, {str(by_columns).lower()}"


def place(x: GpuArray) -> tuple[np.int64, np.int64]:
    """Address and leading dimension of an array, as kernels take them."""
    return np.int64(x.data.ptr), np.int64(lda(x))


def lda(x: GpuArray) -> int:
    """Leading dimension of an array in Fortran order, which may have one column."""
    m, n = x.shape
    assert m <= 1 or x.strides[0] == x.itemsize, "in Fortran order"
    return int(x.strides[1]) // int(x.itemsize) if n > 1 else max(m, 1)


_WIDTH, _PAD, _STAGE = 32, 33, 32  # of the kernel of panels, as in reflectors.cu
_LINE = 16  # bytes of a line: 8 of data, with two flags
_ROWS = 256  # rows of a CTA, where there are CTAs enough
NARROW, _NARROW_ROWS = 64, 128
"""Columns of a panel that products factor, as in reflectors.cu, and rows of a CTA then, where there are CTAs enough."""
_NOWHERE = np.int64(0)
_STATIC = 2048  # bytes of shared memory of the kernel beside those of its launch, at most
MOST_CTAS = 64  # CTAs of a panel, if they can hold its rows: the update beside it keeps the other multiprocessors


class Reflectors:
    """Householder reflectors on the current device."""

    def __init__(self, lapack: Lapack, gemm: Callable[..., None]) -> None:
        self._lapack, self._gemm = lapack, gemm
        self.kernels = DtypeKernels("reflectors")

    @cached_property
    def _limits(self) -> tuple[int, int]:
        """Multiprocessors, and bytes of shared memory that a CTA can have."""
        attributes = cupy.cuda.Device().attributes
        return attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"]

    def start(self, letter: str, columns: int, *others: str) -> None:
        """Begin to compile the kernels of panels with this many columns, and others."""
        self.kernels.start(letter, "factor_panel", "close_triangle", "unit_lower", *others)
        self._lapack.inversion.start(letter, inversion(columns, by_columns=True))

    def geqrt(self, stream: int, x: Array, t: Array) -> None:
        """X := R and V with X = Q R and Q = H_1 H_2 ..., H_b = I - V_b T_b V_b^H for each block b of nb columns."""
        nb, k = t.shape
        if not k:
            return
        tau = self._array(stream, "tau", (k, 1), x.dtype)
        ctas, height = self._shape(x) if k <= nb else (0, 0)
        if ctas:
            self._factor(stream, x, tau, t, (ctas, height))
            return
        self._lapack.geqrf(stream, x, tau)
        for start in range(0, k, nb):
            stop = min(start + nb, k)
            self.larft(stream, x[start:, start:stop], tau[start:stop], t[:, start:stop])

    def factor_narrow(self, stream: int, x: Array, t: Array) -> bool:
        """As `geqrt`, of a panel of NARROW columns by a kernel of products; False if it does not take the panel."""
        (m, n), (processors, nbytes), dtype, edge = x.shape, self._limits, x.dtype, NARROW + 1
        most = (((nbytes - _STATIC) // dtype.itemsize - 3 * NARROW * edge) // NARROW - 1) // _STAGE * _STAGE
        ctas = max(1, min(-(-m // _NARROW_ROWS), MOST_CTAS))
        height = -(-max(NARROW, -(-m // ctas)) // _STAGE) * _STAGE
        height = min(height, most)
        shape = self._shape(x)
        if n != NARROW or m < n or height < NARROW or (ctas := -(-m // height)) > processors or not shape[0]:
            return False
        parts, flags = (
            self._array(stream, "parts", (NARROW * NARROW, ctas + 3), dtype),
            self._flags(stream, "narrow", 1),
        )
        far = _address(flags[4:])  # after the counter
        places = *place(t), _address(parts), _address(flags), far
        arguments = *place(x), np.int32(m), np.int32(height + 1), np.int32(height), *places
        shared = dtype.itemsize * NARROW * (height + 1 + 3 * edge)
        self.kernels.launch(stream, "factor_narrow", dtype.char, ctas, arguments, shared_nbytes=shared)
        # An ill-conditioned panel, of which only the GPU knows
        self._factor(stream, x, self._array(stream, "tau", (n, 1), dtype), t, shape, wanted=far)
        return True

    def larft(self, stream: int, x: Array, tau: Array, t: Array) -> None:
        """T := the triangle with H_1 H_2 ... H_k = I - V T V^H, 0 below its diagonal."""
        k = len(tau)
        v = self.unit_lower(stream, x)
        gram = self._array(stream, "triangle", (k, k), x.dtype)
        self._gemm(1, v.T, v, 0, gram, conj=(True, False))
        self.kernels.launch(stream, "scale_columns", x.dtype.char, k, (*place(gram), np.int32(k), _address(tau)))
        self._close(stream, gram, tau, t)

    def multiply_q(self, stream: int, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool) -> None:
        """C := H C for a block of reflectors, H = I - V T V^H, or with H^H or a conjugate.

        V is copied with its ones and zeros, which is sooner than products of its two parts.

        Source: Schreiber and Van Loan, A storage-efficient WY representation for products of Householder
            transformations, 1989; LAPACK, xLARFB.
        """
        k, n = v.shape[1], c.shape[1]
        v = self.unit_lower(stream, v)
        both = self._array(stream, "products", (k, 2 * n), c.dtype)
        w, tw = both[:, :n], both[:, n:]
        self._gemm(1, v.T, c, 0, w, conj=(not conj, False))
        self._gemm(1, t.T if adjoint else t, w, 0, tw, conj=(adjoint != conj, False))
        self._gemm(-1, v, tw, 1, c, conj=(conj, False))

    def unit_lower(self, stream: int, x: Array, y: Array | None = None) -> Any:
        """Y := X with ones on its diagonal and zeros above it.

        Without Y a new array, until the next call for the stream.
        """
        y = self._array(stream, "unit lower", x.shape, x.dtype) if y is None else y
        if x.size:
            arguments = *place(x), np.int32(len(x)), *place(y)
            self.kernels.launch(stream, "unit_lower", x.dtype.char, x.shape[1], arguments)
        return y

    def _shape(self, x: Array) -> tuple[int, int]:
        """CTAs of a panel, and rows of their tiles; (0, 0) for a panel that they cannot hold."""
        (m, n), (processors, nbytes) = x.shape, self._limits
        fixed = _WIDTH * (2 * _PAD + _WIDTH) + THREADS
        most = ((nbytes // x.itemsize - fixed) // _WIDTH - 1) // _STAGE * _STAGE
        ctas = max(1, min(-(-m // _ROWS), MOST_CTAS, processors))
        ctas = max(ctas, -(-m // most))
        height = -(-max(_WIDTH, -(-m // ctas)) // _STAGE) * _STAGE
        return (ctas, height) if ctas <= processors and min(m, n) <= MOST_INVERTED else (0, 0)

    def _factor(
        self, stream: int, x: Array, tau: Array, t: Array, shape: tuple[int, int], wanted: np.int64 = _NOWHERE
    ) -> None:
        """X := R and V, tau and T, by a kernel of CTAs of a shape; where `wanted` is the address of a 0, nothing."""
        (m, n), dtype, (ctas, height) = x.shape, x.dtype, shape
        self.start(dtype.char, len(tau))
        triangle = self._array(stream, "triangle", (len(tau), len(tau)), dtype)
        exchange = self._array(stream, "exchange", (_WIDTH * ((n + 1) * ctas + n), 1), dtype)
        lines = -(-dtype.itemsize // 8) * 2 * _WIDTH * (ctas + 1)
        flags = self._flags(stream, "flags", lines + 1)  # the counter comes last
        ldv = height + 1  # an odd number, so that columns begin in different banks
        arguments = (
            *(*place(x), np.int32(m), np.int32(n), np.int32(ldv), _address(tau), *place(triangle)),
            *(_address(exchange), _address(flags), _address(flags[_LINE * lines :]), wanted),
        )
        shared = dtype.itemsize * (_WIDTH * (ldv + 2 * _PAD + _WIDTH) + THREADS)
        self.kernels.launch(stream, "factor_panel", dtype.char, ctas, arguments, shared_nbytes=shared)
        self._close(stream, triangle, tau, t, wanted)

    def _flags(self, stream: int, use: str, lines: int) -> Any:
        """Lines of a stream for one use, which are 0."""
        flags = self._array(stream, use, (_LINE * lines, 1), np.dtype(np.uint8))
        runtime.memsetAsync(flags.data.ptr, 0, flags.nbytes, stream)
        return flags

    def _close(self, stream: int, triangle: GpuArray, tau: Array, t: Array, wanted: np.int64 = _NOWHERE) -> None:
        """T := diag(tau) L^-H, for L = I + the lower triangle of V^H V diag(conj(tau)) below its diagonal.

        Source: Puglisi, Modification of the Householder method based on the compact WY representation, 1992.
        """
        inverse = self._lapack.inverse(stream, triangle, unit=True)
        k = len(tau)
        arguments = *place(inverse), np.int32(k), _address(tau), *place(t), wanted
        self.kernels.launch(stream, "close_triangle", t.dtype.char, k, arguments)

    def _array(self, stream: int, use: str, shape: tuple[int, int], dtype: Dtype) -> Any:
        """Memory of a stream for one use, as an array in Fortran order."""
        memory = self._lapack.memory(stream, use, shape[0] * shape[1] * dtype.itemsize)
        return cupy.ndarray(shape, dtype, memory.data, order="F")


def _address(x: GpuArray) -> np.int64:
    """Address of an array, as kernels take it."""
    return np.int64(x.data.ptr)
