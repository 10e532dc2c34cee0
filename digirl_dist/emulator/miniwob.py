"""MiniWoB++: small web tasks in headless Chromium, through the touch-screen interface.

The pages and their judges are those of the ``miniwob`` package (Liu et al. 2018, "Reinforcement Learning on Web
Interfaces Using Workflow-Guided Exploration"), served from its files.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from digirl_dist.emulator import DeviceActions, EmulatorSpec, Label, png
from digirl_dist.emulator.chromium import Chromium, Page, chromium_errors
from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.emulator.web_labels import LABELS, LABELS_AT, Clicked, ClickedLabels, labels_of
from digirl_dist.errors import EmulatorError, SettingsError
from digirl_dist.plain_text import near_it
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json

WIDTH, HEIGHT = 160, 210
"""The part of the page that is the task, in pixels."""

SPEC = EmulatorSpec(
    DeviceActions(("tap", "type", "enter", "swipe", "drag", "select")), image_size=(HEIGHT, WIDTH), labels=True
)
MAX_STEPS = 30
"""Longest episode of any page, unless the user says otherwise."""

_FULL = 1 - 1e-6
"""Rewards from here on are full: some pages add up parts of 1."""

_WINDOW = (500, 320)
"""The package's window: menus and dialogs find the same room as in its own environments."""

_TIMED = frozenset({"button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"})
"""Pages judged by the clock. The package registers no environments for them, and an episode here has no clock."""

_BEGIN = """
const [seed, mode, ring] = arguments;
const style = document.createElement('style');
style.textContent = '#sync-task-cover {display: none !important}' +
    '* {transition: none !important; animation: none !important; caret-color: transparent !important}' +
    'select:not([multiple]), ::picker(select) {appearance: base-select; font-size: 10px}' +
    '::picker(select) {max-height: 150px; overflow: auto}' +
    'select:not([multiple]) option {padding: 0 2px; min-block-size: 14px}' +
    '::-webkit-calendar-picker-indicator {display: none !important}' +
    (ring ? `:focus {outline: ${ring}px solid #06f !important}` : '');
document.head.append(style);
if (window.jQuery) jQuery.fx.off = true;
core.setDataMode(mode);
addEventListener('keydown', event => {
    const opens = [' ', 'Enter', 'F4'].includes(event.key) && ['date', 'time'].includes(event.target.type);
    if (opens) event.preventDefault();
}, true);
addEventListener('mousedown', event => {
    if (!['date', 'time'].includes(event.target.type)) return;
    event.preventDefault();
    event.target.blur();
    event.target.focus();
}, true);
const isChoice = event => event.target.matches?.('select[multiple] option');
addEventListener('mousedown', event => isChoice(event) && event.preventDefault(), true);
addEventListener('click', event => {
    if (!isChoice(event)) return;
    event.target.selected = !event.target.selected;
    event.target.dispatchEvent(new Event('change', {bubbles: true}));
}, true);
Math.seedrandom(seed);
core.startEpisodeReal();
clearTimeout(core.EP_TIMER);
window.episodeBegan = true;
return core.EPISODE_MAX_TIME / 1000;
"""
"""Starts the episode and returns the page's time limit in seconds.

A step shows its whole effect at once (no animations), and the page's clock is off: how fast the policy answers must not
decide about success. The cover that a page lays over itself at the end would hide the last observation. What has the
focus has a ring: a click on a button would leave no trace. What is typed into a date begins with its first part,
wherever it was touched. A tap marks or unmarks one of several choices: on a phone no key can be held. Lists open within
the page and calendars not at all: a window of its own, in which a browser shows them otherwise, is on no screenshot,
and a headless shell draws no frame as long as it is open.
"""

_STATE = """
const images = Promise.all([...document.images].map(image => image.decode().catch(() => null)));
const drawn = () => new Promise(next => requestAnimationFrame(() => setTimeout(next)));
const said = () => [core.getUtterance()].map(found => found.utterance ?? found)[0];
return images.then(drawn).then(() => window.episodeBegan
    ? {ended: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, utterance: said()}
    : null);
"""
"""What the page says about itself, once its images are there and a frame with all changes was drawn, which the next
screenshot then shows; null when it is no longer the page of the episode. Some pages' utterances come with fields."""

