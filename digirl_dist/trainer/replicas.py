"""Checks that ranks which learn together hold the same weights."""

from __future__ import annotations

from digirl_dist.parallel.group import Group
from digirl_dist.storage.checkpoint import State, describe
from digirl_dist.storage.digest import digest


def check_replicas(group: Group, weights: State) -> None:
    """Raises PeerError naming the ranks whose ``weights`` differ from rank 0's. Every rank must call it."""
    tensors = describe({name: tensor.cpu() for name, tensor in weights.items()})
    group.check_in_step(digest(repr(sorted(tensors.items())).encode()).encode())
