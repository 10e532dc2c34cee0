"""Rollouts that are asked for one by one and delivered as they land: a collection that is never complete."""

from __future__ import annotations

import asyncio
import heapq
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from digirl_dist.collect.equal_faults import EqualFaults
from digirl_dist.collect.leases import Leases, LossKind
from digirl_dist.collect.rollout_log import RolloutLog
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import CollectionError, RunFolderError, SettingsError
from digirl_dist.storage.trajectory_store import Store
from digirl_dist.tasks import Key, Round, Task, Ticket
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Clock

_PAGE = 64
"""Rollouts whose episodes become one file, once all of them are over."""


@dataclass(frozen=True)
class Lost:
    """Why a rollout has no episode. A loss is never an episode with a reward of 0."""

    kind: LossKind
    reason: str


class Rollout(Future["Trajectory | Lost"]):
    """A rollout that was asked for: a future of its episode, or of the reason why there is none. It can be awaited."""

    def __init__(self, ticket: Ticket, key: str | None, withdraw: Callable[[Rollout], None], due_at: float) -> None:
        super().__init__()
        self.ticket = ticket
        """Task, seed, and the place in the run folder."""
        self.key = key
        """The caller's own name for it; None: it has none, and nobody can ask for it again."""
        self.due_at = due_at
        self._withdraw = withdraw

    def cancel(self) -> bool:
        """Has nobody run it any more; its result is ``Lost("cancelled", …)``. False if it was over already."""
        if self.done():
            return False
        self._withdraw(self)
        return True

    def __await__(self) -> Generator[Any, None, Trajectory | Lost]:
        return asyncio.wrap_future(self).__await__()


@dataclass(frozen=True)
class Request:
    """What is asked for: a task, how it starts, and until when it is to be had."""

    task: Task
    seed: int
    key: str | None = None
    due_at: float = math.inf
    """Monotonic seconds."""


Judge = Callable[[Trajectory, Callable[["Trajectory | Lost"], None]], None]
"""Calls the function with the episode and its verdict, from any thread."""


@dataclass
class _Page:
    """Rollouts whose episodes become one file."""

    waiting: int = 0
    delivered: dict[Key, Trajectory] = field(default_factory=dict)


