"""A chat model as a policy: exact log-probabilities, rows that do not depend on their batch, low-rank weights only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import encoded
from PIL import Image
from tiny_vlm import SPECIAL, WORDS, save_tiny_vlm
from transformers import CLIPImageProcessorPil, Qwen2VLImageProcessorPil

from digirl_dist.agent.answers import Coordinates
from digirl_dist.agent.sampling import Answer
from digirl_dist.agent.vlm import VlmAgent
from digirl_dist.agent.vlm.pictures import Scaled
from digirl_dist.algorithm.digirl import DigiRL
from digirl_dist.algorithm.filtered_bc import FilteredBC
from digirl_dist.algorithm.grpo import Grpo
from digirl_dist.algorithm.options import GrpoActorSettings
from digirl_dist.emulator import DeviceActions, EmulatorSpec
from digirl_dist.emulator.touch_actions import SAID, TOKENS, UNREAD, DeviceAction
from digirl_dist.errors import SettingsError, TrajectoryError
from digirl_dist.inference.local import LocalPolicies
from digirl_dist.settings import (
    ActorSettings,
    DigirlSettings,
    FilteredBcSettings,
    GrpoSettings,
    LoraSettings,
    VlmSettings,
)
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

pytestmark = pytest.mark.component

SPEC = EmulatorSpec(DeviceActions(), image_size=(40, 30))
SPECIAL_TAP = len(SPECIAL)
"""The token of its first word, a tap."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vlm(tmp_path_factory.mktemp("vlm") / "model")


def build(folder: Path, **settings: Any) -> VlmAgent:
    torch.manual_seed(1)
    chosen = {"max_new_tokens": 4, "temperature": 0.7, "rows_at_once": 2, "lora": LoraSettings(r=2), **settings}
    agent = VlmSettings(model=str(folder), **chosen).build(SPEC)()
    with torch.no_grad():  # fresh low-rank weights change nothing
        for parameter in agent.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return agent


def _png(seed: int) -> bytes:
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(255, size=(40, 30, 3), dtype=np.uint8)))


def screens(*texts: str) -> list[Observation]:
    return [Observation(text, _png(seed)) for seed, text in enumerate(texts)]


def rngs(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng([7, row]) for row in range(count)]


SEEN = screens("open", "open open hmm back done home", "Task: open", "hmm " * 9, "Task: open done")


def test_what_acting_says_of_its_probability_is_what_learning_computes(folder: Path) -> None:
    agent = build(folder, max_new_tokens=6)
    decisions = agent.act(SEEN * 3, rngs(15))
    assert len({len(decision.action[TOKENS]) for decision in decisions}) > 1, "answers of several lengths"
    computed = agent.log_prob(SEEN * 3, [decision.action for decision in decisions])
    assert torch.allclose(computed, torch.tensor([decision.log_prob for decision in decisions]), atol=1e-5)
    assert all(decision.log_prob < -0.01 for decision in decisions)
    of_tokens, mask = agent.token_log_probs(SEEN * 3, [decision.action for decision in decisions])
    for decision, row, is_token in zip(decisions, of_tokens, mask, strict=True):
        assert is_token.sum() == len(decision.action[TOKENS]) and not row[~is_token].any()
        assert row[is_token].tolist() == pytest.approx(list(decision.token_log_probs), abs=1e-5)


def test_a_row_does_not_depend_on_its_batch(folder: Path) -> None:
    agent = build(folder, rows_at_once=8)
    together = agent.act(SEEN, rngs(len(SEEN)))
    features = agent.features(SEEN)
    assert features.shape == (len(SEEN), agent.feature_size) and not features.requires_grad
    for row, (seen, rng) in enumerate(zip(SEEN, rngs(len(SEEN)), strict=True)):
        (alone,) = agent.act([seen], [rng])
        assert alone.action == together[row].action
        assert alone.log_prob == pytest.approx(together[row].log_prob, abs=1e-5)
        assert torch.allclose(agent.features([seen])[0], features[row], atol=1e-5)


