"""Where ``parallel: host`` finds its workers: machines over SSH, or a Ray cluster."""

from dataclasses import dataclass, field

from digirl_dist.settings.missing import MISSING


@dataclass
class CollectorSettings:
    """What every collector has."""

    name: str = MISSING


@dataclass
class SshCollectorSettings(CollectorSettings):
    """The machines in ``worker_ips``, or localhost workers with ``dry_run``."""

    name: str = "ssh"


@dataclass
class RayCollectorSettings(CollectorSettings):
    """Actors of a Ray cluster (extra ``ray``), each with ``bsize`` emulators. With ``dry_run``, a cluster of this
    machine with ``dry_run_workers`` of them is started and ended by the run."""

    name: str = "ray"
    address: str | None = None
    """HOST, HOST:PORT, ray://HOST:PORT, or ``local`` to start one here; null: as RAY_ADDRESS says, or the cluster
    that runs on this machine."""
    workers: int = 2
    num_cpus: float = 1.0
    """CPUs of a worker: Ray places it where so many are free …"""
    num_gpus: float = 0.0
    """… and so many GPUs …"""
    resources: dict[str, float] = field(default_factory=dict)
    """… and so much of resources of your own (``ray start --resources='{"emulators": 4}'``)."""
    start_s: float = 60.0
    """Longest wait for the cluster, and for a place in it for a worker, which then tries again."""
