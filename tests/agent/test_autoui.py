"""AutoUI: the released names and numbers, answers and their probabilities, and that it learns."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from agent import plain_autoui
from agent.autoui_folders import (
    FEATURES,
    make_autoui,
    make_blip,
    make_text_encoder,
    random_weights,
    released_shapes,
)
from image_files import encoded
from PIL import Image
from safetensors.torch import load_file

from digirl_dist.agent.autoui import AutoUiAgent
from digirl_dist.agent.autoui.encoders import ScreenEncoder
from digirl_dist.agent.placement import StartedFrom
from digirl_dist.algorithm.digirl import DigiRL
from digirl_dist.algorithm.filtered_bc import FilteredBC
from digirl_dist.cli.main import main
from digirl_dist.emulator.phone import PHONE_SPEC
from digirl_dist.errors import CheckpointError, SettingsError, TrajectoryError
from digirl_dist.settings import ActorSettings, AutoUiSettings, FilteredBcSettings
from digirl_dist.storage import parquet
from digirl_dist.storage.import_digirl import read
from digirl_dist.storage.start import start_of
from digirl_dist.trajectory import Observation
from digirl_dist.user_code import packing
from tests.algorithm.test_digirl import measuring_nothing

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[2]
RELEASED_TWICE = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
"""The embeddings' other names."""
GOOD = 'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.1, 0.2]", "lift_point": "[0.1, 0.2]"'
BAD = 'Action Decision: "action_type": "PRESS_BACK"'


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    make_autoui(root / "autoui")
    make_blip(root / "blip")
    make_text_encoder(root / "text")
    return root


def settings(folders: Path, **values: object) -> AutoUiSettings:
    chosen = {"model": str(folders / "autoui"), "image_features": FEATURES, "answer_length": 24, **values}
    return AutoUiSettings(**chosen)  # type: ignore[arg-type]


def agent(folders: Path, **values: object) -> AutoUiAgent:
    made = settings(folders, **values).build(PHONE_SPEC)()
    assert isinstance(made, AutoUiAgent)
    return made


def seen(goal: str, seed: int) -> Observation:
    features = np.random.default_rng(seed).standard_normal(FEATURES).astype(np.float32)
    return Observation(f"Previous Actions: Goal: {goal}</s>", None, features)


def png(shade: int) -> bytes:
    pixels = np.random.default_rng(shade).integers(256, size=(40, 30, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels))


THREE = [seen("open the app", 0), seen("go", 1), seen("open the very long and winding app of many letters", 2)]


def rngs() -> list[np.random.Generator]:
    return [np.random.default_rng([7, row]) for row in range(len(THREE))]


@torch.no_grad()
def test_logits_are_those_of_the_formulas(folders: Path) -> None:
    """By way of log-probabilities, of rows of different lengths in one batch."""
    weights, policy = random_weights(), agent(folders, temperature=0.7)
    answers = [[5, 9, 40, 1], [17, 3, 3, 60, 22, 8, 1], [33, 1]]
    told = policy.log_prob(THREE, [{"type": "wait", "tokens": answer} for answer in answers])
    prompts = [policy._tokenizer(one.text)["input_ids"] for one in THREE]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    features = torch.stack([torch.tensor(one.vector) for one in THREE])
    read = policy._model.read(padded, (padded != 0).long(), features)
    texts = torch.nn.utils.rnn.pad_sequence([torch.tensor(answer) for answer in answers], batch_first=True)
    found = policy._model.logits(read, (padded != 0).long(), texts)
    for row, answer in enumerate(answers):
        plain = plain_autoui.logits(weights, prompts[row], features[row], answer)
        torch.testing.assert_close(found[row, : len(answer)], plain, atol=1e-5, rtol=1e-5)
        chances = (plain / 0.7).softmax(dim=1)[range(len(answer)), answer]
        torch.testing.assert_close(told[row], chances.log().sum(), atol=1e-4, rtol=1e-5)


