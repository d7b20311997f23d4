"""The namespace of the Python array API standard: NumPy's functions, and constructors of one context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas._lazy import missing
from pblas.matrices.constructors import Constructors
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike

    from pblas.runtime.runtime import Runtime

VERSIONS = "2021.12", "2022.12", "2023.12", "2024.12"
_DTYPES = "float32", "float64", "complex64", "complex128"
_DEFAULTS = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}

_NAMES = """
    abs acos acosh add all any arange argmax argmin argsort asin asinh atan atan2 atanh bitwise_and bitwise_invert
    bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor bool broadcast_arrays broadcast_to ceil clip
    complex128 complex64 concat conj copysign cos cosh count_nonzero cumulative_prod cumulative_sum diff divide e
    empty_like equal exp expand_dims expm1 finfo flip float32 float64 floor floor_divide full_like greater
    greater_equal hypot iinfo imag inf int16 int32 int64 int8 isdtype isfinite isinf isnan less less_equal linalg
    linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul matrix_transpose max
    maximum mean meshgrid min minimum moveaxis multiply nan negative newaxis nextafter nonzero not_equal ones_like
    permute_dims pi positive pow prod real reciprocal remainder repeat reshape roll round searchsorted sign signbit sin
    sinh sort sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu trunc
    uint16 uint32 uint64 uint8 unique_all unique_counts unique_inverse unique_values unstack var vecdot where zeros_like
