"""Reads what workers say while nobody collects: while the host learns or evaluates, or a notebook is idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from digirl_dist.errors import failure_here
from digirl_dist.fleet.fleet import Fleet
from digirl_dist.fleet.worker_events import LeasesLost, Lost, PolicyLoaded, Pulled, PullRefused, Said, WorkerEvent
from digirl_dist.protocol.messages import Acting, EpisodeFailed, EpisodeReady, Heartbeat, SlotSeconds

_LOOK_S = 1.0


class Rest:
    """Has ``act_on`` handle what concerns workers, in a thread of its own, except within ``paused``.

    What concerns episodes waits for the next collection, and so does all that the same worker says after it. What
    waits is bounded by the workers' ledgers.
    """

    def __init__(
        self,
        fleet: Fleet[Any],
        act_on: Callable[[WorkerEvent], object],
        show: Callable[[Lost], object],
        turn: Callable[[], object],
    ) -> None:
        """``show`` is called with a loss that has to wait; ``turn`` now and then."""
        self._fleet = fleet
        self._act_on = act_on
        self._show = show
        self._turn = turn
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()
        self._is_closed = False

    def begin(self) -> None:
        with self._changing:
            if not self._is_closed:
                self._is_over.clear()
                self._thread = threading.Thread(target=self._read, name="fleet-rest", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends it for good."""
        self._is_closed = True
        self._end()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is read by this within the block; only where it had begun does it go on afterwards."""
        had_begun = self._end()
        try:
            yield
        finally:
            if had_begun:
                self.begin()

    def _end(self) -> bool:
        """Returns whether it had begun."""
        with self._changing:
            thread, self._thread = self._thread, None
            self._is_over.set()
            if thread is not None:
                self._fleet.wake()
                thread.join()
        return thread is not None

    def _read(self) -> None:
        while not self._is_over.is_set():
            event = self._fleet.next_event(_LOOK_S, self._is_left)
            try:
                if event is not None:
                    self._act_on(event)
                self._turn()
            except Exception as defect:
                worker = self._fleet.workers.get(getattr(event, "worker", ""))
                if worker is None:
                    raise
                worker.refuse(failure_here(worker.spec.name, f"handle a {type(event).__name__}", defect))

    def _is_left(self, event: WorkerEvent, is_later: bool) -> bool:
        if is_later and isinstance(event, Lost):
            self._show(event)
        match event:
            case Said(message=Heartbeat()):
                return False
            case Said(message=Acting() | EpisodeReady() | EpisodeFailed() | SlotSeconds()):
                return True
            case Pulled() | PullRefused() | LeasesLost() | PolicyLoaded():
                return True
        return is_later
