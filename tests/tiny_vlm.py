"""A chat model that sees, tiny and random, in a folder as the hub would have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

SPECIAL = ["<pad>", "<unk>", "<end>", "<image>"]
WORDS = [
    "tap(0.12,0.35)",
    "tap(0.5,0.35)",
    "tap(0.5,0.55)",
    "click(0.12,0.35)",
    "back",
    "home",
    "done",
    "hmm",
    "Task:",
    "open",
]
"""Most of what it can say is an action; the first and the fourth open the demo phone's clock."""

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image> {% else %}{{ part['text'] }} {% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


@dataclass(frozen=True)
class Size:
    """Of both halves, that which sees and that which writes."""

    width: int = 16
    inner: int = 16
    layers: int = 2
    heads: int = 2
    side: int = 16
    """Pixels of a screenshot."""
    patch: int = 8


TINY = Size()
MEDIUM = Size(width=1024, inner=4096, layers=12, heads=16, side=336, patch=14)
"""A third of a billion parameters, and 576 tokens for a screenshot."""
LARGE = Size(width=2048, inner=8192, layers=24, heads=16, side=336, patch=14)
"""2.8 billion parameters, and as many tokens."""


def save_tiny_vlm(
    folder: Path, seed: int = 0, size: Size = TINY, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Path:
    """Random weights of LLaVA's architecture, made on ``device`` and saved as ``dtype``.

    Those of ``TINY`` are spread enough for some answers to be likelier.
    """
    torch.manual_seed(seed)
    words = [*SPECIAL, *WORDS]
    both = {
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
    }
    text = LlamaConfig(
        vocab_size=len(words),
        num_key_value_heads=size.heads,
        max_position_embeddings=2048,
        eos_token_id=2,
        **both,
    )
    config = LlavaConfig(
        text_config=text,
        vision_config=CLIPVisionConfig(image_size=size.side, patch_size=size.patch, projection_dim=size.width, **both),
        image_token_id=words.index("<image>"),
        tie_word_embeddings=False,
    )
    with torch.device(device):
        model = LlavaForConditionalGeneration(config).to(dtype)
    for parameter in model.parameters() if size == TINY else ():
        parameter.data *= 8.0 if parameter.dim() > 1 else 1.0
    model.save_pretrained(folder)
    _processor(words, size).save_pretrained(folder)
    return folder


def _processor(words: list[str], size: Size) -> LlavaProcessor:
    tokens = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<end>",
        additional_special_tokens=["<image>"],
    )
    side = {"height": size.side, "width": size.side}
    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=side, crop_size=side),
        tokenizer=tokenizer,
        patch_size=size.patch,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE,
    )
