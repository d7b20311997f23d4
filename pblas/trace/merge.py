"""Collects the events of all ranks on rank 0, with the times of rank 0's clock."""

from __future__ import annotations

import json
import time
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.recorder import Arrival, Event, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.runtime.runtime import Runtime

TAG = 1040
_ROUNDS = 8  # number of clock queries per rank; the query with the fastest answer is used


def merged(runtime: Runtime, recorder: Recorder) -> tuple[tuple[Event, ...], bool]:
    """**Collective.** The recorded events of all ranks, on rank 0."""
    own = recorder.events(), recorder.sends, recorder.arrivals, recorder.is_full
    if runtime.rank:
        _answer(runtime)
        parts = [list(map(astuple, own[0])), own[1], list(map(astuple, own[2])), own[3]]
        _send(runtime, json.dumps(parts).encode())
        return (), True
    records = [own]
    for peer in range(1, runtime.nprocs):
        offset = _offset(runtime, peer)
        events, sends, arrivals, full = json.loads(_receive(runtime, peer))
        records.append(
            (
                [_shifted(Event(*event), -offset) for event in events],
                [(dest, tag, sent - offset) for dest, tag, sent in sends],
                [_on_clock(Arrival(*arrival), offset) for arrival in arrivals],
                full,
            )
        )
    events = [event for record in records for event in record[0]]
    events += messages([record[1] for record in records], [record[2] for record in records])
    first = min((event.start for event in events), default=0.0)
    events = [_shifted(event, -first) for event in events]
    ordered = sorted(events, key=lambda event: (event.rank, event.lane, event.start))
    return tuple(ordered), not any(record[3] for record in records)


def messages(sends: Sequence[Sequence[tuple[int, int, float]]], arrivals: Sequence[Sequence[Arrival]]) -> list[Event]:
    """Events of messages, on lanes of the receiving ranks: one lane for each rank that sends.

    A message begins when both ranks have posted it and ends when its arrival was seen. Messages of one tag between two
    ranks arrive in the order in which they were sent. On a lane, a message begins after the previous one has arrived.

    >>> [event] = messages([[(1, 7, 2.0)], []], [[], [Arrival(0, 7, 16, 1.0, 5.0)]])
    >>> event.rank, event.lane, event.start, event.stop, event.details
    (1, 'from rank 0', 2.0, 5.0, {'bytes': 16})
    """
    sent: dict[tuple[int, int, int], list[float]] = {}
    for source, of_rank in enumerate(sends):
        for dest, tag, time_sent in of_rank:
            sent.setdefault((source, dest, tag), []).append(time_sent)
    events = []
    for rank, of_rank_ in enumerate(arrivals):
        free: dict[int, float] = {}
        seen: dict[tuple[int, int], int] = {}
        begun: list[tuple[float, float, Arrival]] = []
        for arrival in of_rank_:
            key = arrival.source, arrival.tag
            number = seen[key] = seen.get(key, -1) + 1
            times = sent.get((arrival.source, rank, arrival.tag), [])
            if arrival.done is not None and number < len(times):
                begun.append((arrival.done, max(arrival.posted, times[number]), arrival))
        for done, start, arrival in sorted(begun, key=lambda message: message[:2]):
            source = arrival.source
            begin = max(start, free.get(source, start))
            if begin < done:
                name = f"message from rank {source}"
                events.append(
                    Event(rank, f"from rank {source}", "message", name, begin, done, {"bytes": arrival.nbytes})
                )
                free[source] = done
    return events


def _shifted(event: Event, seconds: float) -> Event:
    """The event `seconds` later."""
    return replace(event, start=event.start + seconds, stop=event.stop + seconds)


def _on_clock(arrival: Arrival, offset: float) -> Arrival:
    """The arrival with times of a clock that is `offset` seconds behind."""
    done = None if arrival.done is None else arrival.done - offset
    return replace(arrival, posted=arrival.posted - offset, done=done)


def _offset(runtime: Runtime, peer: int) -> float:
    """Seconds by which the clock of a rank is ahead of rank 0's clock (rank 0).

    The error is at most half the time of an answer. A smaller offset counts as 0: ranks of one node share a clock.

    Source: Cristian, "Probabilistic clock synchronization" (1989).
    """
    best, offset = float("inf"), 0.0
    for _ in range(_ROUNDS):
        asked = time.perf_counter()
        _move(runtime, "send", np.zeros((1, 1)), peer)
        peer_time = _move(runtime, "receive", np.zeros((1, 1)), peer)[0, 0]
        answered = time.perf_counter()
        if answered - asked < best:
            best, offset = answered - asked, float(peer_time) - (asked + answered) / 2
    return 0.0 if abs(offset) < best / 2 else offset


def _answer(runtime: Runtime) -> None:
    """Answer the clock queries of rank 0 (other ranks)."""
    for _ in range(_ROUNDS):
        _move(runtime, "receive", np.zeros((1, 1)), 0)
        _move(runtime, "send", np.array([[time.perf_counter()]]), 0)


def _send(runtime: Runtime, text: bytes) -> None:
    """Send bytes to rank 0, their number first."""
    _move(runtime, "send", np.array([[len(text)]]), 0)
    _move(runtime, "send", np.frombuffer(text, np.uint8)[:, None], 0)


def _receive(runtime: Runtime, peer: int) -> bytes:
    """Receive bytes from a rank (rank 0)."""
    nbytes = _move(runtime, "receive", np.zeros((1, 1), np.int64), peer)[0, 0]
    return bytes(_move(runtime, "receive", np.empty((nbytes, 1), np.uint8), peer))


def _move(runtime: Runtime, method: str, x: object, peer: int) -> Any:
    """Send an array to a rank, or receive it from there, and return it."""
    backend = runtime.backend
    post: Callable[..., Any] = getattr(backend.plain_channel, method)
    backend.complete(post(x, peer, TAG), step=f"trace: events of rank {peer or runtime.rank}")
    return x