_SCROLL = """
const [x, y, dx, dy] = arguments;
const along = Math.abs(dx) > Math.abs(dy);
for (let box = document.elementFromPoint(x, y); box && box !== document.body; box = box.parentElement) {
    const style = getComputedStyle(box);
    if (!/auto|scroll/.test(along ? style.overflowX : style.overflowY)) continue;
    const before = [box.scrollLeft, box.scrollTop];
    box.scrollBy({left: along ? dx : 0, top: along ? 0 : dy, behavior: 'instant'});
    if (box.scrollLeft !== before[0] || box.scrollTop !== before[1]) break;
}
"""
"""Scrolls the innermost box at a point that can scroll that way, if there is one."""


_MENU_OPENS = """
const [x, y] = arguments;
const entry = document.elementFromPoint(x, y)?.closest('[aria-haspopup=true], [aria-haspopup=menu]');
const menu = entry?.parentElement.querySelector('[role=menu]');
if (!menu || menu.checkVisibility()) return false;
const until = performance.now() + 600;  // menus of jQuery open after half of that
return new Promise(answer => {
    const look = () => menu.checkVisibility() || performance.now() > until
        ? answer(menu.checkVisibility()) : setTimeout(look, 10);
    look();
});
"""
"""Whether the mouse, which lies at a point, opens the closed menu of an entry there without being pressed."""


class MiniwobEmulator:
    """One browser, reused over episodes and tasks. Fulfils ``Emulator``.

    Observations are the task's 160 x 210 pixels as PNG and its instruction as text. The reward is the page's own,
    without its discount for time and not below 0; some pages grade answers that are partly right. Only the full
    reward, 1.0, is a success.

    An episode has as many steps as the page gives people seconds, at most ``MAX_STEPS``: the pages know which of them
    take long.

    ``tap`` clicks; where that shows a menu before the button is pressed, it pushes nothing, as on phones. ``type``
    presses keys in the focused field, ``swipe`` scrolls where something under its start can scroll that way and does
    nothing elsewhere, ``drag`` drags, ``select`` clicks three times, which marks a paragraph, ``back``, ``home`` and
    ``wait`` do nothing, ``done`` and ``impossible`` give up. A page that was left (by a link, say) ends the episode
    without reward. A page that acts later, by a timer, shows it in a later step. A wrong click that ends the episode
    achieves the instruction that names what was clicked.
    """

    def __init__(self, focus_ring: int) -> None:
        """``focus_ring``: width in pixels of the ring around the focused element; 0: none of ours."""
        self._pages = html_folder()
        self._focus_ring = focus_ring
        self._chromium = Chromium(*_WINDOW)
        self._last = Observation()
        self._clicked = ClickedLabels()
        self._left = 0
        """Steps that the episode may still have."""

    def reset(self, task: Task, seed: int) -> Observation:
        page, self._clicked = self._chromium.page, ClickedLabels()
        with chromium_errors(f"load {task.id}"):
            # Anew each time: several pages keep something of the episode before, a scroll position for example.
            page.open((self._pages / f"{task.id}.html").as_uri())
            seconds = page.run(_BEGIN, seed, task.params.get("data_mode", "train"), self._focus_ring)
            self._left = min(MAX_STEPS, max(1, round(seconds)))
            state = page.run(_STATE, awaits_frame=True)
            if state is None:
                raise EmulatorError(f"page {task.id} did not start an episode")
            self._last = Observation(state["utterance"], _task_part(page.screenshot()))
        return self._last

    def labels(self) -> list[Label]:
        """Returns what the latest observation shows of the page, without the instruction."""
        with chromium_errors("name what is on the page"):
            return labels_of(self._chromium.page.run(LABELS, WIDTH, HEIGHT, "#query"))

    def step(self, action: Json) -> Transition:
        chosen = DeviceAction.from_json(action)
        if chosen.ends:
            return Transition(self._last, 0.0, terminated=True)
        page = self._chromium.page
        with chromium_errors(f"carry out {chosen.type}"):
            clicked = self._under(chosen)
            _carry_out(page, chosen)
            state = page.run(_STATE, awaits_frame=True)
            text = self._last.text if state is None else state["utterance"]
            self._last = Observation(text, _task_part(page.screenshot()))
        ended = state is None or state["ended"]
        self._left -= 1
        reward = min(1.0, max(0.0, state["reward"])) if state is not None and state["ended"] else 0.0
        success = reward >= _FULL
        missed = state is not None and ended and not success
        said = self._clicked.instruction(text, clicked) if missed and clicked else None
        achieved = [{"instruction": said}] if said else []
        late = not ended and self._left <= 0
        return Transition(self._last, reward, ended, truncated=late, success=success, achieved=achieved)

    def _under(self, action: DeviceAction) -> Clicked | None:
        """What a tap is about to click."""
        if action.type != "tap":
            return None
        return self._clicked.add(self._chromium.page.run(LABELS_AT, *_pixel(action.x, action.y)))

    def close(self) -> None:
        self._chromium.close()


