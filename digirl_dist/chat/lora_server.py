"""A chat server with LoRA weights that it loads while it runs: vLLM's requests and answers, and SGLang's.

Written after the sources of vLLM 0.32.0 and SGLang 0.5.23, whose answers differ in the places of token ids and in the
names of adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from digirl_dist.chat import Messages
from digirl_dist.chat.client import ChatServer, Outage, Sampled, key_of
from digirl_dist.errors import ChatError, ChatRefused, SettingsError
from digirl_dist.plain_text import one_line
from digirl_dist.settings import OpenAIEngineSettings
from digirl_dist.types import Json

_REACH_S = 10.0
_CALLED = {"base_url": "engine.url", "model": "agent.model", "request": "the server's own log"}


class LoraServer:
    """One base model behind one server, with adapters by name. Safe to use from any thread.

    Methods raise ChatRefused if a retry cannot help, ChatAway if the server is away for ``outage_s``.
    """

    def __init__(self, settings: OpenAIEngineSettings, away: Callable[[Outage], None] = lambda _: None) -> None:
        """``away`` is called after each failed attempt. Raises SettingsError where the key is missing."""
        self.url: str = settings.url
        self._away = away
        self._server = ChatServer(settings.chat, key_of(settings.chat, "engine"), "engine", _CALLED)

    def adapters(self) -> list[str]:
        """Returns the names of those that are loaded."""
        return [model.id for model in self._models() if model.parent is not None]

    def load(self, adapter: str, folder: Path) -> None:
        """Loads the adapter that lies in ``folder``, as peft saves it; one of that name that is there already stays."""
        try:
            self._server.call(self._lora("load"), {"lora_name": adapter, "lora_path": str(folder)}, self._away)
        except ChatRefused as error:
            if adapter not in self.adapters():
                raise ChatRefused(
                    f"{error}; it must allow LoRA to be loaded while it runs (vLLM: --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; SGLang: --enable-lora), with enough --max-lora-rank, and "
                    f"see {folder.parent}, or the folder that engine.adapters names"
                ) from None

    def unload(self, adapter: str) -> None:
        """Does nothing if there is none of that name."""
        try:
            self._server.call(self._lora("unload"), {"lora_name": adapter}, self._away)
        except ChatRefused:
            if adapter in self.adapters():
                raise

    def sleep(self) -> None:
        """Makes the server release memory of its GPU until ``wake``."""
        self._control("sleep?level=1", "release_memory_occupation")

    def wake(self) -> None:
        """Makes it ready to answer again."""
        self._control("wake_up", "resume_memory_occupation")

    def sample(self, adapter: str, chat: Messages, request: dict[str, Json]) -> Sampled:
        """Returns one answer by an adapter.

        Raises ChatRefused for an answer by another model, or without tokens and log-probabilities.
        """
        model = f"{self._base.id}:{adapter}" if self._is_sglang else adapter
        further: dict[str, Json] = {**request, "model": model, "n": 1, "logprobs": True, "return_token_ids": True}
        answer = self._server.complete(chat, self._away, further)
        if answer.model != model:
            raise ChatRefused(f"{self._server} answered by the model {one_line(answer.model)[:100]}, not by {model}")
        if sampled := self._server.sampled(answer):
            return sampled
        missing = "token ids" if answer.choices[0].logprobs else "log-probabilities"
        raise ChatRefused(
            f"{self._server} sends no {missing}; engine=openai needs a server that answers `logprobs` and "
            "`return_token_ids`, as vLLM and SGLang do"
        )

    def close(self) -> None:
        """Stops waiting."""
        self._server.close()

    def _models(self) -> list[_Model]:
        return self._server.read("/models", _MODELS, "list of models", self._away).data

    @cached_property
    def _base(self) -> _Model:
        return next((model for model in self._models() if model.parent is None), _Model(""))

    @property
    def _is_sglang(self) -> bool:
        return self._base.owned_by == "sglang"

    def _lora(self, verb: str) -> str:
        """SGLang has it beside ``/v1``."""
        return f"{self._root if self._is_sglang else self.url.rstrip('/')}/{verb}_lora_adapter"

    @property
    def _root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def _control(self, of_vllm: str, of_sglang: str) -> None:
        """SGLang keeps its weights: it would not have them after releasing them."""
        path, body = (of_sglang, {"tags": ["kv_cache"]}) if self._is_sglang else (of_vllm, {})
        try:
            self._server.call(f"{self._root}/{path}", body, self._away)
        except ChatRefused as error:
            raise ChatRefused(
                f"{error}; for engine.sleep=true, start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, "
                "SGLang with --enable-memory-saver"
            ) from None


def reach(settings: OpenAIEngineSettings) -> None:
    """Raises SettingsError if the server does not answer, or has no model."""
    server = LoraServer(replace(settings, answer_s=min(settings.answer_s, _REACH_S), outage_s=0.0))
    try:
        found = server._models()
    except ChatError as error:
        raise SettingsError(
            f"engine.url={settings.url} cannot be used: {error} -> start the server, or set engine.url to the one that "
            "runs (docs/agents.md shows how)"
        ) from None
    finally:
        server.close()
    if not found:
        raise SettingsError(f"engine.url={settings.url} has no model")


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_MODELS = msgspec.json.Decoder(_Models)
