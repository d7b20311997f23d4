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
    """Run each function once, then capture it on torch's current stream as a CUDA graph.

    torch.cuda.graph() is not used, because it collects garbage and empties the allocator's cache for every graph.
    """
    import torch

    pool, graphs = torch.cuda.graph_pool_handle(), []
    for work in works:
        work()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        # Only calls of this thread may invalidate the capture: NCCL's watchdog queries events in another thread.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
        graphs.append(graph)
    return graphs


def replayed(name: str, works: Works, **options: Any) -> Column:
    """A column with one graph for each set of operands."""
    graphs = captured(works)
    return Column(name, lambda s: graphs[s].replay(), close=lambda: [graph.reset() for graph in graphs], **options)
