"""What one Ray actor takes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from digirl_dist.settings.ranges import Amount, Seconds


@dataclass
class RayActorSettings:
    """The place of one worker in a Ray cluster."""

    num_cpus: Amount = 1.0
    """CPUs of a worker. Ray places it where they are free."""
    num_gpus: Amount = 0.0
    """GPUs of a worker. Ray places it where they are free."""
    resources: dict[str, Amount] = field(default_factory=dict)
    """Your own resources that a worker takes (``ray start --resources='{"emulators": 4}'``)."""
    start_s: Seconds = 60.0
    """Longest wait for the cluster, and for a worker's place in it; then the worker tries again."""
