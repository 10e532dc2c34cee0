"""A whole run: the keys of the top level, and the groups below them."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from digirl_dist.errors import SettingsError
from digirl_dist.plain_text import nearest
from digirl_dist.settings.algorithms import AlgorithmSettingsBase, algorithm_settings
from digirl_dist.settings.engines import EngineSettings, TransformersEngineSettings
from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.judging import JudgeSettings, Success
from digirl_dist.settings.paths import Elsewhere, Input, OutputFolder
from digirl_dist.settings.plugins import ALGORITHM, COLLECTOR, AgentSettings, CollectorSettings, EmulatorSettings
from digirl_dist.settings.ranges import (
    Count,
    CountOrNone,
    Episodes,
    Few,
    FewOrNone,
    Pause,
    Processes,
)
from digirl_dist.settings.trainers import DistributedSettings, TrainerSettings
from digirl_dist.settings.workers import InstallSettings, LimitSettings, SlurmSettings, SshSettings
from digirl_dist.types import Natural


class Parallel(Enum):
    """Where episodes run. ``host``: on workers (see ``collector``). ``single``: here. ``worker``: here without
    training, to try a worker machine."""

    single = "single"
    host = "host"
    worker = "worker"


class TrainMode(Enum):
    """The data of the updates.

    Online: the newest policy's episodes and the replay of earlier ones. Offline: ``offline.data`` alone, without
    collecting. Offline to online: offline for ``offline.iterations``, then online with both kinds of data.
    """

    online = "online"
    offline = "offline"
    offline_to_online = "offline_to_online"
    off2on = "offline_to_online"  # noqa: PIE796 - an alias
    """DigiRL's word for it."""

    @classmethod
    def _missing_(cls, value: object) -> "TrainMode | None":
        return cls.__members__.get(str(value))


class TaskMode(Enum):
    """train: trains. The others run ``eval_iterations`` rounds with the newest checkpoint: ``evaluate`` on emulator
    seeds that training never draws, ``collect`` for episodes that other runs may learn from."""

    train = "train"
    evaluate = "evaluate"
    collect = "collect"


class TaskOrder(Enum):
    """The order in which tickets pass through the task set: reshuffled for each pass, or as written."""

    random = "random"
    sequential = "sequential"


class TaskSplit(Enum):
    """The part of the task set in use."""

    train = "train"
    test = "test"


class Inference(Enum):
    """Where the policy acts: on each worker, or on the host for all of them."""

    worker = "worker"
    host = "host"