class Stream:
    """The rollouts of a fleet. ``ask``, ``withdraw`` and ``acknowledge`` may be called from any thread, the rest from
    the one that collects.

    Tickets have places in pages (rounds of the run folder). A page whose rollouts are all over becomes a file.
    """

    def __init__(
        self,
        store: Store,
        log: RolloutLog,
        first_page: int,
        clock: Clock,
        made: Callable[[Trajectory], Trajectory] = lambda one: one,
        is_judged: bool = False,
    ) -> None:
        """``made`` makes of an episode what is delivered. Rollouts of an earlier process that landed nowhere yet run
        again. ``is_judged``: there will be a judge, whose verdicts only the files of pages have."""
        self.clock = clock
        self.wake: Callable[[], None] = lambda: None
        """Has the collector take a turn."""
        self.judge: Judge | None = None
        """Gives each episode its verdict, unless the emulator does."""
        self.goes_on = 0
        """How many callers will ask for more: no end is near, and a slow worker may take what there is."""
        self._store = store
        self._log = log
        self._made = made
        self._is_judged = is_judged
        self._lock = threading.Lock()
        asked = [ticket.iteration for ticket in log.tickets().values()]  # of which nobody may have begun any
        self._page, self._index = max([first_page, *(page + 1 for page in asked)]), 0
        self._open: dict[Key, Rollout] = {}
        self._by_name: dict[str, Rollout] = {}
        """Those of ``_open`` that have a key."""
        self._asked: queue.SimpleQueue[Rollout] = queue.SimpleQueue()
        self._withdrawn: queue.SimpleQueue[tuple[Rollout, str]] = queue.SimpleQueue()
        self._judged: queue.SimpleQueue[tuple[Key, Trajectory | Lost]] = queue.SimpleQueue()
        self._due: list[tuple[float, Key]] = []
        """A heap of the deadlines."""
        self._pages = {number: _Page() for number in store.unfinished() if number < first_page}
        """The pages that are not files yet."""
        self._over_pages = {*self._pages}
        """Those of them whose rollouts are all over."""
        self._landed: list[Trajectory] = []
        """Not durable yet."""
        self._in_court: set[Key] = set()
        """Landed, and without a verdict yet."""
        self._delivered = 0
        self._leases: Leases | None = None
        self._is_closed = False
        self._resume()

    def _resume(self) -> None:
        """Takes up what an earlier process was asked for: it is durable, so somebody will come for it."""
        for name, ticket in self._log.tickets().items():
            if not self._store.has(ticket.round) and not self._found(ticket):
                self._take(Rollout(ticket, name, self.withdraw, math.inf))

    def ask(self, requests: Sequence[Request], as_page: bool = False) -> list[Rollout]:
        """Returns a rollout for each; those with a key are durable then. ``as_page``: they have a file of their own.

        A key that was asked for before, also by an earlier process, has the rollout that it had, unless that was lost;
        of two deadlines the earlier one counts.
        Raises SettingsError if that was of another task or start.
        """
        with self._lock:
            if as_page:
                self._turn_page()
            new: dict[Key, Rollout] = {}
            of: dict[str, Rollout] = {}
            """Those of this call that have a key."""
            rollouts = [self._asked_before(request, of) or self._new(request, new, of) for request in requests]
            self._log.add({name: rollout.ticket for name, rollout in of.items()})
            for rollout in new.values():
                self._take(rollout)
            if as_page:
                self._turn_page()
        self.wake()
        return rollouts

    def withdraw(self, rollout: Rollout, why: str = "the caller cancelled it") -> None:
        self._withdrawn.put((rollout, why))
        self.wake()

    def landed_as(self, name: str) -> Trajectory | None:
        """Returns the episode of a key; None if there is none, or not yet."""
        with self._lock:
            ticket = None if name in self._by_name else self._log.ticket(name)
        found = None if ticket is None else self._found(ticket)
        return None if found is None else self._made(found)

    def acknowledge(self, names: Iterable[str]) -> None:
        """Forgets these keys for good. Whoever asks for one again gets a new rollout."""
        done = list(names)
        with self._lock:
            self._log.forget(done)
            for name in done:
                self._by_name.pop(name, None)

    def close(self) -> None:
        self._is_closed = True
        self.wake()

    # What a collector needs to know of a collection under way.

    @property
    def round(self) -> Round:
        return Round(self._page)

    @property
    def number(self) -> int:
        return self._page

    @property
    def missing(self) -> int:
        return len(self._open)

    @property
    def landed(self) -> int:
        return self._delivered

    @property
    def wanted(self) -> int:
        return self._delivered + len(self._open)

    @property
    def is_over(self) -> bool:
        """Raises CollectionError if all rollouts meet the same fault everywhere."""
        if self._leases is not None and (fault := self._leases.faults.everywhere):
            raise CollectionError(f"{fault}; repair it, and ask again")
        return self._is_closed

    def begin_later(self, tickets: Sequence[Ticket]) -> None:
        """Nothing comes later: every rollout may begin at once."""

    def begin(self, leases: Leases, wake: Callable[[], None]) -> None:
        """From now on a collector runs what is asked for, with these leases."""
        self._leases, self.wake = leases, wake
        leases.faults = EqualFaults()
        with self._lock:
            while not self._asked.empty():
                self._asked.get()
            for key in leases.tickets.keys() - self._open.keys():  # lost when a collection before this one ended
                leases.take_back(key)
            tickets = {key: rollout.ticket for key, rollout in self._open.items()}
            landed = {key: found for key in tickets if self.judge and (found := self._stored(tickets[key]))}
            leases.add(ticket for key, ticket in tickets.items() if key not in landed)
        for trajectory in landed.values():  # of a process that ended before it delivered the verdict
            self._have_judged(trajectory)

    def end(self, why: str) -> None:
        """Nobody runs anything any more: what is open is lost. Those with a key can be asked for again."""
        met_by_all = self._leases is not None and self._leases.faults.everywhere
        lost = Lost(self._leases.usual_loss if self._leases and met_by_all else "infrastructure", why)
        self._leases, self.wake = None, lambda: None
        with self._lock:
            self._turn_page()
            kept = {rollout.ticket.iteration for rollout in self._by_name.values()}
        for key in [*self._open]:
            self._over(key, lost)
        for number in kept:  # no files yet, as episodes may still land in them
            del self._pages[number]
        self._over_pages -= kept
        self._close_pages()

    def turn(self) -> list[Key]:
        """Takes in what was asked for, withdrawn and judged since the last turn.

        Returns the tickets that nobody wants any more.
        """
        assert self._leases is not None
        if asked := [self._asked.get().ticket for _ in range(self._asked.qsize())]:  # this is its only reader
            self._leases.add(asked)
        while not self._judged.empty():
            self._over(*self._judged.get())
        gone = self._take_back()
        for key in [key for key in self._leases.set_aside if key in self._open]:
            failures = self._leases.set_aside[key]
            reasons = "; ".join(f"on {each.worker}: {each.reason}" for each in failures)
            self._over(key, Lost(failures[-1].kind, f"it failed {len(failures)} times: {reasons}"))
        self._close_pages()
        return gone

    def land(self, trajectory: Trajectory, found: Path | bytes) -> bool:
        """Stores the episode (see ``Store.land``). False if nobody waits for it."""
        assert self._leases is not None
        key = trajectory.ticket.key
        if not self._leases.land(key):
            return False
        self._store.land(key.round, trajectory, found)
        self._landed.append(trajectory)
        return True

    def made_durable(self) -> None:
        """Delivers what has landed, or has it judged."""
        landed, self._landed = self._landed, []
        for trajectory in landed:
            self._have_judged(trajectory)

    def mend(self) -> None:
        """Finds its way back after a defect stopped a change halfway: what is durable landed, the rest is open."""
        assert self._leases is not None
        waiting = {each.ticket.key for each in self._landed} | self._in_court
        self._leases.mend(rollout.ticket for key, rollout in self._open.items() if key not in waiting)

    def _new(self, request: Request, new: dict[Key, Rollout], of: dict[str, Rollout]) -> Rollout:
        if self._index >= _PAGE:
            self._turn_page()
        ticket = Ticket(self._page, self._index, request.task, request.seed, policy_version=0)
        self._index += 1
        rollout = new[ticket.key] = Rollout(ticket, request.key, self.withdraw, request.due_at)
        if request.key is not None:
            of[request.key] = rollout
        return rollout

    def _turn_page(self) -> None:
        if self._index:
            self._page, self._index = self._page + 1, 0

    def _asked_before(self, request: Request, of: Mapping[str, Rollout]) -> Rollout | None:
        """Returns the rollout that a key had, with its episode if that landed; ``of`` are those of the same call."""
        if request.key is None:
            return None
        running = of.get(request.key) or self._by_name.get(request.key)
        ticket = self._log.ticket(request.key) if running is None else running.ticket
        if ticket is None:
            return None
        wanted = replace(ticket, task=request.task, seed=request.seed)
        if misfit := ticket.misfit(wanted):
            raise SettingsError(f"key={request.key!r} was asked for before, and not so: {misfit}")
        if running is not None:
            running.due_at = min(running.due_at, request.due_at)
            self._watch_deadline(running)
            return running
        found = self._found(ticket)
        if not found:
            return None
        rollout = Rollout(ticket, request.key, self.withdraw, request.due_at)
        rollout.set_result(self._made(found))
        return rollout

    def _found(self, ticket: Ticket) -> Trajectory | None:
        """Returns the episode of a ticket, with its verdict, if it landed and is the one that was asked for."""
        page = self._pages.get(ticket.iteration)
        if page is not None and ticket.key in page.delivered:
            return page.delivered[ticket.key]
        return None if self._is_judged and not self._store.has(ticket.round) else self._stored(ticket)

    def _stored(self, ticket: Ticket) -> Trajectory | None:
        found = self._store.landed(ticket.round).get(ticket.key)
        if found is None or found.ticket.misfit(replace(ticket, policy_version=found.ticket.policy_version)):
            return None
        return found

    def _take(self, rollout: Rollout) -> None:
        self._open[rollout.ticket.key] = rollout
        self._pages.setdefault(rollout.ticket.iteration, _Page()).waiting += 1
        self._over_pages.discard(rollout.ticket.iteration)
        self._watch_deadline(rollout)
        if rollout.key is not None:
            self._by_name[rollout.key] = rollout
        self._asked.put(rollout)

    def _watch_deadline(self, rollout: Rollout) -> None:
        if rollout.due_at < math.inf:
            heapq.heappush(self._due, (rollout.due_at, rollout.ticket.key))

    def _take_back(self) -> list[Key]:
        """Ends what was withdrawn, or is due; returns those tickets."""
        assert self._leases is not None
        while self._due and self._due[0][0] <= self.clock():
            if late := self._open.get(heapq.heappop(self._due)[1]):
                self._withdrawn.put((late, "its deadline passed"))
        gone = []
        while not self._withdrawn.empty():
            rollout, why = self._withdrawn.get()
            key = rollout.ticket.key
            if key in self._open and self._leases.take_back(key):
                gone.append(key)
                self._over(key, Lost("cancelled", why))
        return gone

    def _have_judged(self, trajectory: Trajectory) -> None:
        """Delivers the episode once it has its verdict."""
        key = trajectory.ticket.key
        if self.judge is None:
            self._over(key, trajectory)
        else:
            self._in_court.add(key)
            self.judge(trajectory, partial(self._judged_as, key))

    def _judged_as(self, key: Key, outcome: Trajectory | Lost) -> None:
        self._judged.put((key, outcome))
        self.wake()

    def _over(self, key: Key, outcome: Trajectory | Lost) -> None:
        with self._lock:
            self._in_court.discard(key)
            rollout = self._open.pop(key, None)
            if rollout is None:
                return
            self._delivered += 1
            page = self._pages[key.iteration]
            page.waiting -= 1
            if not page.waiting:
                self._over_pages.add(key.iteration)
            if not isinstance(outcome, Lost):
                page.delivered[key] = outcome
            if rollout.key is not None and self._by_name.get(rollout.key) is rollout:  # not acknowledged and asked anew
                del self._by_name[rollout.key]
                if isinstance(outcome, Lost) and self._leases is not None:
                    with suppress(RunFolderError):  # the disk is full: the next process will run it again
                        self._log.forget([rollout.key])
        rollout.set_result(outcome if isinstance(outcome, Lost) else self._made(outcome))

    def _close_pages(self) -> None:
        """Writes each page whose rollouts are all over, and to which none is added any more, as a file."""
        with self._lock:
            over = self._over_pages - {self._page}
            self._over_pages -= over
            pages = {number: self._pages.pop(number) for number in sorted(over)}
        for number, page in pages.items():
            self._write(number, page.delivered)

    def _write(self, number: int, delivered: Mapping[Key, Trajectory]) -> None:
        """An earlier process may have delivered some of the page."""
        episodes = {**self._store.landed(Round(number)), **delivered}
        self._store.append(CollectionResult(number, [episodes[key] for key in sorted(episodes)]))
        if self._leases is not None:
            aside = [key for key in self._leases.set_aside if key.iteration == number]
            self._leases.close(Round(min([*self._pages, self._page])), aside)
