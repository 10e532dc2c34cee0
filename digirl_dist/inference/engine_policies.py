"""Hands the requests of all workers to an inference server, which batches them itself."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from digirl_dist.chat.client import Outage
from digirl_dist.errors import AgentError, ChatError, DigirlDistError
from digirl_dist.inference.requests import InferenceFailure, InferenceReply, InferenceRequest, result
from digirl_dist.storage.checkpoint import Checkpoint, State
from digirl_dist.storage.events import Events
from digirl_dist.storage.status import Status, WorkerStatus
from digirl_dist.threads import Threads
from digirl_dist.trajectory import Decision, Observation

_END_S = 10.0


@runtime_checkable
class ServedAgent(Protocol):
    """An agent whose weights lie in a server that acts with them. Every method raises ChatError if that fails."""

    def load(self, version: int, state: State) -> str:
        """Hands over the weights of a version; returns the name by which the server knows them."""

    def unload(self, adapter: str) -> None:
        """Makes the server forget weights."""

    def decide(self, adapter: str, observation: Observation, rng: np.random.Generator) -> Decision:
        """Returns one decision by the weights of that name."""


class SleepingAgent(ServedAgent, Protocol):
    """One whose server can release its GPU's memory."""

    def sleep(self) -> None:
        """Releases it until ``wake``: nothing may be asked meanwhile."""

    def wake(self) -> None:
        """Makes the server ready to answer again."""


class Outages:
    """Reports an outage of a server once: as an event, and as the trouble of the host's policy."""

    def __init__(self, events: Events, status: Status, server: str) -> None:
        self._events, self._server = events, server
        self._seen = status.policy = WorkerStatus(f"act through {server}")
        self._is_away = False

    def __call__(self, outage: Outage) -> None:
        """A request failed."""
        self._seen.last_trouble, self._seen.troubled_at = outage.reason, time.monotonic()
        if not self._is_away:
            self._is_away = True
            self._events.emit(
                "engine_away", server=self._server, reason=outage.reason, gives_up_in_s=outage.gives_up_in_s
            )

    def over(self) -> None:
        """Notes that a request was answered."""
        self._is_away = False


@dataclass
class _Version:
    checkpoint: Checkpoint
    began_at: float = field(default_factory=time.monotonic)
    adapter: Future[str] = field(default_factory=Future)
    asked: int = 0
    """Requests that it is answering, which outlive its use: episodes that began under others act with the newest."""


