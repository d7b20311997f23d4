"""A replay on operands at other addresses makes the same launches as an execution on them."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from pblas.backends.nvshmem.replay import Recording, Replay

LANES = ("main", "copy")


def give(take: Any, seed: int, places: tuple[int, ...], changes: int = 0) -> None:
    """Pass the launches of one execution on operands at these addresses to `take(lane, words)`."""
    draw = random.Random(seed)
    for number in range(20):
        words = [draw.choice((draw.randrange(100), draw.choice(places) + draw.randrange(-64, 64))) for _ in range(5)]
        if number == 7:
            words[2] += changes
        take(draw.choice(LANES), words)


def recorded(launched: list[Any], seed: int, places: tuple[int, ...], changes: int = 0) -> Replay:
    replay = Replay()

    def take(lane: str, words: list[int]) -> None:
        replay.lane(lane).record(lambda stream: launched.append((stream, *words)), words)

    give(take, seed, places, changes)
    return replay


def expected(seed: int, places: tuple[int, ...]) -> list[Any]:
    launches = list[Any]()
    give(lambda lane, words: launches.append((1 + LANES.index(lane), *words)), seed, places)
    return launches


def test_words_with_operands_addresses_are_relocated() -> None:
    first, second = (1 << 40, 2 << 40, 3 << 40), ((1 << 40) + 4096, (2 << 40) + 8192, (3 << 40) + 12288)
    shifts = {b - a: (number, a) for number, (a, b) in enumerate(zip(first, second, strict=True))}
    for seed in range(20):
        launched = list[Any]()
        replay = recorded(launched, seed, first)
        assert replay.compare(recorded(launched, seed, second), shifts)
        for places in ((1000, 2000, 3000), (5000, 5000, 7000)):
            launched.clear()
            replay.launch(places, {"main": 1, "copy": 2})
            assert launched == expected(seed, places)
        assert not recorded(launched, seed, first).compare(recorded(launched, seed, second, changes=1), shifts)
        assert not recorded(launched, seed, first).compare(Replay(), shifts)


@pytest.mark.parametrize("first", [0, 1])
def test_each_half_of_a_workspace_has_its_own_recording(first: int) -> None:
    workspace: Any = SimpleNamespace(parity=first)
    gemm: Any = SimpleNamespace(forgotten=0)
    recording, replays = Recording(gemm), {}
    for workspace.parity in (first, 1 - first):
        replays[workspace.parity] = Replay()
        recording.add(replays[workspace.parity], workspace)
    for workspace.parity in (0, 1, 0):
        assert recording.replay is replays[workspace.parity]
    assert recording.is_current
    gemm.forgotten += 1
    assert not recording.is_current
