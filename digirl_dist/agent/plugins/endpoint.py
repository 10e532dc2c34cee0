"""``agent=endpoint``: a chat model behind a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from digirl_dist.agent.plugins import AgentPlugin, Suits
from digirl_dist.settings.chat import ChatSettings
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.ranges import FewOrNone, Pause

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.emulator import EmulatorFactory, EmulatorSpec


@dataclass
class EndpointSettings(ChatSettings, AgentPlugin):
    """A chat model that sees, behind any server that speaks OpenAI's chat completions. It acts and does not learn."""

    extras: ClassVar[tuple[str, ...]] = ("endpoint",)
    suits: ClassVar[Suits] = Suits.screens
    name: str = "endpoint"
    model: str = MISSING
    """Name of the model, as the server knows it."""
    outage_s: Pause = 120.0
    """A server that is down, busy or over its quota is asked again and again for this long; then the episode is given
    up, and runs again."""
    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0, "max_tokens": 256, "logprobs": True})
    """Further parts of the request, as the server knows them; null leaves one out. With ``logprobs``, trajectories have
    the log-probabilities that the server tells."""
    seed: bool = True
    """Send with each request a seed that follows from the ticket; false for servers that refuse it."""
    system: str = ""
    """Your own rules for the model; empty: general ones that ask for one line of JSON."""
    previous_actions: FewOrNone = 3
    """How many of the latest actions the prompt tells."""

    @property
    def learns(self) -> bool:
        return False

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        with extra_needed("agent=endpoint", "openai", "endpoint"):
            from digirl_dist.agent.endpoint import EndpointAgent
        return partial(EndpointAgent, self, spec)

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        from digirl_dist.agent.dialogue import task_text
        from digirl_dist.emulator.prompted import PromptedEmulator

        return partial(PromptedEmulator, emulator, self.previous_actions, task_text)
