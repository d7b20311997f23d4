"""Linear layers whose weight is sharded over ranks, on arrays of NumPy, CuPy, torch and other DLPack libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._lazy import lazy

if TYPE_CHECKING:
    from pblas.tp.layer import Linear as Linear
    from pblas.tp.linear import Gradients as Gradients
    from pblas.tp.linear import allgather_linear as allgather_linear
    from pblas.tp.linear import allgather_linear_backward as allgather_linear_backward
    from pblas.tp.linear import linear_allreduce as linear_allreduce
    from pblas.tp.linear import linear_allreduce_backward as linear_allreduce_backward
    from pblas.tp.linear import linear_reduce_scatter as linear_reduce_scatter
    from pblas.tp.linear import linear_reduce_scatter_backward as linear_reduce_scatter_backward
    from pblas.tp.linear import replicated_linear as replicated_linear
    from pblas.tp.linear import replicated_linear_backward as replicated_linear_backward
    from pblas.tp.partitioning import local_shard as local_shard
    from pblas.tp.products import default_context as default_context
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "pblas.tp.layer": "Linear",
            "pblas.tp.linear": (
                "allgather_linear allgather_linear_backward Gradients linear_allreduce "
                "linear_allreduce_backward linear_reduce_scatter linear_reduce_scatter_backward "
                "replicated_linear replicated_linear_backward"
            ),
            "pblas.tp.partitioning": "local_shard",
            "pblas.tp.products": "default_context",
        },
    )
