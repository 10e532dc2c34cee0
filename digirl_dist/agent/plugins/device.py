"""``agent=device``: a small policy from screenshot and instruction to a kind of action and a touch point."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.agent.plugins import AgentPlugin, Suits
from digirl_dist.errors import SettingsError
from digirl_dist.settings.ranges import Amount, Buckets, Few, FewOrNone, Pixels, Width

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
    from digirl_dist.trajectory import Observation
    from digirl_dist.types import Json


@dataclass
class DeviceAgentSettings(AgentPlugin):
    """Small policy from screenshot and instruction to action type and touch point."""

    suits: ClassVar[Suits] = Suits.screens
    short_side: Pixels = 80
    """Screenshots are scaled so that their short side has this many pixels; a touch cell is 8 x 8 of them."""
    width: Width = 64
    """Channels of the network."""
    heads: Few = 4
    """Places the policy looks at together when it decides between tapping, typing, swiping and so on."""
    word_buckets: Buckets = 2048
    """Words are hashed into this many embeddings."""
    actions: list[str] = field(default_factory=list)
    """Types of action that it chooses from; empty: those that the emulator names as useful, and typing at a point."""
    memory: FewOrNone = 8
    """How many of its latest actions it knows of; 0: none. Typing at a point needs one."""
    saliency: Amount = 1.0
    """How much an untrained policy prefers touching where something is drawn: at first, the probability of a cell grows
    with this power of its contrast."""
    reluctance: Amount = 2.0
    """How little an untrained policy repeats what it did on the very same screen: at first, by this many nats."""
    labels: bool = True
    """Whether it reads the names of what is on the screen, where the emulator has them (MiniWoB++; your own with
    ``labels()``), beside the picture …"""
    naming: Amount = 4.0
    """… and how much an untrained policy prefers touching what the instruction names: by this many nats."""
    shift: FewOrNone = 0
    """While it is fitted, pictures and the taps on them move by up to this many pixels, so that a label is known
    wherever it lies."""

    name: str = "device"

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if self.memory < 0:
            raise SettingsError(f"agent.memory must be at least 0, not {self.memory}")
        if "type_at" in self.actions and not self.memory:
            raise SettingsError("agent.actions has type_at, which needs agent.memory of at least 1; or choose type")

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        from digirl_dist.agent.device import DevicePolicy

        return partial(DevicePolicy, self, spec)

    def check_action(self, spec: EmulatorSpec, observation: Observation, action: Json) -> None:
        from digirl_dist.agent.touch import TouchGrid
        from digirl_dist.agent.words import quoted
        from digirl_dist.emulator.remembered import recalled

        TouchGrid(1, 1).choice(action, quoted(recalled(observation.text).instruction))

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        from digirl_dist.emulator.remembered import RememberedEmulator

        wanted = self.memory or self.labels
        return partial(RememberedEmulator, emulator, self.memory, self.labels) if wanted else emulator
