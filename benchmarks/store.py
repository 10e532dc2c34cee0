"""A run of 1,000,000 episodes against one of 1,000: what it costs to open it, and to append an iteration.

The files of all iterations but the newest are names of one and the same file, since nothing may read them; whatever
counts, lists or scans them pays for a million episodes. Metrics and events have a line for each iteration and episode.
"""

from __future__ import annotations

import gc
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measure import measure, sized, waiting_for
from benchmarks.stage import rounded, show, stage
from digirl_dist.collect.lease_ledger import LeaseLedger
from digirl_dist.collection import CollectionResult
from digirl_dist.report.metrics import Metrics, results
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Round, Task, Ticket
from digirl_dist.trajectory import Observation, Step, Trajectory

EPISODES, SMALL, LARGE, ROUNDS = sized((250, 1_000, 1_000_000, 9), (10, 40, 200, 2))
STEPS, REPLAYED, GENUINE = 8, 4 * EPISODES, 4
_FIGURES = {f"figure_of_an_update_{number:02d}": number / 7 for number in range(60)}
_EVENT = {"event": "episode", "worker": "w00", "purpose": "train", "success": True, "reward": 1.0, "attempt": 0}


def main() -> None:
    with stage() as here:
        runs = [here.folder / "small", here.folder / "large"]
        for root, episodes in zip(runs, (SMALL, LARGE), strict=True):
            with waiting_for(f"a run of {episodes} episodes to be written"):
                _write(root, episodes // EPISODES)
        opened: list[list[float]] = [[], []]
        appended: list[list[float]] = [[], []]
        for number in range(ROUNDS):
            with waiting_for(f"round {number} of {ROUNDS}"):
                for place in (0, 1) if number % 2 else (1, 0):
                    gc.collect()  # what the one leaves is not the other's to clear away
                    open_s, append_s = _go_on(runs[place], (SMALL, LARGE)[place] // EPISODES + number)
                    opened[place].append(open_s)
                    appended[place].append(append_s)
        ratios = [median(large) / median(small) for small, large in (opened, appended)]
        detail = {"episodes": [SMALL, LARGE], "of_an_iteration": EPISODES, "rounds": ROUNDS}
        seconds = {"open_cpu_s": rounded(map(median, opened)), "append_cpu_s": rounded(map(median, appended))}  # type: ignore[arg-type]
        show("store", {"open": (ratios[0], "<=1.2"), "append": (ratios[1], "<=1.2")}, {**detail, **seconds})


def _go_on(root: Path, iteration: int) -> tuple[float, float]:
    """Opens the run as a host does that continues it, and appends an iteration; processor seconds of both."""
    started = time.process_time()
    folder = RunFolder(root, "")
    store, metrics, events = Store(folder.trajectories), Metrics(folder.metrics), Events(folder.events)
    metrics.keep_until(iteration)
    LeaseLedger(folder.leases).known()
    assert not store.landed(Round(iteration)) and not store.is_closed(Round(iteration))
    assert len(store.replay(iteration - 1, REPLAYED)) == REPLAYED
    opened = time.process_time()
    episodes = _episodes(iteration)
    began = time.process_time()
    store.append(CollectionResult(iteration, episodes))
    metrics.append(results(iteration, episodes))
    for episode in episodes:
        events.emit("episode", iteration=iteration, ticket=episode.ticket.index)
    assert len(store.replay(iteration, REPLAYED)) == REPLAYED
    took_s = time.process_time() - began
    events.close()
    folder.close()
    return opened - started, took_s


def _write(root: Path, iterations: int) -> None:
    """Writes a run folder in which that many iterations are finished."""
    folder = RunFolder(root, "")
    store, lines = Store(folder.trajectories), []
    for iteration in range(iterations):
        if iteration == 0 or iteration >= iterations - GENUINE:
            episodes = _episodes(iteration)
            store.append(CollectionResult(iteration, episodes))
        else:
            os.link(folder.trajectories / "000000.parquet", folder.trajectories / f"{iteration:06d}.parquet")
        lines.append(json.dumps({**results(iteration, episodes), **_FIGURES, "iteration": iteration}))
    folder.metrics.write_text("".join(line + "\n" for line in lines))
    with folder.events.open("w") as events:
        for number in range(iterations * EPISODES):
            events.write(json.dumps({"time": float(number), **_EVENT, "ticket": number % EPISODES}) + "\n")
    folder.close()


def _episodes(iteration: int) -> list[Trajectory]:
    rng = np.random.default_rng(iteration)
    seen = [Observation(vector=rng.random(16, dtype=np.float32)) for _ in range(STEPS + 1)]
    steps = tuple(Step(seen[at], at % 3, -1.0, 1.0, at == STEPS - 1, False) for at in range(STEPS))
    first = Ticket(iteration, 0, Task("t"), seed=0, policy_version=iteration)
    tickets = [replace(first, index=index, seed=index) for index in range(EPISODES)]
    return [
        Trajectory(ticket, f"bench-w00-{iteration}-{ticket.index}-0", "w00", 0, steps, seen[-1], success=True)
        for ticket in tickets
    ]


if __name__ == "__main__":
    measure(main, minutes=10)
