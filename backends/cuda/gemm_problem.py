"""A product as cuBLASLt reads it, in integers and names only; needs no GPU.

As in `pblas.backends.cpu.blas`, a Z in C-order is computed as Z^T = Y^T X^T, and an operand of the other order flips
its trans flag. Nothing is copied. cuBLASLt has no flag for a conjugated operand that is not transposed: `needs_copy`
finds such operands, and the caller conjugates them first.

Tuned algorithms are plain data, for messages between ranks and for files. An algorithm is 64 opaque bytes, valid for
one version of cuBLASLt on one kind of GPU. The name of the file holds both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pblas.backends.cache_file import Cache
from pblas.backends.dtypes import FLOAT8, FLOAT32, RESULTS, GpuArray, accumulator_dtype
from pblas.backends.engine_limits import fused_epilogue
from pblas.backends.push_engine import EXACT, Finish, GemmModes, is_array

if TYPE_CHECKING:
    from collections.abc import Iterator


Trans = Literal["N", "T", "C"]

ALIGNMENT = 16  # largest alignment in bytes that matters to an algorithm: TMA and 128-bit loads need 16


@dataclass(frozen=True, slots=True)
class Problem:
    """Z := alpha op(A) op(B) + beta Z, all three stored by columns: all properties on which the algorithm depends."""

    m: int  # rows of Z (local)
    n: int  # columns of Z (local)
    k: int  # columns of op(A) (local)
    transa: Trans  # "N" if A is stored m x k; "T" or "C" if it is stored k x m, "C" if it is conjugated
    transb: Trans  # the same for B, stored k x n or n x k
    lda: int  # leading dimension of A, elements (local); for a single column, its length rounded up
    ldb: int  # leading dimension of B
    ldz: int  # leading dimension of Z
    batch: int  # number of products
    stridea: int  # elements from one A to the next; 0 if all products share A
    strideb: int  # elements from one B to the next; 0 if all products share B
    stridez: int  # elements from one Z to the next
    dtype: str  # of A
    dtype_z: str  # of Z: `dtype`, or float32 with a 16-bit `dtype`, or with 8 bits one of 16 or float32
    aligna: int = ALIGNMENT  # bytes to which A's address is aligned, at most 16
    alignb: int = ALIGNMENT  # the same for B
    alignz: int = ALIGNMENT  # the same for Z
    tf32: bool = False  # whether float32 may be multiplied in TF32
    dtype_b: str = ""  # of B, if it is another one of 8 bits
    fast_accumulate: bool = False  # whether 8 bits may be added with fewer bits
    float16: bool = False  # whether float32 may be rounded to float16

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A in memory."""
        return (self.m, self.k) if self.transa == "N" else (self.k, self.m)

    @property
    def stored_b(self) -> tuple[int, int]:
        """Rows and columns of B in memory."""
        return (self.k, self.n) if self.transb == "N" else (self.n, self.k)

    @property
    def spans(self) -> tuple[int, int, int]:
        """Elements of memory from the first to the last element of A, B and Z, both included."""
        parts = (
            (self.stored_a, self.lda, self.stridea),
            (self.stored_b, self.ldb, self.strideb),
            ((self.m, self.n), self.ldz, self.stridez),
        )
        a, b, z = ((self.batch - 1) * stride + (columns - 1) * ld + rows for (rows, columns), ld, stride in parts)
        return a, b, z

    def relatives(self) -> Iterator[Problem]:
        """Problems whose best algorithms may suit this one too: Z has half or twice as many rows or columns."""
        for rows, columns in ((2, 1), (1, 2)):
            for m, n in ((self.m // rows, self.n // columns), (self.m * rows, self.n * columns)):
                if m and n:
                    yield replace(self, m=m, n=n, lda=max(self.lda, m), ldb=max(self.ldb, n), ldz=max(self.ldz, m))

    def plain(self) -> dict[str, Any]:
        """The fields as JSON values; `Problem(**plain)` is the inverse."""
        return asdict(self)


class Reading(NamedTuple):
    """A problem, and whether its A is Y and its B is X (`swapped`), or its A is X and its B is Y."""

    problem: Problem
    swapped: bool


class _Stored(NamedTuple):
    """A matrix as Fortran reads it: transposed or not, its leading dimension, the stride of a batch in elements."""

    transposed: bool
    ld: int
    stride: int


def read(
    x: GpuArray, y: GpuArray, z: GpuArray, conj: tuple[bool, bool] = (False, False), modes: GemmModes = EXACT
) -> Reading:
    """The problem Z := alpha X Y + beta Z of three arrays."""
    _check(x, y, z)
    swapped = _stored(z, flipped=False).transposed
    stored_x, stored_y, stored_z = (_stored(w, flipped=swapped) for w in (x, y, z))
    (m, n), k = z.shape[-2:], x.shape[-1]
    complex_ = x.dtype.kind == "c"
    trans_x, trans_y = (_trans(s, c and complex_) for s, c in zip((stored_x, stored_y), conj, strict=True))
    align_x, align_y, align_z = (alignment(w.data.ptr) for w in (x, y, z))
    if swapped:  # Z^T = Y^T X^T
        m, n = n, m
        stored_x, stored_y = stored_y, stored_x
        trans_x, trans_y = trans_y, trans_x
        align_x, align_y = align_y, align_x
    name_a, name_b = (w.dtype.name for w in ((y, x) if swapped else (x, y)))
    problem = Problem(
        *(m, n, k, trans_x, trans_y, stored_x.ld, stored_y.ld, stored_z.ld),
        *(z.shape[0] if z.ndim == 3 else 1, stored_x.stride, stored_y.stride, stored_z.stride),
        name_a,
        z.dtype.name,
        *(align_x, align_y, align_z),
        tf32=modes.tf32 and name_a in ("float32", "complex64"),
        dtype_b="" if name_b == name_a else name_b,
        fast_accumulate=modes.fast_accumulate and x.dtype in FLOAT8,
        float16=modes.float16 and name_a in ("float32", "complex64"),
    )
    return Reading(problem, swapped)


def needs_copy(x: GpuArray, y: GpuArray, z: GpuArray, conj: tuple[bool, bool]) -> tuple[bool, bool]:
    """Whether X, and whether Y, must first be conjugated into a copy: cuBLASLt would read it untransposed."""
    if x.dtype.kind != "c" or not any(conj) or not z.size:
        return False, False
    swapped = _stored(z, flipped=False).transposed
    copy_x, copy_y = (c and not _stored(w, flipped=swapped).transposed for w, c in zip((x, y), conj, strict=True))
    return copy_x, copy_y


def epilogue_of(finish: Finish, x: GpuArray, z: GpuArray) -> tuple[str, int]:
    """cuBLASLt's name of an epilogue, and the address of its bias."""
    fits = z.ndim == 2 and (z.dtype != FLOAT32 or x.dtype == FLOAT32)
    fused = fused_epilogue(finish.tree, z.dtype.name) if fits else None
    if fused is None or fused[1] is None:
        return ("", 0) if fused is None else (fused[0], 0)
    bias = finish.operands[fused[1]]
    along = 1 if _stored(z, flipped=False).transposed else 0
    if not is_array(bias) or bias.dtype != z.dtype or bias.data.ptr % ALIGNMENT:
        return "", 0
    along_m, along_n = (bias.strides[axis] if z.shape[axis] > 1 else 0 for axis in (along, 1 - along))
    if along_m != z.itemsize or along_n:
        return "", 0
    return fused[0], bias.data.ptr


class Copies(NamedTuple):
    """Shapes of the copies with which cuBLASLt multiplies X and Y of 8 bits into Z; None for an array that fits.

    cuBLASLt reads such operands along K, in lines that start and end at multiples of 16 bytes, and stores lines of Z of
    a multiple of 16 elements. A larger copy has zeros after the elements of X or Y.
    """

    x: tuple[int, int] | None
    y: tuple[int, int] | None
    z: tuple[int, int] | None


def copies_of(x: GpuArray, y: GpuArray, z: GpuArray) -> Copies:
    """The copies that a product of matrices of 8 bits needs: of X by rows, of Y by columns, of Z in its own order."""
    (m, n), k = z.shape, x.shape[1]
    by_rows = _stored(z, flipped=False).transposed
    rows, columns = (m, _whole(n)) if by_rows else (_whole(m), n)
    shapes = (rows, _whole(k)), (_whole(k), columns), (rows, columns)
    fits = (
        w.shape == shape and _has_aligned_lines(w, axis)
        for w, shape, axis in zip((x, y, z), shapes, (1, 0, int(by_rows)), strict=True)
    )
    return Copies(*(None if fit else shape for fit, shape in zip(fits, shapes, strict=True)))


def _whole(n: int) -> int:
    """The next multiple of 16.

    >>> _whole(16), _whole(17)
    (16, 32)
    """
    return -(-n // ALIGNMENT) * ALIGNMENT


def _has_aligned_lines(x: GpuArray, axis: int) -> bool:
    """Whether a matrix is contiguous along an axis, in lines that start at multiples of 16 bytes."""
    (length, step), (lines, pitch) = ((x.shape[i], x.strides[i]) for i in (axis, 1 - axis))
    return (length == 1 or step == x.dtype.itemsize) and not (
        x.data.ptr % ALIGNMENT or (lines > 1 and pitch % ALIGNMENT)
    )


def alignment(address: int) -> int:
    """Bytes, at most `ALIGNMENT`, to which an address is aligned.

    >>> [alignment(address) for address in (0, 256, 8, 12, 7)]
    [16, 16, 8, 4, 1]
    """
    address |= ALIGNMENT
    return address & -address


def _check(x: GpuArray, y: GpuArray, z: GpuArray) -> None:
    """Assert the invariants of a call; users' mistakes were found before."""
    (m, n), k = z.shape[-2:], x.shape[-1]
    assert x.shape[-2:] == (m, k), (x.shape, y.shape, z.shape)
    assert y.shape[-2:] == (k, n), (x.shape, y.shape, z.shape)
    assert m > 0, z.shape
    assert n > 0, z.shape
    assert k > 0, "a product over nothing is a scaling of Z"
    assert x.dtype == y.dtype or {x.dtype, y.dtype} <= {*FLOAT8}, (x.dtype, y.dtype)
    assert z.dtype in (*RESULTS[x.dtype], accumulator_dtype(x.dtype)), (x.dtype, z.dtype)
    for w in (x, y, z):
        assert w.ndim == 2 or w.shape[0] == z.shape[0], (x.shape, y.shape, z.shape)
    assert z.ndim in (2, 3), z.shape


def _stored(x: GpuArray, *, flipped: bool) -> _Stored:
    """X, or X^T if `flipped`, as Fortran reads it.

    A vector with stride one is read as a column, so that its leading dimension is free. Rounded up, it is as well
    aligned as the vector itself.
    """
    (m, n), (down, across) = x.shape[-2:], x.strides[-2:]
    itemsize = x.dtype.itemsize
    if flipped:
        m, n, down, across = n, m, across, down
    if m > 1:
        transposed = down != itemsize
    else:  # a row; a single entry is a column
        transposed = n > 1 and across == itemsize
    if transposed:
        m, n, down, across = n, m, across, down
    ld = across // itemsize if n > 1 else -(-m // ALIGNMENT) * ALIGNMENT
    assert m == 1 or down == itemsize, f"strides {x.strides} of {x.shape}: one of the last two must be {itemsize} bytes"
    assert ld >= m, f"strides {x.strides} of {x.shape}: entries overlap"
    return _Stored(transposed, ld, x.strides[0] // itemsize if x.ndim == 3 and x.shape[0] > 1 else 0)


def _trans(stored: _Stored, conj: bool) -> Trans:
    if conj:
        assert stored.transposed, "a conjugated operand that is not transposed has no flag: conjugate it first"
        return "C"
    return "T" if stored.transposed else "N"


ALGORITHM_NBYTES = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest measured algorithm of a problem."""

    algorithm: bytes
    seconds: float
    default_seconds: float


class Choices(Cache[Problem, Choice]):
    """The choices for one kind of GPU, with the file $XDG_CACHE_HOME/pblas/gemm-...json."""

    def __init__(self, gpu: str, sms: int, version: int, workspace_nbytes: int) -> None:
        names = "gemm", gpu, f"{sms}sms", f"cublaslt{version}", str(workspace_nbytes)
        super().__init__(names, "tuned products", 2, _entry, _plain)


def _plain(problem: Problem, choice: Choice) -> dict[str, object]:
    return {
        "problem": problem.plain(),
        "algorithm": choice.algorithm.hex(),
        "seconds": choice.seconds,
        "default_seconds": choice.default_seconds,
    }


def _entry(plain: dict[str, Any]) -> tuple[Problem, Choice]:
    """The inverse of `_plain`; raises TypeError, KeyError or ValueError for any other value."""
    problem, algorithm = Problem(**plain["problem"]), bytes.fromhex(plain["algorithm"])
    for name, value in problem.plain().items():
        if type(value) is not _types()[name]:
            raise TypeError(f"{name} of a tuned problem is {value!r}, not of type {_types()[name].__name__}")
    if len(algorithm) != ALGORITHM_NBYTES:
        raise ValueError(f"an algorithm has {ALGORITHM_NBYTES} bytes, not {len(algorithm)}")
    return problem, Choice(algorithm, float(plain["seconds"]), float(plain["default_seconds"]))


def _types() -> dict[str, type]:
    """Type of each field of a problem."""
    text, flag = {"transa", "transb", "dtype", "dtype_b", "dtype_z"}, {"tf32", "fast_accumulate", "float16"}
    return {name: str if name in text else bool if name in flag else int for name in Problem.__slots__}
