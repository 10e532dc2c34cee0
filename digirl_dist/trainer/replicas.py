"""Checks the weights that an update leaves: they are numbers, and the same on ranks which learn together."""

from __future__ import annotations

import torch

from digirl_dist.errors import TrainingError
from digirl_dist.parallel.group import Group
from digirl_dist.storage.checkpoint import State, describe
from digirl_dist.storage.digest import digest


def check_replicas(group: Group, weights: State) -> None:
    """Raises PeerError naming the ranks whose ``weights`` differ from rank 0's. Every rank must call it."""
    tensors = describe({name: tensor.cpu() for name, tensor in weights.items()})
    group.check_in_step(digest(repr(sorted(tensors.items())).encode()).encode())


def refuse_broken(weights: State) -> None:
    """Raises TrainingError for a weight that is no number or infinite, before a checkpoint has it."""
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"the weight {name} is not finite; lower the learning rate")
