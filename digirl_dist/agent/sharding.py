"""Large agents: weights, gradients and optimiser state spread over the ranks with FSDP2 (torch.distributed.fsdp)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from digirl_dist.agent import Agent, AgentFactory, contract, critic
from digirl_dist.errors import SettingsError
from digirl_dist.parallel.compute_device import compute_exactly
from digirl_dist.parallel.group import Group
from digirl_dist.parallel.peers import Batches, Compute, Stepped, cut, gathered, part_of, unheard
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import Json

_EPSILON = 1e-6


@dataclass(frozen=True)
class Sharded:
    """An AgentFactory whose agents are spread over all ranks, which must call it together.

    ``blocks`` names classes of the agent's modules, such as ``T5Block``: each module of them is gathered by itself
    while it computes, the rest at once. Without any, the whole agent is gathered for each pass.
    """

    factory: AgentFactory
    group: Group
    device: str
    blocks: tuple[str, ...] = ()

    def __call__(self) -> Agent:
        """Raises SettingsError when the agent is no torch module or has none of the blocks."""
        compute_exactly(self.device)
        agent = self.factory()
        if not isinstance(agent, nn.Module):
            raise SettingsError(f"trainer.shard needs an agent that is a torch.nn.Module, not a {type(agent).__name__}")
        blocks = self._chosen(agent)
        mesh = init_device_mesh(self.device.partition(":")[0], (self.group.rank.world_size,))
        whole = ShardedAgent(agent, self.group)
        for module in [*blocks, whole]:
            spread: Any = fully_shard(module, mesh=mesh, reshard_after_forward=True)
            spread.set_gradient_divide_factor(1.0)  # ranks' losses come weighted: their gradients are added up …
            spread.set_force_sum_reduction_for_comms(True)  # … as gloo can, too
        return cast(Agent, whole)

    def _chosen(self, agent: nn.Module) -> list[nn.Module]:
        names = sorted({type(module).__name__ for module in agent.modules() if module is not agent})
        for block in self.blocks:
            if block not in names:
                raise SettingsError(
                    f"trainer.shard_blocks: no module of the agent is a {block!r}; there are {', '.join(names)}"
                )
        inner_first = reversed(list(agent.modules()))
        return [module for module in inner_first if type(module).__name__ in self.blocks]


class ShardedAgent(nn.Module):
    """Fulfils ``Agent``: gathers the weights for each of its calls. All ranks must make the same calls.

    ``state_dict`` gives the agent's own tensors, whole, on rank 0 and none elsewhere.
    """

    def __init__(self, agent: nn.Module, group: Group) -> None:
        super().__init__()
        self._agent: Any = agent
        self._group = group
        self.feature_size = int(cast(Any, agent).feature_size)
        self._critic, self.critic_size = critic(cast(Agent, agent))

    def forward(self, method: str | Callable[..., Any], *arguments: Any) -> Any:
        """FSDP gathers around this call alone, so every other passes through it: methods, or functions of the agent."""
        call = getattr(self._agent, method) if isinstance(method, str) else partial(method, self._agent)
        return call(*arguments)

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return cast(list[Decision], self("act", observations, rngs))

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        return self.token_log_probs(observations, actions)[0].sum(dim=1)

    def token_log_probs(
        self, observations: Sequence[Observation], actions: Sequence[Json]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes as many rows on every rank, by repeating the last: some agents gather weights for every few rows."""
        more = self._group.largest(len(actions)) - len(actions)
        repeated = [*observations, *more * [observations[-1]]], [*actions, *more * [actions[-1]]]
        found, mask = self(contract.token_log_probs, *repeated)
        return found[: len(actions)], mask[: len(actions)]

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        return cast(torch.Tensor, self("features", observations))

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        return cast(torch.Tensor, self(self._critic, observations))

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The agent's own: one with a frozen model may name those alone that learn."""
        return cast(Iterator[nn.Parameter], self._agent.parameters(recurse))

    def state_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return cast(dict[str, torch.Tensor], _whole(self._agent.state_dict(), self._group.rank.is_first))

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any:  # type: ignore[override]
        own = self._agent.state_dict()
        return self._agent.load_state_dict({name: _part(value, own.get(name)) for name, value in state.items()})


