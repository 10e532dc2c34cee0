"""Animations of episodes that a rule chooses, without duplicates: ``media/DIGEST.webp`` and ``media/index.jsonl``."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from digirl_dist.report.picture import UNREADABLE, decoded
from digirl_dist.storage import atomic_files, json_lines
from digirl_dist.storage.events import Events
from digirl_dist.trajectory import Trajectory

_FRAME_MS = 700
_LAST_FRAME_MS = 1500
_QUALITY = 80

Frames = list[tuple[bytes, int]]
"""Encoded screenshots, each with its duration in milliseconds."""


class Media:
    """Writes the episodes that ``rule`` (``none``, ``failures``, ``all``, ``top-3``) chooses, in its own thread.

    Animations only repeat the trajectories, so a failure to write one emits an event and has no other effect.
    """

    def __init__(self, folder: Path, rule: str, events: Events) -> None:
        self._folder = folder
        self._rule = rule
        self._events = events
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="media")

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Queues the chosen episodes without waiting."""
        for trajectory in chosen(trajectories, self._rule):
            self._pool.submit(self._add, trajectory)

    def close(self) -> None:
        """Waits until all queued episodes are written."""
        self._pool.shutdown()

    def _add(self, trajectory: Trajectory) -> None:
        try:
            self._write(trajectory)
        except UNREADABLE as error:
            self._events.emit("media_failed", episode=trajectory.episode_id, reason=str(error))

    def _write(self, trajectory: Trajectory) -> None:
        shown = frames(trajectory)
        if not shown:
            return
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
    seen = [step.observation.image for step in trajectory.steps] + [trajectory.final_observation.image]
    images = [image for image in seen if image is not None]
    found: Frames = []
    for number, image in enumerate(images, 1):
        shown_ms = _LAST_FRAME_MS if number == len(images) else _FRAME_MS
        if found and found[-1][0] == image:
            shown_ms += found.pop()[1]
        found.append((image, shown_ms))
    return found


def animation(shown: Frames) -> bytes:
    """Returns an animated WebP. Raises OSError, ValueError or SyntaxError for bytes that are no valid screenshot."""
    first, *others = [decoded(image) for image, _ in shown]
    written = io.BytesIO()
    durations = [shown_ms for _, shown_ms in shown]
    fitting = [other if other.size == first.size else other.resize(first.size) for other in others]
    first.save(written, "WEBP", save_all=True, append_images=fitting, duration=durations, loop=0, quality=_QUALITY)
    return written.getvalue()


def _digest(shown: Frames) -> str:
    """Returns a digest of the visible content, so that an episode that looks like another is not stored twice."""
    content = hashlib.sha256()
    for image, shown_ms in shown:
        content.update(hashlib.sha256(image).digest() + shown_ms.to_bytes(8, "big"))
    return content.hexdigest()[:32]