def test_the_released_names_load_and_are_those_of_the_checkpoint(folders: Path) -> None:
    state, released = agent(folders).state_dict(), random_weights()
    assert set(state) == set(released_shapes()) - RELEASED_TWICE
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, released[name], atol=0, rtol=0)


@pytest.mark.parametrize("wrong", ["missing", "unexpected", "size"])
def test_weights_of_another_model_are_refused(wrong: str, tmp_path: Path) -> None:
    weights = random_weights()
    gate = weights.pop("gate_dense.weight")
    if wrong != "missing":
        weights |= (
            {"gate_dense.weight": gate, "more.weight": gate}
            if wrong == "unexpected"
            else {"gate_dense.weight": gate[:, :4].clone()}
        )
    with pytest.raises(SettingsError, match="gate_dense|more"):
        agent(make_autoui(tmp_path / "autoui", weights).parent)


@torch.no_grad()
def test_an_answer_has_the_probability_it_is_told_to_have_whatever_it_was_batched_with(folders: Path) -> None:
    policy = agent(folders, temperature=0.8)
    together = policy.act(THREE, rngs())
    told = policy.log_prob(THREE, [decision.action for decision in together])
    torch.testing.assert_close(told, torch.tensor([one.log_prob for one in together]), atol=1e-4, rtol=1e-5)
    of_tokens, mask = policy.token_log_probs(THREE, [decision.action for decision in together])
    told = torch.tensor([each for decision in together for each in decision.token_log_probs])
    torch.testing.assert_close(of_tokens[mask], told, atol=1e-4, rtol=1e-4)
    for row, rng in enumerate(rngs()):
        [alone] = policy.act([THREE[row]], [rng])
        assert alone.action == together[row].action
        assert alone.log_prob == pytest.approx(together[row].log_prob, rel=1e-6, abs=1e-5)
        assert len(alone.action["tokens"]) <= 24 and policy.log_prob([THREE[row]], [alone.action]).item() == (
            pytest.approx(alone.log_prob, rel=1e-6, abs=1e-5)
        )
    assert len({tuple(one.action["tokens"]) for one in together}) == 3
    assert {one.action["type"] for one in together} == {"wait"}, "random words are no action"


@torch.no_grad()
def test_a_worker_without_the_folder_becomes_the_same_agent_by_what_it_is_sent(folders: Path, tmp_path: Path) -> None:
    make_autoui(tmp_path / "autoui")
    factory = settings(tmp_path).build(PHONE_SPEC)
    (tmp_path / "packed").write_bytes(packing.pack(factory))
    host = factory()
    (tmp_path / "autoui").rename(tmp_path / "elsewhere")
    there = packing.unpack_file(tmp_path / "packed")()
    there.load_state_dict(host.state_dict())
    assert [one.action for one in there.act(THREE, rngs())] == [one.action for one in host.act(THREE, rngs())]
    with pytest.raises(RuntimeError, match="gate_dense"):
        there.load_state_dict({name: part for name, part in host.state_dict().items() if "gate" not in name})


@torch.no_grad()
def test_screens_have_the_features_of_blip_2(folders: Path) -> None:
    """Pooled as DigiRL does it, whole BLIP-2 and all; the later of two frames counts in given features."""
    from transformers import Blip2Model

    policy = agent(folders, vision_encoder=str(folders / "blip"), critic_encoder=str(folders / "text"))
    pictures = [png(shade) for shade in range(18)]
    watched = [Observation("Goal: go", picture) for picture in pictures]
    features = policy.features(watched)
    assert features.shape == (18, policy.feature_size) and policy.feature_size == 10 + FEATURES
    resized = [Image.open(io.BytesIO(one)).resize((28, 28), Image.Resampling.BICUBIC) for one in pictures]
    pixels = torch.tensor(np.stack([np.asarray(one) for one in resized])).permute(0, 3, 1, 2) / 255
    mean, deviation = torch.tensor([[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]])
    pixels = (pixels - mean[:, None, None]) / deviation[:, None, None]
    pooled = Blip2Model.from_pretrained(folders / "blip").vision_model(pixels).pooler_output
    torch.testing.assert_close(features[:, -FEATURES:], pooled, atol=1e-5, rtol=1e-4)
    given = Observation("Goal: go", None, np.concatenate([pooled[0].numpy(), pooled[1].numpy()]))
    torch.testing.assert_close(policy.features([given])[0], features[1], atol=1e-5, rtol=1e-4)


