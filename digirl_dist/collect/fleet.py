"""Collection on a fleet over SSH: push the checkpoint, lease the tickets, pull each episode as it ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from digirl_dist.checkpoint import Checkpoint
from digirl_dist.collect.account import Account
from digirl_dist.errors import HarvestError, WorkerError
from digirl_dist.events import Events
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.leases import Leases
from digirl_dist.fleet.news import (
    Acting,
    Alive,
    Ended,
    EpisodeFailed,
    Joined,
    Loaded,
    Lost,
    News,
    Pulled,
    Refused,
    SlotChanged,
    Spent,
    Trying,
)
from digirl_dist.harvest import Harvest
from digirl_dist.job import Notice
from digirl_dist.settings import LimitSettings
from digirl_dist.status import Status, WorkerStatus
from digirl_dist.store import Store
from digirl_dist.tasks import Json, Ticket

_LOOK_S = 0.5
_ACCOUNTS_S = 1.0


@dataclass
class Standing:
    """What the host knows of a worker between its news."""

    slots: int = 0
    in_service: int = 0
    error: WorkerError | None = None
    slot_reasons: dict[int, str] = field(default_factory=dict)


class FleetCollector:
    """Collector over SSH. ``prefetch`` tickets per worker are leased beyond its slots, to hide the round trip."""

    def __init__(
        self, fleet: Fleet, limits: LimitSettings, prefetch: int, store: Store, events: Events, status: Status
    ) -> None:
        self.fleet = fleet
        self.limits = limits
        self.prefetch = prefetch
        self.store = store
        self.events = events
        self.standing = {name: Standing() for name in fleet.workers}
        self.status = status
        self.fleet.start()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Harvest:
        return _Harvesting(self, checkpoint, tickets).run()

    def close(self) -> None:
        self.fleet.close()


class _Harvesting:
    """One iteration of a fleet, from the first news to the last landed episode."""

    def __init__(self, collector: FleetCollector, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._fleet = collector.fleet
        self._limits = collector.limits
        self._prefetch = collector.prefetch
        self._store = collector.store
        self._events = collector.events
        self._standing = collector.standing
        self._status = collector.status
        self._checkpoint = checkpoint
        self._iteration = tickets[0].iteration
        self._account = Account(self._iteration)
        self._account.trajectories.update(self._store.landed(self._iteration))
        self._leases = Leases(tickets, set(self._account.trajectories), self._limits.episode_attempts)
        self._able_at = time.monotonic()

    def run(self) -> Harvest:
        self._status.host(f"collect iteration {self._iteration}")
        if self._leases.open:
            self._fleet.publish(self._checkpoint)
        while self._leases.open:
            news = self._fleet.news(_LOOK_S)
            if news is not None:
                self._take_in(news)
            self._status.collecting(self._iteration, self._leases.open)
            self._hand_out()
            self._check_that_somebody_can()
        self._settle_accounts()
        self._status.host(f"store iteration {self._iteration} and learn from it")
        return self._account.harvest()

    def _settle_accounts(self) -> None:
        """Ask every worker where its slots' time went; one that does not answer at once stays without an account."""
        asked = {name for name, standing in self._standing.items() if standing.slots}
        for name in asked:
            self._fleet.workers[name].collected()
        deadline = time.monotonic() + _ACCOUNTS_S
        while asked and time.monotonic() < deadline:
            news = self._fleet.news(_ACCOUNTS_S)
            if isinstance(news, Spent):
                self._account.outcome(news.worker).slot_seconds = news.seconds
                asked.discard(news.worker)
            elif news is not None:
                self._take_in(news)

    def _take_in(self, news: News) -> None:
        match news:
            case Joined(worker, slots, held):
                self._joined(worker, slots, held)
            case Loaded(worker, version, push_s, push_bytes):
                self._loaded(worker, version, push_s, push_bytes)
            case Acting(worker, slot, iteration) if iteration == self._iteration:
                self._account.acting(worker, slot)
            case Ended(worker, notice):
                self._ended(worker, notice)
            case Pulled():
                self._land(news)
            case Refused(worker, notice, reason):
                self._refused(worker, notice, reason)
            case EpisodeFailed(worker, slot, iteration, index, reason) if iteration == self._iteration:
                self._retry(worker, slot, index, reason)
            case SlotChanged(worker, slot, state, reason, in_service):
                self._slot_changed(worker, slot, state, reason, in_service)
            case Lost(worker, error):
                self._lost(worker, error)
            case Trying(worker, doing, limit_s):
                self._status.workers[worker] = WorkerStatus(doing, limit_s=limit_s)
            case Alive():
                self._alive(news)

    def _alive(self, news: Alive) -> None:
        seen = self._status.worker(news.worker)
        seen.heard_at = time.time()
        seen.doing, seen.since, seen.limit_s = news.doing, seen.heard_at - news.for_s, self._limits.stuck_s
        seen.slots = news.slots

    def _tell(self, kind: str, worker: str, **content: Json) -> None:
        """An event of a worker."""
        said = ", ".join(f"{key} {value}" for key, value in content.items() if value not in ("", None))
        self._status.worker(worker).last_event = f"{kind}: {said}"
        self._events.emit(kind, worker=worker, **content)

    def _joined(self, worker: str, slots: int, held: list[tuple[int, int]]) -> None:
        self._standing[worker] = Standing(slots=slots, in_service=slots)
        wanted = {key for key in held if key[0] == self._iteration and self._leases.adopt(worker, key[1])}
        unwanted = [key for key in held if key not in wanted]
        if unwanted:
            self._fleet.workers[worker].drop(unwanted)
        self._tell("worker_joined", worker, slots=slots, still_running=len(wanted))

    def _loaded(self, worker: str, version: int, push_s: float, push_bytes: int) -> None:
        outcome = self._account.outcome(worker)
        outcome.slots = self._standing[worker].slots
        outcome.push_s += push_s
        outcome.push_bytes += push_bytes
        self._tell("pushed", worker, version=version, seconds=round(push_s, 4), bytes=push_bytes)

    def _ended(self, worker: str, notice: Notice) -> None:
        """Pull the episode if its ticket is still open; a stale or repeated one is deleted unread."""
        ticket = self._leases.tickets.get(notice.index)
        if notice.iteration != self._iteration or ticket is None or not self._leases.expect(worker, notice.index):
            self._tell("episode_dropped", worker, episode=notice.episode_id, reason="not wanted any more")
            self._fleet.workers[worker].forget(notice.episode_id)
            return
        self._account.ended(worker, notice.seconds, notice.age_s)
        path = self._store.incoming(self._iteration, f"{worker}-{notice.index}")
        self._fleet.workers[worker].pull(notice, ticket, path)

    def _land(self, pulled: Pulled) -> None:
        """Make it durable, and only then let the worker delete it."""
        worker, notice = pulled.worker, pulled.notice
        outcome = self._account.outcome(worker)
        outcome.pull_bytes += notice.size
        if notice.iteration == self._iteration and self._leases.land(notice.index):
            self._store.land(pulled.trajectory, pulled.path)
            self._account.trajectories[notice.index] = pulled.trajectory
            outcome.episodes += 1
            self._tell(
                "episode",
                worker,
                iteration=notice.iteration,
                ticket=notice.index,
                success=pulled.trajectory.success,
                reward=pulled.trajectory.reward,
                pull_s=round(pulled.pull_s, 4),
            )
        else:
            pulled.path.unlink(missing_ok=True)
        self._fleet.workers[worker].forget(notice.episode_id)

    def _refused(self, worker: str, notice: Notice, reason: str) -> None:
        self._fleet.workers[worker].forget(notice.episode_id)
        if notice.iteration == self._iteration:
            self._retry(worker, notice.slot, notice.index, reason)

    def _retry(self, worker: str, slot: int, index: int, reason: str) -> None:
        self._account.outcome(worker).retried += 1
        self._tell("episode_retried", worker, slot=slot, ticket=index, reason=reason)
        self._leases.fail(worker, index, reason)

    def _slot_changed(self, worker: str, slot: int, state: str, reason: str, in_service: int) -> None:
        standing = self._standing[worker]
        standing.in_service = in_service
        standing.slot_reasons[slot] = reason
        self._tell("slot", worker, slot=slot, state=state, reason=reason)

    def _lost(self, worker: str, error: WorkerError) -> None:
        released = self._leases.release(worker)
        self._standing[worker] = Standing(error=error)
        self._account.outcome(worker).losses.append(error.reason)
        self._tell(
            "worker_lost", worker, reason=error.reason, remedy=error.remedy, fatal=error.fatal, released=released
        )

    def _able(self) -> list[str]:
        """Workers with a slot in service. One that has still to load the checkpoint may reset its emulators."""
        return [name for name, standing in self._standing.items() if standing.in_service > 0]

    def _hand_out(self) -> None:
        """Lease what every able worker has room for; prefetch only while there is plenty."""
        able = self._able()
        plenty = self._leases.queued > sum(self._standing[name].in_service for name in able)
        for name in able:
            room = self._standing[name].in_service + (self._prefetch if plenty else 0) - self._leases.running(name)
            tickets = self._leases.take(name, room) if room > 0 else []
            if tickets:
                self._fleet.workers[name].lease(tickets)

    def _check_that_somebody_can(self) -> None:
        """Raises HarvestError when every worker is out for good, or none could run anything for too long."""
        now = time.monotonic()
        if self._able():
            self._able_at = now
            return
        for_good = all(self._is_out_for_good(standing) for standing in self._standing.values())
        if for_good or now - self._able_at > self._limits.no_worker_s:
            waited = "" if for_good else f" for {self._limits.no_worker_s:.0f} s"
            reasons = "\n  ".join(self._reason(name) for name in self._standing)
            raise HarvestError(
                f"iteration {self._iteration}: no worker could run anything{waited}, "
                f"{self._leases.open} episodes are missing\n  {reasons}"
            )

    def _is_out_for_good(self, standing: Standing) -> bool:
        closed = standing.slots > 0 and standing.in_service == 0
        return closed or (standing.error is not None and standing.error.fatal)

    def _reason(self, name: str) -> str:
        standing = self._standing[name]
        if standing.error is not None:
            return str(standing.error)
        if standing.slots and not standing.in_service:
            return f"worker {name}: every emulator failed: {next(iter(standing.slot_reasons.values()), '')}"
        return f"worker {name}: it has not answered yet"
