"""Arrays of other libraries: what a result for their owner is made of, and on which stream it is wanted.

torch's tensors are read by their own attributes: DLPack would order streams that need no order, and NumPy takes no
bfloat16 from it. torch is not imported: whoever has a tensor has done that.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.gemm import Array


class Stream:
    """A CUDA stream by its handle, as libraries pass it to each other.

    Args:
        handle: of the stream (local).
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor of torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def tensor_dtype(x: Any) -> np.dtype[Any]:
    """NumPy's dtype of a tensor's elements.

    Raises:
        DTypeError: elements that NumPy does not know.
    """
    name = str(x.dtype).removeprefix("torch.")
    try:
        return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
    except TypeError:
        raise errors.DTypeError(
            f"elements of {x.dtype} cannot be multiplied; convert with .to(torch.float32)"
        ) from None


def host_array(x: Any) -> Array:
    """A NumPy array on the memory of a tensor, or of whatever speaks DLPack; else what NumPy makes of x.

    Raises:
        ArgumentError: a tensor that is not in host memory, and as `check_tensor`.
        ValueError: nothing that can be an array.
    """
    if is_tensor(x):
        check_tensor(x)
        if x.device.type != "cpu":
            raise errors.ArgumentError(f"the tensor is on {x.device}; pass x.cpu()")
        dtype, torch = tensor_dtype(x), sys.modules["torch"]
        plain = x.detach()
        found: Array = plain.view(torch.int16).numpy().view(dtype) if dtype.name == "bfloat16" else plain.numpy()
        return found
    if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        try:
            return np.from_dlpack(x)
        except (BufferError, TypeError, ValueError):  # elements that NumPy's DLPack does not know
            pass
    return np.asarray(x)


def check_tensor(x: Any) -> None:
    """Raise ArgumentError if a tensor's memory does not hold its elements, or torch expects a gradient by it."""
    if x.is_conj() or x.is_neg():
        raise errors.ArgumentError("the tensor is a conjugated or negated view; pass x.resolve_conj().resolve_neg()")
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise errors.ArgumentError(
            "the tensor requires a gradient, which is not recorded; call under torch.no_grad(), or in a "
            "torch.autograd.Function, as examples/tp_torch.py does"
        )


def current_stream(x: Any) -> Stream | None:
    """The stream on which the library of x issues work for x's GPU now; None where the backend knows it."""
    if is_tensor(x) and x.is_cuda:
        torch: Any = sys.modules["torch"]
        return Stream(torch.cuda.current_stream(x.device).cuda_stream)
    return None


def empty(shape: tuple[int, ...], like: Any) -> Any:
    """An uninitialised tensor beside another one; None if `like` is none, whose owner takes what `given` makes.

    Args:
        shape: of the array (local).
        like: decides on library, dtype and device (local).
    """
    return sys.modules["torch"].empty(shape, dtype=like.dtype, device=like.device) if is_tensor(like) else None


def given(result: Array, like: Any) -> Any:
    """A finished result as an array of the library of `like`, on the same memory (local).

    Raises:
        ArgumentError: as `home_of`.
    """
    return result if isinstance(like, (type(result), np.ndarray)) else home_of(like).from_dlpack(result)


def home_of(like: Any) -> Any:
    """The library of an array.

    Raises:
        ArgumentError: it makes no arrays from DLPack.

    >>> home_of(np.zeros(1)) is np
    True
    """
    if isinstance(like, np.ndarray):
        return np
    home: Any = getattr(like, "__array_namespace__", lambda: sys.modules[type(like).__module__.partition(".")[0]])()
    if not hasattr(home, "from_dlpack"):
        raise errors.ArgumentError(f"no {type(like).__name__} can be made of a result; pass arrays, or out=")
    return home
