"""The kernels: sums, pushes, all-reduces, a barrier. They are compiled for the current GPU and launched on any stream.

The sources include nothing but their own common files, so a GPU machine needs no CUDA headers. Reduction kernels are
compiled for a reduction operation and a fused epilogue (`ReductionEpilogue`).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.backends.cuda import pointwise
from pblas.backends.cuda.kernels import Ready, Stream, expanded
from pblas.backends.nvshmem.kernels.arguments import (
    MAX_RANKS,
    NO_STEP,
    PART_ALIGNMENT,
    Block,
    EpilogueTerms,
    Slots,
    Watch,
    all_reduce_arguments,
    pulling_ctas,
    sending_ctas,
)
from pblas.backends.nvshmem.kernels.sources import FOLDER, Loaded, kernel_name
from pblas.backends.push_engine import Finish, is_array
from pblas.epilogues import RESULT, Name, Node, operand_names

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from pblas.backends.dtypes import Array, Dtype


_PACK_NBYTES = 16  # the widest load
_REDUCE_THREADS, _ROWS_THREADS = 384, 512  # the latter where rows are normalised


class Reduction(NamedTuple):
    """A reduction of all ranks' partial products by one kernel."""

    dtype: Dtype  # of out and old (global)
    wire: Dtype  # dtype of the partial products: float32 or `dtype` (global)
    bounds: Sequence[int]  # first element of each rank's shard, then the number of elements (global)
    out: int  # address of the result, contiguous: of this rank's shard in a reduce-scatter; may be old or the source
    rank: int  # this rank
    watch: Watch  # when to give up
    old: int = 0  # address of as many elements; not read if beta is 0
    beta: complex = 0.0  # scalar (global)
    contributing: Sequence[int] | None = None  # ranks that have a partial product; None: all (global)
    epilogue: EpilogueTerms | None = None  # epilogue after the last addition; `add` has compiled its kernels (global)


class Collectives(Loaded):
    """Launches these kernels; `Kernels` describes addresses, streams and captures."""

    def reduce(
        self,
        stream: Stream,
        kind: Literal["one_shot", "two_shot", "reduce_scatter"],
        call: Reduction,
        source: int,
        slots: Slots,
    ) -> None:
        """out := the epilogue of the sum of all ranks' partial products + beta old, which ranks send to each other.

        All ranks must call it with the same global arguments. Beta times old is added last.

        "one_shot": every rank sends its partial product to all ranks, and adds those of ranks 1, 2, ..., 0. "two_shot":
        each element has an owner r, to which all ranks send it. The owner adds those of r+1, r+2, ..., r (cyclic), and
        sends the sum to all ranks. Both give the same bits on every rank. "reduce_scatter": as two_shot, but the owners
        keep the sums.
        """
        bounds, nranks = call.bounds, len(slots.addresses)
        first, stop = bounds[:-1], bounds[1:]
        nelements, base = bounds[-1], 0
        if kind == "one_shot":
            first, stop = [0] * nranks, [nelements] * nranks
        elif kind == "reduce_scatter":
            nelements = max(b - a for a, b in pairwise(bounds)) * (nranks - 1)
            base = bounds[call.rank]
        self._reduce(
            kind, stream, call, sending_ctas(nelements * call.wire.itemsize), **_sent(slots), source=source,
            first=first, stop=stop, out=call.out - base * call.dtype.itemsize, base=-base,
        )  # fmt: skip

    def two_shot_pull(
        self, stream: Stream, call: Reduction, partials: Sequence[int], flags: Sequence[int], results: Sequence[int]
    ) -> None:
        """Like a two-shot `reduce`, but owners read the partial products in their peers' memory.

        When the kernel has ended, all ranks have read this rank's partial product, so it may be overwritten, and the
        next call may use the same flags and results. The kernel resets the flags to 0.
        """
        first, stop = call.bounds[:-1], call.bounds[1:]
        assert not any(address % _PACK_NBYTES for address in partials)
        assert not any(start % PART_ALIGNMENT for start in first if start < stop[-1])
        self._reduce(
            "two_shot_pull", stream, call, pulling_ctas(stop[-1] * call.wire.itemsize), partials=partials, flags=flags,
            results=results, first=first, stop=stop, out=call.out,
        )  # fmt: skip

    def gather(
        self,
        stream: Stream,
        nbytes: int,
        first: Sequence[int],
        source: int,
        out: int,
        *,
        rank: int,
        slots: Slots,
        watch: Watch,
    ) -> None:
        """out := the shards of all ranks, one after the other. NaNs stay NaNs, but not always with the same bits."""
        nranks, largest = len(first) - 1, max(stop - start for start, stop in pairwise(first))
        sums = [address - nranks * slots.nbytes for address in slots.addresses]  # a gather needs no slots before them
        arguments = all_reduce_arguments(
            **_sent(slots._replace(addresses=sums)), source=source - first[rank] * nbytes, out=out, first=first[:-1],
            stop=first[1:], rank=rank, watch=watch,
        )  # fmt: skip
        ctas = sending_ctas(largest * (nranks - 1) * nbytes)
        self._launch(f"all_gather_ll_{nbytes}", stream, ctas, _REDUCE_THREADS, "all_reduce", *arguments)

    def ready(self, kind: str, key: Hashable, ctas: int, **arguments: Any) -> Ready:
        """A prepared launch of a collective's kernel, either built in or from `add`."""
        name = f"{kind}_{key.name if isinstance(key, np.dtype) else key}"
        function = self._functions[name if name in self._functions else (kind, key)]
        threads = _ROWS_THREADS if (kind, key) in self._rows else _REDUCE_THREADS
        return self._ready(function, ctas, threads, "all_reduce", *all_reduce_arguments(**arguments))

    def _reduce(self, kind: str, stream: Stream, call: Reduction, ctas: int, **arguments: Any) -> None:
        """Launch a kernel of all_reduce.cuh for a reduction."""
        arguments |= {"rank": call.rank, "watch": call.watch, "contributing": call.contributing}
        arguments |= {"old": call.old, "beta": call.beta}
        if call.epilogue is not None:
            arguments |= {"length": call.epilogue.length, "terms": call.epilogue.terms}
        name = kernel_name(kind, call.dtype, call.wire, call.epilogue)
        self._launch(name, stream, ctas, _REDUCE_THREADS, "all_reduce", *all_reduce_arguments(**arguments))


