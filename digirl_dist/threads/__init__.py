"""Threads that all workers share: they do queued work in order, and a queue with no work holds none."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

Work = Callable[[], object]

_IDLE_S = 10.0


class SharedThreads:
    """Daemon threads for work that may wait as long as it likes: if none is idle, one more is started.

    One that has been idle for ``idle_s`` ends, except for the last: with that one, work goes on even while the machine
    refuses any more. None is joined at the end of the interpreter.
    """

    def __init__(self, idle_s: float = _IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Work]] = []

    def run(self, work: Work) -> None:
        """Has a thread do the work; returns at once. Raises RuntimeError if a thread is needed and is refused."""
        with self._lock:
            # The latest to become idle, so that those beyond the need grow old.
            given = self._idle.pop() if self._idle else None
        if given is not None:
            given.put(work)
        else:
            threading.Thread(target=self._live, args=[deque([work])], name="shared", daemon=True).start()

    def _live(self, work: deque[Work]) -> None:
        """Keeps no reference to work that is done: it may hold the last one to a connection."""
        given: queue.SimpleQueue[Work] = queue.SimpleQueue()
        while work:
            work.pop()()
            with self._lock:
                self._idle.append(given)
            work.extend(self._next(given))

    def _next(self, given: queue.SimpleQueue[Work]) -> list[Work]:
        """Returns the next work; none once this thread was idle for too long and is not the last that is."""
        while True:
            with suppress(queue.Empty):
                return [given.get(timeout=self._idle_s)]
            with self._lock:
                if given in self._idle and len(self._idle) > 1:
                    self._idle.remove(given)
                    return []


_ALL = SharedThreads()


@contextmanager
def after(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Makes a call in a thread of its own, unless the block ends before."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def fulfil(done: Future[Any], work: Callable[[], Any]) -> None:
    """Does the work, unless nobody waits for it any more; whoever waits is told."""
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)


class Threads:
    """Daemon threads that do work side by side: what hangs in one does not delay an exit.

    All are started at once, so that a run's threads do not grow in number with the rarest coincidence; where the
    machine refuses some, the others do their work.
    """

    def __init__(self, count: int, name: str) -> None:
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._count = count
        for started in range(count):
            try:
                threading.Thread(target=self._live, name=f"{name}-{started}", daemon=True).start()
            except RuntimeError:  # can't start new thread
                if not started:
                    raise
                break

    def do(self, work: Work) -> None:
        """Queues the work, which must not raise; returns at once."""
        self._waiting.put(work)

    def close(self) -> None:
        """Ends each thread after what was queued before."""
        for _ in range(self._count):
            self._waiting.put(None)

    def _live(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()


class SerialQueue:
    """Does pieces of work one after the other, in the order in which they came.

    The first that raises ends it: ``failed`` gets the exception, and what waits is never done.
    """

    def __init__(self, name: str, failed: Callable[[Exception], None], threads: SharedThreads = _ALL) -> None:
        """A thread that works for it bears this name meanwhile."""
        self._name = name
        self._failed = failed
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        self._has_thread = False
        self._is_closed = False

    def do(self, work: Work) -> None:
        """Queues the work; returns at once. Where the machine refuses a thread for it, ``failed`` is called here."""
        with self._lock:
            if self._is_closed:
                return
            self._waiting.append(work)
            if self._has_thread:
                return
            self._has_thread = True
        try:
            self._threads.run(self._work)
        except RuntimeError as error:  # can't start new thread
            self._fail(error)

    def close(self, at_once: bool = False) -> None:
        """Takes no more work; what came before is done, except ``at_once``: then only what has begun."""
        with self._lock:
            self._is_closed = True
            if at_once:
                self._waiting.clear()

    def _work(self) -> None:
        thread = threading.current_thread()
        before, thread.name = thread.name, self._name
        try:
            while (work := self._next()) is not None:
                work()
        except Exception as error:
            self._fail(error)
        finally:
            thread.name = before

    def _next(self) -> Work | None:
        with self._lock:
            if not self._waiting:
                self._has_thread = False
                return None
            return self._waiting.popleft()

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
        self._failed(error)
