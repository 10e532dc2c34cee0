"""Training where each rank has emulators of its own (python -m digirl_dist.train)."""

from dataclasses import dataclass

from digirl_dist.settings.ranges import Count, CountOrNone, Seconds


@dataclass
class DistributedSettings:
    """Training where each rank steps ``bsize`` emulators in its own process; an iteration is ``steps`` steps of
    each."""

    steps: Count = 128
    """Steps of each emulator in one iteration."""
    eval_freq: CountOrNone = 0
    """Iterations between two evaluations of the policy by rank 0; 0: never."""
    eval_episodes: Count = 8
    """Episodes of one evaluation."""
    gate_s: Seconds = 3600.0
    """Longest wait, in seconds, for a rank that still collects, evaluates or saves, and for one call of an emulator of
    a rank."""