"""
_FROM_NUMPY = frozenset(_NAMES.split())
"""Names of the standard that NumPy has: its functions call those of pblas for a matrix (`pblas/_numpy.py`)."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The array API of one context: arrays of two dimensions are matrices, others NumPy arrays that all ranks have.

    `DistMatrix.__array_namespace__` makes it. Functions are NumPy's, which call those of pblas for a matrix, and raise
    an ArgumentError with a remedy where pblas has none. All ranks call them, with equal arguments.

    Args:
        runtime: of the context in which matrices are made (global).
    """

    runtime: Runtime

    @staticmethod
    def of(a: DistMatrix, api_version: str | None) -> Namespace:
        """The namespace of a matrix; see `DistMatrix.__array_namespace__` (local)."""
        if api_version not in (None, *VERSIONS):
            raise errors.ArgumentError(
                f"__array_namespace__: api_version must be one of {', '.join(VERSIONS)}, got {api_version!r}"
            )
        return Namespace(a.runtime)

    @property
    def __name__(self) -> str:
        return "pblas.array_api"

    def __getattr__(self, name: str) -> Any:
        if name in _FROM_NUMPY and hasattr(np, name):
            return getattr(np, name)
        raise missing(self.__name__, name, dir(self))

    def __dir__(self) -> list[str]:
        own = [name for name in vars(type(self)) if not name.startswith("_") and name not in ("of", "runtime")]
        return sorted([*own, *(name for name in _FROM_NUMPY if hasattr(np, name)), "__array_namespace_info__"])

    def __array_namespace_info__(self) -> Info:
        """What the namespace can do (local)."""
        return Info(self.runtime)

    def asarray(
        self, obj: Any, /, *, dtype: DTypeLike | None = None, device: object = None, copy: bool | None = None
    ) -> Any:
        """**Collective.** A matrix of an array of two dimensions that all ranks have; others stay NumPy arrays."""
        self._check_device("asarray", device)
        if isinstance(obj, DistMatrix):
            return self.astype(obj, obj.dtype if dtype is None else dtype, copy=bool(copy))
        with self.runtime.call("asarray"), self.runtime.local_step("asarray"):
            array = np.asarray(obj)
        if array.ndim == 2:
            return self._constructors.from_global(array, root=None, dtype=dtype)
        return np.array(array, dtype, copy=copy)

    def astype(self, x: Any, dtype: DTypeLike, /, *, copy: bool = True, device: object = None) -> Any:
        """**Collective.** The same elements in another dtype."""
        self._check_device("astype", device)
        return x.astype(dtype, copy=copy)

    def can_cast(self, from_: Any, to: DTypeLike, /) -> bool:
        """Whether elements may be converted (local)."""
        return np.can_cast(_dtype(from_), to)

    def result_type(self, *arrays_and_dtypes: Any) -> Any:
        """The dtype of the promotion rules (local)."""
        return np.result_type(*map(_dtype, arrays_and_dtypes))

    def from_dlpack(self, x: Any, /, *, device: object = None, copy: bool | None = None) -> Any:
        """**Collective.** `asarray` of an array of another library, by DLPack."""
        return self.asarray(x if isinstance(x, DistMatrix) else np.from_dlpack(x), device=device, copy=copy)

    def empty(self, shape: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Any:
        """**Collective.** Uninitialised elements, a matrix if the shape has two dimensions."""
        return self._made("empty", shape, dtype, device)

    def zeros(self, shape: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Any:
        """**Collective.** Zeros, a matrix if the shape has two dimensions."""
        return self._made("zeros", shape, dtype, device)

    def ones(self, shape: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Any:
        """**Collective.** Ones, a matrix if the shape has two dimensions."""
        return self._made("ones", shape, dtype, device)

    def full(self, shape: Any, fill_value: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Any:
        """**Collective.** Elements that are all equal, a matrix if the shape has two dimensions."""
        self._check_device("full", device)
        if _is_matrix(shape):
            return self._constructors.full(tuple(shape), fill_value, dtype)
        return np.full(shape, fill_value, dtype)

    def eye(
        self,
        n_rows: int,
        n_cols: int | None = None,
        /,
        *,
        k: int = 0,
        dtype: DTypeLike | None = None,
        device: object = None,
    ) -> DistMatrix:
        """**Collective.** A matrix with ones on a diagonal, and zeros elsewhere."""
        self._check_device("eye", device)
        shape = n_rows, n_rows if n_cols is None else n_cols
        return self._constructors.eye(shape, np.float64 if dtype is None else dtype, k=k)

    @property
    def _constructors(self) -> Constructors:
        made = Constructors()
        made.runtime = self.runtime
        return made

    def _made(self, name: str, shape: Any, dtype: DTypeLike | None, device: object) -> Any:
        """**Collective.** A matrix, or for another number of dimensions an array of NumPy."""
        self._check_device(name, device)
        chosen = np.float64 if dtype is None else dtype
        if _is_matrix(shape):
            return getattr(self._constructors, name)(tuple(shape), chosen)
        return getattr(np, name)(shape, chosen)

    def _check_device(self, opname: str, device: object) -> None:
        """Raise ArgumentError for another device than that of the context. **Collective** for that (local)."""
        own = _device(self.runtime)
        if device not in (None, own):
            text = f"{opname}: the arrays of this context are on {own!r}, got device={device!r}; leave it out"
            with self.runtime.call(opname):
                self.runtime.fail(opname, errors.ArgumentError(text))


@dataclass(frozen=True, slots=True)
class Info:
    """What a namespace can do, in the standard's words.

    Args:
        runtime: of the context (global).
    """

    runtime: Runtime

    def capabilities(self) -> dict[str, object]:
        """Which keys have results whose shape depends on elements, and the most dimensions of an array (local)."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 2}

    def default_device(self) -> str:
        """The device of all matrices of the context (local)."""
        return _device(self.runtime)

    def devices(self) -> list[str]:
        """The devices that `device=` names (local)."""
        return [_device(self.runtime)]

    def default_dtypes(self, *, device: object = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of arrays that are made without one, by their kind (local)."""
        return {kind: np.dtype(name) for kind, name in _DEFAULTS.items()}

    def dtypes(self, *, device: object = None, kind: str | Sequence[str] | None = None) -> dict[str, np.dtype[Any]]:
        """The dtypes of matrices, by name: all, or those of a kind or of several (local)."""
        kinds: Any = (kind,) if isinstance(kind, str) else kind
        dtypes = {name: np.dtype(name) for name in _DTYPES}
        return {name: dtype for name, dtype in dtypes.items() if kinds is None or np.isdtype(dtype, tuple(kinds))}


def _device(runtime: Runtime) -> str:
    """The device of a context's matrices; see `DistMatrix.device`."""
    return "cuda" if runtime.backend.arrays.traits.gpu else "cpu"


def _is_matrix(shape: object) -> bool:
    return isinstance(shape, tuple | list) and len(shape) == 2


def _dtype(x: Any) -> Any:
    return x.dtype if isinstance(x, DistMatrix) else x
