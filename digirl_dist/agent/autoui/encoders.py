"""Frozen models that only read. They are no part of a checkpoint: each machine that needs one loads it from a path.

Both are loaded at their first use, once for all agents of a process, and used by one thread at a time. What travels to
a worker is the path.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, AutoModel, AutoTokenizer, Blip2VisionModel, BlipImageProcessorPil

from digirl_dist.agent.pixels import opened
from digirl_dist.errors import SettingsError, TrajectoryError
from digirl_dist.settings.paths import expanded
from digirl_dist.storage.digest import digest
from digirl_dist.trajectory import Observation

_SCREENS_AT_ONCE = 16
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_SCREENS_REMEMBERED = 50_000


class ScreenEncoder:
    """Features of screenshots: the pooled output of BLIP-2's image encoder, in ``path``, as AutoUI and DigiRL take it.

    Training sees the same screenshots over and over: the features of the newest ones are remembered.
    """

    def __init__(self, path: str | None, width: int) -> None:
        self._path = path
        self.width = width
        self._model: Any = None
        self._processor: Any = None
        self._known: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> Any:
        return ScreenEncoder, (self._path, self.width)

    def features(self, observations: Sequence[Observation], device: torch.device) -> torch.Tensor:
        """[B, width], computed on ``device``. An observation's ``vector`` has them at its end, or else its screenshot.

        Raises TrajectoryError for an observation without either, SettingsError where the encoder cannot be had.
        """
        images = [seen.image for seen in observations if seen.vector is None]
        with _reading(self._lock):
            self._look_at({digest(image): image for image in images if image is not None}, device)
            found = torch.stack([self._of(seen) for seen in observations])
            while len(self._known) > _SCREENS_REMEMBERED:
                self._known.popitem(last=False)
            return found.to(device)

    def _of(self, seen: Observation) -> torch.Tensor:
        if seen.vector is not None:
            return _own_features(seen.vector, self.width)
        if seen.image is None:
            raise TrajectoryError("an observation has neither a screenshot nor its features, which agent=autoui needs")
        return self._known[digest(seen.image)]

    def _look_at(self, images: dict[str, bytes], device: torch.device) -> None:
        """Have the features of these, which are named by their digests."""
        names = [name for name in images if name not in self._known]
        for first in range(0, len(names), _SCREENS_AT_ONCE):
            part = names[first : first + _SCREENS_AT_ONCE]
            pictures = [opened(images[name]) for name in part]
            model, processor = self._loaded()
            pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
            pooled = model.to(device)(pixels.to(device)).pooler_output
            self._known.update(zip(part, pooled.float().cpu(), strict=True))

    def _loaded(self) -> tuple[Any, Any]:
        if self._model is None:
            folder = _folder(self._path, "agent.vision_encoder", "BLIP-2 (Salesforce/blip2-opt-2.7b)")
            self._processor = BlipImageProcessorPil.from_pretrained(folder)
            self._model = _vision_model(folder, self.width)
        return self._model, self._processor


class TextEncoder:
    """Reads prompts for the value functions: the mean of the last hidden states of the model in ``path``.

    DigiRL takes roberta-base, but its pooled output, whose weights the release lacks: every start draws others.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._model: Any = None
        self._tokenizer: Any = None
        self._lock = Lock()

    def __reduce__(self) -> Any:
        return TextEncoder, (self._path,)

    @cached_property
    def width(self) -> int:
        """Raises SettingsError where the folder is not."""
        return int(AutoConfig.from_pretrained(self._folder).hidden_size)

    def features(self, texts: Sequence[str], device: torch.device) -> torch.Tensor:
        """[B, width], computed on ``device``. Raises SettingsError where the folder is not."""
        with _reading(self._lock):
            if self._model is None:
                self._tokenizer = AutoTokenizer.from_pretrained(self._folder, truncation_side="left")
                self._model = _text_model(self._folder)
            given = self._tokenizer(list(texts), padding=True, truncation=True, max_length=512, return_tensors="pt")
            hidden = self._model.to(device)(**given.to(device)).last_hidden_state
            return mean_over(hidden, given["attention_mask"])

    @property
    def _folder(self) -> Path:
        return _folder(self._path, "agent.critic_encoder", "a text encoder (roberta-base)")


def mean_over(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of hidden states [B, L, D] where the mask [B, L] is 1: [B, D]."""
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)


@contextmanager
def _reading(lock: Lock) -> Iterator[None]:
    """One at a time, without gradients. What is loaded and remembered by who acts may be used by who learns."""
    with lock, torch.inference_mode(False), torch.no_grad():
        yield


class _Vision(Blip2VisionModel):  # type: ignore[misc]
    """Beside it, the folder of a whole BLIP-2 holds parts that are not read."""

    _keys_to_ignore_on_load_unexpected = [r".*"]  # noqa: RUF012 - so in transformers


def _vision_model(folder: Path, width: int) -> Any:
    """From the folder of a whole BLIP-2, or of its image encoder alone. Raises SettingsError."""
    model, told = _Vision.from_pretrained(folder, key_mapping={r"^vision_model\.": ""}, output_loading_info=True)
    if told["missing_keys"]:
        raise SettingsError(f"{folder} lacks {len(told['missing_keys'])} parameters of BLIP-2's image encoder")
    if model.config.hidden_size != width:
        raise SettingsError(
            f"the image encoder in {folder} has {model.config.hidden_size} features; agent.image_features={width}"
        )
    return model.eval()


def _text_model(folder: Path) -> Any:
    """Raises SettingsError if weights are missing, but for those of a pooled output, which is not used."""
    model, told = AutoModel.from_pretrained(folder, output_loading_info=True)
    missing = [name for name in told["missing_keys"] if "pooler" not in name]
    if missing:
        raise SettingsError(f"{folder} lacks {len(missing)} parameters of its text encoder, {missing[0]} for one")
    return model.eval()


def _folder(path: str | None, setting: str, what: str) -> Path:
    """The folder ``path``, or that of the hub's model of this name, downloaded once. Raises SettingsError."""
    folder = expanded(path or "", setting)
    if path is None or not _HUB_NAME.fullmatch(path) or folder.exists():
        if path is None or not (folder / "config.json").is_file():
            raise SettingsError(
                f"{setting}={path} is no folder with {what} on this machine; download it and name its folder, or name "
                "the model as the Hugging Face hub does"
            )
        return folder
    try:
        return Path(snapshot_download(path, allow_patterns=["*.json", "*.txt", "*.model", "*.safetensors"]))
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"{setting}={path} is no folder here, and the hub does not give it: {reason}") from error


def _own_features(vector: np.ndarray, width: int) -> torch.Tensor:
    """The newest frame's are the last."""
    if len(vector) < width:
        raise TrajectoryError(
            f"an observation has {len(vector)} numbers in place of {width} image features; agent=autoui reads "
            "screenshots, or trajectories that hold such features (agent.image_features)"
        )
    return torch.tensor(vector[-width:], dtype=torch.float32)
