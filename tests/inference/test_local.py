"""The policies of one machine act as they were saved, whatever class they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from user_classes import Coin, Counter, FairCoin

from digirl_dist.errors import TrajectoryError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceFailure, InferenceRequest, InferenceResult, RandomStream
from digirl_dist.trajectory import Decision, Observation


class Dropping(Coin):
    """An agent of a user's, with dropout."""

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self._dropout = nn.Dropout(0.5)

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision(0, float(self._dropout(torch.ones(64)).std())) for _ in observations]


def test_an_agent_acts_without_dropout_also_where_a_retired_one_takes_new_weights() -> None:
    policies = LocalPolicies(lambda: Dropping(Counter.spec))
    for version in range(2):
        policies.load(version, Dropping(Counter.spec).state_dict())
        policies.retire({version})
        policies.ask([InferenceRequest(0, version, RandomStream(0, 0, 0), Observation())])
        (answer,) = policies.answers()
        assert isinstance(answer, InferenceResult) and answer.decision.log_prob == 0.0


def test_torch_computes_with_as_many_threads_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    policies = LocalPolicies(lambda: Counted(threads), torch_threads=3)
    policies.load(0, {})
    policies.ask([InferenceRequest(0, 0, RandomStream(0, 0, 0), Observation())])
    assert [type(answer) for answer in policies.answers()] == [InferenceResult]
    LocalPolicies(lambda: Counted([3])).load(0, {})
    assert set(threads) == {3}


class Counted(FairCoin):
    """An agent that is made, and acts, once torch knows its threads."""

    def __init__(self, threads: list[int]) -> None:
        super().__init__(Counter.spec)
        assert threads[-1:] == [3]
        self._threads = threads

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        assert self._threads[-1] == 3 and torch.is_inference_mode_enabled()
        return super().act(observations, rngs)


class Reading(Coin):
    """An agent that needs a screenshot."""

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        if any(seen.image is None for seen in observations):
            raise TrajectoryError("an observation has no screenshot")
        return [Decision(0, 0.0) for _ in observations]


def test_an_observation_that_the_agent_cannot_read_fails_alone() -> None:
    policies = LocalPolicies(lambda: Reading(Counter.spec))
    policies.load(0, Reading(Counter.spec).state_dict())
    images = [b"one", None, b"two"]
    policies.ask([InferenceRequest(k, 0, RandomStream(0, k, 0), Observation(image=images[k])) for k in range(3)])
    answers = {answer.number: answer for answer in policies.answers()}
    assert isinstance(answers[0], InferenceResult) and isinstance(answers[2], InferenceResult)
    assert isinstance(answers[1], InferenceFailure) and "has no screenshot" in answers[1].reason
