"""The policies of one machine act as they were saved, whatever class they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from user_classes import Coin, Counter

from digirl_dist.inference.local import LocalPolicies
from digirl_dist.inference.requests import InferenceRequest, InferenceResult, RandomStream
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
