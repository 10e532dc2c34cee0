"""AutoUI's logits from its weights by the formulas of T5 1.1 and of the fusion, in plain torch; one row at a time."""

from __future__ import annotations

import math

import torch
from agent.autoui_folders import HEADS, KEY, LAYERS, WIDTH

Weights = dict[str, torch.Tensor]


def logits(weights: Weights, prompt: list[int], features: torch.Tensor, answer: list[int]) -> torch.Tensor:
    """[T, V] for the T tokens of ``answer``, each from those before it."""
    seen = fused(weights, stack(weights, "encoder", prompt), features)
    return stack(weights, "decoder", [0, *answer[:-1]], seen) @ weights["lm_head.weight"].T


def fused(weights: Weights, hidden: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    screen = (weights["image_dense.weight"] @ features + weights["image_dense.bias"])[None]
    rows, biases = weights["mha_layer.in_proj_weight"].split(WIDTH), weights["mha_layer.in_proj_bias"].split(WIDTH)
    q, k, v = (given @ row.T + bias for given, row, bias in zip((hidden, screen, screen), rows, biases, strict=True))
    looked = (q @ k.T / math.sqrt(WIDTH)).softmax(dim=1) @ v
    looked = looked @ weights["mha_layer.out_proj.weight"].T + weights["mha_layer.out_proj.bias"]
    both = torch.cat([hidden, looked], dim=1)
    gate = 1 / (1 + (-(both @ weights["gate_dense.weight"].T + weights["gate_dense.bias"])).exp())
    return (1 - gate) * hidden + gate * looked


def stack(weights: Weights, name: str, tokens: list[int], seen: torch.Tensor | None = None) -> torch.Tensor:
    """Encoder, or, with what it has ``seen``, decoder."""
    hidden, count = weights["shared.weight"][tokens], len(tokens)
    table = weights[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    places = torch.tensor([[bucket(key - query, name == "encoder") for key in range(count)] for query in range(count)])
    bias = table[places].permute(2, 0, 1)
    if name == "decoder":
        bias = bias + torch.full((count, count), -math.inf).triu(1)
    for block in range(LAYERS):
        at = f"{name}.block.{block}.layer"
        normed = norm(hidden, weights[f"{at}.0.layer_norm.weight"])
        hidden = hidden + attend(weights, f"{at}.0.SelfAttention", normed, normed, bias)
        if seen is not None:
            normed = norm(hidden, weights[f"{at}.1.layer_norm.weight"])
            hidden = hidden + attend(weights, f"{at}.1.EncDecAttention", normed, seen, torch.zeros(()))
        last = 1 if seen is None else 2
        normed = norm(hidden, weights[f"{at}.{last}.layer_norm.weight"])
        inner = [normed @ weights[f"{at}.{last}.DenseReluDense.wi_{half}.weight"].T for half in (0, 1)]
        hidden = hidden + (gelu(inner[0]) * inner[1]) @ weights[f"{at}.{last}.DenseReluDense.wo.weight"].T
    return norm(hidden, weights[f"{name}.final_layer_norm.weight"])


def attend(weights: Weights, at: str, asking: torch.Tensor, asked: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """T5 does not scale."""
    q, k, v = (
        (given @ weights[f"{at}.{name}.weight"].T).unflatten(1, (HEADS, KEY)).transpose(0, 1)
        for name, given in (("q", asking), ("k", asked), ("v", asked))
    )
    mixed = (q @ k.transpose(1, 2) + bias).softmax(dim=2) @ v
    return mixed.transpose(0, 1).flatten(1) @ weights[f"{at}.o.weight"].T


def norm(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * hidden / (hidden.square().mean(dim=1, keepdim=True) + 1e-6).sqrt()


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())


def bucket(distance: int, both_ways: bool) -> int:
    """Of the key's place minus the query's; T5's 32 buckets up to a distance of 128."""
    buckets, base = (16, 16 * (distance > 0)) if both_ways else (32, 0)
    far = abs(distance) if both_ways else max(-distance, 0)
    exact = buckets // 2
    if far < exact:
        return base + far
    return base + min(exact + int(math.log(far / exact) / math.log(128 / exact) * (buckets - exact)), buckets - 1)
