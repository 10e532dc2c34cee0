"""``collector=ray``: workers on a Ray cluster."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.assembly.collectors import CollectorPlugin
from digirl_dist.errors import SettingsError
from digirl_dist.settings.ranges import Processes
from digirl_dist.settings.workers import RayActorSettings

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext
    from digirl_dist.collect.pool import Pool
    from digirl_dist.settings import Settings


@dataclass
class RayCollectorSettings(RayActorSettings, CollectorPlugin):
    """Actors of a Ray cluster (extra ``ray``), each with ``bsize`` emulators. With ``dry_run``, the run starts and ends
    a cluster on this machine with ``dry_run_workers`` actors."""

    name: str = "ray"
    address: str | None = None
    """Address of the cluster: HOST, HOST:PORT, ray://HOST:PORT, ``auto`` for the one that runs on this machine, or
    ``local`` to start one; null: that in RAY_ADDRESS."""
    workers: Processes = 2
    """Number of actors, with ``bsize`` emulators each."""

    def check(self, settings: Settings) -> None:
        if settings.emulator.packages or settings.emulator.setup:
            raise SettingsError(
                "emulator.packages and emulator.setup are for workers over SSH; install them on the nodes of the Ray "
                "cluster, and leave them out"
            )

    def build(self, context: RunContext, stack: ExitStack) -> Pool:
        from digirl_dist.assembly.collector import fleet_collector, ray_fleet

        return fleet_collector(ray_fleet(context, self, stack), context)
