"""A language model so small that a test makes it: each of its words is an action."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

TAPS = [f'{{"type":"tap","x":{x / 8:g},"y":{y / 8:g}}}' for x in range(1, 8, 2) for y in range(1, 8)]


def make_tiny_model(folder: Path, words: Iterable[str], answers: Iterable[str] = TAPS) -> Path:
    """Writes a checkpoint that reads ``words`` and writes one of ``answers``; returns the folder."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    said = dict.fromkeys(answers)
    vocabulary = {
        word: number for number, word in enumerate(["<pad>", "<end>", "<unk>", *{**said, **dict.fromkeys(words)}])
    }
    split = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    split.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=split, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, "vocab_size": len(vocabulary)}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
