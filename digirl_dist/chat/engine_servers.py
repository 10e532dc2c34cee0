"""Chat servers that load weights while they run: vLLM's requests and answers, and SGLang's.

Written after the sources of vLLM 0.32.0 and SGLang 0.5.23, whose answers differ in the places of token ids and in the
names of adapters.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import msgspec

from digirl_dist.chat import Messages
from digirl_dist.chat.client import ChatServer, Outage, Sampled, key_of
from digirl_dist.errors import ChatError, ChatRefused, SettingsError
from digirl_dist.plain_text import one_line
from digirl_dist.settings import EngineWeights, OpenAIEngineSettings
from digirl_dist.types import Json

_REACH_S = 10.0
_CALLED = {"base_url": "engine.url", "model": "agent.model", "request": "the server's own log"}


class EngineServer(ABC):
    """One model behind one server, and weights for it that have names. Safe to use from any thread.

    Methods raise ChatRefused if a retry cannot help, ChatAway if the server is away for ``outage_s``.
    """

    is_whole: ClassVar[bool]
    """Whether weights are all of the model's, not low-rank ones beside them."""

    def __init__(self, settings: OpenAIEngineSettings, away: Callable[[Outage], None] = lambda _: None) -> None:
        """``away`` is called after each failed attempt. Raises SettingsError where the key is missing."""
        self.url: str = settings.url
        self._away = away
        self._base = cache(self._first)  # before Python 3.12, cached_property has the servers wait for each other
        self._server = ChatServer(settings.chat, key_of(settings.chat, "engine"), "engine", _CALLED)

    @abstractmethod
    def loaded(self) -> list[str]:
        """Returns the names of the weights that it has."""

    @abstractmethod
    def load(self, name: str, folder: Path) -> None:
        """Loads the weights that lie in ``folder``; some of that name that are there already stay."""

    @abstractmethod
    def unload(self, name: str) -> None:
        """Does nothing if there are none of that name."""

    @abstractmethod
    def sample(self, name: str, chat: Messages, request: dict[str, Json]) -> Sampled:
        """Returns one answer by the weights of that name.

        Raises ChatRefused for an answer by others, or without tokens and log-probabilities.
        """

    def sleep(self) -> None:
        """Makes the server release memory of its GPU until ``wake``."""
        self._control("sleep?level=1", "release_memory_occupation")

    def wake(self) -> None:
        """Makes it ready to answer again."""
        self._control("wake_up", "resume_memory_occupation")

    def close(self) -> None:
        """Stops waiting."""
        self._server.close()

    def models(self) -> list[_Model]:
        """Returns the model and its adapters."""
        return self._server.read("/models", _MODELS, "list of models", self._away).data

    def _answer(self, model: str, chat: Messages, request: dict[str, Json]) -> Sampled:
        further: dict[str, Json] = {**request, "model": model, "n": 1, "logprobs": True, "return_token_ids": True}
        answer = self._server.complete(chat, self._away, further)
        if answer.model != model:
            raise ChatRefused(
                f"{self._server} answered by the model {one_line(str(answer.model))[:100]}, not by {model}"
            )
        if sampled := self._server.sampled(answer):
            return sampled
        missing = "token ids" if answer.choices[0].logprobs else "log-probabilities"
        raise ChatRefused(
            f"{self._server} sends no {missing}; engine=openai needs a server that answers `logprobs` and "
            "`return_token_ids`, as vLLM and SGLang do"
        )

    def _first(self) -> _Model:
        return next((model for model in self.models() if model.parent is None), _Model(""))

    @property
    def _is_sglang(self) -> bool:
        return self._base().owned_by == "sglang"

    @property
    def _root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def _post(self, path: str, **body: Json) -> bytes:
        """To a route beside ``/v1``; returns what comes back."""
        return self._server.call(f"{self._root}/{path}", body, self._away)

    def _control(self, of_vllm: str, of_sglang: str) -> None:
        """SGLang keeps its weights: it would not have them after releasing them."""
        path, body = (of_sglang, {"tags": ["kv_cache"]}) if self._is_sglang else (of_vllm, {})
        try:
            self._post(path, **body)
        except ChatRefused as error:
            raise ChatRefused(
                f"{error}; for engine.sleep=true, start vLLM with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, "
                "SGLang with --enable-memory-saver"
            ) from None


