"""Arrays of other libraries: conversion of arguments and results, and the library's current stream.

pblas reads torch's tensors through their own attributes: DLPack would order streams that need no order, and NumPy takes
no bfloat16 from it. This module does not import torch: a caller with a tensor has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array, Dtype, address_of, dtype_of_name

if TYPE_CHECKING:
    from collections.abc import Callable


class Stream:
    """A CUDA stream by its handle, for libraries that take any object with `__cuda_stream__` (local)."""

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def is_tensor(x: object) -> bool:
    """Whether x is a tensor of torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


_KNOWN: dict[Any, Dtype] = {}
_TORCHS: dict[Dtype, Any] = {}
"""NumPy's dtypes by torch's, which are slow to name, and torch's by NumPy's."""


def tensor_dtype(x: Any) -> Dtype:
    """NumPy's dtype of a tensor's elements."""
    dtype = _KNOWN.get(x.dtype)
    if dtype is None:
        try:
            dtype = _KNOWN[x.dtype] = dtype_of_name(str(x.dtype).removeprefix("torch."))
        except TypeError:
            raise _unknown(x) from None
    return dtype


_WORDS = {BFLOAT16: "<i2"} | dict.fromkeys(FLOAT8, "|u1")
"""Types by which NumPy reads elements that it does not know."""
_TYPES: dict[Any, tuple[str, Dtype | None]] = {}
"""For torch's dtypes, the type by which NumPy reads the elements, and the dtype of a view of them if that differs."""


class _Memory:
    """Memory for `numpy.asarray`, and the object that the array keeps alive.

    After `tensor.numpy()` torch refuses to resize the memory, as fully_shard does between the uses of a weight.
    """

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, place: tuple[int, bool], layout: tuple[Any, Any], typestr: str, owner: object) -> None:
        shape, strides = layout
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": typestr,
            "data": place,
            "shape": shape,
            "strides": strides,
        }
        self._owner = owner


def _array_on(x: Any) -> Array:
    """A NumPy array on the memory of a tensor on the CPU (local)."""
    types = _TYPES.get(x.dtype)
    if types is None:
        dtype = tensor_dtype(x)
        types = _TYPES[x.dtype] = _WORDS.get(dtype, dtype.str), dtype if dtype in _WORDS else None
    typestr, viewed = types
    strides = None
    if not x.is_contiguous():
        nbytes = x.element_size()
        strides = tuple(step * nbytes for step in x.stride())
    array: Array = np.asarray(_Memory((x.data_ptr() or _NOWHERE, False), (tuple(x.shape), strides), typestr, x))
    return array if viewed is None else array.view(viewed)


def borrowed(x: Array) -> Array:
    """The same NumPy array, which does not keep its memory alive (local)."""
    typestr, place = _WORDS.get(x.dtype, x.dtype.str), (address_of(x), not x.flags.writeable)
    array: Array = np.asarray(_Memory(place, (x.shape, x.strides), typestr, None))
    return array.view(x.dtype) if x.dtype in _WORDS else array


_NOWHERE = np.empty(1).ctypes.data
"""An address for arrays without elements."""


def _unknown(x: Any) -> errors.DTypeError:
    return errors.DTypeError(f"elements of {x.dtype} cannot be multiplied; convert with .to(torch.float32)")


def host_array(x: Any) -> Array:
    """A NumPy array on the memory of an array, a tensor or a DLPack object; otherwise np.asarray(x)."""
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise errors.ArgumentError("elements of a masked array have no value; pass x.filled(0), or x.data")
        return np.asarray(x)  # no subclass: slices of np.matrix always have two dimensions
    if is_tensor(x):
        check_tensor(x)
        if not x.is_cpu:
            raise errors.ArgumentError(f"the tensor is on {x.device}; pass x.cpu()")
        return _array_on(x)
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, TypeError, ValueError):  # elements that NumPy's DLPack does not know
            pass
    return np.asarray(x)


def check_tensor(x: Any) -> None:
    """Raise ArgumentError if a tensor's memory does not hold its elements, or if it requires a gradient."""
    if x.layout != sys.modules["torch"].strided:
        raise errors.ArgumentError(f"the tensor's layout is {x.layout}; pass x.to_dense()")
    if x.is_conj() or x.is_neg():
        raise errors.ArgumentError("the tensor is a conjugated or negated view; pass x.resolve_conj().resolve_neg()")
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise errors.ArgumentError(
            "the tensor requires a gradient, which is not recorded; call under torch.no_grad(), or use the layers of "
            "pblas.torch"
        )


