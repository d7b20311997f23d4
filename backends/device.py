"""The contract of a device: memory and operations on one rank's arrays, as executors call them.

`pblas.backends.cpu.arrays` implements it with NumPy, `pblas.backends.cuda.arrays` with CuPy; another vendor's GPU needs
a third class. `tests/common/device_contract.py` calls every method and compares the results with NumPy's.

Order: a device has two lanes, each a queue of operations. Lane "main" is for products; lane "side", which
`on_side_lane` selects, is for copies and panels that run during the products. An operation runs on the selected lane
after all earlier operations of that lane. It may return before it is done, unless `traits.blocking`; `synchronize`
waits for both lanes. A lane can `follow` a `mark` of the other one. Methods that return numbers or host arrays return
when these are complete. No method waits for another rank.

Arrays: X, Y and Z are in the device's memory and have two dimensions, and one of their two strides is one element.
Products, solves and factorizations take float32, float64, complex64 and complex128; `gemm` also 16 and 8 bits. Empty
arrays are allowed everywhere but in reductions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pblas.backends.pieces import PieceProducts, PieceSizes
from pblas.backends.push_engine import EXACT, GemmModes
from pblas.backends.traced import Kind, product_text, traced, untraced

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.epilogues import Epilogue, Node

Uplo = Literal["L", "U"]  # a triangle: the lower or the upper one
Axis = Literal[0, 1] | None  # axis of a reduction: a result for each column, for each row, or one for the matrix
Mark = Any  # a point on a lane, for `follow`

_MOST_PROGRAMS = 4  # each may hold memory as large as D


@dataclass(frozen=True, slots=True)
class Traits:
    """The properties of a device that executors use (global)."""

    gpu: bool  # arrays are in GPU memory, which the host does not read
    blocking: bool  # an operation is done when its call returns
    reads_peers: bool  # a product may read operands in a peer's memory; otherwise they are copied first
    packs_blocks: bool  # blocks of cyclic layouts are copied side by side, so that one product multiplies many of them
    most_operands: int  # most operands of an expression that `evaluate` takes
    most_across: int  # most rows and columns of a part of a message across the diagonal, which is copied with a mask
    pivot_dtype: Dtype  # integers of LAPACK: INFO, and numbers of exchanged rows
    lacks: frozenset[str]  # optional methods that the device does not have, because plans for it do without them


@dataclass(slots=True, eq=False)
class Staircase:
    """The elements of a local array that belong to a part of its matrix; its columns may end at different rows (local).

    Of column j these are rows first[j] <= i < stop[j]. diagonal[j] is the row of an element whose imaginary part is
    neither read nor kept, or -1.
    """

    first: Array
    stop: Array
    diagonal: Array
    on_device: Any = None  # a copy in the device's memory, made at the first use


def lacking(method: str) -> NotImplementedError:
    """The error of an optional method: no plan for the device calls it."""
    return NotImplementedError(f"the device lacks {method}")


class Programs(OrderedDict[Any, Any]):
    """CUDA graphs of the most recently used executions, by their keys; empty on CPUs."""

    def keep(self, key: object, program: object) -> None:
        """Add a recording, and drop the least recently used one if there are too many (local)."""
        self[key] = program
        self.move_to_end(key)
        while len(self) > _MOST_PROGRAMS:
            self.popitem(last=False)


class Memory(Protocol):
    """Arrays, and copies between device and host."""

    @property
    def block_copy(self) -> Callable[..., Any] | None:
        """Class of copies of a message's elements, as `pblas.redistribution.packing.BlockCopy`; None: that."""

    @untraced
    def empty(self, nbytes: int) -> Array:
        """Uninitialised bytes of this rank alone, not reused before `synchronize` (local).

        Raises:
            WorkspaceError: the device has no such memory.
        """

    @untraced
    def array(self, memory: Array, shape: tuple[int, ...], dtype: Dtype, order: Order = "F") -> Array:
        """A tight array at the start of memory from `empty` (local)."""

    @untraced
    def scratch(self, shape: tuple[int, int], dtype: Dtype) -> Array:
        """Uninitialised memory in Fortran order, valid until the next call for this lane (local)."""

    @untraced
    def like(self, x: Array, dtype: Dtype) -> Array:
        """An uninitialised array of the shape and storage order of X (local)."""

    @traced("copy", "take elements", "rows")
    def take(self, x: Array, rows: Array, columns: Array) -> Array:
        """The elements X[rows[i], columns[i]] in host memory, in one dimension (local)."""

    @traced("copy", "pick", "x")
    def pick(self, x: Array, rows: Array, columns: Array) -> Array:
        """A tight copy of X[rows, columns], in the storage order of X and in the device's memory.

        The row and column numbers are in host memory, in any order.
        """

    @traced("copy", "place", "x")
    def place(
        self,
        x: Array,
        z: Array,
        rows: Array | None = None,
        columns: Array | None = None,
        *,
        of: Sequence[Array] | None = None,
        conj: bool = False,
    ) -> None:
        """Z[rows, columns] := X, or conj(X), of Z's dtype, in the device's memory or in the host's, of any strides.

        The row and column numbers are in host memory, and each occurs once, unless X is one number that is repeated;
        None stands for all. Instead of all of X, which is in the device's memory then, Z gets rows and columns `of` it.
        """

    @traced("copy", "select", "x")
    def select(self, x: Array, flags: Array, *, with_places: bool) -> tuple[tuple[Array, Array] | None, Array]:
        """The rows and columns where flags are not 0, by rows, and the elements of X there, in host memory.

        Args:
            x: m x n, any strides (local).
            flags: m x n, of any dtype, in the device's memory or in the host's (local).
            with_places: whether rows and columns are needed; otherwise they are None (global).
        """

    @traced("copy", "fill elements", "rows")
    def fill(self, x: Array, rows: Array, columns: Array, value: float) -> None:
        """X[rows[i], columns[i]] := value, after all earlier operations of both lanes; done on return.

        In an execution that is `in_order` it is not awaited. The row and column numbers are in host memory.
        """

    @traced("copy", "fill", "x")
    def fill_whole(self, x: Array, value: complex) -> None:
        """X := value, as X's dtype holds it (local)."""

    @traced("copy", "random numbers", "x")
    def randomize(self, x: Array, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
        """X := the random numbers at global rows and columns, with the same bits on every device; done on return.

        In an execution that is `in_order` it is not awaited. The numbers are uniform in [-1, 1), or normal. The row and
        column numbers are in host memory.
        """

    @traced("copy", "download", "x")
    def download(self, x: Array) -> Array:
        """An array of any shape in host memory, in C order, after all work of the device; optional (local)."""
        raise lacking("download")

    @traced("copy", "upload", "x")
    def upload(self, host: Array, x: Array) -> None:
        """X := an array of its shape in host memory; done on return; optional (local)."""
        raise lacking("upload")

    @traced("copy", "to the host", "x")
    def to_host(self, x: Array) -> Array:
        """X in host memory, in its storage order, after this lane's operations so far: X itself if it is there."""

    @traced("copy", "from the host", "z")
    def from_host(self, x: Array, z: Array) -> None:
        """Z := X, which is in host memory and has Z's dtype, after this lane's operations so far."""


class Elementwise(Protocol):
    """Copies, sums, expressions and reductions of elements."""

    @traced("copy", lambda x, z: ("round" if x.itemsize > z.itemsize else "copy", {"bytes": z.nbytes}))
    def assign(self, x: Array, z: Array) -> None:
        """Z := X, rounded to Z's dtype; any strides."""

    @traced("sum", "scale", "z")
    def scale(self, beta: complex, z: Array) -> None:
        """Z := beta Z, multiplied in 32 bits at least; with beta = 0 Z is not read. Any strides."""

    @traced("sum", "add", "z")
    def add_scaled(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        """Z := alpha X + beta Z, in Z's precision, with 16-bit numbers in 32 bits; any strides.

        The dtypes of X and Z are equal, or float32 and one of 16 bits. A matrix whose scalar is 0 is not read.
        """

    @traced("sum", "normalize", "z")
    def normalize(self, x: Array, z: Array) -> None:
        """Z := X / norm(X) by Frobenius' norm, in the dtype of Z; X may be subnormal or huge, 0 stays, Z may be X."""

    @traced("sum", "conjugate", "z")
    def conjugate(self, z: Array) -> None:
        """Z := the conjugate of Z, of any strides; optional."""
        raise lacking("conjugate")

    @traced("sum", "evaluate", "out")
    def evaluate(self, tree: Node, operands: Mapping[str, object], compute: Dtype, out: Array) -> None:
        """Out := an expression of numbers and arrays of any dtypes, rounded once.

        Args:
            tree: from `pblas.epilogues.parse`; it may also use conj, real and imag (global).
            operands: numbers, and arrays of at most two dimensions that broadcast to out, by name (local).
            compute: dtype of the computation, of 32 bits at least, and complex if an operand is (global).
            out: m x n; an operand may be the same memory (local).
        """

    @untraced
    def combining(
        self, tree: Node, operands: Mapping[str, object], name: str, compute: Dtype, out: Array
    ) -> Callable[[Array, Array], None] | None:
        """A function put(x, part) that updates a part of out while one operand arrives in pieces (local).

        Args:
            tree: as in `evaluate` (global).
            operands: all other operands, as in `evaluate` (local).
            name: of the operand that arrives, which has the dtype of out (global).
            compute: as in `evaluate` (global).
            out: m x n (local).

        Returns:
            The function; None if the whole operand must arrive before `evaluate`.
        """

    @traced("sum", "epilogue", "out")
    def finish(
        self, epilogue: Epilogue, x: Array, operands: Mapping[str, object], out: Array, stream: object = None
    ) -> None:
        """Out := the epilogue of X, in the precision in which X's elements are added, rounded once.

        Args:
            epilogue: a valid one (global).
            x: m x n (local).
            operands: numbers, and arrays of n elements or m x n, by name (local).
            out: m x n, of X's dtype; may be X, or an operand (local).
            stream: on GPUs, the stream of the launch; None for the library's current one (local).

        Raises:
            ArgumentError: too many operands for a GPU.
            BackendError: the GPU fails.
        """

    @traced("sum", "add rows", "x")
    def add_rows(self, x: Array, out: Array, stream: object = None) -> None:
        """Out := the sum of the rows of X, of any strides, added in 32 bits at least; `stream` is as in `finish`."""

    @traced("sum", "largest", "x")
    def largest(self, x: Array, out: Array, stream: object = None) -> None:
        """Out := the largest |element| of a real X, as one float32: NaN if it has one, 0 if it has no elements."""

    @traced("sum", lambda kind, x, *_, **__: (f"reduce: {kind}", {"bytes": x.nbytes}))
    def reduce(
        self, kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: object = None, *, waits: bool = True
    ) -> Array:
        """Reduce the elements of X, converted to `dtype` and divided by `scale`, along an axis or all together.

        Args:
            kind: "sum", "max", "min", "abs_sum", "abs_max" or "squares" (global).
            x: m x n, at least one element, any strides (local).
            axis: 0 for n results, 1 for m results, None for one (global).
            order: storage order of X, "F" or "C" (global).
            dtype: precision of the reduction; complex if X is (global).
            scale: a power of two for each result, or one; None: no division (local).
            waits: whether the results are needed in host memory (global).

        Returns:
            The results in one dimension, in host memory; without `waits` in the device's, by work of its stream.
        """

    @traced("sum", lambda kind, x, *_: (f"reduce: arg{kind}", {"bytes": x.nbytes}))
    def arg_reduce(self, kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
        """The extremes of X along an axis or of all elements, and where each occurs first; NaN is the extreme.

        Args:
            kind: of the extreme (global).
            x: m x n, real, at least one element (local).
            axis: as in `reduce` (global).
            order: as in `reduce` (global).

        Returns:
            The values in 32 bits at least, and their indices along the axis; with axis=None one value, and its (row,
            column), the first one in the order of rows. Both are in host memory.
        """

    @traced("sum", "dot", "x")
    def dot(self, x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
        """The sum of op(X) Y over all elements, as an array of one element in host memory (local).

        Args:
            x: m x n, at least one element (local).
            y: m x n (local).
            order: storage order of X, "F" or "C" (global).
            dtype: precision of the products and sums (global).
            conj: whether op is the conjugate (global).
        """

    @traced("sum", lambda kind, x, *_, **__: (f"exact sums: {kind}", {"bytes": x.nbytes}))
    def exact_sums(self, kind: str, x: Array, axis: Axis, other: Array | None = None, *, conj: bool = False) -> Array:
        """Sums without a rounding: numbers in host memory, one sum after the other in columns (local).

        Args:
            kind: sums of "sum", "abs_sum", "squares", or "dot", of products with elements of `other` (global).
            x: m x n, at least one element (local).
            axis: 0 for n sums, 1 for m sums, None for one (global).
            other: like x (local).
            conj: multiply with conjugates of x (global).
        """


def _triangle_text(name: str, z: Array, k: int, flops: int) -> tuple[str, dict[str, object]]:
    m, n = z.shape
    return f"{name} {m} x {n} x {k}", {"flops": flops}


class Level3(Protocol):
    """Products and triangular solves, in place, on the selected lane."""

    @traced("gemm", lambda _alpha, x, y, _beta, z, **_: product_text([(x, y, z)]))
    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        """Z := alpha X Y + beta Z; X and Y may be marked as conjugated.

        Args:
            alpha: scalar (local).
            x: m x k (local).
            y: k x n, of the same dtype, or of 8 bits as X (local).
            beta: scalar; Z is not read when it is 0 (local).
            z: m x n, of the accumulator dtype of X; on GPUs also of X's, to which sums are rounded (local).
            conj: multiply with the conjugates of X and Y.

        Source: BLAS, xGEMM.
        """

    @traced("gemm", lambda _alpha, x, y, _beta, _c, z, **_: product_text([(x, x.T if y is None else y, z)]))
    def multiply_add(
        self,
        alpha: complex,
        x: Array,
        y: Array | None,
        beta: complex,
        c: Array | None,
        z: Array,
        *,
        symmetric: bool = False,
    ) -> None:
        """Z := alpha X Y + beta C, rounded once; without Y Z := alpha X X^H + beta C, by half of the operations.

        Args:
            alpha: scalar; without Y real and not 0 (local).
            x: m x k, of 16 bits or more (local).
            y: k x n, of the same dtype (local).
            beta: scalar; real without Y (local).
            c: m x n, another array than Z with its strides; None if beta is 0 (local).
            z: m x n, of the dtype of X; without Y in Fortran order (local).
            symmetric: X Y and C are Hermitian but for rounding, so half of the operations may do (local).
        """

    @untraced
    def exact_gemm(self, sizes: PieceSizes, allocate: Callable[[int], Array]) -> PieceProducts:
        """Products whose K consists of pieces, each of which is exact and rounded once: with the same bits everywhere.

        Args:
            sizes: of the products of float64 or float32 matrices (local).
            allocate: returns memory of a number of bytes on this device (local).
        """

    @untraced
    def piece_gemm(self, sizes: PieceSizes, dtype: Dtype, last: int, allocate: Callable[[int], Array]) -> PieceProducts:
        """Products whose K consists of pieces, each of which is added in one order, wherever the element is.

        Args:
            sizes: of the products (local).
            dtype: of the operands (global).
            last: elements of K in the last piece of all (global).
            allocate: returns memory of a number of bytes on this device (local).

        Raises:
            BackendError: the library of this device forms elements in different orders.
        """

    @untraced
    def fingerprint(self, dtype: Dtype) -> str:
        """Bits of products of this dtype by `piece_gemm`: devices that add in another order have others (local)."""

    @traced("sum", "add", "z")
    def finish_sum(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        """Z := alpha X + beta Z elementwise, each operation rounded; X is lost, unless alpha is 1."""

    @traced("gemm", lambda x: product_text([(x.T, x, x[: x.shape[1]])]))
    def gram(self, x: Array) -> Array:
        """X^H X of an X in Fortran order, m x n, in host memory (local)."""

    @traced("gemm", lambda x, vector, *_, **__: product_text([(x, vector, x[:, :1])]))
    def multiply_vector(self, x: Array, vector: Array, dtype: Dtype, *, conj: bool) -> Array:
        """op(X) v in precision `dtype`, the accumulator dtype of X; v and the result are in host memory (local)."""

    @traced("gemm", lambda x, y, z: product_text([(x, y, z)]))
    def add_product(self, x: Array, y: Array, z: Array) -> None:
        """Z += X Y in Z's precision, for an X with few columns and a Y, both in host memory; optional."""
        raise lacking("add_product")

    @traced("gemm", lambda x, _part, vector, *_, **__: product_text([(x, vector[:, None], x[:, :1])]))
    def multiply_part(
        self, x: Array, part: Staircase, vector: Array, dtype: Dtype, mode: str, *, transposed: bool
    ) -> Array:
        """op(X) v, or op(X)^T v, with the elements of a part of X in Fortran order; optional.

        Args:
            x: m x n (local).
            part: the elements (local).
            vector: n elements, or m if transposed, in host memory or in the device's (local).
            dtype: precision of products and sums, the accumulator dtype of X or its real one (global).
            mode: op: "" for none, "conj", "abs" for absolute values, "abs1" for |Re| + |Im| (global).
            transposed: whether op(X)^T is multiplied (global).

        Returns:
            m elements, or n if transposed, where the vector is: in the device's memory by work of its stream.
        """
        raise lacking("multiply_part")

    @traced("gemm", lambda x, _parts, v, w, *_, **__: product_text([(x, v[:, None], w[:, None])]))
    def multiply_both(
        self, x: Array, parts: Sequence[Staircase], v: Array, w: Array, dtype: Dtype, modes: Sequence[str]
    ) -> tuple[Array, Array]:
        """op(X) v with one part of an X in Fortran order, and op(X)^T w with another part, in one pass; optional.

        Args:
            x: m x n, at least one element (local).
            parts: the elements of each product: equal but for a diagonal (local).
            v: n elements, contiguous, in the device's memory (local).
            w: m elements, also (local).
            dtype: as in `multiply_part` (global).
            modes: op of each product, as in `multiply_part` (global).

        Returns:
            m and n elements in the device's memory, by work of its stream.
        """
        raise lacking("multiply_both")

    @traced("gemm", lambda z, _part, x, y: product_text([(x, y, z)]))
    def update_part(self, z: Array, part: Staircase, x: Array, y: Array) -> None:
        """Z += X Y in a part of a Z in Fortran order; X and Y are in host memory; done on return; optional."""
        raise lacking("update_part")

    @traced("gemm", lambda _kind, _alpha, a, x, _beta, _y, z, **_: product_text([(a, x, z)]))
    def multiply_whole(
        self,
        kind: str,
        alpha: complex,
        a: Array,
        x: Array,
        beta: complex,
        y: Array | None,
        z: Array,
        *,
        uplo: Uplo,
        trans: str,
        unit: bool,
    ) -> None:
        """Z := alpha op(A) x + beta y, for a matrix of which one rank has all elements; optional.

        In C-order a complex A has neither kind "hemv" nor trans "C".

        Args:
            kind: "gemv", "symv", "hemv" or "trmv"; of the last alpha is 1 and beta 0 (global).
            alpha: scalar (global).
            a: m x n, or n x n of which one triangle is read (local).
            x: a column, of any stride (local).
            beta: scalar (global).
            y: a column; None if beta is 0 (local).
            z: a column; it may be memory of any operand (local).
            uplo: the triangle of A (global).
            trans: "N", "T" or "C" (global).
            unit: take the diagonal of a triangular A as ones (global).

        Source: BLAS, xGEMV, xSYMV, xHEMV and xTRMV.
        """
        raise lacking("multiply_whole")

    @traced("gemm", lambda _name, _alpha, x, y, a, **_: product_text([(x, y.T, a)]))
    def update_whole(self, name: str, alpha: complex, x: Array, y: Array, a: Array, *, uplo: Uplo) -> None:
        """A := A + alpha x y^T, or another update, of a matrix of which one rank has all elements; optional.

        In C-order a complex A has none of the updates "gerc", "her" and "her2".

        Args:
            name: of the routine (global).
            alpha: scalar (global).
            x: a column, of any stride, perhaps of A (local).
            y: the second column; x if there is none (local).
            a: m x n, or n x n of which one triangle is written (local).
            uplo: the triangle of A (global).

        Source: BLAS, xGER, xGERU, xGERC, xSYR, xHER, xSYR2 and xHER2.
        """
        raise lacking("update_whole")

    @traced(
        "gemm", lambda x, z: _triangle_text("SYRK", z, x.shape[1], (2 * len(x) - z.shape[1]) * z[:1].size * x.shape[1])
    )
    def subtract_square(self, x: Array, z: Array) -> None:
        """Z := Z - X X[:n]^H in the lower triangle of the Hermitian Z[:n], and in all rows below it.

        Args:
            x: m x k, m >= n, in Fortran order (local).
            z: m x n, in Fortran order; elements above the diagonal of Z[:n] may be overwritten (local).
        """

    @traced("gemm", lambda t, z, **_: _triangle_text("TRSM", z, len(t), len(t) * z.size))
    def trsm(
        self, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False, inverts: bool = True
    ) -> None:
        """Z := T^-1 Z for a triangle T, which may be marked as conjugated.

        Args:
            t: m x m; its other triangle is not read (local).
            z: m x n, of T's dtype (local).
            uplo: the triangle of T.
            unit: take the diagonal of T as ones, and do not read it.
            conj: solve with the conjugate of T.
            inverts: whether a GPU may multiply with inverses of blocks, whose error grows with their condition.

        Source: BLAS, xTRSM.
        """

    @traced("gemm", lambda _alpha, t, _x, z, **_: _triangle_text("TRMM", z, len(t), len(t) * z.size))
    def trmm(self, alpha: complex, t: Array, x: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool) -> None:
        """Z := alpha T X for a triangle T; optional.

        Args:
            alpha: scalar (local).
            t: m x m; its other triangle is not read (local).
            x: m x n, in the storage order of Z (local).
            z: m x n (local).
            uplo: the triangle of T.
            unit: take the diagonal of T as ones, and do not read it.
            conj: multiply with the conjugate of T.

        Source: BLAS, xTRMM.
        """
        raise lacking("trmm")

    @traced("gemm", lambda _alpha, x, _beta, z, **_: _triangle_text("SYRK", z, x.shape[1], len(x) * x.size))
    def syrk(
        self,
        alpha: complex,
        x: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Uplo,
        conj: bool = False,
        hermitian: bool = False,
    ) -> None:
        """One triangle of Z := alpha X X^T + beta Z, or alpha X X^H + beta Z; X may be marked as conjugated.

        Args:
            alpha: scalar; real if `hermitian` (local).
            x: m x k (local).
            beta: scalar; real if `hermitian`. Z is not read when it is 0 (local).
            z: m x m, of X's dtype; its other triangle is not touched (local).
            uplo: the triangle of Z.
            conj: multiply with the conjugate of X.
            hermitian: X X^H; imaginary parts of the diagonal of Z become 0.

        Source: BLAS, xSYRK and xHERK.
        """

    @traced("gemm", lambda _alpha, x, _y, _beta, z, **_: _triangle_text("SYR2K", z, x.shape[1], 2 * len(x) * x.size))
    def syr2k(
        self,
        alpha: complex,
        x: Array,
        y: Array,
        beta: complex,
        z: Array,
        *,
        uplo: Uplo,
        conj: tuple[bool, bool] = (False, False),
        hermitian: bool = False,
    ) -> None:
        """One triangle of Z := alpha X Y^T + alpha Y X^T + beta Z, or of its Hermitian form; optional.

        Args:
            alpha: scalar (local).
            x: m x k (local).
            y: m x k (local).
            beta: scalar; real if `hermitian`. Z is not read when it is 0 (local).
            z: m x m, of X's dtype; its other triangle is not touched (local).
            uplo: the triangle of Z.
            conj: multiply with the conjugates of X and of Y.
            hermitian: alpha X Y^H + conj(alpha) Y X^H + beta Z; imaginary parts of the diagonal of Z become 0.

        Source: BLAS, xSYR2K and xHER2K.
        """
        raise lacking("syr2k")


class Lapack(Protocol):
    """Factorizations of blocks in Fortran order, in place, on the selected lane."""

    @traced("gemm", lambda t, z, **_: _triangle_text("TRSM", z, len(t), len(t) * z.size))
    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        """Z := T^-1 Z for the lower triangle of a factored block T; a GPU multiplies with T^-1.

        Args:
            t: m x m, as `cholesky` or `lu` left it (local).
            z: m x n, one of its two strides is one element (local).
            unit: take the diagonal of T as ones, and do not read it.
            conj: solve with the conjugate of T.
        """

    @traced("copy", "lower triangle", "x")
    def lower(self, x: Array) -> None:
        """X := its lower triangle, n x n, with 0 above the diagonal and real elements on it."""

    @traced("copy", "unit lower triangle", "z")
    def unit_lower(self, x: Array, z: Array) -> None:
        """Z := X with ones on its diagonal and zeros above it; m x n, both in Fortran order."""

    @traced("factor", "POTRF", "x")
    def cholesky(self, x: Array, info: Array) -> None:
        """X := L with X = L L^H, for the lower triangle of a Hermitian X.

        Args:
            x: n x n; elements above the diagonal and imaginary parts on it are not used, and then undefined (local).
            info: one integer of `traits.pivot_dtype`, 0 before; then k if the leading k x k block is not positive
                definite. A NaN on the diagonal counts as such (local).

        Source: LAPACK, xPOTRF.
        """

    @traced("factor", "GETRF", "x")
    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        """X := L and U with P X = L U by partial pivoting; the diagonal of L is 1 and not stored.

        Args:
            x: m x n (local).
            pivots: min(m, n) integers of `traits.pivot_dtype`; then row i was exchanged with row pivots[i], counted
                from 1 (local).
            info: one integer, 0 before; then the least k, from 1, for which U[k, k] is 0 (local).

        Source: LAPACK, xGETRF.
        """

    @traced("copy", "exchange rows", "x")
    def swap_rows(self, x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
        """Exchange row i of X with row pivots[i], one after the other for i from `start` on.

        Args:
            x: m x n (local).
            pivots: row numbers from 1, of `lu` or in host memory; the first `start` are not used (local).
            start: the first row that is exchanged (local).
            backward: begin with the last row, which undoes the exchanges (global).

        Source: LAPACK, xLASWP.
        """

    @traced("factor", "GEQRT", "x")
    def qr(self, x: Array, t: Array) -> None:
        """X := R and V with X = Q R and Q = H_1 H_2 ..., H_b = I - V_b T_b V_b^H for each block b of nb columns.

        V is stored below the diagonal, whose ones are not.

        Args:
            x: m x n (local).
            t: nb x min(m, n), nb <= min(m, n): the T_b, upper triangular, side by side, zeros below them; on GPUs
                nb <= 512 (local).

        Source: LAPACK, xGEQRT; Schreiber and Van Loan, A storage-efficient WY representation, 1989.
        """

    @traced("gemm", lambda _v, t, c, **_: _triangle_text("GEMQRT", c, t.shape[1], 4 * c.size * t.shape[1]))
    def multiply_q(self, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
        """C := Q C or Q^H C, with the Q of `qr` or its conjugate.

        Args:
            v: m x k, as `qr` leaves it (local).
            t: nb x k, of `qr`; on GPUs nb = k (local).
            c: m x n (local).
            adjoint: multiply with Q^H (global).
            conj: multiply with the conjugate of Q or of Q^H (global).

        Source: LAPACK, xGEMQRT.
        """

    @traced("factor", "TPQRT", "b")
    def qr_stacked(self, r: Array, b: Array, t: Array, *, triangular: bool = False) -> None:
        """R and B := R' and V with [R; B] = Q [R'; 0], for two matrices one below the other; optional.

        Args:
            r: n x n; its upper triangle, and nothing else, is read and written (local).
            b: m x n; with `triangular` its upper triangle only (local).
            t: nb x n, nb <= n: as in `qr` (local).
            triangular: B is upper triangular, and so is V; then m <= n (global).

        Source: LAPACK, xTPQRT.
        """
        raise lacking("qr_stacked")

    @traced("gemm", lambda _v, t, _top, c, **_: _triangle_text("TPMQRT", c, t.shape[1], 4 * c.size * t.shape[1]))
    def multiply_q_stacked(
        self, v: Array, t: Array, top: Array, c: Array, *, adjoint: bool, triangular: bool = False
    ) -> None:
        """[top; C] := Q [top; C] or Q^H [top; C], with the Q of `qr_stacked`; optional.

        Args:
            v: m x k, as `qr_stacked` leaves B (local).
            t: nb x k, of `qr_stacked` (local).
            top: k x n (local).
            c: m x n (local).
            adjoint: multiply with Q^H (global).
            triangular: as in `qr_stacked` (global).

        Source: LAPACK, xTPMQRT.
        """
        raise lacking("multiply_q_stacked")

    @traced("factor", "SYEVD", "x")
    def eigh(self, x: Array, *, vectors: bool) -> tuple[Array, int]:
        """X := V with X V = V diag(w), for the lower triangle of a Hermitian X; without `vectors` X is lost.

        Args:
            x: n x n, finite, with real elements on its diagonal (local).
            vectors: whether to compute V (global).

        Returns:
            w, ascending, in host memory; 0, or INFO of a tridiagonal matrix whose eigenvalues were not found.

        Source: LAPACK, xSYEVD and xHEEVD.
        """

    @untraced
    def band_stages(self, width: int) -> BandStages:
        """The stages of eigenvalues by way of a band of this width; optional (local)."""
        raise lacking("band_stages")

    @traced("sum", "fix signs", "x")
    def fix_signs(self, x: Array) -> None:
        """Multiply each column of X so that the first of its largest elements is positive, and real."""

    @traced("factor", "LARFT", "v")
    def block_of_reflectors(self, v: Array, tau: Array, t: Array) -> None:
        """T := the triangle with H_1 H_2 ... H_k = I - V T V^H, for reflectors H_i = I - tau_i v_i v_i^H.

        Args:
            v: m x k, m >= k; the ones of the diagonal, and what is above it, are not read (local).
            tau: k numbers of the dtype of V, in host memory (local).
            t: k x k; zeros below its diagonal afterwards (local).

        Source: LAPACK, xLARFT.
        """


class BandStages(Protocol):
    """Stages of eigenvalues by way of a band, A = Q1 B Q1^H, B = Q2 T Q2^H, T = S diag(w) S^T (local).

    B is in the lower triangle of A. Below it are the reflectors V of Q1, by panels, with their T side by side.
    """

    width: int

    def holds(self, n: int, dtype: Dtype) -> bool:
        """Whether the device can reduce a band of n columns."""

    @property
    def multiply(self) -> Callable[..., None]:
        """`multiply(x, y, z, alpha=, beta=, adjoint=(bool, bool))`: Z := alpha op(X) op(Y) + beta Z.

        Unlike `Products.gemm` it does not search for the best algorithm of new sizes.
        """

    def complete(self, x: Array) -> None:
        """Above the diagonal X := the adjoint of its lower triangle, whose diagonal becomes real."""

    def factor(self, panel: Array, t: Array) -> None:
        """Panel := R and V, as `qr`."""

    def unit_lower(self, panel: Array, v: Array) -> None:
        """V of a factored panel, with its ones and zeros."""

    def copy_blocks(self, x: Array, z: Array, step_x: int, step_z: int) -> None:
        """Z := X in blocks of `width` rows, of which every step_x-th one of X and every step_z-th one of Z counts.

        One of the steps is 1: all rows of X, or of Z, are copied.
        """

    def chase(self, a: Array, *, keeps: bool) -> Any:
        """T of the band of A; Q2 is kept above the diagonal of A if it is needed."""

    def values(self, t: Any) -> Array:
        """The eigenvalues of T, ascending, in host memory."""

    def vectors(self, a: Array, triangles: Array, t: Any, wanted: tuple[int, int], z: Array) -> tuple[Array, int]:
        """All eigenvalues, ascending, in host memory, and INFO; Z := the wanted vectors Q1 Q2 S (start, stop)."""

    def release(self) -> None:
        """Give memory back that no array uses; both lanes become idle."""


class Lanes(Protocol):
    """Order of operations."""

    @untraced
    def begin(
        self, stream: object = None, modes: GemmModes = EXACT, *, autotune: bool = False, in_order: bool = False
    ) -> None:
        """Begin an execution; returns when the caller's stream is idle, unless `in_order`. The first loads libraries.

        Args:
            stream: the caller's CUDA stream; None for the library's current one (local).
            modes: how products are computed where the hardware has a choice (global).
            autotune: try several algorithms for each new product, where there are several (global).
            in_order: the main lane is the caller's stream until `hand_over`, which ends the execution (global).

        Raises:
            ArgumentError: a stream on CPUs; on GPUs an invalid stream, or one that is being captured.
            BackendError: on GPUs, a library or the GPU fails.
        """

    @traced("wait", "the GPU", on_host=True)
    def synchronize(self) -> None:
        """Return when all lanes are idle, and all work handed over is done."""

    @untraced
    def hand_over(self) -> None:
        """End an execution `in_order`, whose work may still run: later work of the caller's stream comes after it.

        Other work of this device waits for it.
        """

    @untraced
    def replayed(self, programs: Programs, key: Callable[[], object], body: Callable[[], None]) -> bool:
        """Run a body that only calls methods of this device, or replay it.

        A GPU runs the body twice at most, records it, and replays the recording from the third time on: the host needs
        up to a millisecond to launch the calls one by one, and some 10 us for a graph.

        Args:
            programs: the caller's recordings (local).
            key: identifies the body, by everything that its calls depend on (local).
            body: the work (local).

        Returns:
            Whether the body was run (local).
        """

    @untraced
    def on_side_lane(self, what: str = "", kind: Kind = "copy") -> AbstractContextManager[None]:
        """A with block whose calls go to the side lane.

        A trace shows its work as one operation of this name and kind, or not at all without a name (local).
        """

    @untraced
    def on_second_lane(self) -> AbstractContextManager[None]:
        """A with block whose products run beside those of the main lane, where these leave a part of the device idle.

        It begins after the marks that it follows.
        """

    @untraced
    def mark(self) -> Mark:
        """A mark after the work issued on this lane so far."""

    @traced("wait", lambda mark: None if mark is None else ("the other lane", {}))
    def follow(self, mark: Mark) -> None:
        """Work issued on this lane from now on starts after a mark of the other lane; None: no mark."""

    @traced("wait", "the GPU", on_host=True)
    def wait(self, mark: Mark) -> None:
        """Return when all work before a mark is done; None: no mark."""

    @untraced
    def check_stream(self, operation: str, stream: object, *, waits: bool) -> None:
        """Check the caller's stream, and wait until it is idle if `waits`; optional (local).

        Args:
            operation: name of the operation, for messages (global).
            stream: None for the library's current one (local).
            waits: whether to wait for the stream (global).

        Raises:
            ArgumentError: an invalid stream, or one that is being captured if `waits`.
        """
        raise lacking("check_stream")

    @untraced
    def close(self) -> None:
        """Free the resources; nothing runs any more."""


class Device(Memory, Elementwise, Level3, Lapack, Lanes, Protocol):
    """One rank's arrays and their operations."""

    traits: Traits
