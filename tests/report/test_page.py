"""The report page: what it shows, and that no run folder and no worker can break it."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from digirl_dist.report.charts import ticks
from digirl_dist.report.episodes import STEPS, caption
from digirl_dist.report.page import write_page
from digirl_dist.report.picture import embed
from digirl_dist.report.record import choose
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\0\ud800"
TAP = {"type": "tap", "x": 0.25, "y": 0.5}


class Page(HTMLParser):
    """The elements of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.source = path.read_text()
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str, css_class: str = "") -> int:
        return len([1 for name, has in self.elements if name == tag and css_class in (has.get("class") or "")])


def screenshot(size: tuple[int, int] = (90, 160), kind: str = "PNG") -> bytes:
    written = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(written, kind)
    return written.getvalue()


def phone_episode(index: int, success: bool, actions: list[Json], instruction: str = "open the clock") -> Trajectory:
    picture = screenshot()
    last = len(actions) - 1
    steps = [
        Step(Observation("", picture), action, -0.5, float(success and place == last), place == last, False)
        for place, action in enumerate(actions)
    ]
    ticket = Ticket(3, index, Task(f"task-{index}", instruction), 77 + index, 3)
    return Trajectory(ticket, f"episode-{index}", "10.0.0.3", 1, steps, Observation("", picture), success)


def cart_episode(steps: int) -> Trajectory:
    taken = [
        Step(Observation(vector=np.array([0.125, place, -1.0, 7.0])), 1, -0.7, 1.0, place == steps - 1, False)
        for place in range(steps)
    ]
    return Trajectory(
        Ticket(0, 0, Task("cart"), 5, 0), "cart", "local", 0, taken, Observation(vector=np.zeros(4)), True
    )


def line(iteration: int, **figures: Json) -> dict[str, Json]:
    return {"iteration": iteration, "episodes": 8, "success_rate": 0.25, "reward_mean": 0.5, "time": 1.8e9, **figures}


def write_lines(path: Path, lines: list[dict[str, Json]], torn: str = "") -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def write_episodes(run_folder: Path, episodes: list[Trajectory], iteration: int = 3) -> None:
    (run_folder / "trajectories").mkdir(exist_ok=True)
    parquet.write(run_folder / "trajectories" / f"{iteration:06d}.parquet", episodes)


def test_an_empty_run_folder_gives_a_page_that_says_so(tmp_path: Path) -> None:
    page = Page(write_page(tmp_path))
    assert "No iteration has been finished yet" in page.text
    assert "No episode is in the run folder yet" in page.text
    assert not (tmp_path / "report.html.part").exists()


def test_the_heading_tells_the_facts_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "emulator: {id: CartPole-v1}\ntrain_algorithm: digirl\nbsize: 4\ntrain_iterations: 9\n"
    )
    write_lines(tmp_path / "metrics.jsonl", [line(0, episodes_by_worker={"10.0.0.2": 3, "10.0.0.3": 5}), line(1)])
    text = Page(write_page(tmp_path)).text
    assert "emulator CartPole-v1" in text and "algorithm digirl" in text and "2 of 9" in text
    assert "episodes 16" in text and "2027-01-15" in text


def test_curves_have_a_point_for_each_iteration_and_tell_its_figures(tmp_path: Path) -> None:
    lines = [line(iteration, success_rate=iteration / 4, loss=1.0 / (1 + iteration)) for iteration in range(5)]
    write_lines(tmp_path / "metrics.jsonl", lines)
    page = Page(write_page(tmp_path))
    assert "iteration 3 success rate 0.75" in page.text
    assert "iteration 4 loss 0.2" in page.text
    path = next(has["d"] for tag, has in page.elements if tag == "path" and has["class"] == "line c1")
    heights = [float(point.split()[1]) for point in re.split("[ML]", path or "")[1:]]
    assert heights == sorted(heights, reverse=True) and len(set(heights)) == 5