def has_memory(x: object) -> bool:
    """Whether x is an array whose memory can be used in place, unlike a number or a list (local)."""
    return (
        isinstance(x, np.ndarray) or is_tensor(x) or hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")
    )


def identity(x: Any) -> tuple[int, tuple[object, ...]] | None:
    """Address of an array and its memory layout, as keys: another array with both can be read in its place (local).

    None for objects of other kinds, and for tensors whose memory does not hold their elements.
    """
    kind = type(x)
    if kind is np.ndarray:
        return address_of(x), (x.shape, x.strides, x.dtype, x.flags.writeable)
    torch: Any = sys.modules.get("torch")
    if torch is not None and (kind is torch.Tensor or kind is torch.nn.Parameter):
        if x.layout != torch.strided or x.is_conj() or x.is_neg() or (x.requires_grad and torch.is_grad_enabled()):
            return None
        return x.data_ptr(), (x.shape, x.stride(), x.dtype, x.device)
    address = getattr(getattr(x, "data", None), "ptr", None)  # of CuPy's arrays
    return None if address is None else (address, (x.shape, x.strides, x.dtype))


def is_view(array: Array, x: Any, backend: Any) -> bool:
    """Whether `array`, which the backend made from x, uses x's memory (local)."""
    return array is x or not array.size or backend.address(array) == backend.address(backend.as_array(x))


def detached(x: Any) -> Any:
    """The same memory without torch's recording of gradients; x itself if it is no tensor (local)."""
    return x.detach() if is_tensor(x) else x


def current_stream(x: Any) -> Stream | None:
    """Torch's current stream on x's GPU; None if x is no tensor on a GPU: the backend's default stream applies."""
    if is_tensor(x) and x.is_cuda:
        torch: Any = sys.modules["torch"]
        # torch.cuda.current_stream takes 10 us
        return Stream(torch._C._cuda_getCurrentRawStream(x.device.index))  # noqa: SLF001
    return None


class Target(NamedTuple):
    """Destination of a result."""

    theirs: object  # the caller's array, or a new one of its library; None if `array` is converted in the end (local)
    array: Array  # the backend's array on the same memory (local)
    like: object  # an array of the caller's library (local)

    @property
    def result(self) -> Any:
        """The result as an array of the caller's library, after `array` is written (local)."""
        return to_library(self.array, self.like) if self.theirs is None else self.theirs


def new_target(
    shape: tuple[int, ...],
    like: Any,
    backend: Any,
    make: Callable[[], Array],
    order: Literal["C", "F"] = "C",
    dtype: Dtype | None = None,
) -> Target:
    """Destination of a new result (local)."""
    theirs = empty(shape if order == "C" else shape[::-1], like, dtype)
    if theirs is not None and order == "F":
        theirs = theirs.permute(tuple(range(len(shape)))[::-1])
    return Target(theirs, make() if theirs is None else backend.as_array(theirs), like)


def empty(shape: tuple[int, ...], like: Any, dtype: Dtype | None = None) -> Any:
    """An uninitialised tensor on the device of the tensor `like`; None if `like` is no tensor (local)."""
    if not is_tensor(like):
        return None
    if dtype is None or tensor_dtype(like) == dtype:
        return like.new_empty(shape)
    theirs = _TORCHS.get(dtype)
    if theirs is None:
        theirs = _TORCHS[dtype] = getattr(sys.modules["torch"], dtype.name)
    return like.new_empty(shape, dtype=theirs)


def to_library(result: Array, like: object) -> Any:
    """A result as an array of the library of `like`, on the same memory (local)."""
    return result if isinstance(like, (type(result), np.ndarray)) else library_of(like).from_dlpack(result)


def library_of(like: object) -> Any:
    """The library of an array.

    >>> library_of(np.zeros(1)) is np
    True
    """
    if not makes_arrays(like):
        raise errors.ArgumentError(f"no {type(like).__name__} can be made of a result; pass arrays, or out=")
    return _library(like)


def makes_arrays(like: object) -> bool:
    """Whether the library of an array creates arrays from DLPack.

    >>> makes_arrays(np.zeros(1)), makes_arrays([0.0])
    (True, False)
    """
    return isinstance(like, np.ndarray) or hasattr(_library(like), "from_dlpack")


def _library(x: object) -> Any:
    if isinstance(x, np.ndarray):
        return np
    return getattr(x, "__array_namespace__", lambda: sys.modules[type(x).__module__.partition(".")[0]])()
