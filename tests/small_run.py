"""A run folder as a run leaves it, in a second: real checkpoints and updates, drawn screenshots, chosen outcomes."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from image_files import encoded
from PIL import Image, ImageDraw

from digirl_dist.api.training import compose
from digirl_dist.assembly.parts import agent_plugin, build_algorithm, build_device
from digirl_dist.assembly.policy import describe_policy
from digirl_dist.collection import CollectionResult
from digirl_dist.settings import configuration
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trainer.inprocess import InProcessTrainer
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json

TASKS = ("open the clock", "open the notes", "play a song")
WORKERS = ("10.0.0.2", "10.0.0.3")
STARTED_AT = 1.8e9
_GROUP = 2


def screenshot(number: int, size: tuple[int, int] = (108, 192)) -> bytes:
    """A screen that differs from the one before in a few places."""
    picture = Image.new("RGB", size, (238, 241, 246))
    pen = ImageDraw.Draw(picture)
    for place in range(6):
        left, top = 10 + place % 3 * 32, 30 + place // 3 * 60
        pen.rounded_rectangle((left, top, left + 24, top + 24), 5, fill=(40 + 30 * place, 90, 200 - 20 * place))
    pen.rectangle((0, 0, size[0], 12 + 4 * number), fill=(30, 60 + 20 * (number % 8), 110))
    return encoded(picture)


def episode(iteration: int, index: int, success: bool, steps: int = 3, words: str | None = None) -> Trajectory:
    """``words`` stand in every text that a worker or an agent may choose."""
    task = TASKS[index // _GROUP % len(TASKS)]
    taken = [
        Step(
            Observation(words or task, screenshot(number)),
            _action(number, words),
            -1.25,
            float(success and number == steps - 1),
            number == steps - 1,
            False,
        )
        for number in range(steps)
    ]
    ticket = Ticket(iteration, index, Task(words or task, words or task), 100 * iteration + index // _GROUP, iteration)
    worker = words or WORKERS[index % len(WORKERS)]
    last = Observation(words or task, screenshot(steps))
    return Trajectory(ticket, words or f"{iteration}-{index}", worker, index % 2, taken, last, success)


def make_run(folder: Path, iterations: int = 3, episodes: int = 6, seed: int = 0, **settings: Any) -> Path:
    """Trains a tiny device policy with real updates. Of ticket k of iteration i, i + k % 2 decides about success.

    The second run of the same settings in a process is a copy of the first.
    """
    made = _made(iterations, episodes, seed, json.dumps(settings))
    shutil.copytree(made, folder, symlinks=True)
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace(f"save_path: {made}", f"save_path: {folder}"))
    return folder


@cache
def _made(iterations: int, episodes: int, seed: int, settings: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="digirl-dist-small-run-"))
    maker = os.getpid()
    atexit.register(lambda: os.getpid() == maker and shutil.rmtree(folder))  # not at the end of a forked child
    composed = compose(
        "host", {"agent": {"name": "device", "width": 8}, "seed": seed, "dry_run": True, **json.loads(settings)}
    )
    composed = replace(composed, save_path=str(folder), train_iterations=iterations, rollout_size=episodes)
    device = build_device(composed, composed.emulator)
    (folder / "config.yaml").write_text(configuration.to_yaml(composed))
    checkpoints = Checkpoints(folder / "checkpoints", policy=describe_policy(composed, device.spec))
    agent, algorithm = agent_plugin(composed).build(device.spec), build_algorithm(composed, device)
    trainer = InProcessTrainer(agent, algorithm, checkpoints, 64, seed)
    checkpoint, store = trainer.resume(), Store(folder / "trajectories")
    for iteration in range(iterations):
        found = [episode(iteration, index, (index + seed) % 4 < iteration) for index in range(episodes)]
        store.append(CollectionResult(iteration, found))
        checkpoint = trainer.update(checkpoint, store).checkpoint
        write_lines(folder, iteration, found)
    return folder


def write_lines(folder: Path, iteration: int, episodes: Sequence[Trajectory]) -> None:
    """What an iteration leaves in metrics.jsonl and events.jsonl; the second worker is lost in iteration 1."""
    began = STARTED_AT + 30 * iteration
    append(folder / "metrics.jsonl", figures(iteration, episodes, began + 30))
    told: list[dict[str, Json]] = [{"time": began + 1, "event": "pushed", "worker": one} for one in WORKERS]
    if iteration == 1:
        told.append({"time": began + 9, "event": "worker_lost", "worker": WORKERS[1], "reason": "silent for 14 s"})
        ran_again = {"iteration": 1, "ticket": 3, "purpose": "train", "reason": "the emulator hung"}
        told.append({"time": began + 10, "event": "episode_retried", **ran_again})
    for one in episodes:
        told.append(landed(one, began + 12 + one.ticket.index))
    for event in told:
        append(folder / "events.jsonl", event)


def landed(one: Trajectory, at: float) -> dict[str, Json]:
    key = {"iteration": one.ticket.iteration, "ticket": one.ticket.index, "purpose": one.ticket.purpose}
    return {"time": at, "event": "episode", "worker": one.worker, **key, "success": one.success, "attempt": 0}


def figures(iteration: int, episodes: Sequence[Trajectory], at: float) -> dict[str, Json]:
    share = sum(one.success for one in episodes) / len(episodes)
    slow = {"boot": 1.0, "reset": 2.0, "step": 12.0, "policy": 3.0, "barrier": 2.0, "away": 10.0 * (iteration == 1)}
    quick = {"boot": 1.0, "reset": 2.0, "step": 22.0, "policy": 3.0, "barrier": 2.0}
    times = {"collect_s": 24.0, "push_s": 2.0, "update_s": 3.0, "iteration_s": 30.0, "overhead_s": 1.0}
    spent = {"slot_seconds_by_worker": {WORKERS[0]: quick, WORKERS[1]: slow}, "emulator_busy": 0.8}
    results = {"episodes": len(episodes), "success_rate": share, "reward_mean": share, "steps_mean": 3.0}
    return {"iteration": iteration, "time": at, **results, **times, **spent, "actor_loss": 1 / (1 + iteration)}


def append(path: Path, line: dict[str, Json]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _action(number: int, words: str | None) -> Json:
    if words is not None:
        return {"type": "type", "text": words, "said": words}
    swipe = {"type": "swipe", "x": 0.5, "y": 0.75, "to_x": 0.5, "to_y": 0.25}
    return swipe if number == 1 else {"type": "tap", "x": 0.25, "y": 0.25 + 0.1 * (number % 5)}
