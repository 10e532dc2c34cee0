"""``agent=vlm``: a chat model of Hugging Face that sees, with LoRA."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.plugins import WritingAgentPlugin, check_tokens
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import in_short
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.paths import Elsewhere, expanded
from digirl_dist.settings.plugins import values
from digirl_dist.settings.ranges import Few, Positive, Share
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json

_HUB_S = 10.0


class ModelDtype(Enum):
    """In which numbers a frozen model is kept; ``auto``: as it was saved."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass
class LoraSettings:
    """The low-rank weights that learn (arXiv 2106.09685)."""

    r: Few = 16
    """Rank of the low-rank weights."""
    alpha: Few = 32
    """The low-rank weights are scaled by alpha / r."""
    dropout: Share = expert(0.0)
    """Dropout of the input of the low-rank weights while imitating: with filtered_bc, digirl, and the imitated steps of
    grpo_replay. Ratios of grpo and ppo are computed without."""
    targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    """Layers that get low-rank weights, by the ends of their names; ``[all-linear]``: all of the model's but the
    last."""
    exclude: str | None = expert(None)
    """Regular expression for the whole names of layers that get none, such as ``.*vision_tower.*``."""


@dataclass
class VlmSettings(WritingAgentPlugin):
    """Any vision-language chat model of Hugging Face (image-text-to-text), with LoRA."""

    extras: ClassVar[tuple[str, ...]] = ("vlm",)
    name: str = "vlm"
    model: Elsewhere = MISSING
    """A folder, or a name on the hub. The host loads it, and so does each worker that acts itself."""
    lora: LoraSettings = field(default_factory=LoraSettings)
    dtype: ModelDtype = ModelDtype.auto
    """Type of the model's frozen weights. The low-rank weights are always float32."""
    max_new_tokens: Few = 64
    """Longest answer in tokens."""
    temperature: Positive = 1.0
    """Temperature of sampling; log-probabilities are those of the tempered distribution."""
    rows_at_once: Few = expert(8)
    """Screens that pass through the model together, where nothing is learned."""
    gradient_checkpointing: bool = False
    """Recompute each layer's activations in the backward pass instead of keeping them: less memory, more time."""
    processor: dict[str, Any] = expert({})
    """Further arguments of the model's processor, such as ``max_pixels``."""

    def reach(self) -> None:
        """Raises SettingsError for a model that is no folder here, not in this machine's cache, and not on the hub."""
        with extra_needed("agent=vlm", "transformers and peft", "vlm"):
            from huggingface_hub import model_info, try_to_load_from_cache
        folder = expanded(self.model, "agent.model")
        try:
            if not folder.is_dir() and not try_to_load_from_cache(self.model, "config.json"):
                model_info(self.model, timeout=_HUB_S)
        except Exception as error:  # its client has many
            why = f"is no folder of this machine, and the hub is of no help: {in_short(error, 300)}"
            raise SettingsError(f"agent.model={self.model} {why}") from error

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        with extra_needed("agent=vlm", "transformers and peft", "vlm"):
            from digirl_dist.agent.vlm import VlmAgent
        given = {**values(self), "lora": asdict(self.lora), "dtype": self.dtype.value}
        for of_wrapper in ("previous_actions", "labels"):
            del given[of_wrapper]
        return partial(VlmAgent, spec, **given)

    def check_action(self, spec: EmulatorSpec, observation: Observation, action: Json) -> None:
        super().check_action(spec, observation, action)
        check_tokens(action, self.max_new_tokens)
