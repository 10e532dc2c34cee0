"""``agent=autoui``: AutoUI, as DigiRL trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from digirl_dist.agent.plugins import AgentPlugin, Suits, check_tokens
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.extras import extra_needed
from digirl_dist.settings.paths import Elsewhere, Folder
from digirl_dist.settings.ranges import Few, FewOrNone, Positive, Share

if TYPE_CHECKING:
    from digirl_dist.agent import AgentFactory
    from digirl_dist.emulator import EmulatorFactory, EmulatorSpec
    from digirl_dist.emulator.remembered import Past
    from digirl_dist.trajectory import Observation
    from digirl_dist.types import Json


@dataclass
class AutoUiSettings(AgentPlugin):
    """AutoUI, as DigiRL trains it: T5 with the features of a screenshot, which answers in words."""

    extras: ClassVar[tuple[str, ...]] = ("autoui",)
    suits: ClassVar[Suits] = Suits.touch
    name: str = "autoui"
    model: Folder = MISSING
    """Folder on the host with the checkpoint to start from: Auto-UI-Base, or one of the same form."""
    vision_encoder: Elsewhere | None = None
    """Folder with BLIP-2 on each machine that acts or learns from screenshots, or its name on the Hugging Face hub. Not
    needed for trajectories that hold features instead of screenshots."""
    critic_encoder: Folder | None = None
    """Folder on the host with the text encoder of the value functions, or its name on the Hugging Face hub, such as
    roberta-base; null: the policy's own."""
    image_features: Few = expert(1408)
    """Width of a screenshot's features."""
    previous_actions: FewOrNone = 1
    """Number of latest actions in the prompt. AutoUI was trained with 8, DigiRL with 1."""
    answer_length: Few = 128
    """Longest answer in tokens."""
    temperature: Positive = 1.0
    """Temperature of sampling; log-probabilities are those of the tempered distribution."""
    dropout: Share = expert(0.0)
    """Dropout while fitting."""

    def build(self, spec: EmulatorSpec) -> AgentFactory:
        with extra_needed("agent=autoui", "transformers", "autoui"):
            from digirl_dist.agent.autoui import AutoUiAgent, Pretrained, ScreenEncoder, TextEncoder
        # All agents of a process share what is frozen.
        pretrained = Pretrained.open(self.model, self.image_features, self.dropout)
        screens = ScreenEncoder(self.vision_encoder, self.image_features)
        critic = None if self.critic_encoder is None else TextEncoder(self.critic_encoder)
        return partial(
            AutoUiAgent,
            pretrained,
            screens,
            critic,
            answer_length=self.answer_length,
            temperature=self.temperature,
        )

    def check_action(self, spec: EmulatorSpec, observation: Observation, action: Json) -> None:
        super().check_action(spec, observation, action)
        check_tokens(action, self.answer_length)

    def wrapped(self, emulator: EmulatorFactory) -> EmulatorFactory:
        from digirl_dist.emulator.remembered import PromptedEmulator

        return partial(PromptedEmulator, emulator, self.previous_actions, _prompt)


def _prompt(task: str, past: Sequence[Past]) -> str:
    from digirl_dist.emulator.aitw import to_prompt

    return to_prompt(task, [each.action for each in past])