class PushDtype(Enum):
    """The number format in which a float32 policy is pushed to the workers."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@dataclass
class OfflineSettings:
    """Existing trajectories for the offline modes."""

    data: list[Input] = field(default_factory=list)
    """Parquet files, folders of them (a run's ``trajectories``), or folders that ``datasets`` saved."""
    iterations: CountOrNone = 5
    """Offline to online: the number of first ``train_iterations`` that learn without collecting."""


@dataclass
class EvaluationSettings:
    """Evaluations on the test split during training."""

    every: CountOrNone = 0
    """Iterations between evaluated checkpoints; a host evaluates the first and the last, too. 0: no evaluation."""
    episodes: Episodes = 64
    """Episodes of one evaluation, with the same tasks and seeds each time."""


@dataclass
class Settings:
    """The whole configuration. Keys of DigiRL's multi-machine guide stay at the top level."""

    parallel: Parallel = Parallel.host
    save_path: OutputFolder = "auto"
    """The run folder. Repeating the command continues the run in it. auto: a folder below ``runs`` that is named after
    emulator and algorithm, with a number from the second on. A command of the same settings continues the newest of
    them until it has finished, and ``--resume`` continues it in any case."""
    start_from: Elsewhere | None = None  # a run that goes on needs it no more
    """Checkpoint whose policy a new run starts from; nothing else of its run is used. A folder like
    ``RUN/checkpoints/000014`` or ``RUN/checkpoints/best``, or a run folder for its newest checkpoint. For a DigiRL run,
    the folder ``trainer.pt``."""
    save_freq: Count = 1
    """Iterations between kept checkpoints; the newest and the best in evaluations are always kept."""
    keep_checkpoints: Count | None = None
    """Largest number of kept checkpoints; null: no limit."""

    loggers: list[str] = field(default_factory=lambda: ["tensorboard"])
    """Tools that receive figures and episodes: any of tensorboard, wandb, mlflow, trackio (extras of these names).
    Their own environment variables name servers and keys, such as ``WANDB_API_KEY`` and ``MLFLOW_TRACKING_URI``."""
    logger_project: str = "digirl_dist"
    """Project (W&B, trackio) or experiment (MLflow) of the run there."""

    worker_ips: Any = field(default_factory=list)
    """Workers: host names, or mappings with ``host`` and any of ``name port username key bsize temp_path run_path
    python emulator``, which override the values below for that worker, and ``site`` (see ``relay``) and
    ``site_address``. Workers added to the YAML file mid-run join; removed ones drain and leave. If the command line
    sets them, they stay fixed. ``slurm:4`` instead of a host name requests four nodes from Slurm (see ``slurm``);
    ``slurm`` uses the nodes of this allocation."""
    worker_username: str | None = None
    """Login name on the workers; null: the choice of ``ssh``."""
    worker_temp_path: Elsewhere = "~/.cache/digirl_dist/jobs"
    """Folder on the workers for checkpoints and unfinished episodes."""
    worker_run_path: Elsewhere = "~/.cache/digirl_dist/env"
    """Folder on the workers for the Python environment that the host installs there."""
    worker_python: str = expert("python3")
    """The Python (3.10 or newer) on the workers that creates that environment."""
    worker_torch_threads: Processes = expert(1)
    """CPU threads of the policy on each worker."""
    inference: Inference = Inference.worker
    """Where the policy acts. ``host``: workers run only emulators and request each action from the host; no weights
    leave it. The policy acts on ``trainer.device``. Without workers the policy is on the host anyway."""
    inference_batch: Few = expert(64)
    """inference=host: number of waiting observations, over all workers, that starts a batch at once."""
    inference_wait_ms: Pause = expert(2.0)
    """inference=host: longest wait of an observation for a full batch, in milliseconds."""
    push_dtype: PushDtype = expert(PushDtype.float32)
    """bfloat16 halves the pushed bytes, but the acting policy is then the trained one rounded to 8 bits of mantissa.
    The log-probabilities of trajectories are those of the acting policy."""
    relay: Any = expert("auto")
    """auto: workers of the same ``site`` fetch a pushed policy from each other over SSH, so the host sends it to each
    site once. Whatever they cannot fetch comes from the host, and ``why`` gives the reason. off: the host sends
    everything."""
    prefetch: FewOrNone = expert(1)
    """Tickets that a worker holds beyond its slots, so that no slot waits for a round trip."""

    bsize: int | str = 2
    """Parallel emulators on each worker; ``auto``: as many as its cores and memory allow."""
    rollout_size: Episodes = 128
    """Episodes per iteration over the whole fleet."""
    max_steps: Count | None = None
    """Longest episode in steps; null: the emulator's own limit."""
    speculate: bool = expert(True)
    """Run the episodes that should end last a second time on idle emulators of faster workers; the first result counts.
    A slow worker then starts no episode that would end long after all others."""
    ahead: FewOrNone = 0
    """Iterations whose episodes may be under way, or waiting for their update, beside the present one's, so that slots
    never wait: an episode's policy is then at most so many updates old; 0: on-policy."""

    train_algorithm: str = "filtered_bc"
    """The block of ``algorithm`` in use, unless ``algorithm.entry_point`` names your own algorithm."""
    train_mode: TrainMode = TrainMode.online
    train_iterations: CountOrNone = 14
    """Iterations of the run: collect, then update. A larger number continues a run that has ended."""
    eval_iterations: Count = 1
    """task_mode=evaluate or collect: rounds of ``rollout_size`` episodes."""
    task_mode: TaskMode = TaskMode.train
    task_set: str = "default"
    """The tasks: one of the emulator's own sets, or a file (.yaml, .json, .txt; see docs/tasks.md). ``{split}`` in its
    name stands for train or test."""
    task_split: TaskSplit = TaskSplit.train
    task_order: TaskOrder = TaskOrder.random
    seed: Natural = 0
    """Seed of the first weights, of the tasks, and of every episode."""
    success: Success = Success.environment
    """What decides whether an episode was a success."""
    predicate: str | None = None
    """success=predicate: your function of a Trajectory, such as ``my_file:is_done``. It runs on the host."""
    judge: JudgeSettings = field(default_factory=JudgeSettings)

    media: str = "none"
    """Episodes whose animation is written to ``save_path/media``: none, failures, all, or top-3 (the three of highest
    return in each iteration)."""

    dry_run: bool = False
    """Start localhost workers behind real SSH servers and use them instead of ``worker_ips``."""
    dry_run_workers: Processes = 2
    """dry_run=true: localhost workers to start."""

    emulator: EmulatorSettings = MISSING
    agent: AgentSettings = MISSING
    collector: CollectorSettings = field(default_factory=lambda: COLLECTOR.settings("ssh")())
    algorithm: AlgorithmSettingsBase = field(default_factory=lambda: algorithm_settings()())
    offline: OfflineSettings = field(default_factory=OfflineSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    engine: EngineSettings = field(default_factory=TransformersEngineSettings)
    trainer: TrainerSettings = MISSING
    distributed: DistributedSettings = field(default_factory=DistributedSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    ssh: SshSettings = field(default_factory=SshSettings)
    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    install: InstallSettings = field(default_factory=InstallSettings)

    def __post_init__(self) -> None:
        """Refuses invalid values that the types admit. Raises SettingsError."""
        if self.train_algorithm == "filteredbc":  # DigiRL's word for it
            self.train_algorithm = "filtered_bc"
        if isinstance(self.worker_ips, str):
            self.worker_ips = [self.worker_ips]
        if not isinstance(self.worker_ips, list):
            raise SettingsError(f"worker_ips must be a list, as worker_ips=[a,b], not {self.worker_ips!r:.100}")
        if self.relay is False:  # as YAML reads off
            self.relay = "off"
        if self.relay not in ("auto", "off"):
            raise SettingsError(f"relay must be auto or off, not {self.relay!r}")
        known = ALGORITHM.names()
        if self.train_algorithm not in known:
            hint = nearest(self.train_algorithm, known)
            raise SettingsError(f"train_algorithm: there is no {self.train_algorithm!r}; {hint}")
        if not is_bsize(self.bsize):
            raise SettingsError(f"bsize must be a whole number from 1 to 4,096, or auto, not {self.bsize!r}")
        if not re.fullmatch(r"none|failures|all|top-[1-9][0-9]*", self.media):
            raise SettingsError(f"media must be none, failures, all or top-3 (any number), not {self.media!r}")


def is_bsize(value: Any) -> bool:
    """Returns whether ``value`` is a valid number of emulators on a worker."""
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 4096)


def only_measures(settings: Settings) -> bool:
    """Returns whether nothing is learned."""
    return settings.task_mode is not TaskMode.train or settings.parallel is Parallel.worker


def needs_emulators(settings: Settings) -> bool:
    """Whether any episode will be run: all do but offline training without evaluations."""
    offline = settings.task_mode is TaskMode.train and settings.train_mode is TrainMode.offline
    return not offline or settings.evaluation.every > 0
