"""What the connections to the workers, and all waits on the way, may be told."""

from dataclasses import dataclass, field


@dataclass
class SshSettings:
    """Time limits of the connections to the workers, in seconds.

    A link that is busy or out for a few seconds is normal: limits far below these cost needless retries.
    """

    connect_s: float = 20.0
    """Longest time for the TCP connection and the greeting, and again for the key exchange."""
    login_s: float = 20.0
    """Longest time for each answer to a login."""
    ping_s: float = 2.0
    """A quiet link is asked for an answer this often."""
    silence_s: float = 12.0
    """A link on which nothing at all was heard for this long is given up."""
    stall_s: float = 60.0
    """Longest time a transfer may make no progress although the link itself answers (a hanging disk, say)."""


@dataclass
class LimitSettings:
    """How long anything may take, in seconds, and how often it may fail. No wait in the system is without a limit."""

    boot_s: float = 180.0
    """Start of one emulator."""
    reset_s: float = 60.0
    """One reset of an emulator."""
    step_s: float = 30.0
    """One step of an emulator."""
    slot_failures: int = 3
    """An emulator that fails this often in a row is taken out of service …"""
    quarantine_s: float = 300.0
    """… for this long. Then it gets another chance; one more failure takes it out again."""
    lease_s: float | None = None
    """A ticket that a worker has held for this long without a word of its episode goes to another one. null: as long as
    a start, two loads of a policy and two episodes of ``max_steps`` steps may take by the limits above."""
    episode_attempts: int = 5
    """A ticket whose episode fails this often ends the run."""
    silence_s: float = 14.0
    """A worker that says nothing for this long counts as lost. It says something every 2 s …"""
    start_s: float = 60.0
    """… once it has a policy. Until then, since libraries may come from a slow disk, it may be silent for this long."""
    stuck_s: float = 600.0
    """Longest single piece of work of a worker program, such as one batch of the policy."""
    back_off_s: float = 0.5
    """First pause before connecting again; it doubles with each loss, with jitter …"""
    back_off_max_s: float = 60.0
    """… up to this."""
    steady_s: float = 60.0
    """A connection that stood this long makes earlier losses forgotten."""
    no_worker_s: float = 300.0
    """An iteration fails when no worker could run anything for this long."""
    orphan_s: float = 60.0
    """A worker program that has heard of no host for this long finishes its episodes and ends."""
    full_disk_s: float = 3600.0
    """The run waits for room on the host's disk for this long; then it ends, and the same command continues it."""
    stop_s: float = 15.0
    """Longest wait for worker programs to end when the run is over; those that do not are killed within it."""


@dataclass
class AndroidInstallSettings:
    """What ``digirl-dist setup`` puts on a worker for ``emulator=android``."""

    accept_licenses: bool = False
    """You have read the licences of the Android SDK and accept them. Nothing of it is installed before."""
    image: str = "system-images;android-34;google_apis;x86_64"
    """The system image from which the AVD is made."""
    tools_url: str = "https://dl.google.com/android/repository/commandlinetools-linux-11076708_latest.zip"
    """Where the command line tools are got from."""


@dataclass
class InstallSettings:
    """How the package, and the needs of emulators, get onto a worker. What is there already is not sent again."""

    pip_args: list[str] = field(default_factory=list)
    """Further arguments of ``pip install`` on the workers, such as an index with CPU builds of torch."""
    reuse_packages: bool = False
    """Let the worker's environment see the packages that its Python already has (a machine image with torch)."""
    uv: bool = True
    """Use uv where the worker has it (then it needs no python3-venv); false: always venv and pip."""
    limit_s: float = 1800.0
    """Longest time for one installation."""
    android: AndroidInstallSettings = field(default_factory=AndroidInstallSettings)
