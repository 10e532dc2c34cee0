"""What an agent may be told."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.chat import ChatSettings
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


class ModelDtype(Enum):
    """In which numbers a frozen model is kept; ``auto``: as it was saved."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass
class LoraSettings:
    """The low-rank weights that learn (arXiv 2106.09685)."""

    r: int = 16
    """Their rank."""
    alpha: int = 32
    """They count times alpha / r."""
    dropout: float = 0.0
    """Of what goes into them, while they are fitted."""
    targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    """The layers that get them, by the ends of their names; ``[all-linear]``: all of the model's but the last."""


@dataclass
class VlmSettings(AgentSettings):
    """Any chat model of Hugging Face that sees (image-text-to-text), with LoRA."""

    name: str = "vlm"
    model: str = MISSING
    """A folder, or a name on the hub. It is loaded on the host, and on each worker that acts itself."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    dtype: ModelDtype = ModelDtype.auto
    """The low-rank weights are float32 in any case."""
    max_new_tokens: int = 64
    """Of one answer."""
    temperature: float = 1.0
    """Of sampling; log-probabilities are those of the tempered distribution."""
    system: str = ""
    """Your own rules for the model; empty: general ones that ask for one line of JSON."""
    previous_actions: int = 3
    """How many of the latest actions the prompt tells."""
    rows_at_once: int = 8
    """Screens that go through the model together, where nothing is learned."""
    processor: dict[str, Any] = field(default_factory=dict)
    """Further arguments of its processor, such as ``max_pixels``."""

    def __post_init__(self) -> None:
        """Raises SettingsError."""
        if self.temperature <= 0:
            raise SettingsError(f"agent.temperature={self.temperature} must be above 0; 0.01 is as good as none")
        if self.max_new_tokens < 1 or self.rows_at_once < 1:
            raise SettingsError("agent.max_new_tokens and agent.rows_at_once must be at least 1")


@dataclass
class EndpointSettings(ChatSettings, AgentSettings):
    """A chat model that sees, behind any server that speaks OpenAI's chat completions. It acts and does not learn."""

    name: str = "endpoint"
    model: str = MISSING
    outage_s: float = 120.0
    """A server that is down, busy or over its quota is asked again and again for this long; then the episode is given
    up, and runs again."""
    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 1.0, "max_tokens": 256, "logprobs": True})
    """Further parts of the request, as the server knows them; null leaves one out. With ``logprobs``, trajectories have
    the log-probabilities that the server tells."""
    seed: bool = True
    """Send with each request a seed that follows from the ticket; false for servers that refuse it."""
    system: str = ""
    """Your own rules for the model; empty: general ones that ask for one line of JSON."""
    previous_actions: int = 3
    """How many of the latest actions the prompt tells."""


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
