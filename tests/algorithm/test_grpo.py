"""GRPO's formulas against independent computations, its groups, and its correction for older policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from user_classes import Coin, Counter

from digirl_dist.algorithm.advantages import group_advantages
from digirl_dist.algorithm.grpo import Batch, Grpo, clipped_loss, importance
from digirl_dist.algorithm.ppo import PPO
from digirl_dist.settings import GrpoActorSettings, GrpoSettings, PpoSettings
from digirl_dist.tasks import Plan, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

UNIT = st.floats(0, 1, width=32)
LOG_PROB = st.floats(-6, 0, width=32)


def vectors(elements: st.SearchStrategy[float], size: int = 7) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float64, size, elements=elements)


@given(vectors(st.floats(-3, 3, width=32)), st.booleans())
def test_the_group_advantage_is_the_return_against_mean_and_deviation(returns: np.ndarray, scale: bool) -> None:
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in returns) / len(returns))
    if max(returns) == min(returns):
        expected = [0.0] * len(returns)
    else:
        expected = [(each - mean) / (deviation if scale else 1.0) for each in returns]
    assert np.allclose(group_advantages(returns, scale), expected, atol=1e-6)


@given(vectors(LOG_PROB), vectors(LOG_PROB), vectors(st.floats(-2, 2, width=32)), vectors(UNIT), UNIT, st.floats(0, 2))
def test_the_clipped_loss_is_that_of_its_formula(
    new: np.ndarray, old: np.ndarray, advantages: np.ndarray, weights: np.ndarray, low: float, high: float
) -> None:
    terms = []
    for new_one, old_one, advantage, weight in zip(new, old, advantages, weights, strict=True):
        ratio = math.exp(new_one - old_one)
        clipped = min(max(ratio, 1 - low), 1 + high)
        terms.append(weight * min(ratio * advantage, clipped * advantage))
    batch = Batch(torch.tensor(old), torch.tensor(advantages), torch.tensor(weights))
    found = float(clipped_loss(torch.tensor(new), batch, low, high))
    assert found == pytest.approx(-sum(terms) / len(terms), rel=1e-6, abs=1e-6)


@given(vectors(LOG_PROB), vectors(LOG_PROB), st.floats(0.5, 5))
def test_the_importance_of_a_step_is_its_ratio_truncated(now: np.ndarray, acted: np.ndarray, most: float) -> None:
    expected = [min(math.exp(one) / math.exp(other), most) for one, other in zip(now, acted, strict=True)]
    assert np.allclose(importance(torch.tensor(now), torch.tensor(acted), most), expected, atol=1e-6)


def episode(ticket: Ticket, actions: list[int], log_prob: float = math.log(0.5)) -> Trajectory:
    """Rewarded at the end if its last action is 1."""
    seen = Observation("", None, np.zeros(2, np.float32))
    won, last = actions[-1] == 1, len(actions) - 1
    steps = [
        Step(seen, action, log_prob, float(won and at == last), at == last, False) for at, action in enumerate(actions)
    ]
    return Trajectory(ticket, f"e{ticket.index}", "w", 0, steps, seen, won)


def group(results: list[int], version: int = 4, log_prob: float = math.log(0.5)) -> list[Trajectory]:
    """Episodes of iteration 4 from one start, collected by policy ``version``."""
    tickets = [Ticket(4, index, Task("t"), 9, version) for index in range(len(results))]
    return [episode(ticket, [result], log_prob) for ticket, result in zip(tickets, results, strict=True)]


def made(**settings: float) -> tuple[Coin, Grpo]:
    coin = Coin(Counter.spec)
    actor = GrpoActorSettings(learning_rate=0.01, epochs=1)
    return coin, Grpo(coin, GrpoSettings(actor=actor, **settings), seed=0)  # type: ignore[arg-type]


def test_it_learns_the_action_that_beats_its_group() -> None:
    coin, grpo = made()
    figures = grpo.update(group([1, 0, 1, 0]), [])
    assert figures["kept_trajectories"] == 4 and figures["policy_lag"] == 0
    assert coin.log_prob([], [1]).item() > math.log(0.5) > coin.log_prob([], [0]).item()


class Blurred(Coin):
    """Regularises in training mode, as an agent with dropout or shifted pictures does."""

    def log_prob(self, observations: Sequence[Observation], actions: Sequence[Any]) -> torch.Tensor:
        return super().log_prob(observations, actions) - float(self.training)


def test_ratios_are_those_of_evaluation_mode() -> None:
    """In the first step every ratio is 1, so advantages of a group add up to 0."""
    blurred = Blurred(Counter.spec)
    grpo = Grpo(blurred.train(), GrpoSettings(actor=GrpoActorSettings(epochs=1)), seed=0)
    assert grpo.update(group([1, 0, 1, 0]), [])["actor_loss"] == pytest.approx(0, abs=1e-6)
    ppo = PPO(blurred.train(), PpoSettings(epochs=1, value_weight=0.0), iterations=9, seed=0)
    log_prob = blurred.train(False).log_prob([], [1]).item()
    blurred.train()
    assert ppo.update(group([1, 1], log_prob=log_prob), [])["ppo_loss"] == pytest.approx(0, abs=1e-6)
    assert not blurred.training


def test_groups_that_came_out_alike_teach_nothing() -> None:
    coin, grpo = made()
    figures = grpo.update(group([1, 1, 1]), [])
    assert figures["kept_trajectories"] == 0 and coin.logits.tolist() == [0.0, 0.0]


def test_episodes_are_compared_with_those_of_their_own_task_alone() -> None:
    """Alone in its group, an episode has nothing to be better than."""
    coin, grpo = made()
    apart = [episode(Ticket(4, index, Task(str(index)), 9, 4), [index % 2]) for index in range(4)]
    assert grpo.update(apart, [])["kept_trajectories"] == 0
    assert coin.logits.tolist() == [0.0, 0.0]


def test_the_loss_of_all_rows_is_the_mean_over_episodes_of_the_mean_over_their_steps() -> None:
    _, grpo = made()
    fresh = [
        episode(Ticket(4, 0, Task("t"), 9, 4), [0, 0, 1]),
        episode(Ticket(4, 1, Task("t"), 9, 4), [0]),
        episode(Ticket(4, 2, Task("t"), 9, 4), [1, 1], log_prob=math.log(0.48)),
    ]
    returns = np.array([1.0, 0.0, 1.0])
    advantages = (returns - returns.mean()) / returns.std()
    of_episodes = []
    for trajectory, advantage in zip(fresh, advantages, strict=True):
        ratios = [0.5 / math.exp(step.log_prob) for step in trajectory.steps]
        terms = [min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) for ratio in ratios]
        of_episodes.append(sum(terms) / len(terms))
    figures = grpo.update(fresh, [])
    assert figures["actor_loss"] == pytest.approx(-sum(of_episodes) / 3, abs=1e-6)


def test_steps_of_an_older_policy_count_by_their_truncated_ratio() -> None:
    """The present policy gives each action 0.5; the older one gave 0.8 to what it did."""
    stale = group([1, 0], version=3, log_prob=math.log(0.8))
    _, grpo = made()
    figures = grpo.update(stale, [])
    assert figures["policy_lag"] == 1.0
    batch = made()[1]._batch([(each, 1.0) for each in stale], _rows(stale))
    np.testing.assert_allclose(batch.weights, [0.5 / 0.8] * 2, atol=1e-6)
    np.testing.assert_allclose(batch.old, [math.log(0.5)] * 2, atol=1e-6)
    rare = group([1, 0], version=3, log_prob=math.log(0.01))
    np.testing.assert_allclose(made()[1]._batch([(each, 1.0) for each in rare], _rows(rare)).weights, 2.0)


def _rows(episodes: list[Trajectory]) -> list[object]:
    from digirl_dist.algorithm.imitation import Example

    return [Example(step.observation, step.action) for each in episodes for step in each.steps]


def test_a_plan_in_groups_gives_each_group_one_start() -> None:
    plan = Plan([Task(str(number)) for number in range(5)], rollout_size=12, seed=3, group_size=4)
    tickets = plan.tickets(2, 2)
    starts = [(ticket.task.id, ticket.seed) for ticket in tickets]
    assert [ticket.index for ticket in tickets] == list(range(12))
    assert len(set(starts)) == 3 and all(len(set(starts[first : first + 4])) == 1 for first in (0, 4, 8))
