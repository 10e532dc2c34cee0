"""How a run stands: running, finished, interrupted or failed, by ``status.json`` and the lock of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from digirl_dist.errors import RunFolderError
from digirl_dist.settings import regular_file
from digirl_dist.storage import file_system

State = Literal["running", "finished", "interrupted", "failed", "unknown"]


class _Ending(msgspec.Struct):
    """What ``status.json`` says of it."""

    time: float
    state: State = "running"
    what: str = "the run"
    error: str = ""


_ENDINGS = msgspec.json.Decoder(_Ending)


@dataclass(frozen=True)
class RunState:
    """How a run stands. ``since`` is when it ended, or when its process wrote last (Unix seconds)."""

    state: State
    what: str = "the run"
    error: str = ""
    """Why it failed."""
    since: float | None = None

    def __str__(self) -> str:
        words = {"running": "is running", "interrupted": "was interrupted", "unknown": "left no word of its end"}
        return f"{self.what} {words.get(self.state, self.state)}" + (f": {self.error}" if self.error else "")


def run_state(folder: Path) -> RunState:
    """Returns how the run in a folder stands. A process that was killed leaves an interrupted run."""
    try:
        told = _ENDINGS.decode(regular_file.content(folder / "status.json"))
    except (OSError, ValueError, RecursionError, RunFolderError):
        return RunState("running" if is_running(folder) else "unknown")
    if told.state == "running" and not is_running(folder):
        return RunState("interrupted", told.what, "its process ended without a word", told.time)
    return RunState(told.state, told.what, told.error, told.time)


def is_running(folder: Path) -> bool:
    """Returns whether a host holds the folder's lock."""
    try:
        with regular_file.opened(folder / ".lock") as lock:  # nothing is written: the folder may be a stranger's
            return not file_system.lock(lock, shared=True)
    except OSError:
        return False
