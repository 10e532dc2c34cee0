"""The policies a machine acts with, by version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from digirl_dist.agent import Agent, AgentFactory
from digirl_dist.checkpoint import State
from digirl_dist.rollout import Actor


class _Frozen:
    """An agent that acts without gradients."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def act(self, observations, rngs):  # type: ignore[no-untyped-def]
        import torch

        with torch.inference_mode():
            return self.agent.act(observations, rngs)


class Policies(Mapping[int, Actor]):
    """Agents by policy version. Retired ones lend their memory to the next version."""

    def __init__(self, factory: AgentFactory) -> None:
        self._factory = factory
        self._serving: dict[int, _Frozen] = {}
        self._retired: list[_Frozen] = []

    def load(self, version: int, state: State) -> None:
        """Make ``version`` ready to act with the weights ``state``."""
        policy = self._retired.pop() if self._retired else _Frozen(self._factory())
        policy.agent.load_state_dict(state)
        self._serving[version] = policy

    def same(self, version: int, other: int) -> None:
        """``version`` has the very weights of ``other``, which is ready."""
        self._serving[version] = self._serving[other]

    def retire(self, keep: set[int]) -> None:
        """Drop every version that is not in ``keep``."""
        for version in set(self._serving) - keep:
            policy = self._serving.pop(version)
            if not any(policy is other for other in self._serving.values()):
                self._retired.append(policy)

    def __getitem__(self, version: int) -> Actor:
        return self._serving[version]

    def __iter__(self) -> Iterator[int]:
        return iter(self._serving)

    def __len__(self) -> int:
        return len(self._serving)
