"""Folders in the form of the released models, tiny and random: AutoUI, BLIP-2, a text encoder."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch

LAYERS, HEADS, WIDTH, KEY, INNER, FEATURES = 2, 2, 16, 8, 24, 12
PIECES = [
    *("▁Previous", "▁Actions:", "▁Goal:", "▁Action", "▁Plan:", "▁Decision:", '▁"[', ']",', '▁""', "▁open", "▁the"),
    *('▁"action_type":', '▁"touch_point":', '▁"lift_point":', '▁"typed_text":', "▁app", "▁", "0.", "-1.0,", "▁-1.0"),
    *('▁"DUAL_POINT",', '▁"TYPE",', '▁"PRESS_BACK",', '▁"PRESS_HOME",', '▁"STATUS_TASK_COMPLETE",'),
]
VOCABULARY = ["<pad>", "</s>", "<unk>", *PIECES, *string.digits, *string.ascii_letters, *string.punctuation]


def released_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes as in ``Auto-UI-Base`` (pytorch_model.bin), for a smaller model."""
    shapes = {f"{stack}.embed_tokens.weight": (len(VOCABULARY), WIDTH) for stack in ("encoder", "decoder")}
    shapes |= {"shared.weight": (len(VOCABULARY), WIDTH), "lm_head.weight": (len(VOCABULARY), WIDTH)}
    for stack, attentions in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        shapes[f"{stack}.final_layer_norm.weight"] = (WIDTH,)
        shapes[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (32, HEADS)
        for block in range(LAYERS):
            at = f"{stack}.block.{block}.layer"
            for layer, attention in enumerate(attentions):
                shapes[f"{at}.{layer}.layer_norm.weight"] = (WIDTH,)
                shapes |= {f"{at}.{layer}.{attention}.{name}.weight": (HEADS * KEY, WIDTH) for name in "qkv"}
                shapes[f"{at}.{layer}.{attention}.o.weight"] = (WIDTH, HEADS * KEY)
            last = len(attentions)
            shapes[f"{at}.{last}.layer_norm.weight"] = (WIDTH,)
            shapes |= {f"{at}.{last}.DenseReluDense.wi_{half}.weight": (INNER, WIDTH) for half in (0, 1)}
            shapes[f"{at}.{last}.DenseReluDense.wo.weight"] = (WIDTH, INNER)
    fusion = {
        "image_dense.weight": (WIDTH, FEATURES),
        "image_dense.bias": (WIDTH,),
        "mha_layer.in_proj_weight": (3 * WIDTH, WIDTH),
        "mha_layer.in_proj_bias": (3 * WIDTH,),
        "mha_layer.out_proj.weight": (WIDTH, WIDTH),
        "mha_layer.out_proj.bias": (WIDTH,),
        "gate_dense.weight": (WIDTH, 2 * WIDTH),
        "gate_dense.bias": (WIDTH,),
    }
    return shapes | fusion


def random_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in released_shapes().items()}
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.embed_tokens.weight"] = weights["shared.weight"]
    return weights


def make_autoui(folder: Path, weights: dict[str, torch.Tensor] | None = None) -> Path:
    """The files of the release: config.json as transformers 4 wrote it, a tokenizer, pytorch_model.bin."""
    from transformers import T5Tokenizer

    folder.mkdir(parents=True)
    config = {
        "architectures": ["T5ForMultimodalGeneration"],
        "model_type": "t5",
        "vocab_size": len(VOCABULARY),
        "d_model": WIDTH,
        "d_kv": KEY,
        "d_ff": INNER,
        "num_layers": LAYERS,
        "num_decoder_layers": LAYERS,
        "num_heads": HEADS,
        "feed_forward_proj": "gated-gelu",
        "dropout_rate": 0.1,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "is_encoder_decoder": True,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-6,
    }
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary = [(piece, -1.0 if len(piece) > 1 else -4.0) for piece in VOCABULARY]
    T5Tokenizer(vocab=vocabulary, extra_ids=0).save_pretrained(folder)
    torch.save(random_weights() if weights is None else weights, folder / "pytorch_model.bin")
    return folder


def make_blip(folder: Path) -> Path:
    """A whole BLIP-2, as Salesforce/blip2-opt-2.7b is one: image encoder, Q-Former, language model."""
    from transformers import Blip2Config, Blip2Model, BlipImageProcessorPil, OPTConfig

    small = {"hidden_size": FEATURES, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    opt = OPTConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, ffn_dim=8, word_embed_proj_dim=8
    )
    torch.manual_seed(1)
    whole = Blip2Model(
        Blip2Config(
            vision_config={**small, "image_size": 28, "patch_size": 14},
            qformer_config={**small, "vocab_size": 8, "encoder_hidden_size": FEATURES},
            text_config=opt.to_dict(),
            num_query_tokens=2,
        )
    )
    whole.save_pretrained(folder)
    BlipImageProcessorPil(size={"height": 28, "width": 28}).save_pretrained(folder)
    return folder


def make_text_encoder(folder: Path) -> Path:
    """A RoBERTa with AutoUI's words."""
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaModel, T5Tokenizer

    torch.manual_seed(2)
    config = RobertaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=10,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=600,
        pad_token_id=0,
    )
    RobertaModel(config).save_pretrained(folder)
    words = T5Tokenizer(vocab=[(piece, -1.0) for piece in VOCABULARY], extra_ids=0)
    PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, pad_token="<pad>").save_pretrained(folder)
    return folder
