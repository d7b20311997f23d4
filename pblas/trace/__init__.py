"""Traces: the operations of all ranks on one clock, as a file for Perfetto or as a picture."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends import log
from pblas.backends.recorder import MOST_EVENTS, Event
from pblas.matrices import complete_files as files
from pblas.plans.base import ranks_text
from pblas.trace import formats
from pblas.trace.merge import merged

if TYPE_CHECKING:
    from types import TracebackType

    from pblas.runtime.runtime import Runtime

Paths = Iterable[str | os.PathLike[str]] | os.PathLike[str]

_KINDS = ("gemm", "factor", "sum", "copy", "wait", "agree")


class Trace:
    """The recorded operations of the ranks of a context. Created by `Context.trace`; complete after its `with` block.

    Args:
        title: title of pictures (global).
        nprocs: ranks (global).
    """

    def __init__(self, title: str, nprocs: int) -> None:
        self.title: str = title
        self.nprocs: int = nprocs
        self.events: tuple[Event, ...] = ()
        """The operations of all ranks, sorted by rank, lane and time, on rank 0; empty on the others (local).

        Times are seconds since the first operation began.
        """
        self.is_whole = True  # whether all operations were recorded: a rank keeps the first 200,000 (local)

    def __repr__(self) -> str:
        cut = "" if self.is_whole else ", not whole"
        return f"<Trace {self.title!r}: {len(self.events):,} events of {ranks_text(self.nprocs)}{cut}>"

    def _repr_html_(self) -> str:
        """The picture, for notebooks; without Matplotlib, or where there are no events, the table of `str` (local)."""
        if not self.events or not formats.can_draw():
            return f"<pre>{escape(str(self) if self.events else repr(self))}</pre>"
        svg = formats.picture(self.title, self.nprocs, self.events, "svg").decode()
        return svg[svg.index("<svg") :]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file; a failed call leaves no partial file (local).

        Call it on rank 0: the other ranks have no events.

        Args:
            path: `.json` for Perfetto and chrome://tracing; `.png` or `.svg` for a picture, which needs Matplotlib.

        Raises:
            ArgumentError: not a path, or another suffix.
            BackendError: Matplotlib is not installed.
            FileFormatError: the file cannot be written.
        """
        suffix = _suffix(path)
        if suffix == ".json":
            content = formats.json_text(self.title, self.nprocs, self.is_whole, self.events)
        else:
            content = formats.picture(self.title, self.nprocs, self.events, suffix[1:])
        files.write(path, content)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace from a `.json` file that `write` has made (local).

        Args:
            path: path of the file.

        Raises:
            ArgumentError: not a path.
            FileFormatError: no such file, or another format.
        """
        name = files.checked_path("trace", path)
        try:
            title, nprocs, is_whole, events = formats.read_json(Path(name).read_bytes())
        except OSError as error:
            raise errors.FileFormatError(f"{name}: cannot be read: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise errors.FileFormatError(f"{name}: not a trace of pblas: {type(error).__name__}: {error}") from None
        trace = cls(title, nprocs)
        trace.events, trace.is_whole = events, is_whole
        return trace

    def __str__(self) -> str:
        """Milliseconds of each kind of operation on each rank; rank 0 knows them."""
        spans: dict[int, list[float]] = {}
        sums: dict[tuple[int, str], float] = {}
        for e in self.events:
            if e.lane == "main":
                spans.setdefault(e.rank, []).extend((e.start, e.stop))
                sums[e.rank, e.kind] = sums.get((e.rank, e.kind), 0.0) + e.stop - e.start
        lines = [f"{self.title}: ms on the main lane", "".join(f"{head:>10}" for head in ("rank", "total", *_KINDS))]
        for rank, times in sorted(spans.items()):
            seconds = (max(times) - min(times), *(sums.get((rank, kind), 0.0) for kind in _KINDS))
            lines.append(f"{rank:>10}" + "".join(f"{1e3 * second:10.3f}" for second in seconds))
        missing = f"incomplete: a rank records its first {MOST_EVENTS:,} operations only"
        return "\n".join(lines if self.is_whole else [*lines, missing])


class Tracing:
    """**Collective.** A `with` block that records the operations of all ranks of a context; it yields a `Trace`.

    Args:
        runtime: runtime of the context (global).
        paths: files that rank 0 writes at the end (global).
        title: title of pictures (global).
        opname: name of the call, for messages (global).
        fresh: never replace a file: choose an unused name, and print it to stderr (global).

    Raises:
        ArgumentError, BackendError: see `Trace.write`; raised when the block begins.
        FileFormatError: the folder does not exist (raised when the block begins), or the file cannot be written (raised
            when it ends).
    """

    def __init__(
        self, runtime: Runtime, paths: Paths = (), title: str = "pblas", *, opname: str = "trace", fresh: bool = False
    ) -> None:
        self._runtime, self._opname, self._fresh = runtime, opname, fresh
        self._given: Any = paths  # __enter__ reads it, so that an invalid path is an error on all ranks
        self._paths: tuple[Any, ...] = ()
        self._trace = Trace(title, runtime.nprocs)

    def __enter__(self) -> Trace:
        runtime = self._runtime
        with runtime.call(self._opname):
            with runtime.local_step(self._opname):
                several = isinstance(self._given, Iterable) and not isinstance(self._given, str | os.PathLike)
                self._paths = tuple(self._given) if several else (self._given,)
                for path in self._paths:
                    _suffix(path, self._opname)
                    if runtime.rank == 0 and not Path(path).absolute().parent.is_dir():
                        raise errors.FileFormatError(
                            f"{self._opname}: {path} cannot be written: its folder does not exist; make it first"
                        )
                paths = list(map(str, self._paths))
            runtime.agree(self._opname, {"paths": paths})
        self._recorder = runtime.backend.recorder()
        self._recorder.__enter__()
        return self._trace

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recorder.__exit__(kind, error, trace)
        if kind is not None:  # an exception: the ranks may be in different calls, so no agreement is possible
            return
        with self._runtime.call(self._opname):
            self._trace.events, self._trace.is_whole = merged(self._runtime, self._recorder)
            if self._paths:
                with self._runtime.agreed_step(f"{self._opname}: write"):
                    for path in self._paths if self._runtime.rank == 0 else ():
                        self._write(path)

    def _write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace (rank 0)."""
        unused_path = files.unused(path) if self._fresh else path
        self._trace.write(unused_path)
        log.write(log.INFO, self._runtime.rank, "trace: %s is written", unused_path)
        if not self._fresh:
            return
        traced = ranks_text(self._runtime.nprocs)
        print(f"pblas: a trace of {traced} was written to {unused_path}", file=sys.stderr, flush=True)


def _suffix(path: str | os.PathLike[str], opname: str = "trace") -> str:
    """The suffix of a path, checked."""
    text = files.checked_path(opname, path)
    suffix = Path(text).suffix
    if suffix not in (".json", ".png", ".svg"):
        raise errors.ArgumentError(
            f"{opname}: {text!r} must end in .json (for Perfetto), or in .png or .svg (for a picture)"
        )
    if suffix != ".json":
        formats.check()
    return suffix
