"""``status.json``: what the host and each worker wait for, since when, and the limit.

It is a second old at most; of a fleet of thousands of slots, which takes longer to write, a few seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from digirl_dist.errors import RunFolderError
from digirl_dist.plain_text import without_secrets_in
from digirl_dist.settings import regular_file
from digirl_dist.storage import atomic_files, file_system, strict_json
from digirl_dist.storage.events import Events
from digirl_dist.tasks import Round
from digirl_dist.types import Json

State = Literal["running", "finished", "interrupted", "failed", "unknown"]


class _Ending(msgspec.Struct):
    """What ``status.json`` says of it."""

    time: float
    state: State = "running"
    what: str = "the run"
    error: str = ""
    doing: str = ""
    since: float | None = None


_ENDINGS = msgspec.json.Decoder(_Ending)


@dataclass(frozen=True)
class RunState:
    """How a run stands. ``since`` is when it ended, or when its process wrote last (Unix seconds)."""

    state: State
    what: str = "the run"
    error: str = ""
    """Why it failed."""
    since: float | None = None
    doing: str = ""
    """What it does, or did last."""
    doing_since: float | None = None

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
        return RunState("interrupted", told.what, "its process ended without a word", told.time, told.doing, told.since)
    return RunState(told.state, told.what, told.error, told.time, told.doing, told.since)


def is_running(folder: Path) -> bool:
    """Returns whether a host holds the folder's lock."""
    try:
        with regular_file.opened(folder / ".lock") as lock:  # nothing is written: the folder may be a stranger's
            return not file_system.lock(lock, shared=True)
    except OSError:
        return False


_EVERY_S = 1.0
_FREE = ("barrier", "update", "push", "boot", "closed")
"""What slots do without an episode."""
_PAUSE = 20.0
"""Writing the status of a large fleet takes a while: pauses are so many times as long."""


@dataclass
class WorkerStatus:
    """The host's knowledge of a worker. Times are monotonic seconds, because the time of day may jump."""

    doing: str = "nothing yet"
    since: float = field(default_factory=time.monotonic)
    limit_s: float | None = None
    heard_at: float | None = None
    slots: list[dict[str, Json]] = field(default_factory=list)
    """The state of each slot as of ``heard_at``; see rollout.SlotWait."""
    fetching: int = 0
    """Finished episodes whose files are on their way, or wait for that."""
    fetched_at: float | None = None
    """When the last of them came, or the first one was asked for."""
    last_event: str = ""
    bsize: str = ""
    """The number of slots that ``bsize: auto`` chose, and the reason."""
    last_trouble: str = ""
    """The last event that reports a loss or a refusal."""
    troubled_at: float | None = None
    lost: bool = False
    """Whether the host has lost it, and has not begun to connect again."""

    @property
    def at_work(self) -> int:
        """The number of slots with an episode."""
        return sum(str(slot.get("activity")).split(" ")[0] not in _FREE for slot in self.slots)


@dataclass(frozen=True)
class RoundStatus:
    """A collection under way."""

    round: Round
    landed: int
    wanted: int
    since: float

    @property
    def name(self) -> str:
        match self.round:
            case Round(number, "measure", version):
                return f"measure checkpoint {version}, round {number}"
            case Round(number, "evaluate"):
                return f"evaluate checkpoint {number}"
        return f"collect iteration {self.round.number}"

    def __str__(self) -> str:
        return f"{self.name}: {self.landed} of {self.wanted} episodes landed"


