"""Who runs which ticket; each ticket counts once, whatever is delivered twice."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from digirl_dist.collect.equal_faults import EqualFaults
from digirl_dist.collect.pace import Lengths
from digirl_dist.protocol.messages import EpisodeManifest
from digirl_dist.settings import LimitSettings, regular_file
from digirl_dist.storage import atomic_files, json_lines
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.types import Clock, Json

LossKind = Literal["infrastructure", "environment", "agent", "cancelled"]
"""What an episode was lost to: a machine or its connection, the emulator, the agent, or a caller's word."""


@dataclass(frozen=True)
class Lost:
    """Why a rollout has no episode. A loss is never an episode with a reward of 0."""

    kind: LossKind
    reason: str


_COMING_S = 5.0
_REASON = 400
_SHOWN = 5
"""Failures of a ticket that are told."""
_AT_ONCE = 2
_REST_S, _DOUBLINGS = 0.5, 3
"""A worker on which a ticket failed more than ``_AT_ONCE`` times waits before it tries it again, each time twice as
long, up to 4 s: one that fails at once would use up all attempts before an honest one is back."""
_LOOKED_AT = 256
"""Tickets at the head of the queue whose lengths are added up."""


@dataclass(frozen=True)
class Grant:
    """A lease as it was given: one attempt at a ticket by one worker, with a policy version."""

    worker: str
    key: Key
    attempt: int
    version: int
    asks: str
    """See ``Ticket.asks``."""
    at: float | None = None
    """When, by the host's clock; None: by a host before this one."""

    def seconds(self, told: float, now: float) -> float:
        """Returns how long the episode took, as the worker tells, but no longer than since the lease."""
        return told if self.at is None else min(told, now - self.at)


class Ledger(Protocol):
    """Remembers leases beyond the end of this process."""

    def known(self) -> Sequence[Grant]: ...

    def add(self, grants: Sequence[Grant]) -> None: ...

    def replace(self, grants: Sequence[Grant]) -> None:
        """Forgets all others."""


@dataclass(frozen=True)
class Failure:
    """An episode that was lost on a worker."""

    worker: str
    reason: str
    kind: LossKind
    at: float


class _Running(NamedTuple):
    since: float
    attempt: int


