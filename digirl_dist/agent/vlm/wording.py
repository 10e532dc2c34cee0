"""What a chat model is asked, and what its tokens mean: alike for the model in this process and behind a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from digirl_dist.agent.answers import Coordinates, action_of
from digirl_dist.agent.prompts import about_screen, shown
from digirl_dist.agent.sampling import Answer, SamplingParams
from digirl_dist.chat import Messages
from digirl_dist.emulator.episode_limits import size
from digirl_dist.emulator.touch_actions import SAID, TOKENS, DeviceAction
from digirl_dist.errors import TrajectoryError
from digirl_dist.trajectory import Observation
from digirl_dist.types import Json


class Wording:
    """Prompts and answers of one model with one tokenizer."""

    def __init__(
        self,
        model: str,
        tokenizer: Any,
        sampling: SamplingParams,
        vocabulary: int,
        *,
        system: str,
        coordinates: Coordinates,
        earlier: int,
        scaled: Callable[[tuple[int, int]], tuple[int, int]],
    ) -> None:
        """``vocabulary`` is the number of tokens, ``system`` replaces the general rules if it is not empty.

        ``earlier`` is how many screenshots before the present one are shown. ``scaled`` returns height and width of a
        picture as the model sees it.
        """
        self.sampling = sampling
        self._model = model
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._system = system
        self._coordinates = coordinates
        self._earlier = earlier
        self._scaled = scaled
        self._reserved = sorted(tokenizer.all_special_tokens, key=len, reverse=True)

    def chat(self, seen: Observation, part: Callable[[bytes], Json]) -> Messages:
        """The chat about an observation, without what the model would take for the end of a turn, or for a picture.

        ``part`` makes a part of a screenshot. Raises TrajectoryError for an observation without one.
        """
        text = seen.text
        for token in self._reserved:
            text = text.replace(token, "")
        asked = replace(seen, text=text)
        return about_screen(asked, part, self._system, self._coordinates, self._size(seen), self._earlier)

    def action(self, answer: Answer, seen: Observation) -> Json:
        """Returns the action that an answer to an observation means, with its text and tokens."""
        text = self._tokenizer.decode(answer.tokens, skip_special_tokens=True)
        return {**action_of(text, self._coordinates, shown(seen.text, self._size(seen))), TOKENS: answer.tokens}

    def _size(self, seen: Observation) -> tuple[int, int] | None:
        is_needed = seen.image is not None and self._coordinates is Coordinates.pixels
        return self._scaled(size(seen.image or b"")) if is_needed else None

    def tokens(self, action: Json) -> list[int]:
        """In which an action was written, or would be: by another model, in data of AutoUI, or not at all.

        Raises TrajectoryError for tokens that are not this model's.
        """
        if isinstance(action, dict) and TOKENS in action:
            tokens = list(action[TOKENS])
            if not self.can_say(tokens):
                raise TrajectoryError(f"an action's tokens are not those of {self._model}")
            return tokens
        text = (
            action
            if isinstance(action, str)
            else action.get(SAID) or json.dumps(DeviceAction.from_json(action).to_json())
        )
        known = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*known[: self.sampling.length - 1], self._tokenizer.eos_token_id]

    def can_say(self, tokens: Sequence[Json]) -> bool:
        """Returns whether the model can have written these tokens."""
        known = (type(token) is int and 0 <= token < self._vocabulary for token in tokens)
        return bool(tokens) and all(known) and not set(tokens) & set(self.sampling.barred)
