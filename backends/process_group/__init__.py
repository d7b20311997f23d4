"""Ranks of a torch.distributed group: the only place that imports torch.distributed."""

from pblas.backends.process_group.rendezvous import peers_of as peers_of

__all__ = ["peers_of"]
