"""The kernels: sums, pushes, all-reduces, a barrier. Compiled for the GPU at hand, launched on any stream.

CuPy compiles them (NVRTC) and keeps the machine code on disk, in a cache that ranks which start together may share:
files are written under other names first, and their digest is checked. The sources include nothing but their own common
file, so a GPU machine needs no CUDA headers. A launch goes through the driver: all arguments are one struct, in memory
that lives as long as the kernels, so that it costs one call and allocates nothing. It may be captured.
"""

from __future__ import annotations

import re
from itertools import chain, pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from pblas import errors
from pblas.backends.cuda.launches import EARLY_CAPABILITY, configured
from pblas.backends.nvshmem.kernels.arguments import (
    ABORTED,
    LATE,
    MAX_CTAS,
    MAX_PARTS,
    MAX_RANKS,
    PART_ALIGNMENT,
    RECORD,
    STRUCTS,
    Arguments,
    Behind,
    Block,
    Slots,
    Watch,
    all_reduce_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from pblas.backends.cuda.launches import Stream

    Dtype = np.dtype[Any]

__all__ = [
    "ABORTED", "KINDS", "LATE", "MAX_CTAS", "MAX_PARTS", "MAX_RANKS", "PART_ALIGNMENT", "RECORD", "Behind",
    "Block", "Kernels", "Ready", "Slots", "Watch", "all_reduce_flags_nbytes", "barrier_flags_nbytes", "expanded",
    "one_shot_slot_nbytes", "pulling_ctas", "push_counter_nbytes", "sending_ctas", "source",
]  # fmt: skip

_FOLDER = Path(__file__).parent
_OPTIONS = ("--std=c++17",)

_FLOAT32 = np.dtype(np.float32)
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_COMPLEX = (np.dtype(np.complex64), np.dtype(np.complex128))
_DTYPES = (*_HALVES, _FLOAT32, np.dtype(np.float64), *_COMPLEX)
# What a kernel is called after: the dtype of the result, and of the terms if they are wider.
_NAMES = {(dtype, dtype): dtype.name for dtype in _DTYPES} | {(h, _FLOAT32): f"{h.name}_float32" for h in _HALVES}

KINDS = {
    "all_reduce": ("one_shot", "two_shot", "scatter", "pulled"),
    "rows": ("one_shot",),
    "sum": ("sum_2", "sum_4", "sum_8", "sum_scalar"),
}
"""The kernels of a family that can be compiled with something behind their last addition."""

_FILES = {
    "sum": [f"{kind}_{name}" for name in _NAMES.values() for kind in KINDS["sum"]],
    "elementwise": [f"scale_{dtype.name}" for dtype in _DTYPES] + [f"conjugate_{dtype.name}" for dtype in _COMPLEX],
    "push": ["push"],
    "all_reduce": [f"{kind}_{name}" for kind in KINDS["all_reduce"] for name in _NAMES.values()],
    "all_gather": [f"all_gather_{nbytes}" for nbytes in (2, 4, 8)],
    "signals": ["barrier", "wait", "delay"],
}
_STRUCT_OF = {"all_gather": "all_reduce", "rows": "all_reduce"}

_PACK_NBYTES = 16  # the widest load
_THREADS = 256  # of kernels that stream memory
_CTAS_PER_SM = 64  # of kernels that stream memory, at most: beyond, threads take a second round
_PUSH_THREADS, _PUSH_CTAS = 512, 112  # on 8 H200, more CTAs pushed no faster
_PUSH_NBYTES = 8192  # a CTA copies no less
_ALL_REDUCE_THREADS, _ROWS_THREADS = 384, 512  # the latter where rows are normalised
_SENT_NBYTES, _MOST_CTAS = 2048, 256  # a CTA sends no less
_PULLED_NBYTES, _PULLING_CTAS = 8192, 128  # or pulls


def source(file: str) -> str:
    """CUDA C++ of one of the files."""
    return expanded(_FOLDER / f"{file}.cu")


def expanded(path: Path) -> str:
    """CUDA C++ with the files that it includes in their places: those beside it, or here."""

    def included(found: re.Match[str]) -> str:
        beside = path.parent / found[1]
        return expanded(beside if beside.exists() else _FOLDER / found[1])

    return re.sub(r'^#include "(.*)"$', included, path.read_text(), flags=re.MULTILINE)


def push_counter_nbytes() -> int:
    """Bytes of device memory, zeroed once, that pushes count in; one such region for each stream that pushes."""
    return 4 * MAX_RANKS


def barrier_flags_nbytes(nranks: int) -> int:
    """Bytes of a barrier's flags on each rank, zeroed once."""
    return 4 * nranks


def all_reduce_flags_nbytes(nranks: int) -> int:
    """Bytes of an all-reduce's flags on each rank, of one parity, zeroed once.

    >>> all_reduce_flags_nbytes(8)
    32768
    """
    return 4 * 2 * nranks * MAX_CTAS


def sending_ctas(nbytes: int) -> int:
    """CTAs of a kernel whose ranks send `nbytes` bytes each, of one shot to each other rank: the same on all.

    On 2 H200, one shot of 1 MiB took 9.6 us with 64 CTAs, 7.7 with 128 and 6.2 with 256; of 256 KiB 4.0 from 64 on. Two
    shots of 4 MiB took 19.9 with 128 CTAs and 17.6 with 256, of 256 KiB 6.0 from 64 on.

    >>> sending_ctas(0), sending_ctas(16384), sending_ctas(10**6)
    (1, 8, 256)
    """
    return min(max(-(-nbytes // _SENT_NBYTES), 1), _MOST_CTAS)


def pulling_ctas(nbytes: int) -> int:
    """CTAs of a kernel that pulls arrays of `nbytes` bytes.

    On 4 H200, 16 MiB took 91 us with 128 CTAs and 100 with 512, 32 MiB 166 and 176.

    >>> pulling_ctas(0), pulling_ctas(2**18), pulling_ctas(2**25)
    (1, 32, 128)
    """
    return min(max(-(-nbytes // _PULLED_NBYTES), 1), _PULLING_CTAS)


def one_shot_slot_nbytes(count: int, itemsize: int) -> int:
    """Bytes of a slot of a one-shot all-reduce, one for each rank: what that rank sends.

    >>> one_shot_slot_nbytes(100, 2), one_shot_slot_nbytes(100, 4)
    (208, 400)
    """
    return -(-count * itemsize // _PACK_NBYTES) * _PACK_NBYTES


def _flat(rows: int, columns: int, lds: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of blocks, taken as one line where nothing lies between their lines."""
    return (rows * columns, 1) if columns == 1 or all(ld == rows for ld in lds) else (rows, columns)


def _name(kind: str, dtype: Dtype, wire: Dtype, behind: Behind | None) -> Any:
    """What a kernel is asked for by."""
    return f"{kind}_{_NAMES[dtype, wire]}" if behind is None else (kind, behind.key)


class Ready:
    """A launch whose arguments are settled, so that it costs one call.

    Args:
        driver: CUDA's.
        function: of the kernel.
        arguments: of it.
        config: of the launch.
    """

    __slots__ = ("_arguments", "_config", "_driver", "_function")

    def __init__(self, driver: Any, function: Any, arguments: Arguments, config: Any) -> None:
        self._driver, self._function, self._arguments, self._config = driver, function, arguments, config

    @property
    def words(self) -> memoryview:
        """Its arguments."""
        return self._arguments.words

    def launch(self, stream: int) -> None:
        """Launch it; it may be captured."""
        self._config.hStream = self._driver.CUstream(stream)
        (status,) = self._driver.cuLaunchKernelEx(self._config, self._function, self._arguments.address, 0)
        if status:
            raise errors.BackendError(f"a kernel could not be launched on stream {stream:#x}: {status.name}")


class Kernels:
    """All kernels, compiled for the current GPU, on which they are launched.

    Addresses are those of device memory, streams are handles (cudaStream_t); every launch returns at once, allocates
    nothing and may be captured. Blocks are `columns` lines of `rows` contiguous elements, a leading dimension apart: in
    C-order, rows and columns change places.
    """

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver = driver
        device = cupy.cuda.Device()
        self._sms: int = device.attributes["MultiProcessorCount"]
        # Families whose kernels wait for the end of the one before by themselves.
        self._early = ("all_reduce",) if int(device.compute_capability) >= EARLY_CAPABILITY else ()
        self._modules = [cupy.RawModule(code=source(file), options=_OPTIONS) for file in _FILES]
        self._functions: dict[Any, Any] = {
            name: driver.CUfunction(module.get_function(name).kernel.ptr)
            for module, names in zip(self._modules, _FILES.values(), strict=True)
            for name in names
        }
        self._rows: set[Any] = set()  # kernels that normalise rows
        self._arguments = {family: Arguments(layout) for family, layout in STRUCTS.items()}
        self._lock = Lock()

    def load(self, stream: int) -> None:
        """Run every kernel once, with arguments that make it do nothing.

        A module that is loaded later could wait for a kernel that waits for a peer.
        """
        for file, names in _FILES.items():
            for name in names:
                self._launch_nothing(name, stream, name if file == "signals" else _STRUCT_OF.get(file, file))

    def _launch_nothing(self, name: Any, stream: Stream, family: str) -> None:
        layout = STRUCTS[family]
        zeros = (0,) * len(layout.scalars.split())
        tables = tuple([0] * length for length in layout.tables.values())
        self._launch(name, stream, 1, 32, family, zeros, tables)

    def sum(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        parts: Sequence[int],
        part_lds: Sequence[int],
        out: int,
        out_ld: int,
        *,
        old: int = 0,
        old_ld: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := parts[0] + parts[1] + ... + beta old, in this order, rounded to dtype once.

        16-bit elements are added in float32.

        Args:
            stream: handle.
            dtype: of out and old.
            rows: contiguous elements of each line.
            columns: lines.
            parts: addresses of the terms, at most MAX_PARTS.
            part_lds: their leading dimensions, elements.
            out: address; may be one of the terms or old.
            out_ld: its leading dimension.
            old: address; not read if beta is 0.
            old_ld: its leading dimension.
            beta: scalar.
            wire: dtype of the terms: float32 or, by default, `dtype`.
            behind: what follows, before it is rounded; out of kernels that were added for such sums.
        """
        wire = wire or dtype
        beta = complex(beta)
        if rows == 0 or columns == 0:
            return
        if beta == 0:
            old, old_ld = out, out_ld
        rows, columns = _flat(rows, columns, (*part_lds, out_ld, old_ld))
        places, results = 0, out | old
        for address in parts:
            places |= address
        if columns > 1:
            for ld in part_lds:
                places |= ld * wire.itemsize
            results |= (out_ld | old_ld) * dtype.itemsize
        length = max(_PACK_NBYTES // wire.itemsize, 1)
        if places % _PACK_NBYTES or results % (length * dtype.itemsize):
            kind, length = "sum_scalar", 1
        else:
            kind = "sum_2" if len(parts) <= 2 else "sum_4" if len(parts) <= 4 else "sum_8"
        line, terms = (1, ()) if behind is None else behind[1:]
        scalars = (out, old, rows, columns, out_ld, old_ld, beta.real, beta.imag, len(parts), line)
        name, ctas = _name(kind, dtype, wire, behind), self._ctas(rows, columns, length)
        self._launch(name, stream, ctas, _THREADS, "sum", scalars, (terms, parts, part_lds))

    def scale(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        beta: complex,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        """target := beta source; zeros without a look at the source if beta is 0, a copy if it is 1."""
        self._elementwise(
            f"scale_{dtype.name}", stream, dtype, rows, columns, beta, source, source_ld, target, target_ld
        )

    def conjugate(
        self,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        """target := conj(source), complex dtypes only; the two may be the same."""
        name = f"conjugate_{dtype.name}"
        self._elementwise(name, stream, dtype, rows, columns, 1, source, source_ld, target, target_ld)

    def push(self, stream: Stream, blocks: Sequence[Block], flags: Sequence[int], counter: int) -> None:
        """Copy blocks into memory of peers, and set each flag to 1 when all blocks that name it are there.

        It never waits. A flag that no block names is set too.

        Args:
            stream: handle.
            blocks: at most MAX_RANKS.
            flags: addresses on the peers, as mapped here, at most MAX_RANKS.
            counter: address of push_counter_nbytes() that no push on another stream uses meanwhile.
        """
        blocks = [block.flat() for block in blocks if block.nbytes and block.lines]
        named = [block.signal for block in blocks]
        signals = [word for i, flag in enumerate(flags) for word in (flag, named.count(i))]
        members = ctas = 1
        if blocks:
            largest = max(block.nbytes * block.lines for block in blocks)
            members = max(min(-(-largest // _PUSH_NBYTES), _PUSH_CTAS // len(blocks)), 1)
            ctas = members * len(blocks)
        scalars, tables = (len(blocks), members, len(flags), counter), ([*chain.from_iterable(blocks)], signals)
        self._launch("push", stream, ctas, _PUSH_THREADS, "push", scalars, tables)

    def one_shot(
        self,
        stream: Stream,
        dtype: Dtype,
        count: int,
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, on every rank for itself.

        Every rank sends its partial product to all, and adds those of 1, 2, ..., 0 and, last, beta times its own old.
        All ranks must call it with the same count and dtype.

        Args:
            stream: handle.
            dtype: of out and old (global).
            count: elements (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this one.
            slots: for `count` elements each.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire, nranks = wire or dtype, len(slots.addresses)
        self._send(
            _name("one_shot", dtype, wire, behind),
            stream,
            sending_ctas(count * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=[0] * nranks,
            stop=[count] * nranks,
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def two_shot(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products + beta old, the same bits on every rank.

        Each element belongs to a rank r, which gets it from all, adds that of r+1, r+2, ..., r (cyclic) and, last, beta
        times its old, and sends the sum to all.

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element with which each rank's share begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address; may be old or source.
            rank: this one.
            slots: for the largest share each, and for sums.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire = wire or dtype
        self._send(
            _name("two_shot", dtype, wire, behind),
            stream,
            sending_ctas(first[-1] * wire.itemsize),
            slots,
            out=out,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def pulled(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        out: int,
        *,
        rank: int,
        partials: Sequence[int],
        flags: Sequence[int],
        results: Sequence[int],
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """The same as `two_shot`, but that ranks read partial products in the memory of all.

        When the kernel has ended, all have read this rank's partial product, so that it may be overwritten; and a call
        that follows may use the same flags and results. Flags that were waited for are 0 again.

        Args:
            stream: handle; what wrote this rank's partial product precedes the kernel on it.
            dtype: of out and old (global).
            first: element with which each rank's share begins, a multiple of PART_ALIGNMENT, and their number (global).
            out: address; may be old.
            rank: this one.
            partials: of each rank, as mapped here: the address of its partial product, contiguous, a multiple of 16; up
                to the next multiple behind its end it is read too.
            flags: of each rank, as mapped here: the address of all_reduce_flags_nbytes().
            results: of each rank, as mapped here: the address of as many elements for the sums. Where peers can write
                into it, that of this rank is `out` itself, on all ranks.
            watch: when to give up.
            step: what is recorded then.
            old: address; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        assert not any(address % _PACK_NBYTES for address in partials)
        assert not any(start % PART_ALIGNMENT for start in first if start < first[-1])
        wire = wire or dtype
        self._reduce(
            _name("pulled", dtype, wire, behind),
            stream,
            pulling_ctas(first[-1] * wire.itemsize),
            out=out,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            partials=partials,
            flags=flags,
            results=results,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
        )

    def reduce_scatter(
        self,
        stream: Stream,
        dtype: Dtype,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
        step: int = 0,
        old: int = 0,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        contributing: Sequence[int] | None = None,
        behind: Behind | None = None,
    ) -> None:
        """out := the sum of all ranks' partial products of this rank's part + beta old.

        Every rank sends the others their parts, and adds its own in the order r+1, r+2, ..., r (cyclic).

        Args:
            stream: handle.
            dtype: of out and old (global).
            first: element of `source` with which each rank's part begins, and their number (global).
            source: address of this rank's partial product, contiguous.
            out: address of this rank's part of the result, contiguous; may be old.
            rank: this one.
            slots: for the largest part each.
            watch: when to give up.
            step: what is recorded then.
            old: address of this rank's part; not read if beta is 0.
            beta: scalar (global).
            wire: dtype of the partial products: float32 or, by default, `dtype` (global).
            contributing: ranks that have a partial product; None: all (global).
            behind: what follows the last addition; out of kernels that were added for it (global).
        """
        wire = wire or dtype
        largest = max(stop - start for start, stop in pairwise(first))
        self._send(
            _name("scatter", dtype, wire, behind),
            stream,
            sending_ctas(largest * (len(first) - 2) * wire.itemsize),
            slots,
            out=out - first[rank] * dtype.itemsize,
            source=source,
            first=first[:-1],
            stop=first[1:],
            rank=rank,
            watch=watch,
            step=step,
            old=old,
            beta=beta,
            contributing=contributing,
            behind=behind,
            base=-first[rank],
        )

    def add(self, stream: Stream, key: Hashable, code: Callable[[], str], family: str = "all_reduce") -> None:
        """Compile kernels of a family, and run them once without arguments; nothing if they are there.

        Args:
            stream: handle.
            key: what they are asked for by.
            code: CUDA C++ of the kernels of `KINDS`, each named after its kind and "all".
            family: of `KINDS`.
        """
        names = [(kind, key) for kind in KINDS[family]]
        if names[0] in self._functions:
            return
        import cupy

        module = cupy.RawModule(code=code(), options=_OPTIONS)
        for name in names:
            pointer = module.get_function(f"{name[0]}_all").kernel.ptr
            self._functions[name] = self._driver.CUfunction(pointer)
            self._launch_nothing(name, stream, _STRUCT_OF.get(family, family))
        self._modules.append(module)
        if family == "rows":
            self._rows.update(names)

    def ready(self, kind: str, key: Hashable, ctas: int, **arguments: Any) -> Ready:
        """A launch of a kernel of a collective, one that was added or is always there.

        Args:
            kind: one of the kernels of all_reduce.cuh, or "all_gather".
            key: of the kernels; a dtype: its sums, with nothing behind them; of an all-gather the bytes of an element.
            ctas: how many (global).
            arguments: those of `_reduce`, which all_reduce.cuh describes.
        """
        name = f"{kind}_{key.name if isinstance(key, np.dtype) else key}"
        function = self._functions[name if name in self._functions else (kind, key)]
        threads = _ROWS_THREADS if (kind, key) in self._rows else _ALL_REDUCE_THREADS
        return self._ready(function, ctas, threads, "all_reduce", *all_reduce_arguments(**arguments))

    def _send(self, name: Any, stream: Stream, ctas: int, slots: Slots, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh that sends."""
        arguments |= {"partials": slots.addresses, "slot_nbytes": slots.nbytes, "epoch": slots.epoch}
        self._reduce(name, stream, ctas, pitches=(slots.pitch, 0, 0), **arguments)

    def _ready(
        self,
        function: Any,
        ctas: int,
        threads: int,
        family: str,
        scalars: tuple[float, ...],
        tables: tuple[Sequence[int], ...],
    ) -> Ready:
        made = Arguments(STRUCTS[family])
        made.fill(scalars, tables)
        return Ready(self._driver, function, made, configured(0, ctas, threads, early=family in self._early))

    def _reduce(self, name: Any, stream: Stream, ctas: int, *, behind: Behind | None, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh."""
        if behind is not None:
            arguments |= {"length": behind.length, "terms": behind.terms}
        scalars, tables = all_reduce_arguments(**arguments)
        self._launch(name, stream, ctas, _ALL_REDUCE_THREADS, "all_reduce", scalars, tables)

    def barrier(self, stream: int, rank: int, flags: Sequence[int], epoch: int, *, watch: Watch, step: int = 0) -> None:
        """Wait until all ranks have come here as often as this one.

        Args:
            stream: handle.
            rank: this one.
            flags: of each rank, as mapped here: the address of barrier_flags_nbytes().
            epoch: address of this rank's count of calls, 0 at first: the kernel counts, so that a captured launch can
                be replayed.
            watch: when to give up.
            step: what is recorded then.
        """
        scalars = (epoch, rank, len(flags), watch.abort, watch.record, watch.timeout, step)
        self._launch("barrier", stream, 1, MAX_RANKS, "barrier", scalars, (flags,))

    def wait(
        self, stream: Stream, flags: Sequence[int], sources: Sequence[int], *, watch: Watch, step: int = 0
    ) -> None:
        """Wait until all flags are 1, and make them 0.

        Products end sooner than with streams that wait by themselves (docs/decisions/0006-waiting-by-kernel.md).

        Args:
            stream: handle.
            flags: addresses of words of this rank, at most MAX_RANKS.
            sources: ranks that set them.
            watch: when to give up.
            step: what is recorded then.
        """
        scalars = (len(flags), watch.abort, watch.record, watch.timeout, step)
        self._launch("wait", stream, 1, MAX_RANKS, "wait", scalars, (flags, sources))

    def delay(self, stream: int, nanoseconds: int) -> None:
        """Keep the stream busy for some time, a second at most."""
        self._launch("delay", stream, 1, 1, "delay", (nanoseconds,))

    def _elementwise(
        self,
        name: str,
        stream: Stream,
        dtype: Dtype,
        rows: int,
        columns: int,
        beta: complex,
        source: int,
        source_ld: int,
        target: int,
        target_ld: int,
    ) -> None:
        if rows == 0 or columns == 0:
            return
        beta = complex(beta)
        rows, columns = _flat(rows, columns, (source_ld, target_ld) if beta else (target_ld,))
        scalars = (target, source, rows, columns, target_ld, source_ld, beta.real, beta.imag)
        ctas = self._ctas(rows, columns, _PACK_NBYTES // dtype.itemsize)
        self._launch(name, stream, ctas, _THREADS, "elementwise", scalars)

    def _ctas(self, rows: int, columns: int, length: int) -> int:
        """CTAs of a kernel whose threads take a pack of `length` elements each."""
        packs = -(-rows // length) * columns
        return min(-(-packs // _THREADS), _CTAS_PER_SM * self._sms)

    def _launch(
        self,
        name: Any,
        stream: Stream,
        ctas: int,
        threads: int,
        family: str,
        scalars: tuple[float, ...],
        tables: tuple[Sequence[int], ...] = (),
    ) -> None:
        if not isinstance(stream, int):
            ready = self._ready(self._functions[name], ctas, threads, family, scalars, tables)
            stream.keep(ready.launch, ready.words)
            return
        arguments = self._arguments[family]
        with self._lock:  # the driver copies the arguments before it returns
            arguments.fill(scalars, tables)
            if family in self._early:
                config = configured(stream, ctas, threads, early=True)
                (status,) = self._driver.cuLaunchKernelEx(config, self._functions[name], arguments.address, 0)
            else:
                (status,) = self._driver.cuLaunchKernel(
                    self._functions[name], ctas, 1, 1, threads, 1, 1, 0, stream, arguments.address, 0
                )
        if status:
            raise errors.BackendError(f"kernel {name} could not be launched on stream {stream:#x}: {status.name}")
