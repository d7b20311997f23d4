"""Matrices in files: .npy, .h5, .zarr, .mtx and .bin, by the suffix of the path. Each rank writes its own elements."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy

from pblas.backends import log
from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array, Dtype
from pblas.errors import ArgumentError, FileFormatError
from pblas.matrices import complete_files, hdf5, matrix_market, zarr_folders
from pblas.matrices.complete_files import Header, Part, begin, checked_path, reading
from pblas.matrices.scatter_gather import global_indices, holds_first_copy
from pblas.runtime.progress import Progress, ProgressTarget
from pblas.runtime.runtime import checked_dtype, checked_flag

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix

_HDF5 = (".h5", ".hdf5")
_RAW = ".bin"
_TEXT = ".mtx"
_ZARR = ".zarr"
_WRITTEN_NBYTES = 64 << 20
"""Elements that are written between two reports of the progress."""
_PANEL_NBYTES = 4 << 20
"""Memory of a thread for the elements that it reads at a time, unless one line is longer."""
_MOST_THREADS = 8  # that read
_GAP_NBYTES = 1 << 14
"""Elements of other ranks are read too where they are fewer between two of this rank: a call takes as long."""


class Raw(NamedTuple):
    """The properties of a matrix in a file of elements alone, as Fortran writes it (global)."""

    shape: tuple[int, int]
    dtype: Dtype
    order: Literal["F", "C"]
    offset: int = 0  # bytes before the first element


def is_raw(path: str | os.PathLike[str]) -> bool:
    """Whether a file has elements alone, by the suffix of its path."""
    return Path(path).suffix.lower() == _RAW


def format_of(opname: str, path: str) -> Literal["npy", "hdf5", "raw", "text", "zarr"]:
    """The format of a new file, by the suffix of its path.

    >>> format_of("save", "a/b.h5")
    'hdf5'
    >>> format_of("save", "b.txt")
    Traceback (most recent call last):
    pblas.errors.ArgumentError: save: b.txt ends in '.txt'; a matrix is saved as .npy, .h5, .zarr, .mtx or .bin: pass
    'b.npy'
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".npy":
        return "npy"
    if suffix in _HDF5:
        return "hdf5"
    if suffix == _RAW:
        return "raw"
    if suffix == _TEXT:
        return "text"
    if suffix == _ZARR:
        return "zarr"
    name, ends = Path(path).name, f"ends in {suffix!r}" if suffix else "has no ending"
    remedy = f"a matrix is saved as .npy, .h5, .zarr, .mtx or .bin: pass {Path(name).stem + '.npy'!r}"
    raise ArgumentError(f"{opname}: {path} {ends}; {remedy}")


def checked_dataset(opname: str, path: str, dataset: Any) -> str | None:
    """The name of a dataset in an HDF5 file or a folder of zarr, or None."""
    if dataset is None:
        return None
    if Path(path).suffix.lower() not in (*_HDF5, _ZARR):
        raise ArgumentError(f"{opname}: dataset={dataset!r} is for .h5 and .zarr files; leave it out for {path}")
    pieces = dataset.strip("/").split("/") if isinstance(dataset, str) else [""]
    if any(piece in ("", ".", "..") for piece in pieces) or "\0" in dataset:
        raise ArgumentError(f"{opname}: dataset must be a name, as 'data' or 'group/data', got {dataset!r}")
    return str(dataset)


def read_header(path: str | os.PathLike[str], dataset: str | None = None, raw: Raw | None = None) -> Header:
    """Shape, dtype and place of the matrix in a file: `raw`, or what the suffix says; .npy for unknown ones."""
    if raw is not None:
        return _raw_header(path, raw)
    if Path(path).suffix.lower() == _TEXT:
        return matrix_market.read_header(path)
    if Path(path).suffix.lower() == _ZARR:
        return zarr_folders.read_header(path, dataset)
    return hdf5.read_header(path, dataset) if Path(path).suffix.lower() in _HDF5 else _read_npy_header(path)


def read_part(part: Part, backend: HostRanks) -> None:
    """Copy the elements that the rank owns from the file to the memory of a backend."""
    suffix, header = Path(part.path).suffix.lower(), part.header
    if suffix in (_TEXT, _ZARR) or (header.dataset and header.offset is None):
        read = {_TEXT: matrix_market.read_part, _ZARR: zarr_folders.read_part}.get(suffix, hdf5.read_part)
        with backend.writing(part.local) as host:
            read(part._replace(local=host))
    else:
        _read_boxes(part, backend)
    if part.report is not None and not part.local.size:
        part.report(1.0)