class LoraServer(EngineServer):
    """Keeps several low-rank weights beside the model's, each as peft saves it."""

    is_whole = False

    def loaded(self) -> list[str]:
        return [model.id for model in self.models() if model.parent is not None]

    def load(self, name: str, folder: Path) -> None:
        try:
            self._server.call(self._lora("load"), {"lora_name": name, "lora_path": str(folder)}, self._away)
        except ChatRefused as error:
            if name not in self.loaded():
                raise ChatRefused(
                    f"{error}; it must allow LoRA to be loaded while it runs (vLLM: --enable-lora and "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True; SGLang: --enable-lora), with enough --max-lora-rank, and "
                    f"see {folder.parent}, or the folder that engine.adapters names"
                ) from None

    def unload(self, name: str) -> None:
        try:
            self._server.call(self._lora("unload"), {"lora_name": name}, self._away)
        except ChatRefused:
            if name in self.loaded():
                raise

    def sample(self, name: str, chat: Messages, request: dict[str, Json]) -> Sampled:
        return self._answer(f"{self._base().id}:{name}" if self._is_sglang else name, chat, request)

    def _lora(self, verb: str) -> str:
        """SGLang has it beside ``/v1``."""
        return f"{self._root if self._is_sglang else self.url.rstrip('/')}/{verb}_lora_adapter"


class WholeServer(EngineServer):
    """Replaces the model's own weights, which are one version at a time. It is asked before and after each answer which
    these are: a server that was started again has others."""

    is_whole = True

    def __init__(self, settings: OpenAIEngineSettings, away: Callable[[Outage], None] = lambda _: None) -> None:
        super().__init__(settings, away)
        self._idle = threading.Condition()
        self._asked = 0

    def loaded(self) -> list[str]:
        path = f"{self._root}/{'model_info' if self._is_sglang else 'weight_info'}"
        try:
            version = self._server.read(path, _VERSIONS, "version of its weights", self._away).weight_version
        except ChatRefused as error:
            raise ChatRefused(f"{error}; for engine.weights=full, start vLLM with VLLM_SERVER_DEV_MODE=1") from None
        return [version] if version else []

    def load(self, name: str, folder: Path) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._asked)
            if name in self.loaded():
                return
            try:
                self._replace(name, str(folder))
            except ChatError as error:
                raise type(error)(
                    f"{error}; the server must see {folder.parent}, or the folder that engine.adapters names"
                ) from None

    def unload(self, name: str) -> None:
        """They stay until others replace them."""

    def sample(self, name: str, chat: Messages, request: dict[str, Json]) -> Sampled:
        with self._idle:
            self._asked += 1
        try:
            self._expect(name)  # vLLM ends if it is asked after weights could not be loaded
            answer = self._answer(self._base().id, chat, request)
            self._expect(name)
            return answer
        finally:
            with self._idle:
                self._asked -= 1
                self._idle.notify_all()

    def _expect(self, name: str) -> None:
        if name not in self.loaded():
            raise ChatRefused(f"{self._server} has other weights than {name}")

    def _replace(self, name: str, folder: str) -> None:
        """What vLLM computed by the old weights goes with them; SGLang sees to that itself."""
        if self._is_sglang:
            self._post("update_weights_from_disk", model_path=folder, weight_version=name)
            return
        self._post("update_weight_version", new_version="none")  # should what follows fail
        self._post("collective_rpc", method="reload_weights", kwargs={"weights_path": folder})
        if b"false" in self._post("reset_prefix_cache?reset_running_requests=true"):
            raise ChatRefused(f"{self._server} keeps what it computed by its old weights; does anybody else use it?")
        self._post("reset_mm_cache")
        self._post("reset_encoder_cache")
        self._post("update_weight_version", new_version=name)


def engine_server(settings: OpenAIEngineSettings, away: Callable[[Outage], None] = lambda _: None) -> EngineServer:
    """Returns the server that these settings, of one server, mean. See ``EngineServer`` for ``away`` and errors."""
    return (WholeServer if settings.weights is EngineWeights.full else LoraServer)(settings, away)


def reach(settings: OpenAIEngineSettings) -> None:
    """Raises SettingsError if the server does not answer, has no model, or cannot tell which weights it has."""
    server = engine_server(replace(settings, answer_s=min(settings.answer_s, _REACH_S), outage_s=0.0))
    try:
        found = server.models()
        server.loaded()
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


class _Version(msgspec.Struct):
    weight_version: str | None = None


_MODELS = msgspec.json.Decoder(_Models)
_VERSIONS = msgspec.json.Decoder(_Version)
