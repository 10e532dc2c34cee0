"""What a finger, a key and a look do on a device over adb."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from emulator.android.phone_shell import FINISHED_FILM, PhoneShell, as_android
from emulator.android.sites import RunningPhone, quick
from hypothesis import HealthCheck, given
from hypothesis import settings as limits
from hypothesis import strategies as st

from digirl_dist.emulator.android import adb_device, screen
from digirl_dist.emulator.android.adb_device import typing_commands
from digirl_dist.emulator.android.emulator import AndroidEmulator
from digirl_dist.emulator.phone import layout, phone_tasks
from digirl_dist.errors import ActionError, EmulatorError
from digirl_dist.settings import PhoneSettings
from digirl_dist.tasks import Task
from digirl_dist.types import Json

pytestmark = pytest.mark.component

TASK = as_android(phone_tasks("easy", "train")[0])
TAP_CLOCK = {"type": "tap", "x": 36 / layout.WIDTH, "y": 115 / layout.HEIGHT}


@pytest.fixture
def emulator(phone: RunningPhone, tmp_path: Path) -> Iterator[AndroidEmulator]:
    emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial]))
    emulator.reset(TASK, seed=1)
    yield emulator
    emulator.close()


def task_named(name: str) -> Task:
    return next(task for task in phone_tasks("all", "train") if task.id == name)


printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)

# --- typing ----------------------------------------------------------------------------------------------------------


@limits(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=printable | st.sampled_from(["%s", "%%s s", "100% sure", "'\"$`\\", " ", "a;b&&c|d"]))
def test_any_ascii_text_arrives_as_it_is(emulator: AndroidEmulator, phone: RunningPhone, text: str) -> None:
    phone.shell.typed.clear()
    emulator.step({"type": "type", "text": text})
    assert "".join(phone.shell.typed) == text


@pytest.mark.unit
def test_line_breaks_and_tabs_are_keys() -> None:
    assert typing_commands("a\n\tb") == [
        "input text a",
        "input keyevent KEYCODE_ENTER",
        "input keyevent KEYCODE_TAB",
        "input text b",
    ]
    assert typing_commands("") == []
    assert [len(command) for command in typing_commands("x" * 1200)] == [511, 511, 211]


@pytest.mark.parametrize("text", ["grüße", "東京", "🙂", "a\x07b"])
def test_what_input_text_cannot_type_is_refused_with_the_remedy(emulator: AndroidEmulator, text: str) -> None:
    with pytest.raises(ActionError, match="install the app ADBKeyboard"):
        emulator.step({"type": "type", "text": text})
    emulator.step({"type": "back"})  # the device goes on


def test_adb_keyboard_types_any_unicode(tmp_path: Path) -> None:
    with RunningPhone(PhoneShell(adb_keyboard=True)) as phone:
        emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial]))
        emulator.reset(TASK, seed=1)
        for text in ("grüße, 東京 🙂", "quotes \" and ' and $x `y` %s", "two\nlines"):
            emulator.step({"type": "type", "text": text})
            assert phone.shell.typed[-1] == text
        emulator.close()


def test_adb_keyboard_that_is_wanted_but_missing_is_named(phone: RunningPhone, tmp_path: Path) -> None:
    emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial], adb_keyboard=True))
    with pytest.raises(EmulatorError, match="ADBKeyboard is not installed"):
        emulator.reset(TASK, seed=1)
    emulator.close()


# --- touching --------------------------------------------------------------------------------------------------------


def test_the_phone_over_adb_shows_what_the_phone_in_process_shows(phone: RunningPhone, tmp_path: Path) -> None:
    wanted = task_named("submit-maps-chess")
    near, far = PhoneSettings().build().factory(), AndroidEmulator(quick(tmp_path, serials=[phone.serial]))
    swipe = {"type": "swipe", "x": 0.8, "y": 0.5, "to_x": 0.2, "to_y": 0.5}
    actions: list[Json] = [TAP_CLOCK, {"type": "home"}, swipe, {"type": "tap", "x": 0.17, "y": 0.3}, {"type": "wait"},
        {"type": "type", "text": "chess"}, {"type": "enter"}]  # fmt: skip
    pictures = [[pixels(one.reset(wanted if one is near else as_android(wanted), 4).image)] for one in (near, far)]
    for action in actions:
        answers = [near.step(action), far.step(action)]
        assert answers[0].success == answers[1].success and answers[0].reward == answers[1].reward
        for seen, answer in zip(pictures, answers, strict=True):
            seen.append(pixels(answer.observation.image))
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert answers[1].terminated and answers[1].success
    far.close()


def pixels(image: bytes | None) -> np.ndarray:
    assert image is not None
    return screen.read_png(image)


def test_a_swipe_as_short_as_androidinthewild_calls_a_tap_is_one(
    emulator: AndroidEmulator, phone: RunningPhone
) -> None:
    emulator.step({"type": "swipe", "x": 0.9, "y": 0.5, "to_x": 0.91, "to_y": 0.53})
    assert phone.shell.history[-4].startswith("input tap 194 192")
    emulator.step({"type": "swipe", "x": 0.9, "y": 0.5, "to_x": 0.9, "to_y": 0.55})
    assert phone.shell.history[-4].startswith("input swipe 194 192 194 211")


def test_drags_and_selections_hold_what_they_touch(emulator: AndroidEmulator, phone: RunningPhone) -> None:
    emulator.step({"type": "drag", "x": 0.9, "y": 0.5, "to_x": 0.9, "to_y": 0.55})
    assert phone.shell.history[-4].startswith("input draganddrop 194 192 194 211")
    emulator.step({"type": "select", "x": 0.9, "y": 0.5})
    assert phone.shell.history[-4].startswith("input swipe 194 192 194 192 1000")


def test_giving_up_ends_the_episode_but_only_done_can_succeed(emulator: AndroidEmulator, phone: RunningPhone) -> None:
    for ending in ("impossible", "done"):
        emulator.reset(TASK, seed=1)
        phone.do(phone.shell.open_goal)
        answer = emulator.step({"type": ending})
        assert answer.terminated and answer.success is (ending == "done")


def test_tasks_start_apps_afresh_and_run_their_setup(emulator: AndroidEmulator, phone: RunningPhone) -> None:
    task = Task("t", params={"app": "com.android.settings", "setup": ["settings put global seed {seed}"]})
    emulator.reset(task, seed=42)
    assert phone.shell.apps == ["stop com.android.settings", "start com.android.settings"]
    assert phone.shell.settings["global seed"] == "42"
    assert not emulator.step({"type": "done"}).success, "nothing says that it succeeded"


def test_a_command_that_fails_is_named_with_what_it_said(emulator: AndroidEmulator) -> None:
    with pytest.raises(EmulatorError, match=r"`frobnicate` ended with status 127: .*not found"):
        emulator.reset(Task("t", params={"setup": ["frobnicate"]}), seed=0)


def test_a_command_that_does_not_end_is_given_up(
    phone: RunningPhone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adb_device, "COMMAND_S", 1.5)
    emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial]))
    started = time.monotonic()
    with pytest.raises(EmulatorError, match="`sleep 60`"):
        emulator.reset(Task("t", params={"setup": ["sleep 60"]}), seed=0)
    assert time.monotonic() - started < 40
    emulator.close()


# --- looking ---------------------------------------------------------------------------------------------------------


def look(folder: Path, shell: PhoneShell, **values: object) -> tuple[np.ndarray, float]:
    """The picture after a touch, and how long it took."""
    with RunningPhone(shell) as phone:
        emulator = AndroidEmulator(quick(folder, serials=[phone.serial], **values))
        emulator.reset(TASK, seed=1)
        started = time.monotonic()
        seen = emulator.step({"type": "swipe", "x": 0.8, "y": 0.5, "to_x": 0.2, "to_y": 0.5})
        took = time.monotonic() - started
        emulator.close()
    return pixels(seen.observation.image), took


def test_a_screen_is_taken_when_it_rests(tmp_path: Path) -> None:
    rested, _ = look(tmp_path, PhoneShell())
    moved, _ = look(tmp_path, PhoneShell(restless=4))
    np.testing.assert_array_equal(rested, moved)


def test_a_clock_that_ticks_does_not_keep_it_from_resting(tmp_path: Path) -> None:
    _, took = look(tmp_path, PhoneShell(blinking=True), settle_s=20.0)
    assert took < 10
    _, took = look(tmp_path, PhoneShell(blinking=True), settle_s=0.6, masked=[])
    assert took >= 0.6, "without the mask the clock counts"


def test_a_screen_that_never_rests_is_taken_in_the_end(tmp_path: Path) -> None:
    _, took = look(tmp_path, PhoneShell(restless=-1), settle_s=0.5)
    assert 0.5 <= took < 5


@pytest.mark.parametrize("header", [12, 16])
def test_raw_pictures_of_older_and_newer_androids_are_read(tmp_path: Path, header: int) -> None:
    old, _ = look(tmp_path, PhoneShell(header=header))
    assert old.shape == (layout.HEIGHT, layout.WIDTH, 3)


@pytest.mark.unit
@pytest.mark.parametrize("data", [b"", b"error: no display", b"\1\0\0\0" * 6])
def test_what_is_no_picture_is_named(data: bytes) -> None:
    for read in (screen.read_raw, screen.read_png):
        with pytest.raises(EmulatorError, match="screencap answered"):
            read(data)


def test_pictures_are_scaled_and_packed_as_asked_for(phone: RunningPhone, tmp_path: Path) -> None:
    emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial], image_size=[192, 108], jpeg_quality=80))
    image = emulator.reset(TASK, seed=1).image
    assert image is not None and image.startswith(b"\xff\xd8")
    emulator.close()


# --- films -----------------------------------------------------------------------------------------------------------


def test_identity_by_place_each_episode_leaves_a_film_that_was_finished_also_those_that_start_alike(
    phone: RunningPhone, tmp_path: Path
) -> None:
    emulator = AndroidEmulator(quick(tmp_path, serials=[phone.serial], record_path=str(tmp_path / "films")))
    emulator.reset(TASK, seed=1)
    assert emulator.step(TAP_CLOCK).success
    emulator.reset(TASK, seed=1)
    emulator.reset(TASK, seed=2)
    emulator.close()
    films = list((tmp_path / "films").iterdir())
    assert sorted(path.name.rsplit("-", 5)[0] for path in films) == [f"{TASK.id}-1", f"{TASK.id}-1", f"{TASK.id}-2"]
    assert all(path.read_bytes() == FINISHED_FILM for path in films)
