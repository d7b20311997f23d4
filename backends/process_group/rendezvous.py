"""Check of the group that a caller passes, before its ranks meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.process_group.transport import GroupTransport


def peers_of(group: object, operation: str, timeout: float) -> GroupTransport:
    """The ranks of a torch.distributed group; sends no message (local)."""
    try:
        import torch.distributed as dist
    except ImportError as caught:
        raise errors.BackendError(f"{operation}: process_group needs torch: {caught}. pip install torch") from None
    if not dist.is_available():
        raise errors.BackendError(f"{operation}: process_group needs a build of torch with torch.distributed")
    if not isinstance(group, dist.ProcessGroup):
        is_outside = group is dist.GroupMember.NON_GROUP_MEMBER
        raise errors.ArgumentError(
            f"{operation}: process_group must be a group of torch.distributed that this rank is in, such as "
            f"torch.distributed.group.WORLD after init_process_group('gloo'), got "
            f"{'a group without this rank' if is_outside else type(group).__name__}"
        )
    from pblas.backends.process_group.transport import GroupTransport, check_gloo

    check_gloo(group, f"{operation}: process_group")
    return GroupTransport(group, timeout)
