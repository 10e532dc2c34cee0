"""A folder that holds ``Auto-UI-Base``, or what has its form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, T5Config

from digirl_dist.agent.autoui.model import FusionT5
from digirl_dist.errors import SettingsError
from digirl_dist.settings.paths import expanded


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
