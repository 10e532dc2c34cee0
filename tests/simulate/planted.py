"""Bugs that are planted in the product, each as a patch of one function; the simulator must find every one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from digirl_dist import host
from digirl_dist.collect.accounts import SlotTimeLedger
from digirl_dist.collect.leases import Leases
from digirl_dist.collect.pool import Pool
from digirl_dist.fleet.reconnecting import Reconnecting
from digirl_dist.fleet.session import Session
from digirl_dist.fleet.worker import RemoteWorker
from digirl_dist.fleet.worker_events import LeasesLost, Lost
from digirl_dist.protocol.messages import Heartbeat
from digirl_dist.worker_program.core import ProgramCore

Patch = pytest.MonkeyPatch


def lost_lease(patch: Patch) -> None:
    """The tickets of a lost worker go to nobody."""
    real = Leases.release

    def release(self: Any, worker: str) -> int:
        queued, count = self.queued, real(self, worker)
        while self.queued > queued:
            self._queue.popitem(last=False)
        return count

    patch.setattr(Leases, "release", release)


def lost_news_of_a_lost_lease(patch: Patch) -> None:
    """A ticket that a program lost without a word is noticed, and nobody is told."""
    real = Session.__init__

    def init(self: Any, rim: Any, *arguments: Any) -> None:
        tell = rim.tell
        rim.tell = lambda event: None if isinstance(event, LeasesLost) else tell(event)
        real(self, rim, *arguments)

    patch.setattr(Session, "__init__", init)


def ignored_heartbeats(patch: Patch) -> None:
    """Nothing follows from what a heartbeat says: a link may be half-open, a program stuck, a lease lost."""
    real = Session._receive

    def receive(self: Any, message: Any, *more: Any) -> Any:
        return None if isinstance(message, Heartbeat) else real(self, message, *more)

    patch.setattr(Session, "_receive", receive)


def double_landing(patch: Patch) -> None:
    """A ticket that has landed may land again."""
    real = Leases.land

    def land(self: Any, key: Any) -> bool:
        real(self, key)
        return True

    patch.setattr(Leases, "land", land)


def forgotten_spool(patch: Patch) -> None:
    """A program does not announce the episodes that it finds in its folder."""
    patch.setattr(ProgramCore, "_announce_spooled", lambda self: None)


def kept_spool(patch: Patch) -> None:
    """Workers are not told which episodes have landed."""
    patch.setattr(Session, "forget", lambda self, episode_id: None)


def one_iteration_too_far_ahead(patch: Patch) -> None:
    """Collecting ahead goes one iteration further than it may."""
    real = host.under_way
    patch.setattr(host, "under_way", lambda checkpoint, ahead, last: real(checkpoint, ahead + 1, last))


def never_again(patch: Patch) -> None:
    """A worker that is lost twice in a row is never tried again."""
    real = Reconnecting.lost

    def lost(self: Any, error: Any, now: float) -> float | None:
        pause_s = real(self, error, now)
        return None if self._losses > 1 else pause_s

    patch.setattr(Reconnecting, "lost", lost)


def life_that_ends_with_its_connection(patch: Patch) -> None:
    """A worker that is lost is told, and nobody connects again."""

    def once(self: Any) -> None:
        self.post(Lost(self.spec.name, self._stay(self._coming_back)))

    patch.setattr(RemoteWorker, "_come_and_go", once)


def time_away_forgotten(patch: Patch) -> None:
    """Nobody accounts for the seconds in which a worker was lost."""
    patch.setattr(SlotTimeLedger, "lost", lambda self, worker: None)


def half_open_before_the_job(patch: Patch) -> None:
    """Whether the program hears the host is asked only once the job runs."""
    real = Session._compare

    def compare(self: Any, beat: Heartbeat, now: float) -> None:
        real(self, beat if self._working else msgspec.structs.replace(beat, unheard_s=0.0), now)

    patch.setattr(Session, "_compare", compare)


def older_policy(patch: Patch) -> None:
    """Evaluations are run with the version before."""
    real = Session.lease

    def lease(self: Any, tickets: Any) -> Any:
        older = [replace(one, policy_version=max(0, one.policy_version - 1)) for one in tickets]
        return real(self, older)

    patch.setattr(Session, "lease", lease)


def orphan_that_waits_for_its_policy(patch: Patch) -> None:
    """A program that is left alone waits for a policy whose push broke off."""
    real = ProgramCore.tick

    def tick(self: Any, now: float, heard_at: float, held: Any, queued: Any) -> Any:
        newest = max(self._ready, default=-1)
        waits = any(ticket.policy_version > newest for ticket in held if ticket.key not in queued)
        return None if waits else real(self, now, heard_at, held, queued)

    patch.setattr(ProgramCore, "tick", tick)


def no_way_back_from_a_defect(patch: Patch) -> None:
    """A ticket stays closed whose episode met a defect as it landed."""
    patch.setattr(Pool, "_mend", lambda self: None)


BUGS = (
    lost_lease,
    lost_news_of_a_lost_lease,
    ignored_heartbeats,
    double_landing,
    forgotten_spool,
    kept_spool,
    one_iteration_too_far_ahead,
    never_again,
    life_that_ends_with_its_connection,
    time_away_forgotten,
    half_open_before_the_job,
    older_policy,
    orphan_that_waits_for_its_policy,
    no_way_back_from_a_defect,
)
