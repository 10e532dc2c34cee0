"""Confidence intervals."""

from __future__ import annotations

import math

_Z95 = 1.959963984540054
"""The 0.975 quantile of the standard normal distribution."""


def wilson(successes: int, trials: int, z: float = _Z95) -> tuple[float, float]:
    """Returns the lower and upper bound of a success probability, at 95 % by default; (0, 1) without trials.

    The score interval: E. B. Wilson, Probable inference, the law of succession, and statistical inference, Journal of
    the American Statistical Association 22 (1927), 209-212. Unlike the normal interval it remains valid near 0 and 1.
    """
    if trials == 0:
        return 0.0, 1.0
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    reach = z * math.sqrt((share * (1 - share) + spread / 4) / trials) / (1 + spread)
    return max(0.0, centre - reach), min(1.0, centre + reach)
