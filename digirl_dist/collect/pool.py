"""Tickets that callers wait for, and the thread that has them run: whole rounds, or single rollouts of a stream."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from digirl_dist.collect.accounts import IterationStats
from digirl_dist.collect.equal_faults import EqualFaults
from digirl_dist.collect.leases import Leases, LossKind, Lost
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import CollectionError, DigirlDistError
from digirl_dist.judge import Judges
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Ticket
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Clock

_LOOK_S = 0.5
_CLOSE_S = 10.0
_CLOSED = "the fleet was closed before all that was asked for had landed"
_SHOWN = 5
"""Tickets that an error names."""


class Group(Protocol):
    """Whom tickets belong to. What is called here is called by the thread that collects."""

    def over(self, key: Key, outcome: Trajectory | Lost | DigirlDistError) -> None:
        """Takes the episode of a ticket, or why there is none; an error: it landed, and has no verdict.

        Raises CollectionError if nothing is to be collected any more.
        """

    def broke(self, kind: LossKind, error: BaseException) -> None:
        """Nobody runs what is open any more."""

    @property
    def progress(self) -> tuple[Round, int, int]:
        """What is collected, how many of its episodes have landed, and of how many."""


class _Awaited(NamedTuple):
    ticket: Ticket
    group: Group


class AwaitedRound:
    """The tickets of one ``collect``, and a future of its result. Implements ``Group``."""

    stats: IterationStats

    def __init__(self, tickets: Sequence[Ticket], set_aside_share: float, attempts: int) -> None:
        self.round = tickets[0].round
        self.tickets = {ticket.key: ticket for ticket in tickets}
        self.missing = {*self.tickets}
        """Those that are not over."""
        self.landed: dict[Key, Trajectory] = {}
        self.aside: dict[Key, str] = {}
        """Those that are lost, and why."""
        self.unjudged: DigirlDistError | None = None
        """Why an episode that landed has no verdict."""
        self.result: CollectionResult | None = None
        self.future: Future[CollectionResult] = Future()
        self.is_head = False
        """Whether it is, or was, the one that is collected."""
        self._set_aside_share = set_aside_share
        self._attempts = attempts

    def over(self, key: Key, outcome: Trajectory | Lost | DigirlDistError) -> None:
        self.missing.discard(key)
        match outcome:
            case Trajectory():
                self.landed[key] = outcome
            case Lost(_, reason):
                self.aside[key] = f"ticket {key.number} (task {self.tickets[key].task.id}): {reason}"
            case _:
                self.unjudged = outcome
        if len(self.aside) > most_set_aside(self._set_aside_share, len(self.tickets)):
            shown = "\n  ".join(self.aside[key] for key in sorted(self.aside)[:_SHOWN])
            raise CollectionError(
                f"iteration {self.round.number}: {len(self.aside)} of {len(self.tickets)} tickets failed "
                f"{self._attempts} times each, more than limits.set_aside_share allows\n  {shown}"
            )

    def broke(self, kind: LossKind, error: BaseException) -> None:
        self.future.set_exception(error)

    @property
    def progress(self) -> tuple[Round, int, int]:
        wanted = len(self.tickets) - len(self.aside)
        return self.round, wanted - len(self.missing), wanted

    def taken_up(self, store: Store) -> tuple[dict[Key, Trajectory], list[str]]:
        """Returns the episodes that had landed, as far as they are what the tickets ask for, and why others are not.

        The others are left aside. Raises CollectionError if the round is closed with one of them. A measurement that
        closed without some goes on.
        """
        landed, left_aside = store.landed(self.round), []
        for key, episode in [*landed.items()]:
            misfit = _misfit(episode.ticket, self.tickets.get(key), self.round)
            if not misfit:
                continue
            if store.has(self.round):
                raise CollectionError(
                    f"round {self.round.number} ({self.round.purpose}) of {store.root} ended with other episodes than "
                    f"the settings ask for: {episode.episode_id}: {misfit} -> restore its tasks and settings, or "
                    "remove its file, and the round runs again"
                )
            store.leave_aside(self.round, episode)
            left_aside.append(f"{episode.episode_id}: {misfit}")
            del landed[key]
        if store.has(self.round):
            if self.round.purpose == "measure" and len(landed) < len(self.tickets):
                store.reopen(self.round)
            else:
                self.landed, self.missing = landed, set()
        return landed, left_aside


class Pool(ABC):
    """Runs the tickets of all groups on what slots there are, in the order in which they were asked for.

    A ticket is over when its episode is durable and has its verdict, or when it is lost. ``soon``, ``act_with``,
    ``begin``, ``collect`` and ``close`` may be called from any thread, the rest from the one that takes the turns.
    """

    def __init__(
        self, leases: Leases, store: Store, events: Events, status: Status, clock: Clock, set_aside_share: float
    ) -> None:
        """``set_aside_share`` of a round's tickets may be lost (see ``most_set_aside``)."""
        self.leases = leases
        self.store = store
        self.events = events
        self.status = status
        self.clock = clock
        self.judges: Judges | None = None
        """Give each episode its verdict, unless the emulator does."""
        self.goes_on = 0
        """How many callers will ask for more: no end is near, and a slow worker may take what there is."""
        self.each_turn: Callable[[], object] = lambda: None
        self.before_result: Callable[[], object] = lambda: None
        """Called when a round is complete, before its result is told."""
        self._set_aside_share = set_aside_share
        self._checkpoint: Checkpoint | None = None
        """With which new episodes act."""
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._awaited: dict[Key, _Awaited] = {}
        self._rounds: dict[Round, AwaitedRound] = {}
        """Those that are not complete, in the order in which they will be."""
        self._futures: dict[Round, Future[CollectionResult]] = {}
        """Of rounds whose results nobody has taken."""
        self._shown: Group | None = None
        """The one whose progress is shown."""
        self._undelivered: list[Trajectory] = []
        """Landed, and not durable yet."""
        self._in_court: set[Key] = set()
        """Durable, and without a verdict yet."""
        self._between = IterationStats(clock)
        """What happens while no round is collected; the next one has it in its figures."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._attending = threading.Lock()

    # For callers, in any thread.

    def soon(self, call: Callable[[], object]) -> None:
        """Has the next turn begin with this."""
        self._calls.put(call)
        self._wake()

    def act_with(self, checkpoint: Checkpoint) -> None:
        """Has what begins from now on act with the checkpoint."""
        self.soon(partial(setattr, self, "_checkpoint", checkpoint))

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Future[CollectionResult]:
        """Has a round run after those that were begun before, unless it does already; returns what ``collect`` does.

        Whatever begins from now on acts with the checkpoint. Nothing begins before ``attend``.
        """
        wanted = tickets[0].round
        if wanted in self._futures:
            self.soon(partial(self._go_on_with, checkpoint))
        else:
            awaited = AwaitedRound(tickets, self._set_aside_share, self.leases.attempts)
            self._futures[wanted] = awaited.future
            self.soon(partial(self._begin, awaited, checkpoint))
        return self._futures[wanted]

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        future = self.begin(checkpoint, tickets)
        self.attend()  # all that was begun is known before anything is read: workers may bring episodes of it
        try:
            return future.result()
        except BaseException:  # such as Ctrl-C
            self.soon(partial(self._withdraw, tickets[0].round))
            raise
        finally:
            self._futures.pop(tickets[0].round, None)

    def attend(self) -> None:
        """From now on, turns are taken in a thread of its own. Raises CollectionError once this is closed."""
        with self._attending:
            if self._closed.is_set():
                raise CollectionError(_CLOSED)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="collect", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._attending:
            self._closed.set()
            thread = self._thread
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_S)
        if self.judges is not None:
            self.judges.close()

    # For groups.

    def open(self, tickets: Iterable[Ticket], group: Group, landed: Mapping[Key, Trajectory]) -> None:
        """Has tickets run whose episodes have not ``landed`` before, and those judged that have."""
        new = {ticket.key: _Awaited(ticket, group) for ticket in tickets}
        self._awaited |= new
        self._shown = group
        self.leases.add(each.ticket for key, each in new.items() if key not in landed)
        for trajectory in landed.values():
            self._judge(trajectory)

    def take_back(self, key: Key) -> bool:
        """Has nobody run the ticket any more; False if its episode has landed."""
        self._stop(key)
        if is_open := self.leases.take_back(key):
            self._awaited.pop(key, None)
        return is_open

    # For the thread that collects.

    def turn(self, timeout_s: float = _LOOK_S) -> None:
        """Leases what there is, and handles what happens within that time.

        Raises CollectionError if what is open cannot be had; all of it is lost then.
        """
        for _ in range(self._calls.qsize()):  # this is its only reader
            self._calls.get()()
        self.each_turn()
        if self._awaited and (fault := self.leases.faults.everywhere):
            raise CollectionError(f"iteration {self._number}: {fault}; repair it, and start again")
        self._work(timeout_s)
        landed, self._undelivered = self._undelivered, []
        for trajectory in landed:
            self._judge(trajectory)
        self._complete()
        if self._shown is not None:
            wanted, over, count = self._shown.progress
            self.status.collecting(wanted, over + sum(key.round == wanted for key in self._in_court), count)
        else:
            self.status.write_if_due()

    @abstractmethod
    def _work(self, timeout_s: float) -> None:
        """Leases tickets, and has episodes land within that time; those that did are durable at its end."""

    @abstractmethod
    def _wake(self) -> None:
        """Has ``_work`` return. Any thread may call."""

    @abstractmethod
    def _stop(self, key: Key) -> None:
        """Has nobody run the ticket."""

    @abstractmethod
    def _slots(self) -> dict[str, int]:
        """Returns how many slots each worker has."""

    @abstractmethod
    def _is_accounted(self, stats: IterationStats) -> bool:
        """Adds what slots spent their time on; False as long as some have not told. The first call asks them."""

    @property
    def _stats(self) -> IterationStats:
        """The figures of the round that is collected now."""
        return self._head.stats if self._head is not None else self._between

    @property
    def _head(self) -> AwaitedRound | None:
        return next(iter(self._rounds.values()), None)

    @property
    def _missing(self) -> int:
        """Episodes that have not landed, and may."""
        return len(self._awaited) - len(self._in_court)

    @property
    def _number(self) -> int:
        """That of what is collected now, for errors."""
        group = self._head or self._shown
        return group.progress[0].number if group else 0

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.turn()
            except BaseException as error:  # whatever it is, those who wait shall see it
                self._end(error)
                self._closed.wait(_LOOK_S)
        self._end(closed := CollectionError(_CLOSED))
        for future in [*self._futures.values()]:
            if not future.done():  # its round had not begun
                future.set_exception(closed)

    def _end(self, error: BaseException) -> None:
        """Tells all who wait. What has begun goes on, and lands if it comes; the rest begins no more."""
        kind: LossKind = self.leases.usual_loss if self.leases.faults.everywhere else "infrastructure"
        groups = dict.fromkeys([*self._rounds.values(), *(each.group for each in self._awaited.values())])
        self.leases.withdraw(self._awaited)
        self.leases.faults = EqualFaults()
        self._awaited, self._rounds, self._shown = {}, {}, None
        self._in_court.clear()
        for group in groups:
            group.broke(kind, error)

    def _begin(self, awaited: AwaitedRound, checkpoint: Checkpoint) -> None:
        awaited.stats = IterationStats(self.clock)
        if not self._rounds:
            awaited.stats, self._between = self._between, awaited.stats
        self._rounds[awaited.round] = awaited
        landed, left_aside = awaited.taken_up(self.store)
        for reason in left_aside:
            self.events.emit("episode_left_aside", reason=reason)
        if not self.store.has(awaited.round):
            self._checkpoint = checkpoint
            self.open(awaited.tickets.values(), awaited, landed)
        self._look_at_head()

    def _go_on_with(self, checkpoint: Checkpoint) -> None:
        if self._awaited:
            self._checkpoint = checkpoint

    def _withdraw(self, wanted: Round) -> None:
        """Takes back a round; what has begun goes on, and lands if it comes."""
        if (awaited := self._rounds.pop(wanted, None)) is not None:
            self.leases.withdraw(awaited.missing)
            for key in awaited.missing:
                self._awaited.pop(key, None)
            self._in_court -= awaited.missing
            self._look_at_head()

    def _look_at_head(self) -> None:
        """Begins the figures of the round that is collected from now on, unless it was already."""
        head = self._shown = self._head
        if head is not None and not head.is_head:
            head.is_head, head.stats.started_at = True, self.clock()
            for name, slots in self._slots().items():
                head.stats.has_slots(name, slots)

    def _land(self, trajectory: Trajectory, found: Path | bytes, seconds: float) -> bool:
        """Stores an episode that took so long (see ``Store.land``). False if nobody waits for it."""
        key = trajectory.ticket.key
        if not self.leases.land(key):
            return False
        self.store.land(key.round, trajectory, found)
        if (awaited := self._rounds.get(key.round)) is not None:
            awaited.stats.seconds[key] = seconds
        self._undelivered.append(trajectory)
        return True

    def _acts(self, worker: str, slot: int, key: Key) -> None:
        """Notes that a slot sent the first action of an episode."""
        if (awaited := self._rounds.get(key.round)) is not None:
            awaited.stats.acting(worker, slot)

    def _ended_after(self, worker: str, seconds: float, age_s: float = 0.0) -> None:
        """Notes an episode of that length that ended ``age_s`` ago."""
        if self._rounds:
            self._stats.ended(worker, seconds, age_s)

    def _failed(
        self,
        worker: str,
        key: Key,
        reason: str,
        others: Iterable[str] = (),
        attempt: int | None = None,
        by: LossKind = "infrastructure",
    ) -> bool:
        """Has a ticket run again whose episode was lost (see ``Leases.fail``), or returns True: it is set aside."""
        is_set_aside = self.leases.fail(worker, key, reason, [*others], attempt, by)
        if fault := self.leases.faults.news():
            self.events.emit("equal_faults", reason=fault)
        if is_set_aside:
            self.events.emit("ticket_set_aside", **self.leases.why_set_aside(key))
            self._over(key, self.leases.lost(key))
        return is_set_aside

    def _judge(self, trajectory: Trajectory) -> None:
        """Delivers a durable episode, once it has its verdict."""
        key = trajectory.ticket.key
        if self.judges is None:
            self._over(key, trajectory)
        elif key in self._awaited:
            self._in_court.add(key)
            self.judges.consider(trajectory, lambda outcome: self.soon(partial(self._over, key, outcome)))

    def _over(self, key: Key, outcome: Trajectory | Lost | DigirlDistError) -> None:
        self._in_court.discard(key)
        if (each := self._awaited.pop(key, None)) is not None:
            each.group.over(key, outcome)

    def _mend(self) -> None:
        """Finds its way back after a defect stopped a change halfway: what is stored landed, the rest is open."""
        waiting = {each.ticket.key for each in self._undelivered} | self._in_court
        left = {key: each.ticket for key, each in self._awaited.items() if key not in waiting}
        stored = [self.store.landed(one) for one in {key.round for key in left}]
        landed = {key: episode for each in stored for key, episode in each.items() if key in left}
        self._undelivered += landed.values()
        self.leases.mend(ticket for key, ticket in left.items() if key not in landed)

    def _complete(self) -> None:
        """Ends the round that is collected now once its episodes, the accounts and the verdicts are there."""
        head = self._head
        if head is None or len(head.missing) > len(head.missing & self._in_court):
            return
        if head.result is None:
            if not self._is_accounted(head.stats):
                return
            head.result = head.stats.result(head.round, [head.aside[key] for key in sorted(head.aside)])
            self.status.collected(head.round)
            self._shown = None
            if head.missing:
                self.status.host(f"wait for the judge's verdicts on iteration {head.round.number}")
        if head.unjudged is not None:
            raise head.unjudged
        if head.missing:
            return
        self.before_result()
        del self._rounds[head.round]
        self._look_at_head()
        self.leases.close(head.round)
        head.result.trajectories = [head.landed[key] for key in sorted(head.landed)]
        if self.judges is not None:
            head.result.judging = self.judges.figures(self.clock() - head.result.ended_at)
        head.future.set_result(head.result)


def most_set_aside(share: float, wanted: int) -> int:
    """Returns how many of the tickets may be set aside: one in any case, but never all."""
    if share <= 0:
        return 0
    return min(max(1, int(share * wanted + 1e-9)), wanted - 1)


def _misfit(found: Ticket, wanted: Ticket | None, of: Round) -> str:
    """Returns why an episode is not the one that a round wants; empty if it is.

    In training, where iterations overlap, it may act with any policy that there is before the iteration's update.
    """
    if wanted is None:
        return "nothing asks for its ticket"
    if of.purpose == "train" and found.policy_version <= max(of.number, wanted.policy_version):
        wanted = replace(wanted, policy_version=found.policy_version)
    return found.misfit(wanted)