def save(a: DistMatrix, path: Any, dataset: str | None, overwrite: object, progress: ProgressTarget) -> None:
    """**Collective.** Write a matrix to a file; see `DistMatrix.save`."""
    runtime, temporary, source = a.runtime, "", a
    with runtime.local_step("save"):
        path = checked_path("save", path)
        form = format_of("save", path)
        if form == "hdf5":
            checked_dtype("save as HDF5", a.dtype)
        if form == "zarr":
            zarr_folders.check_dtype(a.dtype)
        dataset = checked_dataset("save", path, dataset)
        overwrite = checked_flag("save", "overwrite", overwrite)
    runtime.agree("save", {"path": path, "dataset": dataset, "overwrite": overwrite, **a.signature()})
    if runtime.backend.dry is not None:
        runtime.backend.dry.keep_header(path, Header(a.shape, a.dtype, a.desc.order, 0, dataset or ""))
        return
    if form == "zarr" and zarr_folders.layout(a.desc) is not a.desc:
        source = a.redistribute(zarr_folders.layout(a.desc))
    made: tuple[str, Header] | None = None
    try:
        with runtime.agreed_step("save: create the file"):
            if runtime.rank == 0:
                made = create(path, dataset, source.desc, a.dtype, overwrite=overwrite)
                temporary = made[0]
        name, header = runtime.backend.broadcast_object(made, 0)
        with Progress("save", runtime, progress) as reports, runtime.agreed_step("save: write the parts"):
            local = source.stored("save")
            part = Part(name, header, source.desc, runtime.rank, local, reports.stage("write"))
            write_part(part, runtime.backend, conj=source.conjugated)
        with runtime.agreed_step("save: finish"):
            if runtime.rank == 0:
                finish(temporary, path, header)
        if runtime.rank == 0:
            log.write(log.INFO, 0, "save: %s is written, %r", path, a)
    finally:
        discard(temporary)


def create(
    path: str, dataset: str | None, desc: MatrixDescriptor, dtype: Dtype, *, overwrite: bool
) -> tuple[str, Header]:
    """Create a file of the right size under a temporary name in the folder of `path`; datasets of an old one stay."""
    temporary, shape, order = "", desc.shape, desc.order
    try:
        if format_of("save", path) == "zarr":
            return zarr_folders.create(path, dataset, desc, dtype, overwrite=overwrite)
        temporary, file = begin(path)
        with file:
            kind = format_of("save", path)
            if kind == "npy":
                header = _write_npy_header(file, shape, dtype, order)
            elif kind == "text":
                header = matrix_market.write_header(file, shape, dtype)
            elif kind == "raw":
                header = Header(shape, _stored(dtype), order, 0)
            else:
                if Path(path).exists():
                    shutil.copyfile(path, temporary)
                header = hdf5.write_header(path, temporary, dataset or hdf5.DEFAULT, shape, dtype, overwrite=overwrite)
            offset, nbytes = header.offset, shape[0] * shape[1] * header.dtype.itemsize
            if nbytes and offset is not None:
                if hasattr(os, "posix_fallocate"):  # a full disk raises here; a memory map would get a SIGBUS later
                    os.posix_fallocate(file.fileno(), offset, nbytes)
                elif os.fstat(file.fileno()).st_size < offset + nbytes:
                    os.ftruncate(file.fileno(), offset + nbytes)
    except OSError as error:
        complete_files.discard(temporary)
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None
    except BaseException:
        complete_files.discard(temporary)
        raise
    return temporary, header


def finish(temporary: str, path: str, header: Header) -> None:
    """Give a complete file, or a folder of zarr, its name."""
    if header.is_folder:
        zarr_folders.finish(temporary, path, header)
    else:
        complete_files.finish(temporary, path)


def discard(temporary: str) -> None:
    """Remove a file or folder that could not be completed, if that is possible."""
    remove = zarr_folders.discard if Path(temporary or "/dev/null").is_dir() else complete_files.discard
    remove(temporary)


_MOST = (1 << 63) - 1


