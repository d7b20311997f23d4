"""Layers on GPUs in a reproducible context: the bits of one GPU, for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cupy
import pytest
from mpi4py import MPI

import pblas
from pblas import tp
from tests.common.ranks import open_context
from tests.mpi.tp.test_reproducible import compare

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]


def on_gpu(layer: Any) -> Any:
    """A layer that takes and returns arrays in host memory."""

    def run(x: Any, weight: Any, *arguments: Any, **options: Any) -> Any:
        return layer(cupy.asarray(x), cupy.asarray(weight), *arguments, **options).get()

    return run


@pytest.fixture(scope="module")
def one() -> Iterator[pblas.Context]:
    with open_context(comm=MPI.COMM_SELF, backend="cuda", reproducible=True) as opened:
        yield opened


@pytest.mark.ranks(1, 2, 3, 4, 6, reason="heads are split evenly")
@pytest.mark.parametrize("backend", ["nvshmem", "cuda"])
def test_logits_of_a_llama_block(one: pblas.Context, backend: Any) -> None:
    names = "replicated_linear", "linear_allreduce"
    layers = SimpleNamespace(**{name: on_gpu(getattr(tp, name)) for name in names})
    with pblas.Context(backend=backend, timeout=30, reproducible=True) as ctx:
        compare(ctx, one, 16000, layers)
