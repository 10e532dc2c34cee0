"""What is tried on the device: every agent that learns, with models made on the spot, and episodes that it acted."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from digirl_dist.agent import Agent, AgentFactory
from digirl_dist.agent.plugins.autoui import AutoUiSettings
from digirl_dist.agent.plugins.device import DeviceAgentSettings
from digirl_dist.agent.plugins.generic import GenericAgentSettings
from digirl_dist.agent.plugins.vlm import VlmSettings
from digirl_dist.algorithm import AlgorithmFactory
from digirl_dist.algorithm.plugins import AlgorithmPlugin, LearningContext
from digirl_dist.emulator import BoxActions, DeviceActions, DiscreteActions, EmulatorSpec
from digirl_dist.settings.algorithms import algorithm_settings
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

_TESTS = Path(__file__).resolve().parents[2] / "tests"
TASKS = (Task("clock", 'open the clock and type "seven"'), Task("notes", 'open the notes and type "milk"'))
ALGORITHMS = ("filtered_bc", "digirl", "grpo", "ppo")
_GROUP = 4
SEED = 7


@dataclass(frozen=True)
class Subject:
    """An agent, and what it sees."""

    factory: AgentFactory
    spec: EmulatorSpec

    def made(self, device: str = "cpu") -> Any:
        """The agent with weights that ``SEED`` determines, the same wherever it lives."""
        from digirl_dist.agent.placement import Placed

        torch.manual_seed(SEED)
        agent = Placed(self.factory, device)()
        agent.train(False)
        return agent

    def observations(self, count: int) -> list[Observation]:
        """Random screens and vectors, the same in every process."""
        rng = np.random.default_rng(SEED)
        return [self._seen(number, rng) for number in range(count)]

    def _seen(self, number: int, rng: np.random.Generator) -> Observation:
        size, length = self.spec.image_size, self.spec.vector_size
        vector = rng.standard_normal(length).astype(np.float32) if length else None
        return Observation(TASKS[number % len(TASKS)].instruction, _png(size, rng) if size else None, vector)


def _vectors(folder: Path, medium: bool) -> Subject:
    spec = EmulatorSpec(BoxActions((-1.0, -2.0), (1.0, 2.0)), vector_size=24)
    return Subject(GenericAgentSettings(width=512 if medium else 16).build(spec), spec)


def _images(folder: Path, medium: bool) -> Subject:
    spec = EmulatorSpec(DiscreteActions(6), image_size=(84, 84))
    return Subject(GenericAgentSettings(width=256 if medium else 16).build(spec), spec)


def _device(folder: Path, medium: bool) -> Subject:
    spec = EmulatorSpec(DeviceActions(), image_size=(192, 108))
    return Subject(DeviceAgentSettings(width=256 if medium else 16).build(spec), spec)


def _autoui(folder: Path, medium: bool) -> Subject:
    sys.path[:0] = [str(_TESTS), str(_TESTS / "agent")]
    from autoui_folders import FEATURES, make_autoui, make_blip, make_text_encoder  # type: ignore[import-not-found]

    settings = AutoUiSettings(
        model=str(make_autoui(folder / "autoui")),
        vision_encoder=str(make_blip(folder / "blip")),
        critic_encoder=str(make_text_encoder(folder / "text")),
        image_features=FEATURES,
        answer_length=24,
    )
    spec = EmulatorSpec(DeviceActions(), image_size=(192, 108))
    return Subject(settings.build(spec), spec)


def _vlm(folder: Path, medium: bool, **chosen: Any) -> Subject:
    return _vlm_of(vlm_folder(folder, medium), **chosen)


def vlm_folder(folder: Path, medium: bool) -> Path:
    """A chat model that sees, with random weights, below ``folder``: a third of a billion, or tiny."""
    sys.path[:0] = [str(_TESTS)]
    from tiny_vlm import MEDIUM, TINY, save_tiny_vlm  # type: ignore[import-not-found]

    path = folder / "vlm"
    if not path.exists():
        save_tiny_vlm(path, size=MEDIUM if medium else TINY)
    return path


def large_vlm(folder: Path, device: str) -> Subject:
    """``agent=vlm`` of the size that people train, in bfloat16; tiny on the CPU."""
    sys.path[:0] = [str(_TESTS)]
    from tiny_vlm import LARGE, TINY, save_tiny_vlm

    size = LARGE if device.startswith("cuda") else TINY
    path = save_tiny_vlm(folder / "large", size=size, device=device, dtype=torch.bfloat16)
    return _vlm_of(path, gradient_checkpointing=True)


def _vlm_of(path: Path, **chosen: Any) -> Subject:
    spec = EmulatorSpec(DeviceActions(), image_size=(192, 108))
    settings = VlmSettings(model=str(path), max_new_tokens=16, **chosen)
    return Subject(settings.build(spec), spec)


SUBJECTS = {
    "generic-vectors": _vectors,
    "generic-images": _images,
    "device": _device,
    "autoui": _autoui,
    "vlm": _vlm,
}
"""Their models are made below a folder, of a size that is worth a GPU where ``medium``."""
checkpointed_vlm = partial(_vlm, gradient_checkpointing=True)


def algorithm(name: str) -> AlgorithmFactory:
    """An algorithm as it comes, in groups of ``_GROUP`` where it needs groups."""
    block = getattr(algorithm_settings()(), name)
    assert isinstance(block, AlgorithmPlugin)
    if name.startswith("grpo"):
        block.group_size = _GROUP  # type: ignore[attr-defined]
    return block.build(LearningContext(SEED, 10, 8, tasks=TASKS))


def episodes(agent: Agent, subject: Subject, count: int, steps: int = 3) -> list[Trajectory]:
    """Episodes of ``agent`` in groups that start alike, of which every other one succeeds."""
    seen = subject.observations(count * (steps + 1))
    rngs = [np.random.default_rng([SEED, number]) for number in range(count * (steps + 1))]
    with torch.inference_mode():
        decisions = agent.act(seen, rngs)
    found = []
    for index in range(count):
        first = index * (steps + 1)
        taken = [
            Step(seen[k], decisions[k].action, decisions[k].log_prob, _reward(index, k - first, steps),  # type: ignore[union-attr]
                 k - first == steps - 1, False)
            for k in range(first, first + steps)
        ]  # fmt: skip
        task = TASKS[index // _GROUP % len(TASKS)]
        ticket = Ticket(0, index, task, index // _GROUP, 0)
        found.append(Trajectory(ticket, f"0-{index}", "here", 0, taken, seen[first + steps], index % 2 == 1))
    return found


def _reward(index: int, step: int, steps: int) -> float:
    return float(index % 2 == 1 and step == steps - 1)


def actions_of(found: Sequence[Trajectory]) -> tuple[list[Observation], list[Any], torch.Tensor]:
    """Observations, actions and log-probabilities [N] of all steps."""
    steps = [step for one in found for step in one.steps]
    log_probs = torch.tensor([step.log_prob for step in steps])
    return [step.observation for step in steps], [step.action for step in steps], log_probs


def _png(size: tuple[int, int], rng: np.random.Generator) -> bytes:
    written = io.BytesIO()
    coarse = rng.integers(255, size=(8, 8, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.NEAREST).save(written, "PNG")
    return written.getvalue()