def _read_npy_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a .npy file that holds a matrix."""
    with reading(path) as file:
        try:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0), (3, 0)):
                raise FileFormatError(f"{path}: .npy format version {version} is unknown; save it with numpy.save")
            # 3.0 is 2.0 with names of fields in UTF-8: read as Latin letters, a matrix of numbers is the same
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
        except (FileFormatError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - Python's parser raises many kinds for a header that is not NumPy's
            raise FileFormatError(f"{path}: not a .npy file: {type(error).__name__}: {error}") from None
    if not all(type(extent) is int and 0 <= extent <= _MOST for extent in shape):
        raise FileFormatError(f"{path}: not a .npy file: its shape is not of integers in 0..2**63 - 1")
    if len(shape) == 1:
        shape, fortran = (*shape, 1), True
    if len(shape) != 2 or dtype.hasobject or dtype.subdtype is not None:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    needed = offset + shape[0] * shape[1] * dtype.itemsize
    if size < needed:
        raise FileFormatError(f"{path}: truncated: expected {needed} bytes, got {size}; write the file again")
    return Header(shape, dtype, "F" if fortran else "C", offset)


def _raw_header(path: str | os.PathLike[str], raw: Raw) -> Header:
    """The header of a file of elements alone, which must be long enough."""
    with reading(path) as file:
        size = os.fstat(file.fileno()).st_size
    (m, n), needed = raw.shape, raw.offset + raw.shape[0] * raw.shape[1] * raw.dtype.itemsize
    if size < needed:
        raise FileFormatError(
            f"{path}: truncated: {m} x {n} elements of {raw.dtype.name} from byte {raw.offset} on need {needed} bytes, "
            f"got {size}; check shape, dtype and offset"
        )
    return Header(raw.shape, raw.dtype, raw.order, raw.offset)


def _stored(dtype: Dtype) -> Dtype:
    """A dtype of NumPy's own with the elements of another."""
    return np.dtype(f"V{dtype.itemsize}") if dtype in (BFLOAT16, *FLOAT8) else dtype


def _write_npy_header(file: BinaryIO, shape: tuple[int, int], dtype: Dtype, order: str) -> Header:
    """Write the header of a new .npy file."""
    stored = _stored(dtype)
    header = {"descr": npy.dtype_to_descr(stored), "fortran_order": order == "F", "shape": shape}
    npy.write_array_header_1_0(file, header)
    file.flush()
    return Header(shape, stored, order, file.tell())


