"""What must hold in every simulated run, whatever happens; looked at whenever the collector waits for an event."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from digirl_dist.collection import CollectionResult
from digirl_dist.errors import CollectionError
from digirl_dist.tasks import Key
from simulate.world import Violation

if TYPE_CHECKING:
    from simulate.machine import Machine
    from simulate.run import SimulatedRun

_PATIENCE_S = 240.0
"""More than all limits of a scenario together: a lease, a quarantine, the longest back-off, a restart."""
_RECONCILED_S = 16.0
"""Two heartbeats, and the slowest link of a scenario."""
_PULLED_S = 1.0
"""An episode over the slowest link."""
_BACK_S = 24.0
"""The longest back-off, or time out of service, and a try that failed."""
_LOOK_EVERY_S = 1.0
_SECONDS_SLACK_S = 2.0
"""The wait for the accounts, and the slowest message."""


class Invariants:
    """Watches one run."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._progress: tuple[int, ...] = ()
        self._progress_at = 0.0
        self._looked_at = 0.0
        self._seen = 0
        self._landed: Counter[Key] = Counter()
        self._doubtful: dict[tuple[str, str, object], float] = {}
        """For how many seconds something has been so that must pass by itself."""
        self._told: defaultdict[str, float] = defaultdict(float)
        self._most_ready: defaultdict[str, int] = defaultdict(int)
        """Episodes that lay ready at the same time, since none did: they are pulled one after the other."""
        self._joined_at: dict[str, tuple[float, float]] = {}
        """When its slots were started, and when the host learned of them."""
        self._left: set[str] = set()
        self._set_aside: set[Key] = set()

    def host_started(self) -> None:
        """A host knows nothing of the one before."""
        self._doubtful.clear()
        self._told.clear()
        self._joined_at.clear()

    def each_turn(self) -> None:
        """Called by the collector's thread at each of its turns."""
        self._check_events()
        self._check_leases()
        now = self._run.world.now
        if now - self._looked_at >= _LOOK_EVERY_S:
            passed_s = min(now - self._looked_at, 2 * _LOOK_EVERY_S)
            self._looked_at = now
            self._check_progress()
            for machine in self._run.machines:
                self._check_machine(machine, passed_s)

    def result(self, result: CollectionResult) -> None:
        """Checks what an iteration brought home."""
        keys = [trajectory.ticket.key for trajectory in result.trajectories]
        _hold(len(set(keys)) == len(keys), "exactly once", f"{result.round} has an episode twice: {keys}")
        schedule = self._run.scenario.schedule
        for trajectory in result.trajectories:
            ticket = trajectory.ticket
            behind = ticket.iteration - ticket.policy_version
            oldest = 0 if ticket.purpose == "evaluate" else schedule.ahead
            newest = 0 if ticket.purpose == "evaluate" else ticket.iteration - result.iteration
            _hold(newest <= behind <= oldest, "staleness", f"{ticket} in {result.round}: {behind} updates behind")
        _hold(result.busy is None or 0 <= result.busy <= 1 + 1e-9, "seconds", f"a busy share of {result.busy}")
        self._check_seconds(result)

    def gave_up(self, error: CollectionError) -> None:
        """A run may end by itself only while something is wrong, and the same command goes on."""
        run = self._run
        limit_s = run.scenario.schedule.limits.no_worker_s + _PATIENCE_S
        wrong = run.fatal or run.world.now < run.calm_at + limit_s
        _hold(wrong, "progress", f"the run ended long after the last fault: {error}")
        run.events.emit("gave_up", reason=str(error))

    def finished(self) -> None:
        """Checks what lies on the disk at the end."""
        self._check_events()
        schedule, store = self._run.scenario.schedule, self._run.disk.store
        homes: Counter[Key] = Counter()
        for trajectories in store.files.values():
            homes.update(trajectory.ticket.key for trajectory in trajectories)
        wanted = {ticket.key for number in range(schedule.iterations) for ticket in schedule.tickets(number, number)}
        wanted |= {ticket.key for version in self._run.disk.measured for ticket in schedule.evaluation(version)}
        lost = wanted - homes.keys() - self._set_aside
        _hold(not lost, "exactly once", f"lost: {sorted(lost)}")
        _hold(homes.keys() <= wanted, "exactly once", f"made up: {sorted(homes.keys() - wanted)}")
        twice = [key for key, times in homes.items() if times > 1]
        _hold(not twice, "exactly once", f"counted twice: {twice}")
        self._check_updates()

    def left_alone(self) -> None:
        """Programs that could not be told that the run is over have ended by themselves."""
        _hold(not self.orphans(), "deadline", f"orphans that never end: {self.orphans()}")

    def orphans(self) -> list[str]:
        return [machine.spec.name for machine in self._run.machines if machine.program.stopped_by_host is None]

    def _check_updates(self) -> None:
        limit = self._run.scenario.schedule.ahead
        for number, trajectories in self._run.disk.used:
            oldest = min((trajectory.ticket.policy_version for trajectory in trajectories), default=number)
            _hold(number - oldest <= limit, "staleness", f"update {number} learned from version {oldest}")

    def _check_events(self) -> None:
        lines = self._run.events.lines
        for _, kind, content in lines[self._seen :]:
            if kind == "episode":
                key = Key(content["iteration"], content["ticket"], content["purpose"])
                self._landed[key] += 1
                _hold(self._landed[key] == 1, "exactly once", f"{key} landed twice")
            elif kind == "worker_joined":
                slots = self._run.machine(content["worker"]).program.slots
                since = self._run.world.now if slots is None else slots.started_at
                self._joined_at.setdefault(content["worker"], (since, self._run.world.now))
            elif kind == "handling_failed":
                _hold("a defect of ours" in content["reason"], "no exception", content["reason"])
            elif kind == "ticket_set_aside":
                self._set_aside.add(Key(content["iteration"], content["ticket"], content["purpose"]))
            elif kind == "worker_left":
                self._left.add(content["worker"])
        self._seen = len(lines)
        refused = self._run.disk.store.came_twice
        _hold(not refused, "exactly once", f"came to the store a second time: {refused}")

    def _check_leases(self) -> None:
        """Every open ticket is queued once, or somebody has it."""
        leases = self._run.host.collector.leases
        queued = set(leases._queue)
        held = set().union(*leases._running.values(), *leases._coming.values())
        open_ = leases.tickets.keys()
        _hold(len(queued) == len(leases._queue), "leases", "a ticket is queued twice")
        if queued <= open_ <= queued | held and queued.isdisjoint(held):
            return
        _hold(queued <= open_, "leases", f"queued, and not open: {sorted(queued - open_)}")
        _hold(open_ <= queued | held, "leases", f"nobody has {sorted(open_ - queued - held)}")
        _hold(not queued & held, "leases", f"queued, and held: {sorted(queued & held)}")

    def _check_progress(self) -> None:
        run = self._run
        progress = (len(run.events.of("episode")), run.hosts, run.disk.newest, len(run.disk.store.files))
        if progress != self._progress:
            self._progress, self._progress_at = progress, run.world.now
        since = max(self._progress_at, run.calm_at)
        _hold(run.world.now - since < _PATIENCE_S, "progress", f"nothing has come for {run.world.now - since:.0f} s")

    def _check_machine(self, machine: Machine, passed_s: float) -> None:
        """What host and program believe of each other may differ for a moment only."""
        name, limits = machine.spec.name, self._run.scenario.schedule.limits
        life = self._run.fleet.lives[name] if name in self._run.fleet.workers else None
        attached = None if life is None else life.connection
        broken = attached is not None and (not machine.link.answers or machine.program.stopped)
        patience_s = max(limits.silence_s, limits.start_s) + 6.0
        awake_since, program = self._run.fleet.awake_since, machine.program
        how = awake_since, machine.link.answers, program.stopped  # each is noticed by other signs, and takes its time
        standing = {(attached.since, *how)} if broken and attached is not None else set()
        self._doubt("deadline", name, "the host does not notice", standing, passed_s, patience_s)
        state = self._run.host.collector.table.states.get(name)
        is_out = state is not None and state.error is not None and state.error.fatal
        is_away = attached is None and machine.link.answers and not is_out
        tried = {(life.tried_at, awake_since)} if life is not None and is_away else set()
        self._doubt("deadline", name, "nobody connects again after", tried, passed_s, _BACK_S)
        leases = self._run.host.collector.leases
        calm = attached is not None and not broken and not program.frozen and state is not None and state.slots > 0
        calm = calm and not self._run.fleet.disk_is_full and not self._run.fleet.waiting and machine.link.jitter_s < 1.0
        held = {ticket.key for ticket in program.held()}
        ready = {manifest.key for manifest, _ in program.ready.values()}
        self._most_ready[name] = max(self._most_ready[name], len(ready)) if ready else 0
        believed = set(leases._running.get(name, ()))
        lost = believed - held - ready if calm else set()
        self._doubt("leases", name, "believed to be held", lost, passed_s, _RECONCILED_S)
        self._doubt("leases", name, "held in secret", held - believed if calm else set(), passed_s, _RECONCILED_S)
        limit_s = _RECONCILED_S + _PULLED_S * self._most_ready[name]
        self._doubt("spool", name, "never fetched", set(program.ready) if calm else set(), passed_s, limit_s)

    def _doubt(
        self,
        promise: str,
        worker: str,
        what: str,
        now: AbstractSet[object],
        passed_s: float,
        limit_s: float,
    ) -> None:
        """Counts for how long each of these has been so; the others start from nothing again."""
        for place in [place for place in self._doubtful if place[:2] == (worker, what) and place[2] not in now]:
            del self._doubtful[place]
        for each in now:
            since_s = self._doubtful[worker, what, each] = self._doubtful.get((worker, what, each), 0.0) + passed_s
            _hold(since_s <= limit_s, promise, f"{what}: {each} on {worker} for {since_s:.0f} s")

    def _check_seconds(self, result: CollectionResult) -> None:
        """A worker's seconds add up to its slots times the time since it joined, less those of episodes under way."""
        for one in result.worker_results:
            sound = all(math.isfinite(each) and each >= 0 for each in one.slot_seconds.values())
            _hold(sound, "seconds", f"{one.worker}: {one.slot_seconds}")
            self._told[one.worker] += sum(one.slot_seconds.values())
            machine, joined_at = self._run.machine(one.worker), self._joined_at.get(one.worker)
            slots, state = machine.program.slots, self._run.host.collector.table.states.get(one.worker)
            answered = machine.accounted_at >= result.ended_at - _SECONDS_SLACK_S and state is not None and state.slots
            answered = answered and not self._run.fleet.has_unread_account(one.worker)
            bent = self._run.hosts > 1 or self._run.bends_time or one.worker in self._left
            if bent or slots is None or joined_at is None or not answered or slots.counted_at > machine.accounted_to:
                continue
            count, told_s = machine.spec.slots, self._told[one.worker]
            most_s, least_s = (count * (slots.counted_at - at) for at in joined_at)
            slack_s = count * _SECONDS_SLACK_S
            whole = f"{least_s:.2f} to {most_s:.2f} slot-seconds, {machine.left_out_s:.2f} under way"
            said = f"{one.worker} told {told_s:.2f} of {whole}"
            _hold(told_s <= most_s + slack_s, "seconds", said)
            _hold(told_s >= least_s - machine.left_out_s - slack_s, "seconds", said)


def _hold(holds: bool, promise: str, detail: str) -> None:
    if not holds:
        raise Violation(promise, detail)
