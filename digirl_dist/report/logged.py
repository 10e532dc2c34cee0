"""What loggers are given: figures under grouped names, episodes as rows, and pictures of some of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image, ImageDraw

from digirl_dist.emulator.touch_actions import DeviceAction
from digirl_dist.errors import ActionError
from digirl_dist.plain_text import one_line
from digirl_dist.report.loggers import plain_names
from digirl_dist.report.metrics import Figures
from digirl_dist.report.picture import UNREADABLE, decoded
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_GROUPS = {
    "learning": "success_rate reward_mean reward_max steps_mean entropy episodes policy_version global_step "
    "eval_reward_mean eval_success_rate episode_reward_avg_100 episode_length_avg_100",
    "time": "collect_s push_s update_s overhead_s iteration_s judge_wait_s in_time_s_mean carried_in_s_mean",
    "fleet": "emulator_busy collect_busy push_bytes pull_bytes episodes_retried workers_lost set_aside cancelled "
    "world_size",
    "data": "staleness_mean staleness_max carried_in carried_over carried_in_steps_mean in_time_steps_mean too_old "
    "episodes_refused relabelled_share",
}
_GROUP = {name: group for group, names in _GROUPS.items() for name in names.split()}
_NO_CURVES = ("iteration", "time", "purpose", "checkpoint")
_MOST_TASKS = 50
_LARGEST = float(np.finfo(np.float32).max)
"""TensorBoard's curves are of float32."""
_MOST_ROWS = 1000
_FRAMES = 8
_HEIGHT = 240
_COLOURS = 64


def tags(figures: Figures) -> dict[str, float]:
    """Returns figures that are numbers of float32 by ``group/name``; what the algorithm adds is ``algorithm/…``."""
    found: dict[tuple[str, ...], Json] = {}
    for name, value in figures.items():
        match name:
            case "slot_seconds":
                found |= {("slots", f"{activity}_s"): seconds for activity, seconds in value.items()}
            case "success_by_task" if len(value) <= _MOST_TASKS:
                found |= {("tasks", task): won / of for task, (won, of) in value.items() if of}
            case "episodes_by_worker":
                found["fleet", "workers"] = sum(count > 0 for count in value.values())
            case _ if name not in _NO_CURVES:
                found[tuple(name.split("/")) if "/" in name else (_GROUP.get(name, "algorithm"), name)] = value
    numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    return plain_names({name: value for name, value in numbers.items() if abs(value) <= _LARGEST})


def rows(trajectories: Sequence[Trajectory], with_pictures: bool) -> list[dict[str, Json]]:
    """Returns a row per episode; with pictures, that of one success and one failure."""
    drawn: set[bool] = set() if with_pictures else {True, False}
    found = []
    for trajectory in trajectories[:_MOST_ROWS]:
        row = _row(trajectory)
        if trajectory.success not in drawn and (picture := film(trajectory)) is not None:
            drawn.add(trajectory.success)
            row["picture"] = base64.b64encode(picture).decode()
        found.append(row)
    return found


def film(trajectory: Trajectory) -> bytes | None:
    """Returns screens of the episode side by side as PNG, with touch points; None without screens that can be shown."""
    try:
        frames = list(_frames(trajectory))
    except UNREADABLE:
        return None
    if not frames:
        return None
    strip = Image.new("RGB", (sum(frame.width for frame in frames) + 4 * (len(frames) - 1), _HEIGHT), "white")
    left = 0
    for frame in frames:
        strip.paste(frame, (left, 0))
        left += frame.width + 4
    written = io.BytesIO()
    strip.quantize(_COLOURS).convert("RGB").save(written, "PNG", optimize=True)
    return written.getvalue()


def _row(trajectory: Trajectory) -> dict[str, Json]:
    ticket = trajectory.ticket
    return {
        "iteration": ticket.iteration,
        "ticket": ticket.index,
        "task": one_line(ticket.task.id),
        "instruction": one_line(ticket.task.instruction),
        "success": trajectory.success,
        "reward": trajectory.reward,
        "steps": len(trajectory.steps),
        "worker": one_line(trajectory.worker),
        "policy_version": ticket.policy_version,
        "episode_id": trajectory.episode_id,
    }


def _frames(trajectory: Trajectory) -> Iterator[Image.Image]:
    """Yields evenly chosen screens, the last one without an action. They come from a worker: see ``decoded``."""
    seen: list[tuple[bytes | None, Json]] = [(step.observation.image, step.action) for step in trajectory.steps]
    shown = [(image, action) for image, action in [*seen, (trajectory.final_observation.image, None)] if image]
    last = len(shown) - 1
    chosen = sorted({round(k * last / (_FRAMES - 1)) for k in range(_FRAMES)}) if last >= 0 else []
    for image, action in (shown[place] for place in chosen):
        frame = decoded(image)
        frame = frame.resize((max(1, min(2 * _HEIGHT, frame.width * _HEIGHT // frame.height)), _HEIGHT))
        _mark(frame, action)
        yield frame


def _mark(frame: Image.Image, action: Json) -> None:
    """Draws where the action touches the screen."""
    try:
        touched = DeviceAction.from_json(action)
    except (ActionError, TypeError):
        return
    if "x" in DeviceAction.FIELDS.get(touched.type, ()):
        x, y, size = touched.x * frame.width, touched.y * frame.height, _HEIGHT / 24
        ImageDraw.Draw(frame).ellipse((x - size, y - size, x + size, y + size), outline="red", width=3)
