"""Episodes of a fleet's environments, as language models play them: by texts, which name actions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from digirl_dist.agent.answers import action_of
from digirl_dist.bridges.conversation import Conversation
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError
from digirl_dist.types import Json

_STARTS = ("split", "index", "task_id", "seed")


class TextEpisode:
    """One environment on some worker. If its worker is lost, the episode is repeated on another one."""

    def __init__(self, conversation: Conversation) -> None:
        self.reward: float | None = None
        """The sum of the rewards so far; None: the environment was lost, and there is none."""
        self.is_over = True
        self._conversation = conversation

    def begin(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Begins an episode; returns the first observation. Raises EmulatorError.

        ``split`` and ``index``, or ``task_id``, name the task, and ``seed`` its start. Without a seed, one follows
        from the row, so that equal rows start alike.
        """
        start = {name: row[name] for name in _STARTS if row.get(name) is not None}
        if "seed" not in start:
            start["seed"] = zlib.crc32(json.dumps(dict(row), sort_keys=True, default=str).encode()) >> 1
        self.reward = 0.0
        return self._ask("reset", start)

    def act(self, text: str) -> dict[str, Any]:
        """Carries out the action that a text names, ``wait`` if it names none; returns the observation afterwards.

        Raises EmulatorError.
        """
        seen: dict[str, Any] = {"text": "The episode is over."}
        for part in DeviceAction.from_json(action_of(text)).parts:
            seen = seen if self.is_over else self._ask("step", part.to_json())
        return seen

    def close(self) -> None:
        self._conversation.close()

    def _ask(self, kind: str, data: dict[str, Json]) -> dict[str, Any]:
        answer = json.loads(self._conversation.answer(json.dumps({"type": kind, "data": data})) or "{}")
        told = answer.get("data", {})
        if answer.get("type") != "observation":
            self.reward, self.is_over = None, True
            raise EmulatorError(str(told.get("message", "the session has ended")))
        self.is_over = bool(told["done"])
        self.reward = (self.reward or 0.0) + float(told["reward"] or 0.0)
        return dict(told["observation"])
