"""Creation of matrices: from arrays, functions and files, or filled with zeros or random numbers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.backends.cpu.memory import free_nbytes
from pblas.backends.dtypes import DTYPES, STORED, Array, Dtype, dtype_of_name
from pblas.backends.local_step import text_of
from pblas.layouts.descriptor import MatrixDescriptor, Order
from pblas.matrices import files, indexing
from pblas.matrices import scatter_gather as transfer
from pblas.matrices.complete_files import Part, checked_path
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.arrays import checked_array, compare_array
from pblas.runtime.calls import collective
from pblas.runtime.progress import Progress, ProgressTarget
from pblas.runtime.runtime import (
    Runtime,
    check_root,
    checked_dtype,
    checked_order,
    is_one_of,
    name_of,
    shared_descriptor,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from numpy.typing import DTypeLike

    from pblas.backends.device import Device
    from pblas.backends.host_ranks import HostRanks


Layout = MatrixDescriptor | tuple[int, int]  # a descriptor, or a shape (m, n) for `MatrixDescriptor.default`

_FIRST_STREAM = 1 << 63
"""Seed of the first call of a context without a seed, far from those that users choose."""
_LARGE_NBYTES = 1 << 30
"""Matrices of this size are made if there is memory for all of their elements."""
_PANEL, _GPU_PANEL = 1 << 20, 1 << 24
"""Elements of a function's values that are computed at a time, by hosts and by GPUs."""
_FOR_NONE = {
    "from_global": "the m x n array there, or the rank that has it as root=",
    "from_local": "an array of shape desc.local_shape(rank), which may be empty",
    "from_parts": "an array of 0 rows (or columns) there, if the rank has none",
    "replicate": "the m x n array, on every rank",
}
"""What a rank passes in place of None, by the name of the call."""


