"""Watches a run from outside: its events as they appear, and waits that exceed their limits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digirl_dist.storage.json_lines import JsonLines

_EVERY_S = 0.05
_STATUS_EVERY_S = 1.0
_GRACE_S = 8.0
"""Time that a loaded machine may add to a limit before somebody acts on it: two polls of every process involved."""


@dataclass(frozen=True)
class Event:
    """One line of ``events.jsonl`` and when it was read, in monotonic seconds."""

    at: float
    kind: str
    content: dict[str, Any]
    size: int = 0
    """Its bytes in the file."""

    def of(self, worker: str | None) -> bool:
        return worker is None or self.content.get("worker") == worker


class Watch:
    """A thread that follows the files of a run folder; ``close`` ends it."""

    def __init__(self, run: Path) -> None:
        self.events: list[Event] = []
        self.overdue: list[tuple[float, str, str]] = []
        """When, of which worker, and what was waited for beyond its limit."""
        self.host_is_held = False
        """True while the host is stopped, or just was: its last status is out of date."""
        self.held_at: list[float] = []
        """Times at which the host was stopped."""
        self._run = run
        self._lines = JsonLines(run / "events.jsonl")
        self._looked_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def first(self, since: float, wanted: Callable[[Event], bool]) -> Event | None:
        for event in reversed(self.events[:]):
            if event.at < since:
                break
        return next((event for event in self.events[:] if event.at >= since and wanted(event)), None)

    def is_joined(self, worker: str, for_s: float = 1.0) -> bool:
        """Returns whether the worker has been connected to the current host process for at least ``for_s``."""
        for event in reversed(self.events[:]):
            if event.kind == "run_started":
                return False
            if event.kind in ("worker_joined", "worker_lost") and event.of(worker):
                return event.kind == "worker_joined" and time.monotonic() - event.at > for_s
        return False

    def wait(self, since: float, wanted: Callable[[Event], bool], limit_s: float) -> Event | None:
        """Waits up to ``limit_s`` for an event since ``since``; returns the first one."""
        deadline = time.monotonic() + limit_s
        while (found := self.first(since, wanted)) is None and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        return found

    def _follow(self) -> None:
        while not self._closing.wait(_EVERY_S):
            self._read_events()
            if self.host_is_held:
                self.held_at.append(time.monotonic())
            if time.monotonic() - self._looked_at > _STATUS_EVERY_S and not self.host_is_held:
                self._looked_at = time.monotonic()
                self._look_for_overdue_waits()
        self._read_events()

    def _read_events(self) -> None:
        before = self._lines.place
        for content in self._lines.news():
            self.events.append(Event(time.monotonic(), content.pop("event"), content, self._lines.place - before))
            before = self._lines.place

    def _look_for_overdue_waits(self) -> None:
        try:
            status = json.loads((self._run / "status.json").read_text())
        except (OSError, ValueError):
            return
        for name, worker in status["workers"].items():
            waits = [(worker["doing"], status["time"] - worker["since"], worker["limit_s"])]
            waits += [(f"slot {slot['activity']}", slot["for_s"], slot["limit_s"]) for slot in worker["slots"]]
            for doing, for_s, limit_s in waits:
                if limit_s is not None and for_s > limit_s + _GRACE_S:
                    self.overdue.append((time.monotonic(), name, f"{doing} for {for_s:.1f} s of at most {limit_s:g}"))
