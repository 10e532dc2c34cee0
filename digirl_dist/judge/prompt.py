"""The prompt that asks a model about an episode, and the reading of its answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from digirl_dist.chat import Messages, image_part, text_part
from digirl_dist.emulator.remembered import recalled
from digirl_dist.emulator.touch_actions import without_remarks
from digirl_dist.errors import SettingsError
from digirl_dist.trajectory import Observation, Trajectory
from digirl_dist.types import Json

_QUESTION = """\
An agent was given a task on a device with a touch screen and has stopped. Judge whether the task is done.

Task: {instruction}

Its actions, in order (coordinates are shares of width and height, from the top left corner):
{actions}

The screenshots show the end of it, the last one what the screen showed when the agent stopped. Count the task as done
only if they show that all of it is; good beginnings do not count."""

_ANSWER = "Reason in a few words. Then write, as the last line, exactly `Verdict: yes` or `Verdict: no`."
REMINDER = "Write only the line with the verdict: `Verdict: yes` or `Verdict: no`."
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACEHOLDERS = ("instruction", "actions")
_VERDICT = re.compile(r"verdict\W+(yes|no)\b", re.IGNORECASE)


def messages(trajectory: Trajectory, prompt: str, screenshots: int) -> Messages:
    """Returns the chat that asks about ``trajectory``, with its last ``screenshots`` images.

    ``prompt`` may use ``{instruction}`` and ``{actions}``; if it is empty, the general question takes its place. The
    format of the answer is appended.
    """
    last = trajectory.final_observation
    instruction = trajectory.ticket.task.instruction or recalled(last.text).instruction or trajectory.ticket.task.id
    actions = "\n".join(
        f"{n}. {json.dumps(without_remarks(step.action))}" for n, step in enumerate(trajectory.steps, 1)
    )
    said = dict(zip(_PLACEHOLDERS, (instruction, actions), strict=True))
    question = _PLACEHOLDER.sub(lambda found: said.get(found[1], found[0]), prompt or _QUESTION)
    seen = [*(step.observation for step in trajectory.steps), last]
    content = [text_part(f"{question}\n\n{_ANSWER}"), *_images(seen, screenshots)]
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


def read(answer: str) -> bool | None:
    """Returns the last verdict in an answer; None without one."""
    found = _VERDICT.findall(answer)
    return found[-1].lower() == "yes" if found else None


def _images(seen: Sequence[Observation], most: int) -> list[Json]:
    images = [observation.image for observation in seen if observation.image is not None]
    return [image_part(image) for image in images[max(0, len(images) - most) :]]
