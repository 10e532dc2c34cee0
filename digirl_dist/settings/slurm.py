"""Settings of the Slurm jobs that ``worker_ips: slurm:4`` asks for."""

from dataclasses import dataclass, field

from digirl_dist.errors import SettingsError
from digirl_dist.settings.ranges import Positive, Processes, Seconds

_OURS = ("array", "export", "job-name", "nodes", "ntasks", "open-mode", "output", "parsable", "test-only", "wrap")


@dataclass
class SlurmSettings:
    """Jobs of ``worker_ips: slurm:4``: one node each, for as long as the run lasts. null: Slurm's own default."""

    partition: str | None = None
    """Partition that the jobs are submitted to."""
    account: str | None = None
    """Account that the jobs are charged to."""
    qos: str | None = None
    """Quality of service that the jobs request."""
    time_h: Positive | None = None
    """Longest time of a job in hours. A job that ends before the run does is replaced."""
    cpus: Processes | None = None
    """Cores of each job; null: one for each emulator, or the whole node with ``bsize: auto``."""
    memory_gb: Positive | None = None
    """Memory of each job in GiB."""
    options: list[str] = field(default_factory=list)
    """Further options of ``sbatch``, such as ``--constraint=skylake``."""
    pending_s: Seconds | None = None
    """Longest wait of a job in Slurm's queue; then its worker counts as lost. null: no limit."""

    def __post_init__(self) -> None:
        """Refuses options that are none, or that the host sets itself. Raises SettingsError."""
        for option in self.options:
            name = option.removeprefix("--").partition("=")[0]
            if not option.startswith("--") or not name:
                raise SettingsError(f"slurm.options: {option!r} is no option: write it as --constraint=skylake")
            if any(ours.startswith(name) for ours in _OURS):  # Slurm understands the beginnings of names
                raise SettingsError(f"slurm.options: --{name} is set by the host itself: leave it out")
