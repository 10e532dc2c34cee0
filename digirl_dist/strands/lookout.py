"""The one thread that waits for all: until something can be read, or for as long as somebody is patient."""

from __future__ import annotations

import selectors
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

Call = Callable[[], None]

TICK_S = 0.5
HELD_S = 2.0
"""A thread that oversleeps by this long was stopped itself (process suspended, machine overloaded): the peer's silence
during that time counts for nothing. A suspended host does not declare its peers dead."""


class Once:
    """Makes a call that several may want, the first time that one of them does."""

    def __init__(self, call: Call) -> None:
        self._calls = [call]

    def __call__(self) -> None:
        try:
            call = self._calls.pop()
        except IndexError:
            return
        call()

    def forgo(self) -> None:
        """Lets nobody make the call any more."""
        self._calls.clear()

    @property
    def is_spent(self) -> bool:
        return not self._calls


@dataclass(frozen=True)
class _Alarm:
    at: float
    call: Once


class Lookout:
    """Calls when a descriptor can be read, and when a time has come. What it calls must not wait.

    Its clock moves on by ticks, and takes no notice of time in which this process was held up itself.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_there = False
        self._selector = selectors.DefaultSelector()
        self._readers: dict[int, Call] = {}
        self._alarms: list[_Alarm] = []
        self.now = 0.0

    def when_readable(self, descriptor: int, call: Call) -> None:
        """Calls once, when there is something to read or its end has come; an earlier call is forgotten."""
        self.start()
        with self._lock:
            if descriptor not in self._readers:
                self._selector.register(descriptor, selectors.EVENT_READ)
            self._readers[descriptor] = call

    def forget(self, descriptor: int) -> Call | None:
        """Takes back ``when_readable``, as must be done before the descriptor is closed; returns what is not called."""
        with self._lock:
            call = self._readers.pop(descriptor, None)
            if call is not None:
                self._selector.unregister(descriptor)
            return call

    def at(self, time: float, call: Once) -> None:
        """Calls once ``now`` is so much."""
        self.start()
        with self._lock:
            self._alarms.append(_Alarm(time, call))

    def start(self) -> None:
        """Starts the thread, which the first use does as well. Raises RuntimeError if that is refused."""
        with self._lock:
            if not self._is_there:
                threading.Thread(target=self._watch, name="lookout", daemon=True).start()
            self._is_there = True

    def _watch(self) -> None:
        ticked_at = time.monotonic()
        while True:
            for key, _ in self._selector.select(max(0.0, ticked_at + TICK_S - time.monotonic())):
                _make(self.forget(key.fd))
            passed_s = time.monotonic() - ticked_at
            if passed_s >= TICK_S:
                ticked_at += passed_s
                self._tick(passed_s if passed_s < TICK_S + HELD_S else TICK_S)

    def _tick(self, passed_s: float) -> None:
        with self._lock:
            self.now += passed_s
            due = [alarm for alarm in self._alarms if alarm.at <= self.now]
            self._alarms = [alarm for alarm in self._alarms if alarm.at > self.now and not alarm.call.is_spent]
        for alarm in due:
            _make(alarm.call)


LOOKOUT = Lookout()


def _make(call: Call | None) -> None:
    """Makes a call; a defect in it is printed, and all others are still waited for."""
    try:
        if call is not None:
            call()
    except Exception:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
