"""The generic policy: the probabilities it states are those of its actions."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from image_files import encoded
from PIL import Image

from digirl_dist.agent.generic import GenericPolicy
from digirl_dist.agent.pixels import Pictures
from digirl_dist.emulator import BoxActions, DiscreteActions, EmulatorSpec
from digirl_dist.errors import TrajectoryError
from digirl_dist.settings import GenericAgentSettings
from digirl_dist.trajectory import Observation


def picture(shade: int) -> bytes:
    return encoded(Image.fromarray(np.full((210, 160, 3), shade, np.uint8)))


SPECS = {
    "vector to discrete": EmulatorSpec(DiscreteActions(3), vector_size=4),
    "picture to discrete": EmulatorSpec(DiscreteActions(6), image_size=(210, 160)),
    "both to box": EmulatorSpec(BoxActions((-2.0, 0.0), (2.0, 1.0)), vector_size=4, image_size=(210, 160)),
    "vector to unbounded": EmulatorSpec(BoxActions((-math.inf,), (math.inf,)), vector_size=4),
}


def seen(spec: EmulatorSpec, count: int) -> list[Observation]:
    rng = np.random.default_rng(1)
    return [
        Observation(
            image=picture(int(rng.integers(256))) if spec.image_size else None,
            vector=rng.normal(size=spec.vector_size).astype(np.float32) if spec.vector_size else None,
        )
        for _ in range(count)
    ]


@pytest.fixture(params=SPECS)
def policy(request: pytest.FixtureRequest) -> tuple[GenericPolicy, EmulatorSpec]:
    torch.manual_seed(3)
    spec = SPECS[request.param]
    made = GenericAgentSettings().build(spec)()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made, spec


def act(policy: GenericPolicy, observations: list[Observation], seeds: list[int]) -> list[Any]:
    with torch.inference_mode():
        return policy.act(observations, [np.random.default_rng(seed) for seed in seeds])


def test_the_stated_log_probability_is_that_of_the_action(policy: tuple[GenericPolicy, EmulatorSpec]) -> None:
    made, spec = policy
    observations = seen(spec, 16)
    decisions = act(made, observations, list(range(16)))
    log_probs = made.log_prob(observations, [decision.action for decision in decisions])
    assert log_probs.requires_grad
    assert torch.allclose(log_probs, torch.tensor([decision.log_prob for decision in decisions]), atol=1e-4)


def test_a_row_decides_by_its_own_randomness_alone(policy: tuple[GenericPolicy, EmulatorSpec]) -> None:
    made, spec = policy
    observations = seen(spec, 5)
    together = act(made, observations, [5, 6, 7, 8, 9])
    alone = [act(made, [one], [seed])[0] for one, seed in zip(observations, [5, 6, 7, 8, 9], strict=True)]
    for first, second in zip(together, alone, strict=True):
        assert np.allclose(first.action, second.action, atol=1e-5)


def test_actions_are_distributed_as_stated() -> None:
    torch.manual_seed(0)
    spec = SPECS["vector to discrete"]
    made = GenericAgentSettings().build(spec)()
    (observation,) = seen(spec, 1)
    decisions = act(made, [observation] * 4000, list(range(4000)))
    counts = np.bincount([decision.action for decision in decisions], minlength=3) / 4000
    stated = made.log_prob([observation] * 3, [0, 1, 2]).exp().detach().numpy()
    assert np.allclose(counts, stated, atol=0.03) and stated.sum() == pytest.approx(1, abs=1e-5)


def test_box_actions_start_around_the_middle_of_their_bounds() -> None:
    spec = EmulatorSpec(BoxActions((0.0, -10.0), (4.0, 10.0)), vector_size=4)
    decisions = act(GenericAgentSettings().build(spec)(), seen(spec, 1) * 2000, list(range(2000)))
    actions = np.array([decision.action for decision in decisions])
    assert np.allclose(actions.mean(axis=0), [2, 0], atol=0.5)
    assert np.allclose(actions.std(axis=0), [1, 5], rtol=0.1)


def test_features_carry_no_gradient(policy: tuple[GenericPolicy, EmulatorSpec]) -> None:
    made, spec = policy
    features = made.features(seen(spec, 2))
    assert features.shape == (2, made.feature_size) and not features.requires_grad


@pytest.mark.parametrize(
    ("vector", "shown"), [(None, "no vector"), (np.zeros(9, np.float32), r"a vector of shape \[9\]")]
)
def test_an_observation_of_another_emulator_is_refused_by_its_shape(vector: np.ndarray | None, shown: str) -> None:
    made = GenericAgentSettings().build(SPECS["vector to discrete"])()
    with pytest.raises(TrajectoryError, match=f"an observation has {shown}; this agent needs 4 numbers"):
        act(made, [Observation(vector=vector)], [1])


@pytest.mark.parametrize("look", [Pictures.decoded, Pictures.remembered])
def test_a_screenshot_is_decoded_once_and_not_kept(look: Any) -> None:
    """Only the small picture counts in what is kept, and a screenshot may be a hundred times as large."""
    pictures, shots = Pictures((36, 36)), [picture(shade) for shade in range(3)]
    first = look(pictures, shots)
    assert torch.equal(look(pictures, shots[::-1]), first.flip(0))
    assert all(sys.getrefcount(shot) == 3 for shot in shots), "the list, the name and the argument"
