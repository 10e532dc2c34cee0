"""The agents that ``agent=NAME`` chooses: one file each, with its settings and how it is built."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ClassVar

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.answers import Coordinates
from digirl_dist.emulator import DeviceActions, EmulatorFactory, EmulatorSpec
from digirl_dist.emulator.touch_actions import SAID, TOKENS, UNREAD
from digirl_dist.errors import ActionError
from digirl_dist.settings.expert import expert
from digirl_dist.settings.judging import ChatSettings
from digirl_dist.settings.plugins import AgentSettings
from digirl_dist.settings.ranges import FewOrNone, Screenshots
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json


class Suits(Enum):
    """For which emulators an agent is made."""

    all = "any emulator"
    touch = "touch actions"
    screens = "screenshots and touch actions"
    spaces = "vectors or pictures, and actions other than touches"

    def fits(self, spec: EmulatorSpec) -> bool:
        touches, is_seen = isinstance(spec.actions, DeviceActions), spec.image_size is not None
        match self:
            case Suits.all:
                return True
            case Suits.touch:
                return touches
            case Suits.screens:
                return touches and is_seen
            case Suits.spaces:
                return not touches and (is_seen or spec.vector_size > 0)


@dataclass
class AgentPlugin(AgentSettings, ABC):
    """Settings of an agent, which build it."""

    extras: ClassVar[tuple[str, ...]] = ()
    """Optional parts of the package that each machine needs on which it acts."""
    suits: ClassVar[Suits] = Suits.all

    @property
    def learns(self) -> bool:
        """False for one that only acts, and may not know how probable its actions are."""
        return True

    @property
    def chat(self) -> ChatSettings | None:
        """The server that it asks for actions, if it does not act itself: the host then needs no process for it."""
        return None

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


@dataclass
class WritingAgentPlugin(AgentPlugin, ABC):
    """Settings of a chat model: what it is asked, and how it writes."""

    suits: ClassVar[Suits] = Suits.screens
    coordinates: Coordinates = Coordinates.shares
    """How the model writes places: UI-TARS 1.5 and Qwen2.5-VL in pixels, Qwen3-VL, OS-Atlas, AutoGLM and CogAgent in
    thousandths. With ``agent=endpoint``, pixels are those of the picture that is sent: its server must not scale it."""
    system: str = ""
    """Your own rules for the model; empty: general ones that ask for one line of JSON."""
    previous_actions: FewOrNone = expert(3)
    """Number of the model's latest answers in the prompt, thoughts included."""
    screenshots: Screenshots = expert(1)
    """Number of latest screenshots in the prompt, the present one included."""
    labels: bool = expert(False)
    """List what is on the screen, numbered, for emulators that name it; the model may tap a number."""

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        from digirl_dist.agent.prompts import task_text
        from digirl_dist.emulator.remembered import PromptedEmulator

        return partial(PromptedEmulator, emulator, self.previous_actions, task_text, self.labels, self.screenshots - 1)


def check_tokens(action: Json, most: int) -> None:
    """Raises ActionError unless an action tells what was said, in ``most`` tokens at most."""
    tokens = action.get(TOKENS) if isinstance(action, dict) else None
    if not isinstance(tokens, list) or not 0 < len(tokens) <= most or not all(type(each) is int for each in tokens):
        raise ActionError(f"{tokens!r:.200} are not between 1 and {most} tokens, in which the action was written")
    for remark in (SAID, UNREAD):
        if not isinstance(action.get(remark, ""), str):
            raise ActionError(f"the remark {remark} is {action[remark]!r:.200} and no text")
