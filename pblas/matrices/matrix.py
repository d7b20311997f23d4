"""DistMatrix: a descriptor, and this rank's local array."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, overload

import numpy as np

from pblas import errors
from pblas.matrices import indexing
from pblas.matrices import scatter_gather as transfer
from pblas.matrices.operators import Operators
from pblas.runtime.calls import collective
from pblas.runtime.progress import ProgressTarget
from pblas.runtime.runtime import Runtime, check_root, checked_dtype, name_of, shared_descriptor

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Vector
    from pblas.layouts.descriptor import MatrixDescriptor

_INTERNAL = frozenset(
    {"computed", "conjugated", "detach", "key", "memory", "register", "runtime", "signature", "stored"}
)
"""Attributes that other modules of the package use, and TAB does not show."""

EDGE = 3  # rows and columns that print shows at each end


def corners(size: int) -> list[slice]:
    """Slices of the elements that print shows of a long dimension, and of one more, in place of which it has dots.

    >>> corners(6), corners(100)
    ([slice(None, None, None)], [slice(None, 4, None), slice(-3, None, None)])
    """
    return [slice(None)] if size <= 2 * EDGE else [slice(EDGE + 1), slice(-EDGE, None)]


class DistMatrix(Operators):
    """A matrix distributed over the ranks of a context. Created by the methods of `Context`, by slicing and by pmatmul.

    Slices, `.T` and `.H` are views: they are local and move no data.

    Args:
        desc: distribution (global).
        local: this rank's local array under `desc` (local).
        runtime: runtime of the context that owns the matrix (global).
        conj: the matrix is the conjugate of the elements in memory (global).
    """

    __slots__ = ("__weakref__", "_key", "_signature", "conjugated", "desc", "dtype", "memory", "runtime")

    def __init__(self, desc: MatrixDescriptor, local: Array, runtime: Runtime, *, conj: bool = False) -> None:
        self.desc: MatrixDescriptor = desc
        self.runtime: Runtime = runtime
        self.conjugated: bool = conj
        self.dtype: Dtype = local.dtype
        self.memory: Array | None = local
        """This rank's array as it is in memory, not conjugated; None once the context is closed (local)."""
        self._key: object = None
        self._signature: dict[str, object] | None = None
        runtime.matrices.add(self)

    @property
    def key(self) -> Any:
        """Identifies this matrix in plans, which skip the checks of matrices that they know; None after close."""
        if self._key is None and self.memory is not None:
            x, runtime = self.memory, self.runtime
            address = runtime.backend.address(x)
            self._key = (address, x.strides, id(self.desc), self.conjugated, self.dtype.char, id(runtime))
        return self._key

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the whole matrix (global)."""
        return self.desc.shape

    @property
    def local(self) -> Array:
        """This rank's local array, of shape `desc.local_shape(rank)` (local): the memory itself, not a copy.

        It is a NumPy array, or a CuPy array if the context multiplies on GPUs. For a conjugated view (`A.H` of a
        complex A) it is a conjugated copy, which cannot be written.

        Raises:
            ContextError: the context is closed.
        """
        stored = self.stored("DistMatrix.local")
        return self.runtime.backend.conjugated(stored) if self.conjugated else stored

    @local.setter
    def local(self, array: Array) -> None:
        if array is not self.stored("DistMatrix.local"):  # Python assigns the array itself after A.local += x
            raise errors.ArgumentError(
                "DistMatrix.local cannot be replaced; A.local[...] = x writes into it, and A.local += x adds to it"
            )

    def conj(self) -> DistMatrix:
        """The conjugate matrix, a view with a flag that it is conjugated; A itself, as a view, if A is real (local)."""
        conj = self.dtype.kind == "c" and not self.conjugated
        return DistMatrix(self.desc, self.stored("DistMatrix.conj"), self.runtime, conj=conj)

    @property
    def ndim(self) -> int:
        """The number of dimensions: 2 (global)."""
        return 2

    @property
    def size(self) -> int:
        """Elements of the whole matrix (global)."""
        return self.desc.m * self.desc.n

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of the whole matrix, each counted once (global)."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> str:
        """Where the elements are, "cpu" or "cuda": the array API's name (global)."""
        return "cuda" if self.runtime.backend.arrays.traits.gpu else "cpu"

    def __len__(self) -> int:
        return self.desc.m

    def __bool__(self) -> NoReturn:
        raise errors.ArgumentError(
            "the truth value of a DistMatrix is ambiguous; write A.any(), A.all(), A.size != 0 or A is not None"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def stored(self, opname: str) -> Array:
        """This rank's local array as it is in memory, not conjugated (local).

        Args:
            opname: name of the call, for messages.

        Raises:
            ContextError: the context is closed.
        """
        if self.memory is None:
            self.runtime.check_open(opname)
            raise errors.ContextError(f"{opname}: the matrix is closed; use matrices before their context closes")
        return self.memory

    def computed(self, opname: str) -> Array:
        """`stored`, for calls that compute with the elements (local).

        Raises:
            ContextError: the context is closed.
            DTypeError: elements of 8 bits, which pblas moves, converts and multiplies only.
        """
        checked_dtype(opname, self.dtype)
        return self.stored(opname)

    @property
    def T(self) -> DistMatrix:
        """The transposed matrix, a view: the same memory under the transposed descriptor (local)."""
        return DistMatrix(self.desc.T, self.stored("DistMatrix.T").T, self.runtime, conj=self.conjugated)

    @property
    def mT(self) -> DistMatrix:
        """`T`, by the name that the array API and NumPy have for the last two dimensions (local)."""
        return self.T

    @property
    def H(self) -> DistMatrix:
        """The conjugate transposed matrix, a view with a flag that it is conjugated; `.T` for real matrices (local)."""
        conj = self.dtype.kind == "c" and not self.conjugated
        return DistMatrix(self.desc.T, self.stored("DistMatrix.H").T, self.runtime, conj=conj)

    @overload
    def __getitem__(self, key: tuple[int, int]) -> float | complex: ...
    @overload
    def __getitem__(self, key: DistMatrix) -> Vector: ...
    @overload
    def __getitem__(self, key: Any) -> DistMatrix: ...
    def __getitem__(self, key: Any) -> Any:
        """A[i0:i1, j0:j1]: the submatrix, a view with a descriptor of its own (local). **Collective** for other keys.

        An integer selects one row or column, and the view keeps two dimensions: A[i] is A[i:i+1, :], and A[:, j] is
        m x 1. Slices with other steps and lists select a copy: A[::2, ::-1], A[[0, 3]], A[:, columns] and
        `A[np.ix_(rows, columns)]` are collective, as are A[i, j], which reads one element, and A[mask].

        Args:
            key: one or two integers, slices, or lists and arrays of integers, of which an Ellipsis takes the place of
                the others; negative integers count from the end. A list of m or n bools selects where it is true. Or a
                mask of A's shape: a matrix, as `A > 0`, which is true where it is not 0, or an array of bools. All are
                equal on all ranks (global).

        Returns:
            A view; with a list or a step a new matrix on A's grid, in A's blocks or even ones, as `pblas.vstack` has
            them. For A[i, j] a Python float or complex number, and for A[mask] an array of one dimension, of the
            elements by rows; both are equal on all ranks.

        Raises:
            ArgumentError: another key, or two lists that are not made by `np.ix_`.
            DescriptorError: a mask of another shape.
            OutOfRangeError: an index out of range, or another number of bools; an IndexError too.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     a = ctx.from_function(lambda i, j: 10.0 * i + j, (4, 3))
        ...     a[1].shape, a[:, -1].shape, a[1:3, 1:].shape, a[2, 1]
        ((1, 3), (4, 1), (2, 2), 21.0)
        >>> with pblas.Context() as ctx:
        ...     a = ctx.from_function(lambda i, j: 10.0 * i + j, (4, 3))
        ...     a[[3, 0], ::2].to_global(root=None).tolist(), a[a > 30].tolist()
        ([[30.0, 32.0], [0.0, 2.0]], [31.0, 32.0])
        """
        chosen = indexing.plain_selection(self.shape, key)
        if chosen is None:
            if isinstance(key, DistMatrix) or indexing.is_listed(key):
                return self._operations.select(self, key)
            if indexing.is_element(key):
                return self._element(key)
            chosen = indexing.selection(self.shape, key)
        i0, i1, j0, j1 = chosen
        part = self.stored("DistMatrix[...]")
        if chosen.shape != self.desc.shape:
            row0, column0 = self.desc.local_offset(i0, j0, self.runtime.rank)
            row1, column1 = self.desc.local_offset(i1, j1, self.runtime.rank)
            part = part[row0:row1, column0:column1]
        return DistMatrix(self.desc.submatrix(i0, i1, j0, j1), part, self.runtime, conj=self.conjugated)

    def _element(self, key: object) -> float | complex:
        """**Collective.** A[i, j] as a Python number, on all ranks; the key is two integers."""
        opname, runtime = "DistMatrix[i, j]", self.runtime
        value: object = None
        with runtime.call(opname):
            with runtime.local_step(opname):
                chosen = indexing.selection(self.shape, key)
                stored, owner = self.stored(opname), self.desc.owner(chosen.i0, chosen.j0)
                if owner == runtime.rank:
                    i_loc, j_loc = self.desc.local_index(chosen.i0, chosen.j0)
                    element = runtime.backend.reading(stored[i_loc : i_loc + 1, j_loc : j_loc + 1])[0, 0]
                    value = complex(element) if self.dtype.kind == "c" else float(element)
            runtime.agree(opname, {"i": chosen.i0, "j": chosen.j0, **self.signature()})
            number: float | complex = runtime.backend.broadcast_object(value, owner)
        if runtime.backend.dry is not None:
            return runtime.backend.dry.known("A[i, j]", np.zeros((), self.dtype))
        return number.conjugate() if self.conjugated else number

    @overload
    def to_global(self, root: None) -> Array: ...
    @overload
    def to_global(self, root: int | None = 0) -> Array | None: ...
    @collective
    def to_global(self, root: int | None = 0) -> Array | None:
        """**Collective.** The whole matrix as one array on `root`, or on every rank with root=None.

        Args:
            root: rank that gets the array; None for all ranks (global).

        Returns:
            m x n NumPy array in the descriptor's order on `root`, None on the other ranks.

        Raises:
            ArgumentError: root is not a rank.
            WorkspaceError: a rank has too little memory for the whole matrix.
        """
        runtime, whole = self.runtime, None
        with runtime.local_step("to_global"):
            check_root("to_global", root, runtime.nprocs)
            if root is None or root == runtime.rank:
                whole = (
                    transfer.empty_whole("to_global", self.desc, self.dtype) if runtime.backend.dry is None else None
                )
        runtime.agree("to_global", {"root": root, **self.signature()})
        if runtime.backend.dry is not None:
            if root not in (None, runtime.rank):
                return None
            unknown: Array = runtime.backend.dry.unknown("to_global", self.shape, self.dtype, self.desc.order)
            return unknown
        transfer.gather(runtime, self.stored("to_global"), self.desc, root, whole)
        runtime.check_open("to_global")  # on a GPU, an execution may have failed after the agreement
        return np.conjugate(whole, out=whole) if self.conjugated and whole is not None else whole

    @collective
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        dataset: str | None = None,
        overwrite: bool = False,
        progress: ProgressTarget = False,
    ) -> None:
        """**Collective.** Write the matrix as a .npy, .h5, .zarr, .mtx or .bin file; every rank writes its own.

        The file gets its name when it is complete: after an error there is no new file, and an old one is unchanged. A
        .npy file is replaced, as by `numpy.save`. In an HDF5 file other datasets stay; the file is copied for that.
        Owner and permissions of an old file stay, and a symbolic link is followed. Only where they could not stay
        otherwise, as those of a file with hard links, the content of the old file is replaced as the last step.

        A .zarr folder holds compressed chunks, or a group of arrays, of which the others stay. Each chunk is written by
        one rank: a matrix whose blocks are no chunks is redistributed for it. An array is replaced only on demand.

        A .npy file holds elements of bfloat16 and of 8 bits as raw bytes, because NumPy's format lacks them:
        `Context.load` reads them with dtype="bfloat16", or their other dtype. Of an HDF5 file other programs read
        bfloat16 as float32; it does not take elements of 8 bits, and zarr neither.

        Args:
            path: path that ends in .npy; in .h5 or .hdf5, which needs h5py (the extra `hdf5`); in .zarr, which needs
                zarr (the extra `zarr`); in .mtx, for an array of the Matrix Market as text; or in .bin, for the
                elements alone in the matrix's order. Its folder is one that all ranks can write (global).
            dataset: name of the dataset in an HDF5 file, as "group/name"; None for "data". Of an array in a group of
                zarr; None for a folder that is the array itself (global).
            overwrite: whether a dataset of this name, or an array of zarr, may be replaced (global).
            progress: as in `pblas.linalg.solve`; the stage is "write" (global).

        Raises:
            ArgumentError: not a path, another suffix, or not the name of a dataset.
            BackendError: an .h5 file without h5py, or a .zarr folder without zarr.
            DTypeError: a dtype that the format lacks.
            FileFormatError: the file cannot be written, it has a dataset of this name and `overwrite` is False, or the
                name is that of a folder, a device or a pipe.
        """
        self._operations.save(self, path, dataset, overwrite, progress)

    @collective
    def plot(self, path: str | os.PathLike[str], *, spy: bool = False) -> None:
        """**Collective.** Draw the matrix into a file, of at most 128 x 128 cells; rank 0 writes it.

        Args:
            path: path that ends in .png, .svg or .pdf; an old file is replaced (global).
            spy: draw which share of the elements of each cell is not 0; otherwise their mean, of complex elements that
                of the absolute values (global).

        Raises:
            ArgumentError: not a path, another suffix, or no elements.
            BackendError: Matplotlib is not installed.
            FileFormatError: the file cannot be written.
        """
        self._operations.plot(self, path, spy)

    def signature(self) -> dict[str, object]:
        """The properties that must be equal on all ranks, for agreements."""
        if self._signature is None:
            desc, name = shared_descriptor(self.desc), name_of(self.dtype)
            self._signature = {"matrix": desc, "dtype": name, "conjugated": self.conjugated}
        return self._signature.copy()

    def detach(self) -> None:
        """Drop the reference to the memory, which the context is about to free (local)."""
        self.memory = self._key = None

    def _refuse_conversion(self, *_: object, **__: object) -> NoReturn:
        """Refuse the conversion to an array: each rank holds a part of the matrix only."""
        raise errors.ArgumentError(
            "a DistMatrix is distributed and cannot be converted to an array: A.to_global() collects it, A.local is "
            "this rank's part"
        )

    if not TYPE_CHECKING:  # to a checker a matrix is no array: v @ A is the product of A
        __array__ = __dlpack__ = __dlpack_device__ = _refuse_conversion

    def __reduce__(self) -> NoReturn:
        """Refuse pickling: each rank holds a part of the matrix only."""
        raise errors.ArgumentError(
            "a DistMatrix is distributed and cannot be pickled: A.to_global() collects it as an array, A.local is this "
            "rank's part, A.copy() is a copy; Pool.call returns a handle of it"
        )

    def __repr__(self) -> str:
        conj = ", conjugated" if self.conjugated else ""
        return f"<DistMatrix {self.shape[0]} x {self.shape[1]} {self.dtype.name}{conj} {shared_descriptor(self.desc)}>"

    def __str__(self) -> str:
        """The repr, and this rank's corners of values (local): printing on one rank waits for no other."""
        if self.memory is None:
            return repr(self)
        (m_loc, n_loc), rank = self.memory.shape, self.runtime.rank
        rows, columns = (corners(size) for size in (m_loc, n_loc))
        read = self.runtime.backend.reading
        values = np.block([[read(self.memory[i, j]) for j in columns] for i in rows])
        text = np.array2string(np.conj(values) if self.conjugated else values, threshold=0, edgeitems=EDGE)
        return f"{self!r}\nrank {rank} has {m_loc} x {n_loc} of the elements:\n{text}"

    def _repr_html_(self) -> str:
        """Shape, dtype and the picture of the layout, for notebooks (local)."""
        conj = ", conjugated" if self.conjugated else ""
        m, n = self.shape
        return f"<p>DistMatrix {m} × {n}, {self.dtype.name}{conj}</p>\n{self.desc._repr_html_()}"