def _sent(slots: Slots) -> dict[str, Any]:
    """The arguments of kernels that send to slots."""
    return {
        "partials": slots.addresses,
        "slot_nbytes": slots.nbytes,
        "epoch": slots.epoch,
        "pitches": (slots.pitch, 0, 0),
    }


COPY_THREADS = 128  # threads of a CTA that copies concurrently with a GEMM

_THREADS = 256  # of kernels that stream memory
_CTAS_PER_SM = 64  # of kernels that stream memory, at most: beyond, threads take a second round
_COPY_CTAS_PER_SM = 8  # for multiprocessors that fit more than one
_PUSH_THREADS, _PUSH_CTAS = 512, 112  # on 8 H200, more CTAs pushed no faster
_PUSH_NBYTES = 8192  # least bytes of a CTA


class Strided(NamedTuple):
    """A block in memory: its address, and its leading dimension in elements."""

    address: int
    ld: int


class Kernels(Collectives):
    """All kernels, compiled for the current GPU and launched on it.

    Addresses are those of device memory, streams are handles (cudaStream_t); every launch returns at once, allocates
    nothing and may be captured. Blocks are `columns` lines of `rows` contiguous elements, a leading dimension apart: in
    C-order, rows and columns change places.
    """

    def sum(
        self,
        stream: Stream,
        dtype: Dtype,
        shape: tuple[int, int],
        parts: Sequence[Strided],
        out: Strided,
        *,
        old: Strided | None = None,
        beta: complex = 0.0,
        wire: Dtype | None = None,
        epilogue: EpilogueTerms | None = None,
    ) -> None:
        """out := parts[0] + parts[1] + ... + beta old, in this order, rounded to dtype once.

        16-bit elements are added in float32.
        """
        wire, beta, (rows, columns) = wire or dtype, complex(beta), shape
        if rows == 0 or columns == 0:
            return
        if old is None or beta == 0:  # it is not read
            old, beta = out, 0j
        if all(block.ld == rows for block in (*parts, out, old)):  # without gaps between their lines: one line
            rows, columns = rows * columns, 1
        pitched = int(columns > 1)
        places, results = 0, out.address | old.address | pitched * (out.ld | old.ld) * dtype.itemsize
        for part in parts:
            places |= part.address | pitched * part.ld * wire.itemsize
        length = max(_PACK_NBYTES // wire.itemsize, 1)
        if places % _PACK_NBYTES or results % (length * dtype.itemsize):
            kind, length = "sum_scalar", 1
        else:
            kind = "sum_2" if len(parts) <= 2 else "sum_4" if len(parts) <= 4 else "sum_8"
        line, terms = (1, ()) if epilogue is None else epilogue[1:]
        scalars = (out.address, old.address, rows, columns, out.ld, old.ld, beta.real, beta.imag, len(parts), line)
        name, ctas = kernel_name(kind, dtype, wire, epilogue), self._ctas(rows, columns, length)
        self._launch(name, stream, ctas, _THREADS, "sum", scalars, (terms, *zip(*parts, strict=True)))

    def scale(self, stream: Stream, dtype: Dtype, beta: complex, block: Block) -> None:
        """target := beta source; if beta is 0 the source is not read, if it is 1 this is a copy."""
        if beta == 0:  # the source's address and pitch do not matter
            block = block._replace(source=block.target, source_pitch=block.target_pitch)
        self._elementwise(f"scale_{dtype.name}", stream, dtype, beta, block)

    def conjugate(self, stream: Stream, dtype: Dtype, block: Block) -> None:
        """target := conj(source), complex dtypes only; the two may be the same."""
        self._elementwise(f"conjugate_{dtype.name}", stream, dtype, 1, block)

    def copy(self, stream: Stream, block: Block) -> None:
        """Copy a block within this GPU, also during a GEMM: its CTAs fit next to those of the Hopper kernel."""
        assert block.is_in_packets
        source, target, nbytes, _, lines, source_pitch, target_pitch = block
        scalars = (target, source, nbytes, lines, target_pitch, source_pitch)
        self._launch("copy", stream, _COPY_CTAS_PER_SM * self._sms, COPY_THREADS, "copy", scalars)

    def push(self, stream: Stream, blocks: Sequence[Block], flags: Sequence[int], counter: int) -> None:
        """Copy blocks into memory of peers, or from it, and set each flag to 1 after all blocks with its index.

        The kernel never waits. It also sets a flag without blocks.
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

    def barrier(self, stream: int, rank: int, flags: Sequence[int], epoch: int, *, watch: Watch) -> None:
        """A barrier of all ranks: wait until all have called it as often as this rank."""
        scalars = (epoch, rank, len(flags), watch.abort, watch.record, watch.timeout, NO_STEP)
        self._launch("barrier", stream, 1, MAX_RANKS, "barrier", scalars, (flags,))

    def wait(
        self,
        stream: Stream,
        flags: Sequence[int],
        sources: Sequence[int],
        *,
        watch: Watch,
        step: int = NO_STEP,
        signals: Sequence[int] = (),
    ) -> None:
        """Set flags in peers' memory, wait until this rank's flags are 1, and reset them to 0.

        Products end sooner than with waiting streams (docs/decisions/0006-waiting-by-kernel.md).
        """
        scalars = (len(flags), len(signals), watch.abort, watch.record, watch.timeout, step)
        self._launch("wait", stream, 1, MAX_RANKS, "wait", scalars, (flags, sources, signals))

    def delay(self, stream: int, nanoseconds: int) -> None:
        """Delay the stream, by a second at most."""
        self._launch("delay", stream, 1, 1, "delay", (nanoseconds,))

    def _elementwise(self, name: str, stream: Stream, dtype: Dtype, beta: complex, block: Block) -> None:
        source, target, nbytes, _, columns, *pitches = block.flat()
        if nbytes == 0 or columns == 0:
            return
        rows, (source_ld, target_ld) = nbytes // dtype.itemsize, (pitch // dtype.itemsize for pitch in pitches)
        beta = complex(beta)
        scalars = (target, source, rows, columns, target_ld, source_ld, beta.real, beta.imag)
        ctas = self._ctas(rows, columns, _PACK_NBYTES // dtype.itemsize)
        self._launch(name, stream, ctas, _THREADS, "elementwise", scalars)

    def _ctas(self, rows: int, columns: int, length: int) -> int:
        """CTAs of a kernel whose threads take a pack of `length` elements each."""
        packs = -(-rows // length) * columns
        return min(-(-packs // _THREADS), _CTAS_PER_SM * self._sms)


OPERATIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
"""Names of the operations in pointwise.cuh."""


@dataclass(frozen=True, slots=True)
class ReductionEpilogue:
    """Compile-time parameters of reduction kernels, in addition to the dtype of the result."""

    op: str  # a key of `OPERATIONS`
    tree: Node  # the epilogue's expression
    dtypes: tuple[Dtype | None, ...] = ()  # dtypes of its array operands, None for numbers
    weight: Dtype | None = None  # dtype of the weight if rows are normalised after the epilogue, else None
    wire: Dtype | None = None  # dtype of the terms; None: the dtype of the result
    scaled: bool = False  # beta C is added before the epilogue

    def source(self, dtype: Dtype, family: str = "all_reduce") -> str:
        """CUDA C++ of the kernels of a family (see `KINDS`).

        If rows are normalised after the epilogue, this is one kernel, "rows".
        """
        folder, is_sum = FOLDER, family == "sum"
        pointwise.check_count(len(self.dtypes))
        types = [pointwise.type_name(dtype), pointwise.type_name(self.wire or dtype)]
        macro = "SUM" if is_sum else "ALL_REDUCE" if self.weight is None else "ONE_SHOT"
        arguments = [*types, *([] if is_sum else ["Operation"]), "ReductionEpilogue"]
        return "\n".join([
            f"#define NORMALISED {int(self.weight is not None)}",
            pointwise.functions(dtype),
            expanded(folder / ("sum.cuh" if is_sum else "all_reduce.cuh")),
            f"#define OPERATION {OPERATIONS[self.op]}",
            f"#define SCALED {int(self.scaled and not is_sum)}",
            f"typedef {pointwise.type_name(dtype if self.weight is None else self.weight)} Weight;",
            pointwise.printed(self.tree, self.dtypes, self.first_term),
            expanded(folder / "collective.cuh"),
            f"{macro}(all, {', '.join(arguments)})",
        ])  # fmt: skip

    @property
    def first_term(self) -> int:
        """The number of the first operand: 1 after the eps of normalised rows, else 0."""
        return int(self.weight is not None)

    @property
    def is_plain(self) -> bool:
        """Whether these are sums without an epilogue."""
        return self.op == "sum" and self.tree == Name(RESULT) and self.weight is None

    def load(self, registry: Kernels, stream: Stream, dtype: Dtype, family: str = "all_reduce") -> Hashable:
        """Compile the kernels of a family unless they exist, and return their key (local)."""
        key = self, dtype
        family = family if self.weight is None else "rows"
        with compiling():
            registry.add(stream, key, lambda: self.source(dtype, family), family)
        return key


@contextmanager
def compiling() -> Iterator[None]:
    """A with block that turns failures into BackendError; a capture of the caller's goes on (local)."""
    from pblas.backends.cuda import streams

    try:
        with streams.relaxed():
            yield
    except errors.PblasError:
        raise
    except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the other ranks must not wait
        raise errors.BackendError(f"a kernel could not be compiled: {type(caught).__name__}: {caught}") from None


def compiled_epilogue(
    registry: Kernels, stream: Stream, finish: Finish, out: Array, order: str, *, wire: Dtype, scaled: bool, family: str
) -> EpilogueTerms:
    """The epilogue of a reduction kernel, which is compiled if it is new (local)."""
    fast = 0 if order == "F" else 1
    dtypes, words = terms_of(finish, fast)
    epilogue = ReductionEpilogue("sum", finish.tree, dtypes, wire=None if wire == out.dtype else wire, scaled=scaled)
    return EpilogueTerms(epilogue.load(registry, stream, out.dtype, family), max(1, out.shape[fast]), words)


def terms_of(finish: Finish, fast: int) -> tuple[tuple[Dtype | None, ...], list[int]]:
    """The dtypes of the operands of an expression, None for numbers, and their words (local)."""
    operands = [finish.operands[name] for name in operand_names(finish.tree)]
    words: list[int] = []
    for z in operands:
        steps = (z.strides[axis] // z.itemsize for axis in (fast, 1 - fast)) if is_array(z) else ()
        words += (z.data.ptr, *steps) if is_array(z) else pointwise.number_term(z)
    return tuple(z.dtype if is_array(z) else None for z in operands), words
