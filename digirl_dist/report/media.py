"""Animations of episodes that a rule chooses, without duplicates: ``media/DIGEST.webp`` and ``media/index.jsonl``."""

from __future__ import annotations

import hashlib
import io
import math
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from digirl_dist.report.picture import UNREADABLE, decoded
from digirl_dist.storage import atomic_files, json_lines
from digirl_dist.storage.events import Events
from digirl_dist.threads import SerialQueue
from digirl_dist.trajectory import Trajectory

_FRAME_MS = 700
_LAST_FRAME_MS = 1500
_QUALITY = 80
_MOST_WAITING = 64 << 20
"""Bytes of screenshots that wait to be encoded; one episode may have more."""
_MOST_FRAMES = 500
_MOST_PIXELS = 1 << 25
"""Of all frames of an animation together: about a hundred MiB while it is made."""
_CLOSE_S = 5.0

Frames = list[tuple[bytes, int]]
"""Encoded screenshots, each with its duration in milliseconds."""


class Media:
    """Writes the episodes that ``rule`` (``none``, ``failures``, ``all``, ``top-3``) chooses, in its own thread.

    Animations only repeat the trajectories, so a failure to write one emits an event and has no other effect. So has
    one for which there is no room: encoding may be slower than collection.
    """

    def __init__(self, folder: Path, rule: str, events: Events) -> None:
        self._folder = folder
        self._rule = rule
        self._events = events
        self._jobs = SerialQueue("media", lambda error: events.emit("media_failed", episode=None, reason=str(error)))
        self._changed = threading.Condition()
        self._waiting: list[int] = []
        """Bytes of the screenshots of each episode that is not written yet."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Queues the chosen episodes without waiting, as far as there is room."""
        found = [(one, frames(one)) for one in chosen(trajectories, self._rule)]
        pictured = [(one, sum(len(image) for image, _ in shown)) for one, shown in found if shown]
        queued = [self._queue(trajectory, size) for trajectory, size in pictured]
        if left_out := queued.count(False):
            self._events.emit("media_left_out", episodes=left_out, reason="they come faster than they can be encoded")

    def close(self) -> None:
        """Waits for the queued episodes to be written, but not for long: an event names how many were not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _CLOSE_S)
            unwritten = len(self._waiting)
        self._jobs.close(at_once=True)
        if unwritten:
            self._events.emit("media_left_out", episodes=unwritten, reason=f"not encoded {_CLOSE_S:g} s after the end")

    def _queue(self, trajectory: Trajectory, size: int) -> bool:
        with self._changed:
            if self._waiting and sum(self._waiting) + size > _MOST_WAITING:
                return False
            self._waiting.append(size)
        self._jobs.do(partial(self._add, trajectory, size))
        return True

    def _add(self, trajectory: Trajectory, size: int) -> None:
        try:
            self._write(trajectory)
        except UNREADABLE as error:
            self._events.emit("media_failed", episode=trajectory.episode_id, reason=str(error))
        finally:
            with self._changed:
                self._waiting.remove(size)
                self._changed.notify()

    def _write(self, trajectory: Trajectory) -> None:
        shown = frames(trajectory)
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{_digest(shown)}.webp"
        if not path.exists():
            atomic_files.write_bytes(path, animation(shown), flushed=False)
        ticket = trajectory.ticket
        line = {
            "file": path.name,
            "iteration": ticket.iteration,
            "ticket": ticket.index,
            "episode_id": trajectory.episode_id,
            "task": ticket.task.id,
            "success": trajectory.success,
            "reward": trajectory.reward,
        }
        json_lines.append_object(self._folder / "index.jsonl", line)


def chosen(trajectories: Sequence[Trajectory], rule: str) -> list[Trajectory]:
    """Returns the episodes of an iteration that ``rule`` chooses; best first for ``top-3``."""
    match rule.partition("-"):
        case ("failures", _, _):
            return [trajectory for trajectory in trajectories if not trajectory.success]
        case ("all", _, _):
            return list(trajectories)
        case ("top", _, count):
            return sorted(trajectories, key=lambda trajectory: -trajectory.reward)[: int(count)]
        case _:
            return []


def frames(trajectory: Trajectory) -> Frames:
    """Returns the episode's screenshots; merges equal ones in a row into one of longer duration."""
    seen = [each.image for each in trajectory.observations]
    images = [image for image in seen if image is not None]
    found: Frames = []
    for number, image in enumerate(images, 1):
        shown_ms = _LAST_FRAME_MS if number == len(images) else _FRAME_MS
        if found and found[-1][0] == image:
            shown_ms += found.pop()[1]
        found.append((image, shown_ms))
    return found


def animation(shown: Frames) -> bytes:
    """Returns an animated WebP. Raises OSError, ValueError or SyntaxError for bytes that are no valid screenshot.

    All frames are in memory at once, so those of a long episode are made smaller, and of a very long one the first and
    the last are shown.
    """
    if len(shown) > _MOST_FRAMES:
        shown = [*shown[: _MOST_FRAMES - 1], shown[-1]]
    first, *others = [_frame(image, _MOST_PIXELS // len(shown)) for image, _ in shown]
    written = io.BytesIO()
    durations = [shown_ms for _, shown_ms in shown]
    fitting = [other if other.size == first.size else other.resize(first.size) for other in others]
    first.save(written, "WEBP", save_all=True, append_images=fitting, duration=durations, loop=0, quality=_QUALITY)
    return written.getvalue()


def _frame(image: bytes, most_pixels: int) -> Image.Image:
    frame = decoded(image)
    scale = math.sqrt(most_pixels / (frame.width * frame.height))
    if scale < 1:
        frame.thumbnail((max(1, int(frame.width * scale)), max(1, int(frame.height * scale))))
    return frame


def _digest(shown: Frames) -> str:
    """Returns a digest of the visible content, so that an episode that looks like another is not stored twice."""
    content = hashlib.sha256()
    for image, shown_ms in shown:
        content.update(hashlib.sha256(image).digest() + shown_ms.to_bytes(8, "big"))
    return content.hexdigest()[:32]
