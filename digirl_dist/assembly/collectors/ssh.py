"""``collector=ssh``: workers on machines over SSH."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from digirl_dist.assembly.collectors import CollectorPlugin
from digirl_dist.errors import ClusterError, SettingsError
from digirl_dist.fleet.install import split_logins
from digirl_dist.settings.conversion import merged
from digirl_dist.settings.hosts import SlurmEntry, worker_entries, worker_name
from digirl_dist.ssh.carriers import carrier

if TYPE_CHECKING:
    from digirl_dist.assembly.collector import RunContext
    from digirl_dist.collect.pool import Pool
    from digirl_dist.settings import Settings


def slurm_says(settings: Settings) -> dict[str, str]:
    """Returns, for each worker that Slurm finds a node for, what Slurm says of that. Raises ClusterError."""
    from digirl_dist.fleet.roster import worker_configs
    from digirl_dist.slurm.jobs import Jobs, SlurmAddress

    jobs = Jobs(settings.slurm, "digirl-dist", Path("/tmp"), 60.0)
    said: dict[tuple[int | None, bool], str] = {}
    found = {}
    for worker_config in worker_configs(settings):
        if isinstance(address := worker_config.address, SlurmAddress):
            kind = address.cpus, address.node is None
            if kind not in said:
                said[kind] = jobs.would_start(address) if address.node is None else "a node of this allocation"
            found[address.name] = said[kind]
    return found


@dataclass
class SshCollectorSettings(CollectorPlugin):
    """The machines in ``worker_ips``, or localhost workers with ``dry_run``."""

    name: str = "ssh"

    def build(self, context: RunContext, stack: ExitStack) -> Pool:
        from digirl_dist.assembly.collector import fleet_collector, ssh_fleet

        return fleet_collector(ssh_fleet(context, stack), context)

    def check(self, settings: Settings) -> None:
        if settings.ssh.transport != "auto":
            carrier(settings.ssh)
        if settings.dry_run:
            return
        split_logins(settings.install.pip_args)
        entries = worker_entries(settings)
        needed = "sbatch" if any(isinstance(each, SlurmEntry) and each.node is None for each in entries) else "srun"
        if any(isinstance(each, SlurmEntry) for each in entries) and shutil.which(needed) is None:
            raise SettingsError(
                f"worker_ips: slurm needs `{needed}`, which this machine lacks: start the run where it is"
            )
        for place, entry in enumerate(entries):
            merged(settings.emulator, entry.emulator, f"worker_ips[{place}].emulator")

    def reach(self, settings: Settings, is_new: bool) -> None:
        """A run that is continued waits for machines that are down; a name that nobody knows is a mistake."""
        if settings.dry_run:
            return
        from digirl_dist.assembly.parts import build_device, emulator_of
        from digirl_dist.fleet.roster import worker_configs
        from digirl_dist.ssh.reachable import reach

        for worker_config in worker_configs(settings):
            if worker_config.emulator:
                build_device(settings, emulator_of(worker_config, settings))
        entries = [entry for entry in worker_entries(settings) if not isinstance(entry, SlurmEntry)]
        try:
            nodes = slurm_says(settings)
        except ClusterError as error:
            raise SettingsError(f"worker_ips: Slurm would give no node ({error}) -> correct `slurm`") from error
        if nodes:
            return
        found = reach([(entry.host, entry.port) for entry in entries], settings.ssh)
        if any(each.defect is None or (each.resolves and not is_new) for each in found):
            return
        defects = "; ".join(f"{worker_name(entry)}: {each.defect}" for entry, each in zip(entries, found, strict=True))
        raise SettingsError(
            f"worker_ips: no worker can be reached ({defects}) -> correct worker_ips, or start the machines; "
            "`digirl-dist doctor` looks closer"
        )
