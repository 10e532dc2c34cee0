"""A whole run: the keys of the top level, and the groups below them."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.settings.agents import AgentSettings
from digirl_dist.settings.algorithms import AlgorithmSettings
from digirl_dist.settings.collectors import CollectorSettings, SshCollectorSettings
from digirl_dist.settings.distributed import DistributedSettings
from digirl_dist.settings.emulators import EmulatorSettings
from digirl_dist.settings.judging import JudgeSettings, Success
from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.trainers import TrainerSettings
from digirl_dist.settings.workers import InstallSettings, LimitSettings, SshSettings


class Parallel(Enum):
    """Where episodes are run: here, on workers (see ``collector``), or here without training (to try a worker
    machine)."""

    single = "single"
    host = "host"
    worker = "worker"


class TrainAlgorithm(Enum):
    """Which block of ``algorithm`` is used."""

    filtered_bc = "filtered_bc"
    digirl = "digirl"
    grpo = "grpo"
    ppo = "ppo"


class TrainMode(Enum):
    """Which data the updates use.

    Online: what the newest policy collected, and the replay of earlier ones. Offline: ``offline.data`` alone, nothing
    is collected. Offline to online: first the one for ``offline.iterations``, then the other with both.
    """

    online = "online"
    offline = "offline"
    offline_to_online = "offline_to_online"


class TaskMode(Enum):
    """Train, or only measure the newest checkpoint for ``eval_iterations`` rounds."""

    train = "train"
    evaluate = "evaluate"


class TaskOrder(Enum):
    """In which order tickets walk through the task set: shuffled anew for each pass, or as it is written."""

    random = "random"
    sequential = "sequential"


class Close(Enum):
    """When an iteration ends: with all of its episodes, with a share of them, or after a time."""

    all = "all"
    quorum = "quorum"
    deadline = "deadline"


class TaskSplit(Enum):
    """Which part of the task set is used."""

    train = "train"
    test = "test"


class Inference(Enum):
    """Where the policy acts: on each worker, or on the host for all of them."""

    worker = "worker"
    host = "host"


class PushDtype(Enum):
    """In which numbers a policy of float32 travels to the workers."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass
class OfflineSettings:
    """Trajectories from elsewhere, for the offline modes."""

    data: list[str] = field(default_factory=list)
    """Parquet files, folders of them (a run's ``trajectories``), or folders that ``datasets`` saved."""
    iterations: int = 5
    """Offline to online: how many of ``train_iterations`` learn before anything is collected."""


@dataclass
class EvaluationSettings:
    """Measurements on the test split while training goes on."""

    every: int = 0
    """Checkpoints are measured every so many iterations, and the first and the last; 0: none."""
    episodes: int = 64
    """Episodes of one measurement, the same tasks and seeds each time."""


