"""How any server that speaks OpenAI's chat completions is reached: the judge, and the endpoint agent."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ChatSettings:
    """A model behind such a server."""

    model: str = "gpt-4.1-mini"
    base_url: str | None = None
    """null: OpenAI; vLLM: http://machine:8000/v1; Gemini: https://generativelanguage.googleapis.com/v1beta/openai/"""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable with the key. A server without keys needs none (empty string)."""
    requests_per_minute: float = 0.0
    """Requests are spread so that there are not more; 0: no limit."""
    answer_s: float = 60.0
    """Longest wait for one answer."""
    outage_s: float = 3600.0
    """A server that is down, busy or over its quota is asked again and again for this long."""
    request: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.0})
    """Further parts of the request, as the server knows them (``temperature``, ``max_completion_tokens``); null leaves
    one out."""