class EnginePolicies:
    """Fulfils HostPolicy. Each request goes to the server by itself, at most ``at_once`` at a time.

    Its threads end with the process: a server may take its time over a limit.
    """

    def __init__(
        self,
        agent: ServedAgent,
        at_once: int,
        outages: Outages,
        close: Callable[[], None],
        newest: bool = False,
        sleeper: SleepingAgent | None = None,
    ) -> None:
        """``close`` ends all waiting for the server. ``newest``: that version acts for all episodes.

        ``sleeper`` is the agent again, if its server is to sleep while nothing is collected.
        """
        self._agent = agent
        self._sleeper = sleeper
        self._quiet = threading.Condition()
        self._busy = 0
        """Calls of the server that are under way."""
        self._is_asleep = False
        self._outages = outages
        self._close = close
        self._newest = newest
        self._versions: dict[int, _Version] = {}
        self._lock = threading.Lock()
        self._loads = Threads(1, "engine-load")
        self._unloads = Threads(1, "engine-unload")
        self._requests = Threads(at_once, "engine")

    def serve(self, checkpoint: Checkpoint, in_use: Set[int]) -> None:
        if self._is_asleep:
            self._loads.do(self._wake)
        with self._lock:
            before, version = self._versions, checkpoint.iteration
            self._versions = {each: known for each, known in before.items() if each in in_use or each == version}
            known = self._versions.get(version)
            if known is None or known.checkpoint.tensors != checkpoint.tensors:
                self._begin(checkpoint)
            for each in before.values():
                self._let_go(each)

    def ask(self, request: InferenceRequest, tell: Callable[[InferenceReply], None]) -> None:
        asked_at = time.monotonic()

        def answer() -> None:
            reply = self._reply(request, asked_at)
            with suppress(Exception):  # of one who does not want the answer any more
                tell(reply)

        self._requests.do(answer)

    def rest(self) -> None:
        """Sends the server to sleep, once it has answered what it was asked, if it is to."""
        if self._sleeper is None or self._is_asleep:
            return
        with self._quiet:
            self._is_asleep = True
            self._quiet.wait_for(lambda: not self._busy)
        try:
            self._sleeper.sleep()
        except ChatError as error:
            self._outages(Outage(str(error), 0.0, 0.0))

    def close(self) -> None:
        """Gives the server's memory back if it is free to do so, and ends waiting."""
        self._wake()
        for known in self._versions.values():
            self._unloads.do(lambda known=known: self._unload(known))  # type: ignore[misc]
        ended = threading.Event()
        self._unloads.do(ended.set)
        ended.wait(_END_S)
        self._close()
        for threads in (self._loads, self._unloads, self._requests):
            threads.close()

    def _begin(self, checkpoint: Checkpoint) -> _Version:
        loading = self._versions[checkpoint.iteration] = _Version(checkpoint)
        self._loads.do(lambda: self._load(loading))
        return loading

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Waits while the server sleeps, and keeps it awake."""
        with self._quiet:
            self._quiet.wait_for(lambda: not self._is_asleep)
            self._busy += 1
        try:
            yield
        finally:
            with self._quiet:
                self._busy -= 1
                self._quiet.notify_all()

    def _wake(self) -> None:
        """A failure is told; the requests fail then, too."""
        if self._sleeper is None or not self._is_asleep:
            return
        try:
            self._sleeper.wake()
        except ChatError as error:
            self._outages(Outage(str(error), 0.0, 0.0))
        with self._quiet:
            self._is_asleep = False
            self._quiet.notify_all()

    def _load(self, version: _Version) -> None:
        try:
            with self._awake():
                adapter = self._agent.load(version.checkpoint.iteration, version.checkpoint.state())
            version.adapter.set_result(adapter)
            self._outages.over()
        except Exception as error:  # whoever waits for it is told
            version.adapter.set_exception(error)

    def _unload(self, version: _Version) -> None:
        with suppress(Exception):  # it lies there until the server or the run starts again
            adapter = version.adapter.result()
            with self._awake():
                self._agent.unload(adapter)

    def _reply(self, request: InferenceRequest, asked_at: float) -> InferenceReply:
        try:
            with self._acting(request.version, asked_at) as acting:
                adapter = acting.adapter.result()
                with self._awake():
                    decision = self._agent.decide(adapter, request.observation, request.stream.rng)
        except DigirlDistError as error:
            return InferenceFailure(request.number, str(error))
        except Exception:  # a defect here must not leave a worker without an answer
            return InferenceFailure(request.number, traceback.format_exc())
        self._outages.over()
        return result(request, decision, acting.checkpoint.iteration)

    @contextmanager
    def _acting(self, version: int, asked_at: float) -> Iterator[_Version]:
        """Yields what acts in an episode of that version, and keeps it: the newest that is loaded, or is loading.

        A version that could not be loaded before the request came is tried again.
        """
        with self._lock:
            loaded = [each for each, known in self._versions.items() if known.adapter.done()]
            acting = self._versions.get(max([version, *loaded]) if self._newest else version)
            if acting is None:
                raise AgentError(f"the host no longer acts with policy version {version}: it is out of use")
            failed = acting.adapter.done() and acting.adapter.exception() is not None
            if failed and acting.began_at < asked_at:
                acting = self._begin(acting.checkpoint)
            acting.asked += 1
        try:
            yield acting
        finally:
            with self._lock:
                acting.asked -= 1
                self._let_go(acting)

    def _let_go(self, version: _Version) -> None:
        """Unloads a version that is out of use, once nothing is asked of it."""
        if not version.asked and version is not self._versions.get(version.checkpoint.iteration):
            self._unloads.do(lambda: self._unload(version))
