"""A vision-language model as the judge, behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import asdict

from digirl_dist.chat import Messages
from digirl_dist.chat.client import Answered, ChatServer, Outage
from digirl_dist.errors import ChatError, ChatRefused, JudgeError
from digirl_dist.judge import Verdict, prompt
from digirl_dist.judge.verdicts import Verdicts
from digirl_dist.settings import JudgeSettings
from digirl_dist.storage.events import Events
from digirl_dist.trajectory import Trajectory


class ModelJudge:
    """Implements ``Judge``. Never asks again for a verdict that ``verdicts`` holds."""

    def __init__(self, settings: JudgeSettings, key: str, verdicts: Verdicts, events: Events) -> None:
        self.parallel = settings.parallel
        self._settings = settings
        self._server = ChatServer(settings, key, "judge")
        self._verdicts = verdicts
        self._events = events
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def verdict(self, trajectory: Trajectory) -> Verdict:
        settings = self._settings
        chat = prompt.messages(trajectory, settings.prompt, settings.screenshots)
        asked = prompt.digest(settings.model, chat, settings.request)
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
        self._server.close()

    def _usd(self, counts: Counter[str]) -> float:
        prices = self._settings.usd_per_million_in, self._settings.usd_per_million_out
        return (counts["judge_tokens_in"] * prices[0] + counts["judge_tokens_out"] * prices[1]) / 1e6

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts.update(more)

    def _converse(self, chat: Messages, episode_id: str) -> tuple[Verdict, tuple[int, int]]:
        """Asks, and repeats the question if the answer lacks a verdict. Returns verdict and tokens in and out."""
        tokens_in = tokens_out = 0
        said = ""
        for _ in range(max(1, self._settings.readings)):
            answer = self._ask(chat, episode_id)
            said = answer.text
            tokens_in, tokens_out = tokens_in + answer.tokens_in, tokens_out + answer.tokens_out
            success = prompt.read(said)
            if success is not None:
                return Verdict(success, said), (tokens_in, tokens_out)
            reminder = {"role": "user", "content": prompt.REMINDER}
            chat = [*chat, {"role": "assistant", "content": said or "…"}, reminder]
        self._count(judge_unreadable=1)
        self._events.emit("judge_unreadable", episode=episode_id, said=said[:500])
        return Verdict(False, said), (tokens_in, tokens_out)

    def _ask(self, chat: Messages, episode_id: str) -> Answered:
        """Returns one answer; waits out an outage of the server, up to the limit."""

        def away(outage: Outage) -> None:
            self._count(judge_requests=1)
            self._events.emit("judge_away", episode=episode_id, **asdict(outage))

        try:
            answer = self._server.ask(chat, away)
        except ChatError as error:
            joint = ";" if isinstance(error, ChatRefused) else " ->"  # a refusal has its remedy already
            safe = "the episodes are safe, the same command resumes from here"
            raise JudgeError(f"the judge {error}{joint} {safe}") from None
        self._count(judge_requests=1, judge_tokens_in=answer.tokens_in, judge_tokens_out=answer.tokens_out)
        return answer
