"""``status.json``: who waits for whom, since when and for how long at most, as of a moment ago."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from digirl_dist.types import Json

_EVERY_S = 1.0


@dataclass
class WorkerStatus:
    """What the host knows of a worker. Times are monotonic seconds, as the time of day may jump."""

    doing: str = "nothing yet"
    since: float = field(default_factory=time.monotonic)
    limit_s: float | None = None
    heard_at: float | None = None
    slots: list[dict[str, Json]] = field(default_factory=list)
    """See rollout.SlotWait; as of ``heard_at``."""
    last_event: str = ""
    bsize: str = ""
    """What ``bsize: auto`` chose, and why."""
    last_trouble: str = ""
    """The last event that tells of something lost or refused."""
    troubled_at: float | None = None


@dataclass
class Status:
    """The host's picture of a run, written for ``digirl-dist why``. A file that is lost costs nothing."""

    path: Path
    doing: str = "starting"
    since: float = field(default_factory=time.monotonic)
    workers: dict[str, WorkerStatus] = field(default_factory=dict)
    policy: WorkerStatus | None = None
    """Of the process of the host's policy, where there is one."""
    _written_at: float = 0.0

    def host(self, doing: str) -> None:
        """What the loop itself does from now on."""
        self.doing, self.since = doing, time.monotonic()
        self.write()

    def collecting(self, iteration: int, missing: int) -> None:
        """Progress of what the loop does anyway; not written each time."""
        self.doing = f"collect iteration {iteration}: {missing} episodes are missing"
        if time.monotonic() - self._written_at > _EVERY_S:
            self.write()

    def worker(self, name: str) -> WorkerStatus:
        return self.workers.setdefault(name, WorkerStatus())

    def write(self) -> None:
        """Not flushed to disk: it is for people, and for now."""
        self._written_at = time.monotonic()
        workers = {name: self._in_unix_time(asdict(status)) for name, status in self.workers.items()}
        host = self._in_unix_time({"doing": self.doing, "since": self.since})
        policy = None if self.policy is None else self._in_unix_time(asdict(self.policy))
        content = {"pid": os.getpid(), "time": time.time(), **host, "policy": policy}
        part = self.path.with_name(self.path.name + ".part")
        try:
            part.write_text(json.dumps({**content, "workers": workers}))
            part.replace(self.path)
        except OSError:
            pass  # a full disk is reported by those who must write

    def _in_unix_time(self, content: dict[str, Json]) -> dict[str, Json]:
        """For other processes: the file's ``time`` less these is how long ago they were."""
        shift = time.time() - time.monotonic()
        times = {
            key: content[key] + shift for key in ("since", "heard_at", "troubled_at") if content.get(key) is not None
        }
        return {**content, **times}
