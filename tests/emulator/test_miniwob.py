"""The MiniWoB++ emulator in a real Chromium: coordinates, judgement, repeatability, and what is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from listening import NOBODY, listeners, tree
from PIL import Image
from process_watch import command_line, eventually

from digirl_dist.agent.device.touch import Choice, TouchGrid
from digirl_dist.emulator import chromium
from digirl_dist.emulator.miniwob import HEIGHT, WIDTH, MiniwobEmulator, miniwob_tasks
from digirl_dist.emulator.plugins.androidworld import AndroidWorldSettings
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.settings import MiniwobSettings, conversion
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

pytestmark = [pytest.mark.component, pytest.mark.usefixtures("chromium_is_installed")]

CENTRE = """
const box = document.querySelector(arguments[0]).getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2];
"""


@pytest.fixture(scope="module")
def emulator(chromium_is_installed: None) -> Iterator[MiniwobEmulator]:
    emulator = MiniwobSettings().build().factory()
    yield emulator
    emulator.close()


@pytest.fixture
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the emulators of this test put their throw-away folders; short, as Chromium needs it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def ask(emulator: MiniwobEmulator, script: str, *arguments: str | float) -> Json:
    return emulator._chromium.page.run(script, *arguments)


def centre(emulator: MiniwobEmulator, selector: str) -> tuple[float, float]:
    """Where an element is, in shares of the task's width and height."""
    x, y = ask(emulator, CENTRE, selector)
    return x / WIDTH, y / HEIGHT


def tap(emulator: MiniwobEmulator, selector: str) -> Transition:
    x, y = centre(emulator, selector)
    return emulator.step({"type": "tap", "x": x, "y": y})


def pixels(observation: Observation) -> np.ndarray:
    assert observation.image is not None
    return np.asarray(Image.open(io.BytesIO(observation.image)))


def quoted(utterance: str) -> str:
    return utterance.split('"')[1]


def pid_of(emulator: MiniwobEmulator) -> int:
    """Of the program that was started; it may have started the browser itself."""
    assert emulator._chromium._browser is not None
    return emulator._chromium._browser.pid


def browsers_of(folder: Path) -> list[psutil.Process]:
    """Living processes that were started with something in ``folder``."""
    found = psutil.process_iter(["cmdline", "status"])
    return [process for process in found if any(str(folder) in part for part in process.info["cmdline"] or ())]


def kill_browser(emulator: MiniwobEmulator) -> None:
    """The program itself, not the shell script that may have started it."""
    candidates = [process for process in tree(pid_of(emulator)) if "--remote-debugging-pipe" in command_line(process)]
    candidates[-1].kill()


# --- a scripted expert succeeds, so coordinates, keys and judgement are right -----------------------------------------


def solve_click_button(emulator: MiniwobEmulator, text: str) -> Transition:
    wanted = quoted(text)
    script = "[...document.querySelectorAll('#area button')].find(b => b.textContent == arguments[0]).id = 'wanted'"
    ask(emulator, script, wanted)
    return tap(emulator, "#wanted")


def solve_enter_text(emulator: MiniwobEmulator, text: str) -> Transition:
    assert not tap(emulator, "#tt").ended
    assert not emulator.step({"type": "type", "text": quoted(text)}).ended
    return tap(emulator, "#subbtn")


EXPERTS: dict[str, Callable[[MiniwobEmulator, str], Transition]] = {
    "click-test-2": lambda emulator, text: tap(emulator, "#subbtn"),
    "focus-text": lambda emulator, text: tap(emulator, "#tt"),
    "click-button": solve_click_button,
    "enter-text": solve_enter_text,
}


@pytest.mark.parametrize("page", EXPERTS)
def test_an_expert_succeeds(page: str, emulator: MiniwobEmulator) -> None:
    for seed in range(3):
        first = emulator.reset(Task(page), seed)
        transition = EXPERTS[page](emulator, first.text)
        assert (transition.reward, transition.terminated, transition.success) == (1.0, True, True)


