"""``agent=device``: a small policy from screenshot and instruction to a kind of action and a touch point."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.plugins import AgentPlugin, Suits
from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import expert
from digirl_dist.settings.plugins import values
from digirl_dist.settings.ranges import Amount, FewOrNone, Pixels, Width
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json


@dataclass
class DeviceAgentSettings(AgentPlugin):
    """Small policy: screenshot and instruction in, type of action and touch point out."""

    suits: ClassVar[Suits] = Suits.screens
    short_side: Pixels = expert(80)
    """Screenshots are scaled so that their short side has this many pixels; a touch cell is 8 x 8 of them."""
    width: Width = expert(64)
    """Channels of the network."""
    actions: list[str] = field(default_factory=list)
    """Types of action to choose from; empty: those that the emulator lists as useful, and typing at a point."""
    memory: FewOrNone = 8
    """Number of its latest actions that the policy sees; 0: none. Typing at a point needs one."""
    saliency: Amount = expert(1.0)
    """How strongly an untrained policy prefers to touch where something is drawn: at first, a cell's probability grows
    with this power of its contrast."""
    reluctance: Amount = expert(2.0)
    """How reluctant an untrained policy is to repeat an action on the same screen: at first, by this many nats."""
    labels: bool = True
    """Whether the policy also reads names and boxes of what is on the screen, where the emulator has them (MiniWoB++,
    Android, your own with ``labels()``). It can then touch each of them, and type each name and each word of the
    instruction. False: it sees pixels alone, and types what the instruction quotes."""
    context: bool = expert(True)
    """Whether where to touch depends also on what is seen elsewhere: a sign that says which button is right.
    Without it the demo phone is learned sooner, and tasks of several steps worse."""
    shift: FewOrNone = 0
    """While fitting, pictures and the taps on them move by up to this many pixels, so that the policy knows a label at
    any position."""

    name: str = "device"

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if self.memory < 0:
            raise SettingsError(f"agent.memory must be at least 0, not {self.memory}")
        if "type_at" in self.actions and not self.memory:
            raise SettingsError("agent.actions has type_at, which needs agent.memory of at least 1; or choose type")

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        from digirl_dist.agent.device.policy import DevicePolicy

        return partial(DevicePolicy, spec, **values(self))

    def check_action(self, spec: EmulatorSpec, observation: Observation, action: Json) -> None:
        from digirl_dist.agent.device.reading import read
        from digirl_dist.agent.device.touch import TouchGrid

        TouchGrid(1, 1).choice(action, read(observation.text, self.labels and spec.labels).texts)

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        from digirl_dist.emulator.remembered import RememberedEmulator

        wanted = self.memory or self.labels
        return partial(RememberedEmulator, emulator, self.memory, self.labels) if wanted else emulator
