"""Settings of trainers: updates in this process, or by several."""

from dataclasses import dataclass, field

from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.ranges import Count, Pause, Processes, Seconds


@dataclass
class TrainerSettings:
    """The settings of every trainer."""

    name: str = MISSING
    replay_size: Count = 1024
    """Number of newest episodes that an update may use."""
    device: str = "auto"
    """Device on which the agent learns: cpu, cuda, cuda:N, or auto (CUDA if there is any)."""
    start_s: Seconds = 180.0
    """With several ranks: longest time until all have started, in seconds."""
    exchange_s: Seconds = 600.0
    """With several ranks: longest exchange of gradients, in seconds."""
    idle_s: Seconds = 86400.0
    """With several ranks: longest time between two updates, while the host collects, in seconds."""
    shard: bool = False
    """With several ranks: shard weights, gradients and optimiser state over them (FSDP2), for agents that are too large
    for one device."""
    shard_blocks: list[str] = field(default_factory=list)
    """Classes of the agent's modules, such as T5Block, whose modules are gathered one at a time while they compute.
    Without any, each pass gathers the whole agent."""


@dataclass
class InProcessSettings(TrainerSettings):
    """Trains in the host's own process or, under ``torchrun run.py``, in all ranks that torchrun started."""

    name: str = "inprocess"


@dataclass
class JaxSettings(TrainerSettings):
    """Trains with PPO in JAX, in this process or in the ranks that ``python -m digirl_dist.parallel.jax`` started.

    ``device`` (auto, cpu or cuda) is JAX's. The policy acts on the CPU, in PyTorch.
    """

    name: str = "jax"


@dataclass
class TorchrunSettings(TrainerSettings):
    """Trains in a group of processes that the host starts, watches and ends, each on its own device."""

    name: str = "torchrun"
    nproc_per_node: Processes = 2
    """Number of ranks on this machine, one for each GPU."""
    update_s: Seconds = 7200.0
    """Longest update, in seconds."""
    stop_s: Pause = 15.0
    """Longest wait for the processes to end after the run, in seconds."""