def test_what_was_seen_while_acting_is_learned_from_in_the_same_process(folders: Path) -> None:
    factory = settings(folders, vision_encoder=str(folders / "blip")).build(PHONE_SPEC)
    actor, learner = factory(), factory()
    watched = [Observation("go", png(0))]
    with torch.inference_mode():
        [decision] = actor.act(watched, rngs()[:1])
    (-learner.log_prob(watched, [decision.action]).sum()).backward()
    assert all(parameter.grad is not None for parameter in learner.parameters())


def test_what_is_missing_is_named(folders: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Auto-UI-Base"):
        settings(tmp_path).build(PHONE_SPEC)
    with pytest.raises(SettingsError, match="agent.vision_encoder"):
        agent(folders).features([Observation("go", png(0))])
    with pytest.raises(TrajectoryError, match="neither a screenshot nor its features"):
        agent(folders).features([Observation("go")])
    with pytest.raises(SettingsError, match="12 features; agent.image_features=1408"):
        ScreenEncoder(str(folders / "blip"), 1408).features([Observation("go", png(0))], torch.device("cpu"))


def digirls_file(path: Path) -> Path:
    """Twelve of DigiRL's trajectories: who says GOOD wins."""
    rng = np.random.default_rng(0)
    trajectories = []
    for index in range(12):
        frames = [rng.standard_normal(FEATURES).astype(np.float32) for _ in range(3)]
        said, won = (GOOD, 1.0) if index % 3 == 0 else (BAD, 0.0)
        trajectories.append(
            [
                {
                    "observation": f"Previous Actions: {'x ' * step}Goal: open the app</s>",
                    "next_observation": f"Previous Actions: {'x ' * (step + 1)}Goal: open the app</s>",
                    "image_features": torch.tensor(frames[step]),
                    "next_image_features": torch.tensor(frames[step + 1]),
                    "task": "open the app",
                    "reward": won * (step == 1),
                    "done": step == 1,
                    "action": said,
                    "trajectory_reward": won,
                }
                for step in range(2)
            ]
        )
    torch.save(trajectories, path)
    return path


@pytest.mark.parametrize("kind", ["digirl", "filtered_bc"])
def test_it_learns_offline_from_digirls_files(kind: str, folders: Path, tmp_path: Path) -> None:
    episodes = read(digirls_file(tmp_path / "released.pt"))
    policy = agent(folders, critic_encoder=str(folders / "text"), answer_length=80, dropout=0.1)
    actor = ActorSettings(epochs=8, batch_size=2, learning_rate=1e-2)
    if kind == "digirl":
        learner = DigiRL(policy, measuring_nothing(actor=actor, top_share=0.5), seed=0)
    else:
        learner = FilteredBC(policy, FilteredBcSettings(actor=actor, top_share=0.4), seed=0)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    spoken = [GOOD, BAD]
    with torch.no_grad():
        chances = policy.log_prob(THREE[:1] * 2, spoken)
    figures = learner.update([], episodes).figures
    assert figures["kept_steps"] > 0 and all(np.isfinite(value) for value in figures.values())
    with torch.no_grad():
        good, bad = (policy.log_prob(THREE[:1] * 2, spoken) - chances).tolist()
    assert good > 10 and good > bad
    moved = [name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])]
    assert {"image_dense.weight", "gate_dense.weight", "shared.weight", "lm_head.weight"} <= set(moved)


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(300)  # host and worker each import transformers
def test_a_run_over_ssh_stores_what_was_asked_and_said(folders: Path, tmp_path: Path) -> None:
    host = ["--config-path", "config/multimachine", "--config-name", "host"]
    model, vision = f"agent.model={folders / 'autoui'}", f"agent.vision_encoder={folders / 'blip'}"
    words = ["agent=autoui", model, vision, f"agent.image_features={FEATURES}", "agent.answer_length=8"]
    size = ["dry_run=true", "dry_run_workers=1", "bsize=1", "rollout_size=1", "train_iterations=1", "max_steps=2"]
    assert main([*host, *words, *size, "emulator=phone", f"save_path={tmp_path}"]) == 0
    [episode] = parquet.read(tmp_path / "trajectories" / "000000.parquet")
    for step in episode.steps:
        assert step.observation.text == f"Previous Actions: Goal: {episode.ticket.task.instruction}</s>"
        assert step.action["type"] == "wait" and 1 <= len(step.action["tokens"]) <= 8
    policy = agent(folders, vision_encoder=str(folders / "blip"))
    with torch.no_grad():
        told = policy.log_prob([step.observation for step in episode.steps], [step.action for step in episode.steps])
    assert told.tolist() == pytest.approx([step.log_prob for step in episode.steps], abs=1e-4)
    state = load_file(tmp_path / "checkpoints" / "latest" / "policy.safetensors")
    assert set(state) == set(released_shapes()) - RELEASED_TWICE