class Creation:
    """The methods of a context that create matrices; all of them are **collective**."""

    runtime: Runtime

    @collective
    def from_global(
        self,
        array: Array | Callable[[Array, Array], Array] | None,
        desc: Layout | None = None,
        root: int | None = 0,
        *,
        dtype: DTypeLike | None = None,
        order: Order | None = None,
    ) -> DistMatrix:
        """**Collective.** Distribute an array of one rank or of all ranks, or the values of a function of the indices.

        Args:
            array: an m x n array in any storage order on `root` (other ranks may pass None); with root=None the same
                array on every rank; NumPy's, or CuPy's if the context multiplies on GPUs. Or a function f(i, j), as
                in `from_function` (global).
            desc: distribution of the matrix, or its shape (m, n) for `MatrixDescriptor.default`; None for the shape of
                the array (global).
            root: rank that has the array; None if every rank has it (global).
            dtype: dtype of the matrix; None: that of the array, or float64 for a function (global).
            order: storage order, "F" or "C", of a matrix without a descriptor; None for that of the context (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a matrix, or a root that is not a rank.
            DescriptorError: the array does not have the shape of the descriptor.
            DTypeError: a dtype that pblas does not multiply.
        """
        return self._distributed("from_global", array, desc, root, dtype, order)

    def _distributed(
        self,
        opname: str,
        array: object,
        desc: object,
        root: int | None,
        dtype: DTypeLike | None,
        order: Order | None = None,
    ) -> DistMatrix:
        """**Collective.** `from_global`, under the name of the call that the user made."""
        by_function, backend = callable(array), self.runtime.backend
        source, dtype_index = None, -1
        if desc is None and not by_function:
            desc = self._shape_of(opname, array, root)
        with self.runtime.local_step(opname):
            desc = self._checked_desc(opname, desc, order)
            check_root(opname, root, self.runtime.nprocs)
            if by_function or dtype is not None:
                wanted = np.float64 if dtype is None else dtype
                dtype_index = STORED.index(checked_dtype(opname, wanted, is_argument=True, stored=True))
            if not by_function and root in (None, self.runtime.rank):
                source = self._checked_matrix(opname, array)
                if dtype is None:
                    dtype_index = STORED.index(checked_dtype(opname, source.dtype, stored=True))
                else:
                    _check_conversion(opname, source.dtype, STORED[dtype_index])
                if source.shape != desc.shape:
                    shape = f"{source.shape[0]} x {source.shape[1]}"
                    raise errors.DescriptorError(
                        f"{opname}: the array is {shape}, the descriptor {desc.m} x {desc.n}; make them agree"
                    )
                if root is None:
                    compare_array("the array", source, self.runtime)
        known = dtype_index >= 0 and (root is None or by_function or dtype is not None)
        arguments = {"desc": shared_descriptor(desc), "root": root, "a function": by_function}
        arguments["dtype"] = STORED[dtype_index].name if known else "the array's"
        largest = self.runtime.agree(opname, arguments, maxima=(dtype_index, self.runtime.nelements(desc)))
        local = self._memory(opname, desc, STORED[largest[0]], largest[1])
        if source is not None:
            source = backend.reading(source)
        if by_function:
            self._fill_by(opname, array, local, desc)
        elif root is None:
            assert source is not None, "every rank has the array"
            if local.size:
                backend.copy(source, local, of=transfer.places_of(desc, self.runtime.rank))
        else:
            transfer.scatter(self.runtime, source, desc, local, root)
        return DistMatrix(desc, local, self.runtime)

    def _shape_of(self, opname: str, array: object, root: int | None) -> tuple[int, int]:
        """**Collective.** The shape of the array of `root`, or of all ranks."""
        shape = -1, -1
        with self.runtime.local_step(opname):
            check_root(opname, root, self.runtime.nprocs)
            if root is None or root == self.runtime.rank:
                m, n = self._checked_matrix(opname, array).shape
                shape = m, n
        arguments: dict[str, Any] = {"root": root, "shape": shape if root is None else "the array's"}
        m, n = self.runtime.agree(f"{opname}: shape", arguments, maxima=shape)
        return m, n

    @collective
    def from_local(self, array: Array, desc: Layout, *, copy: bool = False) -> DistMatrix:
        """**Collective.** A matrix made of the ranks' local arrays, which are used in place.

        Args:
            array: this rank's local array, of shape desc.local_shape(rank), stored in desc.order: a NumPy array, or a
                CuPy array if the context multiplies on GPUs (local).
            desc: distribution (global), with this rank's leading dimension or None (local); or the shape (m, n) of the
                matrix for `MatrixDescriptor.default` (global).
            copy: copy the array; it may then have any strides, and be in host memory (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a matrix, or an array in host memory for a context on GPUs.
            LayoutError: wrong local shape, strides that do not fit the order, or lld too small.
            DTypeError: a dtype that pblas does not multiply.
        """
        opname = "from_local"
        with self.runtime.local_step(opname):
            desc = self._checked_desc(opname, desc)
            part = self._checked_matrix(opname, array)
            checked_dtype(opname, part.dtype, stored=True)
            self._check_local(part, desc, copy)
        arguments = {"desc": shared_descriptor(desc), "copy": copy, "dtype": part.dtype.name}
        largest = self.runtime.agree(opname, arguments, maxima=(self.runtime.nelements(desc),))[0]
        if copy:
            local = self._memory(opname, desc, part.dtype, largest)
            self.runtime.backend.copy(part, local)
            part = local
        return DistMatrix(desc, part, self.runtime)

    @collective
    def empty(self, desc: Layout, dtype: DTypeLike = np.float64) -> DistMatrix:
        """**Collective.** An uninitialised matrix, in memory that the ranks of a node read in place.

        Args:
            desc: distribution (global), with this rank's leading dimension or None (local); or the shape (m, n) of the
                matrix for `MatrixDescriptor.default` (global).
            dtype: dtype of the elements (global).

        Returns:
            The matrix.

        Raises:
            DTypeError: a dtype that pblas does not multiply.
            WorkspaceError: too little shared memory, with transport="shared"; a host with too little memory.
        """
        return self._new("empty", desc, dtype)

    @collective
    def zeros(self, desc: Layout, dtype: DTypeLike = np.float64) -> DistMatrix:
        """**Collective.** A matrix of zeros; see `empty`."""
        return self._new("zeros", desc, dtype, fill=lambda arrays, x, _: arrays.fill_whole(x, 0))

    @collective
    def random(
        self,
        desc: Layout,
        dtype: DTypeLike = np.float64,
        *,
        seed: int | None = None,
        distribution: Literal["uniform", "normal"] = "uniform",
    ) -> DistMatrix:
        """**Collective.** A matrix of random numbers.

        Entry (i, j) depends on i, j, the seed, the distribution and the dtype only, not on the layout or the number of
        ranks. Each call of a context without a seed has the next seed of a sequence, which is the same in every run.

        Args:
            desc: layout, or shape (m, n) for `MatrixDescriptor.default` (global).
            dtype: dtype of the elements; real and imaginary parts of complex elements are independent (global).
            seed: any integer; None for the next stream, which differs from those of the calls before (global).
            distribution: "uniform" in [-1, 1), or "normal" with mean 0 and variance 1; of complex elements both parts
                (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: a seed that is not an integer, or another distribution.
            DTypeError: a dtype that pblas does not multiply.

        >>> import pblas
        >>> with pblas.Context() as ctx:
        ...     bool(ctx.random((500, 500), distribution="normal").norm() < 510)
        True
        """

        def checked() -> dict[str, Any]:
            if not is_one_of(distribution, "uniform", "normal"):
                raise errors.ArgumentError(f"random: distribution must be 'uniform' or 'normal', got {distribution!r}")
            return {"seed": seed if seed is None else _checked_seed(seed), "distribution": distribution}

        def fill(arrays: Device, x: Array, layout: MatrixDescriptor) -> None:
            start, runtime = seed, self.runtime
            if start is None:
                start, runtime.nstreams = _FIRST_STREAM + runtime.nstreams, runtime.nstreams + 1
            if x.size:  # NumPy's integers would overflow
                indices = transfer.global_indices(layout, runtime.rank)
                arrays.randomize(x, *indices, int(start), normal=distribution == "normal")

        return self._new("random", desc, dtype, checked, fill)

    @collective
    def load(
        self,
        path: str | os.PathLike[str],
        desc: Layout | None = None,
        dtype: DTypeLike | None = None,
        *,
        dataset: str | None = None,
        order: Order | None = None,
        rows: slice | None = None,
        columns: slice | None = None,
        shape: tuple[int, int] | None = None,
        offset: int = 0,
        progress: ProgressTarget = False,
    ) -> DistMatrix:
        """**Collective.** A matrix from a .npy, .h5, .zarr, .mtx or .bin file; every rank reads the elements it owns.

        An array of one dimension is read as n x 1. Memory for the elements of this rank and for 4 MiB of each of at
        most 8 threads suffices, however large the file is; only arrays in chunks take the chunks of 16 MiB, or of a row
        of chunks.

        Args:
            path: path of a file that all ranks can read; HDF5, read by h5py (the extra `hdf5`), if it ends in .h5 or
                .hdf5; a folder of zarr (the extra `zarr`) if it ends in .zarr; an array of the Matrix Market if it ends
                in .mtx, a text that every rank reads; elements alone if it ends in .bin (global).
            desc: distribution, of the shape of the matrix that is read; None for `MatrixDescriptor.default` (global).
            dtype: dtype of the matrix; None for that of the file. A .bin file has this dtype, as "float64" or ">f8"
                (global).
            dataset: name of the dataset in an HDF5 file, or of an array in a group of zarr; None for the only one
                (global).
            order: storage order, "F" or "C", of a matrix without a descriptor; None for that of the context. A .bin
                file has this order too, "F" as Fortran writes, unless the context has another (global).
            rows: the rows to read, as slice(10, 20); None for all (global).
            columns: the columns to read; None for all (global).
            shape: rows and columns of a .bin file; None for those of `desc` (global).
            offset: bytes before the first element of a .bin file (global).
            progress: as in `pblas.linalg.solve`; the stage is "read" (global).

        Returns:
            The matrix.

        Raises:
            ArgumentError: not a path, or no name of a dataset.
            BackendError: an .h5 file without h5py, or a .zarr folder without zarr.
            FileFormatError: no such file or dataset, another format, or a truncated file.
            DescriptorError: the matrix in the file has another shape.
            DTypeError: a dtype that pblas does not multiply; dtype= converts it.
        """
        opname = "load"
        with self.runtime.local_step(opname):
            path = checked_path(opname, path)
            raw_file = self._raw(opname, path, desc, dtype, order, shape, offset)
            if raw_file is not None:
                dtype = raw_file.dtype.newbyteorder("=")
                if isinstance(desc, MatrixDescriptor):
                    order = None  # the descriptor has that of the matrix
            desc = None if desc is None else self._checked_desc(opname, desc, order)
            dataset = files.checked_dataset(opname, path, dataset)
            dry = self.runtime.backend.dry
            header = (dry and dry.saved(path)) or files.read_header(path, dataset, raw_file)
            chosen = _chosen_part(opname, header.shape, rows, columns)
            header = replace(header, first=(chosen.i0, chosen.j0))
            raw = header.is_raw
            if raw and dtype is None:
                nbytes = header.dtype.itemsize
                raise errors.DTypeError(
                    f"{opname}: {path} holds raw elements of {nbytes} bytes; pass their dtype, as dtype='bfloat16'"
                )
            if dtype is None and header.dtype.kind in "biufc" and header.dtype.newbyteorder("=") not in DTYPES:
                fitting = "complex128" if header.dtype.kind == "c" else "float64"
                raise errors.DTypeError(
                    f"{opname}: {path} holds {header.dtype.name} elements, which pblas does not multiply; "
                    f"pass dtype={fitting!r} to convert them"
                )
            native = header.dtype.newbyteorder("=")
            asked = native if dtype is None else dtype
            wanted = checked_dtype(f"{opname} {path}", asked, is_argument=dtype is not None, stored=True)
            if raw and wanted.itemsize != header.dtype.itemsize:
                raise errors.DTypeError(f"{opname} {path}: raw {header.dtype.itemsize}-byte elements are not {dtype}")
            if not raw:
                _check_conversion(f"{opname} {path}", header.dtype, wanted)
            if desc is None:
                desc = self._checked_desc(opname, chosen.shape, order)
            if chosen.shape != desc.shape:
                found = f"{header.shape[0]} x {header.shape[1]} matrix"
                if chosen.shape != header.shape:
                    found += f", of which {chosen.shape[0]} x {chosen.shape[1]} are read"
                raise errors.DescriptorError(
                    f"{opname}: {path} holds a {found}, the descriptor is {desc.m} x {desc.n}; make them agree"
                )
        stored = f"{header.dtype.str} in order {header.order}, from byte {header.offset}"  # of a copy on another node
        arguments: dict[str, Any] = {
            "path": path,
            "dataset": dataset,
            "desc": shared_descriptor(desc),
            "dtype": wanted.name,
        }
        arguments |= {"stored": stored, "first row": chosen.i0, "first column": chosen.j0}
        largest = self.runtime.agree(opname, arguments, maxima=(self.runtime.nelements(desc),))[0]
        local = self._memory(opname, desc, wanted, largest)
        runtime, step = self.runtime, self.runtime.agreed_step("load: read the parts")
        with Progress(opname, runtime, progress) as reports, step:
            if runtime.backend.dry is None:
                files.read_part(Part(path, header, desc, runtime.rank, local, reports.stage("read")), runtime.backend)
        matrix = DistMatrix(desc, local, self.runtime)
        log.write(log.INFO, self.runtime.rank, "load: %s is read, %r", path, matrix)
        return matrix

    def _raw(
        self, opname: str, path: str, desc: object, dtype: object, order: Order | None, shape: object, offset: object
    ) -> files.Raw | None:
        """What the arguments say of a file of elements alone; None for other files (local)."""
        if not files.is_raw(path):
            if shape is not None or offset != 0:
                raise errors.ArgumentError(
                    f"{opname}: shape= and offset= are for .bin files; leave them out for {path}"
                )
            return None
        shape = shape or (desc.shape if isinstance(desc, MatrixDescriptor) else desc)
        if shape is None or dtype is None:
            raise errors.ArgumentError(
                f"{opname}: {path} does not tell what it holds; pass its rows and columns as shape=(m, n), its dtype= "
                f"and its order="
            )
        if isinstance(offset, bool) or not isinstance(offset, int | np.integer) or offset < 0:
            raise errors.ArgumentError(f"{opname}: offset must be a number of bytes, got {offset!r}")
        with suppress(TypeError, ValueError, SyntaxError):
            dtype = dtype_of_name(dtype)
        native = dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype
        checked = checked_dtype(opname, native, is_argument=True, stored=True)
        stored = checked_order(opname, order) or self.runtime.order or "F"
        kept = dtype if isinstance(dtype, np.dtype) else checked
        return files.Raw(self._checked_desc(opname, shape).shape, kept, stored, int(offset))

    def _new(
        self,
        opname: str,
        desc: Layout,
        dtype: DTypeLike,
        arguments: Callable[[], dict[str, Any]] = dict,
        fill: Callable[[Device, Array, MatrixDescriptor], None] | None = None,
    ) -> DistMatrix:
        """**Collective.** A new matrix.

        `arguments` checks further ones, on which the ranks agree. `fill` writes this rank's elements in the caller's
        stream; without it they are uninitialised.
        """
        with self.runtime.local_step(opname):
            desc = self._checked_desc(opname, desc)
            call_args = arguments()
            checked = checked_dtype(opname, dtype, is_argument=True, stored=True)
            arrays = self.runtime.backend.arrays
            if fill is not None:
                arrays.begin(in_order=True)
        call_args |= {"desc": shared_descriptor(desc), "dtype": name_of(checked)}
        largest = self.runtime.agree(opname, call_args, maxima=(self.runtime.nelements(desc),))[0]
        local = self._memory(opname, desc, checked, largest)
        if fill is not None:
            fill(arrays, local, desc)
            arrays.hand_over()
        return DistMatrix(desc, local, self.runtime)

    def _memory(self, opname: str, desc: MatrixDescriptor, dtype: Dtype, nelements: int) -> Array:
        """**Collective.** Allocate this rank's part of a new matrix; all ranks succeed, or all raise."""
        if desc.m * desc.n * dtype.itemsize >= _LARGE_NBYTES and not self.runtime.backend.gpus:
            self._check_memory(opname, desc, dtype)
        local = self.runtime.empty(self.runtime.local_memory(desc, dtype, nelements))
        if not self.runtime.backend.shared:  # private memory: another rank may have none
            self.runtime.agree(f"{opname}: allocate", {})
        return local

    def _check_memory(self, opname: str, desc: MatrixDescriptor, dtype: Dtype) -> None:
        """**Collective.** Raise WorkspaceError if a host has too little memory for the parts of its ranks.

        The system promises memory that it does not have, and ends processes that write to it.
        """
        runtime = self.runtime
        with runtime.agreed_step(opname, "memory"):
            shapes = [desc.local_shape(rank) for rank in runtime.backend.peers.node]
            needed, free = dtype.itemsize * sum(m * n for m, n in shapes), free_nbytes()
            if needed > free:
                raise errors.WorkspaceError(
                    f"{opname}: no memory for {needed:,} bytes, the parts of the {len(shapes)} ranks of a host, where "
                    f"{int(free):,} bytes are free; use more hosts, a smaller matrix or a shorter dtype"
                )

    def _fill_by(self, opname: str, entries: Any, local: Array, desc: MatrixDescriptor) -> None:
        """**Collective.** local := entries(i, j), a function of the user, which may fail on some ranks only."""
        step, backend = f"{opname}: evaluate the function", self.runtime.backend

        def checked(i: Array, j: Array) -> Array:
            with self.runtime.users_function(opname):
                value = entries(i, j)
            block: Array = value if backend.is_here(value) else np.asarray(value)
            context = f"{opname}: the function f(i, j) returned {type(value).__name__}"
            _check_conversion(context, block.dtype, local.dtype)
            shape = len(i), j.shape[1]
            if any(x not in (1, y) for x, y in zip_longest(block.shape[::-1], shape[::-1], fillvalue=1)):
                text = f"{opname}: the function f(i, j) returned an array of shape {block.shape}"
                raise errors.DescriptorError(f"{text} for i of {i.shape} and j of {j.shape}; expected {shape}")
            return block

        with self.runtime.local_step(step):
            try:
                if self.runtime.backend.dry is not None:
                    _try(local, desc, self.runtime.rank, checked)
                    return
                _fill(backend, local, desc, checked)
            except (errors.DTypeError, errors.DescriptorError):
                raise
            except (Exception, SystemExit) as caught:
                text = f"{opname}: the function f(i, j) raised {type(caught).__name__}: {text_of(caught)}"
                raise errors.ArgumentError(text) from caught
        self.runtime.agree(step, {})

    def _checked_matrix(self, opname: str, array: object) -> Array:
        """An array of two dimensions, in host or GPU memory."""
        if isinstance(array, DistMatrix):
            raise errors.ArgumentError(f"{opname}: expected an array, got a DistMatrix; A.to_global() collects it")
        if array is None:
            remedy = _FOR_NONE[opname]
            raise errors.ArgumentError(f"{opname}: the array is None on rank {self.runtime.rank}; pass {remedy}")
        matrix = checked_array(opname, "array", array, self.runtime)
        if matrix.ndim != 2:
            got = f"an array of {matrix.ndim} dimension{'s' if matrix.ndim != 1 else ''}"
            if matrix.ndim == 0:
                got = f"{type(array).__name__} {array!r:.40}"
            raise errors.ArgumentError(f"{opname}: expected a matrix (2 dimensions), got {got}; use reshape(m, n)")
        return matrix

    def _check_local(self, part: Array, desc: MatrixDescriptor, copy: bool) -> None:
        """Raise LayoutError or ArgumentError unless an array can be this rank's local array under a descriptor."""
        backend, shape = self.runtime.backend, desc.local_shape(self.runtime.rank)
        if part.shape != shape:
            raise errors.LayoutError(
                f"from_local: the local array is {part.shape[0]} x {part.shape[1]}, the descriptor gives rank "
                f"{self.runtime.rank} {shape[0]} x {shape[1]}; make it of shape desc.local_shape(rank)"
            )
        if copy:
            return
        if not backend.is_here(part):
            raise errors.ArgumentError(
                f"from_local: the local array is in host memory, but a context with backend={backend.name!r} "
                f"multiplies on GPUs; pass copy=True, which uploads it, or a CuPy array, which is used in place"
            )
        if 0 not in shape:
            _check_strides(part, desc)
            if backend.address(part) % part.dtype.alignment:
                raise errors.LayoutError("from_local: the local array is not aligned to its elements; pass copy=True")

    def _checked_desc(self, opname: str, desc: object, order: Order | None = None) -> MatrixDescriptor:
        """A descriptor that a new matrix of this context can have; the default one, in an order, for a shape (m, n)."""
        checked_order(opname, order)
        if isinstance(desc, MatrixDescriptor) and order not in (None, desc.order):
            raise errors.ArgumentError(f"{opname}: order is {order!r}, the descriptor has {desc.order!r}; leave it out")
        if isinstance(desc, tuple | list) and len(desc) == 2:
            m, n = desc
            make = _known_layout if type(m) is type(n) is int else MatrixDescriptor.default
            try:
                desc = make(m, n, self.runtime.nprocs, order=order or self.runtime.order or "F")
            except errors.LayoutError as caught:
                raise errors.LayoutError(f"{opname}: {str(caught).removeprefix('default: ')}") from None
        if not isinstance(desc, MatrixDescriptor):
            got = repr(desc)[:60] if isinstance(desc, int | tuple | list) else type(desc).__name__
            raise errors.ArgumentError(
                f"{opname}: desc must be a MatrixDescriptor or a shape, as (3, 4) for 3 rows, got {got}"
            )
        self.runtime.check_place(opname, desc, "the matrix")
        return desc


