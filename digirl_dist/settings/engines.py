"""Settings of engines: what computes the host's actions with ``inference=host``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.judging import ChatSettings
from digirl_dist.settings.paths import Elsewhere
from digirl_dist.settings.ranges import Pause, Positive, Seconds


@dataclass
class EngineSettings:
    """What every engine has."""

    name: str = MISSING


@dataclass
class TransformersEngineSettings(EngineSettings):
    """The agent itself acts, in the host's policy process."""

    name: str = "transformers"


class EngineWeights(Enum):
    """Which weights an inference server is given."""

    lora = "lora"
    full = "full"


@dataclass
class OpenAIEngineSettings(EngineSettings):
    """An inference server acts: vLLM or SGLang, which loads new weights while running."""

    name: str = "openai"
    url: Any = MISSING
    """The server's OpenAI-compatible address, such as http://127.0.0.1:8000/v1; a list of several with the same model,
    which share the requests. If one is lost, the others go on."""
    key_variable: str = ""
    """Name of the environment variable with the server's key; empty: it needs none."""
    weights: EngineWeights = EngineWeights.lora
    """What the server loads: the low-rank weights, or all of the model's with these added (``full``), for models and
    layers that its LoRA does not know. ``full`` writes the whole model for each version, and needs ``ahead=0``."""
    adapters: Elsewhere | None = None
    """Folder through which the server gets the weights; it must see it under the same path. null:
    ``save_path/adapters``."""
    answer_s: Seconds = expert(60.0)
    """Longest wait for one answer, or for the loading of one policy version, in seconds."""
    outage_s: Pause = expert(120.0)
    """Longest time, in seconds, to retry servers that are all down or busy; then the episode runs again."""
    sleep: bool = False
    """Let the servers release memory of their GPUs while the host learns (vLLM: weights and cache; SGLang: cache)."""
    tolerance: Positive = expert(0.02)
    """Largest difference, in nats per token, between the server's log-probabilities and those of ``agent.model`` at
    which a run starts. Differences above 0.001 nats per answer are reported."""

    def __post_init__(self) -> None:
        """Raises SettingsError for an address that is none or has a password in it, and for one that is there twice."""
        if self.url == MISSING:
            return
        for url in self.urls:
            refuse_address("engine.url", url, "engine.key_variable")
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise SettingsError(f"engine.url={self.url} names no server, or one twice")

    @property
    def urls(self) -> list[str]:
        """The addresses of all servers."""
        return [str(url) for url in self.url] if isinstance(self.url, list) else [str(self.url)]

    @property
    def servers(self) -> list[OpenAIEngineSettings]:
        """The settings of each server. One of several is not waited for: the others answer instead."""
        outage_s = self.outage_s if len(self.urls) == 1 else 0.0
        return [replace(self, url=url, outage_s=outage_s) for url in self.urls]

    @property
    def chat(self) -> ChatSettings:
        """The same as for any server of chat completions; the model is named by each request."""
        return ChatSettings(
            model="the server of engine.url",
            base_url=self.url,
            key_variable=self.key_variable,
            answer_s=self.answer_s,
            outage_s=self.outage_s,
            request={},
        )


def refuse_address(name: str, url: str, key_variable: str = "key_variable") -> None:
    """Raises SettingsError for an address that is none or has a password in it; messages call it ``name``."""
    if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", url):
        raise SettingsError(
            f"{name} is no plain address such as http://127.0.0.1:8000/v1; a key goes into the environment "
            f"variable that {key_variable} names"
        )
