"""Names what to change where an update does not fit into an accelerator's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from digirl_dist.errors import TrainingError
from digirl_dist.plain_text import in_short

_REMEDY = (
    "lower batch_size of the algorithm; for agent=vlm set agent.gradient_checkpointing=true, agent.dtype=bfloat16 or a "
    "smaller agent.rows_at_once; or spread the agent over several GPUs with trainer.shard"
)


@contextmanager
def naming_too_little_memory() -> Iterator[None]:
    """Raises TrainingError, with the remedy, in place of what torch or JAX raises where a device's memory is full."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _full(error) from error
    except RuntimeError as error:
        if _is_of_jax(error) and "RESOURCE_EXHAUSTED" in str(error):
            raise _full(error) from error
        raise


def _full(error: Exception) -> TrainingError:
    return TrainingError(f"the device has too little memory for the update ({in_short(error)}); {_REMEDY}")


def _is_of_jax(error: Exception) -> bool:
    jax = sys.modules.get("jax")  # not imported where torch learns
    return jax is not None and isinstance(error, jax.errors.JaxRuntimeError)
