"""Emulators that a rank steps itself, watched: no other process can see where one of them hangs, or end it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from digirl_dist.emulator import Emulator
from digirl_dist.tasks import Task
from digirl_dist.trajectory import Observation, Transition
from digirl_dist.types import Json, T
from digirl_dist.user_code.blame import at_work

_PATIENCE_S = 10.0
_LOOK_S = 1.0


class Watch:
    """Says which call of an emulator does not return: after ten seconds, and again when that time has doubled.

    After ``limit_s`` it ends this process with status 1; a call into foreign code cannot be interrupted otherwise.
    """

    def __init__(self, say: Callable[[str], object], limit_s: float) -> None:
        self._limit_s = limit_s
        self.call: tuple[str, str] | None = None
        """The call under way and its emulator; another object for each call."""
        self._say = say

    @contextmanager
    def kept(self) -> Iterator[Watch]:
        """Watches until the block ends."""
        ended = threading.Event()
        threading.Thread(target=self._look, args=[ended], name="emulator-watch", daemon=True).start()
        try:
            yield self
        finally:
            ended.set()

    def _look(self, ended: threading.Event) -> None:
        seen, since, patience_s = self.call, time.monotonic(), _PATIENCE_S
        while not ended.wait(_LOOK_S):
            if self.call is not seen:
                seen, since, patience_s = self.call, time.monotonic(), _PATIENCE_S
            took_s = time.monotonic() - since
            if seen is not None and took_s >= min(patience_s, self._limit_s):
                patience_s *= 2
                self._tell(*seen, took_s)

    def _tell(self, what: str, name: str, took_s: float) -> None:
        place = at_work()
        waited = f"{took_s:.0f} s for the {what} of {name}" + (f" (at {place})" if place else "")
        if took_s < self._limit_s:
            self._say(f"has waited {waited}; distributed.gate_s ends the run after {self._limit_s:g} s\n")
            return
        self._say(f"failed: it has waited {waited}, longer than distributed.gate_s={self._limit_s:g} allows\n")
        os._exit(1)


class WatchedEmulator:
    """An emulator whose calls a ``Watch`` knows of."""

    def __init__(self, emulator: Emulator, watch: Watch, name: str) -> None:
        self._emulator = emulator
        self._watch = watch
        self._name = name

    def reset(self, task: Task, seed: int) -> Observation:
        return self._watched("reset", self._emulator.reset, task, seed)

    def step(self, action: Json) -> Transition:
        return self._watched("step", self._emulator.step, action)

    def close(self) -> None:
        self._watched("close", self._emulator.close)

    def _watched(self, what: str, call: Callable[..., T], *arguments: Any) -> T:
        self._watch.call = (what, self._name)
        try:
            return call(*arguments)
        finally:
            self._watch.call = None
