"""AutoUI's network: T5 whose encoder output is mixed with a screenshot's features (arXiv 2309.11436, section 3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration


class FusionT5(T5ForConditionalGeneration):  # type: ignore[misc]
    """Parameters are named and shaped as in the released ``Auto-UI-Base``.

    Its head is a matrix of its own. transformers 5 would tie it to the embeddings, as T5's first version had it.
    """

    _tied_weights_keys = {  # noqa: RUF012 - so in transformers
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: T5Config, features: int) -> None:
        """``features`` is the width of a screenshot's features."""
        super().__init__(config)
        width = config.d_model
        self.image_dense = nn.Linear(features, width)
        self.mha_layer = nn.MultiheadAttention(width, num_heads=1, batch_first=True)
        self.gate_dense = nn.Linear(2 * width, width)

    def read(self, prompts: torch.Tensor, mask: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """What the decoder attends to, [B, L, d_model], from prompts and mask [B, L] and features [B, F].

        A token h attends to the screenshot; with a the outcome and g = sigmoid(W [h; a]), it becomes (1 − g) h + g a.
        """
        hidden = self.encoder(input_ids=prompts, attention_mask=mask).last_hidden_state
        screen = self.image_dense(features)[:, None]
        attended, _ = self.mha_layer(hidden, screen, screen, need_weights=False)
        gate = self.gate_dense(torch.cat([hidden, attended], dim=2)).sigmoid()
        mixed: torch.Tensor = (1 - gate) * hidden + gate * attended
        return mixed

    def logits(self, read: torch.Tensor, mask: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
        """Of each token of answers [B, T], from those before it: [B, T, V]."""
        before = torch.cat([self._beginning(answers), answers[:, :-1]], dim=1)
        outcome = self(encoder_outputs=(read,), attention_mask=mask, decoder_input_ids=before, use_cache=False)
        logits: torch.Tensor = outcome.logits
        return logits

    def _beginning(self, like: torch.Tensor) -> torch.Tensor:
        """T5 begins with the filler: [B, 1]."""
        return torch.full_like(like[:, :1], self.config.pad_token_id)


class Answering:
    """Fulfils ``NextLogits``: answers to what the model has read, token by token."""

    def __init__(self, model: FusionT5, read: torch.Tensor, mask: torch.Tensor) -> None:
        self._model = model
        self._read = read
        self._mask = mask
        self._past: Any = None

    def __call__(self, chosen: torch.Tensor | None) -> torch.Tensor:
        if chosen is None:
            chosen = torch.full((len(self._read),), self._model.config.pad_token_id, device=self._read.device)
        outcome = self._model(
            encoder_outputs=(self._read,),
            attention_mask=self._mask,
            decoder_input_ids=chosen[:, None],
            past_key_values=self._past,
            use_cache=True,
        )
        self._past = outcome.past_key_values
        logits: torch.Tensor = outcome.logits[:, -1]
        return logits
