"""Run folders with real collectors on them, for the tests of collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from process_watch import eventually, processes_with
from ray_test_cluster import shared_cluster
from user_classes import Coin, Counter, FairCoin

from chaos.processes import running
from digirl_dist.agent.plugins.custom import CustomAgentSettings
from digirl_dist.assembly.collector import RunContext, build_collector
from digirl_dist.collect import Collector
from digirl_dist.collection import CollectionResult
from digirl_dist.emulator.plugins import Device
from digirl_dist.host import under_way
from digirl_dist.settings import (
    Inference,
    InProcessSettings,
    LimitSettings,
    Parallel,
    RayCollectorSettings,
    Settings,
    SshCollectorSettings,
)
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Plan, Task, Ticket


class Kind(Enum):
    """A collector, by itself or collecting ahead."""

    inline = "inline"
    fleet = "fleet"
    inline_ahead = "inline-ahead"
    fleet_ahead = "fleet-ahead"
    ray = "ray"
    fleet_host = "fleet-host"
    """The policy acts on the host."""
    ray_host = "ray-host"

    @property
    def inference(self) -> Inference:
        return Inference.host if self in (Kind.fleet_host, Kind.ray_host) else Inference.worker

    @property
    def parallel(self) -> Parallel:
        return Parallel.single if self in (Kind.inline, Kind.inline_ahead) else Parallel.host

    @property
    def ahead(self) -> int:
        return 1 if self in (Kind.inline_ahead, Kind.fleet_ahead) else 0

    @property
    def on_ray(self) -> bool:
        return self in (Kind.ray, Kind.ray_host)

    @property
    def no_worker_s(self) -> float:
        """Python and torch take seconds of processor time to start, which two busy cores make long."""
        return 90 if self.on_ray else 60


class Site:
    """A run folder and what collects into it. The agent is a ``Coin`` where weights matter."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        kind: Kind,
        iterations: int = 1,
        workers: int = 2,
        speculate: bool = True,
        collector: RayCollectorSettings | None = None,
        no_worker_s: float | None = None,
        silence_s: float = LimitSettings.silence_s,
        agent: type[Coin | FairCoin] = FairCoin,
        step_limit_s: float = 3,
        **options: Any,
    ) -> None:
        if kind.on_ray:
            shared_cluster()
        settings = Settings(
            parallel=kind.parallel,
            dry_run=not kind.on_ray,
            dry_run_workers=workers,
            collector=collector or (RayCollectorSettings(workers=workers) if kind.on_ray else SshCollectorSettings()),
            inference=kind.inference,
            agent=CustomAgentSettings(entry_point=""),  # ``agent`` makes it
            trainer=InProcessSettings(device="cpu"),
            worker_temp_path=str(folder / "jobs"),
            train_iterations=iterations,
            speculate=speculate,
            limits=LimitSettings(
                step_s=step_limit_s,
                reset_s=3,
                slot_failures=2,
                silence_s=silence_s,
                no_worker_s=no_worker_s or kind.no_worker_s,
                orphan_s=6,
            ),
        )
        self.folder = RunFolder(folder, "")
        stack.callback(self.folder.close)
        self.store = Store(self.folder.trajectories)
        self.events: list[tuple[str, dict[str, Any]]] = []
        events = Events(self.folder.events, (lambda kind, content: self.events.append((kind, content)),))
        stack.callback(events.close)
        device = Device(partial(Counter, **options), Counter.spec, Counter.tasks("", ""), None)
        self.checkpoints = Checkpoints(self.folder.checkpoints)
        self._agent = agent
        self.checkpoint = self.save(0)
        plan = Plan([Task("count")], 6, seed=0)
        self.status = Status(folder / "status.json")
        make = partial(agent, Counter.spec)
        parts = settings, device, make, plan, self.folder, self.store, events, self.status
        context = RunContext(*parts)
        self._schedule = plan, kind.ahead, iterations
        self.collector: Collector = build_collector(context, stack)

    def save(self, iteration: int) -> Checkpoint:
        """The checkpoint of that many updates, as it was if there is one."""
        if (self.checkpoints.root / f"{iteration:06d}").exists():
            return self.checkpoints.open(iteration)
        policy = self._agent(Counter.spec)
        if isinstance(policy, Coin):
            policy.logits.data += iteration * 0.25
        return self.checkpoints.save(iteration, policy.state_dict(), {}, {})

    def collect(self, tickets: Sequence[Ticket]) -> CollectionResult:
        """As ``host.train``."""
        plan, ahead, iterations = self._schedule
        self.collector.begin(self.checkpoint, tickets)
        for later in under_way(self.checkpoint, ahead, iterations)[1:]:
            self.collector.begin(self.checkpoint, plan.tickets(later, self.checkpoint.iteration))
        return self.collector.collect(self.checkpoint, tickets)

    def count(self, kind: str) -> int:
        return sum(event == kind for event, _ in self.events)


@contextmanager
def site(folder: Path, kind: Kind, **options: Any) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(folder, stack, kind, **options)


def tickets(count: int, iteration: int = 0, **params: Any) -> list[Ticket]:
    task = Task("count", params=params)
    return [Ticket(iteration, index, task, seed=index, policy_version=iteration) for index in range(count)]


def keys(result: CollectionResult) -> list[Key]:
    return [trajectory.ticket.key for trajectory in result.trajectories]


def programs(folder: Path) -> list[psutil.Process]:
    """The worker programs with jobs below ``folder``."""
    return running("digirl_dist.worker_program.program", processes_with(folder))


def in_the_middle(here: Site, action: Callable[[], object], after: int = 4) -> threading.Thread:
    """Do ``action`` once some episodes have landed."""

    def act() -> None:
        eventually(lambda: here.count("episode") >= after, 60)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread
