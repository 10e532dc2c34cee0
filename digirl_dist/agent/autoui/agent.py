"""AutoUI: from a prompt and a screenshot to an action in words (Zhang and Zhang 2023, arXiv 2309.11436)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GenerationConfig, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from digirl_dist.agent.answers import read_or_wait
from digirl_dist.agent.autoui.encoders import ScreenEncoder, TextEncoder, mean_over
from digirl_dist.agent.autoui.model import Pretrained
from digirl_dist.agent.sampling import AnswerSampler, SamplingParams, joined, log_probs_of_answers, padded
from digirl_dist.emulator.aitw import DECISION, PROMPT_BEGINS, read_autoui, to_autoui, to_prompt
from digirl_dist.emulator.touch_actions import TOKENS, DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_ROWS_AT_ONCE = 16
"""Logits of a whole vocabulary for each token of an answer take 16 MB a row."""
_PROMPT_LENGTH = 512
"""Longest prompt in tokens; of a longer one, only the end is read."""


class AutoUiAgent(nn.Module):
    """Fulfils ``Agent``.

    The probability of an action is that of the tokens it was said in, which it carries along. An answer that is no
    action is ``wait``. Screenshots may be in the observations, or their features (``vector``), as in DigiRL's data.
    """

    def __init__(
        self,
        pretrained: Pretrained,
        screens: ScreenEncoder,
        critic: TextEncoder | None,
        *,
        answer_length: int,
        temperature: float,
    ) -> None:
        """``answer_length`` is in tokens. Raises SettingsError for weights that do not fit."""
        super().__init__()
        self._model = pretrained.model().eval()
        self._tokenizer = copy.deepcopy(pretrained.tokenizer)  # one must not be used by two threads at once
        self._screens, self._critic = screens, critic
        ends = frozenset([self._tokenizer.eos_token_id])
        self._sampling = SamplingParams(ends, answer_length, temperature)
        begins = self._model.config.pad_token_id
        self._model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=answer_length,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=begins,
            decoder_start_token_id=begins,
            do_sample=False,
        )

    @property
    def feature_size(self) -> int:
        text = self._model.config.d_model if self._critic is None else self._critic.width
        return int(text + self._screens.width)

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        read, mask = self._read(observations)
        sampler = AnswerSampler(self._sampling, rngs)
        read = BaseModelOutput(last_hidden_state=read)
        self._model.generate(encoder_outputs=read, attention_mask=mask, logits_processor=LogitsProcessorList([sampler]))
        return [answer.decision(self._action(answer.tokens)) for answer in sampler.answers()]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        return self.token_log_probs(observations, actions)[0].sum(dim=1)

    def token_log_probs(
        self, observations: Sequence[Observation], actions: Sequence[Json]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what was said; of an action that came without tokens, AutoUI's way to say it; of a text, that text."""
        answers = [self._tokens(action) for action in actions]
        parts = [slice(first, first + _ROWS_AT_ONCE) for first in range(0, len(answers), _ROWS_AT_ONCE)]
        return joined([self._log_prob(observations[part], answers[part]) for part in parts], answers)

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """What the critic's encoder (or the policy's own, without one) makes of the prompt, and the screenshot's."""
        with torch.no_grad():
            screens = self._screens.features(observations, self._device)
            if self._critic is not None:
                texts = self._critic.features([_prompt(seen) for seen in observations], self._device)
            else:
                prompts, mask = self._prompts(observations)
                texts = mean_over(self._model.encoder(input_ids=prompts, attention_mask=mask).last_hidden_state, mask)
            return torch.cat([texts, screens], dim=1)

    def state_dict(self, *_: Any, **__: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Under the names of ``Auto-UI-Base``, but for the two more that its embeddings have there."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def load_state_dict(self, state: Mapping[str, torch.Tensor], *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """Raises RuntimeError or KeyError for other names or shapes."""
        shared = {f"{stack}.embed_tokens.weight": state["shared.weight"] for stack in ("encoder", "decoder")}
        return self._model.load_state_dict({**state, **shared})

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    def _log_prob(self, observations: Sequence[Observation], answers: Sequence[list[int]]) -> torch.Tensor:
        read, mask = self._read(observations)
        logits = self._model.logits(read, mask, padded(answers)[0].to(self._device))
        return log_probs_of_answers(logits, answers, self._sampling)

    def _read(self, observations: Sequence[Observation]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model makes of prompts and screenshots, [B, L, d_model], and the mask [B, L]."""
        prompts, mask = self._prompts(observations)
        return self._model.read(prompts, mask, self._screens.features(observations, self._device)), mask

    def _prompts(self, observations: Sequence[Observation]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and mask [B, L]; of a long prompt the end."""
        given = self._tokenizer(
            [_prompt(seen) for seen in observations],
            padding=True,
            truncation=True,
            max_length=_PROMPT_LENGTH,
            return_tensors="pt",
        )
        return given["input_ids"].to(self._device), given["attention_mask"].to(self._device)

    def _action(self, tokens: list[int]) -> Json:
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return {**read_or_wait(text, read_autoui), TOKENS: tokens}

    def _tokens(self, action: Json) -> list[int]:
        """Raises ActionError for what is neither a text nor a device action."""
        if isinstance(action, dict) and TOKENS in action:
            given = list(action[TOKENS])
            known = self._model.config.vocab_size
            if not given or not all(type(token) is int and 0 <= token < known for token in given):
                raise ActionError("an action's tokens are not those of this model")
            return given
        text = action if isinstance(action, str) else f"{DECISION} {to_autoui(DeviceAction.from_json(action))}"
        tokens: list[int] = self._tokenizer(text, truncation=True, max_length=self._sampling.length)["input_ids"]
        return tokens


def _prompt(seen: Observation) -> str:
    return seen.text if seen.text.startswith(PROMPT_BEGINS) else to_prompt(seen.text, ())