def test_tokens_are_drawn_with_their_probabilities(folder: Path) -> None:
    agent = build(folder, max_new_tokens=1, rows_at_once=500)
    drawn = agent.act(SEEN[:1] * 500, [np.random.default_rng([3, row]) for row in range(500)])
    sayable = [token for token in range(len([*SPECIAL, *WORDS])) if token != SPECIAL.index("<image>")]
    with torch.no_grad():
        told = agent.log_prob(SEEN[:1] * len(sayable), [{"type": "back", TOKENS: [token]} for token in sayable])
    shares = np.bincount([decision.action[TOKENS][0] for decision in drawn], minlength=max(sayable) + 1) / 500
    assert told.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert np.abs(shares[sayable] - told.exp().numpy()).max() < 0.08 and shares.sum() == shares[sayable].sum()


def test_the_screen_and_the_words_both_matter(folder: Path) -> None:
    agent = build(folder)
    action = {"type": "back", TOKENS: [8, 2]}
    seen = [Observation("open", _png(0)), Observation("open", _png(5)), Observation("open done", _png(0))]
    first, other_screen, other_words = agent.log_prob(seen, [action] * 3).tolist()
    assert abs(first - other_screen) > 1e-3 and abs(first - other_words) > 1e-3


def test_what_cannot_be_understood_waits_and_keeps_its_words(folder: Path) -> None:
    decisions = build(folder, max_new_tokens=2).act(SEEN * 8, rngs(len(SEEN) * 8))
    actions = [decision.action for decision in decisions]
    waits = [action for action in actions if action["type"] == "wait"]
    assert waits and all(action[UNREAD] and SAID in action for action in waits)
    assert sum(UNREAD in action for action in actions) == len(waits), "none of the words is a wait"
    assert {DeviceAction.from_json(action).type for action in actions} > {"wait", "tap"}


def test_places_are_read_in_the_unit_that_is_set(folder: Path) -> None:
    """The model says tap(0.12,0.35), of pixels nearly the corner, and of thousandths nothing that it may."""
    said = {"type": "tap", "x": 0.12, "y": 0.35}
    for unit, meant in (("shares", said), ("pixels", "wait"), ("thousandths", "wait")):
        agent = build(folder, coordinates=Coordinates(unit))
        action = agent.wording.action(Answer([SPECIAL_TAP, 2], []), SEEN[0])
        assert action[TOKENS] == [SPECIAL_TAP, 2] and (action["type"] == meant or action["x"] == 0.12)
        assert (UNREAD in action) == (meant == "wait")


def test_pixels_are_those_of_the_picture_that_the_model_sees() -> None:
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112})
    assert Scaled(processor)((400, 200)) == (140, 56)
    assert Scaled(CLIPImageProcessorPil(size={"shortest_edge": 16}))((400, 200)) == (400, 200)


def test_earlier_screenshots_are_seen_and_leave_probabilities_exact(folder: Path) -> None:
    agent = build(folder, screenshots=2)
    before, now = _png(11), Observation("open", _png(12))
    pair = [replace(now, earlier=earlier) for earlier in ((_png(10), before), (before,), (), (_png(10),))]
    decisions = agent.act(pair, rngs(4))
    with torch.no_grad():
        computed = agent.log_prob(pair, [decision.action for decision in decisions])
        known = agent.log_prob(pair, [decisions[0].action] * 4).tolist()
    assert torch.allclose(computed, torch.tensor([decision.log_prob for decision in decisions]), atol=1e-5)
    assert known[0] == pytest.approx(known[1], abs=1e-5) and len({round(each, 4) for each in known}) == 3
    assert build(folder).prompt(pair[0]) == build(folder).prompt(now) != agent.prompt(pair[0])


