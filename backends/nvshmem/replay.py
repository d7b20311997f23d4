"""Executions that are recorded once, and launched again for operands elsewhere in memory.

Between two executions of a plan on arrays that lie alike, nothing that the GPU is given differs but the operands'
addresses. So an execution is walked through when it is planned, for operands at two made-up places, and what it would
launch is kept: the words that differ between the two are the operands'. What is launched later has other words there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.cuda.recordable import Words
    from pblas.backends.nvshmem.workspace import Workspace

    Start = Callable[[int], None]


class NotRecordableError(Exception):
    """Something was to be launched on a lane that only keeps, in a way that it does not keep."""


class _Lane:
    """In the place of the stream of a lane: it keeps what it is given."""

    def __init__(self, name: str, kept: list[tuple[Start, str, Words]]) -> None:
        self._name, self._kept = name, kept

    def keep(self, start: Start, words: Words) -> None:
        """As `launches.LaunchRecorder`."""
        self._kept.append((start, self._name, words))

    def __int__(self) -> int:
        raise NotRecordableError(self._name)


class Replay:
    """What one execution launches.

    >>> first, second = Replay(), Replay()
    >>> found = []
    >>> for tape, place in ((first, 1000), (second, 5000)):
    ...     words = [7, place + 8]
    ...     tape.lane("main").keep(lambda stream, words=words: found.append((stream, *words)), words)
    >>> first.compare(second, {4000: (0, 1000)})
    True
    >>> first.play([90], {"main": 3})
    >>> found
    [(3, 7, 98)]
    """

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}
        """Arrays that it needs beside its operands."""
        self._kept: list[tuple[Start, str, Words]] = []
        self._moves: list[tuple[Words, int, int, int]] = []

    def lane(self, name: str) -> _Lane:
        """In the place of the stream of a lane, while an execution is recorded."""
        return _Lane(name, self._kept)

    def compare(self, other: Replay, shifts: Mapping[int, tuple[int, int]]) -> bool:
        """Find the words that tell where operands lie.

        Args:
            other: the same execution on operands elsewhere.
            shifts: how far each operand lies from where it lay for this one; its number, and where that was.

        Returns:
            Whether there is no other difference.
        """
        if len(self._kept) != len(other._kept):
            return False
        for (_, lane, words), (_, other_lane, others) in zip(self._kept, other._kept, strict=True):
            if lane != other_lane or len(words) != len(others):
                return False
            for index, (word, changed) in enumerate(zip(words, others, strict=True)):
                if word != changed:
                    if changed - word not in shifts:
                        return False
                    number, place = shifts[changed - word]
                    self._moves.append((words, index, number, word - place))
        return True

    def play(self, places: Sequence[int], streams: Mapping[str, int]) -> None:
        """Launch it all on operands that lie at these places."""
        for words, index, number, offset in self._moves:
            words[index] = places[number] + offset
        for start, lane, _ in self._kept:
            start(streams[lane])


class Recording:
    """What executions of a plan launch on operands that lie alike, for each half of their workspace.

    Args:
        gemm: with which they multiply.
    """

    def __init__(self, gemm: Gemm) -> None:
        self.workspace: Workspace | None = None
        """That they use, if any."""
        self.memory: dict[int, dict[Any, Any]] = {}
        """Arrays that they need beside their operands."""
        self._tapes: dict[int, Replay] = {}
        self._gemm, self._products = gemm, gemm.forgotten

    def add(self, tape: Replay, workspace: Workspace | None) -> None:
        """What an execution launches in the half of the workspace whose turn it is."""
        self.workspace = workspace
        self._tapes[self._half] = tape
        self.memory[self._half] = tape.memory

    @property
    def is_current(self) -> bool:
        """Whether the products that it launches are still there."""
        return self._products == self._gemm.forgotten

    @property
    def tape(self) -> Replay:
        """Of the next execution."""
        return self._tapes[self._half]

    @property
    def _half(self) -> int:
        return 0 if self.workspace is None else self.workspace.parity