def test_bars_add_up_to_the_seconds_of_the_iteration(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [line(0, collect_s=30.0, push_s=5.0, update_s=10.0, iteration_s=50.0)])
    page = Page(write_page(tmp_path))
    heights = [float(has["height"] or 0) for tag, has in page.elements if (has.get("class") or "").startswith("bar")]
    assert [height / sum(heights) for height in heights] == pytest.approx([0.5, 0.1, 0.2, 0.2], abs=1e-3)


def test_missing_null_and_absurd_figures_leave_gaps(tmp_path: Path) -> None:
    odd = [line(1, success_rate=None), {"iteration": 2}, line(3, reward_mean=float("nan"), collect_s=float("inf"))]
    odd += [line(4, reward_mean="much", success_rate=True), line(5, reward_mean=1e300), line(6, reward_mean=10**400)]
    write_lines(tmp_path / "metrics.jsonl", [line(0), *odd])
    page = Page(write_page(tmp_path))
    assert page.count("path", "line c1") >= 1
    assert not any("nan" in (value or "") for _, has in page.elements for value in has.values())


def test_torn_foreign_and_repeated_lines_do_no_harm(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "metrics.jsonl", [line(0), line(1), line(1, reward_mean=0.75)], '[1]\nnull\n{"iteration": 2, "su'
    )
    write_lines(tmp_path / "events.jsonl", [{"event": "worker_lost"}], '{"event": "worker_lo')
    (tmp_path / "metrics.jsonl").open("ab").write(b"\xff\xfe")
    page = Page(write_page(tmp_path))
    assert "2 iterations, newest first" in page.text and "mean reward 0.75" in page.text


def test_thousands_of_iterations_stay_a_small_page(tmp_path: Path) -> None:
    write_lines(tmp_path / "metrics.jsonl", [line(iteration, loss=1.0) for iteration in range(5000)])
    path = write_page(tmp_path)
    assert path.stat().st_size < 1_000_000
    text = Page(path).text
    assert "mean of 34 iterations" in text and "4800 older left out" in text


def test_an_unreadable_trajectory_file_is_named_and_the_one_before_is_shown(tmp_path: Path) -> None:
    write_episodes(tmp_path, [phone_episode(0, True, [TAP])])
    (tmp_path / "trajectories" / "000004.parquet").write_bytes(b"PAR1 torn")
    page = Page(write_page(tmp_path))
    assert "000004.parquet is not a trajectory file" in page.text
    assert page.count("article") == 1


def test_a_damaged_configuration_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("emulator: [1, 2\nx: }")
    assert "config.yaml is not valid" in Page(write_page(tmp_path)).text


def test_an_episode_tells_where_it_came_from(tmp_path: Path) -> None:
    write_episodes(tmp_path, [phone_episode(2, True, [TAP])])
    text = Page(write_page(tmp_path)).text
    for fact in ("✓ success", "open the clock", "task-2", "10.0.0.3 / slot 1", "version 3", "seed 79", "reward 1"):
        assert fact in text


def test_actions_are_drawn_where_they_happened(tmp_path: Path) -> None:
    swipe = {"type": "swipe", "x": 0.5, "y": 0.75, "to_x": 0.5, "to_y": 0.25}
    write_episodes(
        tmp_path, [phone_episode(0, True, [TAP, swipe, {"type": "type", "text": "pizza"}, {"type": "back"}])]
    )
    page = Page(write_page(tmp_path))
    ring = next(has for tag, has in page.elements if tag == "circle" and has["class"] == "ink")
    assert (float(ring["cx"] or 0), float(ring["cy"] or 0)) == (0.25 * 90, 0.5 * 160)
    arrow = next(has["d"] for tag, has in page.elements if tag == "path" and has["class"] == "ink")
    assert (arrow or "").startswith("M45.0 120.0L45.0 40.0M")
    assert page.count("rect", "banner") == 2 and "⌨ pizza" in page.text
    assert page.count("figure", "frame") == 5


