"""The agents that ``agent=NAME`` chooses: one file each, with its settings and how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.settings.plugins import AgentSettings

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.emulator import EmulatorFactory, EmulatorSpec


@dataclass
class AgentPlugin(AgentSettings, ABC):
    """Settings of an agent, which build it."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Optional parts of the package that each machine needs on which it acts."""
    learns: ClassVar[bool] = True
    """False for one that only acts."""

    @abstractmethod
    def build(self, spec: EmulatorSpec) -> AgentFactory:
        """What makes the agent, here and on workers. Raises SettingsError before anything is made."""

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        """The emulator as this agent uses it: in other words, say."""
        return emulator
