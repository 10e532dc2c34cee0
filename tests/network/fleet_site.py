"""A run whose workers are the machines of a test, built as ``assembly/run.py`` builds it but for the installation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from network.machines import Machine
from process_watch import eventually
from user_classes import Counter, FairCoin

from digirl_dist.collect.dispatch import DispatchRules
from digirl_dist.collect.fleet_collector import FleetCollector
from digirl_dist.collect.leases import LeaseLedger
from digirl_dist.collection import CollectionResult
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.roster import this_python
from digirl_dist.fleet.spec import Job, WorkerSpec
from digirl_dist.fleet.ssh_connection import SshConnector
from digirl_dist.rollout.slot import slot_limits
from digirl_dist.settings import LimitSettings, SshSettings
from digirl_dist.storage.checkpoint import Checkpoint, Checkpoints
from digirl_dist.storage.disk_full import WaitForSpace
from digirl_dist.storage.events import Events
from digirl_dist.storage.run_folder import RunFolder
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Task, Ticket
from digirl_dist.user_code.packing import pack

USUAL = SshSettings(), LimitSettings(step_s=5, no_worker_s=120, orphan_s=20, stop_s=5)
"""The limits that users have, where a worker's death is concerned."""
QUICK = (
    SshSettings(connect_s=5, login_s=10, ping_s=1, silence_s=5),
    LimitSettings(step_s=3, silence_s=7, no_worker_s=120, orphan_s=9, stop_s=5),
)
"""For tests about what follows a loss, so that they need not wait long for it."""


