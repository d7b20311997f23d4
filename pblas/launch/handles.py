"""Handles: names, in the process of a `Pool`, of matrices and other objects that stay on its ranks.

A message between the process and a rank refers to such an object by its key: pickle calls it a persistent id.
"""

from __future__ import annotations

import inspect
import pickle
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from html import escape
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.context import Context
    from pblas.matrices.matrix import DistMatrix as _Named  # to type checkers a handle is a matrix
else:
    _Named = object

_OF_ONE_RANK = frozenset(("local", "runtime"))
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OTHERS = (
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "invert", "neg", "pos", "abs"),
    *("getitem", "setitem", "len"),
)


R = TypeVar("R")


class Ranks(Protocol):
    """What handles need of the `Pool` that made them."""

    @property
    def closed(self) -> bool:
        """Whether no rank is left."""

    def call(self, function: Callable[..., R], *args: object, **kwargs: object) -> R:
        """Rank 0's result of a function that all ranks call."""


class Key(NamedTuple):
    """The name of an object on the ranks: the number of the call that made it, and its place in the call's result."""

    call: int
    place: int


class KeptObjects:
    """The objects of one rank that the handles of the pool name."""

    def __init__(self) -> None:
        self._objects: dict[Key, object] = {}

    def find(self, name: tuple[Key, type]) -> object:
        """The object of a handle (local)."""
        try:
            return self._objects[name[0]]
        except KeyError:
            kind = name[1].__name__
            raise errors.ContextError(f"the {kind} of this handle was lost with its context; make it again") from None

    def keeping(self, call: int) -> Callable[[object], tuple[Key, type] | None]:
        """A function that pickle asks for the name of each object in the result of a call; None: it is sent (local)."""
        count = 0

        def name_of(value: object) -> tuple[Key, type] | None:
            nonlocal count
            if not _stays(value):
                return None
            key, count = Key(call, count), count + 1
            self._objects[key] = value
            return key, type(value)

        return name_of

    def free(self, keys: Iterable[Key]) -> None:
        """Forget objects; of a call that has failed, all (local)."""
        for key in keys:
            self._objects.pop(key, None)
            if key.place < 0:
                for own in [own for own in self._objects if own.call == key.call]:
                    del self._objects[own]


def _stays(value: object) -> bool:
    """Whether an object is one of pblas that cannot be sent, as a matrix or a factor. Results that are tuples can."""
    if isinstance(value, tuple | type) or type(value).__module__.partition(".")[0] != "pblas":
        return False
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - each library refuses in its way
        return True
    return False


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, which a notebook shows."""

    png: bytes

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"<pblas picture, {len(self.png):,} bytes of PNG; plot(path) writes a file>"


class Handle(_Named):
    """The name of a matrix that is on the ranks of a `Pool`; also of a factor, or of a planned operation.

    It has the operators, attributes and methods of `DistMatrix`, or of the other object: each is one call of all ranks.
    Results are handles, and arrays and numbers those of rank 0. NumPy's functions take handles, as those of
    `pool.linalg`, and functions for `Pool.run` and `Pool.call`: on the ranks they get the object itself.

    The object is freed at the first call after its last handle is gone. It is lost with the context of the ranks. A
    handle of a closed pool names nothing.

    Raises:
        ArgumentError: a handle of another pool, an attribute that each rank has for itself, as `A.local`, and the
            conversion to an array.
        ContextError: the pool is closed, or the object was lost with its context.
        As `DistMatrix` and `Pool.run`.

    Example::

        with pblas.Pool(4) as pool:
            A = pool.random((1000, 1000))
            x = pool.linalg.solve(A, np.ones(1000))
            print((A @ A.T).trace(), A)
    """

    __slots__ = ("__weakref__", "_kind", "_name", "_pool")

    def __init__(self, pool: Ranks, key: Key, kind: type, freed: Any) -> None:
        self._pool, self._name, self._kind = pool, (key, kind), kind
        weakref.finalize(self, freed.append, key).atexit = False

    def name_in(self, pool: Ranks) -> tuple[Key, type]:
        """The name of the object in messages to a pool's ranks (local)."""
        if pool is not self._pool:
            raise errors.ArgumentError(
                "a handle is for the ranks of the pool that made it; this one is of another pool"
            )
        return self._name

    def to_global(self) -> Array:  # type: ignore[override]  # the array is here, whichever rank collects it
        """The whole matrix as one NumPy array in this process."""
        array: Array = self._pool.call(_method, self, "to_global", (), {})
        return array

    def plot(self, path: str | Path | None = None, **options: bool) -> Picture | None:  # type: ignore[override]
        """Draw the object, as `DistMatrix.plot` does.

        Args:
            path: as there; None for a picture that a notebook shows.
            **options: as there.

        Returns:
            The picture, if no path is given.
        """
        if path is not None:
            return self._pool.call(_method, self, "plot", (path,), options)
        with TemporaryDirectory(prefix="pblas-") as folder:
            file = Path(folder) / "plot.png"
            self._pool.call(_method, self, "plot", (file,), options)
            return Picture(file.read_bytes())

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"a handle has no attribute {name!r}")
        if name in _OF_ONE_RANK:
            raise errors.ArgumentError(
                f"each rank has its own {name}: pool.run(lambda ctx, A: A.{name}, (A,)) gives them, A.to_global() the "
                f"whole matrix"
            )
        method = inspect.getattr_static(self._kind, name, None)
        if not callable(method):
            return self._pool.call(_attribute, self, name)

        @wraps(method)
        def forwarded(*args: object, **kwargs: object) -> object:
            return self._pool.call(_method, self, name, args, kwargs)

        return forwarded

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._kind)} - _OF_ONE_RANK)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **kwargs: object) -> object:
        return self._pool.call(_method, ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: object, args: Any, kwargs: Any) -> object:
        return self._pool.call(_function, func, args, kwargs)

    def __bool__(self) -> bool:  # type: ignore[override]  # a matrix has none, a factor is true
        truth: bool = self._pool.call(_function, bool, (self,), {})
        return truth

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise errors.ArgumentError("a handle names a matrix on the ranks, and is no array: A.to_global() collects it")

    def __reduce__(self) -> NoReturn:
        raise errors.ArgumentError(
            "a handle names an object on the ranks of a pool, and can be pickled for calls of this pool only: "
            "A.to_global() collects a matrix as an array"
        )

    def __repr__(self) -> str:
        return self._shown(_text)

    def _repr_html_(self) -> str:
        return self._shown(_html)

    def _shown(self, describe: Callable[..., str]) -> str:
        """What the ranks say of the object; an error is text too: it ends no cell that only shows a value."""
        if self._pool.closed:
            return f"<pblas.Handle of a {self._kind.__name__}, whose pool is closed>"
        try:
            return self._pool.call(describe, self)
        except errors.PblasError as error:
            return f"<pblas.Handle of a {self._kind.__name__}: {error}>"

    __hash__ = object.__hash__


