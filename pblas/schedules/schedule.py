"""The push protocol: what one rank does in one execution of a plan, in order, on lanes.

A lane is a stream: its operations run one after the other, lanes run beside each other, and `after` names operations of
other lanes that must have finished. Data is pushed: `Put` copies a block into a peer's workspace, and the `Signal`
behind it on the same lane says so; the peer's `Wait` waits for the flag and resets it. Only all-reduces pull: in two
shots a kernel reads partial products in the workspaces of the peers, and by tiles `Get` and `Gets` copy finished lines
from there. Reading the operations in issue order, one at a time, is a valid execution too, which is how CPUs run them.

The workspace has two parities that alternate from call to call, so that no call starts with a barrier: a rank writes
into parity e % 2 of a peer in call e, which the peer has left behind when it finished call e - 2, and the flag that the
peer sent in call e - 1 proves that. Hence every rank sends and awaits a flag of every peer in every call, also when
there is nothing to send. Its own half a rank may write when it has itself finished call e - 2: it has awaited all that
was put there; and what peers pull in that call they have read when they send their flag of call e - 1.

Blocks are intervals of *lines*: indices along the dimension in which the plan cuts, in the plan's orientation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.plans.plan import ProductPlan
from pblas.schedules.all_gather import all_gather_gemm
from pblas.schedules.builder import Program, receive_order, send_order
from pblas.schedules.operations import PARTS, Op, Signal, Wait
from pblas.schedules.reduce import gemm_all_reduce, gemm_reduce_scatter


def schedule(plan: ProductPlan, rank: int) -> tuple[Op, ...]:
    """What `rank` does in one execution of a plan.

    Args:
        plan: an AllGatherGemm, GemmReduceScatter or GemmAllReduce with an algorithm (global).
        rank: of 0..nprocs-1 (local).
    """
    program = Program()
    _SCHEDULES[type(plan)](program, plan, rank)
    return tuple(program.ops)


_SCHEDULES: dict[type[ProductPlan], Callable[[Program, Any, int], None]] = {
    AllGatherGemm: all_gather_gemm,
    GemmReduceScatter: gemm_reduce_scatter,
    GemmAllReduce: gemm_all_reduce,
}


def handshake(rank: int, nprocs: int) -> tuple[Op, ...]:
    """A call in which nothing moves (alpha or K is 0): the flags that keep the parities apart are sent all the same."""
    program = Program()
    program.add(Signal("main", tuple(send_order(rank, nprocs)), PARTS))
    program.add(Wait("main", PARTS, tuple(receive_order(rank, nprocs))))
    return tuple(program.ops)
