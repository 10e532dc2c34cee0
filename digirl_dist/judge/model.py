"""A vision-language model as the judge, behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from typing import Any

import openai

from digirl_dist.errors import JudgeError, SettingsError
from digirl_dist.events import Events
from digirl_dist.judge import Verdict, question
from digirl_dist.judge.pace import Pace
from digirl_dist.judge.verdicts import Verdicts
from digirl_dist.settings import JudgeSettings
from digirl_dist.tasks import Json
from digirl_dist.trajectory import Trajectory

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def key_of(settings: JudgeSettings) -> str:
    """The key from the environment. Raises SettingsError naming the variable, and never what may be a key."""
    variable = settings.key_variable
    if not variable:
        return "none"
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):
        raise SettingsError("judge.key_variable must be the NAME of an environment variable, such as OPENAI_API_KEY")
    if not os.environ.get(variable):
        raise SettingsError(f"the judge needs a key: export {variable}=… , or set judge.key_variable")
    return os.environ[variable]


class ModelJudge:
    """Fulfils ``Judge``. What it knows already, from ``verdicts``, it does not ask again."""

    def __init__(self, settings: JudgeSettings, key: str, verdicts: Verdicts, events: Events) -> None:
        self.parallel = settings.parallel
        self._settings = settings
        self._key = key
        # Retries are ours, so that each can be told of and an outage may last as long as the user allows.
        self._client = openai.OpenAI(api_key=key, base_url=settings.base_url, timeout=settings.answer_s, max_retries=0)
        self._verdicts = verdicts
        self._events = events
        self._stopping = threading.Event()
        self._pace = Pace(settings.requests_per_minute, self._stopping)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def verdict(self, trajectory: Trajectory) -> Verdict:
        settings = self._settings
        chat = question.messages(trajectory, settings.prompt, settings.screenshots)
        asked = question.digest(settings.model, chat, settings.request)
        known = self._verdicts.get(asked)
        if known is not None:
            self._count(judge_cached=1)
            return known
        found, usage = self._converse(chat, trajectory.episode_id)
        self._verdicts.add(asked, found, settings.model, trajectory.episode_id, usage)
        return found

    def take_figures(self) -> dict[str, float]:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        names = ("judge_requests", "judge_cached", "judge_unreadable", "judge_tokens_in", "judge_tokens_out")
        return {**{name: counts[name] for name in names}, "judge_usd": round(self._usd(counts), 6)}

    def close(self) -> None:
        self._stopping.set()
        self._client.close()

    def _usd(self, counts: Counter[str]) -> float:
        prices = self._settings.usd_per_million_in, self._settings.usd_per_million_out
        return (counts["judge_tokens_in"] * prices[0] + counts["judge_tokens_out"] * prices[1]) / 1e6

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def _converse(self, chat: list[dict[str, Json]], episode_id: str) -> tuple[Verdict, tuple[int, int]]:
        """Ask, and ask again for the verdict where an answer lacks it. Also the tokens in and out."""
        tokens_in = tokens_out = 0
        said = ""
        for _ in range(max(1, self._settings.readings)):
            said, used = self._ask(chat, episode_id)
            tokens_in, tokens_out = tokens_in + used[0], tokens_out + used[1]
            success = question.read(said)
            if success is not None:
                return Verdict(success, said), (tokens_in, tokens_out)
            reminder = {"role": "user", "content": question.REMINDER}
            chat = [*chat, {"role": "assistant", "content": said or "…"}, reminder]
        self._count(judge_unreadable=1)
        self._events.emit("judge_unreadable", episode=episode_id, said=said[:500])
        return Verdict(False, said), (tokens_in, tokens_out)

    def _ask(self, chat: list[dict[str, Json]], episode_id: str) -> tuple[str, tuple[int, int]]:
        """One answer and its tokens in and out; sits out an outage of the endpoint, up to the limit."""
        pause_s, give_up_at = _FIRST_PAUSE_S, time.monotonic() + self._settings.outage_s
        while True:
            self._pace.wait()
            if self._stopping.is_set():
                raise JudgeError("judging was stopped")
            try:
                return self._request(chat)
            except openai.APIError as error:
                if not _passes(error):
                    raise self._error("refuses", error, _remedy(error, self._settings)) from None
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    raise self._error(f"was away for {self._settings.outage_s:g} s", error) from None
                wait_s = min(max(_retry_after(error), random.uniform(pause_s / 2, pause_s)), left_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                told = {"reason": self._told(error), "again_in_s": round(wait_s, 1), "gives_up_in_s": round(left_s, 1)}
                self._events.emit("judge_away", episode=episode_id, **told)
                self._stopping.wait(wait_s)

    def _request(self, chat: list[dict[str, Json]]) -> tuple[str, tuple[int, int]]:
        messages: Any = chat
        self._count(judge_requests=1)
        answer = self._client.chat.completions.create(
            model=self._settings.model, messages=messages, extra_body=self._settings.request
        )
        choices = getattr(answer, "choices", None)
        if not choices:
            raise JudgeError(f"the judge at {self._client.base_url} sends no chat completion; is judge.base_url right?")
        usage = getattr(answer, "usage", None)
        used = (usage.prompt_tokens or 0, usage.completion_tokens or 0) if usage else (0, 0)
        self._count(judge_tokens_in=used[0], judge_tokens_out=used[1])
        return choices[0].message.content or "", used

    def _error(self, what: str, error: openai.APIError, remedy: str = "") -> JudgeError:
        """Raised without its cause, whose request carries the key."""
        safe = "the episodes are safe, the same command goes on from here"
        advice = f" -> {remedy}; {safe}" if remedy else f" -> {safe}"
        return JudgeError(
            f"the judge {self._settings.model} at {self._client.base_url} {what}: {self._told(error)}{advice}"
        )

    def _told(self, error: openai.APIError) -> str:
        """What went wrong, without the key that some servers repeat."""
        status = f"{error.status_code} " if isinstance(error, openai.APIStatusError) else ""
        return (status + " ".join(str(error.message).split())[:300]).replace(self._key, "***")


def _passes(error: openai.APIError) -> bool:
    """Whether it may pass by itself: no connection, no answer in time, too many requests, a fault over there."""
    status = getattr(error, "status_code", None)
    return isinstance(error, openai.APIConnectionError) or status in (408, 409, 429) or (status or 0) >= 500


def _retry_after(error: openai.APIError) -> float:
    """How long the endpoint asks us to wait, in seconds; 0 where it does not say."""
    response = getattr(error, "response", None)
    try:
        return float(response.headers["retry-after"]) if response is not None else 0.0
    except (KeyError, ValueError):
        return 0.0


def _remedy(error: openai.APIError, settings: JudgeSettings) -> str:
    match getattr(error, "status_code", None):
        case 401 | 403:
            return f"check the key in {settings.key_variable or 'judge.key_variable'}"
        case 404:
            return "check judge.model and judge.base_url"
        case _:
            return "check judge.model and judge.request"
