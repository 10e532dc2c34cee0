"""Runs in each state: one that has finished, one that has failed, and one whose host is at work."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from small_run import WORKERS, append, make_run

from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.storage import file_system
from digirl_dist.storage.status import RoundStatus, Status, WorkerStatus
from digirl_dist.tasks import Round

REASON = "ticket 2 of iteration 4 failed 5 times: the emulator hung in reset"
LOG = "Chromium 139 started\nwaiting for the page\nTimeoutError: no answer within 60 s\n"


def finished(folder: Path) -> Path:
    """A run of five iterations that got worse at one task towards its end."""
    make_run(folder, iterations=5)
    Status(folder / "status.json")._end("finished")
    _name(folder, "f1n15hed")
    return folder


def failed(folder: Path, like: Path) -> Path:
    """The same run, ended by a ticket that failed everywhere."""
    shutil.copytree(like, folder)
    for number in range(5):
        told = {"worker": WORKERS[1], "slot": 1, "reason": f"reset took longer than 60 s ({number})"}
        append(folder / "events.jsonl", {"time": time.time() - 90 + number, "event": "episode_retried", **told})
    append(folder / "events.jsonl", {"time": time.time() - 60, "event": "run_failed", "reason": REASON})
    Status(folder / "status.json")._end("failed", REASON)
    _name(folder, "fa11ed")
    return folder


@contextmanager
def live(folder: Path, like: Path) -> Iterator[Path]:
    """The same run while its host, which this process is, collects: one worker is lost, a slot of the other is slow."""
    shutil.copytree(like, folder)
    _name(folder, "11ve")
    log = JobFolder(folder / "dry_run" / "jobs" / f"11ve-{WORKERS[0]}").slot_log(1)
    log.parent.mkdir(parents=True)
    log.write_text(LOG)
    now = time.monotonic()
    slots: list[dict[str, Any]] = [
        {"activity": "step", "for_s": 0.4, "limit_s": 60.0, "ticket": 3},
        {"activity": "reset", "for_s": 48.0, "limit_s": 60.0, "ticket": 4},
    ]
    lost: dict[str, Any] = {"last_trouble": "silent for 14 s", "troubled_at": now - 34, "lost": True}
    status = Status(folder / "status.json", doing=None, round=RoundStatus(Round(5), 2, 6, now - 12))
    status.workers = {
        WORKERS[0]: WorkerStatus("working", now - 60, heard_at=now - 0.5, slots=slots),
        WORKERS[1]: WorkerStatus("lost, to be tried again", now - 34, heard_at=now - 48, **lost),
    }
    status.write()
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("train_iterations: 5", "train_iterations: 20"))
    with (folder / ".lock").open("w") as lock:
        assert file_system.lock(lock)
        yield folder


def _name(folder: Path, run_id: str) -> None:
    (folder / "run.json").write_text(json.dumps({"run_id": run_id}))
