"""The typed configuration: what the YAML files under config/ may say, with units and defaults.

Importing this module stays cheap: ``--help`` and the checks of the command line run on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MISSING: Any = "???"
"""How OmegaConf marks a value that must be given; spelled out so that workers need not import it."""


class Parallel(Enum):
    """Where episodes are run: here, on a fleet over SSH, or here without training (to try a worker machine)."""

    single = "single"
    host = "host"
    worker = "worker"


class TrainAlgorithm(Enum):
    """Which block of ``algorithm`` is used."""

    filtered_bc = "filtered_bc"
    digirl = "digirl"


class TrainMode(Enum):
    """Which data the updates use. Online: what the newest policy collected, and the replay of earlier ones."""

    online = "online"


class TaskMode(Enum):
    """Train, or only measure the newest checkpoint for ``eval_iterations`` rounds."""

    train = "train"
    evaluate = "evaluate"


class TaskOrder(Enum):
    """How tickets choose tasks: drawn at random, or walked through without repeats."""

    random = "random"
    sequential = "sequential"


class TaskSplit(Enum):
    """Which part of the task set is used."""

    train = "train"
    test = "test"


# --- emulators ---------------------------------------------------------------------------------------------------


@dataclass
class EmulatorSettings:
    """What every emulator has."""

    name: str = MISSING


@dataclass
class PhoneSettings(EmulatorSettings):
    """The demo phone, drawn with Pillow."""

    name: str = "phone"
    shuffle_icons: bool = False
    """Put the icons of the home screen in another order in each episode."""


@dataclass
class GymnasiumSettings(EmulatorSettings):
    """Any Gymnasium environment: by ``id``, or a class of yours as ``entry_point: my_file:MyEnv``."""

    name: str = "gymnasium"
    id: str | None = None
    """As registered (``CartPole-v1``, ``ALE/Pong-v5``), or ``my_file:Name-v0`` where importing my_file registers it."""
    entry_point: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    """What the environment is built with, beside its registered arguments."""
    success_reward: float = 0.0
    """An episode is a success when its return is above this, unless the environment says ``info["success"]``."""


@dataclass
class MiniwobSettings(EmulatorSettings):
    """MiniWoB++ pages in headless Chromium."""

    name: str = "miniwob"
    task: Any = "click-test-2"
    """A page by name, several as a list or with commas between them, or ``all``."""


@dataclass
class RehearsalSettings(EmulatorSettings):
    """No device: takes as long, and fails as often, as said here. Times are seconds."""

    name: str = "rehearsal"
    boot_s: float = 0.0
    """Start of the emulator."""
    reset_s: float = 2.0
    """Median of the log-normal time of a reset …"""
    reset_sigma: float = 0.4
    """… and the standard deviation of its logarithm (0: always the median)."""
    step_s: float = 1.0
    """The same for a step …"""
    step_sigma: float = 0.4
    steps: float = 10.0
    """… and for the number of steps of an episode."""
    steps_sigma: float = 0.3
    slowness: float = 1.0
    """Multiplies all times. For one slow machine: ``worker_ips: [{host: …, emulator: {slowness: 4}}]``."""
    hang_rate: float = 0.0
    """Chance that a step never answers, …"""
    crash_rate: float = 0.0
    """… that it ends the emulator's process, …"""
    error_rate: float = 0.0
    """… that it raises an error."""
    faults_once_in: str | None = None
    """A folder on the worker. With it, faults follow from task and seed and each strikes once, so that a rehearsal can
    be repeated (with the folder removed); without it, they are random."""
    image_size: list[int] = field(default_factory=list)
    """Height and width of a screenshot of noise; empty: none."""


@dataclass
class CustomEmulatorSettings(EmulatorSettings):
    """An emulator of yours: ``entry_point: my_file:MyDevice`` is a class that fulfils ``digirl_dist.emulator.Emulator``
    and has two class attributes more: ``spec`` (an EmulatorSpec) and ``tasks(task_set, split)`` (a list of Task)."""

    name: str = "custom"
    entry_point: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- agents ------------------------------------------------------------------------------------------------------


@dataclass
class AgentSettings:
    """What every agent has."""

    name: str = MISSING


@dataclass
class DeviceAgentSettings(AgentSettings):
    """Small policy from screenshot and instruction to action type and touch point."""

    short_side: int = 80
    """Screenshots are scaled so that their short side has this many pixels; a touch cell is 8 x 8 of them."""
    width: int = 64
    """Channels of the network."""
    heads: int = 4
    """Places the policy looks at together when it decides between tapping, typing, swiping and so on."""
    word_buckets: int = 2048
    """Words are hashed into this many embeddings."""

    name: str = "device"


@dataclass
class GenericAgentSettings(AgentSettings):
    """Small policy for Gymnasium spaces: vectors or images in, Discrete or Box actions out."""

    name: str = "generic"
    width: int = 64
    """Units of the hidden layers."""
    short_side: int = 80
    """Pictures are scaled so that their short side has this many pixels."""
    initial_std: float = 0.5
    """First standard deviation of Box actions, as a share of half their range."""


@dataclass
class CustomAgentSettings(AgentSettings):
    """An agent of yours: ``entry_point: my_file:MyAgent`` is called with the emulator's spec and ``kwargs``."""

    name: str = "custom"
    entry_point: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)