@dataclass
class Settings:
    """Everything. Words of DigiRL's multi-machine guide stay at the top level."""

    parallel: Parallel = Parallel.host
    save_path: str = "runs/host"
    """The run folder. The same command again continues what is in it."""
    save_freq: int = 1
    """Checkpoints are kept every so many iterations (the newest and the best in evaluations always are) …"""
    keep_checkpoints: int | None = None
    """… and no more than this many of them; null: all."""

    wandb_project: str | None = None
    """Draw the curves in this project of Weights & Biases as well (extra ``wandb``; the key comes from the
    environment)."""

    worker_ips: list[Any] = field(default_factory=list)
    """Workers: host names, or mappings with ``host`` and any of ``name port username key bsize temp_path run_path
    python emulator`` that override the values below for that worker. Who is added to the YAML file while the run goes
    on joins it, who is removed finishes and leaves; not so if the command line sets them."""
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
    inference: Inference = Inference.worker
    """host: workers run emulators only and ask the host for each action; no weights leave it. Acts on
    ``trainer.device``. Without workers the policy is here anyway."""
    inference_batch: int = 64
    """inference=host: observations of all workers are decided together once there are so many …"""
    inference_wait_ms: float = 2.0
    """… or the first of them has waited for so many milliseconds."""
    push_dtype: PushDtype = PushDtype.float32
    """bfloat16 halves what is pushed, but the acting policy is then the trained one rounded to 8 bits of mantissa; the
    log-probabilities of trajectories are those of the acting policy."""
    prefetch: int = 1
    """Tickets that a worker holds beyond its slots, so that no slot waits for a round trip."""

    bsize: int | str = 2
    """Parallel emulators on each worker; ``auto``: as many as each one's cores and memory carry."""
    rollout_size: int = 128
    """Episodes per iteration over the whole fleet."""
    max_steps: int | None = None
    """Longest episode in steps; null: the emulator's own."""
    close: Close = Close.all
    """When an iteration ends; what is under way then counts in the next one, what nobody has begun is cancelled."""
    quorum: float = 0.9
    """close=quorum: … when this share of its episodes is home."""
    deadline_s: float = 600.0
    """close=deadline: … this many seconds after its begin, if any episode is home."""
    speculate: bool = True
    """Run the episodes that are expected to end last a second time on idle emulators of faster workers; the first
    that is home counts. A slow worker then begins nothing that would end long after all else."""
    collect_ahead: int = 0
    """Iterations whose collection may begin under an older checkpoint while the host learns; 0: on-policy."""
    max_staleness: int | None = None
    """Episodes whose policy was more updates behind when they counted are left out of updates; null: none are."""

    train_algorithm: TrainAlgorithm = TrainAlgorithm.filtered_bc
    train_mode: TrainMode = TrainMode.online
    train_iterations: int = 14
    eval_iterations: int = 1
    task_mode: TaskMode = TaskMode.train
    task_set: str = "default"
    """Which tasks: a set of the emulator's own, or a file (.yaml, .json, .txt; see docs/tasks.md), in whose name
    ``{split}`` stands for train or test."""
    task_split: TaskSplit = TaskSplit.train
    task_order: TaskOrder = TaskOrder.random
    seed: int = 0
    success: Success = Success.environment
    """Who says whether an episode was a success."""
    predicate: str | None = None
    """For ``success: predicate``, your function of a Trajectory: ``my_file:is_done``. It runs on the host."""
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    media: str = "none"
    """Of which episodes an animation is written to ``save_path/media``: none, failures, all, or top-3 (the three of
    highest return in each iteration)."""

    dry_run: bool = False
    """Start localhost workers behind real SSH servers and use them in place of ``worker_ips``."""
    dry_run_workers: int = 2

    emulator: EmulatorSettings = MISSING
    agent: AgentSettings = MISSING
    collector: CollectorSettings = field(default_factory=SshCollectorSettings)
    algorithm: AlgorithmSettings = field(default_factory=AlgorithmSettings)
    offline: OfflineSettings = field(default_factory=OfflineSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trainer: TrainerSettings = MISSING
    distributed: DistributedSettings = field(default_factory=DistributedSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    ssh: SshSettings = field(default_factory=SshSettings)
    install: InstallSettings = field(default_factory=InstallSettings)

    def __post_init__(self) -> None:
        """Refuse what the types let through. Raises SettingsError."""
        if not is_bsize(self.bsize):
            raise SettingsError(f"bsize must be a whole number above 0 or auto, not {self.bsize!r}")
        if self.inference_batch < 1 or self.inference_wait_ms < 0:
            raise SettingsError("inference_batch must be at least 1, and inference_wait_ms at least 0")
        if not re.fullmatch(r"none|failures|all|top-[1-9][0-9]*", self.media):
            raise SettingsError(f"media must be none, failures, all or top-3 (any number), not {self.media!r}")


def is_bsize(value: Any) -> bool:
    """Whether ``value`` says how many emulators a worker is to run."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value > 0)
