"""Several inference servers with the same weights, which share the requests."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from digirl_dist.chat.client import Outage
from digirl_dist.errors import ChatAway, ChatError, ChatRefused
from digirl_dist.inference.engine_policies import SleepingAgent
from digirl_dist.storage.checkpoint import State
from digirl_dist.trajectory import Decision, Observation
from digirl_dist.types import T

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


@dataclass(eq=False)
class _Server:
    agent: SleepingAgent
    busy: int = 0
    """Requests that it is answering."""
    away_until: float = 0.0
    pause_s: float = 0.0
    """For how long it is left out after it failed; 0 if it answers."""


class SpreadAgent:
    """Fulfils ``SleepingAgent``: each request goes to the server that answers the fewest.

    A server that is away, or refuses what another answers, is left out, and tried again after pauses that grow. It gets
    the weights that it missed with the first request for them.
    """

    def __init__(self, agents: Sequence[SleepingAgent], outage_s: float, lost: Callable[[Outage], None]) -> None:
        """``outage_s`` is the longest wait while all servers are away; ``lost`` is called when one is lost."""
        self._servers = [_Server(agent) for agent in agents]
        self._outage_s = outage_s
        self._lost = lost
        self._changed = threading.Condition()
        self._is_closed = False

    def load(self, version: int, state: State) -> str:
        return self._of_all(lambda agent: agent.load(version, state), but_lost=True)

    def unload(self, adapter: str) -> None:
        self._of_all(lambda agent: agent.unload(adapter))

    def sleep(self) -> None:
        self._of_all(lambda agent: agent.sleep())

    def wake(self) -> None:
        self._of_all(lambda agent: agent.wake())

    def decide(self, adapter: str, observation: Observation, rng: np.random.Generator) -> Decision:
        """Asks one server after the other until one answers, each with the same randomness."""
        give_up_at = time.monotonic() + self._outage_s
        failed: dict[_Server, ChatError] = {}
        while (server := self._least_busy(give_up_at, failed)) is not None:
            try:
                decision = server.agent.decide(adapter, observation, copy.deepcopy(rng))
            except ChatAway as error:
                self._note_loss(server, error)
                failed[server] = error
            except ChatRefused as error:
                if server in failed:
                    raise
                failed[server] = error
            else:
                for other, why in failed.items():
                    if isinstance(why, ChatRefused) and other is not server:
                        self._note_loss(other, why)
                server.pause_s = server.away_until = 0.0
                return decision
            finally:
                with self._changed:
                    server.busy -= 1
                    self._changed.notify_all()  # it may be there again
        raise next(reversed(failed.values()), ChatAway(f"all {len(self._servers)} servers of engine.url are away"))

    def close(self) -> None:
        """Ends waiting for servers that are away."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _least_busy(self, give_up_at: float, failed: Collection[_Server]) -> _Server | None:
        """Returns a server that is there, first one that did not fail this request. One request at a time tries a lost
        one. Waits while there is none; returns None if it is closed, or there is none by ``give_up_at``."""
        with self._changed:
            while not self._is_closed:
                now, soonest = time.monotonic(), min(server.away_until for server in self._servers)
                there = [server for server in self._servers if server.away_until <= now]
                if there and (now < give_up_at or not all(server in failed for server in there)):
                    chosen = min(there, key=lambda server: (server in failed, server.busy))
                    chosen.busy += 1
                    if chosen.pause_s:
                        chosen.away_until = now + chosen.pause_s
                    return chosen
                if now >= give_up_at:
                    break
                self._changed.wait(min(soonest, give_up_at) - now)
        return None

    def _note_loss(self, server: _Server, error: ChatError) -> None:
        with self._changed:
            is_new = server.pause_s == 0
            if is_new or server.busy <= 1:  # not once more for each request that was lost with it
                server.pause_s = min(max(2 * server.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            server.away_until = time.monotonic() + server.pause_s
            left = sum(each.pause_s == 0 for each in self._servers)
        if is_new:
            self._lost(Outage(f"{error}; {left} of {len(self._servers)} servers go on", server.pause_s, self._outage_s))

    def _of_all(self, call: Callable[[SleepingAgent], T], but_lost: bool = False) -> T:
        """Calls each server, or those that are not left out (``but_lost``) if there are any; one that is away or
        refuses misses it. Waits while all are away. Raises ChatError if none answers."""
        give_up_at = time.monotonic() + self._outage_s
        while True:
            now, answers, failed = time.monotonic(), [], None
            there = [server for server in self._servers if server.away_until <= now or not but_lost]
            for server in there or self._servers:
                try:
                    answers.append(call(server.agent))
                except ChatError as error:
                    failed = error
                    self._note_loss(server, error)
            if answers or failed is None:
                return answers[0]
            with self._changed:
                now = time.monotonic()
                if self._is_closed or now >= give_up_at or isinstance(failed, ChatRefused):
                    raise failed
                self._changed.wait(min(give_up_at, *(server.away_until for server in self._servers)) - now)
