"""Constructors after NumPy's: ones, full, eye, zeros_like, from_function; and matrices from parts or copies."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.dtypes import STORED, Array, Scalar
from pblas.layouts.descriptor import MatrixDescriptor, Order
from pblas.matrices.creation import Creation, Layout
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import diagonal_places
from pblas.runtime.calls import collective
from pblas.runtime.runtime import Runtime, checked_dtype, checked_order, checked_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import DTypeLike

    from pblas.backends.device import Device
    from pblas.layouts.split import Split


class Constructors(Creation):
    """The methods of a context that create matrices as NumPy does; all of them are **collective**."""

    @collective
    def ones(self, desc: Layout, dtype: DTypeLike = np.float64) -> DistMatrix:
        """**Collective.** A matrix of ones; see `empty`."""
        return self._filled("ones", desc, 1.0, dtype)

    @collective
    def full(self, desc: Layout, value: Scalar, dtype: DTypeLike | None = None) -> DistMatrix:
        """**Collective.** A matrix whose elements are all equal.

        Args:
            desc: distribution, or shape (m, n) for `MatrixDescriptor.default` (global).
            value: the elements, a number (global).
            dtype: dtype of the elements; None for that of a NumPy number, complex128 for a complex number, else float64
                (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a number, or a complex one for a real dtype.
            DTypeError: a dtype that pblas does not multiply.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     ctx.full((2, 2), 3).to_global().tolist()
        [[3.0, 3.0], [3.0, 3.0]]
        """
        return self._filled("full", desc, value, dtype)

    @collective
    def eye(self, desc: Layout | int, dtype: DTypeLike = np.float64, *, k: int = 0) -> DistMatrix:
        """**Collective.** A matrix with ones on a diagonal, and zeros elsewhere.

        Args:
            desc: n for an n x n matrix; or a distribution, or a shape (m, n) for `MatrixDescriptor.default` (global).
            dtype: dtype of the elements (global).
            k: the diagonal: 0 for the main one, above it positive (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: k is not an integer.
            DTypeError: a dtype that pblas does not multiply.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     ctx.eye((2, 3), k=1).to_global().tolist()
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        """

        def checked() -> dict[str, Any]:
            if isinstance(k, bool) or not isinstance(k, int | np.integer):
                raise errors.ArgumentError(f"eye: k must be an integer, got {k!r}")
            return {"k": int(k)}

        shape: Any = (desc, desc) if isinstance(desc, int | np.integer) else desc

        def fill(arrays: Device, x: Array, layout: MatrixDescriptor) -> None:
            arrays.fill_whole(x, 0)
            if x.size:
                arrays.fill(x, *diagonal_places(layout, self.runtime.rank, int(k)), 1.0)

        return self._new("eye", shape, dtype, checked, fill)

    @collective
    def zeros_like(self, a: DistMatrix, dtype: DTypeLike | None = None) -> DistMatrix:
        """**Collective.** A matrix of zeros in the layout of another one.

        Args:
            a: the other matrix, which may be a view (global).
            dtype: dtype of the elements; None for that of the other matrix (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a matrix.
            DTypeError: a dtype that pblas does not multiply.
        """
        with self.runtime.local_step("zeros_like"):
            if not isinstance(a, DistMatrix):
                raise errors.ArgumentError(f"zeros_like: expected a DistMatrix, got {type(a).__name__}")
        return self._new(
            "zeros_like", a.desc, a.dtype if dtype is None else dtype, fill=lambda arrays, x, _: arrays.fill_whole(x, 0)
        )

    @collective
    def from_function(
        self, function: Callable[[Array, Array], Array], desc: Layout, dtype: DTypeLike = np.float64
    ) -> DistMatrix:
        """**Collective.** The values of a function of the indices, as numpy.fromfunction.

        Args:
            function: f(i, j) of global indices (i: rows x 1, j: 1 x columns) that returns the entries as rows x
                columns, or an array that broadcasts to it. On GPUs the indices are CuPy's arrays; a function that fails
                with them is called again with NumPy's (global).
            desc: distribution, or shape (m, n) for `MatrixDescriptor.default` (global).
            dtype: dtype of the elements (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a function, or it fails on a rank.
            DTypeError: a dtype that pblas does not multiply, or values that it cannot hold.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     ctx.from_function(lambda i, j: 10 * i + j, (2, 2)).to_global().tolist()
        [[0.0, 1.0], [10.0, 11.0]]
        """
        with self.runtime.local_step("from_function"):
            if not callable(function):
                raise errors.ArgumentError(f"from_function: expected f(i, j), got {type(function).__name__}")
        return self._distributed("from_function", function, desc, 0, dtype)

    @collective
    def replicate(self, array: Array) -> DistMatrix:
        """**Collective.** A replicated matrix: every rank holds the whole.

        Args:
            array: m x n array, equal on all ranks (global).

        Returns:
            The matrix, whose descriptor is `MatrixDescriptor.replicated(m, n, nprocs)` in the context's order.

        Raises:
            ArgumentError: not a matrix.
            DTypeError: a dtype that pblas does not multiply.
        """
        opname = "replicate"
        with self.runtime.local_step(opname):
            source = self._checked_matrix(opname, array)
            m, n = source.shape
            desc = MatrixDescriptor.replicated(m, n, self.runtime.nprocs, order=self.runtime.order or "F")
        return self._distributed(opname, source, desc, None, None)

    @collective
    def from_parts(self, x_local: Array, axis: int = 0, *, order: Order | None = None) -> DistMatrix:
        """**Collective.** The arrays of all ranks one below the other, or side by side, divided evenly among the ranks.

        The arrays may differ in length. A block-cyclic layout has blocks of one size, so rows move to an even layout:
        `MatrixDescriptor.row_wise(m, n, nprocs)`, or `column_wise` with axis=1. If the parts have these lengths,
        nothing moves.

        Args:
            x_local: this rank's rows as an array m_loc x n; with axis=1 its columns, m x n_loc; may be empty
                (local).
            axis: 0 or 1 (global).
            order: storage order of the matrix, "F" or "C"; None for that of the context (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a matrix, or another axis.
            DescriptorError: parts that do not fit each other.
            DTypeError: a dtype that pblas does not multiply.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     ctx.from_parts(np.ones((2, 3))).shape == (2 * ctx.nprocs, 3)
        True
        """
        opname, runtime = "from_parts", self.runtime
        requested: object = axis
        with runtime.local_step(opname):
            part = self._checked_matrix(opname, x_local)
            dtype = checked_dtype(opname, part.dtype, stored=True)
            if isinstance(requested, bool) or not isinstance(requested, int | np.integer) or axis not in (0, 1):
                raise errors.ArgumentError(f"{opname}: axis must be 0 (rows) or 1 (columns), got {axis!r}")
            stored = checked_order(opname, order) or runtime.order or "F"
            length, width = int(part.shape[axis]), int(part.shape[1 - axis])
        runtime.agree(opname, {"axis": int(axis), "dtype": dtype.name, "order": stored})
        sizes = runtime.backend.gather((length, width))
        with runtime.agreed_step(opname, "sizes"):
            lengths = [size[0] for size in sizes]
            widths = {width for length, width in sizes if length} or {max(width for _, width in sizes)}
            if len(widths) > 1:
                name = "columns" if axis == 0 else "rows"
                raise errors.DescriptorError(
                    f"{opname}: parts have {min(widths)} to {max(widths)} {name}; make them agree, or pass an "
                    f"empty part"
                )
            total, across = sum(lengths), max(widths)
            if axis == 0:
                desc = MatrixDescriptor.row_wise(total, across, runtime.nprocs, order=stored)
            else:
                desc = MatrixDescriptor.column_wise(across, total, runtime.nprocs, order=stored)
        local = self._memory(opname, desc, dtype, desc.max_local_nelements)
        source = runtime.backend.reading(part)
        with runtime.backend.writing(local) as target:
            split = desc.rows if axis == 0 else desc.columns
            exchange(runtime, *((source, target) if axis == 0 else (source.T, target.T)), lengths, split)
        return DistMatrix(desc, local, runtime)

    def _filled(self, opname: str, desc: Layout, value: Any, dtype: DTypeLike | None) -> DistMatrix:
        """**Collective.** A matrix whose elements are all equal."""
        if dtype is None:
            with self.runtime.local_step(opname):
                own, default = (
                    getattr(value, "dtype", None),
                    np.complex128 if isinstance(value, complex) else np.float64,
                )
                dtype = own if own is not None and own in STORED else default

        def checked() -> dict[str, Any]:
            return {"value": checked_scalar(opname, "value", value, checked_dtype(opname, dtype, stored=True))}

        return self._new(opname, desc, dtype, checked, lambda arrays, x, _: arrays.fill_whole(x, value))


TAG = 1011
_PANEL_NBYTES = 16 << 20  # largest message


def moves(lengths: Sequence[int], split: Split, source: int, target: int) -> tuple[int, int]:
    """The global range of rows that move from the part of one rank to the block of another; it may be empty.

    >>> from pblas.layouts.split import Split
    >>> [moves([1, 5], Split(6, 3, 2), 1, target) for target in range(2)]
    [(1, 3), (3, 6)]
    """
    first = list(accumulate(lengths, initial=0))
    start, stop = next(iter(split.runs(target)), (0, 0))
    start, stop = max(first[source], start), min(first[source + 1], stop)
    return start, max(start, stop)


def exchange(runtime: Runtime, part: Array, block: Array, lengths: Sequence[int], split: Split) -> None:
    """**Collective**, after an agreement. Block := this rank's rows of all parts, one below the other."""
    backend, rank = runtime.backend, runtime.rank
    if backend.dry is not None:
        return
    first, own = sum(lengths[:rank]), next(iter(split.runs(rank)), (0, 0))[0]
    sent: list[Any] = []
    for turn in range(runtime.nprocs):
        target = (rank + turn) % runtime.nprocs
        start, stop = moves(lengths, split, rank, target)
        rows = part[start - first : stop - first]
        if target == rank:
            if start < stop:
                block[start - own : stop - own] = rows
            continue
        sent += [(target, backend.plain_channel.send(panel, target, TAG)) for panel in _panels(rows)]
    for turn in range(1, runtime.nprocs):
        source = (rank - turn) % runtime.nprocs
        start, stop = moves(lengths, split, source, rank)
        rows = np.empty((stop - start, block.shape[1]), block.dtype)
        for panel in _panels(rows):
            step = f"from_parts: rows from rank {source}"
            backend.complete(backend.plain_channel.receive(panel, source, TAG), step=step)
        if start < stop:
            block[start - own : stop - own] = rows
    for target, transfer in sent:
        backend.complete(transfer, step=f"from_parts: rows to rank {target}")


def _panels(rows: Array) -> list[Array]:
    """Contiguous panels of rows, of at most `_PANEL_NBYTES` bytes or one row."""
    if not rows.size:
        return []
    tight = np.ascontiguousarray(rows)
    step = max(1, _PANEL_NBYTES // (tight.itemsize * tight.shape[1]))
    return [tight[start : start + step] for start in range(0, len(tight), step)]
