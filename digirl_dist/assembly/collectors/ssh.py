"""``collector=ssh``: workers on machines over SSH."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.assembly.collectors import CollectorPlugin

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext
    from digirl_dist.collect import Collector
    from digirl_dist.settings import Settings


@dataclass
class SshCollectorSettings(CollectorPlugin):
    """The machines in ``worker_ips``, or localhost workers with ``dry_run``."""

    name: str = "ssh"

    def build(self, context: RunContext, stack: ExitStack) -> Collector:
        from digirl_dist.assembly.collector import fleet_collector, ssh_fleet

        return fleet_collector(ssh_fleet(context, stack), context)

    def check(self, settings: Settings) -> None:
        if not settings.dry_run:
            from digirl_dist.fleet.roster import worker_configs

            worker_configs(settings)
