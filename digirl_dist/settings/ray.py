"""What one Ray actor takes of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from digirl_dist.settings.ranges import Amount, Seconds


@dataclass
class RayActorSettings:
    """The place of one worker in a Ray cluster."""

    num_cpus: Amount = 1.0
    """CPUs of a worker: Ray places it where so many are free …"""
    num_gpus: Amount = 0.0
    """… and so many GPUs …"""
    resources: dict[str, Amount] = field(default_factory=dict)
    """… and so much of resources of your own (``ray start --resources='{"emulators": 4}'``)."""
    start_s: Seconds = 60.0
    """Longest wait for the cluster, and for a place in it for a worker, which then tries again."""
