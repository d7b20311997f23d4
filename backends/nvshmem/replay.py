"""Record the launches of an execution once, and replay them for operands elsewhere in memory.

Two executions of a plan on arrays with the same memory layout pass the same arguments to the GPU, except for the
operands' addresses. Planning therefore records an execution twice, for operands at two made-up addresses. The words
that differ between the two recordings hold operand addresses. A replay writes the actual addresses into these words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.cuda.kernels import Words
    from pblas.backends.nvshmem.workspace import Workspace

    Start = Callable[[int], None]


class NotRecordableError(Exception):
    """A launch that cannot be recorded for replay."""


class _Lane:
    """Stands in for the stream of a lane, and records its launches."""

    def __init__(self, name: str, launches: list[tuple[Start, str, Words]]) -> None:
        self._name, self._launches = name, launches

    def record(self, start: Start, words: Words) -> None:
        """See `cuda.kernels.LaunchRecorder`."""
        self._launches.append((start, self._name, words))

    def __int__(self) -> int:
        raise NotRecordableError(self._name)


class Replay:
    """The recorded launches of one execution.

    >>> first, second = Replay(), Replay()
    >>> launched = []
    >>> for replay, address in ((first, 1000), (second, 5000)):
    ...     words = [7, address + 8]
    ...     replay.lane("main").record(lambda stream, words=words: launched.append((stream, *words)), words)
    >>> first.compare(second, {4000: (0, 1000)})
    True
    >>> first.launch([90], {"main": 3})
    >>> launched
    [(3, 7, 98)]
    """

    def __init__(self) -> None:
        self.memory: dict[object, Any] = {}  # further arrays that the launches use
        self._launches: list[tuple[Start, str, Words]] = []
        self._relocations: list[tuple[Words, int, int, int]] = []

    def lane(self, name: str) -> _Lane:
        """Stands in for the stream of a lane while an execution is recorded."""
        return _Lane(name, self._launches)

    def compare(self, second: Replay, shifts: Mapping[int, tuple[int, int]]) -> bool:
        """Find the words that hold operand addresses."""
        if len(self._launches) != len(second._launches):
            return False
        for (_, lane, words), (_, second_lane, second_words) in zip(self._launches, second._launches, strict=True):
            if lane != second_lane or len(words) != len(second_words):
                return False
            for index, (word, second_word) in enumerate(zip(words, second_words, strict=True)):
                if word != second_word:
                    if second_word - word not in shifts:
                        return False
                    number, place = shifts[second_word - word]
                    self._relocations.append((words, index, number, word - place))
        return True

    def launch(self, addresses: Sequence[int], streams: Mapping[str, int]) -> None:
        """Launch everything on operands at these addresses."""
        for words, index, number, offset in self._relocations:
            words[index] = addresses[number] + offset
        for start, lane, _ in self._launches:
            start(streams[lane])


class Recording:
    """The launches of a plan on operands of one memory layout, one `Replay` for each half of the workspace."""

    def __init__(self, gemm: Gemm) -> None:
        self.workspace: Workspace | None = None  # the workspace that the launches use, if any
        self.memory: dict[int, dict[object, Any]] = {}  # further arrays that the launches use, by half of the workspace
        self._replays: dict[int, Replay] = {}
        self._gemm, self._products = gemm, gemm.forgotten

    def add(self, replay: Replay, workspace: Workspace | None) -> None:
        """Add the launches of an execution in the current half of the workspace."""
        self.workspace = workspace
        self._replays[self._parity] = replay
        self.memory[self._parity] = replay.memory

    @property
    def is_current(self) -> bool:
        """Whether the recorded products still exist."""
        return self._products == self._gemm.forgotten

    @property
    def replay(self) -> Replay:
        """The launches of the next execution."""
        return self._replays[self._parity]

    @property
    def _parity(self) -> int:
        return 0 if self.workspace is None else self.workspace.parity
