"""What the lanes of an execution compute: products, sums, and the kernels that reduce."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pblas.backends.cuda.gemm import needs_copy
from pblas.backends.nvshmem.copies import Copies, is_tight, leading, orders
from pblas.backends.nvshmem.hopper.descriptors import Part, Place, Term
from pblas.backends.nvshmem.hopper.gemm import Hopper
from pblas.backends.nvshmem.kernels import Slots
from pblas.backends.nvshmem.reduction_epilogues import behind

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.nvshmem.kernels import Behind
    from pblas.backends.push_engine import Finish, Portion


class Operations(Copies):
    """The operations of one execution.

    While products are rehearsed, they are put on the list `_rehearsed`, all else is left out.

    Args:
        common: what the context's engines share.
    """

    _gemm: Gemm
    _hoppers: dict[bool, Hopper]
    """Products whose parts wait for flags, as counters of pushes; none on other GPUs."""
    _queue: int | None

    def gemm(
        self,
        lane: str,
        alpha: complex,
        x: Any,
        y: Any,
        beta: complex,
        z: Any,
        *,
        conj: tuple[bool, bool] = (False, False),
        tf32: bool,
        finish: Finish | None = None,
    ) -> None:
        """Z := alpha X Y + beta Z, in 32 bits at least, and what follows: before Z is rounded, if cuBLASLt does it."""
        if not z.size:
            return
        copies = needs_copy(x, y, z, conj)
        x, y = (
            self._conjugate(lane, w, number) if needed else w
            for number, (w, needed) in enumerate(zip((x, y), copies, strict=True))
        )
        conj = (conj[0] and not copies[0], conj[1] and not copies[1])
        if self._rehearsed is not None:
            self._rehearsed.append((alpha, x, y, z, conj, tf32, finish))
            return
        stream, workspace = self._stream(lane), self._gemm_lane(captured=self._executions.captured)
        if not self._gemm.matmul(stream, alpha, x, y, beta, z, conj=conj, lane=workspace, tf32=tf32, finish=finish):
            self.finish(lane, finish, z)

    def _gemm_lane(self, *, captured: bool) -> Hashable:
        """Whose workspace products have that may run beside others."""
        return self._queue, captured

    def finish(self, lane: str, finish: Finish | None, z: Any) -> None:
        """Z := what follows it; also while products are rehearsed, with whatever Z is."""
        if finish is not None:
            self._common.ranks.arrays.pointwise.evaluate(self._stream(lane), finish.tree, z, finish.operands, z)

    def multiply_portions(
        self,
        lane: str,
        alpha: complex,
        portions: list[Portion],
        beta: complex,
        *,
        finish: Finish | None = None,
    ) -> bool:
        """Make some portions of a result by one kernel, if there is one for them."""
        hopper, parts = self._hoppers.get(self._executions.captured), [self._part(portion) for portion in portions]
        if hopper is None or not hopper.serves(parts):
            return False
        if self._rehearsed is not None:
            for each in self._hoppers.values():
                each.prepare(parts, reads_z=beta != 0, finish=finish)
            return True
        for portion in portions:
            if portion.old is not None and portion.old is not portion.z:
                self.copy(lane, portion.old, portion.z)
        alpha, beta = complex(alpha).real, complex(beta).real
        hopper.matmul(self._stream(lane), alpha, parts, beta, finish=finish, watch=self._watch)
        return True

    def _part(self, portion: Portion) -> Part:
        """A portion as the Hopper kernel is told of it."""

        def own(flag: tuple[int, int] | None) -> tuple[int, int]:
            return (0, 0) if flag is None else (self._current.flag(self._rank, *flag), flag[0])

        def told(flag: tuple[int, int] | None) -> int:
            return 0 if flag is None else self._current.flag(flag[0], self._rank, flag[1])

        signal = self._mark(portion.mark) if portion.mark >= 0 else told(portion.tells)
        terms = tuple(Term(z, *own(flag)) for z, flag in portion.terms)
        places = tuple(Place(z, told(flag)) for z, flag in portion.places)
        where = (portion.x, portion.y, portion.z, *own(portion.awaits))
        more = (portion.ready, signal, portion.partial, terms, places)
        return Part(*where, *more, late=portion.late, among=portion.among, at=portion.at)

    def _conjugate(self, lane: str, x: Any, number: int) -> Any:
        order = "F" if x.strides[0] <= x.strides[1] else "C"
        target = self._packed(("conj", number), x, order)
        if self._rehearsed is None:
            rows, columns = x.shape if order == "F" else x.shape[::-1]
            step = max(x.strides) // x.itemsize if columns > 1 else rows
            self._kernels.conjugate(self._stream(lane), x.dtype, rows, columns, x.data.ptr, step, target.data.ptr, rows)
        return target

    def sum(self, lane: str, parts: list[Any], beta: complex, old: Any, out: Any, finish: Finish | None = None) -> None:
        """Out := the parts, added in their order, + beta old, and what follows, rounded once."""
        if not out.size:
            return
        order = self._common_order(out, parts[0])
        follows = self._behind(lane, finish, out, order, wire=parts[0].dtype, scaled=False, family="sum")
        if self._rehearsed is not None:
            return
        if old is not None and order not in orders(old):
            old = self._reordered(lane, old, order)
        rows, columns = out.shape if order == "F" else out.shape[::-1]
        keep = {} if old is None else {"old": old.data.ptr, "old_ld": leading(old, order), "beta": beta}
        self._kernels.sum(
            self._stream(lane),
            out.dtype,
            rows,
            columns,
            [part.data.ptr for part in parts],
            [leading(part, order) for part in parts],
            out.data.ptr,
            leading(out, order),
            wire=parts[0].dtype,
            behind=follows,
            **keep,
        )

    def _behind(self, lane: str, finish: Finish | None, *options: Any, **named: Any) -> Behind | None:
        """What follows, as kernels take it; they are compiled while products are rehearsed."""
        return None if finish is None else behind(self._kernels, self._stream(lane), finish, *options, **named)

    def reduce_scatter(
        self,
        lane: str,
        parts: list[Any],
        order: Any,
        slots: Any,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products of this rank's part of D, + beta old, and what follows."""
        rank, size = self._rank, self._size
        others = [(rank + i) % size for i in range(1, size)]
        if isinstance(slots, Slots):  # one kernel does it all
            follows = self._behind_all(lane, finish, out, order, parts[rank].dtype, old)
            if self._rehearsed is None:
                first = list(accumulate((part.size for part in parts), initial=0))
                result = out if is_tight(out, order) else self._packed(("result",), out, order)
                tight = None if old is None else self._tight(lane, old, order)
                self._kernels.reduce_scatter(
                    *(self._stream(lane), out.dtype, first, parts[0].data.ptr, result.data.ptr),
                    rank=rank,
                    slots=slots,
                    watch=self._watch,
                    old=0 if tight is None else tight.data.ptr,
                    beta=0.0 if tight is None else beta,
                    wire=parts[rank].dtype,
                    contributing=contributing,
                    behind=follows,
                )
                if result is not out:
                    self.copy(lane, result, out)
            return
        sent = others if rank in contributing else []
        puts = [(peer, parts[peer], rank * slots, order) for peer in sent if parts[peer].size]
        self.burst(lane, puts, 0, others, others, "GemmReduceScatter: partial products of")
        mine = parts[rank]
        terms = [
            mine if r == rank else self.array(r * slots, mine.shape, mine.dtype, order)
            for r in (*others, rank)
            if r in contributing
        ]
        self.sum(lane, terms, beta, old, out, finish)

    def _behind_all(
        self, lane: str, finish: Finish | None, out: Any, order: Any, wire: np.dtype[Any], old: Any
    ) -> Behind | None:
        """The same of the kernels that reduce."""
        return self._behind(lane, finish, out, order, wire=wire, scaled=old is not None, family="all_reduce")

    def all_gather(self, lane: str, shard: Any, order: Any, slots: Slots, first: list[int], offset: int) -> None:
        """The shards of all ranks, tight and one after the other, in this rank's workspace."""
        if self._rehearsed is not None:
            return
        dtype, parts = shard.dtype, 2 if shard.dtype.kind == "c" else 1
        if not is_tight(shard, order):
            place = self.array(offset + first[self._rank] * dtype.itemsize, shard.shape, dtype, order)
            self.copy(lane, shard, place)
            shard = place
        self._kernels.gather(
            *(self._stream(lane), dtype.itemsize // parts, [parts * start for start in first]),
            *(shard.data.ptr, self._current.slots(self._rank) + offset),
            rank=self._rank,
            slots=slots,
            watch=self._watch,
        )

    def one_shot(
        self,
        lane: str,
        partial: Any,
        slots: Slots,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, and what follows, on all ranks, which all add."""
        follows = self._behind_all(lane, finish, out, "F", partial.dtype, old)
        if self._rehearsed is not None:
            return
        tight, result = self._operands(lane, old, out)
        self._kernels.one_shot(
            *(self._stream(lane), out.dtype, partial.size, partial.data.ptr, result.data.ptr),
            rank=self._rank,
            slots=slots,
            watch=self._watch,
            old=0 if tight is None else tight.data.ptr,
            beta=0.0 if tight is None else beta,
            wire=partial.dtype,
            contributing=contributing,
            behind=follows,
        )
        if result is not out:
            self.copy(lane, result, out)

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        slots: Slots | None,
        results_at: int,
        homes: list[int] | None,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        phase: int,
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, and what follows, on all, each of its share."""
        del phase  # these kernels have flags of their own
        follows = self._behind_all(lane, finish, out, "F", wire, old)
        if self._rehearsed is not None:
            return
        tight, result = self._operands(lane, old, out)
        bases = [self._current.slots(peer) for peer in range(self._size)]
        rest: dict[str, Any] = {
            "rank": self._rank,
            "watch": self._watch,
            "old": 0 if tight is None else tight.data.ptr,
            "beta": 0.0 if tight is None else beta,
            "wire": wire,
            "contributing": contributing,
            "behind": follows,
        }
        if slots is not None:
            source = bases[self._rank]
            self._kernels.two_shot(self._stream(lane), out.dtype, first, source, result.data.ptr, slots=slots, **rest)
        else:
            self._kernels.pulled(
                *(self._stream(lane), out.dtype, first, result.data.ptr),
                partials=bases,
                flags=[self._current.shot_flags(peer) for peer in range(self._size)],
                results=[base + results_at for base in bases] if homes is None else homes,
                **rest,
            )
        if result is not out:
            self.copy(lane, result, out)

    def _operands(self, lane: str, old: Any, out: Any) -> tuple[Any, Any]:
        """C and D as an all-reduce takes them, stored by columns and tight."""
        tight = None if old is None else self._tight(lane, old, "F")
        result = out if is_tight(out, "F") else self._packed(("result",), out, "F")
        return tight, result

    def _tight(self, lane: str, x: Any, order: Any) -> Any:
        """The array, or a copy of it that is tight and in the given order."""
        if is_tight(x, order):
            return x
        if order not in orders(x):
            return self._reordered(lane, x, order)
        packed = self._packed(("tight",), x, order)
        self.copy(lane, x, packed)
        return packed
