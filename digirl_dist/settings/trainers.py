"""Settings of trainers: updates in this process, or by several."""

from dataclasses import dataclass, field

from digirl_dist.settings.missing import MISSING
from digirl_dist.settings.ranges import Count, Processes, Seconds


@dataclass
class TrainerSettings:
    """The settings of every trainer."""

    name: str = MISSING
    replay_size: Count = 1024
    """Number of newest episodes that an update may use."""
    device: str = "auto"
    """Device on which the agent learns: cpu, cuda, cuda:N, or auto (CUDA if there is any)."""
    exchange_s: Seconds = 600.0
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
    shard_blocks: list[str] = field(default_factory=list)
    """Classes of the agent's modules, such as T5Block, whose modules are gathered one at a time while they compute.
    Without any, each pass gathers the whole agent."""
