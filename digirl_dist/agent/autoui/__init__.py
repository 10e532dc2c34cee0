"""The AutoUI agent, on transformers."""

from digirl_dist.agent.autoui.agent import AutoUiAgent
from digirl_dist.agent.autoui.encoders import ScreenEncoder, TextEncoder
from digirl_dist.agent.autoui.model import Pretrained

__all__ = ["AutoUiAgent", "Pretrained", "ScreenEncoder", "TextEncoder"]