@pytest.mark.parametrize(("ring", "differs"), [(4, True), (0, False)])
def test_a_ring_shows_which_button_was_pushed(ring: int, differs: bool) -> None:
    """The first push on this page changes nothing else that can be seen."""
    emulator = MiniwobSettings(focus_ring=ring).build().factory()
    try:
        first = emulator.reset(Task("click-button-sequence"), seed=3)
        pushed = tap(emulator, "#subbtn")
        assert (pushed.observation.image != first.image) is differs and not pushed.ended
        assert tap(emulator, "#subbtn2").success
    finally:
        emulator.close()


def test_the_wrong_button_ends_the_episode_without_reward(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=3)
    transition = tap(emulator, "#subbtn2")
    assert (transition.reward, transition.terminated, transition.success) == (0.0, True, False)


@pytest.mark.parametrize(
    ("page", "selectors", "said"),
    [
        ("click-test-2", ["#subbtn2"], "Click button TWO."),
        ("click-test-2", ["#subbtn"], None),
        ("click-button-sequence", ["#subbtn2", "#subbtn"], "Click button TWO, then click button ONE."),
        ("enter-text", ["#tt", "#subbtn"], None),
    ],
)
def test_a_wrong_click_that_ends_the_episode_achieves_the_instruction_that_names_it(
    page: str, selectors: list[str], said: str | None, emulator: MiniwobEmulator
) -> None:
    emulator.reset(Task(page), seed=3)
    answers = [tap(emulator, selector) for selector in selectors]
    assert [answer.terminated for answer in answers] == [*[False] * (len(answers) - 1), True]
    assert [list(answer.achieved) for answer in answers][-1] == ([{"instruction": said}] if said else [])
    assert not any(answer.achieved for answer in answers[:-1])


def test_giving_up_ends_the_episode_without_reward(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=3)
    transition = emulator.step({"type": "done"})
    assert (transition.reward, transition.terminated, transition.success) == (0.0, True, False)


def test_enter_presses_the_key_in_the_focused_field(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("scroll-text"), seed=1)
    tap(emulator, "textarea")
    before = ask(emulator, "return document.querySelector('textarea').value.split('\\n').length")
    emulator.step({"type": "enter"})
    assert ask(emulator, "return document.querySelector('textarea').value.split('\\n').length") == before + 1


def test_a_swipe_leaves_alone_what_cannot_scroll(emulator: MiniwobEmulator) -> None:
    first = emulator.reset(Task("drag-box"), seed=2)
    x, y = centre(emulator, "#draggableSmall")
    to_x, to_y = centre(emulator, "#draggableLarge")
    for start in ((x, y), (0.1, 0.1)):  # the instruction is no text to mark, either
        moved = emulator.step({"type": "swipe", "x": start[0], "y": start[1], "to_x": to_x, "to_y": to_y})
        assert (pixels(moved.observation) == pixels(first)).all()


def test_a_drag_moves_what_lies_at_its_start(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("drag-box"), seed=2)
    start, end = centre(emulator, "#draggableSmall"), centre(emulator, "#draggableLarge")
    emulator.step({"type": "drag", "x": start[0], "y": start[1], "to_x": end[0], "to_y": end[1]})
    assert tap(emulator, "#subbtn").success


@pytest.mark.parametrize(("place", "to"), [(0, 4), (4, 0), (1, 2), (3, 1)])
def test_what_the_agent_drags_to_a_label_of_a_sorted_list_takes_its_place(
    emulator: MiniwobEmulator, place: int, to: int
) -> None:
    emulator.reset(Task("drag-items"), seed=3)
    labels = [label for label in emulator.labels() if label.name]
    grid = TouchGrid(13, 10)
    drag = Choice(grid.kind(DeviceAction("drag")) or 0, grid.cells + place, grid.cells + to)
    emulator.step(grid.action(drag, [], labels))
    order = ask(emulator, "return [...document.querySelectorAll('#sortable li div')].map((each) => each.innerText)")
    assert order.index(labels[place].name) == to