def test_long_episodes_show_beginning_and_end_and_count_the_rest(tmp_path: Path) -> None:
    write_episodes(tmp_path, [phone_episode(0, False, [TAP] * 25)])
    page = Page(write_page(tmp_path))
    assert page.count("figure", "frame") == STEPS + 1
    assert "15 steps left out" in page.text and "step 24: tap" in page.text


def test_vectors_become_curves_and_numbers(tmp_path: Path) -> None:
    write_episodes(tmp_path, [cart_episode(40)], iteration=0)
    page = Page(write_page(tmp_path))
    assert page.count("figure", "frame") == 0
    assert "step 17 [0] 0.125 [1] 17" in page.text
    assert "[0.125, 39, -1, 7]" in page.text and "30 in the middle left out" in page.text


def test_a_page_of_twelve_episodes_costs_what_twelve_episodes_cost(tmp_path: Path) -> None:
    """Of a large iteration no more is read than is shown."""
    read = []

    def episodes() -> Iterator[Trajectory]:
        for number in range(1000):
            read.append(number)
            yield phone_episode(number, number % 2 == 0, [TAP])

    assert len(choose(episodes(), 12)) == 12 and len(read) == 12
    (tmp_path / "trajectories").mkdir()
    large = [
        replace(phone_episode(number, number % 2 == 0, [TAP]), final_observation=Observation("", os.urandom(1 << 20)))
        for number in range(120)
    ]
    parquet.write(tmp_path / "trajectories" / "000003.parquet", large)
    tracemalloc.start()
    try:
        write_page(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_failed_and_successful_episodes_are_mixed(tmp_path: Path) -> None:
    episodes = [phone_episode(index, index < 20, [TAP]) for index in range(23)]
    assert [one.success for one in choose(episodes, 12)] == [False] * 3 + [True] * 9
    assert [one.success for one in choose(episodes[10:], 4)] == [False] * 2 + [True] * 2
    assert choose([], 12) == []
    write_episodes(tmp_path, episodes)
    page = Page(write_page(tmp_path, episodes=5))
    assert page.count("article") == 5 and "5 episodes of iteration 3" in page.text


def test_nothing_a_worker_says_becomes_markup(tmp_path: Path) -> None:
    text = HOSTILE.replace("\ud800", "")  # Arrow refuses lone surrogates; JSON lines do not
    actions: list[Json] = [{"type": "type", "text": text}, {text: text}, text, {"type": ["tap"]}]
    clean = phone_episode(0, False, actions, text)
    ticket = Ticket(3, 0, Task(text, text), 1, 1)
    hostile = Trajectory(ticket, text, text, 0, clean.steps, Observation(text, text.encode()), False)
    seen = Step(Observation(text), text, 0.0, 0.0, True, False)
    wordy = Trajectory(ticket, "wordy", text, 0, [seen], Observation(text), False)
    write_episodes(tmp_path, [hostile, wordy])
    write_lines(tmp_path / "metrics.jsonl", [line(i, **{HOSTILE: 1.0, "success_rate": HOSTILE}) for i in range(2)])
    event = {"event": "worker_lost", "worker": HOSTILE, "reason": HOSTILE, "slot": HOSTILE, "time": HOSTILE}
    write_lines(tmp_path / "events.jsonl", [event, {**event, "event": HOSTILE}, {"event": ["worker_lost"]}])
    (tmp_path / "config.yaml").write_text(json.dumps({"emulator": {"id": text}, "bsize": text, "seed": [text]}))
    page = Page(write_page(tmp_path))
    assert page.count("script") == 0 and page.count("article") == 2
    assert not any(tag == "img" or name.startswith("on") for tag, has in page.elements for name in has)
    assert "<script>alert(1)</script>" in page.text


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    write_episodes(tmp_path, [phone_episode(0, True, [TAP])])
    page = Page(write_page(tmp_path))
    targets = [value or "" for _, has in page.elements for name, value in has.items() if name in ("href", "src")]
    assert targets and all(target.startswith("data:image/") for target in targets)
    assert "@import" not in page.source and "url(" not in page.source


def test_the_newest_troubles_are_told_and_older_ones_counted(tmp_path: Path) -> None:
    quiet = [
        {"time": 1.8e9, "event": "episode", "worker": "a"},
        {"time": 1.8e9, "event": "worker_joined", "worker": "a"},
    ]
    lost = [{"time": 1.8e9 + k, "event": "worker_lost", "worker": "a", "reason": f"reason-{k}."} for k in range(30)]
    write_lines(tmp_path / "events.jsonl", [*quiet, *lost, {"event": "worker_joined", "worker": "a"}])
    text = Page(write_page(tmp_path)).text
    assert "11 older left out" in text and "back again" in text
    assert "reason-29." in text and "reason-10." not in text


def test_large_screenshots_are_made_small() -> None:
    large = screenshot((1080, 2400))
    shown = embed(large)
    assert shown is not None and (shown.width, shown.height) == (216, 480)
    assert len(shown.uri) < 60_000 < len(large)


@pytest.mark.parametrize("image", [b"", b"<svg onload='alert(1)'/>", screenshot()[:300], screenshot(kind="GIF")])
def test_what_is_no_screenshot_is_not_embedded(image: bytes) -> None:
    assert embed(image) is None


def test_a_screenshot_of_absurd_size_is_not_decoded() -> None:
    written = io.BytesIO()
    Image.new("1", (5_000, 4_000)).save(written, "PNG")
    assert embed(written.getvalue()) is None


def test_captions_say_the_action() -> None:
    assert caption(TAP) == "tap 0.25, 0.50"
    assert caption({"type": "home"}) == "home"
    assert caption(3) == "action 3"
    assert caption({"type": "tap", "x": 7}) == 'action {"type": "tap", "x": 7}'


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-3, 7, [-2, 0, 2, 4, 6]), (0, 480, [0, 100, 200, 300, 400]), (5, 5.5, 6)],
)
def test_ticks_are_round_numbers_within_the_axis(low: float, high: float, expected: list[float] | int) -> None:
    found = ticks(low, high)
    assert len(found) == expected if isinstance(expected, int) else found == pytest.approx(expected)


