"""What log-probabilities cost: of actions that are imitated, and of those that are compared with the policy before.

An agent that speaks in tokens has a log-probability for each of the T tokens of an action; any other has T = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from digirl_dist.algorithm.options import GrpoOptions, Loss

MOST_LOG_RATIO = 20.0
"""Log-ratios are clamped to this on both sides before they are exponentiated."""
_DUAL_CLIP = 3.0
"""As in the experiments of arXiv 1912.09729."""
_LIKELIEST = -1e-6
"""Log-probability of an action to avoid beyond which the logarithm of what is left continues as a straight line."""


@dataclass(frozen=True, eq=False)
class Compared:
    """What the clipped objective of N steps is computed from; rows of tokens are 0 beyond the end of an action."""

    old: torch.Tensor
    """Log-probabilities [N, T] that the ratios are taken to."""
    importance: torch.Tensor
    """Weights [N, T] for the policy that acted."""
    advantages: torch.Tensor
    """Of tokens, [N, T]."""
    weights: torch.Tensor
    """Factors of the steps' objectives, [N]."""
    start: torch.Tensor | None = None
    """Log-probabilities [N, T] of the policy that the run began with."""

    def __getitem__(self, rows: list[int]) -> Compared:
        parts = [self.old, self.importance, self.advantages, self.weights]
        old, importance, advantages, weights = (part[rows] for part in parts)
        return Compared(old, importance, advantages, weights, None if self.start is None else self.start[rows])


def imitation_loss(log_probs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean of −log π, and where a weight is below 0 of −log(1 − π); both arguments have shape [B].

    The latter is the unlikelihood of Welleck et al. 2019 (arXiv 1908.04319): it matters as far as the action is likely.
    """
    bounded = log_probs.clamp(max=_LIKELIEST)
    avoided = (-torch.expm1(bounded)).log() + (log_probs - bounded) / math.expm1(_LIKELIEST)
    return -(weights.abs() * torch.where(weights < 0, avoided, log_probs)).sum() / weights.abs().sum()


def clipped_loss(
    log_probs: torch.Tensor, mask: torch.Tensor, batch: Compared, settings: GrpoOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the loss of B steps and the ratios [B, T] of their tokens, from log π and the mask of tokens, [B, T] too.

    −Σ w g / B with g the mean over an action's tokens of ``importance`` times what ``clipped_gains`` says, less the
    divergence from the start: arXiv 2402.03300, equation 3. With w in proportion to the number of tokens, and 1 in the
    mean of all minibatches, it is the mean over tokens of DAPO (arXiv 2503.14476, section 3.3).
    """
    width = log_probs.shape[1]
    old, importance, advantages = (
        part[:, :width].to(log_probs) for part in (batch.old, batch.importance, batch.advantages)
    )
    ratios = ratios_of(leveled(log_probs - old, mask, settings.loss))
    gains = importance * clipped_gains(ratios, advantages, settings.clip_low, settings.clip_high)
    if batch.start is not None:
        gains = gains - settings.actor.kl_weight * divergences(log_probs, batch.start[:, :width].to(log_probs))
    return -(batch.weights.to(log_probs) * mean_of_tokens(gains, mask)).mean(), ratios.detach()


def mean_of_tokens(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the mean over each action's tokens, [B], of values [B, T]."""
    return values.masked_fill(~mask, 0.0).sum(dim=1) / mask.sum(dim=1)


def leveled(log_ratios: torch.Tensor, mask: torch.Tensor, loss: Loss) -> torch.Tensor:
    """Returns log-ratios [B, T] at the level that a loss compares: for ``sequence`` their mean over an action's tokens.

    That is the logarithm of GSPO's ratio (arXiv 2507.18071, equation 7).
    """
    if loss is not Loss.sequence:
        return log_ratios
    return mean_of_tokens(log_ratios, mask)[:, None].expand_as(log_ratios)


def ratios_of(log_ratios: torch.Tensor) -> torch.Tensor:
    """Returns their exponentials, never beyond e^±``MOST_LOG_RATIO``, so that they are finite."""
    return log_ratios.clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO).exp()


def most_ratio(high: float) -> float:
    """Returns the ratio beyond which also the objective of an action to avoid is flat; never within its clip."""
    return max(_DUAL_CLIP, 1 + high)


def clipped_gains(ratios: torch.Tensor, advantages: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """min(ρ A, clip(ρ, 1 − ``low``, 1 + ``high``) A), and where A < 0 at least c A; all shapes are alike.

    arXiv 1707.06347, equation 7, with two bounds as in DAPO (arXiv 2503.14476, section 3.1). The dual clip is that of
    arXiv 1912.09729 (Ye et al. 2020, *Mastering Complex Control in MOBA Games with Deep Reinforcement Learning*),
    equation 5: without it, one action that has become much likelier outweighs all others.
    """
    clipped = ratios.clamp(1 - low, 1 + high) * advantages
    return torch.minimum(ratios.clamp(max=most_ratio(high)) * advantages, clipped)


def divergences(log_probs: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Estimates KL(π ‖ π_start) of each token from log π and log π_start: r − log r − 1 with r = π_start / π.

    arXiv 2402.03300, equation 4.
    """
    log_ratios = (start - log_probs).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    return log_ratios.exp() - log_ratios - 1


def importance_of(old: torch.Tensor, acted: torch.Tensor, mask: torch.Tensor, loss: Loss, most: float) -> torch.Tensor:
    """min(π_old / μ, ``most``) of log π_old and of log μ when it acted, at the level of the ``loss``; shape [N, T].

    Truncated importance weights (arXiv 1802.01561, section 4.1); 1 where the policy that acted is the present one.
    """
    return ratios_of(leveled(old - acted, mask, loss)).clamp(max=most)


def with_entropy(advantages: torch.Tensor, log_probs: torch.Tensor, mean: float, weight: float) -> torch.Tensor:
    """Returns advantages to which ``weight`` times the surprise −log π, less its ``mean``, is added.

    Its expected gradient is that of the entropy; it needs no probability of what was not chosen.
    """
    return advantages + weight * (-log_probs - mean)
