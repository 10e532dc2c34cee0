"""Sends requests to a server that speaks OpenAI's chat completions, and waits out its outages."""

from __future__ import annotations

import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import msgspec

from digirl_dist.chat import Messages
from digirl_dist.chat.http import BoundedHttp, ExchangeError
from digirl_dist.errors import ChatAway, ChatRefused, ChatUnfit, SettingsError
from digirl_dist.plain_text import HIDDEN, hide, one_line
from digirl_dist.settings import ChatSettings
from digirl_dist.types import Json, Natural, T


class Pace:
    """Admits at most ``per_minute`` callers per minute, evenly (0: no limit). Safe to use from any thread."""

    def __init__(self, per_minute: float, stopping: threading.Event) -> None:
        self._gap_s = 60.0 / per_minute if per_minute > 0 else 0.0
        self._stopping = stopping
        self._next_at = 0.0
        self._lock = threading.Lock()

    def wait(self) -> float:
        """Blocks until it is the caller's turn or ``stopping`` is set; returns the seconds until that turn."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next_at)
            self._next_at = turn + self._gap_s
        if turn > now:
            self._stopping.wait(turn - now)
        return turn - now


_SHORTEST_KEY = 8
"""Servers without keys are given a word, which answers may contain."""
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]

_TOKEN_ID = re.compile(r"token_id:(\d{1,10})")
_LEAST_LOG_PROB = -9998.0
"""Below it a log-probability is not known: servers write -9999 or less then."""
_ABOVE_ONE = 1e-4
"""By which rounding may lift a log-probability above 0."""
_OPENAI = "https://api.openai.com/v1"
BROKEN_OFF = ("abort", "error", "content_filter")
"""How answers end of which the server has kept a part back."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class Sampled:
    """The tokens of an answer, the natural log of each one's probability, and its prompt's tokens if they are told."""

    tokens: list[int]
    log_probs: list[float]
    prompt: list[int] | None


@dataclass(frozen=True)
class Answered:
    """An answer: its text, the natural log of its probability (NaN if the server omits it), tokens in and out."""

    text: str
    log_prob: float
    tokens_in: int
    tokens_out: int
    sampled: Sampled | None
    """None if the server tells no token ids or no log-probabilities."""
    finish_reason: str | None
    """What ended it, in the server's words: ``stop``, ``length`` (the limit of tokens), or one of ``BROKEN_OFF``."""


@dataclass(frozen=True)
class Outage:
    """A failed attempt, reported before the next one."""

    reason: str
    again_in_s: float
    gives_up_in_s: float


def key_of(settings: ChatSettings, group: str) -> str:
    """Returns the key from the environment; ``group`` is the settings' group (judge, agent).

    Raises SettingsError naming the variable, never its value.
    """
    variable = settings.key_variable
    if not variable:
        return "none"
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        raise SettingsError(f"{group}.key_variable must be the NAME of an environment variable, such as OPENAI_API_KEY")
    key = os.environ.get(variable, "")
    if not key:
        raise SettingsError(f"the {group} needs a key: export {variable} with it, or set {group}.key_variable")
    if not re.fullmatch("[!-~]+", key):  # no header takes it, and whoever says so may repeat it
        raise SettingsError(
            f"{variable} has a blank, a line end or a letter beyond ASCII, as no key has: export it with the key alone"
        )
    hide([key])
    return key


def url_of(settings: ChatSettings) -> str:
    """Returns the server's address: the settings', or the environment's, or else OpenAI's."""
    return (settings.base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI).rstrip("/")