def _carry_out(page: Page, action: DeviceAction) -> None:
    start, end = _pixel(action.x, action.y), _pixel(action.to_x, action.to_y)
    match action.type:
        case "tap":
            page.move(start)
            if not page.run(_MENU_OPENS, *start):
                page.press(start, start)
        case "swipe":
            # Content follows the finger: it scrolls towards where the finger came from.
            page.run(_SCROLL, *start, start[0] - end[0], start[1] - end[1])
        case "drag":
            page.press(start, end)
        case "select":
            page.press(start, start, clicks=3)
        case "type":
            page.type(action.text)
        case "enter":
            page.type("\n")


def miniwob_tasks(task: str | Sequence[str], split: str = "train") -> list[Task]:
    """The pages that ``task`` names, drawn from the page's own ``train`` or ``test`` distribution.

    Raises SettingsError for a page that does not exist, naming the nearest ones.
    """
    names = [name.strip() for name in (task.split(",") if isinstance(task, str) else task) if name.strip()]
    if not names:
        raise SettingsError("task names no MiniWoB++ page; click-test-2 is one")
    pages = _pages()
    chosen = pages if names == ["all"] else [_page(name, pages) for name in names]
    return [Task(id=page, params={"data_mode": split}) for page in chosen]


def _pages() -> list[str]:
    return sorted({page.stem for page in html_folder().glob("*.html")} - _TIMED)


def _page(name: str, pages: Sequence[str]) -> str:
    """``name`` without the decoration of the package's ids, as in ``miniwob/click-test-2-v1``."""
    bare = name.removeprefix("miniwob/").removesuffix("-v1")
    if bare in pages:
        return bare
    raise SettingsError(
        f"{name!r} is not a MiniWoB++ page{near_it(bare, pages)}; 'all' alone stands for all {len(pages)}"
    )


def html_folder() -> Path:
    """Where the package keeps its pages. It is only looked up: importing it would register 128 environments."""
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise SettingsError("the pages of MiniWoB++ are missing: pip install 'digirl_dist[miniwob]'")
    return Path(found.submodule_search_locations[0]) / "html" / "miniwob"


def _task_part(window: bytes) -> bytes:
    """The task's pixels as PNG. Cut here because Chromium needs 15 ms more to take part of a window than all of it."""
    return png(Image.open(io.BytesIO(window)).crop((0, 0, WIDTH, HEIGHT)).convert("RGB"))


def _pixel(x: float, y: float) -> tuple[int, int]:
    """The pixel under a point given in shares of the task's width and height."""
    return min(int(x * WIDTH), WIDTH - 1), min(int(y * HEIGHT), HEIGHT - 1)
