"""``agent=endpoint``: a chat model behind a server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.plugins import WritingAgentPlugin
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.judging import ChatSettings
from digirl_dist.settings.ranges import Pause


@dataclass
class EndpointSettings(ChatSettings, WritingAgentPlugin):
    """A vision-language chat model behind any server that speaks OpenAI's chat completions. It acts but does not
    learn."""

    extras: ClassVar[tuple[str, ...]] = ("endpoint",)
    name: str = "endpoint"
    model: str = MISSING
    """Name of the model, as the server knows it."""
    outage_s: Pause = expert(120.0)
    """Longest time, in seconds, to retry a server that is down, busy or over its quota; then the episode is abandoned
    and runs again."""
    request: dict[str, Any] = expert({"temperature": 1.0, "max_tokens": 256, "logprobs": True})
    """Further keys of the request, as the server knows them; null omits one. With ``logprobs``, trajectories have the
    server's log-probabilities."""
    seed: bool = expert(True)
    """Send a seed that follows from the ticket with each request; false for servers that refuse it."""

    @property
    def learns(self) -> bool:
        return False

    @property
    def chat(self) -> ChatSettings:
        return self

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        with extra_needed("agent=endpoint", "httpx", "endpoint"):
            from digirl_dist.agent.endpoint import EndpointAgent
        return partial(
            EndpointAgent, self, self.system, self.seed, coordinates=self.coordinates, earlier=self.screenshots - 1
        )
