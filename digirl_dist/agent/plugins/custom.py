"""``agent=custom``: a class of the user's."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from digirl_dist.agent import Agent, AgentFactory
from digirl_dist.agent.contract import MEMBERS, acts_alone, completed
from digirl_dist.agent.plugins import AgentPlugin
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.settings.expert import MISSING
from digirl_dist.user_code.entry_point import construct, load_callable, load_entry_point


@dataclass
class CustomAgentSettings(AgentPlugin):
    """Your own agent: ``entry_point: my_file:MyAgent`` is called with the emulator's spec and ``kwargs``. A class that
    has only ``act`` acts but does not learn."""

    name: str = "custom"
    entry_point: str = MISSING
    """Your class, ``my_file:MyAgent``."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of your class."""

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        kind: Any = load_callable(self.entry_point, "agent.entry_point", [spec], self.kwargs)
        return partial(construct, completed(kind), Agent, MEMBERS, spec, **self.kwargs)

    @property
    def learns(self) -> bool:
        """A class that has ``act`` and nothing to learn with is a policy without weights."""
        # ``Fleet`` has an object, and no entry point.
        return not self.entry_point or not acts_alone(load_entry_point(self.entry_point, "agent.entry_point"))