class ChatServer:
    """One model behind one server. Safe to use from any thread."""

    def __init__(self, settings: ChatSettings, key: str, group: str, called: Mapping[str, str] | None = None) -> None:
        """``group`` is the settings' group; ``called`` what messages call those of them that it has elsewhere."""
        self._settings = settings
        self._key = key
        self._called = {each.name: f"{group}.{each.name}" for each in fields(settings)} | dict(called or {})
        # Retries happen here, so that each is reported and an outage may last as long as the user allows.
        self._url = url_of(settings)
        self._http = BoundedHttp(key, settings.answer_s)
        self._stopping = threading.Event()
        self._pace = Pace(settings.requests_per_minute, self._stopping)
        self._request = {name: value for name, value in settings.request.items() if value is not None}

    def __str__(self) -> str:
        return f"{self._settings.model} at {self._url}"

    def ask(
        self, chat: Messages | msgspec.Raw, away: Callable[[Outage], None], further: dict[str, Json] | None = None
    ) -> Answered:
        """Returns one answer. Adds ``further`` to the request; raises what ``complete`` raises."""
        completion = self.complete(chat, away, further or {})
        choice, usage = completion.choices[0], completion.usage or _Usage()
        content = choice.message.content or ""
        said = content if isinstance(content, str) else "".join(part.text or "" for part in content)
        in_and_out = usage.prompt_tokens or 0, usage.completion_tokens or 0
        known = [each if each > _LEAST_LOG_PROB else math.nan for each in choice.log_probs]
        log_prob = sum(known) if known else math.nan
        return Answered(
            self._without_key(said),
            log_prob,
            *in_and_out,
            None if choice.finish_reason in BROKEN_OFF else self.sampled(completion),
            choice.finish_reason,
        )

    def sampled(self, answer: Completion) -> Sampled | None:
        """Returns the tokens of an answer, if both ids and log-probabilities are there. Raises ChatRefused for
        impossible ones, and for an answer that was broken off."""
        choice = answer.choices[0]
        log_probs = choice.log_probs
        tokens = choice.token_ids or choice.response_token_ids or [id for each in choice.chances for id in each.ids()]
        if not tokens or not log_probs:
            return None
        if len(log_probs) != len(tokens):
            raise ChatRefused(f"{self} sends {len(log_probs)} log-probabilities for {len(tokens)} tokens")
        if wrong := [each for each in log_probs if not _LEAST_LOG_PROB < each <= _ABOVE_ONE]:
            raise ChatRefused(f"{self} sends {wrong[0]} as a log-probability")
        if choice.finish_reason not in ("stop", "length"):
            raise ChatRefused(f"{self} broke an answer off: {one_line(str(choice.finish_reason))[:100]}")
        return Sampled(tokens, log_probs, answer.prompt_token_ids or choice.prompt_token_ids)

    def _without_key(self, text: str) -> str:
        """Answers are stored: a server that repeats the key shall not get it into the run folder."""
        return text.replace(self._key, HIDDEN) if len(self._key) >= _SHORTEST_KEY else text

    def complete(
        self, chat: Messages | msgspec.Raw, away: Callable[[Outage], None], further: dict[str, Json]
    ) -> Completion:
        """Returns one answer. Calls ``away`` after each failed attempt.

        Raises ChatRefused if a retry cannot help, ChatAway after ``outage_s`` or ``close``. Both come without their
        cause, because its request carries the key.
        """
        body = {"model": self._settings.model, "messages": chat, **self._request, **further}
        return self._read(self.call("/chat/completions", body, away), _COMPLETIONS, "chat completion")

    def call(self, path: str, body: Any, away: Callable[[Outage], None]) -> bytes:
        """Returns what the server sends back: to a POST of ``body``, to a GET without one. Raises as ``complete``."""
        url, content = path if "://" in path else self._url + path, None if body is None else msgspec.json.encode(body)
        pause_s, give_up_at = _FIRST_PAUSE_S, time.monotonic() + self._settings.outage_s
        while True:
            give_up_at += self._pace.wait()  # the server is not away meanwhile
            if self._stopping.is_set():
                raise ChatAway(f"{self} is no longer asked: it was stopped")
            try:
                return self._http.exchange(url, content)
            except ExchangeError as error:
                if not error.may_pass:
                    kind = ChatUnfit if error.status in (400, 403, 422) else ChatRefused
                    raise kind(f"{self} refuses: {self._reason(error)} -> {self._remedy(error)}") from None
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    waited = f" for {self._settings.outage_s:g} s" if self._settings.outage_s else ""
                    raise ChatAway(f"{self} was away{waited}: {self._reason(error)}") from None
                wait_s = min(max(error.retry_after_s, random.uniform(pause_s / 2, pause_s)), left_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                away(Outage(self._reason(error), round(wait_s, 1), round(left_s, 1)))
                self._stopping.wait(wait_s)

    def read(self, path: str, form: msgspec.json.Decoder[T], what: str, away: Callable[[Outage], None]) -> T:
        """Returns what the server has at ``path``, which is ``what``. Raises as ``complete``."""
        return self._read(self.call(path, None, away), form, what)

    def close(self) -> None:
        """Stops waiting; calls that wait raise ChatAway."""
        self._stopping.set()
        self._http.close()

    def _read(self, content: bytes, form: msgspec.json.Decoder[T], what: str) -> T:
        try:
            return form.decode(content)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ChatRefused(
                f"{self} sends no {what}; is {self._called['base_url']} right? ({one_line(str(error)[:200])}: "
                f"{one_line(self._without_key(content.decode(errors='replace'))[:200])})"
            ) from None

    def _reason(self, error: ExchangeError) -> str:
        """Returns the error's text without the key, which some servers repeat."""
        text = " ".join(self._without_key(str(error)).split())  # before a cut leaves a part of the key
        return one_line(f"{error.status} {text[:300]}" if error.status else text[:300])

    def _remedy(self, error: ExchangeError) -> str:
        match error.status:
            case 301 | 302 | 303 | 307 | 308:
                return f"it redirects, which is not followed: set {self._called['base_url']} to the server that answers"
            case 401 | 403:
                return f"check the key in {self._settings.key_variable or self._called['key_variable']}"
            case 404:
                return f"check {self._called['model']} and {self._called['base_url']}"
            case _:
                return f"check {self._called['model']} and {self._called['request']}"


class _TokenChance(msgspec.Struct):
    logprob: float | None = None
    token: str | None = None

    def ids(self) -> list[int]:
        """Returns the token's id, if that stands in its place: vLLM's ``return_tokens_as_token_ids``."""
        found = _TOKEN_ID.fullmatch(self.token or "")
        return [int(found[1])] if found else []


class _Chances(msgspec.Struct):
    content: list[_TokenChance] | None = None


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    logprobs: _Chances | None = None
    finish_reason: str | None = None
    token_ids: list[_TokenId] | None = None
    response_token_ids: list[_TokenId] | None = None
    prompt_token_ids: list[_TokenId] | None = None

    @property
    def chances(self) -> Sequence[_TokenChance]:
        return (self.logprobs and self.logprobs.content) or ()

    @property
    def log_probs(self) -> list[float]:
        """That of each token of the answer, NaN where one is missing; empty if the server tells none."""
        return [math.nan if each.logprob is None else each.logprob for each in self.chances]


class _Usage(msgspec.Struct):
    prompt_tokens: Natural | None = None
    completion_tokens: Natural | None = None


class Completion(msgspec.Struct):
    """What is read of an answer; everything else in it is left alone.

    vLLM has the prompt's tokens here, SGLang in the choice, and the answer's as ``response_token_ids``.
    """

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None
    model: str | None = None
    prompt_token_ids: list[_TokenId] | None = None


_COMPLETIONS = msgspec.json.Decoder(Completion)