class Leases:
    """The tickets whose episodes have not landed, and the workers that hold them; at the tail, several hold one.

    ``attempts`` bounds how often a ticket may fail before it is set aside, ``lease_s`` how long a worker may hold one.
    ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        attempts: int,
        clock: Clock,
        lease_s: float = math.inf,
        ledger: Ledger | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        """``lengths`` are those that earlier processes met."""
        self.tickets: dict[Key, Ticket] = {}
        """Tickets whose episode has not landed."""
        self.set_aside: dict[Key, Sequence[Failure]] = {}
        """Tickets that failed too often, with the failures of each, until ``lost`` tells of them."""
        self.faults = EqualFaults()
        self.lengths = lengths or Lengths()
        """By which new tickets are ordered."""
        self._queue: OrderedDict[Key, None] = OrderedDict()
        self._tried: set[Key] = set()
        self._running: dict[str, dict[Key, _Running]] = {}
        self._coming: dict[str, dict[Key, float]] = {}
        self._held_by: dict[Key, dict[str, None]] = {}
        """The workers that run a ticket, or whose episode of it is being pulled."""
        self._failures: dict[Key, list[Failure]] = {}
        self._leased: Counter[Key] = Counter()
        self._grants: dict[Key, dict[tuple[str, int], Grant]] = {}
        self._ledger = ledger
        self.attempts = attempts
        self._clock = clock
        self.lease_s = lease_s
        for grant in ledger.known() if ledger else ():
            self._remember(grant)

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queues the tickets that are new here, the longest first. A ticket that has landed must not be added again."""
        for ticket in self.lengths.longest_first(tickets):
            if ticket.key not in self.tickets:
                self.tickets[ticket.key] = ticket
                self._queue[ticket.key] = None

    @property
    def usual_loss(self) -> LossKind:
        """What most episodes of tickets that are still open were lost to."""
        kinds = Counter(failure.kind for failures in self._failures.values() for failure in failures)
        return max(kinds, key=kinds.__getitem__, default="infrastructure")

    @property
    def queued(self) -> int:
        """The number of tickets that nobody holds."""
        return len(self._queue)

    @property
    def queued_length(self) -> float:
        """The lengths of the tickets that nobody holds, in sum; those far back count as 1."""
        known = [self.lengths.of(self.tickets[key].task.id) for key in islice(self._queue, _LOOKED_AT)]
        return sum(known) + len(self._queue) - len(known)

    def running(self, worker: str) -> int:
        """Returns how many tickets the worker holds whose episode has not ended there."""
        return len(self._running.get(worker, ()))

    def versions(self) -> set[int]:
        """Returns the policy versions of the tickets that somebody runs."""
        return {self.tickets[key].policy_version for held in self._running.values() for key in held}

    def holds(self, worker: str) -> bool:
        """Returns whether one of the worker's tickets runs there, or its episode is being pulled."""
        return bool(self._running.get(worker) or self._coming.get(worker))

    def holders(self, key: Key) -> list[str]:
        """Returns the workers that run the ticket."""
        return [worker for worker in self._held_by.get(key, ()) if key in self._running.get(worker, ())]

    def take(
        self, worker: str, count: int, version: int, others: Collection[str] = (), most_s: float = math.inf
    ) -> list[Ticket]:
        """Leases up to ``count`` tickets to ``worker``, the first in the queue, to be run with that policy version.

        A ticket whose episodes failed on ``worker`` is left to those of the ``others`` on which fewer did, and after
        several failures it rests; left to others, too, is one that should take longer there than ``most_s``.
        """
        able = (key for key in self._queue if self._may_try(worker, key, others))
        keys = list(islice((key for key in able if most_s == math.inf or self._ends(worker, key, most_s)), count))
        for key in keys:
            del self._queue[key]
            self.tickets[key] = replace(self.tickets[key], policy_version=version)
        return self._grant(worker, keys)

    def overdue(self) -> list[tuple[str, Key]]:
        """Returns worker and key of each lease that has lasted too long, or whose episode has been on its way for so
        long."""
        latest = self._clock() - self.lease_s
        running = ((worker, key, each.since) for worker, held in self._running.items() for key, each in held.items())
        coming = ((worker, key, since) for worker, held in self._coming.items() for key, since in held.items())
        return [*dict.fromkeys((worker, key) for worker, key, since in chain(running, coming) if since < latest)]

    def undoubled(self, version: int) -> list[tuple[Key, str, float]]:
        """Returns key, worker and seconds since the lease of each ticket of that version which exactly one runs.

        An episode that has been on its way for long is listed as well, with the seconds since it ended; a ticket that
        has failed often enough to be set aside is not.
        """
        now = self._clock()
        running = [(key, worker, now - at) for worker, held in self._running.items() for key, (at, _) in held.items()]
        coming = [(key, worker, now - at) for worker, held in self._coming.items() for key, at in held.items()]
        found = [*running, *(each for each in coming if each[2] > _COMING_S)]
        return [
            each
            for each in found
            if len(self._held_by[each[0]]) == 1
            and self.tickets[each[0]].policy_version == version
            and len(self._failures.get(each[0], ())) < self.attempts
        ]

    def has_failed(self, worker: str, key: Key) -> bool:
        """Returns whether an episode of the ticket was lost on the worker."""
        return any(failure.worker == worker for failure in self._failures.get(key, ()))

    def double(self, worker: str, key: Key) -> Ticket:
        """Leases to ``worker`` what another one runs already; the first that lands counts."""
        return self._grant(worker, [key])[0]

    def as_leased(self, worker: str, manifest: EpisodeManifest) -> tuple[Ticket, Grant] | None:
        """Returns the ticket as it was leased for this episode; None if it was not, or its ticket is not open."""
        grant = self._granted(worker, manifest)
        if grant is None or grant.version != manifest.policy_version or not self._is_of_ticket(grant):
            return None
        return replace(self.tickets[grant.key], policy_version=grant.version, attempt=grant.attempt), grant

    def is_of_others(self, worker: str, manifest: EpisodeManifest) -> bool:
        """Returns whether an episode is of a lease for another task or seed, as an earlier host with other settings
        gave it."""
        grant = self._granted(worker, manifest)
        return grant is not None and manifest.key in self.tickets and not self._is_of_ticket(grant)

    def _granted(self, worker: str, manifest: EpisodeManifest) -> Grant | None:
        return self._grants.get(manifest.key, {}).get((worker, manifest.attempt))

    def _is_of_ticket(self, grant: Grant) -> bool:
        return grant.key in self.tickets and self.tickets[grant.key].asks == grant.asks

    def adopt(self, worker: str, key: Key) -> bool:
        """Leases a ticket that a returning worker still runs; False if it is no longer wanted of that worker.

        Which attempt it runs is not known: whichever comes ends it.
        """
        grants = [grant for grant in self._grants.get(key, {}).values() if grant.worker == worker]
        if key in self._queue and grants and all(map(self._is_of_ticket, grants)):
            del self._queue[key]
            self._hold(worker, key)
        return key in self._running.get(worker, ())

    def expect(self, worker: str, key: Key, attempt: int) -> bool:
        """Notes that the episode ended on ``worker`` and is being pulled; False if its ticket is not open.

        The same if it is being pulled from there already. A later attempt that ``worker`` was leased still runs.
        """
        if key not in self.tickets:
            return False
        if not self._is_leased_again(worker, key, attempt):
            self._running.get(worker, {}).pop(key, None)
        if key in self._coming.get(worker, ()):
            return False
        self._coming.setdefault(worker, {})[key] = self._clock()
        self._held_by.setdefault(key, {})[worker] = None
        self._tried.add(key)
        self._queue.pop(key, None)
        return True

    def land(self, key: Key) -> bool:
        """Closes the ticket, whose episode is safe on the host; False if it was not open."""
        self.faults.landed()
        return self.take_back(key)

    def take_back(self, key: Key) -> bool:
        """Closes a ticket, as one that nobody wants any more; False if it was not open. Its holders are not told."""
        if self.tickets.pop(key, None) is None:
            return False
        for worker in list(self._held_by.get(key, ())):
            self._let_go(worker, key)
        self._queue.pop(key, None)
        self._forget(key)
        return True

    def fail(
        self,
        worker: str,
        key: Key,
        reason: str,
        others: Collection[str] = (),
        attempt: int | None = None,
        kind: LossKind = "infrastructure",
    ) -> bool:
        """Queues the ticket of an episode that was lost on ``worker`` again; returns whether it was set aside instead.

        The first time it comes before those that nobody has tried, later behind those of its round. It is set aside
        when it failed too often, on two workers at least, unless there are no ``others`` than one. While another worker
        holds it too, the failure only counts. If ``worker`` was leased the ticket again since ``attempt``, that is what
        it runs.
        """
        was_held = worker in self._held_by.get(key, ())
        if attempt is not None and self._is_leased_again(worker, key, attempt):
            self._coming.get(worker, {}).pop(key, None)
        else:
            self._let_go(worker, key)
        if key not in self.tickets or not was_held:
            return False
        failures = self._failures.setdefault(key, [])
        failures.append(Failure(worker, reason[-_REASON:], kind, self._clock()))
        self.faults.failed(worker, key, reason, others)
        if not self._is_orphan(key):
            return False
        others_left = set(others) - {failure.worker for failure in failures}
        if len(failures) >= self.attempts and not (others_left and self.is_blamed_on_one(key)):
            self.set_aside[key] = failures
            self._forget(key)
            del self.tickets[key]
            return True
        self._queue[key] = None
        if len(failures) == 1:
            self._queue.move_to_end(key, last=False)
        else:  # a round that runs ahead does not delay this one
            for later in [each for each in self._queue if each.iteration > key.iteration]:
                self._queue.move_to_end(later)
        return False

    def why_set_aside(self, key: Key) -> dict[str, Json]:
        """Returns what an event tells of a ticket that was set aside."""
        failures = self.set_aside[key]
        workers = sorted({failure.worker for failure in failures})
        return {**key.place(), "workers": workers, "failures": len(failures), "reason": failures[-1].reason}

    def lost(self, key: Key) -> Lost:
        """Forgets a ticket that was set aside; returns why it was."""
        failures = self.set_aside.pop(key)
        reasons = [f"on {each.worker}: {each.reason}" for each in failures]
        return Lost(failures[-1].kind, f"it failed {len(failures)} times: {'; '.join(_repeats(reasons))}")

    def is_blamed_on_one(self, key: Key) -> bool:
        """Returns whether the ticket's episodes were lost on one worker only."""
        return len({failure.worker for failure in self._failures.get(key, ())}) <= 1

    def forgive(self, worker: str) -> None:
        """Forgets the failures of a worker that is to blame for them itself."""
        for key, failures in self._failures.items():
            self._failures[key] = [failure for failure in failures if failure.worker != worker]

    def close(self, wanted: Round) -> None:
        """Forgets leases of rounds before ``wanted`` that are not open."""
        for key in [key for key in self._grants if key not in self.tickets and key.iteration < wanted.number]:
            self._forget(key)
        if self._ledger:
            self._ledger.replace([grant for grants in self._grants.values() for grant in grants.values()])

    def mend(self, wanted: Iterable[Ticket]) -> None:
        """Queues what nobody holds, ``wanted`` tickets included, after a defect stopped a change halfway."""
        self.add(wanted)
        self._held_by = {}
        with_workers: list[tuple[str, dict[Key, Any]]] = [*self._running.items(), *self._coming.items()]
        for worker, held in with_workers:
            for key in held.keys() - self.tickets.keys():
                del held[key]
            for key in held:
                self._held_by.setdefault(key, {})[worker] = None
        self._queue = OrderedDict.fromkeys(key for key in self._queue if key in self.tickets)
        self._queue.update(dict.fromkeys(filter(self._is_orphan, self.tickets)))

    def release(self, worker: str) -> int:
        """Returns the tickets of a worker that is gone to the head of the queue; returns how many."""
        held = {*self._running.get(worker, ()), *self._coming.get(worker, ())}
        for key in held:
            self._let_go(worker, key)
        back = sorted(filter(self._is_orphan, held), reverse=True)
        for key in back:
            self._queue[key] = None
            self._queue.move_to_end(key, last=False)
        return len(back)

    def withdraw(self, keys: Iterable[Key]) -> None:
        """Takes back those of these tickets that nobody has begun."""
        for key in [key for key in keys if key in self.tickets and key not in self._tried]:
            self._queue.pop(key, None)  # an interruption may have come between queue and lease
            del self.tickets[key]

    def _ends(self, worker: str, key: Key, within_s: float) -> bool:
        return (self.lengths.seconds(worker, self.tickets[key].task.id) or 0.0) <= within_s

    def _may_try(self, worker: str, key: Key, others: Collection[str]) -> bool:
        if key not in self._failures:
            return True
        failed_on = Counter(failure.worker for failure in self._failures[key])
        if (again := failed_on[worker] - _AT_ONCE) > 0:
            latest = max(failure.at for failure in self._failures[key] if failure.worker == worker)
            if self._clock() < latest + _REST_S * 2 ** min(again - 1, _DOUBLINGS):
                return False
        return all(failed_on[worker] <= failed_on[other] for other in others)

    def _grant(self, worker: str, keys: Sequence[Key]) -> list[Ticket]:
        """Leases the tickets to the worker, each as its next attempt."""
        tickets = [replace(self.tickets[key], attempt=self._leased[key]) for key in keys]
        now = self._clock()
        grants = [Grant(worker, one.key, one.attempt, one.policy_version, one.asks, now) for one in tickets]
        for grant in grants:
            self._hold(worker, grant.key, grant.attempt)
            self._remember(grant)
        if self._ledger and grants:
            self._ledger.add(grants)
        return tickets

    def _remember(self, grant: Grant) -> None:
        self._grants.setdefault(grant.key, {})[grant.worker, grant.attempt] = grant
        self._leased[grant.key] = max(self._leased[grant.key], grant.attempt + 1)

    def _forget(self, key: Key) -> None:
        """Forgets what happened with a ticket that is not open any more."""
        self._tried.discard(key)
        self._failures.pop(key, None)
        self._leased.pop(key, None)
        self._grants.pop(key, None)

    def _hold(self, worker: str, key: Key, attempt: int = 0) -> None:
        self._running.setdefault(worker, {})[key] = _Running(self._clock(), attempt)
        self._held_by.setdefault(key, {})[worker] = None
        self._tried.add(key)

    def _let_go(self, worker: str, key: Key) -> None:
        """Notes that the worker neither runs the ticket nor brings its episode."""
        self._running.get(worker, {}).pop(key, None)
        self._coming.get(worker, {}).pop(key, None)
        holders = self._held_by.get(key, {})
        holders.pop(worker, None)
        if not holders:
            self._held_by.pop(key, None)

    def _is_leased_again(self, worker: str, key: Key, attempt: int) -> bool:
        running = self._running.get(worker, {}).get(key)
        return running is not None and running.attempt > attempt

    def _is_orphan(self, key: Key) -> bool:
        """Returns whether the ticket is wanted and held by nobody."""
        return key in self.tickets and key not in self._queue and key not in self._held_by


