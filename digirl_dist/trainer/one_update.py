"""What surrounds an update: its random numbers, the remedy where memory is full, and checks of the new weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from digirl_dist.errors import TrainingError
from digirl_dist.parallel.group import Group
from digirl_dist.plain_text import in_short
from digirl_dist.storage.checkpoint import State, describe
from digirl_dist.storage.digest import digest

_REMEDY = (
    "lower rows_at_once of the algorithm (0: all of batch_size); for agent=vlm set agent.gradient_checkpointing=true, "
    "agent.dtype=bfloat16 or a smaller agent.rows_at_once; or spread the agent over several GPUs with trainer=torchrun "
    "and trainer.shard"
)


@contextmanager
def seeded(seed: int, iteration: int) -> Iterator[None]:
    """Reseeds torch's generators for one update, so that an update after a resume draws the same numbers as without.

    Looks at CUDA only where it is in use: a machine may have devices that its driver is too old for.
    """
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(list(range(torch.cuda.device_count())) if in_use else []):
        torch.manual_seed(int(np.random.SeedSequence([seed, iteration]).generate_state(1)[0]))
        yield


@contextmanager
def naming_too_little_memory() -> Iterator[None]:
    """Raises TrainingError, with the remedy, in place of what torch raises where a device's memory is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainingError(
            f"the device has too little memory for the update ({in_short(error)}); {_REMEDY}"
        ) from error


def check_replicas(group: Group, weights: State) -> None:
    """Raises PeerError naming the ranks whose ``weights`` differ from rank 0's. Every rank must call it."""
    tensors = describe({name: tensor.cpu() for name, tensor in weights.items()})
    group.check_in_step(digest(repr(sorted(tensors.items())).encode()).encode())


def refuse_broken(weights: State) -> None:
    """Raises TrainingError for a weight that is no number or infinite, before a checkpoint has it."""
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise TrainingError(f"the weight {name} is not finite; lower the learning rate")
