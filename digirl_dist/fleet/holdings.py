"""Which tickets a worker program should hold, held against what it says that it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from digirl_dist.protocol.messages import Drop, Lease
from digirl_dist.tasks import Key, Ticket


class Holdings:
    """The leases of one connection. Leases and drops are numbered, and a heartbeat names the newest it knows.

    A difference counts once two heartbeats in a row show it: an episode may end between a heartbeat's making and its
    sending. What the program knows of never becomes less, whatever it says later.
    """

    def __init__(self) -> None:
        self._order = 0
        self._known = 0
        """The newest order that the program has taken in: after the first, what lay ready before was announced."""
        self._behind_since: float | None = None
        """When a heartbeat first lacked an order and none has shown progress since."""
        self._held: dict[Key, tuple[int, int]] = {}
        """The order and the attempt of each lease."""
        self._dropped: dict[Key, tuple[int, int]] = {}
        """For drops that the program may not know of: the newest order, and how many episodes may still come."""
        self._missing: set[Key] = set()
        self._claimed: set[Key] = set()

    def __len__(self) -> int:
        """The tickets that the program may name."""
        return len(self._held) + len(self._dropped)

    def adopt(self, keys: Sequence[Key]) -> None:
        """Begins with the tickets that the program had before this connection."""
        self._held = dict.fromkeys(keys, (0, 0))

    def lease(self, tickets: Sequence[Ticket]) -> Lease:
        self._order += 1
        for ticket in tickets:
            self._held[ticket.key] = self._order, ticket.attempt
        return Lease(self._order, list(tickets))

    def drop(self, keys: Sequence[Key], lost_to: str) -> Drop:
        self._order += 1
        for key in keys:
            self._held.pop(key, None)
            self._dropped[key] = self._order, self._dropped.get(key, (0, 0))[1] + 1
        return Drop(self._order, list(keys), lost_to)

    def holds(self, key: Key) -> bool:
        """Returns whether the program should hold the ticket."""
        return key in self._held

    def may_end(self, key: Key) -> bool:
        """Returns whether an episode of the ticket may come: it is held, or just dropped, or lay ready from before."""
        return self._known == 0 or key in self._held or self._dropped.get(key, (0, 0))[1] > 0

    def ended(self, key: Key, attempt: int | None = None) -> None:
        """Forgets a ticket whose end the program has told, but not if it was leased again since that attempt.

        Of a drop that it may not have known of, one episode is forgiven.
        """
        if key in self._held:
            if attempt is None or attempt >= self._held[key][1]:
                del self._held[key]
        elif key in self._dropped:
            order, forgiven = self._dropped[key]
            self._dropped[key] = order, forgiven - 1

    def behind_s(self, now: float) -> float:
        """Returns for how long the program has taken in none of the orders that it lacks."""
        return 0.0 if self._behind_since is None else now - self._behind_since

    def compare(self, said: Collection[Key], order: int, now: float) -> tuple[list[Key], list[Key]]:
        """Returns the tickets that the program lost without a word, and those that it claims without a lease.

        ``said`` takes the orders up to ``order`` into account.
        """
        claims = set(said)
        if order > self._known or order == self._order:
            self._behind_since = None
        self._known = max(self._known, order)
        if self._known < self._order and self._behind_since is None:
            self._behind_since = now
        known = self._known
        self._dropped = {key: drop for key, drop in self._dropped.items() if drop[0] > known}
        missing = {key for key, (since, _) in self._held.items() if since <= known and key not in claims}
        claimed = claims - self._held.keys() - self._dropped.keys()
        lost, refused = missing & self._missing, claimed & self._claimed
        self._missing, self._claimed = missing - lost, claimed - refused
        for key in lost:
            del self._held[key]
        return sorted(lost), sorted(refused)
