"""Settings of the connections to workers, of time limits, and of the installation."""

from __future__ import annotations

from dataclasses import dataclass, field

from digirl_dist.errors import SettingsError
from digirl_dist.settings.expert import expert
from digirl_dist.settings.extras import CPU_INDEX
from digirl_dist.settings.ranges import Amount, Count, Pause, Positive, Processes, Seconds, Share, Silence


@dataclass
class SshSettings:
    """The connections to the workers; their time limits are in seconds. Links are normally busy or down for a few
    seconds at times, so limits far below these cost needless retries."""

    transport: str = "auto"
    """What carries connections: ``openssh``, the user's own ``ssh``, which follows all of ~/.ssh/config and encrypts
    outside Python; ``paramiko``, which needs no ``ssh`` here; ``auto``, the first where it is installed; or a module of
    ``ssh/carriers``."""
    connect_s: Seconds = expert(20.0)
    """Longest time for the TCP connection and the greeting, and again for the key exchange."""
    login_s: Seconds = expert(20.0)
    """Longest time for each answer to a login."""
    ping_s: Seconds = expert(2.0)
    """Time between pings on a quiet link."""
    silence_s: Seconds = expert(12.0)
    """Longest silence of a link before the host drops it; two pings at least."""
    stall_s: Seconds = expert(60.0)
    """Longest time without progress of a transfer although the link itself answers (a hanging disk, for example)."""
    slowest_kb_s: Positive = expert(16.0)
    """Lowest mean rate of a transfer, in KiB per second. A transfer that is slower for longer than ``stall_s``
    fails."""

    def __post_init__(self) -> None:
        """Raises SettingsError if quiet links would be dropped unasked."""
        if self.silence_s < 2 * self.ping_s:
            raise SettingsError(
                f"ssh.silence_s={self.silence_s:g} must be at least twice ssh.ping_s={self.ping_s:g}: a link that is "
                "only quiet would be dropped"
            )


@dataclass
class LimitSettings:
    """Limits of time, in seconds, and of failures. Every wait in the system has a limit."""

    boot_s: Seconds = 180.0
    """Start of one emulator."""
    reset_s: Seconds = 60.0
    """One reset of an emulator."""
    step_s: Seconds = 30.0
    """One step of an emulator."""
    slot_failures: Count = expert(3)
    """Consecutive failures, at different tickets, that take an emulator out of service."""
    quarantine_s: Pause = expert(300.0)
    """Time for which an emulator or a worker stays out of service. Afterwards one more failure takes it out again."""
    lease_s: Seconds | None = expert(None)
    """Longest time that a worker may hold a ticket without news of its episode; then another worker gets the ticket.
    null: the time of a start, two loads of a policy and two episodes of ``max_steps`` steps by the limits above."""
    episode_attempts: Count = 5
    """A ticket whose episode fails this often, on two workers or more if there are as many, is set aside."""
    set_aside_share: Share = expert(0.1)
    """Largest share of an iteration's tickets that may be set aside; one ticket may always be, unless this is 0. Beyond
    it the run ends and names the tickets, workers and reasons."""
    episode_mb: Positive = expert(256.0)
    """Largest file of an episode, in MiB. A larger one is refused before it is fetched."""
    worker_offences: Count = expert(3)
    """Breaches of the protocol, within minutes, that take a worker out of service for ``quarantine_s``."""
    silence_s: Silence = expert(14.0)
    """Longest silence of a worker that has a policy before it counts as lost. It sends a heartbeat every 2 s."""
    start_s: Seconds = expert(60.0)
    """Longest silence of a worker that has no policy yet, because it may load libraries from a slow disk."""
    stuck_s: Seconds = expert(600.0)
    """Longest single operation of a worker program, such as one batch of the policy."""
    back_off_s: Pause = expert(0.5)
    """First pause before reconnecting; it doubles with each loss, with jitter."""
    back_off_max_s: Pause = expert(60.0)
    """Longest pause before reconnecting."""
    steady_s: Pause = expert(60.0)
    """Duration of a connection after which earlier losses no longer count."""
    no_worker_s: Pause = expert(300.0)
    """An iteration fails if no worker can run anything for this long. Installations are waited for longer."""
    orphan_s: Silence = expert(60.0)
    """A worker program without a host for this long finishes its episodes and ends."""
    full_disk_s: Pause = expert(3600.0)
    """Longest wait for space on the host's disk. Then the run ends, and the same command continues it."""
    stop_s: Pause = expert(15.0)
    """Longest wait for worker programs to end after the run; within it, the host kills those that remain."""


def back_off(first_s: float, longest_s: float, doublings: int) -> float:
    """Returns a pause of ``first_s`` doubled so often, but no longer than ``longest_s``."""
    return min(longest_s, first_s * 2.0 ** min(doublings, 64))  # a float has no room for 1,024


@dataclass
class AndroidInstallSettings:
    """The installation of ``emulator=android`` by ``digirl-dist setup``."""

    accept_licenses: bool = False
    """You have read the licences of the Android SDK and accept them. Otherwise nothing of the SDK is installed."""
    image: str = expert("system-images;android-34;google_apis;x86_64")
    """The system image of the AVD."""
    tools_url: str = expert("https://dl.google.com/android/repository/commandlinetools-linux-11076708_latest.zip")
    """Address of the command line tools."""


@dataclass
class InstallSettings:
    """The installation of the package and of emulators on a worker. Parts that are installed are not sent again."""

    pip_args: list[str] = field(default_factory=list)
    """Further arguments of ``pip install`` on the workers, such as an index with CPU builds of torch."""
    cpu_index: str | None = expert(CPU_INDEX)
    """Index of PyTorch's CPU builds; workers install torch only from it. null: from the other indexes. An index in
    ``pip_args`` replaces it."""
    reuse_packages: bool = expert(False)
    """Let the worker's environment use the packages that its Python already has (a machine image with torch)."""
    uv: bool = expert(True)
    """Use uv if the worker has it (it then needs no python3-venv); false: always venv and pip."""
    limit_s: Seconds = expert(1800.0)
    """Longest time for one installation."""
    android: AndroidInstallSettings = field(default_factory=AndroidInstallSettings)


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
    pending_s: Seconds | None = expert(None)
    """Longest wait of a job in Slurm's queue; then its worker counts as lost. null: no limit."""

    def __post_init__(self) -> None:
        """Refuses options that are none, or that the host sets itself. Raises SettingsError."""
        for option in self.options:
            name = option.removeprefix("--").partition("=")[0]
            if not option.startswith("--") or not name:
                raise SettingsError(f"slurm.options: {option!r} is no option: write it as --constraint=skylake")
            if any(ours.startswith(name) for ours in _OURS):  # Slurm understands the beginnings of names
                raise SettingsError(f"slurm.options: --{name} is set by the host itself: leave it out")


@dataclass
class RayActorSettings:
    """The place of one worker in a Ray cluster."""

    num_cpus: Amount = 1.0
    """CPUs of a worker. Ray places it where they are free."""
    num_gpus: Amount = 0.0
    """GPUs of a worker. Ray places it where they are free."""
    resources: dict[str, Amount] = field(default_factory=dict)
    """Your own resources that a worker takes (``ray start --resources='{"emulators": 4}'``)."""
    start_s: Seconds = expert(60.0)
    """Longest wait for the cluster, and for a worker's place in it; then the worker tries again."""
