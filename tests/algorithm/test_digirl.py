"""DigiRL's formulas against independent computations, and its state."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from things import Coin, Counter

from digirl_dist.algorithm.digirl import DigiRL, instruction_advantages, step_advantages
from digirl_dist.algorithm.values import SuccessValue, two_class_loss
from digirl_dist.errors import TrainingError
from digirl_dist.settings import DigirlSettings, ValueSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

UNIT = st.floats(0, 1, width=32)


def episode(index: int, actions: list[int]) -> Trajectory:
    """Rewarded at the end if its last action is 1."""
    last = len(actions) - 1
    steps = [
        Step(Observation("", None, np.array([at, index % 2], np.float32)), action, -0.7, 0.0, at == last, False)
        for at, action in enumerate(actions)
    ]
    won = actions[-1] == 1
    steps[-1] = Step(steps[-1].observation, actions[-1], -0.7, float(won), True, False)
    end = Observation("", None, np.array([len(actions), index % 2], np.float32))
    return Trajectory(Ticket(0, index, Task("t"), index, 0), str(index), "w", 0, steps, end, won)


def batch(seed: int) -> list[Trajectory]:
    rng = np.random.default_rng(seed)
    return [episode(index, rng.integers(2, size=3).tolist()) for index in range(40)]


def made() -> DigiRL:
    settings = DigirlSettings(value=ValueSettings(epochs=2))
    return DigiRL(Coin(Counter.spec), settings, seed=0)


@given(
    st.integers(1, 12).flatmap(
        lambda steps: st.tuples(
            arrays.arrays(np.float64, steps, elements=UNIT), arrays.arrays(np.float64, steps + 1, elements=UNIT), UNIT
        )
    )
)
def test_the_step_advantage_is_doubly_robust(drawn: tuple[np.ndarray, np.ndarray, float]) -> None:
    rewards, values, lam = drawn
    total = len(rewards)
    expected = []
    for h in range(1, total + 1):
        outcome = lam ** (total - h)
        bootstrap = values[h] + rewards[h - 1] - values[h - 1]
        expected.append(outcome * rewards[total - 1] + (1 - outcome) * bootstrap)
    assert np.allclose(step_advantages(rewards, values, lam), expected, atol=1e-6)


def test_the_last_step_is_judged_by_its_outcome_alone() -> None:
    assert step_advantages(np.array([0.0, 1.0]), np.array([0.9, 0.9, 0.9]), 0.5)[-1] == 1.0


@given(arrays.arrays(np.float64, 8, elements=UNIT), arrays.arrays(np.float64, 8, elements=UNIT))
def test_the_instruction_advantage_is_the_return_beyond_what_was_expected(
    rewards: np.ndarray, values: np.ndarray
) -> None:
    assert np.allclose(instruction_advantages(rewards, values), [r - v for r, v in zip(rewards, values, strict=True)])


@given(
    arrays.arrays(np.float64, (6, 2), elements=st.floats(-5, 5)), st.lists(st.integers(0, 1), min_size=6, max_size=6)
)
def test_the_value_loss_is_the_cross_entropy_of_two_classes(logits: np.ndarray, labels: list[int]) -> None:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    expected = -np.mean([row[label] for row, label in zip(log_probs, labels, strict=True)])
    assert float(two_class_loss(torch.from_numpy(logits), torch.tensor(labels))) == pytest.approx(expected, abs=1e-6)


def test_a_value_function_learns_what_succeeds() -> None:
    value = SuccessValue(2, ValueSettings(epochs=200, learning_rate=1e-2), seed=0)
    lost, won = [0.0, 1.0], [1.0, 0.0]
    assert value(torch.tensor([lost, won])).tolist() == [0.5, 0.5]
    value.fit(torch.tensor([lost, won] * 8), [False, True] * 8)
    of_lost, of_won = value(torch.tensor([lost, won])).tolist()
    assert of_lost < 0.1 < 0.9 < of_won


def test_it_learns_the_action_that_succeeds() -> None:
    algorithm = made()
    before = algorithm._agent.log_prob([], [1]).item()
    for seed in range(5):
        figures = algorithm.update(batch(seed), batch(seed))
    assert figures["kept_trajectories"] > 0 and figures["kept_steps"] > 0
    assert algorithm._agent.log_prob([], [1]).item() > before


def test_continuing_from_its_state_is_continuing() -> None:
    algorithm = made()
    algorithm.update(batch(0), batch(0))
    weights, state = copy.deepcopy(algorithm._agent.state_dict()), copy.deepcopy(algorithm.state_dict())
    figures = algorithm.update(batch(1), batch(1))
    other = DigiRL(Coin(Counter.spec), DigirlSettings(value=ValueSettings(epochs=2)), seed=99)
    other._agent.load_state_dict(weights)
    other.load_state_dict(state)
    assert other.update(batch(1), batch(1)) == figures
    assert torch.equal(other._agent.state_dict()["logits"], algorithm._agent.state_dict()["logits"])


def test_a_loss_that_is_no_number_stops_it() -> None:
    algorithm = made()
    algorithm._agent.load_state_dict({"logits": torch.tensor([0.0, float("nan")])})
    with pytest.raises(TrainingError, match="actor's loss"):
        algorithm.update(batch(0), batch(0))
