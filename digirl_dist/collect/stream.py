"""Rollouts that are asked for one by one and delivered as they land: a group of a pool that is never complete."""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from digirl_dist.collect.leases import LossKind, Lost
from digirl_dist.collect.pool import Pool
from digirl_dist.collect.rollout_log import RolloutLog
from digirl_dist.collection import CollectionResult
from digirl_dist.errors import DigirlDistError, RunFolderError, SettingsError
from digirl_dist.tasks import Key, Round, Task, Ticket
from digirl_dist.trajectory import Trajectory

_PAGE = 64
"""Rollouts whose episodes become one file, once all of them are over."""


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


@dataclass
class _Page:
    """Rollouts whose episodes become one file."""

    waiting: int = 0
    delivered: dict[Key, Trajectory] = field(default_factory=dict)
    stays_open: bool = False
    """Whether episodes may still land in it, of rollouts that can be asked for again."""


class Stream:
    """The rollouts of a pool. ``ask``, ``withdraw`` and ``acknowledge`` may be called from any thread, the rest from
    the one that collects. Implements ``pool.Group``.

    Tickets have places in pages (rounds of the run folder). A page whose rollouts are all over becomes a file.
    """

    def __init__(
        self,
        pool: Pool,
        log: RolloutLog,
        first_page: int,
        made: Callable[[Trajectory], Trajectory] = lambda one: one,
        is_judged: bool = False,
    ) -> None:
        """``made`` makes of an episode what is delivered. Rollouts of an earlier process that landed nowhere yet run
        again. ``is_judged``: a judge decides, whose verdicts only the files of pages have."""
        self._pool = pool
        self._store = pool.store
        self._log = log
        self._made = made
        self._is_judged = is_judged
        self._lock = threading.Lock()
        asked = log.tickets().values()  # of which nobody may have begun any
        self._page = max([first_page, *(ticket.iteration + 1 for ticket in asked)])
        self._first = self._index = self._page * _PAGE
        """The index of the page's first ticket and of the next one. Actions are drawn by seed and index, so no other
        page has the same: else rollouts of one seed that lie in two pages would be one episode twice."""
        self._open: dict[Key, Rollout] = {}
        self._by_name: dict[str, Rollout] = {}
        """Those of ``_open`` that have a key."""
        self._due: list[tuple[float, Key]] = []
        """A heap of the deadlines, infinite ones as well; about half of them may be of rollouts that are over."""
        self._pages = {number: _Page() for number in self._store.unfinished() if number < first_page}
        """The pages that are not files yet."""
        self._over_pages = {*self._pages}
        """Those of them whose rollouts are all over."""
        self._delivered = 0
        pool.each_turn = self._turn
        self._resume()

    def _resume(self) -> None:
        """Takes up what an earlier process was asked for: it is durable, so somebody will come for it.

        Where a judge decides, all that landed and is in no file gets its verdict.
        """
        rollouts = {
            key: Rollout(episode.ticket, None, self.withdraw, math.inf)
            for number in (self._pages if self._is_judged else ())
            for key, episode in self._store.landed(Round(number)).items()
        }
        rollouts |= {
            ticket.key: Rollout(ticket, name, self.withdraw, math.inf)
            for name, ticket in self._log.tickets().items()
            if not self._store.has(ticket.round) and not self._found(ticket)
        }
        self._take([*rollouts.values()])

    def ask(self, requests: Sequence[Request], as_page: bool = False) -> list[Rollout]:
        """Returns a rollout for each; those with a key are durable then. ``as_page``: they have a file of their own.

        A key that was asked for before, also by an earlier process, has the rollout that it had, unless that was lost;
        of two deadlines the earlier one counts.
        Raises SettingsError if that was of another task or start.
        """
        with self._lock:
            if as_page:
                self._turn_page()
                self._first = self._index = 0  # a second call with the same seeds gets the same actions
            new: dict[Key, Rollout] = {}
            of: dict[str, Rollout] = {}
            """Those of this call that have a key."""
            rollouts = [self._asked_before(request, of) or self._new(request, new, of) for request in requests]
            self._log.add({name: rollout.ticket for name, rollout in of.items()})
            self._take([*new.values()])
            if as_page:
                self._turn_page()
        return rollouts

    def withdraw(self, rollout: Rollout, why: str = "the caller cancelled it") -> None:
        self._pool.soon(partial(self._cancel, rollout.ticket.key, why))

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

    @property
    def asked(self) -> dict[str, Ticket]:
        """The keys that were asked for and not acknowledged, unless they were lost."""
        return self._log.tickets()

    @property
    def missing(self) -> int:
        return len(self._open)

    @property
    def progress(self) -> tuple[Round, int, int]:
        return Round(self._page), self._delivered, self._delivered + len(self._open)

    def over(self, key: Key, outcome: Trajectory | Lost | DigirlDistError) -> None:
        ended = Lost("infrastructure", str(outcome)) if isinstance(outcome, DigirlDistError) else outcome
        self._deliver(key, ended, asked_again=isinstance(outcome, DigirlDistError))

    def broke(self, kind: LossKind, error: BaseException) -> None:
        """Those with a key can be asked for again, also in another process. What has landed becomes files."""
        with self._lock:
            self._turn_page()
        for key in [*self._open]:
            self._pool.take_back(key)
            self._deliver(key, Lost(kind, str(error)), asked_again=True)
        with suppress(RunFolderError):  # a full disk may be what broke it; the next process makes these files
            self._close_pages()

    def _turn(self) -> None:
        with self._lock:
            while self._due and self._due[0][0] <= self._pool.clock():
                self._pool.soon(partial(self._cancel, heapq.heappop(self._due)[1], "its deadline passed"))
        self._close_pages()

    def _cancel(self, key: Key, why: str) -> None:
        if key in self._open and self._pool.take_back(key):
            self._deliver(key, Lost("cancelled", why), asked_again=False)

    def _new(self, request: Request, new: dict[Key, Rollout], of: dict[str, Rollout]) -> Rollout:
        if self._index - self._first >= _PAGE:
            self._page, self._first = self._page + 1, self._index
        ticket = Ticket(self._page, self._index, request.task, request.seed, policy_version=0)
        self._index += 1
        rollout = new[ticket.key] = Rollout(ticket, request.key, self.withdraw, request.due_at)
        if request.key is not None:
            of[request.key] = rollout
        return rollout

    def _turn_page(self) -> None:
        self._page += self._index > self._first
        self._first = self._index = self._page * _PAGE

    def _asked_before(self, request: Request, of: Mapping[str, Rollout]) -> Rollout | None:
        """Returns the rollout that a key had, with its episode if that landed; ``of`` are those of the same call."""
        if request.key is None:
            return None
        running = of.get(request.key) or self._by_name.get(request.key)
        ticket = self._log.ticket(request.key) if running is None else running.ticket
        if ticket is None:
            return None
        if misfit := ticket.misfit(replace(ticket, task=request.task, seed=request.seed)):
            raise SettingsError(f"key={request.key!r} was asked for before, and not so: {misfit}")
        if running is not None:
            running.due_at = min(running.due_at, request.due_at)
            self._watch_deadline(running)
            return running
        if not (found := self._found(ticket)):
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
        fits = found and not found.ticket.misfit(replace(ticket, policy_version=found.ticket.policy_version))
        return found if fits else None

    def _take(self, rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            self._open[rollout.ticket.key] = rollout
            self._pages.setdefault(rollout.ticket.iteration, _Page()).waiting += 1
            self._over_pages.discard(rollout.ticket.iteration)
            self._watch_deadline(rollout)
            if rollout.key is not None:
                self._by_name[rollout.key] = rollout
        self._pool.soon(partial(self._open_them, rollouts))

    def _open_them(self, rollouts: Sequence[Rollout]) -> None:
        tickets = [rollout.ticket for rollout in rollouts if rollout.ticket.key in self._open]
        landed = {ticket.key: found for ticket in tickets if self._is_judged and (found := self._stored(ticket))}
        self._pool.open(tickets, self, landed)

    def _watch_deadline(self, rollout: Rollout) -> None:
        """Leaves out those of rollouts that are over once they would be most."""
        if rollout.due_at < math.inf:
            heapq.heappush(self._due, (rollout.due_at, rollout.ticket.key))
        if len(self._due) > 2 * len(self._open) + _PAGE:
            self._due = sorted((each.due_at, key) for key, each in self._open.items() if each.due_at < math.inf)

    def _deliver(self, key: Key, outcome: Trajectory | Lost, asked_again: bool) -> None:
        """``asked_again``: a loss that the next process, or whoever asks for the same key, makes good."""
        with self._lock:
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
                page.stays_open |= asked_again
                if isinstance(outcome, Lost) and not asked_again:
                    with suppress(RunFolderError):  # the disk is full: the next process will run it again
                        self._log.forget([rollout.key])
        rollout.set_result(outcome if isinstance(outcome, Lost) else self._made(outcome))

    def _close_pages(self) -> None:
        """Writes each page whose rollouts are all over, and to which none is added any more, as a file."""
        with self._lock:
            over = self._over_pages - {self._page}
            self._over_pages -= over
        for number in sorted(over):
            if not self._pages[number].stays_open:
                self._write(number, self._pages[number].delivered)

    def _write(self, number: int, delivered: Mapping[Key, Trajectory]) -> None:
        """An earlier process may have delivered some of the page; what lacks its verdict waits for the next one."""
        episodes = {**self._store.landed(Round(number)), **delivered}
        if not self._is_judged or len(episodes) == len(delivered):
            self._store.append(CollectionResult(number, [episodes[key] for key in sorted(episodes)]))
            del self._pages[number]
            running = (number for number, page in self._pages.copy().items() if page.waiting)
            self._pool.leases.close(Round(min([*running, self._page])))
