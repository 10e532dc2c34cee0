"""Proximal policy optimisation: its formulas, and what it does to a policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.algorithm.losses import MOST_LOG_RATIO, clipped_gains, ratios_of
from digirl_dist.algorithm.ppo import PPO, generalized_advantages, normalised
from digirl_dist.algorithm.values import looked_at
from digirl_dist.emulator import DiscreteActions, EmulatorSpec
from digirl_dist.parallel.peers import ALONE
from digirl_dist.settings import GenericAgentSettings, PpoSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory


def test_the_objective_gains_nothing_beyond_the_clip() -> None:
    ratios = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5, 4.0], requires_grad=True)
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    objective = clipped_gains(ratios, advantages, 0.2, 0.2)
    assert objective.tolist() == pytest.approx([2.0, 1.2, -1.5, 0.5, -0.8, -3.0])
    objective.sum().backward()
    assert ratios.grad is not None and ratios.grad.tolist() == [2.0, 0.0, -1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("acted", [-10.0, -3.4e38, 3.4e38])
@pytest.mark.parametrize("high", [0.2, 5.0])
def test_the_objective_is_bounded_on_both_sides(acted: float, high: float) -> None:
    now = torch.tensor([-0.1, -0.1], requires_grad=True)
    ratios = ratios_of(now - torch.tensor([acted, acted]))
    gains = clipped_gains(ratios, torch.tensor([1.0, -1.0]), 0.2, high)
    gains.sum().backward()
    assert ratios.max() <= np.exp(MOST_LOG_RATIO) * 1.001 and gains.abs().max() <= max(3.0, 1 + high)
    assert now.grad is not None and torch.isfinite(now.grad).all()


def test_generalised_advantages_lie_between_one_step_and_the_whole_return() -> None:
    rewards, values = np.array([1.0, 0.0, 2.0]), np.array([0.5, 0.4, 0.3, 0.2])
    one_step = generalized_advantages(rewards, values, discount=0.9, lam=0.0)
    assert one_step == pytest.approx([1 + 0.36 - 0.5, 0.27 - 0.4, 2 + 0.18 - 0.3])
    whole = generalized_advantages(rewards, values, discount=0.9, lam=1.0)
    assert whole[0] == pytest.approx(1 + 0.81 * 2 + 0.729 * 0.2 - 0.5)


def test_advantages_are_normalised() -> None:
    values = normalised(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64), ALONE)
    assert float(values.mean()) == pytest.approx(0, abs=1e-9)
    assert float(values.square().mean()) == pytest.approx(1, abs=1e-3)
    alike = normalised(torch.tensor([10.0, 10.0, 10.0, 10.00001], dtype=torch.float64), ALONE)
    assert float(alike.abs().max()) < 0.1, "noise is no advantage"


def policy() -> GenericPolicy:
    torch.manual_seed(0)
    return GenericAgentSettings(width=16).build(EmulatorSpec(DiscreteActions(2), vector_size=2))()


def piece(action: int, reward: float, terminated: bool) -> Trajectory:
    seen = Observation(vector=np.array([1, 0], np.float32))
    step = Step(seen, action, float(np.log(0.5)), reward, terminated, truncated=False)
    return Trajectory(Ticket(0, 0, Task("choose"), 0, 0), "e", "w", 0, [step] * 4, seen, success=False)


def test_the_rewarded_action_becomes_likelier_and_the_rate_falls_to_nothing() -> None:
    agent = policy()
    algorithm = PPO(agent, PpoSettings(learning_rate=0.05, anneal_iterations=4), seed=0)
    there = [piece(1, 1.0, terminated=True), piece(0, 0.0, terminated=True)]
    rates = [algorithm.update(there, there).figures["learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([0.05, 0.0375, 0.025, 0.0125, 0.0])
    assert agent.log_prob([there[0].final_observation], [1]).exp().item() > 0.6


def test_what_comes_after_a_piece_is_estimated_and_after_an_end_nothing() -> None:
    algorithm = PPO(policy(), PpoSettings(), seed=0)
    values = np.array([0.0, 0.0, 0.0, 0.0, 5.0])
    goes_on = algorithm._advantages(piece(1, 0.0, terminated=False), values)
    over = algorithm._advantages(piece(1, 0.0, terminated=True), values)
    assert goes_on[-1] == pytest.approx(0.99 * 5) and over.tolist() == [0, 0, 0, 0]


def test_updates_do_not_depend_on_the_unit_of_rewards() -> None:
    agents = policy(), policy()
    for agent, unit in zip(agents, (1e3, 1e9), strict=True):
        settings = PpoSettings(batch_size=3, anneal_iterations=4)
        settings.MAX_LOSS = 10.0  # type: ignore[misc]
        algorithm = PPO(agent, settings, seed=0)
        there = [piece(1, unit, terminated=False), piece(0, -2 * unit, terminated=True)]
        for _ in range(4):
            learned = algorithm.update(there, there)
        values = [row.value for row in learned.rows if row.episode is there[1]]
        assert np.mean(values) / unit < -1, "the value function is told in the unit of rewards"
    seen = Observation(vector=np.array([1, 0], np.float32))
    assert torch.allclose(agents[0].log_prob([seen], [1]), agents[1].log_prob([seen], [1]), atol=1e-3)
    assert agents[0].log_prob([seen], [1]) > policy().log_prob([seen], [1]) + 0.01


def test_the_value_function_sees_vectors_that_no_update_of_the_policy_changes() -> None:
    agent = policy()
    seen = [Observation(vector=np.array([3, -4], np.float32))]
    assert agent.critic_inputs(seen).tolist() == [[3, -4]] and agent.critic_size == 2
    pieces = [piece(1, 0.0, terminated=True), piece(0, 0.0, terminated=True)]
    assert [each.tolist() for each in looked_at(agent, pieces, ALONE)] == [[[1, 0]] * 5] * 2
    assert looked_at(agent, [], ALONE) == ()


def test_the_value_function_sees_the_screenshots_that_the_policy_does() -> None:
    steps = [Step(Observation("", b"%d" % at), 0, -1.0, 0.0, False, at == 9) for at in range(10)]
    episode = Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, Observation("", b"last"), False)
    seen: list[Observation] = []

    class Viewer(GenericPolicy):
        def critic_inputs(self, observations: Sequence[Observation]) -> torch.Tensor:
            seen.extend(observations)
            return torch.zeros(len(observations), self.critic_size)

    looked_at(Viewer(policy().spec, width=16, short_side=8), [episode], ALONE)
    assert [list(one.earlier) for one in seen] == [[b"%d" % at for at in range(max(0, k - 8), k)] for k in range(11)]


def test_a_resumed_algorithm_goes_on_as_if_it_had_not_stopped() -> None:
    there = [piece(1, 1.0, terminated=True), piece(0, 0.0, terminated=True)]
    agents = [policy(), policy()]
    settings = PpoSettings(batch_size=3, anneal_iterations=4)
    through, stopped = (PPO(agent, settings, seed=0) for agent in agents)
    for _ in range(2):
        through.update(there, there)
    stopped.update(there, there)
    resumed = PPO(agents[1], settings, seed=9)
    resumed.load_state_dict(stopped.state_dict())
    resumed.update(there, there)
    states = [agent.state_dict() for agent in agents]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