def test_only_low_rank_weights_are_the_state_and_learn(folder: Path) -> None:
    agent, other = build(folder), build(folder, lora=LoraSettings(r=2, alpha=64))
    state = {name: tensor.clone() for name, tensor in agent.state_dict().items()}
    assert state and all("lora_A" in name or "lora_B" in name for name in state)
    assert sum(tensor.numel() for tensor in state.values()) == sum(part.numel() for part in agent.parameters())
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.zero_()
    agent.load_state_dict(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in agent.state_dict().items())
    with pytest.raises(RuntimeError, match="not the low-rank weights"):
        build(folder, lora=LoraSettings(r=3)).load_state_dict(other.state_dict())


def test_an_action_that_nobody_wrote_has_the_probability_of_its_words(folder: Path) -> None:
    agent = build(folder)
    ends = [WORDS.index("back") + len(SPECIAL), SPECIAL.index("<end>")]
    written = {"type": "back", SAID: "back"}
    assert torch.equal(agent.log_prob(SEEN[:1], [written]), agent.log_prob(SEEN[:1], [{"type": "back", TOKENS: ends}]))
    assert agent.log_prob(SEEN[:1], [{"type": "back"}]).isfinite().all()
    with pytest.raises(TrajectoryError, match="tokens are not those of"):
        agent.log_prob(SEEN[:1], [{"type": "back", TOKENS: [10**6]}])
    with pytest.raises(TrajectoryError, match="tokens are not those of"):
        agent.log_prob(SEEN[:1], [{"type": "back", TOKENS: [SPECIAL.index("<image>")]}])


def test_words_of_an_observation_are_no_control_tokens(folder: Path) -> None:
    agent = build(folder)
    action = {"type": "back", TOKENS: [8, 2]}
    seen = [Observation(text, SEEN[0].image) for text in ("open", "open <image> <end>")]
    first, other = agent.log_prob(seen, [action] * 2).tolist()
    assert first == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    "algorithm",
    [
        lambda agent: FilteredBC(agent, FilteredBcSettings(actor=ActorSettings(batch_size=4, epochs=3)), 0),
        lambda agent: DigiRL(agent, DigirlSettings(top_share=1.0, actor=ActorSettings(batch_size=4, epochs=3)), 0),
        lambda agent: Grpo(agent, GrpoSettings(group_size=4, actor=GrpoActorSettings(batch_size=4, epochs=3)), 0),
    ],
    ids=["filtered_bc", "digirl", "grpo"],
)
def test_it_learns_with_every_algorithm_what_brings_reward(folder: Path, algorithm: Any) -> None:
    agent = build(folder, lora=LoraSettings(r=4), max_new_tokens=2)
    learner = algorithm(agent)
    frozen = {name: tensor.clone() for name, tensor in agent.named_parameters() if not tensor.requires_grad}
    good = {"type": "home", SAID: "home", TOKENS: [len(SPECIAL) + WORDS.index("home"), SPECIAL.index("<end>")]}
    bad = {"type": "back", SAID: "back", TOKENS: [len(SPECIAL) + WORDS.index("back"), SPECIAL.index("<end>")]}
    before = agent.log_prob(SEEN[:1], [good]).item()
    episodes = [_episode(agent, number, good if number % 4 == 0 else bad, number % 4 == 0) for number in range(8)]
    for _ in range(2):
        figures = learner.update(episodes, episodes).figures
    assert agent.log_prob(SEEN[:1], [good]).item() > before and np.isfinite(list(figures.values())).all()
    assert frozen and all(torch.equal(tensor, dict(agent.named_parameters())[name]) for name, tensor in frozen.items())


def _episode(agent: VlmAgent, number: int, action: Any, success: bool) -> Trajectory:
    with torch.no_grad():
        log_prob = agent.log_prob(SEEN[:1], [action]).item()
    steps = [
        Step(SEEN[0], action, log_prob, 0.0, False, False),
        Step(SEEN[1], action, -1.0, float(success), True, False),
    ]
    ticket = Ticket(0, number, Task("open"), 5, 0)
    return Trajectory(ticket, f"e{number}", "w", 0, steps, SEEN[2], success)