def _operator(name: str) -> Callable[..., object]:
    """A method that applies the operator on the ranks."""

    def forwarded(self: Handle, *args: object) -> object:
        return self._pool.call(_method, self, name, args, {})

    forwarded.__name__ = name
    return forwarded


for _name in (*_OTHERS, *(f"{prefix}{name}" for name in _ARITHMETIC for prefix in ("", "r", "i"))):
    setattr(Handle, f"__{_name}__", _operator(f"__{_name}__"))


class Functions(ModuleType):
    """The functions of a module of pblas, which take and return handles."""

    def __init__(self, pool: Ranks, name: str) -> None:
        module = import_module(name)
        super().__init__(name, module.__doc__)
        self._pool, self._module = pool, module

    def __getattr__(self, name: str) -> object:
        function = getattr(self._module, name)
        if not inspect.isfunction(function):
            return function

        @wraps(function)
        def forwarded(*args: object, **kwargs: object) -> object:
            return self._pool.call(_function, function, args, kwargs)

        return forwarded

    def __dir__(self) -> list[str]:
        return dir(self._module)


# The functions that the ranks call. The context is their first argument.


def created(ctx: Context, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """**Collective.** The result of a method of the context."""
    return getattr(ctx, name)(*args, **kwargs)


def _method(_: Context, value: Any, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    if name.startswith("__") and not hasattr(value, name):  # an operator that the object lacks
        return NotImplemented
    return getattr(value, name)(*args, **kwargs)


def _attribute(_: Context, value: Any, name: str) -> Any:
    return getattr(value, name)


def _function(_: Context, function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    return function(*args, **kwargs)


def _text(ctx: Context, value: Any) -> str:
    """**Collective.** The repr of an object, and of a matrix the corners of its values."""
    return f"{value!r} on {ctx.nprocs} rank{'s' * (ctx.nprocs > 1)}{_corners(value)}"


def _html(ctx: Context, value: Any) -> str:
    """**Collective.** The same for notebooks, with the picture of the layout."""
    if not hasattr(value, "_repr_html_"):
        return f"<pre>{escape(_text(ctx, value))}</pre>"
    return f"{value._repr_html_()}\n<pre>{escape(_corners(value).strip())}</pre>"


def _corners(value: object) -> str:
    """**Collective.** The first and last rows and columns of a matrix; "" for other objects."""
    import numpy as np

    from pblas.matrices.matrix import EDGE, DistMatrix, corners

    if not isinstance(value, DistMatrix) or not value.size:
        return ""
    places = [np.concatenate([np.arange(size)[part] for part in corners(size)]) for size in value.shape]
    try:
        part = value[np.ix_(*places)].to_global(root=None)
    except errors.DTypeError:  # elements of 8 bits are only moved
        return ""
    return "\n" + np.array2string(part, max_line_width=120, threshold=0, edgeitems=EDGE)
