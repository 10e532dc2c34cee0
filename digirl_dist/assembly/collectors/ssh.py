"""``collector=ssh``: workers on machines over SSH."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from digirl_dist.assembly.collectors import CollectorPlugin
from digirl_dist.errors import SettingsError
from digirl_dist.fleet.pip_logins import split_logins
from digirl_dist.settings.configuration import merged
from digirl_dist.settings.hosts import worker_entries, worker_name

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
        if settings.dry_run:
            return
        split_logins(settings.install.pip_args)
        for place, entry in enumerate(worker_entries(settings)):
            merged(settings.emulator, entry.emulator, f"worker_ips[{place}].emulator")

    def reach(self, settings: Settings, is_new: bool) -> None:
        """A run that is continued waits for machines that are down; a name that nobody knows is a mistake."""
        if settings.dry_run:
            return
        from digirl_dist.ssh.reachable import reach

        entries = worker_entries(settings)
        found = reach([(entry.host, entry.port) for entry in entries], settings.ssh)
        if any(each.defect is None or (each.resolves and not is_new) for each in found):
            return
        defects = "; ".join(f"{worker_name(entry)}: {each.defect}" for entry, each in zip(entries, found, strict=True))
        raise SettingsError(
            f"worker_ips: no worker can be reached ({defects}) -> correct worker_ips, or start the machines; "
            "`digirl-dist doctor` looks closer"
        )
