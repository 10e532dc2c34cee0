"""Settings of trainers: updates in this process, or by several."""

from dataclasses import dataclass

from digirl_dist.settings.expert import MISSING, expert
from digirl_dist.settings.ranges import Count, Processes, Seconds


@dataclass
class TrainerSettings:
    """The settings of every trainer."""

    name: str = MISSING
    replay_size: Count = 1024
    """Number of newest episodes that an update may use."""
    device: str = "auto"
    """Device on which the agent learns: cpu, cuda, cuda:N, or auto (CUDA if there is any)."""
    exchange_s: Seconds = expert(600.0)
    """With several ranks: longest exchange of gradients, in seconds."""


@dataclass
class InProcessSettings(TrainerSettings):
    """Trains in the host's own process or, under ``torchrun run.py``, in all ranks that torchrun started."""

    name: str = "inprocess"


@dataclass
class TorchrunSettings(TrainerSettings):
    """Starts the host once for each rank, each on its own device. Rank 0 is the host, and all make each update."""

    name: str = "torchrun"
    nproc_per_node: Processes = 2
    """Number of ranks on this machine, one for each GPU."""
    shard: bool = False
    """Shard weights, gradients and optimiser state over the ranks (FSDP2), for agents that are too large for one
    device."""
    shard_blocks: list[str] = expert([])
    """Classes of the agent's modules, such as T5Block, whose modules are gathered one at a time while they compute.
    Without any, each pass gathers the whole agent."""


@dataclass
class DistributedSettings:
    """Training where each rank steps ``bsize`` emulators in its own process; an iteration is ``steps`` steps of
    each."""

    steps: Count = 128
    """Steps of each emulator in one iteration."""
    gate_s: Seconds = expert(3600.0)
    """Longest wait, in seconds, for a rank that still collects, evaluates or saves, and for one call of an emulator of
    a rank."""