def test_taps_mark_and_unmark_several_choices_of_a_list(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-scroll-list", params={"data_mode": "train"}), 3)
    marked = "return [...document.querySelector('select').selectedOptions].map(option => option.index)"
    ask(emulator, "document.querySelector('select').onchange = () => { window.changes = (window.changes ?? 0) + 1 }")
    for option, expected in ((1, [0]), (3, [0, 2]), (1, [2])):
        assert not tap(emulator, f"option:nth-child({option})").ended and ask(emulator, marked) == expected
    start, end = centre(emulator, "option:nth-child(2)"), centre(emulator, "option:nth-child(4)")
    emulator.step({"type": "drag", "x": start[0], "y": start[1], "to_x": end[0], "to_y": end[1]})
    assert ask(emulator, "return window.changes") == 3 and ask(emulator, marked) == [2], "a drag marks nothing"
    assert emulator.step({"type": "swipe", "x": 0.4, "y": 0.4, "to_x": 0.4, "to_y": 0.2}).reward == 0
    assert ask(emulator, "return document.querySelector('select').scrollTop") > 0 and ask(emulator, marked) == [2]


def test_a_selection_marks_the_paragraph_at_a_point(emulator: MiniwobEmulator) -> None:
    for seed in range(3):
        emulator.reset(Task("highlight-text"), seed)
        x, y = centre(emulator, "#randomText")
        assert not emulator.step({"type": "select", "x": x, "y": y}).ended
        assert tap(emulator, "#subbtn").success


@pytest.mark.parametrize(("page", "steps"), [("click-test-2", 10), ("enter-password", 15), ("use-colorwheel", 7)])
def test_an_episode_has_as_many_steps_as_the_page_has_seconds(page: str, steps: int, emulator: MiniwobEmulator) -> None:
    emulator.reset(Task(page), seed=1)
    taken = [emulator.step({"type": "wait"}) for _ in range(steps)]
    assert [one.truncated for one in taken] == [False] * (steps - 1) + [True]
    assert not any(one.terminated for one in taken)
    emulator.reset(Task(page), seed=1)
    assert not emulator.step({"type": "wait"}).ended


def test_a_swipe_upwards_scrolls_down_where_something_can_scroll(emulator: MiniwobEmulator) -> None:
    first = emulator.reset(Task("scroll-text"), seed=2)
    x, y = centre(emulator, "textarea")
    moved = emulator.step({"type": "swipe", "x": x, "y": y, "to_x": x, "to_y": y - 0.1})
    assert ask(emulator, "return document.querySelector('textarea').scrollTop") == pytest.approx(0.1 * HEIGHT, abs=1)
    assert (pixels(moved.observation) != pixels(first)).any()


# --- what is seen ----------------------------------------------------------------------------------------------------


def test_the_observation_is_the_task_alone_with_its_utterance(emulator: MiniwobEmulator) -> None:
    first = emulator.reset(Task("click-test-2"), seed=1)
    assert first.text == "Click button ONE."
    assert pixels(first).shape == (HEIGHT, WIDTH, 3)
    assert pixels(first)[40, 150].tolist() == [255, 255, 0]  # the yellow box of the utterance


def test_the_next_screenshot_shows_the_whole_effect(emulator: MiniwobEmulator) -> None:
    """The accordion opens with an animation of 0.4 s in a browser that people use."""
    first = emulator.reset(Task("click-collapsible"), seed=1)
    opened = tap(emulator, "#area h3").observation
    later = emulator.step({"type": "back"}).observation
    assert (pixels(opened) != pixels(first)).any()
    assert opened.image == later.image


def test_the_last_observation_shows_the_page_and_not_its_cover(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    last = tap(emulator, "#subbtn").observation
    assert pixels(last)[40, 150].tolist() == [255, 255, 0]


def test_back_and_home_change_nothing(emulator: MiniwobEmulator) -> None:
    first = emulator.reset(Task("click-test-2"), seed=1)
    for kind in ("back", "home"):
        transition = emulator.step({"type": kind})
        assert (transition.observation.image, transition.ended) == (first.image, False)


@pytest.mark.parametrize("page", ["social-media", "click-tab-2", "search-engine", "scroll-text"])
def test_nothing_is_left_of_the_episode_before(page: str, emulator: MiniwobEmulator) -> None:
    """These pages keep a scroll position, a tab or a page number when the package starts them again."""
    first = emulator.reset(Task(page), seed=4)
    for y in (0.9, 0.7, 0.5):
        emulator.step({"type": "swipe", "x": 0.5, "y": y, "to_x": 0.5, "to_y": y - 0.3})
        emulator.step({"type": "tap", "x": 0.4, "y": y})
    again = emulator.reset(Task(page), seed=4)
    assert (again.text, again.image) == (first.text, first.image)


def test_the_pages_own_time_limit_is_off(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    ask(
        emulator,
        "const now = Date.prototype.getTime; Date.prototype.getTime = function () { return now.call(this) + 6e4; }",
    )
    assert tap(emulator, "#subbtn").reward == 1.0


def test_the_split_chooses_the_pages_own_distribution(emulator: MiniwobEmulator) -> None:
    [task] = miniwob_tasks("click-checkboxes-transfer", split="test")
    emulator.reset(task, seed=1)
    assert ask(emulator, "return WOB_DATA_MODE") == "test"


def test_leaving_the_page_ends_the_episode_without_reward(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    emulator._chromium.page.open("about:blank")
    transition = emulator.step({"type": "tap", "x": 0.5, "y": 0.5})
    assert (transition.terminated, transition.success, transition.reward) == (True, False, 0.0)
    assert emulator.reset(Task("click-test-2"), seed=1).text == "Click button ONE."


def test_every_corner_can_be_tapped(emulator: MiniwobEmulator) -> None:
    for x, y in ((0, 0), (1, 0), (0, 1), (1, 1)):
        emulator.reset(Task("click-test-2"), seed=1)
        assert not emulator.step({"type": "tap", "x": x, "y": y}).ended


# --- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.unit
@pytest.mark.parametrize(
    "names", ["click-test-2, focus-text", ["click-test-2", "focus-text"], ["miniwob/click-test-2-v1", "focus-text-v1"]]
)
def test_pages_are_named_as_text_or_list_with_or_without_decoration(names: Json) -> None:
    assert [task.id for task in miniwob_tasks(names)] == ["click-test-2", "focus-text"]


@pytest.mark.unit
def test_all_means_every_page_that_the_package_registers() -> None:
    import gymnasium
    import miniwob  # noqa: F401  (registers)

    registered = {
        name.removeprefix("miniwob/").removesuffix("-v1") for name in gymnasium.registry if "miniwob/" in name
    }
    announced = {task.id for task in miniwob_tasks("all")}
    assert announced == {name for name in registered if not name.startswith("flight.")}


@pytest.mark.unit
def test_an_unknown_page_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="'click-tset-2'.*click-test-2"):
        miniwob_tasks("click-tset-2")


@pytest.mark.unit
@pytest.mark.parametrize("settings", [MiniwobSettings(), AndroidWorldSettings(avd="any")])
@pytest.mark.parametrize("task", [None, True, {"a": 1}])
def test_a_task_that_is_no_text_is_refused_with_its_key(settings: MiniwobSettings, task: Any) -> None:
    with pytest.raises(SettingsError, match="task must be a text or a list"):
        conversion.merged(settings, {"task": task}, "here")
    assert conversion.merged(settings, {"task": [5]}, "here").task == ["5"]


@pytest.mark.unit
def test_no_page_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="names no"):
        miniwob_tasks(" , ")


# --- programs and what they leave behind -----------------------------------------------------------------------------


@pytest.mark.unit
def test_a_missing_browser_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="chromium .*apt install chromium"):
        MiniwobSettings().build().factory()


def test_no_proxy_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    emulator = MiniwobSettings().build().factory()
    assert emulator.reset(Task("click-test-2"), seed=1).text == "Click button ONE."
    emulator.close()


def test_a_long_path_for_temporary_files_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    MiniwobSettings().build().factory().close()


def test_closing_leaves_no_process_and_no_folder(own_folder: Path) -> None:
    emulator = MiniwobSettings().build().factory()
    emulator.reset(Task("click-test-2"), seed=1)
    assert browsers_of(own_folder)
    emulator.close()
    eventually(lambda: not browsers_of(own_folder))
    assert list(own_folder.iterdir()) == []


def test_a_browser_that_dies_is_an_error_of_this_emulator_and_leaves_nothing(own_folder: Path) -> None:
    emulator = MiniwobSettings().build().factory()
    emulator.reset(Task("click-test-2"), seed=1)
    kill_browser(emulator)
    with pytest.raises(EmulatorError, match="Chromium failed to"):
        emulator.step({"type": "tap", "x": 0.5, "y": 0.5})
    emulator.close()
    eventually(lambda: not browsers_of(own_folder))
    assert list(own_folder.iterdir()) == []


def test_a_closed_emulator_says_so() -> None:
    emulator = MiniwobSettings().build().factory()
    emulator.close()
    with pytest.raises(EmulatorError, match="closed"):
        emulator.reset(Task("click-test-2"), seed=1)


def test_killing_the_owners_process_group_ends_the_browser(own_folder: Path) -> None:
    script = (
        "import time\n"
        "from digirl_dist.emulator.miniwob import MiniwobEmulator\n"
        "from digirl_dist.settings import MiniwobSettings\n"
        "emulator = MiniwobSettings().build().factory()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(own_folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, start_new_session=True
    ) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        assert browsers_of(own_folder)
        os.killpg(owner.pid, signal.SIGKILL)
    eventually(lambda: not browsers_of(own_folder))


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"#!/bin/sh\necho no library >&2\nexit 3\n", "the browser has ended; its last lines: no library"),
        (b"\x7fELF of another architecture", "Exec format error"),
    ],
)
def test_a_browser_that_does_not_run_is_an_emulator_error(
    program: bytes, said: str, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = own_folder / "bin"
    programs.mkdir()
    (programs / "chromium-headless-shell").write_bytes(program)
    (programs / "chromium-headless-shell").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with pytest.raises(EmulatorError, match=f"failed to start: .*{said}"):
        MiniwobSettings().build().factory()
    assert list(own_folder.iterdir()) == [programs]


# --- who else may use the browser ------------------------------------------------------------------------------------


def test_no_process_of_the_browser_listens(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    assert len(tree(pid_of(emulator))) > 2
    assert listeners(pid_of(emulator)) == []


@pytest.mark.parametrize("user", [0, NOBODY])
def test_only_roots_browser_goes_without_a_sandbox(
    user: int, emulator: MiniwobEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--no-sandbox" in chromium.flags("/tmp", "chromium")) == (user == 0)


def test_a_machine_without_a_sandbox_is_told_the_remedy(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = own_folder / "bin"
    programs.mkdir()
    (programs / "chromium-headless-shell").write_text("#!/bin/sh\necho No usable sandbox! >&2\nexit 1\n")
    (programs / "chromium-headless-shell").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with pytest.raises(SettingsError, match="apt install chromium-sandbox"):
        MiniwobSettings().build().factory()


# --- pages that misbehave --------------------------------------------------------------------------------------------


def test_a_page_that_hangs_is_an_error_and_the_browser_still_ends(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chromium, "_ANSWER_LIMIT_S", 1.0)
    emulator = MiniwobSettings().build().factory()
    emulator.reset(Task("click-test-2"), seed=1)
    ask(emulator, "setTimeout(() => { while (true); }, 0)")
    with pytest.raises(EmulatorError, match="carry out tap: no answer to .* in time"):
        emulator.step({"type": "tap", "x": 0.5, "y": 0.5})
    emulator.close()
    eventually(lambda: not browsers_of(own_folder))
    assert list(own_folder.iterdir()) == []


def test_a_dialog_is_dismissed(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    ask(emulator, "document.body.onmousedown = () => { window.answers = [confirm('sure?'), prompt('who?')]; }")
    assert not emulator.step({"type": "tap", "x": 0.9, "y": 0.9}).ended
    assert ask(emulator, "return window.answers") == [False, None]


def test_a_link_that_is_followed_ends_the_episode(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    page = (emulator._pages / "focus-text.html").as_uri()
    ask(emulator, "const to = arguments[0]; document.body.onmousedown = () => { location.href = to; }", page)
    transition = emulator.step({"type": "tap", "x": 0.9, "y": 0.9})
    assert (transition.terminated, transition.success, transition.reward) == (True, False, 0.0)


def test_a_script_that_fails_says_why(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test-2"), seed=1)
    with pytest.raises(EmulatorError, match="the script failed: ReferenceError: nowhere is not defined"):
        ask(emulator, "return nowhere")


@pytest.mark.parametrize("text", ["Aa zZ 09", "~!@#$%^&*()_+{}|:\"<>?`-=[]\\;',./", "naïve 😀 日本"])
def test_text_arrives_as_it_was_typed(text: str, emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("enter-text"), seed=1)
    tap(emulator, "#tt")
    emulator.step({"type": "type", "text": text})
    assert ask(emulator, "return document.querySelector('#tt').value") == text


def test_keys_have_the_codes_that_pages_look_at(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("enter-text"), seed=1)
    tap(emulator, "#tt")
    ask(
        emulator,
        "window.keys = [];"
        "document.querySelector('#tt').onkeydown = e => keys.push([e.key, e.code, e.keyCode, e.shiftKey]);",
    )
    emulator.step({"type": "type", "text": "aA1!\n"})
    assert ask(emulator, "return keys") == [
        ["a", "KeyA", 65, False],
        ["A", "KeyA", 65, True],
        ["1", "Digit1", 49, False],
        ["!", "Digit1", 49, True],
        ["Enter", "Enter", 13, False],
    ]


def test_labels_name_the_controls_and_texts_of_the_page_where_they_are(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-dialog-2", params={"data_mode": "train"}), 3)
    found = {(label.name, label.role): label for label in emulator.labels()}
    assert {("Close", "button"), ("Cancel", "button"), ("OK", "button")} <= set(found)
    x, y = centre(emulator, "button[title=Close]")
    close = found["Close", "button"]
    assert close.left < x < close.right and close.top < y < close.bottom
    assert not any("dialog" in name for name, _ in found), "the instruction is no label"
    emulator.reset(Task("enter-text", params={"data_mode": "train"}), 3)
    assert {(label.name, label.role) for label in emulator.labels()} == {("", "textbox"), ("Submit", "button")}


def test_a_word_in_several_pieces_is_one_label(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("text-transform", params={"data_mode": "train"}), 3)
    word = ask(emulator, "return document.querySelector('#captcha').textContent")
    assert len(word) > 1 and [label.name for label in emulator.labels() if label.name] == [word, "Submit"]
    ask(emulator, "document.querySelector('#captcha').innerHTML = 'big<!-- --> <b>word</b>s or <a href=#>two</a>s'")
    emulator.step({"type": "wait"})
    assert [label.name for label in emulator.labels() if label.name] == ["big   s or  s", "word", "two", "Submit"]
    ask(emulator, "document.body.innerHTML = 'big<b>word</b>'")
    assert [label.name for label in emulator.labels()] == ["word"], "what has no label of its own hides none"


def test_labels_have_what_is_drawn_without_words_and_what_was_written(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("email-inbox-noscroll", params={"data_mode": "train"}), 3)
    x, y = centre(emulator, ".email-thread .trash")
    drawn = [label for label in emulator.labels() if label.role == "graphic"]
    assert not any(label.name for label in drawn)
    assert any(label.left < x < label.right and label.top < y < label.bottom for label in drawn)
    emulator.reset(Task("enter-text", params={"data_mode": "train"}), 3)
    tap(emulator, "#tt")
    emulator.step({"type": "type", "text": "tea "})
    assert ("tea ", "textbox") in {(label.name, label.role) for label in emulator.labels()}
    emulator.reset(Task("enter-password", params={"data_mode": "train"}), 3)
    tap(emulator, "#password")
    emulator.step({"type": "type", "text": "secret"})
    assert not any("secret" in label.name for label in emulator.labels())


@pytest.mark.parametrize("page", ["enter-date", "enter-time", "copy-paste"])
def test_every_field_has_a_label_that_takes_text(page: str, emulator: MiniwobEmulator) -> None:
    emulator.reset(Task(page, params={"data_mode": "train"}), 3)
    assert "textbox" in {label.role for label in emulator.labels()}


def test_labels_are_those_of_the_latest_screen_and_none_of_a_page_that_was_left(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-collapsible", params={"data_mode": "train"}), 3)
    folded = {label.name for label in emulator.labels() if label.name}
    tap(emulator, "h3")
    unfolded = {label.name for label in emulator.labels() if label.name}
    inside = ask(emulator, "return document.querySelector('#area > div').textContent")
    assert folded == {"Section #38", "Submit"} and unfolded == {*folded, inside}
    ask(emulator, "location.href = 'about:blank'")
    assert emulator.step({"type": "wait"}).terminated and not emulator.labels()


COVER = """
const [one, two] = ['#subbtn', '#subbtn2'].map(id => document.querySelector(id)), box = one.getBoundingClientRect();
Object.assign(two.style, {position: 'fixed', left: `${box.left + box.width * arguments[0]}px`, top: `${box.top}px`,
                          width: `${box.width}px`, height: `${box.height}px`});
"""


CORNER = COVER.replace("top: `${box.top}px`", "top: `${box.top + box.height / 5 * 2}px`").replace("arguments[0]", "0.4")


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_the_box_of_a_label_that_is_partly_covered_is_where_it_can_be_touched(
    emulator: MiniwobEmulator, share: float
) -> None:
    emulator.reset(Task("click-button-sequence", params={"data_mode": "train"}), 3)
    ask(emulator, COVER, share)
    emulator.step({"type": "wait"})
    one, two = sorted(emulator.labels(), key=lambda label: label.name)
    assert (one.name, two.name) == ("ONE", "TWO")
    assert one.right - one.left == pytest.approx(share * (two.right - two.left))
    middle = {"type": "tap", "x": (one.left + one.right) / 2, "y": (one.top + one.bottom) / 2}
    assert not emulator.step(middle).ended, "it was ONE"
    ask(emulator, CORNER)
    emulator.step({"type": "wait"})
    one, two = sorted(emulator.labels(), key=lambda label: label.name)
    assert one.bottom == pytest.approx(two.top) or one.right == pytest.approx(two.left), "what is left is no rectangle"
    ask(emulator, COVER, 0)
    emulator.step({"type": "wait"})
    assert [label.name for label in emulator.labels()] == ["TWO"], "all of ONE is covered"


# --- rewards, and pages that were out of reach ------------------------------------------------------------------------


def test_only_the_full_reward_of_a_graded_page_is_a_success(emulator: MiniwobEmulator) -> None:
    """Pushing Submit at once "won" this page, whose answers are graded."""
    seen = emulator.reset(Task("use-colorwheel"), seed=3)
    partly = tap(emulator, "#subbtn")
    assert 0.0 < partly.reward < 1.0 and partly.terminated and not partly.success
    emulator.reset(Task("use-colorwheel"), seed=3)
    colour = seen.text.split()[1]
    ask(emulator, "document.querySelector('#col').value = ui_utils.colorNameToHex(arguments[0]).slice(1)", colour)
    assert (found := tap(emulator, "#subbtn")).success and found.reward == 1.0


@pytest.mark.parametrize("page", ["email-inbox-nl-turk", "email-inbox-forward-nl", "email-inbox-forward-nl-turk"])
def test_pages_whose_utterance_comes_with_fields_start(page: str, emulator: MiniwobEmulator) -> None:
    text = emulator.reset(miniwob_tasks(page)[0], seed=1).text
    assert isinstance(text, str) and len(text.split()) > 2


def test_a_list_opens_within_the_page_where_it_is_seen_and_touched(emulator: MiniwobEmulator) -> None:
    """A headless shell drew no frame any more while a list had opened in a window of its own."""
    for seed in range(3):
        closed = emulator.reset(Task("choose-list"), seed)
        opened = tap(emulator, "#options").observation
        assert (pixels(opened) != pixels(closed)).any(axis=2).sum() > 1000
        wanted = closed.text.removeprefix("Select ").removesuffix(" from the list and click Submit.")
        script = "[...document.querySelectorAll('option')].find(o => o.textContent == arguments[0]).id = 'wanted'"
        ask(emulator, script, wanted)
        assert not tap(emulator, "#wanted").ended
        assert tap(emulator, "button").success


def test_a_menu_that_opens_under_the_mouse_is_opened_by_a_tap_which_pushes_nothing(emulator: MiniwobEmulator) -> None:
    deepest = 0
    for seed in range(8):
        way = emulator.reset(Task("click-menu"), seed).text.removeprefix("Select ").split(">")
        deepest = max(deepest, len(way))
        for name in way:
            ask(emulator, "$('#menu div').filter((at, o) => o.textContent == arguments[0])[0].id = arguments[0]", name)
            last = tap(emulator, f"#{name}")
        assert last.success
    assert deepest == 3


def test_a_tap_pushes_what_the_page_brings_to_the_front_under_the_mouse(emulator: MiniwobEmulator) -> None:
    for seed in range(8):
        asked = quoted(emulator.reset(Task("click-pie-nodelay"), seed).text)
        emulator.step({"type": "tap", "x": 0.45, "y": 0.577})
        item = next(label for label in emulator.labels() if label.name == asked)
        x, y = item.middle
        assert emulator.step({"type": "tap", "x": x, "y": y}).success


def test_an_entry_whose_menu_opens_by_a_push_is_pushed(emulator: MiniwobEmulator) -> None:
    emulator.reset(Task("click-test"), seed=0)
    menu = "<div><b id=entry aria-haspopup=menu>File</b><p id=files role=menu hidden>Open</p></div>"
    ask(emulator, "area.innerHTML = arguments[0]; entry.onclick = () => files.hidden = false", menu)
    tap(emulator, "#entry")
    assert ask(emulator, "return files.hidden") is False


@pytest.mark.parametrize(
    ("page", "keys", "value"),
    [
        ("enter-date", "05/04/2013", "2013-05-04"),
        ("enter-time", "0412PM", "16:12"),
        ("enter-time", "4:12 PM", "16:12"),
    ],
)
@pytest.mark.parametrize("place", [8, 60])
def test_dates_and_times_are_typed_wherever_they_are_touched_and_open_no_window(
    page: str, keys: str, value: str, place: int, emulator: MiniwobEmulator
) -> None:
    text = emulator.reset(Task(page), seed=3).text
    script = "const box = tt.getBoundingClientRect(); return [box.left + arguments[0], box.top + box.height / 2]"
    x, y = ask(emulator, script, place)
    for key in (" ", "\n", keys):
        assert not emulator.step({"type": "tap", "x": x / WIDTH, "y": y / HEIGHT}).ended
        assert not emulator.step({"type": "type", "text": key}).ended
    assert ask(emulator, "return tt.value") == value
    assert emulator.reset(Task(page), seed=3).text == text
