"""Collection that goes on while the host learns: the next iterations begin under the checkpoint that there is."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from digirl_dist.collect import Collector
from digirl_dist.collection import CollectionResult
from digirl_dist.storage.checkpoint import Checkpoint
from digirl_dist.tasks import Round, Ticket

_CLOSE_S = 10.0

Tickets = Callable[[int, int], Sequence[Ticket]]
"""The tickets of an iteration for a policy version (see ``tasks.Plan``)."""


Work = tuple[Sequence[Ticket], "Future[CollectionResult]"]


class Ahead:
    """What is collected, in which order and under which checkpoint; whoever calls ``run`` collects it.

    So an episode's policy is at most ``ahead`` updates older than the iteration it counts in. ``last`` is the number of
    the last iteration that the loop will ask for.
    """

    def __init__(self, inner: Collector, tickets: Tickets, ahead: int, last: int) -> None:
        self.work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        """What ``run`` is to be called with."""
        self._inner = inner
        self._tickets = tickets
        self._ahead = ahead
        self._last = last
        self._newest: Checkpoint | None = None
        self._pending: dict[Round, Future[CollectionResult]] = {}
        self._failed: BaseException | None = None

    def begin(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> Future[CollectionResult]:
        """Asks for these tickets, and for the iterations after them."""
        wanted = tickets[0].round
        self._newest = checkpoint
        if wanted not in self._pending:
            self._submit(tickets)
        if wanted.purpose == "train":  # beside an evaluation, the iterations after it are on their way already
            number = wanted.number
            for later in range(number + 1, min(number + self._ahead, self._last) + 1):
                self.prefetch(checkpoint, self._tickets(later, checkpoint.iteration))
        return self._pending.pop(wanted)

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._inner.prefetch(checkpoint, tickets)
        if tickets[0].round not in self._pending:
            self._submit(tickets)

    def run(self, work: Work) -> None:
        """Collects one iteration under the newest checkpoint; nothing after an error."""
        tickets, future = work
        assert self._newest is not None
        try:
            if self._failed is None:
                future.set_result(self._inner.collect(self._newest, tickets))
            else:
                future.set_exception(self._failed)
        except BaseException as error:  # whatever it is, the loop shall see it
            self._failed = error
            future.set_exception(error)

    def _submit(self, tickets: Sequence[Ticket]) -> None:
        future: Future[CollectionResult] = Future()
        self._pending[tickets[0].round] = future
        self.work.put((tickets, future))


class AheadCollector:
    """Runs any collector in a thread of its own, up to ``ahead`` iterations further than the loop has asked for.

    Errors are raised by the ``collect`` of the iteration that they struck.
    """

    def __init__(self, inner: Collector, tickets: Tickets, ahead: int, last: int) -> None:
        self._inner = inner
        self._order = Ahead(inner, tickets, ahead, last)
        self._thread = threading.Thread(target=self._collect_all, name="collect-ahead", daemon=True)
        self._thread.start()

    def collect(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> CollectionResult:
        return self._order.begin(checkpoint, tickets).result()

    def prefetch(self, checkpoint: Checkpoint, tickets: Sequence[Ticket]) -> None:
        self._order.prefetch(checkpoint, tickets)

    def close(self) -> None:
        """Ends the collection under way, within the inner collector's limits."""
        self._order.work.put(None)
        self._inner.close()
        self._thread.join(_CLOSE_S)

    def _collect_all(self) -> None:
        while (work := self._order.work.get()) is not None:
            self._order.run(work)
