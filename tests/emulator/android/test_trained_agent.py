"""An agent that was trained on the demo phone acts on the same phone over adb, with the same success."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from emulator.android.phone_shell import as_android
from emulator.android.sites import RunningPhone, quick
from single_steps import row_of

from digirl_dist.agent.device.policy import DevicePolicy
from digirl_dist.algorithm.imitation import Imitation
from digirl_dist.emulator import Emulator
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.phone import PHONE_SPEC, layout, phone_tasks
from digirl_dist.emulator.phone.apps import APPS
from digirl_dist.settings import ActorSettings, DeviceAgentSettings, PhoneSettings
from digirl_dist.tasks import Task
from digirl_dist.types import Json

TASKS = [task for task in phone_tasks("easy", "train") if task.params["app"] in {app.name for app in APPS[:9:3]}]
"""Three apps of the first page in both wordings: an agent learns them in seconds."""
SMALL = DeviceAgentSettings(short_side=56, width=32)
TRAINING_SEEDS, EPISODES = range(100, 106), 12


def tap_on(app: str) -> Json:
    rect = layout.icon_rect([one.name for one in APPS].index(app))
    return {"type": "tap", "x": (rect.left + 25) / layout.WIDTH, "y": (rect.top + 25) / layout.HEIGHT}


@pytest.fixture(scope="module")
def agent() -> DevicePolicy:
    """Imitates somebody who knows the phone."""
    torch.manual_seed(0)
    policy, phone = SMALL.build(PHONE_SPEC)(), PhoneSettings().build().factory()
    shown = [row_of(phone.reset(task, seed), tap_on(task.params["app"])) for task in TASKS for seed in TRAINING_SEEDS]
    Imitation(policy, ActorSettings(epochs=40, batch_size=18, learning_rate=3e-3), seed=0).fit(shown)
    return policy


def episode(agent: DevicePolicy, emulator: Emulator, task: Task, seed: int) -> tuple[list[Json], bool]:
    """The actions of an episode, and whether it succeeded."""
    rng = np.random.default_rng(seed)
    seen, actions = emulator.reset(task, seed), []
    for _ in range(4):
        with torch.no_grad():
            [decision] = agent.act([seen], [rng])
        actions.append(decision.action)
        answer = emulator.step(decision.action)
        if answer.ended:
            return actions, answer.success
        seen = answer.observation
    return actions, False


@pytest.mark.component
def test_it_decides_and_succeeds_over_adb_as_it_does_in_process(agent: DevicePolicy, tmp_path: Path) -> None:
    tickets = [(TASKS[index % len(TASKS)], index) for index in range(EPISODES)]
    near = PhoneSettings().build().factory()
    here = [episode(agent, near, task, seed) for task, seed in tickets]
    with RunningPhone() as phone:
        far = AndroidEmulator(quick(tmp_path, serials=[phone.serial]))
        there = [episode(agent, far, as_android(task), seed) for task, seed in tickets]
        far.close()
    assert there == here
    assert sum(success for _, success in there) >= 0.9 * EPISODES, "it was trained, so it should succeed"


def test_before_it_was_trained_it_fails(tmp_path: Path) -> None:
    torch.manual_seed(0)
    untrained, near = SMALL.build(PHONE_SPEC)(), PhoneSettings().build().factory()
    results = [episode(untrained, near, TASKS[index % len(TASKS)], index)[1] for index in range(EPISODES)]
    assert sum(results) <= 0.5 * EPISODES
