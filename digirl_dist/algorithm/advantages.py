"""How much better than expected, as formulas: returns and advantages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROUNDING = float(np.finfo(np.float32).eps)
"""By how much two equal sums of rewards in float32 may differ, as a share."""

_NEGLIGIBLE = 1e-4
"""Deviations below this share of the size of the numbers are noise rather than a measure of them."""


def returns_to_go(rewards: Sequence[float], discount: float) -> list[float]:
    """What came after each step: sum over k of ``discount``^k times the reward k steps later (Sutton & Barto, 3.8)."""
    togo = list(rewards)
    for step in reversed(range(len(togo) - 1)):
        togo[step] += discount * togo[step + 1]
    return togo


def instruction_advantages(returns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How much better each episode ended than its instruction let expect: return minus V(s0, c); shapes [N].

    arXiv 2406.11896, section 4 (instruction-level value function).
    """
    return np.asarray(returns - values)


def doubly_robust_advantages(rewards: np.ndarray, values: np.ndarray, lam: float) -> np.ndarray:
    """The advantage of each of H steps as in DigiRL's paper (arXiv 2406.11896, section 4, step-level advantage).

    With h from 1 to H: λ^(H−h) r_H + (1 − λ^(H−h)) (V(s_h+1) + r_h − V(s_h)). ``rewards`` has shape [H], ``values``
    [H + 1]. Near the end it trusts the outcome, far from it the values.
    """
    trust = lam ** np.arange(len(rewards) - 1, -1, -1, dtype=np.float64)
    bootstrapped = values[1:] + rewards - values[:-1]
    return np.asarray(trust * rewards[-1] + (1 - trust) * bootstrapped)


def released_advantages(rewards: np.ndarray, values: np.ndarray, returns: np.ndarray, margin: float) -> np.ndarray:
    """The advantage of each of H steps as in DigiRL's released code (``DigiRLTrainer.actor_loss``).

    V(s_h+1) − V(s_h) − margin + r_h + R_h, clamped to [0, 1], where V is the lesser of two critics and R_h the
    discounted return from step h. ``rewards`` and ``returns`` have shape [H], ``values`` [H + 1].
    """
    return np.asarray(np.clip(values[1:] - values[:-1] - margin + rewards + returns, 0.0, 1.0))


def group_advantages(returns: np.ndarray, divide: bool = True) -> np.ndarray:
    """Of the G episodes of a group: (R − mean) / unit, with the ``unit`` of all G; shape [G].

    arXiv 2402.03300 (GRPO), section 4.1.2; without ``divide`` R − mean (Dr. GRPO, arXiv 2503.20783, section 3.2).
    A group whose episodes all came out alike says nothing: zeros.
    """
    if alike(returns):
        return np.zeros(len(returns))
    size = unit(returns.std(), np.sqrt(np.square(returns).mean())) if divide else 1.0
    return np.asarray((returns - returns.mean()) / size)


def unit(deviation: float, size: float) -> float:
    """What numbers of this standard deviation and root mean square are divided by to make their deviation about 1.

    So much more than the deviation that differences which are tiny beside the numbers stay small. Never 0.
    """
    return float(deviation + _NEGLIGIBLE * size) or 1.0


def alike(returns: np.ndarray) -> bool:
    """Whether returns [N] differ by the rounding of their rewards at most: 0.1 + 0.2 is not 0.3 in float32."""
    return bool(np.ptp(returns) <= ROUNDING * np.abs(returns).max())