_known_layout = lru_cache(64)(MatrixDescriptor.default)
"""The default layouts of the last shapes."""


def _chosen_part(opname: str, shape: tuple[int, int], rows: Any, columns: Any) -> indexing.Selection:
    """The rows and columns of a file that are read."""
    key = tuple(slice(None) if x is None else x for x in (rows, columns))
    for name, part in zip(("rows", "columns"), key, strict=True):
        if not isinstance(part, slice) or indexing.is_listed(part):
            raise errors.ArgumentError(f"{opname}: {name} must be a slice of step 1, as slice(10, 20), got {part!r}")
    return indexing.selection(shape, key)


def _checked_seed(seed: object) -> int:
    """The seed as an int."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise errors.ArgumentError(f"random: seed must be an integer, got {seed!r}")
    return int(seed)


def _fill(backend: HostRanks, local: Array, desc: MatrixDescriptor, entries: Any) -> None:
    """local := entries(i, j) at its global indices, which are on the GPU if the function takes them there."""
    if not local.size:
        return
    indices = transfer.global_indices(desc, backend.rank)
    if backend.gpus:
        arrays, on_gpu = backend.arrays, [backend.new(index.shape, index.dtype) for index in indices]
        arrays.begin(in_order=True)
        for index, copy in zip(indices, on_gpu, strict=True):
            arrays.from_host(index, copy)
        arrays.hand_over()
        with suppress(Exception):  # a function of NumPy's arrays, or one that fails below too
            for panel, values in _panels(local, on_gpu[0], on_gpu[1], entries, _GPU_PANEL):
                if backend.is_here(values):  # by rows, where the panel may be by columns
                    x = np.broadcast_to(values.astype(panel.dtype, copy=False), panel.shape)
                    arrays.begin(in_order=True)  # after the function's kernels
                    arrays.place(x, panel)
                    arrays.hand_over()
                else:
                    panel[...] = values
            return
    with backend.writing(local) as host:
        i, j = (index.copy() for index in indices)  # the function may change them
        for panel, values in _panels(host, i, j, entries, _PANEL):
            panel[...] = values


def _panels(local: Array, i: Array, j: Array, entries: Any, nelements: int) -> Iterator[tuple[Array, Array]]:
    """Parts of `local` of a few columns, so that temporaries stay small, and entries(i, j) for each."""
    width = max(1, nelements // len(i))
    for start in range(0, len(j), width):
        yield local[:, start : start + width], entries(i[:, None], j[None, start : start + width])


def _try(local: Array, desc: MatrixDescriptor, rank: int, entries: Any) -> None:
    """Evaluate entries(i, j) at the first four global indices, as `_fill` does at all (local)."""
    if local.size:
        i, j = (indices[:2].copy() for indices in transfer.global_indices(desc, rank))
        np.broadcast_to(entries(i[:, None], j[None, :]), (len(i), len(j)))


def _check_conversion(opname: str, source: Dtype, target: Dtype) -> None:
    """Raise DTypeError unless elements of one dtype can be converted to another: numbers, and not complex to real."""
    if source.kind not in "biufc" and source not in STORED:
        raise errors.DTypeError(
            f"{opname}: elements of dtype {source} are not numbers; convert with .astype('float64')"
        )
    if source.kind == "c" and target.kind != "c":
        raise errors.DTypeError(
            f"{opname}: complex numbers would lose their imaginary part as {target.name}; pass a complex dtype, or "
            f"x.real"
        )


def _check_strides(part: Array, desc: MatrixDescriptor) -> None:
    """Raise LayoutError unless an array has the storage order and the leading dimension of a descriptor."""
    if _has_strides(part, desc.order, desc.lld):
        return
    other = "C" if desc.order == "F" else "F"
    if _has_strides(part, other, desc.lld):
        remedy = f"make the descriptor with order={other!r}, or pass copy=True"
    elif _has_strides(part, desc.order, None):
        remedy = "make the descriptor with lld=None, or pass copy=True"
    else:
        remedy = "pass copy=True"
    raise errors.LayoutError(
        f"from_local: strides {part.strides} of the local array do not fit order={desc.order!r}, lld={desc.lld}; "
        f"{remedy}"
    )


def _has_strides(part: Array, order: str, lld: int | None) -> bool:
    """Whether an array is stored in an order with a leading dimension; lld None accepts any that is large enough."""
    fast, slow = (0, 1) if order == "F" else (1, 0)
    unit = part.shape[fast] <= 1 or part.strides[fast] == part.itemsize
    step, rest = divmod(part.strides[slow], part.itemsize)
    return unit and (part.shape[slow] <= 1 or (rest == 0 and step >= part.shape[fast] and lld in (None, step)))
