"""Tensors of torch in tests: parts of a rank, numbers that all ranks have, and tolerances of sums."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pblas import tp

EPS = {"float64": 2.2e-16, "float32": 1.2e-7, "bfloat16": 7.8e-3}


def close(x: Any, expected: Any, name: str = "float64", terms: int = 16) -> None:
    """As near as sums of this many terms of order 1 are in a dtype."""
    x, expected = (z.detach().double() for z in (x, expected))
    assert x.shape == expected.shape
    assert x.numel() == 0 or (x - expected).abs().max() <= 8 * (terms + 1) * EPS[name] * max(1, expected.abs().max())


def part_of(x: Any, dim: int | None, rank: int, nprocs: int) -> Any:
    """This rank's part of x along an axis; all of it without one."""
    if dim is None:
        return x
    part = tp.local_shard(x.shape[dim], rank, nprocs)
    return x.narrow(dim, part.start, part.stop - part.start).contiguous()


def random(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    """The same numbers on every rank, on torch's default device, in float64 unless a dtype is given."""
    torch: Any = import_module("torch")
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return x.to(torch.get_default_device(), dtype or torch.float64)


def made(make: Any) -> Any:
    """A module with the same weights on every rank."""
    torch: Any = import_module("torch")
    with torch.random.fork_rng(()):
        torch.manual_seed(3)
        return make()


def whole(x: Any) -> Any:
    """The elements of all ranks, if x is a DTensor."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
