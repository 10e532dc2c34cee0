"""The agents that ``agent=NAME`` chooses: one file each, with its settings and how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.emulator.touch_actions import SAID, TOKENS
from digirl_dist.errors import ActionError
from digirl_dist.settings.plugins import AgentSettings
from digirl_dist.types import Json

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
    from digirl_dist.trajectory import Observation


@dataclass
class AgentPlugin(AgentSettings, ABC):
    """Settings of an agent, which build it."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Optional parts of the package that each machine needs on which it acts."""
    learns: ClassVar[bool] = True
    """False for one that only acts."""
    knows_log_prob: ClassVar[bool] = True
    """False for one that may not know how probable its actions are."""

    @abstractmethod
    def build(self, spec: EmulatorSpec) -> AgentFactory:
        """What makes the agent, here and on workers. Raises SettingsError before anything is made."""

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        """The emulator as this agent uses it: in other words, say."""
        return emulator

    def check_action(self, spec: EmulatorSpec, observation: Observation, action: Json) -> None:
        """Raises ActionError for an action that this agent cannot have chosen; it would not know how to learn from it.

        By default, one outside of the emulator's action space.
        """
        spec.actions.check(action)


def check_tokens(action: Json, most: int) -> None:
    """Raises ActionError unless an action tells what was said, in ``most`` tokens at most."""
    tokens = action.get(TOKENS) if isinstance(action, dict) else None
    if not isinstance(tokens, list) or not 0 < len(tokens) <= most or not all(type(each) is int for each in tokens):
        raise ActionError(f"{tokens!r:.200} are not between 1 and {most} tokens, in which the action was written")
    if not isinstance(action.get(SAID, ""), str):
        raise ActionError(f"what was said is {action[SAID]!r:.200} and no text")
