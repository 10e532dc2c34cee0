"""A chat model that sees, as a policy: it is shown the screen and writes what to do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn
from transformers import LogitsProcessorList

from digirl_dist.agent.answers import Coordinates
from digirl_dist.agent.sampling import AnswerSampler, SamplingParams, joined, log_probs_of_answers, padded
from digirl_dist.agent.vlm.pictures import Scaled, screenshot
from digirl_dist.agent.vlm.pretrained import (
    ends_of,
    load_model,
    load_processor,
    placeholders,
    recompute_activations,
    with_lora,
)
from digirl_dist.agent.vlm.wording import Wording
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json, T

Inputs = dict[str, torch.Tensor]
"""What the model reads: ``input_ids`` and ``attention_mask`` [B, P], prompts filled up on the left, and pictures."""


class VlmAgent(nn.Module):
    """Fulfils ``Agent``.

    The probability of an action is that of the tokens it was written in, which it carries along; writing that is no
    action is ``wait``. Only the low-rank weights learn, and only they are the state: every machine that acts or learns
    has the model itself from ``agent.model``.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        *,
        model: str,
        lora: Mapping[str, Any],
        dtype: str,
        processor: Mapping[str, Any],
        max_new_tokens: int,
        temperature: float,
        system: str,
        coordinates: Coordinates,
        screenshots: int,
        rows_at_once: int,
        gradient_checkpointing: bool,
    ) -> None:
        """The values are the settings of ``agent=vlm``. Raises SettingsError for a model that cannot be used."""
        super().__init__()
        assert spec.image_size is not None  # as the plugin's ``suits`` says
        self.image_size = spec.image_size
        self.model, self.processor_arguments = model, dict(processor)
        self._rows_at_once = rows_at_once
        self._processor = load_processor(model, processor)
        self._adapted = with_lora(load_model(model, dtype, max_new_tokens, self._processor.tokenizer), **lora)
        if gradient_checkpointing:
            recompute_activations(self._model)
        ends = frozenset(ends_of(self._model.generation_config.eos_token_id))
        self._sampling = SamplingParams(ends, max_new_tokens, temperature, placeholders(self._model.config))
        vocabulary = self._model.get_input_embeddings().num_embeddings
        tokenizer, scaled = self._processor.tokenizer, Scaled(self._processor.image_processor)
        self.wording = Wording(
            model,
            tokenizer,
            self._sampling,
            vocabulary,
            system=system,
            coordinates=coordinates,
            earlier=screenshots - 1,
            scaled=scaled,
        )
        self.feature_size = int(self._model.config.get_text_config().hidden_size)
        self.eval()

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        rows = list(zip(observations, rngs, strict=True))
        return [decision for part in self._parts(rows) for decision in self._decide(part)]

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        return self.token_log_probs(observations, actions)[0].sum(dim=1)

    def token_log_probs(
        self, observations: Sequence[Observation], actions: Sequence[Json]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what was written; of an action that was not, its JSON. Raises TrajectoryError for impossible tokens.

        With gradients, the activations of all rows are kept: that is what the algorithm's ``rows_at_once`` bounds.
        """
        answers = [self.wording.tokens(action) for action in actions]
        rows = list(zip(observations, answers, strict=True))
        return joined([self._log_prob(part) for part in self._parts(rows)], answers)

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """The last hidden state at the end of the prompt."""
        with torch.no_grad():
            seen = [self._model.base_model(**self._read(part), use_cache=False) for part in self._parts(observations)]
            return torch.cat([outcome.last_hidden_state[:, -1].float() for outcome in seen])

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those that learn."""
        return (parameter for parameter in super().parameters(recurse) if parameter.requires_grad)

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The low-rank weights, under the names that peft gives them in its own files."""
        state: dict[str, torch.Tensor] = get_peft_model_state_dict(self._adapted, save_embedding_layers=False)
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:  # type: ignore[override]
        """Raises RuntimeError for other names or shapes."""
        own = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        if {name: tuple(tensor.shape) for name, tensor in state.items()} != own:
            raise RuntimeError("these are not the low-rank weights of agent.model with agent.lora")
        return set_peft_model_state_dict(self._adapted, dict(state))

    def save_merged(self, folder: Path) -> None:
        """Saves the model with the low-rank weights added to its own, in its own type, as transformers would."""
        layers, merged = dict(self._model.named_modules()), {}
        for name, tensor in self._model.state_dict().items():
            layer, inside, ending = name.partition(".base_layer")
            if inside and ending == ".weight":
                tensor = (tensor + layers[layer].get_delta_weight("default")).to(tensor.dtype)
            if ".lora_" not in name:
                merged[layer + ending] = tensor.contiguous()
        self._model.save_pretrained(folder, state_dict=merged)

    @property
    def adapter_config(self) -> Any:
        """What peft saves beside the low-rank weights, for others that use them."""
        return self._adapted.peft_config["default"]

    def prompt(self, observation: Observation) -> list[int]:
        """The tokens that the model reads for an observation, those in whose places it reads the picture included."""
        return self._read([observation])["input_ids"][0].tolist()

    @property
    def _model(self) -> Any:
        """The chat model, whose layers hold the low-rank weights."""
        return self._adapted.get_base_model()

    def _parts(self, rows: Sequence[T]) -> Iterator[Sequence[T]]:
        """As many as go through the model together."""
        size = self._rows_at_once
        return (rows[first : first + size] for first in range(0, len(rows), size))

    def _decide(self, rows: Sequence[tuple[Observation, np.random.Generator]]) -> list[Decision]:
        sampler = AnswerSampler(self._sampling, [rng for _, rng in rows])
        given = self._read([seen for seen, _ in rows])
        self._model.generate(**given, logits_processor=LogitsProcessorList([sampler]))
        answered = zip(sampler.answers(), rows, strict=True)
        return [answer.decision(self.wording.action(answer, seen)) for answer, (seen, _) in answered]

    def _log_prob(self, rows: Sequence[tuple[Observation, list[int]]]) -> torch.Tensor:
        """What is written is [B, T]; only the logits from which it was drawn are computed."""
        answers = [tokens for _, tokens in rows]
        given = _continued(self._read([seen for seen, _ in rows]), answers)
        kept = max(map(len, answers)) + 1
        known = inspect.signature(self._model.forward).parameters
        only = {"logits_to_keep": kept} if "logits_to_keep" in known else {}
        logits = self._model(**given, **only, use_cache=False).logits
        return log_probs_of_answers(logits[:, -kept:-1], answers, self._sampling)

    def _read(self, observations: Sequence[Observation]) -> Inputs:
        """Raises TrajectoryError for an observation without a screenshot."""
        chats = [
            self.wording.chat(seen, lambda image: {"type": "image", "image": screenshot(image)})
            for seen in observations
        ]
        given = self._processor.apply_chat_template(
            chats,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        )
        return dict(given.to(device=self._model.device, dtype=self._model.dtype))


def _continued(given: Inputs, answers: Sequence[Sequence[int]]) -> Inputs:
    """Prompts with their answers after them, which are filled up on the right.

    What else a model reads of every token (``token_type_ids`` and the like) is 0 for words that it writes.
    """
    prompts = given["input_ids"]
    tokens, mask = (part.to(prompts.device) for part in padded(answers))
    after = {"input_ids": tokens, "attention_mask": mask.to(given["attention_mask"].dtype)}
    return {
        name: torch.cat([value, after.get(name, torch.zeros_like(tokens)).to(value.dtype)], dim=1)
        if value.shape == prompts.shape
        else value
        for name, value in given.items()
    }
