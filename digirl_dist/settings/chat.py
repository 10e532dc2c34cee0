"""Settings of servers that speak OpenAI's chat completions, for the judge and the endpoint agent."""

from dataclasses import dataclass, field
from typing import Any

from digirl_dist.settings.ranges import Amount, Pause, Seconds


@dataclass
class ChatSettings:
    """A model behind a server of chat completions."""

    model: str = "gpt-4.1-mini"
    """Name of the model, as the server knows it."""
    base_url: str | None = None
    """null: OpenAI; vLLM: http://machine:8000/v1; Gemini: https://generativelanguage.googleapis.com/v1beta/openai/"""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the key. A server without keys needs none (empty string)."""
    requests_per_minute: Amount = 0.0
    """Largest rate of requests, which are spread evenly; 0: no limit."""
    answer_s: Seconds = 60.0
    """Longest wait for one answer, in seconds."""
    outage_s: Pause = 3600.0
    """Longest time, in seconds, to retry a server that is down, busy or over its quota."""
    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    """Further keys of the request (``temperature``, ``max_completion_tokens``); null omits one."""
