"""Which tickets a worker program should hold, held against what it says that it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from digirl_dist.protocol.messages import Drop, Lease
from digirl_dist.tasks import Key, Ticket


class Holdings:
    """The leases of one connection. Leases and drops are numbered, and a heartbeat names the newest it knows.

    A difference counts once two heartbeats in a row show it: an episode may end between a heartbeat's making and its
    sending.
    """

    def __init__(self) -> None:
        self._order = 0
        self._held: dict[Key, tuple[int, int]] = {}
        """The order and the attempt of each lease."""
        self._dropped: dict[Key, int] = {}
        self._has_begun = False
        """Whether the program has taken in an order: what lay ready before this connection was announced by then."""
        self._missing: set[Key] = set()
        self._claimed: set[Key] = set()

    def adopt(self, keys: Sequence[Key]) -> None:
        """Begins with the tickets that the program had before this connection."""
        self._held = dict.fromkeys(keys, (0, 0))

    def lease(self, tickets: Sequence[Ticket]) -> Lease:
        self._order += 1
        for ticket in tickets:
            self._held[ticket.key] = self._order, ticket.attempt
            self._dropped.pop(ticket.key, None)
        return Lease(self._order, list(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> Drop:
        self._order += 1
        for key in keys:
            self._held.pop(key, None)
            self._dropped[key] = self._order
        return Drop(self._order, list(keys), lost_to)

    def holds(self, key: Key) -> bool:
        """Returns whether the program should hold the ticket."""
        return key in self._held

    def may_end(self, key: Key) -> bool:
        """Returns whether an episode of the ticket may come: it is held, or just dropped, or lay ready from before."""
        return not self._has_begun or key in self._held or key in self._dropped

    def ended(self, key: Key, attempt: int | None = None) -> None:
        """Forgets a ticket whose end the program has told, but not if it was leased again since that attempt."""
        if attempt is None or attempt >= self._held.get(key, (0, 0))[1]:
            self._held.pop(key, None)

    def compare(self, said: Collection[Key], order: int) -> tuple[list[Key], list[Key]]:
        """Returns the tickets that the program lost without a word, and those that it claims without a lease.

        ``said`` takes the orders up to ``order`` into account.
        """
        claims = set(said)
        self._has_begun = self._has_begun or order > 0
        self._dropped = {key: since for key, since in self._dropped.items() if since > order}
        missing = {key for key, (since, _) in self._held.items() if since <= order and key not in claims}
        claimed = claims - self._held.keys() - self._dropped.keys()
        lost, refused = missing & self._missing, claimed & self._claimed
        self._missing, self._claimed = missing - lost, claimed - refused
        for key in lost:
            del self._held[key]
        return sorted(lost), sorted(refused)
