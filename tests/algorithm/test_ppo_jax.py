"""PPO's updates by JAX: the same as PyTorch's, for every kind of observation and action."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from PIL import Image
from user_classes import Coin

from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.agent.generic_jax import JaxGenericPolicy
from digirl_dist.algorithm.ppo import PPO, LearnerFactory, TorchLearner
from digirl_dist.algorithm.ppo_jax import JaxLearner
from digirl_dist.emulator import BoxActions, DiscreteActions, EmulatorSpec
from digirl_dist.errors import SettingsError, TrainingError
from digirl_dist.parallel.peers import ALONE
from digirl_dist.settings import GenericAgentSettings, PpoSettings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = pytest.mark.component

SPECS = {
    "vector to discrete": EmulatorSpec(DiscreteActions(3), vector_size=4),
    "both to box": EmulatorSpec(BoxActions((-2.0, -np.inf), (2.0, 1.0)), vector_size=4, image_size=(40, 40)),
}


def policy(spec: EmulatorSpec) -> GenericPolicy:
    torch.manual_seed(3)
    made = GenericAgentSettings(width=8, short_side=40).build(spec)()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


def piece(agent: GenericPolicy, length: int = 7) -> Trajectory:
    """Steps as the agent takes them."""
    rng = np.random.default_rng(1)
    seen = [observation(agent.spec, rng) for _ in range(length + 1)]
    with torch.no_grad():
        decisions = agent.act(seen[:-1], [np.random.default_rng(k) for k in range(length)])
    steps = [
        Step(at, made.action, made.log_prob, float(k % 3 == 0), False, False)
        for k, (at, made) in enumerate(zip(seen, decisions, strict=False))
    ]
    return Trajectory(Ticket(0, 0, Task("t"), 0, 0), "e", "w", 0, steps, seen[-1], False)


def observation(spec: EmulatorSpec, rng: np.random.Generator) -> Observation:
    image = None
    if spec.image_size:
        data = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (*spec.image_size, 3), np.uint8)).save(data, "PNG")
        image = data.getvalue()
    return Observation(image=image, vector=rng.normal(size=spec.vector_size).astype(np.float32))


@pytest.fixture(params=SPECS)
def agent(request: pytest.FixtureRequest) -> GenericPolicy:
    return policy(SPECS[request.param])


def settings(learning_rate: float = 1e-2) -> PpoSettings:
    """Three minibatches a pass, the last one of a single row; two make a step, and the steps grow."""
    return PpoSettings(learning_rate, batch_size=3, accumulate=2, epochs=2, clip_norm=0.3, ramp_steps=3, width=8)


def algorithm(agent: GenericPolicy, learner: LearnerFactory) -> PPO:
    return PPO(agent, settings(), 4, 0, ALONE, learner)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)


def test_log_probabilities_are_those_of_the_policy_that_acts(agent: GenericPolicy) -> None:
    steps = piece(agent).steps
    in_jax = JaxGenericPolicy(agent)
    rows = in_jax.arrays([step.observation for step in steps], [step.action for step in steps])
    weights = {name: parameter.detach().numpy() for name, parameter in in_jax.parameters.items()}
    assert list(weights) == list(agent.state_dict())
    found = np.asarray(in_jax.log_prob(weights, rows))
    assert np.allclose(found, [step.log_prob for step in steps], atol=1e-4)


def test_updates_are_those_of_torch_and_either_goes_on_where_the_other_stopped() -> None:
    agent = policy(SPECS["both to box"])
    fresh = [piece(agent)]
    torch_agent, jax_agent = copy.deepcopy(agent), agent
    by_torch, by_jax = algorithm(torch_agent, TorchLearner), algorithm(jax_agent, JaxLearner)
    for _ in range(2):
        assert by_torch.update(fresh, fresh) == pytest.approx(by_jax.update(fresh, fresh), abs=1e-5)
    assert close(torch_agent.state_dict(), jax_agent.state_dict())
    torch_goes_on, jax_goes_on = algorithm(torch_agent, TorchLearner), algorithm(jax_agent, JaxLearner)
    states = copy.deepcopy(by_jax.state_dict()), copy.deepcopy(by_torch.state_dict())
    torch_goes_on.load_state_dict(states[0])
    jax_goes_on.load_state_dict(states[1])
    assert torch_goes_on.update(fresh, fresh) == pytest.approx(jax_goes_on.update(fresh, fresh), abs=1e-5)
    assert close(torch_agent.state_dict(), jax_agent.state_dict())


def test_a_loss_that_explodes_leaves_the_weights_alone() -> None:
    made = policy(SPECS["vector to discrete"])
    before = copy.deepcopy(made.state_dict())
    fresh = [piece(made)]
    fresh[0].steps[0] = Step(fresh[0].steps[0].observation, 0, -1.0, np.inf, False, False)
    with pytest.raises(TrainingError, match="the PPO loss became"):
        algorithm(made, JaxLearner).update(fresh, fresh)
    assert close(before, made.state_dict())


def test_another_agent_is_refused() -> None:
    with pytest.raises(SettingsError, match="agent=generic alone, not Coin"):
        JaxGenericPolicy(Coin(SPECS["vector to discrete"]))
