"""Where an agent lives, and the weights that it begins with."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.agent import Agent, AgentFactory
from digirl_dist.errors import CheckpointError, DeviceError, StateError
from digirl_dist.parallel.compute_device import compute_exactly
from digirl_dist.plain_text import in_short
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.start import DigirlCheckpoint
from digirl_dist.user_code.entry_point import load_state


@dataclass(frozen=True)
class Placed:
    """An AgentFactory whose agents live on ``device``. An agent that is no torch module stays where it is."""

    factory: AgentFactory
    device: str

    def __call__(self) -> Agent:
        """Raises DeviceError where the device has too little memory for the agent."""
        from torch import OutOfMemoryError, nn

        compute_exactly(self.device)
        agent = self.factory()
        try:
            if isinstance(agent, nn.Module):
                agent.to(self.device)
        except OutOfMemoryError as error:
            raise DeviceError(f"{self.device} has too little memory for the agent: {in_short(error)}") from error
        return agent


@dataclass(frozen=True)
class StartedFrom:
    """An AgentFactory whose agents begin with the policy of a checkpoint."""

    factory: AgentFactory
    checkpoint: Checkpoint | DigirlCheckpoint

    def __call__(self) -> Agent:
        """Raises CheckpointError for a policy of another shape."""
        agent = self.factory()
        try:
            load_state(agent, self.checkpoint.state())
        except (StateError, KeyError) as error:
            raise CheckpointError(
                f"start_from={self.checkpoint.folder} does not fit the configured agent; use the agent's settings of "
                f"the run that it comes from ({in_short(error)} …)"
            ) from error
        return agent
