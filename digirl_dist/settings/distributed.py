"""Training where each rank has emulators of its own (python -m digirl_dist.train)."""

from dataclasses import dataclass


@dataclass
class DistributedSettings:
    """A rank steps ``bsize`` emulators in its own process; an iteration is ``steps`` steps of each."""

    steps: int = 128
    eval_freq: int = 0
    """Rank 0 measures the policy every so many iterations; 0: never."""
    eval_episodes: int = 8
    gate_s: float = 3600.0
    """Longest wait, in seconds, for a rank that still collects, evaluates or saves."""
