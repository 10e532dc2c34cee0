"""The vlm agent: chat models of transformers that see, with LoRA of peft."""

from digirl_dist.agent.vlm.agent import VlmAgent

__all__ = ["VlmAgent"]
