"""The viewer on a run of 100,000 episodes, in Chromium: first paint, a filter, an episode, and the server's memory.

Each time is that of the page, from the event to the frame in which its effect stands, the median of some rounds; of an
episode it ends when all its screenshots are decoded, which weigh as much as the demo phone's.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import median, rounded, show, stage
from digirl_dist.settings import configuration
from digirl_dist.storage import parquet
from digirl_dist.tasks import Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory
from tests.viewer_site import Browser

FILES, EPISODES, HEAVY, ROUNDS = sized((1000, 100, 50, 15), (4, 6, 2, 2))
STEPS, WORKERS, TASKS = 8, 16, 12
_PAINTED = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"
_FILTER = f"""return (async () => {{
  const field = document.querySelector(arguments[0]), began = performance.now();
  field.checked = true;
  field.value = arguments[1];
  field.dispatchEvent(new Event("input", {{ bubbles: true }}));
  {_PAINTED}
  return (performance.now() - began) / 1000;
}})();"""
_EPISODE = f"""return (async () => {{
  const began = performance.now();
  const shots = () => [...document.querySelectorAll(".stage img.shot, .film img.shot")];
  const shown = (shot) => shot.src.includes(arguments[1]) && shot.naturalWidth;
  location.hash = arguments[0];
  while (shots().length !== {STEPS + 2} || !shots().every(shown)) {_PAINTED}
  await Promise.all(shots().map((shot) => shot.decode()));
  {_PAINTED}
  return (performance.now() - began) / 1000;
}})();"""


def main() -> None:
    with stage() as here:
        folder = here.folder / "large"
        with waiting_for(f"{FILES} files to be written"):
            write(folder)
        with server(folder) as (process, url):
            figures = look(url)
            memory = process.memory_info().rss / 1e6
            cpu = process.cpu_times()
    goals = {"first_paint_s": "<=1", "filter_s": "<=0.2", "episode_s": "<=0.2"}
    values = {name: (median(figures[name]), goal) for name, goal in goals.items()}
    worst = {f"{name}_all": rounded(sorted(times)) for name, times in figures.items()}
    detail = {"episodes": FILES * EPISODES, "files": FILES, "server_cpu_s": round(cpu.user + cpu.system, 2), **worst}
    show("viewer", {**values, "server_mb": (memory, "<=300")}, detail)


def look(url: str) -> dict[str, list[float]]:
    """Returns the seconds that a person waits, of each round."""
    browser = Browser(url)
    try:
        found: dict[str, list[float]] = {"first_paint_s": [], "filter_s": [], "episode_s": []}
        with waiting_for("the first paint"):
            painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            found["first_paint_s"].append(browser.wait(painted) / 1000)
        with waiting_for("all files to be read"):
            browser.go("#/episodes")
            browser.says(f"{FILES * EPISODES:,} of {FILES * EPISODES:,} episodes, ")
            browser.wait("!document.querySelector('#main').innerText.includes('reading more')")
        for number in range(ROUNDS):
            with waiting_for(f"round {number} of {ROUNDS}"):
                browser.go("#/episodes")
                for field, value in filters(number):
                    found["filter_s"].append(browser.page.run(_FILTER, field, value))
                key = f"t{number * HEAVY % FILES}.{(number * 37 + 5) % EPISODES}"
                found["episode_s"].append(browser.page.run(_EPISODE, f"#/episode/large/{key}", f"key={key}&"))
        return found
    finally:
        browser.close()


def filters(number: int) -> Iterator[tuple[str, str]]:
    """Yields fields with what to enter, one after the other."""
    yield "#f-text", f"number {number % TASKS}"
    yield "#f-text", ""
    yield "#f-worker", f"10.0.0.{number % WORKERS}"
    yield "#o-failure", "failure"


@contextmanager
def server(folder: Path) -> Iterator[tuple[psutil.Process, str]]:
    """Yields the process of ``digirl-dist view`` and its address."""
    command = [sys.executable, "-m", "digirl_dist.cli", "view", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield psutil.Process(started.pid), started.stdout.readline().split()[-1]
        finally:
            started.terminate()


def write(folder: Path) -> None:
    """Writes the run folder."""
    (folder / "trajectories").mkdir(parents=True)
    composed = configuration.load("config/multimachine", "host", ["dry_run=true"])
    (folder / "config.yaml").write_text(configuration.to_yaml(composed))
    light, heavy = (_episodes([_screenshot(k, size) for k in range(40)]) for size in ((54, 96), (216, 384)))
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "events.jsonl").open("w") as events:
        for iteration in range(FILES):
            drawn = heavy if iteration % HEAVY == 0 else light
            made = [_of(one, iteration) for one in drawn]
            parquet.write(folder / "trajectories" / f"{iteration:06d}.parquet", made, flushed=False)
            share = sum(one.success for one in made) / EPISODES
            figures = {"iteration": iteration, "time": 1.8e9 + iteration, "success_rate": share, "episodes": EPISODES}
            metrics.write(json.dumps({**figures, **{f"figure_{k}": share / (k + 1) for k in range(30)}}) + "\n")
            for one in made:
                told = {"event": "episode", "time": 1.8e9 + iteration + one.ticket.index / 1000, "worker": one.worker}
                key = {"iteration": iteration, "ticket": one.ticket.index, "purpose": "train", "attempt": 0}
                events.write(json.dumps({**told, **key}) + "\n")


def _of(one: Trajectory, iteration: int) -> Trajectory:
    number = one.ticket.index
    ticket = replace(one.ticket, iteration=iteration, policy_version=iteration, seed=iteration * 1000 + number // 4)
    success = (number * 7919 + iteration * 104729) % FILES < iteration
    return replace(one, ticket=ticket, episode_id=f"large-{iteration}-{number}", success=success)


def _episodes(seen: list[bytes]) -> list[Trajectory]:
    made = []
    for number in range(EPISODES):
        task = Task(f"task-{number % TASKS}", f"Open the app number {number % TASKS}")
        views = [Observation(task.instruction, seen[(number + step) % len(seen)]) for step in range(STEPS + 1)]
        touch = {"type": "tap", "x": 0.5, "y": 0.25, "said": "This opens it."}
        steps = tuple(Step(views[at], touch, -1.5, 0.0, at == STEPS - 1, False) for at in range(STEPS))
        ticket = Ticket(0, number, task, 0, 0)
        made.append(Trajectory(ticket, "", f"10.0.0.{number % WORKERS}", number % 8, steps, views[-1], False))
    return made


def _screenshot(number: int, size: tuple[int, int]) -> bytes:
    """Returns a PNG of about 0.15 bytes a pixel, as the demo phone's are."""
    rng = np.random.default_rng(number)
    pixels = np.full((size[1], size[0], 3), 230, np.uint8)
    busy = pixels[: size[1] // 16]
    busy[:] = rng.integers(0, 255, busy.shape, np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG")
    return written.getvalue()


if __name__ == "__main__":
    measure(main, minutes=15)
