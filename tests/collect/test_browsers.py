"""Many MiniWoB++ tasks at once, with browsers that die and drivers that freeze in mid-episode."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from watching import eventually, nothing_is_left_of, processes_with

from digirl_dist.build import Ground, build_collector
from digirl_dist.checkpoint import Checkpoints
from digirl_dist.choices import choose_device
from digirl_dist.emulator import EmulatorSpec
from digirl_dist.events import Events
from digirl_dist.harvest import Harvest
from digirl_dist.run_folder import RunFolder
from digirl_dist.settings import LimitSettings, MiniwobSettings, Parallel, Settings, TaskOrder
from digirl_dist.status import Status
from digirl_dist.store import Store
from digirl_dist.tasks import Plan
from digirl_dist.trajectory import Decision, Observation

pytestmark = pytest.mark.usefixtures("chromium_is_installed")

PAGES = [
    *("click-test", "click-test-2", "click-button", "click-checkboxes", "click-collapsible", "click-color"),
    *("click-dialog", "click-link", "click-option", "click-tab", "drag-box", "enter-text", "focus-text"),
    *("scroll-text", "use-slider"),
]


class Corner(nn.Module):
    """Taps where nothing is, so that an episode has all its steps."""

    def __init__(self, spec: EmulatorSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        return [Decision({"type": "tap", "x": 0.99, "y": 0.99}, 0.0) for _ in observations]


class Browsers:
    """A collector of MiniWoB++ episodes."""

    def __init__(self, folder: Path, stack: ExitStack, episodes: int) -> None:
        emulator = MiniwobSettings(task=PAGES)
        limits = LimitSettings(step_s=8, reset_s=20, no_worker_s=60, orphan_s=5)
        settings = Settings(parallel=Parallel.host, dry_run=True, emulator=emulator, max_steps=8, limits=limits)
        device = choose_device(settings, emulator)
        run_folder = RunFolder(folder, "")
        stack.callback(run_folder.close)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        events = Events(run_folder.events, (lambda what, content: self.heard.append((what, content)),))
        stack.callback(events.close)
        policy = Corner(device.spec)
        self._checkpoint = Checkpoints(run_folder.checkpoints).save(0, policy.state_dict(), {}, {})
        store, status = Store(run_folder.trajectories), Status(run_folder.root / "status.json")
        plan = Plan(device.tasks, episodes, seed=0, order=TaskOrder.sequential.value)
        self._collector = build_collector(
            Ground(settings, device, lambda: Corner(device.spec), plan, run_folder, store, events, status), stack
        )
        self._tickets = plan.tickets(0, 0)

    def collect(self) -> Harvest:
        return self._collector.collect(self._checkpoint, self._tickets)

    def have_landed(self, count: int) -> bool:
        return sum(what == "episode" for what, _ in self.heard) >= count


@contextmanager
def browsers(folder: Path, episodes: int) -> Iterator[Browsers]:
    with ExitStack() as stack:
        yield Browsers(folder, stack, episodes)


def drivers(folder: Path) -> list[psutil.Process]:
    """Those below the workers whose jobs are in ``folder``."""
    emulators = [one for one in processes_with(folder) if "digirl_dist.emulator.process" in one.cmdline()]
    found = {child for one in emulators for child in one.children(recursive=True) if child.name() == "chromedriver"}
    return sorted(found, key=lambda one: one.pid)


def kill_a_browser(folder: Path) -> None:
    inside = drivers(folder)[0].children(recursive=True)
    next(one for one in inside if one.name().startswith("chrom") and "sh" not in one.cmdline()[0].split("/")).kill()


def freeze_a_driver(folder: Path) -> None:
    drivers(folder)[-1].send_signal(signal.SIGSTOP)


def test_two_workers_bring_home_every_ticket_of_every_page_at_the_cost_of_one_retry_per_fault(tmp_path: Path) -> None:
    with browsers(tmp_path, episodes=2 * len(PAGES)) as here:

        def strike() -> None:
            for landed, fault in ((3, kill_a_browser), (10, freeze_a_driver)):
                eventually(partial(here.have_landed, landed), 60)
                fault(tmp_path)

        striker = threading.Thread(target=strike)
        striker.start()
        harvest = here.collect()
        striker.join()
    assert [trajectory.ticket.index for trajectory in harvest.trajectories] == list(range(2 * len(PAGES)))
    assert Counter(trajectory.ticket.task.id for trajectory in harvest.trajectories) == dict.fromkeys(PAGES, 2)
    assert {trajectory.worker for trajectory in harvest.trajectories} == {"localhost-0", "localhost-1"}
    assert sum(outcome.retried for outcome in harvest.outcomes) == 2
    nothing_is_left_of(tmp_path)
