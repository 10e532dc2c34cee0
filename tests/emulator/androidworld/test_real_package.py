"""AndroidWorld's real package, where it is importable, on a device behind real adb, as far as such a device goes.

No registry has the package, so continuous integration skips this file; docs/android.md says how it is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import pytest
from emulator.android.sites import RunningPhone, quick
from emulator.androidworld.android_files import AndroidShell, Storage
from listening import listeners

from digirl_dist.emulator.androidworld import androidworld_tasks, instance, suite
from digirl_dist.emulator.androidworld.emulator import AndroidWorldEmulator
from digirl_dist.errors import EmulatorError
from digirl_dist.settings import AndroidWorldSettings
from digirl_dist.tasks import Task

pytest.importorskip(
    "android_world.registry", reason="no registry has android_world: docs/android.md", exc_type=ImportError
)
pytestmark = pytest.mark.component

from emulator.androidworld.databases import insert, make_databases  # noqa: E402

DONE = {"type": "done"}
_GOALS = """
import json, sys
from digirl_dist.emulator.androidworld import instance, suite
there = suite("android_world")
print(json.dumps({name: instance(name, there, int(sys.argv[1])).goal for name in there}))
"""
NAMED_BY_THE_CLOCK = {"MarkorCreateFolder"}
"""Its folder's name is the time at which its parameters are drawn, whatever the seed."""

MAKE_MUSIC = {"RetroCreatePlaylist", "RetroPlayingQueue", "RetroPlaylistDuration", "RetroSavePlaylist"}
"""They need the program ``ffmpeg`` on the worker."""
SEND_OR_SAVE = {"SimpleSmsReply", "SimpleSmsReplyMostRecent", "SimpleSmsResend", "SimpleSmsSendReceivedAddress"}
"""The first two have the emulator's console send a message, the others press a button of the contacts app."""


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    return dict(suite("android_world"))


@pytest.fixture(scope="module")
def shell(tasks: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> AndroidShell:
    from digirl_dist.emulator.androidworld import world

    storage = Storage(tmp_path_factory.mktemp("device"))
    make_databases(storage, tasks)
    names = {world.package_of(app) for name in tasks for app in instance(name, tasks, 1).app_names}
    return AndroidShell(files=storage, packages=sorted(filter(None, names)))


@pytest.fixture(scope="module")
def emulator(
    adb_is_installed: None, shell: AndroidShell, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AndroidWorldEmulator]:
    folder, pause = tmp_path_factory.mktemp("slot"), time.sleep
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("HOME", str(folder))
        patch.setattr(time, "sleep", lambda seconds: pause(min(seconds, 0.01)))  # what it waits for is no app here
        phone = stack.enter_context(RunningPhone(shell))
        given = asdict(quick(folder, serials=[phone.serial])) | {"name": "androidworld"}
        made = AndroidWorldSettings(**given).build().factory()
        stack.callback(made.close)
        yield made


def goals(seed: int, hashes: int) -> dict[str, str]:
    """Of every task, as another process draws them, in which sets have another order."""
    environment = {
        "PYTHONPATH": ":".join(filter(None, sys.path)),
        "PYTHONHASHSEED": str(hashes),
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-W", "ignore", "-c", _GOALS, str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_the_registry_has_its_116_tasks(tasks: dict[str, Any]) -> None:
    assert len(tasks) == 116
    chosen = androidworld_tasks("android_world", "all")
    assert sorted(task.id for task in chosen) == sorted(tasks)


def test_equal_seeds_draw_equal_goals_in_every_process(tasks: dict[str, Any]) -> None:
    first, again, other = goals(1, hashes=1), goals(1, hashes=2), goals(2, hashes=1)
    assert set(first) == set(tasks)
    assert {name for name in first if first[name] != again[name]} <= NAMED_BY_THE_CLOCK
    assert sum(first[name] != other[name] for name in first) > 70, "most have parameters"


@pytest.mark.nightly
@pytest.mark.long(180)
@pytest.mark.timeout(600)
def test_every_task_is_initialised_and_judges_that_nothing_was_done(emulator: AndroidWorldEmulator) -> None:
    """Tasks to verify a setting begin with it made."""
    refused = {}
    for name in emulator._suite:
        try:
            assert emulator.reset(Task(name), seed=1).text
            ended = emulator.step(DONE)
        except EmulatorError as error:
            refused[name] = str(error)
        else:
            made_before = name.startswith("System") and name.endswith("Verify")
            assert ended.terminated and ended.reward == float(made_before), name
    if shutil.which("ffmpeg") is None:
        assert {name for name, why in refused.items() if "'ffmpeg'" in why} == MAKE_MUSIC
        refused = {name: why for name, why in refused.items() if name not in MAKE_MUSIC}
    assert set(refused) == SEND_OR_SAVE, refused


def _wifi(shell: AndroidShell, task: Any) -> None:
    shell.settings["global wifi_on"] = "0"


def _file(shell: AndroidShell, task: Any) -> None:
    del shell.files[f"/storage/emulated/0/{task.params['subfolder']}/{task.params['file_name']}"]


def _note(shell: AndroidShell, task: Any) -> None:
    shell.files[f"/storage/emulated/0/Documents/Markor/{task.params['file_name']}"] = task.params["text"].encode()


def _timer(shell: AndroidShell, task: Any) -> None:
    shown = "{hours:02d}h {minutes:02d}m {seconds:02d}s".format(**task.params)
    shell.activity = "com.google.android.deskclock/com.android.deskclock.DeskClock"
    shell.window = (
        f'<?xml version="1.0" ?><hierarchy><node text="{shown}" content-desc="{shown}" class="android.widget.TextView" '
        'resource-id="com.google.android.deskclock:id/timer_setup_time" bounds="[0,0][10,20]" /></hierarchy>'
    )


def _rows(shell: AndroidShell, task: Any) -> None:
    insert(shell.files, task, task.params["row_objects"])


SOLVED: dict[str, Callable[[AndroidShell, Any], None]] = {
    "SystemWifiTurnOff": _wifi,
    "FilesDeleteFile": _file,
    "MarkorCreateNote": _note,
    "ClockTimerEntry": _timer,
    "RecipeAddSingleRecipe": _rows,
    "ExpenseAddMultiple": _rows,
    "SimpleCalendarAddOneEvent": _rows,
}
"""What the device would have been left with by an agent that did the task."""


@pytest.mark.parametrize("name", SOLVED)
def test_what_an_agent_did_is_judged_a_success(name: str, emulator: AndroidWorldEmulator, shell: AndroidShell) -> None:
    emulator.reset(Task(name), seed=5)
    assert not emulator.step({"type": "wait"}).ended
    SOLVED[name](shell, emulator._instance)
    ended = emulator.step(DONE)
    assert ended.success and ended.reward == 1.0


def test_its_means_open_no_port(emulator: AndroidWorldEmulator) -> None:
    """Its own environment opens two; the stand-in device listens at the one by which it is named."""
    emulator.reset(Task("ClockTimerEntry"), seed=1)
    emulator._world.get_state()
    assert [f"{each.address}:{each.port}" for each in listeners(os.getpid())] == [emulator.device.serial]


def test_an_answer_is_compared_by_the_task(emulator: AndroidWorldEmulator) -> None:
    from android_world.task_evals.information_retrieval import proto_utils

    for right in (True, False):
        emulator.reset(Task("SimpleCalendarNextEvent"), seed=5)
        expected = proto_utils.get_expected_answer(emulator._instance.task) if right else "nothing of the kind"
        ended = emulator.step({"type": "done", "text": str(expected)})
        assert ended.success is right, expected
