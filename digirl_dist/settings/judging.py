"""Settings of success: who judges episodes, and the vision-language model that may do so."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from digirl_dist.settings.expert import expert
from digirl_dist.settings.ranges import Amount, Few, FewOrNone, Pause, Processes, Seconds


@dataclass
class ChatSettings:
    """A model behind a server of chat completions."""

    model: str = "gpt-4.1-mini"
    """Name of the model, as the server knows it."""
    base_url: str | None = None
    """null: OpenAI; vLLM: http://machine:8000/v1; Gemini: https://generativelanguage.googleapis.com/v1beta/openai/"""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the key. A server without keys needs none (empty string)."""
    requests_per_minute: Amount = expert(0.0)
    """Largest rate of requests, which are spread evenly; 0: no limit."""
    answer_s: Seconds = expert(60.0)
    """Longest wait for one answer, in seconds."""
    outage_s: Pause = expert(3600.0)
    """Longest time, in seconds, to retry a server that is down, busy or over its quota."""
    request: dict[str, Any] = expert({"temperature": 0.0})
    """Further keys of the request (``temperature``, ``max_completion_tokens``); null omits one."""


class Success(Enum):
    """The judge of episodes: the emulator, your own function (``predicate``), or a model (``judge``)."""

    environment = "environment"
    predicate = "predicate"
    judge = "judge"


@dataclass
class JudgeSettings(ChatSettings):
    """A vision-language model as the judge. The host asks it; an outage beyond ``outage_s`` ends the run."""

    prompt: str = ""
    """Your own prompt, with the placeholders ``{instruction}`` and ``{actions}``; empty: a general one."""
    screenshots: FewOrNone = expert(2)
    """Number of last screenshots that the judge sees."""
    parallel: Processes = expert(4)
    """Largest number of simultaneous requests."""
    readings: Few = expert(2)
    """How often a request is made in total if answers lack a verdict; then the episode counts as no success."""
    usd_per_million_in: Amount = expert(0.0)
    """Price of a million input tokens, for the cost in the metrics."""
    usd_per_million_out: Amount = expert(0.0)
    """Price of a million output tokens, for the cost in the metrics."""
