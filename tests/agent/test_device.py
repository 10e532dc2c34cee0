"""The policy for touch screens."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from digirl_dist.agent.device import DevicePolicy
from digirl_dist.agent.touch import KINDS, PRIOR, TAP, TYPE, Choice, TouchGrid
from digirl_dist.agent.words import bags, hashed_words, quoted
from digirl_dist.emulator import DeviceActions, DiscreteActions, EmulatorSpec
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, SettingsError, TrajectoryError
from digirl_dist.settings import DeviceAgentSettings
from digirl_dist.trajectory import Decision, Observation


def policy(size: tuple[int, int] = (210, 160)) -> DevicePolicy:
    torch.manual_seed(0)
    return DevicePolicy(DeviceAgentSettings(), EmulatorSpec(DeviceActions(), 0, size))


def screenshots(count: int, size: tuple[int, int] = (210, 160)) -> list[Observation]:
    rng = np.random.default_rng(0)
    texts = ["Open the Clock app", 'Search for "pizza" in Browser', "", 'Type "a b" now']
    observations = []
    for index in range(count):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(buffer, "png")
        observations.append(Observation(texts[index % len(texts)], buffer.getvalue()))
    return observations


def act(agent: DevicePolicy, observations: list[Observation], seed: int = 0) -> list[Decision]:
    with torch.no_grad():
        return agent.act(observations, [np.random.default_rng([seed, row]) for row in range(len(observations))])


@pytest.mark.parametrize("size", [(210, 160), (384, 216), (160, 240), (1920, 1080)])
def test_log_prob_of_an_action_is_what_was_said_when_acting(size: tuple[int, int]) -> None:
    agent, observations = policy(size), screenshots(8, size)
    for seed in range(5):
        decisions = act(agent, observations, seed)
        again = agent.log_prob(observations, [decision.action for decision in decisions])
        np.testing.assert_allclose(again.detach(), [decision.log_prob for decision in decisions], atol=1e-4)


def test_only_in_training_mode_are_the_pictures_shifted() -> None:
    settings = DeviceAgentSettings(shift=8)
    torch.manual_seed(0)
    agent, observations = DevicePolicy(settings, EmulatorSpec(DeviceActions(), 0, (210, 160))), screenshots(8)
    actions = [decision.action for decision in act(agent, observations)]
    exact = agent.train(False).log_prob(observations, actions)
    assert torch.equal(exact, agent.log_prob(observations, actions))
    assert not torch.allclose(exact, agent.train().log_prob(observations, actions))


def test_actions_are_device_actions_that_type_what_is_quoted() -> None:
    agent, observations = policy(), screenshots(4)
    typed = set()
    for seed in range(60):
        for row, decision in enumerate(act(agent, observations, seed)):
            action = DeviceAction.from_json(decision.action)
            if action.type == "type":
                typed.add((row, action.text))
    assert typed == {(1, "pizza"), (3, "a b")}


def test_probabilities_of_all_choices_sum_to_one() -> None:
    agent = policy()
    for observation in screenshots(3):
        text = quoted(observation.text)
        choices = [Choice(kind) for kind in range(1, KINDS) if kind != TYPE or text is not None]
        choices += [Choice(TAP, cell) for cell in range(agent._grid.cells)]
        actions = [agent._grid.action(choice, text) for choice in choices]
        total = agent.log_prob([observation] * len(actions), actions).exp().sum()
        assert float(total.detach()) == pytest.approx(1.0, abs=1e-4)


def test_a_decision_does_not_depend_on_the_batch() -> None:
    agent, observations = policy(), screenshots(6)
    together = act(agent, observations)
    for row, observation in enumerate(observations):
        with torch.no_grad():
            [alone] = agent.act([observation], [np.random.default_rng([0, row])])
        assert alone.action == together[row].action
        assert alone.log_prob == pytest.approx(together[row].log_prob, abs=1e-4)


def test_acting_uses_no_randomness_but_the_generators() -> None:
    agent, observations = policy(), screenshots(4)
    before = torch.get_rng_state()
    first = act(agent, observations)
    torch.manual_seed(99)
    assert act(agent, observations) == first
    torch.set_rng_state(before)


def test_an_untrained_policy_mostly_taps() -> None:
    agent, [observation] = policy(), screenshots(1)
    kinds = agent._scores(agent._pictures.decoded([observation.image]), [observation]).kinds.exp()[0]
    allowed = 1 - PRIOR[TYPE]
    np.testing.assert_allclose(kinds.detach()[TAP], PRIOR[TAP] / allowed, atol=0.05)


def test_screenshots_of_another_size_are_scaled() -> None:
    agent = policy((210, 160))
    [decision] = act(agent, screenshots(1, (420, 320)))
    assert math.isfinite(decision.log_prob)


def test_gradients_reach_every_parameter() -> None:
    agent, observations = policy(), screenshots(4)
    tap, swipe = agent._grid.action(Choice(TAP, 5), None), agent._grid.action(Choice(6), None)
    (-agent.log_prob(observations, [tap, swipe, tap, swipe]).sum()).backward()
    assert [name for name, weight in agent.named_parameters() if weight.grad is None] == []


def test_features_have_their_size_and_no_gradient() -> None:
    agent = policy()
    features = agent.features(screenshots(3))
    assert features.shape == (3, agent.feature_size) and not features.requires_grad


def test_an_action_that_cannot_be_chosen_is_refused() -> None:
    agent, [observation] = policy(), screenshots(1)
    for action in ({"type": "type", "text": "other"}, {"type": "swipe", "x": 0, "y": 0, "to_x": 1, "to_y": 1}):
        with pytest.raises(ActionError, match="not one of the actions"):
            agent.log_prob([observation], [action])


def test_a_missing_or_broken_screenshot_is_named() -> None:
    agent = policy()
    with pytest.raises(TrajectoryError, match="no screenshot"):
        act(agent, [Observation("hello")])
    with pytest.raises(TrajectoryError, match="cannot be decoded"):
        act(agent, [Observation("hello", b"no picture")])


@pytest.mark.parametrize("spec", [EmulatorSpec(DeviceActions()), EmulatorSpec(DiscreteActions(2), 0, (210, 160))])
def test_an_emulator_that_does_not_fit_is_refused(spec: EmulatorSpec) -> None:
    with pytest.raises(SettingsError, match="generic"):
        DevicePolicy(DeviceAgentSettings(), spec)


def test_every_choice_survives_the_way_through_json() -> None:
    grid = TouchGrid(13, 10)
    choices = [Choice(TAP, cell) for cell in range(grid.cells)] + [Choice(kind) for kind in range(1, KINDS)]
    assert [grid.choice(grid.action(choice, "hi"), "hi") for choice in choices] == choices


def test_a_tap_at_the_edge_belongs_to_the_last_cell() -> None:
    grid = TouchGrid(13, 10)
    assert grid.choice({"type": "tap", "x": 1, "y": 1}, None) == Choice(TAP, grid.cells - 1)


def test_the_prior_is_a_distribution() -> None:
    assert len(PRIOR) == KINDS and sum(PRIOR) == pytest.approx(1.0)


@pytest.mark.component
def test_words_hash_alike_in_every_process() -> None:
    code = "from digirl_dist.agent.words import hashed_words; print(hashed_words('Open the Clock', 2048))"
    answers = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert answers == {f"{hashed_words('open THE clock', 2048)}\n"}


def test_bags_tell_where_each_text_begins() -> None:
    flat, starts = bags(["one two", "", "three"], 64)
    assert starts.tolist() == [0, 2, 2]
    assert flat.tolist() == hashed_words("one two three", 64)


def test_the_first_quoted_part_is_typed() -> None:
    assert quoted('Write "a b" not "c"') == "a b"
    assert quoted("Write “tea”") == "tea"
    assert quoted("Don't type") is None
