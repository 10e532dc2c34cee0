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
class AutoUiSettings(AgentSettings):
    """AutoUI, as DigiRL trains it: T5 with the features of a screenshot, which answers in words."""

    name: str = "autoui"
    model: str = MISSING
    """Folder on the host with the checkpoint to begin with: Auto-UI-Base, or one of its form."""
    vision_encoder: str | None = None
    """Folder with BLIP-2, on each machine that acts or learns from screenshots; trajectories may hold their features
    instead."""
    critic_encoder: str | None = None
    """Folder on the host with the text encoder of the value functions, roberta-base say; null: that of the policy."""
    image_features: int = 1408
    """Width of a screenshot's features."""
    previous_actions: int = 1
    """How many of the latest actions the prompt tells; AutoUI was trained with 8, DigiRL with 1."""
    prompt_length: int = 512
    """Tokens; of a longer prompt the end is read."""
    answer_length: int = 128
    """Tokens, at most."""
    temperature: float = 1.0
    """Of sampling; log-probabilities are those of the tempered distribution."""
    dropout: float = 0.0
    """While it is fitted."""


@dataclass
class CustomAgentSettings(AgentSettings):
    """An agent of yours: ``entry_point: my_file:MyAgent`` is called with the emulator's spec and ``kwargs``."""

    name: str = "custom"
    entry_point: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
