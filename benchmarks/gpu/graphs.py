"""Columns of the GPU benchmark that are CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.timing import Column

Works = list[Callable[[], Any]]


def nan(*tensors: Any) -> None:
    """Fill torch tensors with NaN."""
    for tensor in tensors:
        tensor.fill_(float("nan"))


def captured(works: Works) -> list[Any]:
    """CUDA graphs of what the works enqueue on torch's current stream, each run once before.

    torch.cuda.graph() would collect garbage and empty the allocator's cache for every one of them.
    """
    import torch

    pool, graphs = torch.cuda.graph_pool_handle(), []
    for work in works:
        work()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls may break the capture: NCCL's watchdog asks after events in a thread of its own.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
        graphs.append(graph)
    return graphs


def replayed(name: str, works: Works, **options: Any) -> Column:
    """A column of which every set of operands is one graph."""
    graphs = captured(works)
    return Column(name, lambda s: graphs[s].replay(), close=lambda: [graph.reset() for graph in graphs], **options)
