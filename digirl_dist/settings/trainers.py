"""How updates are made: in this process, or by several."""

from dataclasses import dataclass, field

from digirl_dist.settings.missing import MISSING


@dataclass
class TrainerSettings:
    """What every trainer has."""

    name: str = MISSING
    replay_size: int = 1024
    """Newest episodes that an update may look back on."""
    device: str = "auto"
    """Where the agent learns: cpu, cuda, cuda:N, or auto (CUDA where there is any)."""
    start_s: float = 180.0
    """With several ranks, in seconds: longest time until all of them have started …"""
    exchange_s: float = 600.0
    """… for one exchange of gradients …"""
    idle_s: float = 86400.0
    """… and between two updates, while the host collects."""
    shard: bool = False
    """With several ranks: spread weights, gradients and optimiser state over them (FSDP2), for agents that are too
    large for one device."""
    shard_blocks: list[str] = field(default_factory=list)
    """Classes of the agent's modules, such as T5Block: each module of them is gathered by itself while it computes;
    without any, the whole agent is gathered for each pass."""


@dataclass
class InProcessSettings(TrainerSettings):
    """The host's own process; or, under ``torchrun run.py``, all ranks that it started."""

    name: str = "inprocess"


@dataclass
class JaxSettings(TrainerSettings):
    """This process, or the ranks that ``python -m digirl_dist.parallel.jax`` started; PPO's updates are made by JAX.

    ``device`` is auto, cpu or cuda: where JAX computes. The policy acts on the CPU, in PyTorch.
    """

    name: str = "jax"


@dataclass
class TorchrunSettings(TrainerSettings):
    """A group of processes that the host starts, watches and ends; each on a device of its own."""

    name: str = "torchrun"
    nproc_per_node: int = 2
    update_s: float = 7200.0
    """Longest update, in seconds."""
    stop_s: float = 15.0
    """Longest wait for the processes to end when the run is over, in seconds."""