def _read_boxes(part: Part, backend: HostRanks) -> None:
    """Copy the elements that the rank owns from a file in which they are one contiguous piece, by several threads.

    A memory map would do it in one line, but a file that shrinks meanwhile would then end the process by SIGBUS.
    """
    path, header, desc, rank, local, report = part
    if not local.size:
        return
    assert header.offset is not None, "the elements are one contiguous piece"
    offset, by_columns = header.offset, header.order == "F"  # a line is contiguous in the file: a column, or a row
    ranges = [
        [(start + first, stop + first) for start, stop in runs]
        for runs, first in zip(desc.global_ranges(rank), header.first, strict=True)
    ]
    indices = [x + first for x, first in zip(global_indices(desc, rank), header.first, strict=True)]
    along, lines = ranges[:: 1 if by_columns else -1]
    own, mine = indices[:: 1 if by_columns else -1]
    target = local.T if by_columns else local
    length, itemsize = header.shape[0 if by_columns else 1], header.dtype.itemsize
    spans = [(0, length)] if length * itemsize <= _GAP_NBYTES else _joined(along, _GAP_NBYTES // itemsize)
    height = max(1, _PANEL_NBYTES // (length * itemsize))
    panels = [
        (start, min(stop, start + height))
        for first, stop in _joined(lines, _GAP_NBYTES // (length * itemsize))
        for start in range(first, stop, height)
    ]

    def read(panel: tuple[int, int]) -> int:
        """Read some lines; the number of this rank's lines up to the last of them."""
        start, end = panel
        ours = slice(*np.searchsorted(mine, panel))
        for low, high in spans:
            inside = slice(*np.searchsorted(own, (low, high)))
            box = np.empty((end - start, high - low), header.dtype)
            places = [offset + (line * length + low) * itemsize for line in range(start, end)]
            for place, line in [(places[0], box)] if high - low == length else zip(places, box, strict=True):
                _read_at(path, file, place, line)
            box = box[_chosen(mine[ours] - start)][:, _chosen(own[inside] - low)]
            box = box.view(local.dtype) if header.is_raw else box
            with np.errstate(all="ignore"):  # threads have error states of their own
                backend.copy(box, target[ours, inside])
        return int(ours.stop)

    threads = min(backend.threads, _MOST_THREADS, len(panels))
    with reading(path) as file, ThreadPoolExecutor(threads) as pool:
        for done in map(read, panels) if threads == 1 else pool.map(read, panels):
            if report is not None:
                report(done / len(mine))


def _joined(ranges: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Ranges that contain the given ones; those with no more than `gap` between them are one.

    >>> _joined([(0, 2), (3, 5), (9, 10)], 1)
    [(0, 5), (9, 10)]
    """
    joined = [ranges[0]]
    for start, stop in ranges[1:]:
        if start - joined[-1][1] <= gap:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined


def _chosen(indices: Array) -> slice | Array:
    """Ascending indices, as a slice if they are consecutive: it selects without a copy."""
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices


def _read_at(path: str | os.PathLike[str], file: BinaryIO, place: int, target: Array) -> None:
    """Fill a contiguous array with the bytes of a file from `place` on."""
    left = target.reshape(-1).view(np.uint8).data
    while left:
        count = os.preadv(file.fileno(), [left], place)
        if count == 0:
            raise FileFormatError(f"{path}: cannot be read: it became shorter meanwhile; write the file again")
        left, place = left[count:], place + count


def write_part(part: Part, backend: HostRanks, *, conj: bool = False) -> None:
    """Write the elements of a rank, or their conjugates, into a file; of replicated elements the first copy only."""
    path, header, desc, rank, local, report = part
    if not local.size or not holds_first_copy(desc, rank):
        return

    def on_host(x: Array) -> Array:
        host = backend.reading(x)
        return np.conj(host) if conj else host

    if header.is_folder:
        zarr_folders.write_part(part._replace(local=on_host(local)))
        return
    assert header.offset is not None, "the elements are one contiguous piece"
    by_columns, itemsize = header.order == "F", header.dtype.itemsize  # as in `_read_boxes`
    own, mine = global_indices(desc, rank)[:: 1 if by_columns else -1]
    source, length = (local.T, header.shape[0]) if by_columns else (local, header.shape[1])
    inside, step = _chosen(own), max(1, _WRITTEN_NBYTES // (len(own) * itemsize))
    is_direct = isinstance(inside, slice) and len(own) * itemsize >= _GAP_NBYTES
    try:
        with Path(path).open("r+b", buffering=0) as file:
            starts = range(0, len(mine), step)
            for start, lines in zip(starts, _ahead(lambda k: on_host(source[k : k + step]), starts), strict=True):
                places, elements = mine[start : start + step], lines
                if header.dtype.kind == "S":
                    elements = matrix_market.lines(lines)
                elif header.is_raw:
                    elements = lines.view(header.dtype)
                if is_direct:
                    box = np.ascontiguousarray(elements, header.dtype)
                    is_whole = len(own) == length and isinstance(_chosen(places), slice)
                    for place, line in [(places[0], box)] if is_whole else zip(places, box, strict=True):
                        _write_at(file, header.offset + (int(place) * length + int(own[0])) * itemsize, line)
                else:
                    stored = np.memmap(
                        file, header.dtype, "r+", header.offset, (header.shape[1 if by_columns else 0], length)
                    )
                    index = _chosen(places)
                    is_slice = isinstance(index, slice) or isinstance(inside, slice)
                    stored[(index, inside) if is_slice else np.ix_(places, own)] = elements
                    stored.flush()
                if report is not None:
                    report((start + len(places)) / len(mine))
            if is_direct:
                os.fsync(file.fileno())
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written: {error.strerror or error}") from None


def _ahead(function: Callable[[int], Array], items: Iterable[int]) -> Iterator[Array]:
    """The results of a function, which a thread computes while the one before is used (local)."""
    with ThreadPoolExecutor(1) as pool:
        pending: Future[Array] | None = None
        for item in items:
            last, pending = pending, pool.submit(function, item)
            if last is not None:
                yield last.result()
        if pending is not None:
            yield pending.result()


def _write_at(file: BinaryIO, place: int, source: Array) -> None:
    """Write the bytes of a contiguous array into a file from `place` on."""
    left = source.reshape(-1).view(np.uint8).data
    while left:
        count = os.pwrite(file.fileno(), left, place)
        left, place = left[count:], place + count