@dataclass
class Status:
    """What goes on now: all parts of a run report it here, and ``report.progress`` and ``digirl-dist why`` show it.

    Nothing depends on the file; while ``path`` is None it is not written.
    """

    path: Path | None = None
    doing: str | None = "start"
    """What the host's loop does; None while it waits for the episodes of ``round``."""
    since: float = field(default_factory=time.monotonic)
    part: tuple[int, int] | None = None
    """How much of that is done, and of how much."""
    round: RoundStatus | None = None
    """The collection under way; with ``ahead`` it goes on while the host learns."""
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    policy: WorkerStatus | None = None
    """Status of the host's policy process, if there is one."""
    what: str = "the run"
    """What this process does."""
    state: State = "running"
    error: str = ""
    """Why it failed."""
    _due_at: float = 0.0
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @contextmanager
    def until_the_end_of(self, what: str, events: Events | None = None) -> Iterator[None]:
        """Records how ``what``, which the block does, ended: also in ``events``, if it failed."""
        self.what = what
        try:
            yield
        except KeyboardInterrupt:
            self._end("interrupted")
            raise
        except BaseException as error:
            self._end("failed", (str(error) or type(error).__name__).splitlines()[0])
            if events is not None:
                events.emit("run_failed", reason=self.error)
            raise
        self._end("finished")

    def _end(self, state: State, error: str = "") -> None:
        self.state, self.error, self.policy = state, error, None
        self.workers.clear()
        self.host(str(RunState(state, self.what, error)))

    def host(self, doing: str | None) -> None:
        """Records the loop's current activity; None: it waits for episodes."""
        self.doing, self.since, self.part = doing, time.monotonic(), None
        self.write()

    def stepped(self, made: int, of: int) -> None:
        """Records how much of the current activity is done; writes the file now and then."""
        self.part = made, of
        self.write_if_due()

    def collecting(self, round: Round, landed: int, wanted: int) -> None:
        """Records the progress of a collection; writes the file now and then."""
        before = self.round
        since = before.since if before is not None and before.round == round else time.monotonic()
        self.round = RoundStatus(round, landed, wanted, since)
        self.write_if_due()

    def collected(self, round: Round) -> None:
        """Records the end of a collection."""
        self.round = None
        training = round.purpose == "train"
        self.host(f"store iteration {round.number} and learn from it" if training else "store the evaluation")

    @property
    def now(self) -> str:
        """What the host does, and what is collected meanwhile."""
        doing = self.doing if self.part is None else f"{self.doing}: {self.part[0]} of {self.part[1]}"
        return "; ".join(str(part) for part in (doing, self.round) if part is not None) or "begin to collect"

    def worker(self, name: str) -> WorkerStatus:
        return self.workers.setdefault(name, WorkerStatus())

    def write_if_due(self) -> None:
        """Writes the file unless that was done just now. Any thread may call."""
        if time.monotonic() > self._due_at:
            self.write()

    def write(self) -> None:
        """Writes the file without flushing it to disk: people read it, and only its latest state matters."""
        if self.path is None:
            return
        with self._writing:
            started = time.monotonic()
            workers = {name: self._in_unix_time(vars(status)) for name, status in dict(self.workers).items()}
            host = self._in_unix_time({"doing": self.now, "since": self.since_now})
            policy = None if self.policy is None else self._in_unix_time(vars(self.policy))
            ending = {"state": self.state, "what": self.what, "error": self.error}
            content = {"pid": os.getpid(), "time": time.time(), **ending, **host, "policy": policy}
            text = strict_json.dumps(without_secrets_in({**content, "workers": workers}))
            with suppress(OSError):  # a full disk is reported by those who must write
                atomic_files.write_text(self.path, text, flushed=False)
            now = time.monotonic()
            self._due_at = now + max(_EVERY_S, _PAUSE * (now - started))

    @property
    def since_now(self) -> float:
        """Since when the host does what ``now`` says."""
        return self.round.since if self.doing is None and self.round is not None else self.since

    def _in_unix_time(self, content: dict[str, Json]) -> dict[str, Json]:
        """For other processes: the file's ``time`` less these is how long ago they were."""
        shift = time.time() - time.monotonic()
        known = [key for key in ("since", "heard_at", "troubled_at", "fetched_at") if content.get(key) is not None]
        return content | {key: content[key] + shift for key in known}