def _repeats(said: Sequence[str]) -> list[str]:
    """Returns the last different ones, each with how often it was said."""
    times = Counter(reversed(said))
    return [one if times[one] == 1 else f"{times[one]} times {one}" for one in [*times][:_SHOWN]]


def lease_seconds(limits: LimitSettings, most_steps: int) -> float:
    """Returns how long a worker may hold a ticket: ``limits.lease_s``, else what the slots' own limits add up to.

    A ticket may wait for a boot, for two loads of a policy, and behind one other episode.
    """
    if limits.lease_s is not None:
        return limits.lease_s
    episode_s = limits.reset_s + most_steps * limits.step_s
    return limits.boot_s + 2 * limits.stuck_s + 2 * episode_s


_LINE = tuple[str, Key, int, int, str]
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_LINE)


class LeaseLedger:
    """Implements ``Ledger`` by a file with one line per lease.

    One that cannot be read, or is too large, counts as lost: its episodes run again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> Sequence[Grant]:
        try:
            lines = regular_file.content(self._path, 1 << 26).splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            with suppress(msgspec.MsgspecError):  # cut by a crash
                found.append(Grant(*_DECODER.decode(line)))
        return found

    def add(self, grants: Sequence[Grant]) -> None:
        with suppress(OSError):
            json_lines.append(self._path, _lines(grants))

    def replace(self, grants: Sequence[Grant]) -> None:
        with suppress(OSError):
            atomic_files.write_bytes(self._path, _lines(grants), flushed=False)


def _lines(grants: Sequence[Grant]) -> bytes:
    lines = ((grant.worker, grant.key, grant.attempt, grant.version, grant.asks) for grant in grants)
    return b"".join(_ENCODER.encode(line) + b"\n" for line in lines)
