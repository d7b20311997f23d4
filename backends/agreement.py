"""Agreement of all ranks: one message of fixed size per rank and round, each wait with a deadline.

In round k every rank sends its knowledge to rank + 2^k and receives that of rank - 2^k. After ceil(log2 P) rounds all P
ranks know the same. A message holds the call (operation and arguments, which must be equal), the error of the lowest
rank that has one, a few integers (the maximum counts) and a set of bits (the intersection counts). An agreement is also
a barrier: no rank leaves it before all have arrived.

Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988), the dissemination barrier.
"""

from __future__ import annotations

import os
import pickle
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pblas import errors
from pblas.backends import log
from pblas.backends.local_step import AgreedError, agreed

if TYPE_CHECKING:
    from pblas.backends.transport import Line, Transport

CALL_NBYTES = 1024
ERROR_NBYTES = 1024
MAXIMA = 4
_ZEROS = (0,) * MAXIMA
BITS = 2048
ALL_BITS = (1 << BITS) - 1
_NUMBERS = struct.Struct(f"<{MAXIMA}q{BITS // 8}s")
"""Layout of the first part of a message: the maxima and the bits, which may differ in calls that agree."""
_TEXTS = struct.Struct(f"<5q{CALL_NBYTES}s{CALL_NBYTES}s{ERROR_NBYTES}s")
"""Layout of its second part: the other fields of `_Known`. Short texts are padded with zeros."""
_FIRST = _NUMBERS.size
_NO_ERROR = (-1, -1, 0, b"")

_TAG_NOTICE, _TAG_VERDICT, _TAG_REFUSAL, _TAG_VALUE, _TAG_QUESTION, _TAG_ANSWER, _TAG_ROUND = range(100, 107)
GRACE = 1.0  # seconds in which a live, waiting rank answers the notice that another rank has given up

# A waiting rank first polls: a message of a few microseconds must not cost a sleep (60 us at least). It then sleeps,
# because a rank that polls on a shared core takes time from the rank that it waits for. Ranks do not know whether they
# share cores with other hosts, as virtual machines do: there 400 polls made an agreement of four ranks take 630 us, 60
# polls 210 us. Where cores are not shared both take as long.
_POLLS = 60
# A rank with a core of its own goes on polling for about a millisecond and yields between polls. Waking up takes 90 us
# and more: ranks that have slept once would make each other sleep again, call after call (two ranks: 140 us in place of
# 15 us per agreement).
_YIELDS = 1940
# The time is limited: a rank that yields to a thread spinning on the same core gets the core back milliseconds later,
# each time (2 H200, ranks bound to one core each, beside NVSHMEM's thread: 4.5 s).
_YIELDING = 2e-3
_SLEEP_FIRST, _SLEEP_LAST = 20e-6, 1e-3

_PROBES_LATE = 200
_ANSWER = struct.Struct("<qB")
"""Number of the question, and whether the rank computes in a call: then the others wait on."""
_REFUSAL = struct.Struct("<qB")
"""Head of a refusal: number of the execution and kind of the error. The text comes after it."""

_KINDS: tuple[type[BaseException], ...] = (
    *(errors.LayoutError, errors.DescriptorError, errors.ArgumentError, errors.DTypeError, errors.PlanError),
    *(errors.MismatchError, errors.FileFormatError, errors.BackendError, errors.WorkspaceError, errors.ContextError),
    *(errors.PblasArgumentError, errors.OutOfRangeError, errors.PblasError, KeyboardInterrupt),
)
CHECKSUM = "CRC-32"
"""Name of the checksums of arrays, in arguments."""
PROGRESS = ": progress"
"""End of the name of the agreement that begins a call with progress=."""
_FOR_ARRAYS = ": send the array of one rank to all (MPI's bcast), or give random generators the same seed"


