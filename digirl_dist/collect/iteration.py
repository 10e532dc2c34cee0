"""One iteration under way: which tickets it has, and which have landed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.leases import Leases
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import CollectionError
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.trajectory import Trajectory

_SHOWN = 5
"""Tickets, and failures of each, that an error names."""


def most_set_aside(share: float, wanted: int) -> int:
    """Returns how many of the tickets may be set aside: one in any case, but never all."""
    if share <= 0:
        return 0
    return min(max(1, int(share * wanted + 1e-9)), wanted - 1)


class Iteration:
    """The tickets of one ``collect`` in ``leases`` and ``store``.

    Episodes of later iterations, which collecting ahead begins, land there.
    """

    goes_on = 0
    """No more tickets will come."""

    def __init__(self, tickets: Sequence[Ticket], leases: Leases, store: Store, set_aside_share: float = 0.1) -> None:
        """``set_aside_share`` of the tickets may be set aside (see ``most_set_aside``)."""
        self.round = tickets[0].round
        self.number = self.round.number
        self._leases = leases
        self._store = store
        self._set_aside_share = set_aside_share
        self.left_aside: list[str] = []
        """Why each episode that had landed is none of the round's, such as one of another call or of other settings."""
        self._tickets = {ticket.key: ticket for ticket in tickets}
        self._wanted = self._tickets.keys()
        self._was_closed = store.has(self.round)
        self._landed = self._taken_up(self.round, self._tickets)
        self._missing = self._wanted - set(self._landed)
        if not self._was_closed:
            leases.add(ticket for ticket in tickets if ticket.key in self._missing)
        leases.close(self.round, ())

    def __enter__(self) -> Iteration:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """If it was broken off, such as by Ctrl-C, takes back the tickets that nobody has begun."""
        if kind is not None:
            self._leases.withdraw(self._missing)

    def begin_later(self, tickets: Sequence[Ticket]) -> None:
        """Queues tickets of later iterations whose episodes have not landed; this one's own are queued already."""
        for later in {ticket.round for ticket in tickets} - {self.round}:
            if not self._store.has(later):
                wanted = {ticket.key: ticket for ticket in tickets if ticket.round == later}
                landed = self._taken_up(later, wanted)
                self._leases.add(ticket for key, ticket in wanted.items() if key not in landed)

    def _taken_up(self, of: Round, wanted: Mapping[Key, Ticket]) -> dict[Key, Trajectory]:
        """Returns the episodes of a round that had landed, as far as they are what the tickets ask for.

        Others are left aside. Raises CollectionError if the round is closed with one of them.
        """
        landed = self._store.landed(of)
        for key, episode in [*landed.items()]:
            misfit = _misfit(episode.ticket, wanted.get(key), of)
            if not misfit:
                continue
            if self._store.has(of):
                raise CollectionError(
                    f"round {of.number} ({of.purpose}) of {self._store.root} ended with other episodes than the "
                    f"settings ask for: {episode.episode_id}: {misfit} -> restore its tasks and settings, or remove "
                    "its file, and the round runs again"
                )
            self._store.leave_aside(of, episode)
            self.left_aside.append(f"{episode.episode_id}: {misfit}")
            del landed[key]
        return landed

    @property
    def missing(self) -> int:
        """Episodes that have not landed, and may."""
        return len(self._missing) - len(self._aside())

    @property
    def wanted(self) -> int:
        """Episodes of the iteration, without those whose tickets are set aside."""
        return len(self._wanted) - len(self._aside())

    @property
    def landed(self) -> int:
        """Those of them that have landed."""
        return len(self._wanted) - len(self._missing)

    @property
    def is_over(self) -> bool:
        """Raises CollectionError when more tickets were set aside than may be, or all meet the same fault."""
        if self._was_closed:
            return True
        if fault := self._leases.faults.everywhere:
            raise CollectionError(f"iteration {self.number}: {fault}; repair it, and start the same command again")
        aside = self._aside()
        if len(aside) > most_set_aside(self._set_aside_share, len(self._wanted)):
            raise self._too_many(aside)
        return len(self._missing) == len(aside)

    def _aside(self) -> set[Key]:
        """Returns the tickets that were set aside; of all that are missing, which may be many, none is looked at."""
        return {key for key in self._leases.set_aside if key in self._missing}

    def _too_many(self, aside: Collection[Key]) -> CollectionError:
        return CollectionError(
            f"iteration {self.number}: {len(aside)} of {len(self._wanted)} tickets failed "
            f"{self._leases.attempts} times each, more than limits.set_aside_share allows\n  "
            + "\n  ".join(map(self._why_aside, sorted(aside)[:_SHOWN]))
        )

    def _why_aside(self, key: Key) -> str:
        reasons = [f"on {each.worker}: {each.reason}" for each in self._leases.set_aside[key]]
        return f"ticket {key.number} (task {self._tickets[key].task.id}): " + "; ".join(_repeats(reasons))

    def land(self, trajectory: Trajectory, checked: Path | bytes | None = None) -> bool:
        """Stores the episode (see ``Store.land``). False if its ticket had landed before or is unknown."""
        key = trajectory.ticket.key
        if not self._leases.land(key):
            return False
        self._store.land(key.round, trajectory, checked)
        if key in self._wanted:
            self._landed[key] = trajectory
            self._missing.discard(key)
        return True

    def turn(self) -> list[Key]:
        """Nobody withdraws a ticket of an iteration."""
        return []

    def made_durable(self) -> None:
        """Nobody waits for single episodes of an iteration."""

    def mend(self) -> None:
        """Finds its way back after a defect stopped a change halfway: what is durable landed, the rest is open."""
        self._landed |= self._store.landed(self.round)
        self._missing -= self._landed.keys()
        self._leases.mend(self._tickets[key] for key in sorted(self._missing) if not self._was_closed)

    def close(self, stats: IterationStats) -> CollectionResult:
        """Returns the result; nothing waits any longer for what was set aside."""
        aside = self._aside()
        reasons = [self._why_aside(key) for key in sorted(aside)]
        self._leases.close(self.round, aside)
        return stats.result([self._landed[key] for key in sorted(self._landed)], reasons)


def later_of(current: Round, key: Key) -> Round:
    """Returns the round in whose statistics a ticket's start belongs: its own if that is training to come."""
    own = key.round
    is_to_come = current.purpose == "evaluate" or own.number > current.number
    return own if own.purpose == "train" and is_to_come else current


def _misfit(found: Ticket, wanted: Ticket | None, of: Round) -> str:
    """Returns why an episode is not the one that a round wants; empty if it is.

    In training, where iterations overlap, it may act with any policy that there is before the iteration's update.
    """
    if wanted is None:
        return "nothing asks for its ticket"
    if of.purpose == "train" and found.policy_version <= max(of.number, wanted.policy_version):
        wanted = replace(wanted, policy_version=found.policy_version)
    return found.misfit(wanted)


def _repeats(said: Sequence[str]) -> list[str]:
    """Returns the last different ones, each with how often it was said."""
    times = Counter(reversed(said))
    return [one if times[one] == 1 else f"{times[one]} times {one}" for one in [*times][:_SHOWN]]
