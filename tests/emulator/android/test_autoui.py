"""AutoUI on an Android device: what it says is read and done there, and told in the next prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from agent.autoui_folders import FEATURES, make_autoui, make_blip
from emulator.android.phone_shell import as_android
from emulator.android.sites import RunningPhone, quick
from emulator.android.test_trained_agent import TASKS, tap_on
from single_steps import row_of

from digirl_dist.agent import Agent
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.assembly.parts import agent_plugin, build_device
from digirl_dist.emulator.aitw import to_autoui
from digirl_dist.emulator.plugins import Device
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.settings import ActorSettings, AndroidSettings, AutoUiSettings, Settings
from digirl_dist.trajectory import Observation

pytestmark = pytest.mark.component

CLOCK = TASKS[0]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    make_autoui(tmp_path / "autoui")
    make_blip(tmp_path / "blip")
    return tmp_path


def parts(folders: Path, emulator: AndroidSettings) -> tuple[Device, Agent]:
    """As a run puts them together."""
    model, vision = str(folders / "autoui"), str(folders / "blip")
    told = AutoUiSettings(model=model, vision_encoder=vision, image_features=FEATURES, answer_length=80)
    settings = Settings(agent=told, emulator=emulator)
    device = build_device(settings, emulator)
    return device, agent_plugin(settings).build(device.spec)()


def act(agent: Agent, seen: Observation, seed: int) -> dict[str, object]:
    with torch.no_grad():
        [decision] = agent.act([seen], [np.random.default_rng(seed)])
    assert isinstance(decision.action, dict)
    return decision.action


def test_what_it_learned_to_say_is_done_on_the_device(folders: Path, phone: RunningPhone) -> None:
    device, agent = parts(folders, quick(folders, serials=[phone.serial]))
    assert "autoui" in device.extras
    emulator, tap = device.factory(), tap_on(CLOCK.params["app"])
    try:
        shown = emulator.reset(as_android(CLOCK), seed=0)
        actor = ActorSettings(epochs=80, batch_size=1, learning_rate=3e-2)
        Imitation(agent, actor, seed=0).fit([row_of(shown, tap)])
        action = act(agent, shown, seed=0)
        assert action == {**tap_rounded(tap), "tokens": action["tokens"]}
        answer = emulator.step(action)
        assert answer.success and answer.terminated, "the app that was asked for is open"
        said = to_autoui(DeviceAction.from_json(action))
        assert answer.observation.text == f"Previous Actions: {said} Goal: {CLOCK.instruction}</s>"
        assert shown.text == f"Previous Actions: Goal: {CLOCK.instruction}</s>"
    finally:
        emulator.close()


def tap_rounded(tap: object) -> dict[str, object]:
    """To the decimals that are said of it."""
    assert isinstance(tap, dict)
    return {"type": "tap", **{axis: pytest.approx(tap[axis], abs=1e-9) for axis in "xy"}}
