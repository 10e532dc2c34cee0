"""Which episodes are animated, what the animation shows, and that equal ones are stored once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from digirl_dist.child_process import environment
from digirl_dist.report import media
from digirl_dist.report.media import Frames, Media, animation, chosen, frames
from digirl_dist.storage.events import Events
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

ROOT = Path(__file__).resolve().parents[2]


def png(colour: str, size: tuple[int, int] = (32, 48)) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", size, colour).save(written, "png")
    return written.getvalue()


def episode(index: int, images: list[bytes | None], reward: float = 0.0) -> Trajectory:
    seen = [Observation("do it", image) for image in images]
    steps = [Step(each, 0, 0.0, 0.0, False, False) for each in seen[:-2]]
    steps.append(Step(seen[-2], 0, 0.0, reward, True, False))
    ticket = Ticket(3, index, Task("t"), 0, 0)
    return Trajectory(ticket, f"000003-{index}", "w", 0, steps, seen[-1], success=reward > 0)


EPISODES = [episode(number, [None, None], reward) for number, reward in enumerate([0.0, 1.0, 0.0, 3.0, 2.0])]


@pytest.mark.parametrize(
    ("rule", "indices"),
    [("none", []), ("failures", [0, 2]), ("all", [0, 1, 2, 3, 4]), ("top-2", [3, 4]), ("top-10", [3, 4, 1, 0, 2])],
)
def test_the_rule_chooses_among_the_episodes_of_an_iteration(rule: str, indices: list[int]) -> None:
    assert [trajectory.ticket.index for trajectory in chosen(EPISODES, rule)] == indices


def test_equal_screenshots_in_a_row_are_one_frame_shown_for_longer() -> None:
    red, blue = png("red"), png("blue")
    assert frames(episode(0, [red, red, blue, red])) == [(red, 1400), (blue, 700), (red, 1500)]
    assert frames(episode(0, [None, None])) == []


def test_the_animation_shows_every_frame_for_its_time() -> None:
    moving = Image.open(io.BytesIO(animation([(png("red"), 1400), (png("blue", (64, 64)), 700), (png("red"), 1500)])))
    assert (moving.format, moving.n_frames, moving.size) == ("WEBP", 3, (32, 48))
    shown, times = [], []
    for number in range(3):
        moving.seek(number)
        moving.load()
        red, _, blue = moving.convert("RGB").getpixel((16, 24))
        shown.append("red" if red > blue else "blue")
        times.append(moving.info["duration"])
    assert shown == ["red", "blue", "red"] and times == [1400, 700, 1500]


def written(folder: Path, *episodes: Trajectory) -> tuple[list[dict[str, Any]], list[Path], list[str]]:
    """The lines of the index, the animations, and what the events say went wrong."""
    heard: list[str] = []
    events = Events(folder / "events.jsonl", (lambda kind, content: heard.append(f"{kind} {content['reason']}"),))
    media = Media(folder / "media", "all", events)
    media.add(episodes)
    media.close()
    index = folder / "media" / "index.jsonl"
    lines = [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else []
    return lines, list((folder / "media").glob("*.webp")), heard


def test_episodes_that_look_the_same_share_a_file(tmp_path: Path) -> None:
    red, blue = png("red"), png("blue")
    lines, files, _ = written(tmp_path, episode(0, [red, blue]), episode(1, [red, blue], 1.0), episode(2, [blue, blue]))
    assert [(line["ticket"], line["success"]) for line in lines] == [(0, False), (1, True), (2, False)]
    assert lines[0]["file"] == lines[1]["file"] != lines[2]["file"] and len(files) == 2
    assert {path.name for path in files} == {line["file"] for line in lines}


@pytest.mark.parametrize(
    ("image", "reason"), [(b"no image", "cannot identify"), (png("red", (8000, 4000)), "8000 x 4000 pixels")]
)
def test_what_is_no_screenshot_is_told_and_harms_nothing(tmp_path: Path, image: bytes, reason: str) -> None:
    lines, files, heard = written(tmp_path, episode(0, [image, png("red")]), episode(1, [png("red"), png("red")]))
    assert [line["ticket"] for line in lines] == [1] and len(files) == 1
    assert len(heard) == 1 and heard[0].startswith("media_failed") and reason in heard[0]


def test_episodes_without_screenshots_leave_nothing(tmp_path: Path) -> None:
    assert written(tmp_path, episode(0, [None, None])) == ([], [], [])
    assert not (tmp_path / "media").exists()


class Slow:
    """Encodes as slowly as the test likes."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.encoded = 0

    def __call__(self, shown: Frames) -> bytes:
        self.gate.wait(60)
        self.encoded += 1
        return b"webp"


def test_episodes_that_come_faster_than_they_are_encoded_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue without bound holds the screenshots of a whole run."""
    slow, heard = Slow(), list[tuple[str, int]]()
    monkeypatch.setattr(media, "animation", slow)
    monkeypatch.setattr(media, "_CLOSE_S", 0.1)
    events = Events(tmp_path / "events.jsonl", (lambda kind, content: heard.append((kind, content["episodes"])),))
    made = Media(tmp_path / "media", "all", events)
    one = bytes(20 << 20)
    for iteration in range(10):
        made.add([episode(iteration, [one + bytes([iteration]), None])])
    assert heard == [("media_left_out", 1)] * 7
    made.close()  # Ctrl-C does not wait for the rest
    assert heard[7:] == [("media_left_out", 3)]
    slow.gate.set()


def test_an_animation_takes_bounded_memory_however_long_the_episode_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_MOST_PIXELS", 64 * 96)
    monkeypatch.setattr(media, "_MOST_FRAMES", 4)
    shown = [(png(("red", "blue")[number % 2], (64, 96)), 700) for number in range(8)]
    made = Image.open(io.BytesIO(animation(shown)))
    assert (made.n_frames, made.size) == (4, (32, 48))


@pytest.mark.component
def test_an_animation_that_does_not_end_does_not_hold_up_the_end_of_the_host(tmp_path: Path) -> None:
    """Ctrl-C while screenshots wait to be encoded."""
    program = f"""
import subprocess
import sys
import threading
from pathlib import Path
from digirl_dist.child_process import environment
from digirl_dist.report import media
from digirl_dist.storage.events import Events
from tests.report.test_media import episode, png
media._CLOSE_S = 0.1
began = threading.Event()
media.animation = lambda shown: (began.set(), threading.Event().wait())
folder = Path({str(tmp_path)!r})
made = media.Media(folder, "all", Events(folder / "events.jsonl"))
made.add([episode(number, [png("red"), png("blue")]) for number in range(9)])
began.wait()
try:
    raise KeyboardInterrupt
finally:
    made.close()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, env=environment(), cwd=ROOT
    )
    assert b"KeyboardInterrupt" in ended.stderr
    assert '"episodes": 9' in (tmp_path / "events.jsonl").read_text()