class Site:
    """A run folder and a fleet that collects into it. ``events`` are (monotonic time, kind, content)."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        machines: Sequence[Machine],
        limits: tuple[SshSettings, LimitSettings] = QUICK,
        package: str = "",
        step_s: float = 0.1,
    ) -> None:
        self.machines = machines
        self._iteration = 0
        self._collecting: Future[CollectionResult] = Future()
        self.events: list[tuple[float, str, dict[str, Any]]] = []
        self.folder = RunFolder(folder, "")
        stack.callback(self.folder.close)
        self.log = Events(self.folder.events, (self._listen,))
        stack.callback(self.log.close)
        self.status = Status(self.folder.root / "status.json")
        self.store = Store(self.folder.trajectories, WaitForSpace(self.log, self.status, limit_s=30))
        self.checkpoint = self._save()
        job = _job(self.folder.run_id, limits[1], step_s)
        specs = [WorkerSpec(one.address, 2, self.job_folder(one), this_python, package=package) for one in machines]
        self.fleet = Fleet([(spec, job) for spec in specs], SshConnector(*limits), limits[1])
        parts = self.fleet, limits[1], DispatchRules(speculate=False), self.store, self.log, self.status
        self._collector = FleetCollector(*parts, ledger=LeaseLedger(self.folder.leases))
        stack.callback(self._collector.close)

    def job_folder(self, machine: Machine) -> str:
        return str(job_folder(machine, self.folder.run_id))

    def collecting(self, tickets: Sequence[Ticket]) -> Future[CollectionResult]:
        """Collect in the background, so that the test can do harm meanwhile."""
        future: Future[CollectionResult] = Future()
        self._collecting = future

        def collect() -> None:
            try:
                future.set_result(self._collector.collect(self.checkpoint, tickets))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=collect, daemon=True).start()
        return future

    def seen(self, kind: str, worker: str | None = None) -> list[dict[str, Any]]:
        """The events of that kind."""
        events = [content for _, found, content in list(self.events) if found == kind]
        return [content for content in events if worker in (None, content.get("worker"))]

    def wait_for(self, kind: str, count: int = 1, worker: str | None = None, limit_s: float = 60) -> None:
        what = f"{kind} of {worker or 'any worker'} ({count})"

        def is_there() -> bool:
            if self._collecting.done():
                self._collecting.result()  # raises what it failed with
            return len(self.seen(kind, worker)) >= count

        eventually(is_there, limit_s, what)

    def all_at_work(self, count: int) -> Callable[[], None]:
        """Has every worker bring home one of ``count`` episodes; returns what waits for the others.

        All have joined before, since a loaded machine starts them one after the other: the first would run everything.
        """
        everyone = {machine.name for machine in self.machines}
        self._collect_until(lambda: everyone <= self._bringers(), "every worker")
        self._iteration += 1
        iteration, collecting = self._iteration, self.collecting(tickets(count, self._iteration))
        eventually(lambda: everyone <= self._bringers(iteration), what=f"an episode of each worker among {count}")
        return lambda: assert_once_each(self, collecting.result(120), count, iteration)

    def wait_for_heartbeat(self, worker: str) -> None:
        before = self.status.worker(worker).heard_at
        eventually(lambda: self.status.worker(worker).heard_at != before, 10, f"a heartbeat of {worker}")

    def come_back(self, worker: str, joins: int = 2) -> None:
        """Collect further iterations until the worker has joined (again) and brought an episode home."""
        before = len(self.seen("episode", worker))

        def is_back() -> bool:
            return len(self.seen("worker_joined", worker)) >= joins and len(self.seen("episode", worker)) > before

        self._collect_until(is_back, worker)

    def first_loss(self, worker: str) -> tuple[float, str]:
        """When, in monotonic seconds, and why."""
        losses = [(at, what) for at, kind, what in self.events if kind == "worker_lost" and what["worker"] == worker]
        assert losses, f"{worker} was never lost"
        return losses[0][0], losses[0][1]["reason"]

    def _collect_until(self, condition: Callable[[], bool], whom: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, f"{whom} did not come"
            self._iteration += 1
            count = 4 * len(self.machines)  # enough for each
            result = self.collecting(tickets(count, self._iteration)).result(120)
            assert_once_each(self, result, count, self._iteration)

    def _bringers(self, iteration: int | None = None) -> set[str]:
        """Those that brought an episode home, of this iteration or any."""
        return {one["worker"] for one in self.seen("episode") if iteration in (None, one["iteration"])}

    def _listen(self, kind: str, content: dict[str, Any]) -> None:
        self.events.append((time.monotonic(), kind, content))

    def _save(self) -> Checkpoint:
        return Checkpoints(self.folder.checkpoints).save(0, FairCoin(Counter.spec).state_dict(), {}, {})


@contextmanager
def site(folder: Path, machines: Sequence[Machine], **options: Any) -> Iterator[Site]:
    """In the end nothing may run on the machines any more."""
    with ExitStack() as stack:
        yield Site(stack, folder, machines, **options)
    assert_nothing_left(machines)


def assert_nothing_left(machines: Sequence[Machine], limit_s: float = USUAL[1].orphan_s + 45) -> None:
    """``limit_s`` covers the orphan time of a program that could not be told to stop."""
    deadline = time.monotonic() + limit_s
    while left := {machine.name: names for machine in machines if (names := machine.left())}:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def job_folder(machine: Machine, run_id: str) -> Path:
    return machine.jobs / f"{run_id}-{machine.name}"


def tickets(count: int, iteration: int = 0) -> list[Ticket]:
    return [Ticket(iteration, index, Task("count"), seed=index, policy_version=0) for index in range(count)]


def assert_once_each(here: Site, result: CollectionResult, count: int, iteration: int = 0) -> None:
    """Every ticket is in the result once, in order, and on disk."""
    expected = [Key(iteration, index) for index in range(count)]
    assert [trajectory.ticket.key for trajectory in result.trajectories] == expected
    assert sorted(here.store.landed(Round(iteration))) == [Key(iteration, index) for index in range(count)]
    landed = [content["ticket"] for content in here.seen("episode") if content["iteration"] == iteration]
    assert len(landed) == len(set(landed)), "an episode landed twice"


def _job(run: str, limits: LimitSettings, step_s: float) -> Job:
    return Job(
        run=run,
        agent=pack(partial(FairCoin, Counter.spec)),
        emulator=pack(partial(Counter, step_s=step_s)),
        max_steps=None,
        limits=slot_limits(limits),
        torch_threads=1,
        orphan_s=limits.orphan_s,
    )
