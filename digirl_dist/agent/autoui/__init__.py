"""The AutoUI agent, on transformers."""

from functools import partial

from digirl_dist.agent import AgentFactory
from digirl_dist.agent.autoui.agent import AutoUiAgent
from digirl_dist.agent.autoui.encoders import ScreenEncoder, TextEncoder
from digirl_dist.agent.autoui.pretrained import Pretrained
from digirl_dist.agent.plugins.autoui import AutoUiSettings
from digirl_dist.emulator import EmulatorSpec

__all__ = ["AutoUiAgent", "autoui_factory"]


def autoui_factory(settings: AutoUiSettings, spec: EmulatorSpec) -> AgentFactory:
    """Builds agents that share their frozen encoders. Raises SettingsError for a folder that cannot be used."""
    pretrained = Pretrained.open(settings.model, settings.image_features, settings.dropout)
    screens = ScreenEncoder(settings.vision_encoder, settings.image_features)
    critic = None if settings.critic_encoder is None else TextEncoder(settings.critic_encoder)
    return partial(AutoUiAgent, settings, spec, pretrained, screens, critic)