@pytest.mark.parametrize("prefix", ["", "module."], ids=["one GPU", "several GPUs"])
def test_a_run_starts_from_the_policy_of_a_digirl_run(folders: Path, tmp_path: Path, prefix: str) -> None:
    """Saved by the real Accelerate as DigiRL saves it: policy, both critics, their optimisers."""
    make_autoui(tmp_path / "trained", random_weights(seed=5))
    trained = agent(folders, model=str(tmp_path / "trained"))
    accelerator = Accelerator(cpu=True)
    parts = [trained._model, torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)]
    accelerator.prepare(*parts, *(torch.optim.Adam(part.parameters()) for part in parts))
    folder = tmp_path / "logs" / "trainer.pt"
    accelerator.save_state(str(folder), safe_serialization=False)
    saved = torch.load(folder / "pytorch_model.bin", weights_only=True)
    assert saved.keys() >= RELEASED_TWICE
    torch.save({prefix + name: tensor for name, tensor in saved.items()}, folder / "pytorch_model.bin")
    for named in (folder, folder.parent):
        start = start_of(str(named), tmp_path / "run")
        assert start is not None and start.agent == "autoui"
        begun = StartedFrom(lambda: agent(folders), start.checkpoint)()
        assert begun.state_dict().keys() == trained.state_dict().keys()
        assert all(torch.equal(begun.state_dict()[name], tensor) for name, tensor in trained.state_dict().items())
    assert start.record(tmp_path)["tensors"]
    accelerator.save_model(parts[0], str(tmp_path / "trainer_current_policy.pt" / "model.pt"), safe_serialization=False)
    start = start_of(str(tmp_path / "trainer_current_policy.pt"), tmp_path / "run")  # as DistRL does
    assert start is not None and StartedFrom(lambda: agent(folders), start.checkpoint)()


@pytest.mark.parametrize("content", [[1.0], {"weights": "no tensor"}, {"shared.weight": torch.zeros(2, 2)}])
def test_a_digirl_checkpoint_of_other_content_is_refused_by_name(
    folders: Path, tmp_path: Path, content: object
) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    start = start_of(str(tmp_path), tmp_path / "run")
    assert start is not None
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        StartedFrom(lambda: agent(folders), start.checkpoint)()
