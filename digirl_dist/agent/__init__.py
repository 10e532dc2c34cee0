"""Agents: the interface of policies, which act on workers and are trained on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from digirl_dist.trajectory import Decision, NoDecision, Observation
from digirl_dist.types import Json

if TYPE_CHECKING:
    import torch


class Actor(Protocol):
    """The acting half of an Agent."""

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> Sequence[Decision | NoDecision]: ...


class Agent(Protocol):
    """A policy. A ``torch.nn.Module`` with these methods implements it; its state_dict is the checkpoint.

    The host moves it to ``trainer.device``, a GPU where there is one; workers keep it on the CPU. So the methods move
    what they read to the device of the weights.
    """

    @property
    def feature_size(self) -> int:
        """Width F of ``features``."""

    def act(
        self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]
    ) -> Sequence[Decision | NoDecision]:
        """Samples one action for each of B observations, row i with randomness from ``rngs[i]`` alone.

        An episode therefore depends on its ticket's seed, not on the others in its batch. Called without gradients.
        """

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Json]) -> torch.Tensor:
        """Returns the natural log of the probability (density) of each action, shape [B], differentiable.

        In training mode an agent may regularise here (dropout, shifted pictures); in evaluation mode it is exact.
        """

    def features(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Returns the inputs of value functions, shape [B, F], without gradient to the policy."""

    def train(self, mode: bool = True) -> Any:
        """Switches to training mode or, with False, to evaluation mode."""

    def parameters(self) -> Iterator[torch.nn.Parameter]: ...

    def state_dict(self) -> dict[str, torch.Tensor]: ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> Any: ...


@dataclass(frozen=True)
class ActionProbabilities:
    """The distribution over actions for one observation."""

    kinds: Mapping[str, float]
    """Probability of each kind of action, or of each action if there are few; they add up to 1."""
    cells: Sequence[Sequence[float]] = ()
    """Probability of each cell of the touch grid, given that the screen is tapped: rows from the top, each from the
    left. Empty for an agent without a grid."""


class ExplainingAgent(Protocol):
    """Optional methods of an Agent for ``digirl-dist view`` and ``Policy.probabilities``."""

    def probabilities(self, observations: Sequence[Observation]) -> Sequence[ActionProbabilities]: ...


class TokenAgent(Protocol):
    """An optional method of an Agent whose actions are written in tokens, the action's ``tokens``."""

    def token_log_probs(
        self, observations: Sequence[Observation], actions: Sequence[Json]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the log-probability of each token, 0 beyond an action's end, and which are tokens: both [B, T].

        ``log_prob`` is their sum. The losses of grpo compare, clip and weigh tokens where an agent has this.
        """


class CriticAgent(Protocol):
    """Optional methods of an Agent: inputs of value functions (DigiRL, PPO) that replace ``features``."""

    @property
    def critic_size(self) -> int:
        """Width V of ``critic_inputs``."""

    def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
        """Returns inputs that updates of the policy change as little as possible, shape [B, V], without gradient to the
        policy."""


def critic(agent: Agent) -> tuple[str, int]:
    """Returns the agent's method that computes the inputs of value functions, and their width."""
    if hasattr(agent, "critic_inputs"):  # features change with each update while the value function learns
        return "critic_inputs", cast(CriticAgent, agent).critic_size
    return "features", agent.feature_size


AgentFactory = Callable[[], Agent]
"""Builds the agent with fresh weights; called on the host (seeded) and on every worker."""
