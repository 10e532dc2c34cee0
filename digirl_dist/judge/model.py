"""A vision-language model as the judge, behind any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from digirl_dist.chat import Messages, image_part, text_part
from digirl_dist.chat.client import BROKEN_OFF, Answered, ChatServer, Outage
from digirl_dist.emulator.remembered import recalled
from digirl_dist.emulator.touch_actions import without_remarks
from digirl_dist.errors import ChatError, ChatRefused, JudgeError, SettingsError
from digirl_dist.judge import Verdict
from digirl_dist.settings import JudgeSettings
from digirl_dist.storage import json_lines
from digirl_dist.storage.events import Events
from digirl_dist.trajectory import Observation, Trajectory
from digirl_dist.types import Json

_QUESTION = """\
An agent was given a task on a device with a touch screen and has stopped. Judge whether the task is done.

Task: {instruction}

Its actions, in order (coordinates are shares of width and height, from the top left corner):
{actions}

The screenshots show the end of it, the last one what the screen showed when the agent stopped. Count the task as done
only if they show that all of it is; good beginnings do not count."""

_OR_A_GRADE = "; if a grade is asked for, `Verdict: ` and a number from 0 to 1."
_ANSWER = f"Reason in a few words. Then write, as the last line, exactly `Verdict: yes` or `Verdict: no`{_OR_A_GRADE}"
REMINDER = f"Write only the line with the verdict: `Verdict: yes` or `Verdict: no`{_OR_A_GRADE}"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACEHOLDERS = ("instruction", "actions")
_GRADE_OF_ONE = r"(?<![-.])(?:0?\.\d+|0|1(?:\.0+)?)"
"""A number from 0 to 1 that is no part of a larger one."""
_VERDICT = re.compile(rf"^(?:(?!verdict).)*verdict\W+(yes|no|{_GRADE_OF_ONE})[^\w%/]*\Z", re.IGNORECASE | re.MULTILINE)
"""It ends the answer and is alone in its line: others are thoughts, or repeat the rule. Not 50 %, and not 1 / 10."""


def messages(trajectory: Trajectory, prompt: str, screenshots: int) -> Messages:
    """Returns the chat that asks about ``trajectory``, with its last ``screenshots`` images.

    ``prompt`` may use ``{instruction}`` and ``{actions}``; if it is empty, the general question takes its place. The
    format of the answer is appended.
    """
    first = trajectory.observations[0]  # later ones may tell what the agent said, which is not for its judge
    instruction = trajectory.ticket.task.instruction or recalled(first.text).instruction or trajectory.ticket.task.id
    actions = "\n".join(
        f"{n}. {json.dumps(without_remarks(step.action))}" for n, step in enumerate(trajectory.steps, 1)
    )
    said = dict(zip(_PLACEHOLDERS, (instruction, actions), strict=True))
    question = _PLACEHOLDER.sub(lambda found: said.get(found[1], found[0]), prompt or _QUESTION)
    content = [text_part(f"{question}\n\n{_ANSWER}"), *_images(trajectory.observations, screenshots)]
    return [{"role": "user", "content": content}]


def refuse_unknown_placeholders(prompt: str) -> None:
    """Raises SettingsError for a placeholder that nothing fills in."""
    for word in _PLACEHOLDER.findall(prompt):
        if word not in _PLACEHOLDERS:
            known = " and ".join(f"{{{each}}}" for each in _PLACEHOLDERS)
            raise SettingsError(f"judge.prompt has {{{word}}}, but there are {known}")


def digest(model: str, chat: Sequence[Json], request: Json) -> str:
    """Returns a digest over everything that the answer may depend on."""
    return hashlib.sha256(json.dumps([model, chat, request], sort_keys=True).encode()).hexdigest()


def read(answer: str) -> float | None:
    """Returns the verdict at the end of an answer, from 0 to 1; None without one."""
    found = _VERDICT.search(answer.rpartition("</think>")[2])
    said = found[1].lower() if found else None
    return float({"yes": "1", "no": "0"}.get(said, said)) if said else None


def _images(seen: Sequence[Observation], most: int) -> list[Json]:
    images = [observation.image for observation in seen if observation.image is not None]
    return [image_part(image) for image in images[max(0, len(images) - most) :]]


class Verdicts:
    """Verdicts by their question's digest. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, Verdict] = {}
        for line in json_lines.JsonLines(path).news():
            with suppress(KeyError, TypeError):  # of another form
                self._known[line["question"]] = Verdict(min(1.0, max(0.0, line["score"])), str(line["said"]))

    def get(self, question: str) -> Verdict | None:
        with self._lock:
            return self._known.get(question)

    def add(self, question: str, verdict: Verdict, model: str, episode_id: str, usage: tuple[int, int]) -> None:
        """Records a verdict; ``usage`` is the tokens in and out. A line lost to a full disk costs one more request."""
        line = {
            "time": round(time.time(), 3),
            "question": question,
            "model": model,
            "episode_id": episode_id,
            "success": verdict.success,
            "score": verdict.score,
            "said": verdict.said,
            "tokens_in": usage[0],
            "tokens_out": usage[1],
        }
        with self._lock:
            self._known[question] = verdict
            with suppress(OSError):  # other writes, which must succeed, report a full disk
                json_lines.append_object(self._path, line)


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
        chat = messages(trajectory, settings.prompt, settings.screenshots)
        asked = digest(settings.model, chat, settings.request)
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
        """Asks, and again if the answer was cut or lacks a verdict. Returns verdict and tokens in and out."""
        tokens_in = tokens_out = 0
        said = ""
        for _ in range(max(1, self._settings.readings)):
            answer = self._ask(chat, episode_id)
            said = answer.text
            tokens_in, tokens_out = tokens_in + answer.tokens_in, tokens_out + answer.tokens_out
            score = None if answer.finish_reason in ("length", *BROKEN_OFF) else read(said)
            if score is not None:
                return Verdict(score, said), (tokens_in, tokens_out)
            reminder = {"role": "user", "content": REMINDER}
            chat = [*chat, {"role": "assistant", "content": said or "…"}, reminder]
        self._count(judge_unreadable=1)
        self._events.emit("judge_unreadable", episode=episode_id, said=said[:500])
        return Verdict(0.0, said), (tokens_in, tokens_out)

    def _ask(self, chat: Messages, episode_id: str) -> Answered:
        """Returns one answer; waits out an outage of the server, up to the limit."""

        def away(outage: Outage) -> None:
            self._count(judge_requests=1)
            self._events.emit("judge_away", episode=episode_id, **asdict(outage))

        try:
            answer = self._server.ask(chat, away)
        except ChatError as error:
            joint = ";" if isinstance(error, ChatRefused) else " ->"  # a refusal has its remedy already
            raise JudgeError(
                f"the judge {error}{joint} the episodes are safe, the same command resumes from here"
            ) from None
        self._count(judge_requests=1, judge_tokens_in=answer.tokens_in, judge_tokens_out=answer.tokens_out)
        return answer