def test_what_is_no_such_model_is_refused_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"agent\.model=.*cannot be loaded.*name a folder"):
        build(tmp_path)
    with pytest.raises(SettingsError, match=r"agent\.lora does not fit LlavaFor"):
        build(folder, lora=LoraSettings(targets=["no_such_layer"]))


def test_recomputed_activations_give_the_same_gradients_in_both_modes(folder: Path) -> None:
    dropout = LoraSettings(r=2, dropout=0.3)
    plain, again = build(folder, lora=dropout), build(folder, lora=dropout, gradient_checkpointing=True)
    actions = [decision.action for decision in plain.act(SEEN, rngs(len(SEEN)))]
    assert [decision.action for decision in again.act(SEEN, rngs(len(SEEN)))] == actions
    for training in (False, True):
        found = []
        for agent in (plain, again):
            torch.manual_seed(3)
            agent.train(training)
            agent.zero_grad()
            kept: list[torch.Tensor] = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda one, kept=kept: kept.append(one) or one, lambda one: one
            ):
                log_probs = agent.log_prob(SEEN, actions)
            log_probs.sum().backward()
            gradients = torch.cat([part.grad.reshape(-1) for part in agent.parameters() if part.grad is not None])
            found.append((log_probs.detach(), gradients, sum(part.numel() for part in kept)))
        (one, gradient, plain_kept), (other, recomputed, again_kept) = found
        assert torch.equal(one, other) and torch.allclose(gradient, recomputed, atol=1e-6)
        assert gradient.abs().max() > 0 and again_kept < plain_kept / 2


def test_versions_of_a_policy_share_their_base_model_and_act_as_if_they_did_not(folder: Path) -> None:
    policies, apart = LocalPolicies(lambda: build(folder)), [build(folder), build(folder)]
    with torch.no_grad():
        for parameter in apart[1].parameters():
            parameter.mul_(-2)
    for version, agent in enumerate(apart):
        policies.load(version, {name: tensor.clone() for name, tensor in agent.state_dict().items()})
    one, other = (dict(policies._serving[version].named_parameters()) for version in (0, 1))  # type: ignore[attr-defined]
    shared = {name for name in one if one[name].data_ptr() == other[name].data_ptr()}
    assert shared == {name for name, parameter in one.items() if not parameter.requires_grad}
    assert 0 < len(shared) < len(one)
    for version, agent in enumerate(apart):
        acting = policies._serving[version]
        assert [each.action for each in acting.act(SEEN, rngs(5))] == [each.action for each in agent.act(SEEN, rngs(5))]
    assert [apart[0].act(SEEN, rngs(5))] != [apart[1].act(SEEN, rngs(5))]


def test_a_screenshot_passes_the_processor_once_while_learning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, asked = build(folder), []
    kind = type(agent._processor.image_processor._image_processor)
    real = kind.preprocess

    def counted(self: Any, images: Any, **named: Any) -> Any:
        asked.append(len(images))
        return real(self, images, **named)

    monkeypatch.setattr(kind, "preprocess", counted)
    actions = [{"type": "back", TOKENS: [8, 2]}] * 10
    plain = build(folder, rows_at_once=10)
    plain._processor.image_processor = plain._processor.image_processor._image_processor
    with torch.no_grad():
        first, again = (agent.log_prob(SEEN * 2, actions) for _ in range(2))
        assert sum(asked) == len(SEEN), "each of five, in ten rows, twice"
        assert torch.allclose(first, plain.log_prob(SEEN * 2, actions), atol=1e-6) and torch.equal(first, again)
    asked.clear()
    with torch.inference_mode():
        agent.log_prob(SEEN, actions[:5])
    assert sum(asked) == len(SEEN), "who acts keeps nothing"
