"""A causal language model of this process, acting in the episodes of a fleet by writing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from digirl_dist.agent.answers import action_of
from digirl_dist.chat import Messages
from digirl_dist.emulator.touch_actions import SAID, UNREAD
from digirl_dist.errors import SettingsError
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json


def _instruction(seen: Observation) -> Messages:
    return [{"role": "user", "content": seen.text}]


def _touch(text: str) -> Json:
    action = action_of(text)
    return action if action["type"] != "type_at" else {"type": "wait", UNREAD: "typing at a place is two actions"}


class WritingModel:
    """A causal language model of this process that acts by writing: a fleet's ``act``, and TRL's ``weight_transfer``.

    It acts with the trainer's weights as of the latest synchronisation, so it is a model of its own, which may be on
    another device.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompt: Callable[[Observation], Messages] = _instruction,
        read: Callable[[str], Json] = _touch,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
    ) -> None:
        """``prompt`` makes the chat that asks for an action, ``read`` makes an action of any answer. ``temperature`` is
        that of the trainer's configuration, whose log-probabilities are compared with those of the answers; what else
        the model's ``generation_config`` says of sampling is replaced."""
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._read = read
        self._model.generation_config = type(model.generation_config)(
            do_sample=True,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        self._weights = threading.Lock()

    def __call__(self, observations: Sequence[Observation]) -> list[Decision]:
        prompts = [self._asked(seen) for seen in observations]
        padded = self._tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        padded = padded.to(self._model.device)
        with self._weights, torch.inference_mode():
            written = self._model.generate(**padded, output_scores=True, return_dict_in_generate=True)
        scores = torch.stack(written.scores, 1).float().log_softmax(-1)
        answers = written.sequences[:, padded["input_ids"].shape[1] :]
        log_probs = scores.gather(2, answers[:, :, None])[:, :, 0]
        rows = zip(prompts, answers.tolist(), log_probs.tolist(), strict=True)
        return [self._decision(*row) for row in rows]

    def init_weight_transfer(self) -> None:
        """There is nothing to set up."""

    def pause(self) -> None:
        """Episodes go on: what is asked for meanwhile waits for the weights."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Takes over the trainer's weights. Raises SettingsError for those of another model."""
        own = dict(self._model.named_parameters())
        with self._weights, torch.no_grad():
            for name, weight in iterator:
                if name not in own or own[name].shape != weight.shape:
                    raise SettingsError(
                        f"the model that acts has no weight {name} of shape {list(weight.shape)}: load it from the "
                        "checkpoint that the trainer starts from"
                    )
                own[name].copy_(weight)

    def resume(self) -> None:
        """See ``pause``."""

    def destroy(self) -> None:
        """There is nothing to release."""

    def _asked(self, seen: Observation) -> list[int]:
        chat = self._prompt(seen)
        ids: list[int] = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        return ids

    def _decision(self, prompt: list[int], answer: list[int], log_probs: list[float]) -> Decision:
        """Without what pads an answer that ended before others."""
        end = self._tokenizer.eos_token_id
        size = answer.index(end) + 1 if end in answer else len(answer)
        tokens, of_tokens = answer[:size], log_probs[:size]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        action = self._read(text)
        if isinstance(action, dict):
            action = {**action, SAID: text}
        return Decision(action, sum(of_tokens), of_tokens, tokens, prompt)
