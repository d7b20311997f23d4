"""Lanes of an execution as operations on streams, on one GPU."""

from __future__ import annotations

from typing import Any

import cupy
import pytest

from pblas.backends.cuda import streams
from pblas.backends.nvshmem.sinks import Lanes

pytestmark = pytest.mark.gpu


def test_neighbouring_words_of_a_lane_are_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation between two batches is issued in order, and nothing is left at the end."""
    issued, operate, stream = list[int](), streams.operate, cupy.cuda.Stream(non_blocking=True)

    def noted(to: Any, operations: list[Any]) -> None:
        issued.append(len(operations))
        operate(to, operations)

    monkeypatch.setattr(streams, "operate", noted)
    words, lanes = cupy.zeros(8, cupy.uint32), Lanes()
    cupy.cuda.runtime.deviceSynchronize()
    places = [words.data.ptr + 4 * i for i in range(8)]

    def body() -> None:
        lanes.operate("copy", [streams.set_word(places[0])])
        lanes.operate("copy", [*streams.await_word(places[0]), streams.set_word(places[1])])
        lanes.operate("copy", [streams.set_word(places[2])])
        streams.copy(lanes.stream("copy"), places[3], 4, places[2], 4, 4, 1)
        lanes.operate("copy", [streams.set_word(places[4])])
        streams.copy(lanes.stream("main"), places[6], 4, places[7], 4, 4, 1)
        lanes.operate("copy", [streams.set_word(places[5])])

    lanes.run(stream.ptr, "eager", body)
    stream.synchronize()
    assert issued == [5, 1, 1]
    assert words.tolist() == [0, 1, 1, 1, 1, 1, 0, 0]
