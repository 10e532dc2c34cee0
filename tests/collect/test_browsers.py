"""Many MiniWoB++ tasks at once, with browsers that die and freeze in mid-episode."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from process_watch import command_line, nothing_is_left_of
from torch import nn

from digirl_dist.assembly.collector import RunContext, build_collector
from digirl_dist.assembly.parts import build_device
from digirl_dist.collection import CollectionResult
from digirl_dist.settings import (
    DeviceAgentSettings,
    InProcessSettings,
    LimitSettings,
    MiniwobSettings,
    Parallel,
    Settings,
    TaskOrder,
)
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Plan
from digirl_dist.trajectory import Decision, Observation

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("chromium_is_installed"), pytest.mark.long_file(45)]

PAGES = ["click-test-2", "click-checkboxes", "enter-text", "focus-text", "use-slider"]


class Corner(nn.Module):
    """Taps where nothing is, so that an episode has all its steps."""

    def __init__(self, before_acting: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._before_acting = before_acting

    def act(self, observations: Sequence[Observation], rngs: Sequence[np.random.Generator]) -> list[Decision]:
        if self._before_acting is not None:
            self._before_acting()
        return [Decision({"type": "tap", "x": 0.99, "y": 0.99}, 0.0) for _ in observations]


class Browsers:
    """A collector of MiniWoB++ episodes."""

    def __init__(
        self, folder: Path, kind: Parallel, stack: ExitStack, episodes: int, fault: Callable[[], None] | None
    ) -> None:
        emulator = MiniwobSettings(task=PAGES)
        limits = LimitSettings(step_s=8, reset_s=20, no_worker_s=60, orphan_s=6)
        settings = Settings(
            parallel=kind,
            dry_run=True,
            emulator=emulator,
            agent=DeviceAgentSettings(),
            trainer=InProcessSettings(),
            max_steps=8,
            limits=limits,
        )
        device = build_device(settings, emulator)
        run_folder = RunFolder(folder, "")
        stack.callback(run_folder.close)
        self.heard: list[tuple[str, dict[str, Any]]] = []
        events = Events(run_folder.events, (lambda what, content: self.heard.append((what, content)),))
        stack.callback(events.close)
        self._fault = fault
        build = Corner if fault is None else partial(Corner, self._strike)
        self._checkpoint = Checkpoints(run_folder.checkpoints).save(0, build().state_dict(), {}, {})
        store, status = Store(run_folder.trajectories), Status(run_folder.root / "status.json")
        plan = Plan(device.tasks, episodes, seed=0, order=TaskOrder.sequential.value)
        self._collector = build_collector(
            RunContext(settings, device, build, plan, run_folder, store, events, status), stack
        )
        self._tickets = plan.tickets(0, 0)

    def collect(self) -> CollectionResult:
        return self._collector.collect(self._checkpoint, self._tickets)

    def _strike(self) -> None:
        """Once, when episodes have landed and every slot has one: no slot goes on while the policy is asked."""
        if self._fault is not None and sum(what == "episode" for what, _ in self.heard) >= 3:
            fault, self._fault = self._fault, None
            fault()


@contextmanager
def browsers(
    folder: Path, kind: Parallel, episodes: int, fault: Callable[[], None] | None = None
) -> Iterator[Browsers]:
    with ExitStack() as stack:
        yield Browsers(folder, kind, stack, episodes, fault)


def a_browser() -> psutil.Process:
    """Its main process: a renderer, say, has a type among its words."""
    for process in psutil.Process().children(recursive=True):
        words = command_line(process).split()
        if "--remote-debugging-pipe" in words and words[0].endswith(("chromium", "shell", "chrome")):
            return process
    raise AssertionError("no browser is running")


def kill_a_browser() -> None:
    a_browser().kill()


def freeze_a_browser() -> None:
    a_browser().send_signal(signal.SIGSTOP)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", [kill_a_browser, pytest.param(freeze_a_browser, marks=pytest.mark.nightly)])
def test_a_browser_that_fails_in_mid_episode_costs_one_retry(tmp_path: Path, fault: Callable[[], None]) -> None:
    with browsers(tmp_path, Parallel.single, 16, fault) as here:
        result = here.collect()
    assert [trajectory.ticket.index for trajectory in result.trajectories] == list(range(16))
    assert sum(worker_result.retried for worker_result in result.worker_results) == 1
    nothing_is_left_of(tmp_path)


@pytest.mark.nightly
def test_two_workers_bring_home_every_ticket_of_every_page(tmp_path: Path) -> None:
    with browsers(tmp_path, Parallel.host, episodes=20) as here:
        result = here.collect()
    assert Counter(trajectory.ticket.task.id for trajectory in result.trajectories) == dict.fromkeys(PAGES, 4)
    assert {trajectory.worker for trajectory in result.trajectories} == {"localhost-0", "localhost-1"}
    assert sum(worker_result.retried for worker_result in result.worker_results) == 0
    assert all(len(trajectory.steps) == 8 for trajectory in result.trajectories if not trajectory.success)
