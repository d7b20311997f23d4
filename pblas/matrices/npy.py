"""The header of a matrix in a .npy file.

Source: NumPy, the .npy format (numpy.lib.format).
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from pblas.backends.dtypes import BFLOAT16, FLOAT8
from pblas.errors import FileFormatError
from pblas.matrices.complete_files import reading
from pblas.matrices.mapped_files import Header

_MOST = (1 << 63) - 1


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a .npy file that holds a matrix."""
    with reading(path) as file:
        try:
            version = npy.read_magic(file)
            if version == (3, 0):
                raise FileFormatError(
                    f"{path}: .npy format 3.0 is that of records whose fields have names beyond Latin letters; save "
                    f"the matrix of one field, as numpy.save(path, records['name'])"
                )
            if version not in ((1, 0), (2, 0)):
                raise FileFormatError(f"{path}: .npy format version {version} is unknown; save it with numpy.save")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset, size = file.tell(), os.fstat(file.fileno()).st_size
        except (FileFormatError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - Python's parser raises many kinds for a header that is not NumPy's
            raise FileFormatError(f"{path}: not a .npy file: {type(error).__name__}: {error}") from None
    if not all(type(extent) is int and 0 <= extent <= _MOST for extent in shape):
        raise FileFormatError(f"{path}: not a .npy file: its shape is not of integers in 0..2**63 - 1")
    if len(shape) != 2 or dtype.hasobject or dtype.subdtype is not None:
        raise FileFormatError(f"{path}: expected a matrix of numbers, got shape {shape}, dtype {dtype}")
    needed = offset + shape[0] * shape[1] * dtype.itemsize
    if size < needed:
        raise FileFormatError(f"{path}: truncated: expected {needed} bytes, got {size}; write the file again")
    return Header(shape, dtype, "F" if fortran else "C", offset)


def write_header(file: BinaryIO, shape: tuple[int, int], dtype: np.dtype[Any], order: str) -> Header:
    """Write the header of a new .npy file."""
    stored = np.dtype(f"V{dtype.itemsize}") if dtype in (BFLOAT16, *FLOAT8) else dtype
    header = {"descr": npy.dtype_to_descr(stored), "fortran_order": order == "F", "shape": shape}
    npy.write_array_header_1_0(file, header)
    file.flush()
    return Header(shape, stored, order, file.tell())