# --- algorithms --------------------------------------------------------------------------------------------------


@dataclass
class ActorSettings:
    """How the policy is fitted to the actions that an algorithm chose."""

    learning_rate: float = 2e-3
    """Of Adam."""
    batch_size: int = 64
    """Steps per minibatch."""
    epochs: int = 5
    """Passes over the chosen steps in each iteration …"""
    max_examples: int = 2000
    """… but never more steps than this, so that an iteration takes bounded time."""
    clip_norm: float = 1.0
    """Longest gradient."""


@dataclass
class FilteredBcSettings:
    """Reward-filtered behaviour cloning."""

    top_share: float = 0.1
    """The best tenth of the replay by return is imitated, with all that tie with its last …"""
    min_return: float = 0.0
    """… if their return is above this."""
    discount: float = 0.7
    """Steps weigh by their discounted return to go, so that detours long before a success count little."""
    actor: ActorSettings = field(default_factory=ActorSettings)


@dataclass
class ValueSettings:
    """How a value function is fitted."""

    width: int = 128
    """Units of its hidden layer."""
    learning_rate: float = 1e-3
    batch_size: int = 128
    epochs: int = 4
    """Passes over the rows in each iteration."""


@dataclass
class DigirlSettings:
    """Advantage-filtered training with instruction-level and step-level value functions."""

    top_share: float = 0.1
    """The tenth of the episodes that surprised the instruction-level value most is looked at, with ties."""
    lam: float = 0.5
    """How fast the step advantage turns from the outcome to the values, going back from the end of an episode."""
    value_episodes: int = 384
    """Newest episodes on which the value functions are fitted and among which is chosen."""
    value: ValueSettings = field(default_factory=ValueSettings)
    actor: ActorSettings = field(default_factory=ActorSettings)


@dataclass
class AlgorithmSettings:
    """One block per algorithm; ``train_algorithm`` names the one in use."""

    filtered_bc: FilteredBcSettings = field(default_factory=FilteredBcSettings)
    digirl: DigirlSettings = field(default_factory=DigirlSettings)


# --- ssh ---------------------------------------------------------------------------------------------------------


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


# --- fleet -------------------------------------------------------------------------------------------------------


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
    episode_attempts: int = 5
    """A ticket whose episode fails this often ends the run."""
    silence_s: float = 14.0
    """A worker that says nothing for this long counts as lost. It says something every 2 s."""
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
    stop_s: float = 15.0
    """Longest wait for worker programs to end when the run is over."""


@dataclass
class InstallSettings:
    """How the package gets onto a worker. It is sent again only when it changed."""

    pip_args: list[str] = field(default_factory=list)
    """Further arguments of ``pip install`` on the workers, such as an index with CPU builds of torch."""
    reuse_packages: bool = False
    """Let the worker's environment see the packages that its Python already has (a machine image with torch)."""
    limit_s: float = 1800.0
    """Longest time for one installation."""


@dataclass
class TrainerSettings:
    """How updates are made."""

    replay_size: int = 1024
    """Newest episodes that an update may look back on."""


@dataclass
class Settings:
    """Everything. Words of DigiRL's multi-machine guide stay at the top level."""

    parallel: Parallel = Parallel.host
    save_path: str = "runs/host"
    """The run folder. The same command again continues what is in it."""
    save_freq: int = 1
    """Checkpoints are kept every so many iterations (the newest always is)."""

    worker_ips: list[Any] = field(default_factory=list)
    """Workers: host names, or mappings with ``host`` and any of ``name port username key bsize temp_path run_path
    python emulator`` that override the values below for that worker."""
    worker_username: str | None = None
    """Login name on the workers; null: as ``ssh`` would choose."""
    worker_temp_path: str = "~/.cache/digirl_dist/jobs"
    """Folder on the workers for checkpoints and episodes under way."""
    worker_run_path: str = "~/.cache/digirl_dist/env"
    """Folder on the workers for the Python environment that the host installs there."""
    worker_python: str = "python3"
    """The Python (3.10 or newer) on the workers from which that environment is made."""
    worker_torch_threads: int = 1
    """CPU threads of the policy on each worker."""
    prefetch: int = 1
    """Tickets that a worker holds beyond its slots, so that no slot waits for a round trip."""

    bsize: int = 2
    """Parallel emulators on each worker."""
    rollout_size: int = 128
    """Episodes per iteration over the whole fleet."""
    max_steps: int | None = None
    """Longest episode in steps; null: the emulator's own."""

    train_algorithm: TrainAlgorithm = TrainAlgorithm.filtered_bc
    train_mode: TrainMode = TrainMode.online
    train_iterations: int = 14
    eval_iterations: int = 1
    task_mode: TaskMode = TaskMode.train
    task_set: str = "default"
    """Which tasks of the emulator."""
    task_split: TaskSplit = TaskSplit.train
    task_order: TaskOrder = TaskOrder.random
    seed: int = 0

    dry_run: bool = False
    """Start localhost workers behind real SSH servers and use them in place of ``worker_ips``."""
    dry_run_workers: int = 2

    emulator: EmulatorSettings = MISSING
    agent: AgentSettings = MISSING
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    ssh: SshSettings = field(default_factory=SshSettings)
    install: InstallSettings = field(default_factory=InstallSettings)
