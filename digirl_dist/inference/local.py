"""The policies of one machine, by version."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from digirl_dist.agent import Agent, AgentFactory, contract
from digirl_dist.errors import AgentError, TrajectoryError
from digirl_dist.inference.requests import (
    InferenceFailure,
    InferenceReply,
    InferenceRequest,
    RandomStream,
    result,
)
from digirl_dist.storage.checkpoint import Checkpoint, State
from digirl_dist.trajectory import Decision, NoDecision
from digirl_dist.user_code.entry_point import load_state


class LocalPolicies:
    """Agents by policy version; each version acts in one batch. A new version reuses the memory of a retired one.

    Implements ``rollout.Policies``. Importing torch takes a second and 200 MB, so only agents that need it do.
    """

    waiting = "policy"
    limit_s: float | None = None

    def __init__(self, factory: AgentFactory, torch_threads: int | None = None, newest: bool = False) -> None:
        """``torch_threads`` is how many threads torch computes with; None leaves that to torch.

        ``newest``: that version acts for all episodes, and an AgentError costs the episode that it struck.
        """
        self._factory = factory
        self._torch_threads = torch_threads
        self._newest = newest
        self._serving: dict[int, Agent] = {}
        self._retired: list[Agent] = []
        self._answers: list[InferenceReply] = []

    def load(self, version: int, state: State) -> None:
        """Makes ``version`` ready to act with the weights ``state``, in evaluation mode: without dropout."""
        self._torch()
        agent = self._retired.pop() if self._retired else self._another()
        agent.train(False)
        load_state(agent, state)
        self._serving[version] = agent

    def serve(self, checkpoint: Checkpoint, in_use: Set[int]) -> None:
        """Acts with this checkpoint; of the versions already loaded, keeps those ``in_use``."""
        if checkpoint.iteration not in self:
            self.load(checkpoint.iteration, checkpoint.state())
        self.retire({checkpoint.iteration, *in_use})

    def _another(self) -> Agent:
        """Returns one more agent, which shares what does not learn with one that is there."""
        known = next(iter(self._serving.values()), None)
        return self._factory() if known is None else contract.another(known) or self._factory()

    def same(self, version: int, other: int) -> None:
        """Makes ``version`` share the weights of ``other``, which is loaded."""
        self._serving[version] = self._serving[other]

    def retire(self, keep: set[int]) -> None:
        """Drops every version that is not in ``keep``."""
        for version in set(self._serving) - keep:
            agent = self._serving.pop(version)
            if not any(agent is other for other in self._serving.values()):
                self._retired.append(agent)

    def expect(self, stream: RandomStream) -> None:
        """Creates the stream's generator in advance, because that takes longer than a small policy's decision."""
        _ = stream.rng

    def ask(self, requests: Sequence[InferenceRequest]) -> None:
        """Decides at once, without gradients. Raises AgentError for an agent that does not as the protocol says.

        An observation that the agent cannot read fails alone.
        """
        of: dict[int, list[InferenceRequest]] = {}
        for request in requests:
            of.setdefault(max(self._serving) if self._newest else request.version, []).append(request)
        for version, asked in sorted(of.items()):
            with self._without_gradients():
                self._answers += self._decide(asked, version)

    def answers(self) -> list[InferenceReply]:
        answers, self._answers = self._answers, []
        return answers

    def _decide(self, asked: Sequence[InferenceRequest], version: int) -> list[InferenceReply]:
        try:
            decided = contract.decisions(
                self._serving[version], [one.observation for one in asked], [one.stream.rng for one in asked]
            )
        except (TrajectoryError, AgentError) as error:
            if isinstance(error, AgentError) and not self._newest:
                raise
            if len(asked) > 1:
                return [reply for request in asked for reply in self._decide([request], version)]
            why = f"the agent cannot read what the emulator shows: {error}"
            return [InferenceFailure(asked[0].number, str(error) if isinstance(error, AgentError) else why)]
        return [_answer(one, decision, version) for one, decision in zip(asked, decided, strict=True)]

    def _without_gradients(self) -> AbstractContextManager[None]:
        torch = self._torch()
        return nullcontext() if torch is None else torch.inference_mode()

    def _torch(self) -> Any:
        """Returns torch, computing with its threads; None if the agent has not imported it."""
        torch = sys.modules.get("torch")
        if torch is not None and self._torch_threads is not None:
            torch.set_num_threads(self._torch_threads)
        return torch

    def __contains__(self, version: object) -> bool:
        return version in self._serving

    def __iter__(self) -> Iterator[int]:
        return iter(self._serving)


def _answer(request: InferenceRequest, decision: Decision | NoDecision, version: int) -> InferenceReply:
    if isinstance(decision, NoDecision):
        return InferenceFailure(request.number, decision.reason)
    return result(request, decision, version)
