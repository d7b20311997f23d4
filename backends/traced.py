"""Marks on the methods of `Device` and `Engine` that say what a trace and an NVTX range show of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Kind = Literal["gemm", "factor", "sum", "copy", "message", "signal", "wait", "agree"]
Text = Callable[..., tuple[str, dict[str, Any]] | None]
"""Name and details of a call from its arguments, or None if the call does nothing."""

_MethodT = TypeVar("_MethodT", bound=Callable[..., Any])
_MARK = "__trace_mark__"


@dataclass(frozen=True, slots=True)
class Mark:
    """How a trace shows the calls of a method."""

    kind: Kind | Callable[..., Kind]  # of the operation; a function of the call's arguments if it depends on them
    text: Text  # name and details of the operation
    on_host: bool = False  # whether the host waits, and not a lane of the device
    has_stream: bool = False  # whether the operation runs on a stream of the caller, which is no lane

    def described(
        self, lane: str, *arguments: object, **named: object
    ) -> tuple[str, Kind, str, dict[str, object]] | None:
        """Lane, kind, name and details of a call; None if it does nothing."""
        text = self.text(*arguments, **named)
        if text is None:
            return None
        return lane, self.kind(*arguments, **named) if callable(self.kind) else self.kind, *text


def traced(
    kind: Kind | Callable[..., Kind], text: str | Text, of: str = "", *, on_host: bool = False
) -> Callable[[_MethodT], _MethodT]:
    """Mark a method whose calls are operations of a trace."""

    def marked(method: _MethodT) -> _MethodT:
        names = [name for name in inspect.signature(method).parameters if name not in ("self", "lane")]
        describe = _with_bytes(text, names, of) if isinstance(text, str) else text
        setattr(method, _MARK, Mark(kind, describe, on_host, "stream" in names))
        return method

    return marked


def untraced(method: _MethodT) -> _MethodT:
    """Mark a method that neither computes nor moves elements."""
    setattr(method, _MARK, None)
    return method


def marks(protocol: type) -> dict[str, Mark]:
    """The traced methods of a Protocol."""
    methods = {name: method for name, method in inspect.getmembers(protocol, inspect.isfunction) if name[0] != "_"}
    for name, method in methods.items():
        if not hasattr(method, _MARK):
            raise TypeError(f"{protocol.__name__}.{name} is neither traced nor untraced; decorate it")
    return {name: mark for name, method in methods.items() if (mark := getattr(method, _MARK)) is not None}


def _with_bytes(name: str, parameters: list[str], of: str) -> Text:
    if not of:
        return lambda *_, **__: (name, {})
    index = parameters.index(of)
    return lambda *args, **named: (name, {"bytes": (args[index] if index < len(args) else named[of]).nbytes})


def product_text(products: list[tuple[Any, Any, Any]]) -> tuple[str, dict[str, object]]:
    """Name and sizes of some products Z := X Y, each a batch perhaps.

    >>> import numpy as np
    >>> product_text([(np.empty((2, 3)), np.empty((3, 4)), np.empty((2, 4)))])
    ('GEMM 2 x 4 x 3', {'flops': 48})
    """
    sizes = [(z.shape[-2], z.shape[-1], x.shape[-1], z.shape[0] if z.ndim > 2 else 1) for x, _, z in products]
    names = [f"GEMM {m} x {n} x {k}" + (f", {batch} times" if batch > 1 else "") for m, n, k, batch in sizes]
    name = names[0] if len(names) == 1 else f"GEMM in {len(names)} parts"
    return name, {"flops": sum(2 * m * n * k * batch for m, n, k, batch in sizes)}


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in words.

    >>> ranks_text([3]), ranks_text([0, 2]), ranks_text([])
    ('rank 3', 'ranks 0, 2', 'ranks none')
    """
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names) or 'none'}"
