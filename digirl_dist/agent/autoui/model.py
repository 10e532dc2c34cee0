"""AutoUI's network: T5 whose encoder output is mixed with a screenshot's features (arXiv 2309.11436, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded


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
        filler = torch.full_like(answers[:, :1], self.config.pad_token_id)  # with which T5 begins
        before = torch.cat([filler, answers[:, :-1]], dim=1)
        outcome = self(encoder_outputs=(read,), attention_mask=mask, decoder_input_ids=before, use_cache=False)
        logits: torch.Tensor = outcome.logits
        return logits


@dataclass(frozen=True)
class Pretrained:
    """Its configuration and tokenizer, which travel to workers, and where its weights are, which are pushed there."""

    folder: Path
    config: T5Config
    tokenizer: Any
    features: int
    """Width of a screenshot's features."""

    @classmethod
    def open(cls, path: str, features: int, dropout: float) -> Pretrained:
        """Raises SettingsError for a folder that does not hold it."""
        folder = expanded(path, "agent.model").resolve()
        if not (folder / "config.json").is_file():
            raise SettingsError(
                f"agent.model={path} is no folder with a checkpoint; download Auto-UI-Base from huggingface.co/cooelf/"
                "Auto-UI and name the folder that has config.json, tokenizer and weights in it"
            )
        try:
            config = T5Config.from_pretrained(folder, dropout_rate=dropout)
            tokenizer = AutoTokenizer.from_pretrained(folder, truncation_side="left", padding_side="right")
        except (OSError, ValueError) as error:
            raise SettingsError(f"agent.model={path} cannot be read: {error}") from error
        return cls(folder, config, tokenizer, features)

    def model(self) -> FusionT5:
        """The released weights where the folder is, random ones elsewhere.

        Raises SettingsError if the weights are not those of this network.
        """
        if not self.folder.is_dir():
            return FusionT5(self.config, self.features)
        try:
            model, told = FusionT5.from_pretrained(
                self.folder,
                self.features,
                config=self.config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are told, too
            )
        except (OSError, RuntimeError) as error:
            raise SettingsError(f"the weights in {self.folder} cannot be loaded: {error}") from error
        mismatched = (mismatch[0] for mismatch in told["mismatched_keys"])
        wrong = sorted([*told["missing_keys"], *told["unexpected_keys"], *mismatched])
        if wrong:
            raise SettingsError(
                f"{self.folder} does not hold Auto-UI-Base or a model of its form (agent.image_features="
                f"{self.features}): missing, unexpected or of another size are {', '.join(wrong[:5])}"
            )
        return model  # type: ignore[no-any-return]
