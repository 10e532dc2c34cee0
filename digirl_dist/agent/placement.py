"""Puts an agent on a device."""

from __future__ import annotations

from dataclasses import dataclass

from digirl_dist.agent import Agent, AgentFactory


@dataclass(frozen=True)
class Placed:
    """An AgentFactory whose agents live on ``device``. An agent that is no torch module stays where it is."""

    factory: AgentFactory
    device: str

    def __call__(self) -> Agent:
        from torch import nn

        agent = self.factory()
        if isinstance(agent, nn.Module):
            agent.to(self.device)
        return agent
