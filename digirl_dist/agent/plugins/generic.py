"""``agent=generic``: a small policy for Gymnasium's Discrete and Box actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.plugins import AgentPlugin, Suits
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.settings.expert import expert
from digirl_dist.settings.plugins import values
from digirl_dist.settings.ranges import Pixels, Width


@dataclass
class GenericAgentSettings(AgentPlugin):
    """Small policy for Gymnasium spaces: vectors or images in, Discrete or Box actions out."""

    suits: ClassVar[Suits] = Suits.spaces
    name: str = "generic"
    width: Width = expert(64)
    """Units of the hidden layers."""
    short_side: Pixels = expert(80)
    """Pictures are scaled so that their short side has this many pixels."""

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        from digirl_dist.agent.generic import GenericPolicy

        return partial(GenericPolicy, spec, **values(self))
