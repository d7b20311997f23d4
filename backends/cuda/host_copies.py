"""CuPy arrays of any shape and strides to and from the host's memory, for naive collectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


def settle(verb: str, stream: Any) -> None:
    """Wait until a stream, CuPy's current one by default, is idle (local).

    Raises:
        ArgumentError: an invalid stream, or one that is being captured.
    """
    handle = int(cupy.cuda.get_current_stream().ptr) if stream is None else streams.handle_of(stream)
    if handle not in (0, 1) and runtime.streamIsCapturing(handle):  # those two, default streams, cannot
        raise errors.ArgumentError(
            f"{verb}: a naive collective goes through the hosts, and cannot be captured in a CUDA graph; end the "
            f"capture first"
        )
    runtime.streamSynchronize(handle)


def download(x: Any) -> Array:
    """The elements of a CuPy array, in C order (local)."""
    array: Array = _words(x).get(order="C").view(x.dtype)
    return array


def upload(host: Array, x: Any) -> None:
    """X := an array in host memory (local)."""
    if x.size:
        _words(x)[...] = cupy.asarray(np.ascontiguousarray(host).view(_words(x).dtype).reshape(x.shape))
        runtime.deviceSynchronize()


def _words(x: Any) -> Any:
    """x with elements that every CuPy kernel copies."""
    return x.view(np.uint16) if x.dtype.name == "bfloat16" else x
