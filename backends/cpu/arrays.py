"""What executors of general plans and redistributions do with this rank's arrays: memory, copies, products, order.

NumPy's arrays here; `pblas.backends.cuda.arrays` has the same methods for a GPU. There an operation returns before it
is done: what is called one after the other runs on a *lane* one after the other, "main" for products and "side", which
`beside` chooses, for what moves while they run. A `mark` on one lane is what the other one can `follow`. In host memory
everything is done when its call returns, and there is nothing to order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.cpu import gemm as blas
from pblas.backends.dtypes import accumulator_dtype

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_HERE = nullcontext()
_MOST_PROGRAMS = 4  # each may hold memory as large as D


class Programs(OrderedDict[Any, Any]):
    """What a GPU has recorded of the last few bodies, by their keys."""

    def keep(self, key: Any, program: Any) -> None:
        """Add one, and drop the one that was used longest ago if there are too many (local)."""
        self[key] = program
        self.move_to_end(key)
        while len(self) > _MOST_PROGRAMS:
            self.popitem(last=False)


class HostArrays:
    """NumPy arrays, multiplied by BLAS."""

    at_once = True
    """Whether a product is done when its call returns, so that messages have to be looked at between parts of it."""
    reads_peers = True
    """Whether a product may read operands in a peer's memory; else they are copied first."""
    packs = True
    """Whether blocks of cyclic layouts are copied side by side, so that one product takes many."""
    patch: Any = None
    """What copies the elements of a message, where `pblas.execute.redistribution.packing` does not do it by NumPy."""

    # Memory

    def empty(self, nbytes: int) -> Array:
        """Bytes of this rank alone, uninitialised (local)."""
        return np.empty(nbytes, np.uint8)

    def array(self, memory: Array, shape: tuple[int, ...], dtype: np.dtype[Any], order: Any = "F") -> Array:
        """A tight array at the start of what `empty` returned (local)."""
        return np.ndarray(shape, dtype, memory.data, order=order)

    def like(self, x: Array, dtype: np.dtype[Any]) -> Array:
        """An uninitialised array of the shape and storage order of x (local)."""
        return np.empty_like(x, dtype)

    # Elementwise

    def assign(self, x: Array, z: Array) -> None:
        """Z := X, converted to Z's dtype."""
        z[...] = x

    def scale(self, beta: complex, z: Array) -> None:
        """Z := beta Z; with beta = 0 a NaN in Z does not survive."""
        blas.scale(beta, z)

    def add_scaled(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        """Z := alpha X + beta Z, in Z's precision; X is not read when alpha is 0, Z not when beta is 0."""
        blas.add_scaled(alpha, x, beta, z)

    def add_rows(self, x: Array, out: Array, stream: Any = None) -> None:
        """Out := the sum of the rows of x, added in 32 bits at least; on GPUs on the caller's stream."""
        del stream
        with np.errstate(all="ignore"):  # as in `Runtime.collective_section`
            out[...] = x.sum(0, accumulator_dtype(x.dtype))

    # Products

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        """Z := alpha X Y + beta Z, in place; X and Y may be marked as conjugated.

        Args:
            alpha: scalar (local).
            x: m x k, one of its two strides is one element (local).
            y: k x n, likewise, of the same dtype (local).
            beta: scalar; Z is not read when it is 0 (local).
            z: m x n, likewise, of the dtype in which products of x's are added (local).
            conj: multiply with the conjugates of X and Y.
        """
        blas.gemm(alpha, x, y, beta, z, conj=conj)

    # Order

    def begin(self, stream: Any = None, *, tf32: bool = False, autotune: bool = False) -> None:
        """An execution begins, after what its caller has asked the GPU for.

        Args:
            stream: the caller's CUDA stream (local).
            tf32: multiply float32 in TF32 where the hardware has it (global).
            autotune: try several algorithms for each new product, where there are several (global).

        Raises:
            ArgumentError: a stream, which CPUs do not have; on GPUs one that cannot be used.
            BackendError: on GPUs, a library or the GPU fails.
        """
        del tf32, autotune
        if stream is not None:
            raise errors.ArgumentError(f"execute: stream is for GPUs, got {stream!r}; leave it out")

    def settle(self) -> None:
        """Return when all is done that was called before."""

    def replayed(self, programs: Programs, key: Callable[[], Any], body: Callable[[], None]) -> bool:  # noqa: ARG002
        """Do what `body` does, which is to call methods of these arrays and nothing that has to be called again.

        A GPU runs the body twice at most, and replays what it then asked for from the third time on.

        Args:
            programs: the caller's, for such bodies (local).
            key: tells bodies apart, by everything that their calls depend on (local).
            body: what is to be done (local).

        Returns:
            Whether the body was run (local).
        """
        body()
        return True

    def beside(self, what: str = "") -> AbstractContextManager[None]:  # noqa: ARG002 - traces have it
        """A with block, in which calls go to the side lane.

        Args:
            what: it does, for traces; "" where it moves nothing (local).
        """
        return _HERE

    def mark(self) -> Any:
        """The end of what this lane has been given so far."""
        return None

    def follow(self, mark: Any) -> None:
        """What this lane is given from here on begins after a mark of the other."""

    def close(self) -> None:
        """The backend ends: nothing to free."""
