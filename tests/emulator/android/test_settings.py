"""Which settings make an Android run, and what is refused on the host before any worker is asked."""

from __future__ import annotations

import re

import pytest

from digirl_dist.assembly.parts import agent_plugin, build_device
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.android.source import LOAD_S, TURN_S
from digirl_dist.emulator.android.tasks import MAX_STEPS
from digirl_dist.errors import SettingsError
from digirl_dist.settings import AndroidSettings, Settings, configuration, conversion


def load(*overrides: str) -> Settings:
    return configuration.load("config/multimachine", "host", ["emulator=android", *overrides])


def test_an_avd_is_all_that_must_be_named() -> None:
    settings = load("emulator.avd=pixel")
    device = build_device(settings, settings.emulator)
    assert device.extras == ("android",) and device.max_steps == MAX_STEPS
    assert device.spec.image_size == (800, 360)
    own = device.factory.args[0]  # type: ignore[attr-defined]  # below the memory of the agent
    assert own.func is AndroidEmulator and own.args == (settings.emulator,)
    agent_plugin(settings).build(device.spec)


def test_the_watchdog_is_patient_enough_for_boots_in_turn() -> None:
    settings = load("emulator.avd=pixel")
    assert isinstance(settings.emulator, AndroidSettings)
    assert settings.limits.boot_s >= TURN_S + settings.emulator.boot_s
    assert settings.limits.reset_s >= LOAD_S + settings.emulator.boot_s


def test_values_can_be_given_per_worker() -> None:
    settings = load("emulator.avd=pixel")
    merged = conversion.merged(settings.emulator, {"avd": None, "serials": ["10.0.0.7:5555"]}, "worker w1")
    assert build_device(settings, merged).spec.image_size == (800, 360)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "needs either emulator.avd=NAME or emulator.serials"),
        (["emulator.avd=a", "emulator.serials=['1.2.3.4:5555']"], "needs either"),
        (["emulator.serials=[R58M]"], "on USB.*adb start-server.*emulator.adb_server=127.0.0.1:5037"),
        (
            ["emulator.avd=a", "emulator.image_size=[800]"],
            "emulator.image_size must be a list of 2, as emulator.image_size=[a,b], not [800]",
        ),
        (["emulator.avd=a", "emulator.first_port=5601"], "must be even"),
        (["emulator.avd=a", "emulator.masked=[[0,0,2,1]]"], "not [left, top, right, bottom]"),
        (["emulator.avd=a", "emulator.masked=[0,0,1,1]"], "not [left, top, right, bottom]"),
        (["emulator.avd=a", "task_set=hard"], "no task set 'hard'"),
    ],
)
def test_what_cannot_work_is_refused_on_the_host(overrides: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message).replace(r"\.\*", ".*")):
        settings = load(*overrides)
        build_device(settings, settings.emulator)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_tasks_that_every_image_has_can_be_checked(split: str) -> None:
    settings = load("emulator.avd=pixel", f"task_split={split}")
    tasks = build_device(settings, settings.emulator).tasks
    assert len({task.id for task in tasks}) == len(tasks) == 5
    for task in tasks:
        assert task.instruction and task.params["check"]["command"]
        re.compile(task.params["check"]["matches"])


def test_the_two_splits_ask_in_other_words() -> None:
    settings = load("emulator.avd=pixel")
    train = {task.instruction for task in build_device(settings, settings.emulator).tasks}
    other = load("emulator.avd=pixel", "task_split=test")
    assert train.isdisjoint(task.instruction for task in build_device(other, other.emulator).tasks)
