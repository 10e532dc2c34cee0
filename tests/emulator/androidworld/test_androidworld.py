"""AndroidWorld's emulator on a device behind real adb, with a stand-in for its package; and without any."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
from emulator.android.fake_emulator import make_token
from emulator.android.sites import RunningPhone, make_sdk, quick
from emulator.androidworld.android_files import AndroidShell, Storage
from emulator.androidworld.stand_in_package import stand_in_package

from digirl_dist.assembly.parts import build_device
from digirl_dist.doctor.setup import steps
from digirl_dist.emulator.android import snapshot
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.androidworld import androidworld_tasks, apps, every_task
from digirl_dist.emulator.androidworld.emulator import AndroidWorldEmulator
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.fleet.roster import WorkerConfig
from digirl_dist.settings import AndroidSettings, AndroidWorldSettings, InstallSettings, configuration
from digirl_dist.ssh.connection import Address
from digirl_dist.tasks import Task

DONE = {"type": "done"}
WAIT = {"type": "wait"}


@pytest.fixture
def package(tmp_path: Path) -> Iterator[None]:
    with stand_in_package(tmp_path / "packages"):
        yield


@pytest.fixture
def shell(tmp_path: Path) -> AndroidShell:
    return AndroidShell(files=Storage(tmp_path / "device"))


@pytest.fixture
def emulator(
    package: None, adb_is_installed: None, shell: AndroidShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AndroidWorldEmulator]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with ExitStack() as stack:
        phone = stack.enter_context(RunningPhone(shell))
        made = like(quick(tmp_path, serials=[phone.serial])).build().factory()
        stack.callback(made.close)
        yield made


def like(settings: AndroidSettings, **more: object) -> AndroidWorldSettings:
    return AndroidWorldSettings(**{**asdict(settings), "name": "androidworld", **more})


@pytest.mark.component
def test_a_task_is_initialised_shown_as_its_goal_and_judged_where_the_agent_is_done(
    emulator: AndroidWorldEmulator, shell: AndroidShell
) -> None:
    shell.settings["system level"] = "77"
    seen = emulator.reset(Task("BrightnessSet"), seed=3)
    level = re.fullmatch(r"Set the brightness to (\d+)", seen.text)
    assert level and seen.image
    assert shell.settings["system level"] == "0", "it was initialised on the device"
    shell.settings["system level"] = level[1]
    working = emulator.step(WAIT)
    assert not working.ended and not working.success, "AndroidWorld judges where the agent says that it is done"
    ended = emulator.step(DONE)
    assert ended.terminated and ended.success and ended.reward == 1.0
    emulator.reset(Task("BrightnessSet"), seed=3)
    failed = emulator.step(DONE)
    assert failed.terminated and not failed.success and failed.reward == 0.0


@pytest.mark.component
def test_the_goal_follows_from_the_seed(emulator: AndroidWorldEmulator) -> None:
    goals = [emulator.reset(Task("NotesCount"), seed).text for seed in (1, 2, 1)]
    assert goals[0] == goals[2] != goals[1]


@pytest.mark.component
@pytest.mark.parametrize(
    ("action", "reward", "success"),
    [
        (lambda n: {"type": "done", "text": n}, 1.0, True),
        (lambda n: {"type": "done", "text": "half"}, 0.5, False),
        (lambda n: DONE, 0.0, False),
        (lambda n: {"type": "impossible"}, 0.0, False),
    ],
)
def test_the_text_of_done_answers_a_question(
    action: Callable[[str], dict[str, str]], reward: float, success: bool, emulator: AndroidWorldEmulator
) -> None:
    asked = re.search(r"\d+", emulator.reset(Task("NotesCount"), seed=1).text)
    assert asked is not None
    ended = emulator.step(action(asked[0]))
    assert (ended.terminated, ended.reward, ended.success) == (True, reward, success)


@pytest.mark.component
def test_steps_are_limited_by_the_tasks_complexity(emulator: AndroidWorldEmulator) -> None:
    emulator.reset(Task("NotesCount"), seed=1)
    taken = [emulator.step(WAIT) for _ in range(3)]
    assert [each.truncated for each in taken] == [False, False, True] and not taken[-1].terminated


@pytest.mark.component
@pytest.mark.parametrize(("said", "success"), [("1", True), ("-1", False)])
def test_a_page_of_miniwob_ends_its_episode_by_its_own_reward(
    said: str, success: bool, emulator: AndroidWorldEmulator, shell: AndroidShell
) -> None:
    emulator.reset(Task("MiniWobPage"), seed=1)
    assert not emulator.step(WAIT).ended
    shell.settings["global page"] = said
    ended = emulator.step(WAIT)
    assert ended.terminated and ended.success is success


@pytest.mark.component
def test_a_device_without_a_snapshot_is_torn_down_by_the_task_before_the_next_and_at_the_end(
    emulator: AndroidWorldEmulator, shell: AndroidShell
) -> None:
    emulator.reset(Task("NotesCount"), seed=1)
    assert "global torn_down" not in shell.settings
    emulator.reset(Task("BrightnessSet"), seed=1)
    assert shell.settings["global torn_down"] == "NotesCount"
    emulator.close()
    emulator.close()
    assert shell.settings["global torn_down"] == "BrightnessSet"


@pytest.mark.component
@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("NotesWrite", r"needs the app notes \(org\.notes\), which is not installed on 127.*androidworld\.apps AVD"),
        (
            "BrokenTask",
            r"could not initialise BrokenTask: AdbControllerError: adb shell no-such-program ended with .*127",
        ),
        ("NotesCounts", r"'NotesCounts' is no task of this suite.*near it are NotesCount"),
    ],
)
def test_what_keeps_a_task_from_starting_is_told_in_a_line(
    task: str, told: str, emulator: AndroidWorldEmulator
) -> None:
    with pytest.raises((EmulatorError, SettingsError), match=told) as refused:
        emulator.reset(Task(task), seed=1)
    assert "\n" not in str(refused.value)
    assert emulator.reset(Task("NotesCount"), seed=1).text, "the emulator works on"


@pytest.mark.component
def test_elements_are_told_of_a_screen_at_rest_alone(emulator: AndroidWorldEmulator, shell: AndroidShell) -> None:
    """A dump that fails leaves the one before it on the device, which must not be judged by."""
    shell.window = '<?xml version="1.0" ?><hierarchy><node text="Hello" bounds="[0,0][10,20]" /></hierarchy>'
    controller = emulator._world.controller
    assert controller.get_ui_elements() == ["Hello"]
    shell.window = "ERROR: could not get idle state."
    with pytest.raises(EmulatorError, match="may never rest: ERROR: could not get idle state"):
        controller.get_ui_elements()


@pytest.mark.component
def test_the_apps_are_put_into_the_snapshot_from_which_instances_start(
    package: None, adb_is_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_token(tmp_path)
    sdk = make_sdk(tmp_path, snapshots=())
    apps.save_with_apps(like(sdk.settings(avd="demo")), "digirl")
    [made] = sdk.events("start")
    assert "-read-only" not in made["argv"]
    assert not [word for word in made["argv"] if "grpc" in word], "a port that anyone could use"
    assert sys.modules["android_world.env.setup_device.setup"].said == "1\n", "over adb"
    emulator = like(sdk.settings()).build().factory()
    try:
        assert emulator.reset(Task("NotesCount"), seed=1).text
    finally:
        emulator.close()


# --- without a device


def test_tasks_are_chosen_by_name_as_a_list_or_all(package: None) -> None:
    def names(task: object) -> list[str]:
        return [each.id for each in androidworld_tasks("android_world", task)]

    assert names("all") == [task.id for task in every_task("android_world")]
    assert names("NotesWrite, NotesCount") == names(["NotesWrite", "NotesCount"]) == ["NotesWrite", "NotesCount"]


@pytest.mark.parametrize(
    ("values", "task_set", "told"),
    [
        ({"task": "NotesCuont"}, "default", "'NotesCuont' is no task .*; near it are NotesCount.*all 5"),
        ({"task": " "}, "default", "names no task"),
        ({"family": "android_wrld"}, "default", "emulator.family=android_wrld is no suite .*there are android_world"),
        ({}, "hard", "no task set 'hard'"),
    ],
)
def test_an_unknown_task_family_or_set_is_refused_with_what_there_is(
    values: dict[str, str], task_set: str, told: str, package: None
) -> None:
    with pytest.raises(SettingsError, match=told):
        AndroidWorldSettings(avd="a", **values).tasks(task_set, "train")


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "android_world", None)
    for attempt in (
        lambda: AndroidWorldSettings(avd="a").tasks("default", "train"),
        lambda: AndroidWorldSettings(avd="a").build().factory(),
    ):
        with pytest.raises(SettingsError, match=r"needs the package android_world.*docs/android\.md") as refused:
            attempt()
        assert "\n" not in str(refused.value)


def test_the_command_that_installs_apps_says_so_before_it_boots_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "android_world", None)
    asked = "androidworld.apps", apps.save_with_apps
    assert snapshot.command(["demo", "digirl"], *asked) == 1 and "docs/android.md" in capsys.readouterr().err
    assert snapshot.command(["demo"], *asked) == 2


def test_it_is_an_android_device_for_the_doctor_and_setup(package: None) -> None:
    settings = configuration.load("config/multimachine", "host", ["emulator=androidworld", "emulator.avd=pixel"])
    assert isinstance(settings.emulator, AndroidSettings) and settings.limits.boot_s >= settings.emulator.boot_s
    device = build_device(settings, settings.emulator)
    assert device.max_steps is None and device.extras == ("android",)
    told = settings.emulator.setup_variables(InstallSettings())
    assert told["ANDROID_AVD"] == "pixel" and told["ANDROID_SNAPSHOT_MODULE"] == apps.__name__
    prepared = steps(
        settings.emulator,
        WorkerConfig(Address("w1", "10.0.0.2"), 1, "jobs", "env", "python3"),
        InstallSettings(),
        dry_run=True,
    )
    assert "avd_is_there" in prepared.script and "make_snapshot" in prepared.after
    own = device.factory.args[0]  # type: ignore[attr-defined]  # below the memory of the agent
    assert own.func is AndroidWorldEmulator and issubclass(own.func, AndroidEmulator)
