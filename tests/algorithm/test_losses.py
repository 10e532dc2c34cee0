"""Losses of tokens against independent computations: plain loops, and TRL's where it has the same."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from digirl_dist.algorithm.losses import (
    Compared,
    clipped_loss,
    divergences,
    importance_of,
    mean_of_tokens,
    most_ratio,
    with_entropy,
)
from digirl_dist.algorithm.options import GrpoActorSettings, GrpoOptions, Loss

LENGTHS = (5, 1, 3, 4)
LOW, HIGH = 0.2, 0.28


def spoken(seed: int, spread: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [B, T], 0 beyond the end of an action, and the mask of tokens."""
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    found = -spread * torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return found.masked_fill(~mask, 0.0), mask


def compared(loss: Loss, **changed: Any) -> tuple[torch.Tensor, torch.Tensor, Compared, GrpoOptions]:
    """New log-probabilities far enough from the old ones that both clips are reached."""
    (now, mask), (old, _), (acted, _) = spoken(1, 0.8), spoken(2, 0.8), spoken(3)
    settings = GrpoOptions(loss=loss, clip_low=LOW, clip_high=HIGH, actor=GrpoActorSettings(kl_weight=0.3))
    advantages = torch.tensor([1.0, -0.5, -2.0, 0.25], dtype=torch.float64)[:, None].expand_as(old)
    counts = mask.sum(dim=1).double() if loss is Loss.token else torch.ones(len(LENGTHS), dtype=torch.float64)
    importance = importance_of(old, acted, mask, loss, 1.1)
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64) * counts / counts.mean()
    return now, mask, replace(Compared(old, importance, advantages, weights), **changed), settings


def by_hand(now: torch.Tensor, batch: Compared, acted: torch.Tensor, loss: Loss, kl: float) -> float:
    """The formulas of docs/algorithms.md, one number at a time."""
    total = 0.0
    for row, length in enumerate(LENGTHS):
        new, old, before = (part[row, :length].tolist() for part in (now, batch.old, acted))
        ratios = [math.exp(one - other) for one, other in zip(new, old, strict=True)]
        importance = [min(math.exp(one - other), 1.1) for one, other in zip(old, before, strict=True)]
        if loss is Loss.sequence:
            ratios = [math.exp((sum(new) - sum(old)) / length)] * length
            importance = [min(math.exp((sum(old) - sum(before)) / length), 1.1)] * length
        advantage, gains = float(batch.advantages[row, 0]), []
        for place, ratio in enumerate(ratios):
            gain = min(ratio * advantage, min(max(ratio, 1 - LOW), 1 + HIGH) * advantage)
            gain = max(gain, most_ratio(HIGH) * advantage) if advantage < 0 else gain
            start = 0.0 if batch.start is None else float(batch.start[row, place])
            gap = start - new[place]
            gains.append(importance[place] * gain - kl * (math.exp(gap) - gap - 1))
        total += float(batch.weights[row]) * sum(gains) / length
    return -total / len(LENGTHS)


@pytest.mark.parametrize("has_start", [False, True])
@pytest.mark.parametrize("loss", Loss)
def test_each_loss_is_that_of_its_formula(loss: Loss, has_start: bool) -> None:
    start = spoken(4)[0] if has_start else None
    now, mask, batch, settings = compared(loss, start=start)
    found, ratios = clipped_loss(now, mask, batch, settings)
    assert float(found) == pytest.approx(by_hand(now, batch, spoken(3)[0], loss, 0.3 * has_start), abs=1e-9)
    assert ((ratios < 1 - LOW) | (ratios > 1 + HIGH))[mask].any(), "some are clipped"
    narrower, _ = clipped_loss(now[1:2, :1], mask[1:2, :1], batch[[1]], settings)
    wider, _ = clipped_loss(now[1:2], mask[1:2], batch[[1]], settings)
    assert float(narrower) == pytest.approx(float(wider), abs=1e-12), "what fills rows up counts for nothing"
    alone = [float(clipped_loss(now[[row]], mask[[row]], batch[[row]], settings)[0]) for row in range(len(LENGTHS))]
    assert float(found) == pytest.approx(sum(alone) / len(alone), abs=1e-12), "a row counts alike in any minibatch"


@pytest.mark.nightly
@pytest.mark.component  # importing it takes a fifth of all unit tests
@pytest.mark.parametrize(
    ("loss", "kind", "level"),
    [("step", "grpo", "token"), ("token", "bnpo", "token"), ("sequence", "grpo", "sequence")],
)
def test_losses_are_those_of_trl(loss: str, kind: str, level: str) -> None:
    """Its dual clip is called delta; it weighs tokens by what its engine said, as here by who acted."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    counts = torch.tensor(LENGTHS if loss == "token" else [1] * len(LENGTHS), dtype=torch.float64)
    now, mask, batch, settings = compared(Loss(loss), weights=counts / counts.mean(), start=spoken(4)[0])
    accelerator = SimpleNamespace(reduce=lambda value, **_: value, gather=lambda value: value, sync_gradients=True)
    made = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (now, torch.zeros_like(now), None),
        args=SimpleNamespace(delta=most_ratio(HIGH), use_bias_correction_kl=False),
        model=SimpleNamespace(training=True), accelerator=accelerator, _metrics=defaultdict(lambda: defaultdict(list)),
        loss_type=kind, importance_sampling_level=level, epsilon_low=LOW, epsilon_high=HIGH, beta=0.3,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, aux_loss_enabled=False, use_vllm=True,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
    )  # fmt: skip
    ids = mask.long()
    inputs = {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": ids,
        "advantages": batch.advantages[:, 0], "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.start, "importance_sampling_ratio": batch.importance,
    }  # fmt: skip
    theirs = trainer._compute_loss(made, None, inputs)
    assert float(clipped_loss(now, mask, batch, settings)[0]) == pytest.approx(float(theirs), abs=1e-6)


def test_the_divergence_is_none_from_itself_and_positive_otherwise() -> None:
    now, mask = spoken(1)
    assert not divergences(now, now).any() and (divergences(now, spoken(2)[0])[mask] >= 0).all()


def test_what_is_far_apart_costs_a_finite_amount() -> None:
    now, mask, batch, settings = compared(Loss.token, old=torch.full((4, 5), -1e4, dtype=torch.float64))
    batch = replace(batch, start=torch.zeros(4, 5, dtype=torch.float64))
    found, _ = clipped_loss(now.clone().requires_grad_(), mask, batch, settings)
    found.backward()
    assert math.isfinite(found.item())


def test_the_surprise_that_is_added_has_the_gradient_of_the_entropy() -> None:
    """Over all actions of one distribution, each as often as it is probable."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    log_probs = logits.log_softmax(0)
    chances = log_probs.exp().detach()
    surprise = with_entropy(torch.zeros(3, dtype=torch.float64), log_probs.detach(), 0.0, 1.0)
    (found,) = torch.autograd.grad((chances * log_probs * surprise).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad(-(log_probs.exp() * log_probs).sum(), logits)
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_mean_over_tokens_leaves_out_what_is_none() -> None:
    values, mask = torch.tensor([[1.0, 3.0, math.nan]]), torch.tensor([[True, True, False]])
    assert mean_of_tokens(values, mask).tolist() == [2.0]
