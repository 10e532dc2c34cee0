"""The policy for touch screens."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from image_files import encoded
from PIL import Image

from digirl_dist.agent.device.batch import bags_of
from digirl_dist.agent.device.planes import traces
from digirl_dist.agent.device.policy import DevicePolicy
from digirl_dist.agent.device.reading import hashed_words, read
from digirl_dist.agent.device.touch import KINDS, Choice, TouchGrid, kinds_of
from digirl_dist.agent.prompts import quoted
from digirl_dist.emulator import DeviceActions, EmulatorSpec, Label
from digirl_dist.emulator.remembered import Memory, told
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError, SettingsError, TrajectoryError
from digirl_dist.settings import DeviceAgentSettings
from digirl_dist.trajectory import Decision, Observation

TAPPED = Memory(DeviceAction("tap", 0.55, 0.5), here=True)
BACK = Memory(DeviceAction("back"), here=False)
TYPED = Memory(DeviceAction("type_at", 0.2, 0.9, text="other"), here=True)
MEMORIES = [[], [TAPPED], [BACK, TAPPED], [TYPED, BACK]]


def policy(size: tuple[int, int] = (210, 160), **settings: Any) -> DevicePolicy:
    torch.manual_seed(0)
    return DeviceAgentSettings(**settings).build(EmulatorSpec(DeviceActions(), 0, size))()


def screenshots(count: int, size: tuple[int, int] = (210, 160)) -> list[Observation]:
    rng = np.random.default_rng(0)
    texts = ["Open the Clock app", 'Search for "pizza" in Browser', "", 'Type "a b" now']
    observations = []
    for index in range(count):
        image = png(rng.integers(0, 255, (*size, 3), dtype=np.uint8))
        text = told(texts[index % len(texts)], MEMORIES[(index // 2) % len(MEMORIES)])
        observations.append(Observation(text, image))
    return observations


def png(picture: np.ndarray) -> bytes:
    return encoded(Image.fromarray(picture))


def choices_of(grid: TouchGrid, texts: list[str]) -> list[Choice]:
    """All that there are."""
    return [
        Choice(index, place, second)
        for index, kind in enumerate(grid.kinds)
        for place in range(grid.cells if kind.placed else 1)
        for second in range(len(texts) if kind.types else grid.cells if kind.drags else 1)
    ]


def cell_probabilities(agent: DevicePolicy, observation: Observation) -> np.ndarray:
    """Of each cell, given a tap."""
    looked = agent._look(agent._pictures.decoded([observation.image]), [read(observation.text)])
    return looked.places[0, 0].exp().detach().numpy()


def act(agent: DevicePolicy, observations: list[Observation], seed: int = 0) -> list[Decision]:
    with torch.no_grad():
        return agent.act(observations, [np.random.default_rng([seed, row]) for row in range(len(observations))])


@pytest.mark.component
@pytest.mark.parametrize("size", [(210, 160), (160, 240), pytest.param((1920, 1080), marks=pytest.mark.nightly)])
def test_log_prob_of_an_action_is_what_was_said_when_acting(size: tuple[int, int]) -> None:
    agent, observations = policy(size), screenshots(8, size)
    for seed in range(5):
        decisions = act(agent, observations, seed)
        again = agent.log_prob(observations, [decision.action for decision in decisions])
        np.testing.assert_allclose(again.detach(), [decision.log_prob for decision in decisions], atol=1e-4)


def test_log_prob_is_what_was_said_also_where_a_text_is_quoted_twice() -> None:
    agent = policy()
    observation = replace(screenshots(1)[0], text='Enter "bob", again "bob", and "ann"')
    typed = set()
    for seed in range(60):
        [decision] = act(agent, [observation], seed)
        assert float(agent.log_prob([observation], [decision.action])) == pytest.approx(decision.log_prob, abs=1e-4)
        DeviceAgentSettings().check_action(EmulatorSpec(DeviceActions()), observation, decision.action)
        typed.add(decision.action.get("text"))
    assert typed == {None, "bob", "ann"}


def test_only_in_training_mode_are_the_pictures_shifted() -> None:
    agent, observations = policy(shift=8), screenshots(8)
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
            if action.type in ("type", "type_at"):
                typed.add((row, action.text))
    assert typed == {(1, "pizza"), (3, "a b")}


@pytest.mark.component
def test_probabilities_of_all_choices_sum_to_one() -> None:
    agent = policy(short_side=24, actions=[kind.action.type for kind in KINDS])
    for observation in screenshots(3):
        texts = read(observation.text).texts
        actions = [agent._grid.action(choice, texts) for choice in choices_of(agent._grid, texts)]
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
    kinds = agent._look(agent._pictures.decoded([observation.image]), [read(observation.text)]).kinds.exp()[0]
    allowed = sum(kind.prior for kind in agent._grid.kinds if not kind.types)
    np.testing.assert_allclose(kinds.detach()[0], KINDS[0].prior / allowed, atol=0.05)


def test_an_untrained_policy_touches_where_something_is_drawn() -> None:
    picture = np.full((210, 160, 3), 200, np.uint8)
    picture[100:120, 60:100] = np.random.default_rng(0).integers(0, 255, (20, 40, 3))
    shown = Observation("Push", png(picture))
    drawn, blind = (cell_probabilities(policy(saliency=power), shown).reshape(13, 10) for power in (1.0, 0.0))
    assert drawn[6:8, 3:7].sum() > 2 * blind[6:8, 3:7].sum()


def test_where_to_touch_may_depend_on_what_is_seen_elsewhere() -> None:
    """A sign at the top says which of two buttons is right; they look the same under either."""
    picture = np.full((210, 160, 3), 255, np.uint8)
    picture[180:200, 20:40] = picture[180:200, 120:140] = 0
    seen = []
    for colour in (0, 2):
        picture[10:40, 60:100] = np.eye(3)[colour] * 255
        seen.append(Observation("Push the right one", png(picture)))
    agent = policy(actions=["tap"])
    taps = [{"type": "tap", "x": x, "y": 190 / 210} for x in (30 / 160, 130 / 160)]
    optimizer = torch.optim.Adam(agent.parameters(), 1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        (-agent.log_prob(seen, taps).sum()).backward()
        optimizer.step()
    right, wrong = agent.log_prob(seen, taps), agent.log_prob(seen, taps[::-1])
    assert (right > wrong + 2).all()


def test_tasks_without_a_text_do_not_teach_whether_to_type() -> None:
    """And neither kind of task moves the last layer of the other."""
    agent, [seen] = policy(), screenshots(1)
    taps, last = len(agent._grid.kinds), agent._kind_head[-1]
    for text, others in (("Open Clock", slice(taps, None)), ('Write "tea"', slice(taps))):
        agent.zero_grad()
        agent.log_prob([replace(seen, text=text)], [{"type": "back"}]).sum().backward()
        assert not last.weight.grad[others].any() and last.weight.grad.any()
        assert not last.bias.grad[others].any() and last.bias.grad.any()


def test_what_was_done_on_the_very_screen_is_less_probable() -> None:
    [seen] = screenshots(1)
    here, before = (replace(seen, text=told("Push", [replace(TAPPED, here=here)])) for here in (True, False))
    agent = policy()
    again = int(TAPPED.action.y * 13) * 10 + int(TAPPED.action.x * 10)
    assert cell_probabilities(agent, here)[again] < 0.3 * cell_probabilities(agent, before)[again]
    texts = [told("Push", [replace(BACK, here=here)]) for here in (True, False)]
    repeated, once = agent.log_prob([replace(seen, text=text) for text in texts], [{"type": "back"}] * 2).tolist()
    assert repeated < once - 1


def test_observations_that_differ_in_memories_alone_are_told_apart() -> None:
    [seen], others = screenshots(1), [[], [TAPPED], [BACK], [TYPED, BACK]]
    features = policy().features([replace(seen, text=told("Push", memories)) for memories in others])
    assert len({tuple(row) for row in features.tolist()}) == len(others)


def test_a_device_agent_can_be_told_which_actions_to_choose_from() -> None:
    agent = policy(actions=["tap", "back"])
    actions = {decision.action["type"] for seed in range(20) for decision in act(agent, screenshots(4), seed)}
    assert actions == {"tap", "back"}
    with pytest.raises(SettingsError, match="knows no action 'jump'"):
        policy(actions=["tap", "jump"])
    with pytest.raises(SettingsError, match="without the action tap"):
        policy(actions=["back"])


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"memory": -1}, "at least 0"), ({"memory": 0, "actions": ["tap", "type_at"]}, "agent.memory")],
)
def test_settings_without_the_memory_that_they_need_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        DeviceAgentSettings(**settings)


@pytest.mark.parametrize(("memory", "point"), [(8, {"type_at"}), (0, set())])
def test_what_is_useful_on_a_device_is_chosen_from(memory: int, point: set[str]) -> None:
    spec = EmulatorSpec(DeviceActions(("tap", "type", "enter")), 0, (210, 160))
    agent = DeviceAgentSettings(memory=memory).build(spec)()
    assert {kind.action.type for kind in agent._grid.kinds} == {"tap", "type", "enter"} | point


def test_traces_move_with_shifted_pictures() -> None:
    still, moved = traces([[TAPPED]] * 2, TouchGrid(13, 10), [(0.0, 0.0), (1 / 13, -2 / 10)]).planes[:, 1]
    assert torch.allclose(still[3:10, 3:8], moved[4:11, 1:6])


def test_screenshots_of_another_size_are_scaled() -> None:
    agent = policy((210, 160))
    [decision] = act(agent, screenshots(1, (420, 320)))
    assert math.isfinite(decision.log_prob)


def test_gradients_reach_every_parameter() -> None:
    agent, observations = policy(actions=["tap", "type_at", "drag"]), screenshots(4)
    tap, drag = {"type": "tap", "x": 0.5, "y": 0.5}, {"type": "drag", "x": 0.1, "y": 0.1, "to_x": 0.9, "to_y": 0.5}
    typed = {"type": "type_at", "x": 0.5, "y": 0.5, "text": "a b"}
    (-agent.log_prob(observations, [tap, drag, tap, typed]).sum()).backward()
    assert [name for name, weight in agent.named_parameters() if weight.grad is None] == []


def test_features_have_their_size_and_no_gradient() -> None:
    agent = policy()
    features = agent.features(screenshots(3))
    assert features.shape == (3, agent.feature_size) and not features.requires_grad


def test_texts_that_it_acts_on_are_not_kept() -> None:
    """Nearly each is new: those of a run would fill the memory of every process that acts."""
    agent, seen = policy(), screenshots(4)
    with torch.no_grad():
        agent.act(seen, [np.random.default_rng(0) for _ in seen])
        agent.probabilities(seen)
    assert agent._remembered.cache_info().currsize == 0
    agent.log_prob(seen, [DeviceAction("back").to_json()] * 4)
    assert agent._remembered.cache_info().currsize == 4


def test_what_value_functions_read_stays_as_it_is_while_the_policy_learns() -> None:
    agent, seen = policy(), screenshots(8)
    before = agent.critic_inputs(seen)
    assert before.shape == (8, agent.critic_size) and not before.requires_grad
    with torch.no_grad():
        for weight in agent.parameters():
            weight += torch.randn_like(weight)
    assert torch.equal(agent.critic_inputs(seen), before)
    assert len({tuple(row) for row in before.tolist()}) == len(seen)
    assert not [name for name in agent.state_dict() if "critic" in name], "workers need none of it"


def test_value_functions_tell_screens_apart_by_the_words_on_them() -> None:
    [one, *_], agent = screenshots(1), policy()
    picture = np.full((210, 160, 3), 255, np.uint8)
    picture[96:104, 40:48] = 0
    other = picture.copy()
    other[96:104, 40:48] = np.indices((8, 8)).sum(axis=0)[..., None] % 2 * 255
    rows = agent.critic_inputs([replace(one, image=png(each)) for each in (picture, other)])
    assert 0.1 < (rows[0] - rows[1]).abs().max() <= 1


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


def test_every_choice_survives_the_way_through_json() -> None:
    grid = TouchGrid(4, 3)
    choices = choices_of(grid, ["hi", "ho"])
    assert [grid.choice(grid.action(choice, ["hi", "ho"]), ["hi", "ho"]) for choice in choices] == choices


def test_a_point_in_the_middle_of_a_label_stands_for_the_label() -> None:
    grid, labels = TouchGrid(4, 3), [Label("Ok", "button", 0.1, 0.2, 0.3, 0.25), Label("", "graphic", 0.5, 0.5, 1, 1)]
    drag = Choice(next(index for index, kind in enumerate(grid.kinds) if kind.drags), grid.cells, grid.cells + 1)
    for choice in (Choice(0, grid.cells), Choice(0, grid.cells + 1), Choice(0, 3), drag):
        assert grid.choice(grid.action(choice, [], labels), [], labels) == choice
    assert grid.action(Choice(0, grid.cells), [], labels) == {"type": "tap", "x": 0.2, "y": 0.225}


def test_a_drag_to_a_label_ends_a_quarter_of_it_beyond_its_middle() -> None:
    grid, labels = TouchGrid(4, 3), [Label("A", "", 0.2, 0.1, 0.6, 0.2), Label("B", "", 0.2, 0.3, 0.6, 0.5)]
    kind = next(index for index, kind in enumerate(grid.kinds) if kind.drags)

    def end(start: int, label: int) -> list[float]:
        action = grid.action(Choice(kind, start, grid.cells + label), [], labels)
        assert grid.choice(action, [], labels) == Choice(kind, start, grid.cells + label)
        return [action["to_x"], action["to_y"]]

    assert end(grid.cells, 1) == pytest.approx([0.4, 0.45]) and end(grid.cells + 1, 0) == pytest.approx([0.4, 0.125])
    assert end(grid.cells, 0) == pytest.approx([0.4, 0.15]), "to itself: nowhere"
    assert end(0, 1) == pytest.approx([0.5, 0.45]), "from the corner both ways"


def test_a_tap_at_the_edge_belongs_to_the_last_cell() -> None:
    grid = TouchGrid(13, 10)
    assert grid.choice({"type": "tap", "x": 1, "y": 1}, []) == Choice(0, grid.cells - 1)


def test_taps_come_first_whatever_the_order_of_the_types() -> None:
    assert [kind.action.type for kind in kinds_of(["back", "tap"])] == ["tap", "back"]


@pytest.mark.component
def test_words_hash_alike_in_every_process() -> None:
    code = "from digirl_dist.agent.device.reading import hashed_words; print(hashed_words('Open the Clock'))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert answer == f"{hashed_words('open THE clock')}\n"


def test_bags_tell_where_each_text_begins() -> None:
    flat, starts = bags_of([hashed_words(text) for text in ("one two", "", "three")])
    assert starts.tolist() == [0, 2, 2]
    assert flat.tolist() == hashed_words("one two three")


def test_quoted_parts_are_what_can_be_typed() -> None:
    assert quoted('Write "a b" not "c"') == ["a b", "c"]
    assert quoted("Write “tea”") == ["tea"]
    assert quoted("Don't type") == []
