"""A chat model and its processor as they were published, and the low-rank weights that are trained in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForImageTextToText, AutoProcessor, GenerationConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import logging

from digirl_dist.agent.vlm.pictures import RememberedPictures
from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import in_short
from digirl_dist.settings.paths import expanded


def load_processor(name: str, arguments: Mapping[str, Any]) -> Any:
    """Its tokenizer fills prompts up on the left, and pictures pass it once. Raises SettingsError."""
    try:
        load: Any = AutoProcessor.from_pretrained
        processor = load(_place(name), **arguments)
    except (OSError, ValueError, ImportError, TypeError) as error:
        raise _unusable(name, "its processor", error) from error
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or getattr(processor, "image_processor", None) is None or not processor.chat_template:
        raise SettingsError(
            f"agent.model={name} is no chat model that sees: it lacks a tokenizer, an image processor or a "
            "chat template"
        )
    processor.image_processor = RememberedPictures(processor.image_processor)
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return processor


def load_model(name: str, dtype: str, max_new_tokens: int, tokenizer: Any) -> Any:
    """The frozen model, which writes as it is told and not as its own defaults say. Raises SettingsError."""
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForImageTextToText.from_pretrained(_place(name), dtype=dtype)
    except (OSError, ValueError, ImportError) as error:
        raise _unusable(name, "it", error) from error
    if model.config.is_encoder_decoder:
        raise SettingsError(f"agent.model={name} is an encoder with a decoder; agent=vlm needs a chat model")
    ends = ends_of(model.generation_config.eos_token_id) | ends_of(tokenizer.eos_token_id)
    if not ends:
        raise SettingsError(f"agent.model={name} has no token that ends an answer")
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    return model


def with_lora(model: Any, *, r: int, alpha: int, dropout: float, targets: Sequence[str], exclude: str | None) -> Any:
    """The model with fresh low-rank weights, which change nothing yet; all others are frozen. Raises SettingsError."""
    layers: Any = targets[0] if list(targets) == ["all-linear"] else list(targets)
    config = LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=layers, exclude_modules=exclude)
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise SettingsError(f"agent.lora does not fit {type(model).__name__}: {error}") from error


def recompute_activations(model: Any) -> None:
    """Makes each layer keep its inputs alone and compute the rest again in the backward pass (arXiv 1604.06174).

    transformers does so in training mode only, but ratios of probabilities are learned from in evaluation mode. Raises
    SettingsError for a model without such layers.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise SettingsError(f"agent.gradient_checkpointing=true: {type(model).__name__} has no layers made for it")
    for layer in layers:
        layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Any, *arguments: Any, **named: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    return checkpoint(forward, *arguments, use_reentrant=False, **named)


def ends_of(eos_token_id: int | list[int] | None) -> set[int]:
    """The tokens that end an answer, as configurations have them."""
    if eos_token_id is None:
        return set()
    return set(eos_token_id) if isinstance(eos_token_id, list) else {eos_token_id}


def placeholders(config: Any) -> tuple[int, ...]:
    """The tokens in whose places a model reads pictures: it must not write them."""
    names = ("image_token_id", "image_token_index", "video_token_id", "audio_token_id")
    return tuple(sorted({token for name in names if isinstance(token := getattr(config, name, None), int)}))


def _place(model: str) -> str:
    """A folder if there is one, otherwise a name on the hub."""
    folder = expanded(model, "agent.model")
    return str(folder) if folder.is_dir() else model


def _unusable(name: str, what: str, error: Exception) -> SettingsError:
    reason = in_short(error, 300)
    return SettingsError(
        f"agent.model={name}: {what} cannot be loaded on this machine; name a folder that is there, or a "
        f"model of the hub that can be reached: {reason}"
    )