@pytest.mark.component
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """Headless Chromium lays it out and finds the episode, with the CSS and the picture in force."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("chromium is not on PATH")
    write_lines(tmp_path / "metrics.jsonl", [line(0), line(1)])
    write_episodes(tmp_path, [phone_episode(0, True, [TAP])])
    page, picture = write_page(tmp_path), tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    flags += [f"--screenshot={picture}", "--window-size=1000,1800"]
    subprocess.run([browser, *flags, page.as_uri()], check=True, timeout=60, capture_output=True)
    with Image.open(picture) as seen:
        pixels = np.asarray(seen.convert("RGB")).reshape(-1, 3).astype(int)
    ink = np.abs(pixels - [0xE5, 0x27, 0x7B]).max(axis=1) < 12
    assert ink.sum() > 100, "the ring of the tap is not to be seen"


def test_success_per_task_is_shown_worst_first_and_what_is_no_count_is_passed_over(tmp_path: Path) -> None:
    hostile: Json = {"open": [1, 2], HOSTILE: [0, 1], "text": "much", "short": [1], "wrong": [True, 2.5]}
    lines = [line(0, success_by_task={"open": [0, 4]}, entropy=1.25), line(1, success_by_task=hostile, entropy=1.0)]
    write_lines(tmp_path / "metrics.jsonl", [*lines, line(2, success_by_task=[3])])
    page = Page(write_page(tmp_path))
    assert "1 of 2 tasks succeeded at least once" in page.text and "Entropy of the policy" in page.text
    assert page.text.index("alert(1)") < page.text.index("open 0/4 1/2") and "<script>" not in page.source
