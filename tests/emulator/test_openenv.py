"""OpenEnv environments behind a server of their own; see ``openenv_site`` for how real it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from process_watch import command_line

from digirl_dist.agent.plugins.generic import GenericAgentSettings
from digirl_dist.api.fleet import Fleet
from digirl_dist.api.policy import Policy
from digirl_dist.emulator import DiscreteActions, ProductActions
from digirl_dist.emulator.openenv_server import OpenEnvServer
from digirl_dist.emulator.plugins.openenv import OpenEnvSettings
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.tasks import Task

pytestmark = pytest.mark.component

TESTS = str(Path(__file__).resolve().parent.parent)


def settings(**more: Any) -> OpenEnvSettings:
    return OpenEnvSettings(app="openenv_site:app", project=TESTS, **more)


def servers() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if "uvicorn" in command_line(each)]


def test_fields_become_text_vector_and_choices_and_the_server_ends_with_the_emulator() -> None:
    device = settings().build()
    assert device.spec.actions == ProductActions((DiscreteActions(2), DiscreteActions(3)))
    assert device.spec.vector_size == 3 and device.spec.image_size is None
    emulator = device.factory()
    first = emulator.reset(Task("walk"), seed=4)
    place = int(first.vector[2])  # in the order of the names: latest, place
    assert first.text == "hint: begin\ngoal: null" and first.vector.tolist() == [place, 0, place]
    after = emulator.step([1, 1])
    assert not after.terminated and after.observation.vector[0] == place + 2, "right, 2"
    assert after.observation.text.startswith("hint: right")
    again = emulator.reset(Task("walk"), seed=4)
    np.testing.assert_array_equal(again.vector, first.vector)
    [server] = servers()
    [path] = {str(each.laddr) for each in server.net_connections("unix") if each.laddr}
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700 and not server.net_connections("tcp")
    emulator.close()
    assert not server.is_running() and not os.path.exists(os.path.dirname(path))


def test_listed_actions_make_any_environment_one_of_choices() -> None:
    chosen = settings(variables={"SITE": "echo"}, actions=[{"message": "hi"}, {"message": "hello"}], observe=["hint"])
    device = chosen.build()
    assert device.spec.actions == DiscreteActions(2) and device.spec.vector_size == 0
    emulator = device.factory()
    try:
        emulator.reset(Task("echo"), seed=0)
        answer = emulator.step(1)
        assert answer.observation.text == "hello" and answer.reward == 0.5
    finally:
        emulator.close()


def _observed(seen: str, reward: str) -> str:
    return f'{{"type": "observation", "data": {{"observation": {seen}, "reward": {reward}, "done": false}}}}'


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"variables": {"SITE": "echo"}}, "message of its actions is free text.*list the actions in emulator.actions"),
        ({"observe": ["colour"]}, "no field 'colour'; there are hint, place, latest, goal"),
        ({"variables": {"ODD": "no json"}}, "answers a reset with no observation of OpenEnv's: no json"),
        ({"variables": {"ODD": "[" * 9999}}, r"answers a reset with no observation of OpenEnv's: \[\["),
        ({"variables": {"ODD": "[1]"}}, r"answers a reset with no observation of OpenEnv's: \[1\]"),
        ({"variables": {"ODD": _observed('{"x": 1}', "1" + "0" * 400)}}, "answers a reset with no observation"),
        ({"variables": {"ODD": "types"}}, "site:app describes its spaces in no schema of OpenEnv's"),
        ({"variables": {"ODD": "drip"}, "ready_s": 3.0}, "site:app has no schema at /schema"),
        ({"python": "/nowhere/python"}, "cannot be started.*emulator.python"),
        (
            {"variables": {"PYTHONPATH": "/nowhere"}, "project": "/"},
            "Could not import|No module named.*emulator.packages",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(more: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told) as refused:
        OpenEnvSettings(**{"app": "openenv_site:app", "project": TESTS, **more}).build()
    assert "\n" not in str(refused.value) and not servers()


def test_the_environments_own_tasks_are_those_of_a_fleet() -> None:
    there = settings(variables={"TASKS": "1"})
    tasks = there.tasks("default", "test")
    assert [task.id for task in tasks] == ["walk-0", "walk-1", "walk-2"] and not servers()
    assert tasks[2] == Task("walk-2", "Where to?", {"split": "test", "index": 2})
    assert there.tasks("default", "train") == settings().tasks("default", "test") == [Task("openenv_site:app")]
    with pytest.raises(SettingsError, match="cannot be started.*emulator.python"):
        settings(python="/nowhere/python").tasks("default", "test")


def test_a_server_that_does_not_answer_is_waited_for_as_long_as_told() -> None:
    server = OpenEnvServer(settings(variables={"ODD": "hang"}).server())
    try:
        with pytest.raises(EmulatorError, match=r"site:app did not answer within 0.1 s \(emulator.ready_s\)"):
            server.ask('{"type": "reset", "data": {}}', 0.1)
    finally:
        server.close()


def test_a_server_that_dies_is_named_with_its_last_lines() -> None:
    chosen = settings(actions=[{"direction": "left", "length": 1, "note": "die"}])
    emulator = chosen.build().factory()
    try:
        emulator.reset(Task("walk"), seed=0)
        with pytest.raises(EmulatorError, match="openenv_site:app broke off a session.*Uvicorn running on unix socket"):
            emulator.step(0)
    finally:
        emulator.close()


@pytest.mark.nightly
@pytest.mark.system
def test_a_fleet_over_ssh_runs_its_episodes() -> None:
    emulator = {"name": "openenv", "app": "openenv_site:app", "project": TESTS}
    policy = Policy(GenericAgentSettings().build(settings().build().spec))
    with Fleet.dry_run(2, emulator=emulator, bsize=1, max_steps=5) as fleet:
        episodes = fleet.collect(policy, episodes=4)
        workers = {episodes[row].worker for row in range(4)}
    assert workers <= {"localhost-0", "localhost-1"} and all(1 <= len(episodes[row].steps) <= 5 for row in range(4))
