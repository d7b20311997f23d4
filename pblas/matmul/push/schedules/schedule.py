"""The push protocol: the operations of one rank in one execution of a plan, in issue order, on lanes.

A lane is a stream: its operations run one after the other. Lanes run concurrently; `after` names operations of
other lanes that must have finished. Data is pushed: `Put` copies a block into a peer's workspace, and the next `Signal`
on the same lane sets the peer's flag. The peer's `Wait` waits for the flag and resets it. Only all-reduces pull: in two
shots a kernel reads partial products in the workspaces of the peers, and with tile signals `Get` and `Gets` copy
finished lines from there. The operations one at a time, in issue order, are a valid execution too; CPUs run them so.

The workspace is a double buffer whose halves (parities) alternate from call to call, so that no call starts with a
barrier. In call e a rank writes into parity e % 2 of a peer. The peer no longer uses that parity when it has finished
call e - 2; its flag of call e - 1 proves that. Hence every rank sends and awaits a flag of every peer in every call,
even if there is nothing to send. A rank may write into its own half after its own call e - 2: it has awaited all puts
into it. Peers have read the lines that they pull in call e - 2 before they send their flag of call e - 1.

Blocks are intervals of *lines*: indices along the dimension in which the plan cuts, in the plan's orientation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.schedules.all_gather import all_gather_gemm
from pblas.matmul.push.schedules.builder import Program, receive_order, send_order
from pblas.matmul.push.schedules.operations import PARTS, Op, Signal, Wait
from pblas.matmul.push.schedules.reduce import gemm_all_reduce, gemm_reduce_scatter


def schedule(plan: ProductPlan, rank: int) -> tuple[Op, ...]:
    """The operations of `rank` in one execution of a plan."""
    program = Program()
    _SCHEDULES[type(plan)](program, plan, rank)
    return tuple(program.ops)


_SCHEDULES: dict[type[ProductPlan], Callable[[Program, Any, int], None]] = {
    AllGatherGemm: all_gather_gemm,
    GemmReduceScatter: gemm_reduce_scatter,
    GemmAllReduce: gemm_all_reduce,
}


def handshake(rank: int, nprocs: int) -> tuple[Op, ...]:
    """A call in which nothing moves (alpha or K is 0): ranks still exchange the flags that separate the parities."""
    program = Program()
    program.add(Signal("main", tuple(send_order(rank, nprocs)), PARTS))
    program.add(Wait("main", PARTS, tuple(receive_order(rank, nprocs))))
    return tuple(program.ops)
