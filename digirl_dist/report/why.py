"""``digirl-dist why``: explains a running or dead run: what it waits for, since when, and its last events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.exit_status import RESUMES
from digirl_dist.plain_text import one_line
from digirl_dist.report.progress import duration
from digirl_dist.settings import regular_file
from digirl_dist.storage import json_lines
from digirl_dist.storage.run_folder import existing_run
from digirl_dist.storage.status import is_running, run_state
from digirl_dist.types import Json

_EVENTS = 8
_TASKS = 4
_EVENT_BYTES = 1 << 20
"""Of the newest, which are looked at."""
_USUAL = ("episode", "episode_doubled", "episode_dropped", "pushed", "relayed", "worker_machine")
_LONG_S = 2.0
_NEAR = 0.5
"""Share of its limit above which a wait is marked."""


def explain(folder: Path) -> str:
    """Explains a run folder. Raises SettingsError if it has no status, RunFolderError if that is damaged."""
    path = folder / "status.json"
    if not os.path.exists(path):  # False also for one that may not be looked at
        existing_run(folder)
        raise SettingsError(f"{folder} has no status.json, which runs write as they go on: `digirl-dist view` shows it")
    try:
        status = json.loads(regular_file.content(path))
        lines = [*_host(folder, status), *_policy(status), *_workers(status), *_events(folder)]
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; name the save_path of a run") from error
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error!r}; a run that goes on writes it anew each second") from error
    return "\n".join(map(one_line, lines))


def _host(folder: Path, status: dict[str, Any]) -> Iterator[str]:
    now = time.time()
    if is_running(folder):
        yield f"{folder}: process {status['pid']} {_state(status['pid'])}"
        yield f"host: {status['doing']}, for {now - status['since']:.1f} s"
    elif status["state"] != "running":
        then = "nothing is waited for" if status["state"] == "finished" else RESUMES
        yield f"{folder}: {duration(now - status['time'])} ago {run_state(folder)}; {then}"
    else:
        ago = duration(now - status["time"])
        yield f"{folder}: no process is running; the last, {status['pid']}, wrote {ago} ago; {RESUMES}"
        yield f"host: last activity: {status['doing']}, for {status['time'] - status['since']:.1f} s"


def _state(pid: int) -> str:
    """Returns a process's state: a stopped one (SIGSTOP, Ctrl-Z, a debugger) waits only for SIGCONT."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "is running"
    return "is stopped; kill -CONT continues it" if state in "Tt" else "is running"


def _policy(status: dict[str, Any]) -> Iterator[str]:
    policy = status.get("policy")
    if policy is not None:
        yield f"the host's policy: {policy['doing']}{_wait(status['time'] - policy['since'], policy['limit_s'])}"
        yield from _trouble(policy, status["time"])


def _trouble(of: dict[str, Any], at: float) -> Iterator[str]:
    if of["last_trouble"]:
        yield f"  last trouble: {at - of['troubled_at']:.1f} s before, {of['last_trouble']}"


def _workers(status: dict[str, Any]) -> Iterator[str]:
    for name, worker in sorted(status["workers"].items()):
        at = status["time"]
        heard = "" if worker["heard_at"] is None else f", last heard {at - worker['heard_at']:.1f} s before"
        yield f"worker {name}: {worker['doing']}{_wait(at - worker['since'], worker['limit_s'])}{heard}"
        if worker.get("fetching") and at - worker["fetched_at"] > _LONG_S:
            yield f"  to be fetched: {worker['fetching']} episodes, none came for {at - worker['fetched_at']:.1f} s"
        if worker.get("bsize"):
            yield f"  {worker['bsize']}"
        for number, slot in enumerate(worker["slots"]):
            ticket = "" if slot["ticket"] is None else f" of ticket {slot['ticket']}"
            late = at - (worker["heard_at"] or at)
            yield f"  slot {number}: {slot['activity']}{ticket}{_wait(slot['for_s'] + late, slot['limit_s'])}"
        yield from _trouble(worker, at)
        if worker["last_event"]:
            yield f"  last event: {worker['last_event']}"


def _wait(for_s: float, limit_s: float | None) -> str:
    if limit_s is None:
        return f", for {for_s:.1f} s"
    pointer = "   <-- the host waits for this" if for_s > _NEAR * limit_s else ""
    return f", for {for_s:.1f} s of at most {limit_s:.0f}{pointer}"


def _events(folder: Path) -> Iterator[str]:
    events = [
        each for each in json_lines.read(folder / "events.jsonl", _EVENT_BYTES) if each.get("event") not in _USUAL
    ]
    yield from _starts(events)
    if events:
        yield "last events:"
    for event, count in _grouped(events)[-_EVENTS:]:
        said = ", ".join(
            f"{key} {value}" for key, value in event.items() if key not in ("time", "event") and value != ""
        )
        times = f" ({count} times)" if count > 1 else ""
        yield f"  {_time_of(event.get('time'))} {event.get('event')}{times}: {said}"


def _starts(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    unlike = [event for event in events if event.get("event") == "starts_differ"]
    tasks = list(dict.fromkeys(str(event.get("task")) for event in unlike))
    if tasks:
        more = f" and {len(tasks) - _TASKS} more" if len(tasks) > _TASKS else ""
        yield f"groups do not start alike, task {', '.join(tasks[:_TASKS])}{more}: {unlike[-1].get('reason')}"


def _grouped(events: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Groups consecutive events of the same kind and worker; returns the newest of each group and the group's size."""
    found: list[tuple[dict[str, Any], int]] = []
    for event in events:
        same = found and all(found[-1][0].get(key) == event.get(key) for key in ("event", "worker"))
        found[-1:] = [(event, found[-1][1] + 1)] if same else [*found[-1:], (event, 1)]
    return found


def _time_of(seconds: Json) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):  # of a file that somebody else wrote
        return "--:--:--"
