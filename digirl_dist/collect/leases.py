"""Who runs which ticket; each ticket counts once, whatever is delivered twice."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from digirl_dist.errors import CollectionError
from digirl_dist.tasks import Key, Ticket
from digirl_dist.types import Clock


class Leases:
    """The tickets whose episodes have not landed, and the workers that hold them; at the tail, several hold one.

    ``attempts`` bounds how often a ticket may fail, ``lease_s`` how long a worker may hold one. ``clock`` gives
    monotonic seconds.
    """

    def __init__(self, attempts: int, clock: Clock, lease_s: float = math.inf) -> None:
        self.tickets: dict[Key, Ticket] = {}
        """Tickets whose episode has not landed."""
        self._queue: deque[Key] = deque()
        self._tried: set[Key] = set()
        self._running: dict[str, dict[Key, float]] = {}
        self._coming: dict[str, set[Key]] = {}
        self._failures: Counter[Key] = Counter()
        self._leased: Counter[Key] = Counter()
        self._failed_on: dict[Key, set[str]] = {}
        self._attempts = attempts
        self._clock = clock
        self._lease_s = lease_s

    def add(self, tickets: Iterable[Ticket]) -> None:
        """Queues the tickets that are new here. A ticket that has landed must not be added again."""
        for ticket in tickets:
            if ticket.key not in self.tickets:
                self.tickets[ticket.key] = ticket
                self._queue.append(ticket.key)

    @property
    def queued(self) -> int:
        """The number of tickets that nobody holds."""
        return len(self._queue)

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
        return [worker for worker, held in self._running.items() if key in held]

    def take(self, worker: str, count: int, version: int, others: Collection[str] = ()) -> list[Ticket]:
        """Leases up to ``count`` tickets to ``worker``, oldest first, to be run with that policy version.

        A ticket whose episode failed on ``worker`` is left to those of the ``others`` on which it did not.
        """
        keys = list(islice((key for key in self._queue if self._may_try(worker, key, others)), count))
        for key in keys:
            self._queue.remove(key)
            self.tickets[key] = replace(self.tickets[key], policy_version=version)
            self._hold(worker, key)
        return [self._next_attempt(key) for key in keys]

    def overdue(self) -> list[tuple[str, Key]]:
        """Returns worker and key of each lease that has lasted too long."""
        latest = self._clock() - self._lease_s
        return [
            (worker, key) for worker, held in self._running.items() for key, since in held.items() if since < latest
        ]

    def undoubled(self, version: int) -> list[tuple[Key, str, float]]:
        """Returns key, worker and seconds since the lease of each ticket of that version which exactly one runs."""
        now = self._clock()
        coming = {key for keys in self._coming.values() for key in keys}
        times = Counter(key for held in self._running.values() for key in held)
        return [
            (key, worker, now - since)
            for worker, held in self._running.items()
            for key, since in held.items()
            if times[key] == 1 and key not in coming and self.tickets[key].policy_version == version
        ]

    def double(self, worker: str, key: Key) -> Ticket:
        """Leases to ``worker`` what another one runs already; the first that lands counts."""
        self._hold(worker, key)
        return self._next_attempt(key)

    def adopt(self, worker: str, key: Key) -> bool:
        """Leases a ticket that a returning worker still runs; False if it is no longer wanted of that worker."""
        if key in self._queue:
            self._queue.remove(key)
            self._hold(worker, key)
        return key in self._running.get(worker, ())

    def expect(self, worker: str, key: Key) -> bool:
        """Notes that the episode ended on ``worker`` and is being pulled; False if its ticket is not open."""
        if key not in self.tickets:
            return False
        self._running.get(worker, {}).pop(key, None)
        self._coming.setdefault(worker, set()).add(key)
        self._tried.add(key)
        if key in self._queue:
            self._queue.remove(key)
        return True

    def land(self, key: Key) -> bool:
        """Closes the ticket, whose episode is safe on the host; False if it was not open."""
        self._let_go(key)
        if key in self._queue:
            self._queue.remove(key)
        self._tried.discard(key)
        self._failures.pop(key, None)
        self._failed_on.pop(key, None)
        self._leased.pop(key, None)
        return self.tickets.pop(key, None) is not None

    def fail(self, worker: str, key: Key, reason: str) -> None:
        """Queues the ticket of an episode that was lost on ``worker`` again, before those that nobody has tried.

        Raises CollectionError when it failed too often.
        """
        self._running.get(worker, {}).pop(key, None)
        self._coming.get(worker, set()).discard(key)
        if not self._is_orphan(key):
            return
        self._failures[key] += 1
        self._failed_on.setdefault(key, set()).add(worker)
        if self._failures[key] >= self._attempts:
            ticket = self.tickets[key]
            raise CollectionError(
                f"ticket {ticket.index} of iteration {ticket.iteration} (task {ticket.task.id}) failed "
                f"{self._attempts} times, last on worker {worker}: {reason}"
            )
        self._queue.appendleft(key)

    def release(self, worker: str) -> int:
        """Returns the tickets of a worker that is gone to the head of the queue; returns how many."""
        held = {*self._running.pop(worker, ()), *self._coming.pop(worker, ())}
        back = sorted(key for key in held if self._is_orphan(key))
        self._queue.extendleft(reversed(back))
        return len(back)

    def withdraw(self, keys: Iterable[Key]) -> tuple[list[Ticket], list[Ticket]]:
        """Closes an iteration without these tickets: leases stay, the rest is taken back. Returns both, in order."""
        left = [self.tickets[key] for key in sorted(keys) if key in self.tickets]
        begun = [ticket for ticket in left if ticket.key in self._tried]
        untried = [ticket for ticket in left if ticket.key not in self._tried]
        for ticket in untried:
            self._queue.remove(ticket.key)
            del self.tickets[ticket.key]
        return begun, untried

    def _may_try(self, worker: str, key: Key, others: Collection[str]) -> bool:
        failed_on = self._failed_on.get(key)
        return failed_on is None or worker not in failed_on or failed_on.issuperset(others)

    def _next_attempt(self, key: Key) -> Ticket:
        self._leased[key] += 1
        return replace(self.tickets[key], attempt=self._leased[key] - 1)

    def _hold(self, worker: str, key: Key) -> None:
        self._running.setdefault(worker, {})[key] = self._clock()
        self._tried.add(key)

    def _let_go(self, key: Key) -> None:
        for running in self._running.values():
            running.pop(key, None)
        for coming in self._coming.values():
            coming.discard(key)

    def _is_orphan(self, key: Key) -> bool:
        """Returns whether the ticket is wanted and held by nobody."""
        held = (*self._running.values(), *self._coming.values())
        return key in self.tickets and key not in self._queue and not any(key in keys for keys in held)