@dataclass(slots=True)
class _Known:
    """Knowledge of a rank after some rounds, about all ranks whose messages reached it directly or through others."""

    ranks: tuple[int, int]  # the lowest rank, and the lowest rank with another call; (-1, -1) while all agree
    error: tuple[int, int, int, bytes]  # rank (-1 without an error), kind, `_info_of` it, text
    maxima: tuple[int, ...]
    bits: int
    call: bytes  # of the lowest rank
    other: bytes  # of the lowest rank with another call

    def pack(self) -> bytes:
        rank, kind, info, text = self.error
        numbers = _NUMBERS.pack(*self.maxima, self.bits.to_bytes(BITS // 8, "little"))
        return numbers + _TEXTS.pack(*self.ranks, rank, kind, info, self.call, self.other, text)

    @staticmethod
    def unpack(raw: bytes | bytearray) -> _Known:
        lowest, differs, rank, kind, info, call, other, text = _TEXTS.unpack_from(raw, _FIRST)
        return _Known((lowest, differs), (rank, kind, info, text), *_numbers(raw), call, other)

    def candidates(self, lowest: int) -> list[tuple[int, bytes]]:
        """(rank, call) of the lowest rank of this set, and of the lowest rank whose call differs."""
        return [(lowest, self.call)] if self.ranks[1] < 0 else [(self.ranks[0], self.call), (self.ranks[1], self.other)]

    def merge(self, heard: _Known, lowest: int, lowest_heard: int) -> None:
        calls = sorted(self.candidates(lowest) + heard.candidates(lowest_heard))
        first = calls[0]
        differing = [entry for entry in calls if entry[1] != first[1]]
        self.call = first[1]
        self.ranks, self.other = ((first[0], differing[0][0]), differing[0][1]) if differing else ((-1, -1), b"")
        self.error = min((error for error in (self.error, heard.error) if error[0] >= 0), default=_NO_ERROR)
        self.maxima = tuple(map(max, self.maxima, heard.maxima))
        self.bits &= heard.bits


def _numbers(raw: bytes | bytearray) -> tuple[tuple[int, ...], int]:
    """The maxima and the bits of a message."""
    *maxima, bits = _NUMBERS.unpack_from(raw)
    return tuple(maxima), int.from_bytes(bits, "little")


def _merged_numbers(raw: bytes, heard: bytearray) -> bytes:
    """A message merged with another one that differs in its numbers only."""
    (maxima, bits), (other_maxima, other_bits) = _numbers(raw), _numbers(heard)
    both = (bits & other_bits).to_bytes(BITS // 8, "little")
    return _NUMBERS.pack(*map(max, maxima, other_maxima), both) + raw[_FIRST:]


class Agreed(NamedTuple):
    """Result of an agreement without an error, equal on all ranks."""

    maxima: tuple[int, ...]
    bits: int


class Agreement:
    """Agreements of the ranks, small values that they send each other, and waits with a deadline.

    No other code sends messages with these tags between the peers. A `crowded` rank shares its core with other
    ranks, so that it must not poll for long.
    """

    def __init__(self, peers: Transport, timeout: float, *, crowded: bool = False) -> None:
        self.peers: Transport = peers
        self.rank: int = peers.rank
        self.size: int = peers.size
        self.timeout = timeout
        self.broken: str | None = None
        self.interrupted: bool = False
        """Whether a SIGINT waits for the next agreement, where all ranks raise KeyboardInterrupt (local)."""
        self.ncalls: int = 0
        self.nexecutions = 0  # executions that start without an agreement
        self.in_call: bool = False
        """Whether this rank is in a collective call of the context (local)."""
        self.asks: bool = False
        """Whether `pblas.backends.liveness` answers for this rank, and probably for the others (local)."""
        self._waits = self._has_answered_notice = False
        self._question = 0
        self._last = float("-inf")  # time of the last agreement
        self.crowd(crowded)
        self._rounds: list[tuple[Line, int, int]] = []
        distance = 1
        while distance < self.size:
            dest, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            line = peers.line(dest, source, _TAG_ROUND + len(self._rounds), _NUMBERS.size + _TEXTS.size)
            lowest, lowest_heard = (0 if r < distance - 1 else r - distance + 1 for r in (self.rank, source))
            self._rounds.append((line, lowest, lowest_heard))
            distance *= 2

    def crowd(self, crowded: bool) -> None:
        """Set whether this rank shares its core with other ranks (local)."""
        self._eager, self._polls = (0, _POLLS) if crowded else (_POLLS, _POLLS + _YIELDS)

    def agree(
        self,
        call: str,
        error: AgreedError | None = None,
        *,
        maxima: tuple[int, ...] = (),
        bits: int = ALL_BITS,
        timeout: float | None = None,
    ) -> Agreed:
        """**Collective.** Return when every rank has made the same call, or raise the same exception on all ranks."""
        if error is None and self.interrupted:
            error = KeyboardInterrupt(f"{call.partition(chr(10))[0]}: interrupted")
        if error is not None:  # its tracebacks would tie the caller's frame, and the matrices there, into a cycle
            error.__traceback__ = error.__context__ = None
        start = time.perf_counter() if log.is_on(log.DEBUG) else 0.0
        self.ncalls += 1
        if error is None and not (self._rounds or start):  # the only rank
            return Agreed(maxima, bits)
        own_error = _NO_ERROR
        if error is not None:
            own_error = self.rank, _kind_of(error), _info_of(error), _fit(str(error), ERROR_NBYTES)
        padded = maxima + _ZEROS[len(maxima) :]
        own = _Known((-1, -1), own_error, padded, bits, _fit(call, CALL_NBYTES), b"").pack()
        operation = call.partition("\n")[0]
        self._heed_notice(operation)
        raw = self._exchanged(own, operation, timeout)
        self._heed_notice(operation)
        self._last = time.monotonic()
        if start:
            seconds = time.perf_counter() - start
            log.write(log.DEBUG, self.rank, "agreement %d, %s: %.0f us", self.ncalls, operation, 1e6 * seconds)
        if error is None and raw is own:  # all ranks sent the same
            return Agreed(maxima, bits)
        if error is None and raw[_FIRST:] == own[_FIRST:]:
            merged, common = _numbers(raw)
            return Agreed(merged[: len(maxima)], common)
        known = _Known.unpack(raw)
        rank, kind_index, info, raw_text = known.error
        if rank >= 0:
            text, kind = _with_rank(_text_of(raw_text), rank, self.size), _KINDS[kind_index]
            if kind is KeyboardInterrupt:
                self.interrupted = False
            raise _agreed(kind, text, self.print_order(rank), info)
        if known.ranks[1] >= 0:
            raise _agreed(errors.MismatchError, _difference(known), self.print_order(0))
        return Agreed(known.maxima[: len(maxima)], known.bits)

    def _exchanged(self, raw: bytes, operation: str, timeout: float | None) -> bytes:
        """**Collective.** The merged messages of all ranks."""
        for line, lowest, lowest_heard in self._rounds:
            if not line.left():
                self.wait(line.left, operation, timeout)
            line.start(raw)
            self.wait(line.arrived, operation, timeout)
            if line.received == raw:
                continue
            if line.received[_FIRST:] == raw[_FIRST:]:  # frequent: one rank has not dropped a matrix yet
                raw = _merged_numbers(raw, line.received)
            else:
                known = _Known.unpack(raw)
                known.merge(_Known.unpack(line.received), lowest, lowest_heard)
                raw = known.pack()
        return raw

    @property
    def notice_seconds(self) -> float:
        """Seconds in which a rank that does not go on tells the others, before they give up waiting for it (global)."""
        return min(GRACE, self.timeout / 2)

    def reject(self, error: AgreedError, release: Callable[[], None] = lambda: None) -> None:
        """Raise this rank's error instead of beginning a call that starts without an agreement.

        If all ranks reject the call, none has begun it: they raise the error of the lowest rank, and the context stays
        usable. Otherwise the context is broken, since other ranks may be in the middle of the call; they raise the
        error when they wait for this rank.
        """
        refusals = self._refusals(error)
        lowest = min(refusals)
        kind, text = refusals[lowest]
        text = _with_rank(text, lowest, self.size)
        if len(refusals) == self.size:
            raise _agreed(_KINDS[kind], text, self.print_order(lowest))
        self._break(kind, text, release)

    def abort(self, error: AgreedError, release: Callable[[], None] = lambda: None) -> NoReturn:
        """Break the context in the middle of a call, and raise this rank's error; other ranks raise it when they wait.

        If another rank has done so before, its error is raised.
        """
        self.heed("abort")
        self._break(_kind_of(error), _with_rank(_text(str(error)), self.rank, self.size), release)

    def _break(self, kind: int, text: str, release: Callable[[], None]) -> NoReturn:
        """Break the context on all ranks, which raise this error: this rank now, the others when they next wait."""
        self.broken = self.broken or text
        release()
        raw = bytes([kind]) + text.encode()
        for rank in set(range(self.size)) - {self.rank}:
            self.peers.send(raw, rank, _TAG_VERDICT)
            self.peers.send(bytes(1), rank, _TAG_NOTICE)
        self.peers.abandon()
        raise _agreed(_KINDS[kind], text, self.print_order(self.rank))

    def print_order(self, first: int) -> int:
        """The order in which this rank prints the traceback of an error, rank `first` first: see `agreed` (local)."""
        return 0 if self.rank == first else 1 + self.rank

    def _refusals(self, error: AgreedError) -> dict[int, tuple[int, str]]:
        """Kind and text of the error of each rank that rejects this execution within `notice_seconds`."""
        kind, text = _kind_of(error), _text(str(error))
        refusals = {self.rank: (kind, text)}
        raw = _REFUSAL.pack(self.nexecutions, kind) + text.encode()
        for rank in set(range(self.size)) - {self.rank}:
            self.peers.send(raw, rank, _TAG_REFUSAL)
        end = time.monotonic() + self.notice_seconds
        while len(refusals) < self.size and time.monotonic() < end:
            heard = self.peers.receive(_TAG_REFUSAL)
            if heard is not None:
                source, message = heard
                number, kind = _REFUSAL.unpack_from(message)
                if number != self.nexecutions:  # that rank has begun the execution that this one rejects
                    break
                refusals[source] = kind, message[_REFUSAL.size :].decode()
            elif self.peers.probe(_TAG_NOTICE):
                break
            else:
                time.sleep(_SLEEP_LAST)
        return refusals

    # Small values

    def gather(self, value: object, step: str, ranks: Sequence[int] | None = None) -> list[Any]:
        """**Collective** over the `ranks`. The small Python value of each rank, in the order of `ranks`.

        In round k each rank sends its known values to the 2^k-th rank after it: ceil(log2 P) rounds for P ranks.
        """
        group = range(self.size) if ranks is None else ranks
        place, count = group.index(self.rank), len(group)
        known, distance = {place: value}, 1
        while distance < count:
            left = self.peers.send(pickle.dumps(known), group[(place + distance) % count], _TAG_VALUE)
            known |= self._received(group[(place - distance) % count], step)
            self.wait(left, step)
            distance *= 2
        return [known[i] for i in range(count)]

    def broadcast(self, value: object, root: int, step: str) -> Any:
        """**Collective.** A small Python value of one rank, on all ranks, by a binomial tree."""
        place, distance = (self.rank - root) % self.size, 1
        while distance < self.size and not place & distance:
            distance *= 2
        if place:
            value = self._received((self.rank - distance) % self.size, step)
        raw = pickle.dumps(value)
        while distance > 1:
            distance //= 2
            if place + distance < self.size:
                self.wait(self.peers.send(raw, (self.rank + distance) % self.size, _TAG_VALUE), step)
        return value

    def _received(self, source: int, step: str) -> Any:
        """The next value that a rank sends to this one."""
        message: tuple[int, bytes] | None = None

        def arrived() -> bool:
            nonlocal message
            message = message or self.peers.receive(_TAG_VALUE, source)
            return message is not None

        self.wait(arrived, step)
        assert message is not None, "it has arrived"
        return pickle.loads(message[1])  # noqa: S301 - from a rank of this job

    # Waiting

    def heed(self, step: str) -> None:
        """Raise the error that other ranks raised in a call without an agreement, if a notice has arrived (local)."""
        if self.size > 1 and self.peers.probe(_TAG_NOTICE):
            self._give_up(step, self.timeout)

    def wait(
        self,
        arrived: Callable[[], object],
        step: str,
        timeout: float | None = None,
        *,
        moving: bool = False,
        before_giving_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Return when `arrived()` is true, or raise PeerTimeout on all waiting ranks after the deadline.

        With `moving` bytes are on their way all the time, which MPI moves in the calls of `arrived` only.
        """
        start, pause = time.monotonic(), _SLEEP_FIRST
        for poll in range(self._polls):
            if arrived():
                return
            if poll >= self._eager:
                os.sched_yield()
                if time.monotonic() - start > _YIELDING:
                    break
        limit, asked = self.timeout if timeout is None else timeout, False
        self._waits = True
        try:
            while not arrived():
                waited, is_over = time.monotonic() - start, self.peers.probe(_TAG_NOTICE)
                if self.asks and not asked and waited > limit / 2:
                    asked = True
                    self._ask()
                if waited > limit and not is_over and asked and self._others_compute():
                    start, asked = time.monotonic() - limit / 2, False
                elif waited > limit or is_over:
                    if arrived():  # it may have come between the last test and the deadline
                        return
                    before_giving_up()
                    self._give_up(step, limit)
                if moving and self._eager:
                    os.sched_yield()
                else:
                    time.sleep(pause)
                    pause = pause if moving else min(1.5 * pause, _SLEEP_LAST)
        finally:
            self._waits = False

    # Signs of life: a rank that has waited for half of its time asks all others. At the deadline it gives up if one of
    # them has not answered, or if none of them computes; otherwise it asks again. So a rank may compute for any time,
    # and one that is stopped or cut off is named within the timeout after its last answer.

    def _ask(self) -> None:
        """Ask all other ranks whether they are alive."""
        self._question += 1
        for rank in set(range(self.size)) - {self.rank}:
            self.peers.send(_ANSWER.pack(self._question, 0), rank, _TAG_QUESTION)

    def _others_compute(self) -> bool:
        """Whether all other ranks have answered the last question, and one of them computes."""
        answers = dict[int, bool]()
        while (heard := self.peers.receive(_TAG_ANSWER)) is not None:
            number, computes = _ANSWER.unpack(heard[1])
            if number == self._question:
                answers[heard[0]] = bool(computes)
        return len(answers) == self.size - 1 and any(answers.values())

    def answer(self, peers: Transport) -> None:
        """Answer questions, in a thread of its own that uses messages of its own (local)."""
        computes = self.in_call and not self._waits
        while (heard := peers.receive(_TAG_QUESTION)) is not None:
            number, _ = _ANSWER.unpack(heard[1])
            peers.send(_ANSWER.pack(number, computes), heard[0], _TAG_ANSWER)
        if computes and not self._has_answered_notice and peers.probe(_TAG_NOTICE):
            self._has_answered_notice = True  # the others must not name this rank
            for rank in set(range(self.size)) - {self.rank}:
                peers.send(bytes(1), rank, _TAG_NOTICE)

    def _heed_notice(self, step: str) -> None:
        """Raise PeerTimeout too if the other ranks gave up on this rank because it arrived too late."""
        # One probe takes one message off the queue of MPI; a rank that was away has others before the notice.
        was_away = time.monotonic() - self._last > min(GRACE, self.timeout)
        for _ in range(_PROBES_LATE) if was_away else (0,):
            if self.peers.probe(_TAG_NOTICE):
                self._give_up(step, self.timeout)

    def _give_up(self, step: str, limit: float) -> None:
        """Notify the other ranks, learn which are alive, and raise PeerTimeout that names those that are not."""
        others = set(range(self.size)) - {self.rank}
        for rank in others:
            self.peers.send(bytes(1), rank, _TAG_NOTICE)
        missing, verdict, kind = set(others), None, len(_KINDS)
        end = time.monotonic() + GRACE
        while time.monotonic() < end:
            notice = self.peers.receive(_TAG_NOTICE)
            heard = None if notice else self.peers.receive(_TAG_VERDICT)
            if notice is not None:
                missing.discard(notice[0])
            elif heard is not None:
                kind, verdict = heard[1][0], heard[1][1:].decode()
                break
            elif not missing:
                break
            else:
                time.sleep(1e-3)
        text = verdict or _timeout_text(step, sorted(missing), limit, self.size)
        answer = bytes([kind]) + text.encode()
        for rank in missing:
            self.peers.send(answer, rank, _TAG_VERDICT)
        self.broken = text
        self.peers.abandon()
        first = min(others - missing | {self.rank}) if verdict is None else -1  # -1: the rank that sent the verdict
        raise _agreed((*_KINDS, errors.PeerTimeout)[kind], text, self.print_order(first))

    def close(self) -> None:
        """Free the lines; the owner of the peers closes them (local)."""
        for line, *_ in self._rounds if self.broken is None else ():
            line.close()
        self._rounds = []


def _timeout_text(step: str, missing: list[int], limit: float, size: int) -> str:
    if not missing:
        return f"{step}: not finished within {limit:g} s though all {size} ranks wait; the context is broken"
    ranks = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
    return (
        f"{step}: {ranks} of {size} did not arrive within {limit:g} s; the context is broken. "
        f"Context(timeout=...) sets the limit, in seconds"
    )


def _agreed(kind: type[BaseException], text: str, print_order: int, info: int = 0) -> BaseException:
    """An exception to raise on every rank, marked as agreed; `info` is ScaLAPACK's INFO or `WorkspaceError.shared`."""
    error: Any = kind(text, info) if issubclass(kind, errors.PblasArgumentError) else kind(text)
    if issubclass(kind, errors.WorkspaceError):
        error.shared = bool(info)
    return agreed(error, print_order)


def _info_of(error: AgreedError) -> int:
    """ScaLAPACK's number, or `WorkspaceError.shared`; 0 for errors that have neither."""
    return getattr(error, "info", 0) or int(getattr(error, "shared", False))


def _kind_of(error: AgreedError) -> int:
    """The number of an error's class, or of the nearest class above it that has a number."""
    return next(_KINDS.index(kind) for kind in type(error).__mro__ if kind in _KINDS)


def _text(text: str) -> str:
    r"""A text that can be sent: names of files may be no text.

    >>> _text("none\udcff")
    'none\\udcff'
    """
    return text.encode(errors="backslashreplace").decode()


def _with_rank(text: str, rank: int, nprocs: int) -> str:
    """An error's text, with the rank in its last sentence.

    >>> _with_rank("Grid: order is 'X'; expected 'C' or 'R'.", 1, 4)
    "Grid: order is 'X'; expected 'C' or 'R'; found on rank 1 of 4"
    """
    return f"{text.removesuffix('.')}; found on rank {rank} of {nprocs}"


def _text_of(raw: bytes) -> str:
    """The text in a field of a message."""
    return raw.rstrip(b"\0").decode(errors="replace")


def _fit(text: str, nbytes: int) -> bytes:
    """The text in at most `nbytes` bytes. A longer text is cut and ends in a checksum of the whole."""
    raw = text.encode(errors="backslashreplace")
    if len(raw) > nbytes:
        check = f" …{zlib.crc32(raw):08x}".encode()
        raw = raw[: nbytes - len(check)].decode(errors="ignore").encode() + check
    return raw


def _difference(known: _Known) -> str:
    """Text of the MismatchError of two calls that differ."""
    (operation, *lines), (other_operation, *other_lines) = (
        _text_of(raw).split("\n") for raw in (known.call, known.other)
    )
    rank, other_rank = known.ranks
    name = operation.removesuffix(PROGRESS)
    if name == other_operation.removesuffix(PROGRESS) and operation != other_operation:
        value, other_value = ("given" if x.endswith(PROGRESS) else "not given" for x in (operation, other_operation))
        return (
            f"{name}: progress differs between ranks: {value} on rank {rank}, {other_value} on rank {other_rank}; pass "
            f"the same on every rank, rank 0 alone reports"
        )
    if operation != other_operation:
        return (
            f"ranks made different calls: {operation} on rank {rank}, {other_operation} on rank {other_rank}; "
            f"every rank of a context makes the same calls in the same order"
        )
    values, other_values = (dict(line.partition("=")[::2] for line in each) for each in (lines, other_lines))
    # A checksum last: where another argument differs too, that one says more.
    for name in sorted(
        values | other_values, key=lambda name: CHECKSUM in values.get(name, other_values.get(name, ""))
    ):
        value, other_value = (each.get(name, "not given") for each in (values, other_values))
        if value != other_value:
            remedy = _FOR_ARRAYS if CHECKSUM in value + other_value else ""
            return (
                f"{operation}: {name} differs between ranks: {value} on rank {rank}, "
                f"{other_value} on rank {other_rank}; pass the same on every rank{remedy}"
            )
    return f"{operation}: ranks {rank} and {other_rank} passed different arguments; pass the same on every rank"


def rendezvous(
    peers: Transport, call: str, timeout: float, error: AgreedError | None = None, maxima: tuple[int, ...] = ()
) -> Agreed:
    """**Collective.** Return when every rank makes the same call, or raise the same exception on all.

    For ranks that have no context yet. No earlier step waits without a deadline.
    """
    agreement = Agreement(peers, timeout)
    try:
        return agreement.agree(call, error, maxima=maxima)
    finally:
        agreement.close()
