"""Who runs which ticket of an iteration; each ticket counts once, whatever is delivered twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from digirl_dist.errors import HarvestError
from digirl_dist.tasks import Ticket


class Leases:
    """The tickets of one iteration. Tickets are named by their index; ``attempts`` bounds how often one may fail."""

    def __init__(self, tickets: Sequence[Ticket], landed: set[int], attempts: int) -> None:
        self.tickets = {ticket.index: ticket for ticket in tickets}
        self._queue = deque(ticket.index for ticket in tickets if ticket.index not in landed)
        self._open = set(self._queue)
        self._running: dict[str, set[int]] = {}
        self._coming: dict[str, set[int]] = {}
        self._failures: Counter[int] = Counter()
        self._attempts = attempts

    @property
    def open(self) -> int:
        """Tickets whose episode has not landed."""
        return len(self._open)

    @property
    def queued(self) -> int:
        """Tickets that nobody holds."""
        return len(self._queue)

    def running(self, worker: str) -> int:
        """Tickets that the worker holds and whose episode has not ended there."""
        return len(self._running.get(worker, ()))

    def take(self, worker: str, count: int) -> list[Ticket]:
        """Lease up to ``count`` tickets to ``worker``, oldest first."""
        taken = [self._queue.popleft() for _ in range(min(count, len(self._queue)))]
        self._running.setdefault(worker, set()).update(taken)
        return [self.tickets[index] for index in taken]

    def adopt(self, worker: str, index: int) -> bool:
        """A worker that came back says it still runs this one; False if it is no longer wanted of it."""
        if index in self._queue:
            self._queue.remove(index)
            self._running.setdefault(worker, set()).add(index)
        return index in self._running.get(worker, ())

    def expect(self, worker: str, index: int) -> bool:
        """The episode ended on ``worker`` and is on its way; False if its ticket has landed or is not ours."""
        if index not in self._open:
            return False
        self._running.get(worker, set()).discard(index)
        self._coming.setdefault(worker, set()).add(index)
        if index in self._queue:
            self._queue.remove(index)
        return True

    def land(self, index: int) -> bool:
        """The episode is safe on the host; False if the ticket had landed before."""
        for held in (*self._running.values(), *self._coming.values()):
            held.discard(index)
        if index in self._queue:
            self._queue.remove(index)
        first = index in self._open
        self._open.discard(index)
        return first

    def fail(self, worker: str, index: int, reason: str) -> None:
        """The episode was lost on ``worker``; its ticket runs again, before those that have not been tried.

        Raises HarvestError when it failed too often.
        """
        for held in (self._running, self._coming):
            held.get(worker, set()).discard(index)
        if not self._is_orphan(index):
            return
        self._failures[index] += 1
        if self._failures[index] >= self._attempts:
            ticket = self.tickets[index]
            raise HarvestError(
                f"ticket {index} of iteration {ticket.iteration} (task {ticket.task.id}) failed {self._attempts} "
                f"times, last on worker {worker}: {reason}"
            )
        self._queue.appendleft(index)

    def release(self, worker: str) -> int:
        """The worker is gone: its tickets go back to the head of the queue. Returns how many."""
        held = self._running.pop(worker, set()) | self._coming.pop(worker, set())
        back = sorted(index for index in held if self._is_orphan(index))
        self._queue.extendleft(reversed(back))
        return len(back)

    def _is_orphan(self, index: int) -> bool:
        """Wanted, and held by nobody."""
        held = (*self._running.values(), *self._coming.values())
        return index in self._open and index not in self._queue and not any(index in indices for indices in held)
