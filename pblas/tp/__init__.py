"""Linear layers whose weight is sharded over ranks, on arrays of NumPy, CuPy, torch and other DLPack libraries."""

from pblas.tp.layer import Linear
from pblas.tp.linear import (
    Gradients,
    allgather_linear,
    allgather_linear_backward,
    linear_allreduce,
    linear_allreduce_backward,
    linear_reduce_scatter,
    linear_reduce_scatter_backward,
)
from pblas.tp.partitioning import local_shard
from pblas.tp.products import default_context

__all__ = [
    "Gradients",
    "Linear",
    "allgather_linear",
    "allgather_linear_backward",
    "default_context",
    "linear_allreduce",
    "linear_allreduce_backward",
    "linear_reduce_scatter",
    "linear_reduce_scatter_backward",
    "local_shard",
]