class ShardedRows:
    """Peers that have the same rows and a part of the weights each; see ``SharedRows``."""

    replicas: ClassVar[bool] = False

    def __init__(self, group: Group, stepped: Stepped = unheard) -> None:
        self._group = group
        self.stepped = stepped

    def align(self, batches: Batches) -> Batches:
        """Each rank must compute something: a minibatch with fewer rows than ranks is computed by all of them."""
        parts = zip(batches, cut(batches, self._group.rank), strict=True)
        return [part if len(batch) >= self._group.rank.world_size else batch for batch, part in parts]

    def passes(self, part: list[int], rows: int, at_once: int) -> Batches:
        most = -(-rows // self._group.rank.world_size) if rows >= self._group.rank.world_size else rows
        return [part[first : first + at_once] for first in range(0, most, at_once)]

    def share(self, weight: float) -> float:
        """FSDP adds up the ranks' gradients in each backward pass, so the sum of all weights must be known before."""
        return weight / float(self._group.sum(torch.tensor(weight, dtype=torch.float64)))

    def exchange(self, parameters: Iterable[nn.Parameter], loss: float, weight: float) -> float:
        for gradient in _gradients(parameters):
            if not isinstance(gradient, DTensor):
                self._group.sum(gradient)
        mean, total = self._group.sum(torch.tensor([weight * loss, weight], dtype=torch.float64)).tolist()
        return float(mean / total)

    def spread(self, rows: int, compute: Compute, drawn: Sequence[list[int]] = ()) -> torch.Tensor:
        """Every rank computes equally many rows, since some agents gather weights for every few."""
        if not rows:
            return torch.zeros(0, 1)
        part = part_of(rows, self._group.rank, drawn)
        asked = [*part, *[0] * (self._group.largest(len(part)) - len(part))]
        return gathered(self._group, rows, part, compute(asked)[: len(part)])

    def clip(self, parameters: Iterable[nn.Parameter], limit: float) -> float:
        gradients = _gradients(parameters)
        parts = [_squares(each.to_local()) for each in gradients if isinstance(each, DTensor)]
        copies = [_squares(each) for each in gradients if not isinstance(each, DTensor)]
        length = float((self._group.sum(torch.stack([torch.zeros(()), *parts]).sum()) + sum(copies)).sqrt())
        for gradient in gradients:
            gradient.mul_(min(1.0, limit / (length + _EPSILON)))
        return length

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums

    def total_of_parts(self, sums: torch.Tensor) -> torch.Tensor:
        return self._group.sum(sums.clone())

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Its state is whole in ``state_dict`` on rank 0, and as it is on other numbers of ranks."""
        for options in optimizer.param_groups:
            options["foreach"] = False  # it may have parameters of both kinds
        optimizer.register_state_dict_post_hook(self._gathered)
        optimizer.register_load_state_dict_pre_hook(_spread)

    def _gathered(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return {
            "state": _whole(state["state"], self._group.rank.is_first),
            "param_groups": [{**options, "foreach": None} for options in state["param_groups"]],
        }


def _spread(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    parameters = [parameter for options in optimizer.param_groups for parameter in options["params"]]
    spread = {
        number: {name: _part(value, parameters[number]) for name, value in moments.items()}
        for number, moments in state["state"].items()
    }
    return {"state": spread, "param_groups": [{**options, "foreach": False} for options in state["param_groups"]]}


def _squares(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float().square().sum().cpu()


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _whole(tree: Any, keep: bool) -> Any:
    """The tree with its spread tensors put together, one after the other; an empty one where not ``keep``."""
    if isinstance(tree, Mapping):
        items = {name: _whole(value, keep) for name, value in tree.items()}
        return items if keep else {}
    if isinstance(tree, DTensor):
        gathered = tree.full_tensor()
        return gathered.cpu() if keep else None
    return tree


def _part(value: Any, own: Any) -> Any:
    """This rank's part of ``value`` if ``own``, of the same shape, is spread. No rank waits for another."""
    if isinstance(own, DTensor) and isinstance(value, torch.Tensor) and value.shape == own.shape:
        return distribute_tensor(value.to(own.device), own.device_mesh, own.placements, src_data_rank=None)
    return value
