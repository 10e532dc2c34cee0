"""What an agent may be told."""

from dataclasses import dataclass, field
from typing import Any

from digirl_dist.settings.missing import MISSING


@dataclass
class AgentSettings:
    """What every agent has."""

    name: str = MISSING


@dataclass
class DeviceAgentSettings(AgentSettings):
    """Small policy from screenshot and instruction to action type and touch point."""

    short_side: int = 80
    """Screenshots are scaled so that their short side has this many pixels; a touch cell is 8 x 8 of them."""
    width: int = 64
    """Channels of the network."""
    heads: int = 4
    """Places the policy looks at together when it decides between tapping, typing, swiping and so on."""
    word_buckets: int = 2048
    """Words are hashed into this many embeddings."""
    shift: int = 0
    """While it is fitted, pictures and the taps on them move by up to this many pixels, so that a label is known
    wherever it lies."""

    name: str = "device"


@dataclass
class GenericAgentSettings(AgentSettings):
    """Small policy for Gymnasium spaces: vectors or images in, Discrete or Box actions out."""

    name: str = "generic"
    width: int = 64
    """Units of the hidden layers."""
    short_side: int = 80
    """Pictures are scaled so that their short side has this many pixels."""
    initial_std: float = 0.5
    """First standard deviation of Box actions, as a share of half their range."""


@dataclass
class CustomAgentSettings(AgentSettings):
    """An agent of yours: ``entry_point: my_file:MyAgent`` is called with the emulator's spec and ``kwargs``."""

    name: str = "custom"
    entry_point: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
