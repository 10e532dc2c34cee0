"""Who says whether an episode was a success, and what a vision-language model that does may be told."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Success(Enum):
    """Who judges episodes: the emulator, a function of yours (``predicate``), or a model (``judge``)."""

    environment = "environment"
    predicate = "predicate"
    judge = "judge"


@dataclass
class JudgeSettings:
    """A vision-language model behind any endpoint that speaks OpenAI's chat completions. It is asked by the host."""

    model: str = "gpt-4.1-mini"
    base_url: str | None = None
    """null: OpenAI; vLLM: http://machine:8000/v1; Gemini: https://generativelanguage.googleapis.com/v1beta/openai/"""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the key. A server without keys needs none (empty string)."""
    prompt: str = ""
    """Your own question, with ``{instruction}`` and ``{actions}`` where these belong; empty: a general one."""
    screenshots: int = 2
    """How many of the last screenshots it sees."""
    parallel: int = 4
    """Requests at the same time."""
    requests_per_minute: float = 0.0
    """Requests are spread so that there are not more; 0: no limit."""
    answer_s: float = 60.0
    """Longest wait for one answer."""
    readings: int = 2
    """An answer without a verdict is asked for this often in all, and then counts as no success."""
    outage_s: float = 3600.0
    """An endpoint that is down, busy or over its quota is asked again and again for this long before the run ends."""
    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    """Further parts of the request, as the endpoint knows them (``temperature``, ``max_completion_tokens``)."""
    usd_per_million_in: float = 0.0
    """Price of a million input tokens, for the figures of cost …"""
    usd_per_million_out: float = 0.0
    """… and of output tokens."""
