"""A run folder as the JSON that its pages ask for, whether a server answers them or a file holds the answers."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from digirl_dist.emulator.remembered import recalled, touched
from digirl_dist.emulator.touch_actions import SAID, TOKENS, UNREAD, DeviceAction
from digirl_dist.errors import ActionError, RunFolderError
from digirl_dist.plain_text import as_unicode
from digirl_dist.protocol.job_folder import JobFolder
from digirl_dist.report.followed import Followed
from digirl_dist.report.picture import screenshot
from digirl_dist.settings import Settings, regular_file
from digirl_dist.settings.key_places import options_of_groups
from digirl_dist.settings.keys import flat
from digirl_dist.storage import file_system, json_lines
from digirl_dist.storage.checkpoint import Checkpoints
from digirl_dist.storage.episode_index import EpisodeIndex
from digirl_dist.storage.run_folder import config_of, run_id_of
from digirl_dist.storage.status import run_state
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json, T

_FILES_AT_ONCE = 10
_REMEMBERED = 8
"""Episodes that were read last: their screenshots are asked for one by one."""
_LINE_BYTES, _ALL_LINE_BYTES = 2**25, 2**27
"""What is kept of the lines of a run, and of all."""
_NOTHING = '{"fresh":true,"next":"","lines":[]}'
_DEEPEST = 100
_USUAL_EVENTS = ("episode", "episode_doubled", "episode_dropped", "judged", "relayed", "worker_machine")
"""Events that pages do not get: the index has the episodes."""
_LONGEST = 400
"""Characters of what a run does now."""
_LOG_BYTES = 1 << 16
_BULKY = ("slot_seconds_by_worker", "episodes_by_worker", "success_by_task")
_SPENT = ("iteration", "time", "iteration_s", "slot_seconds_by_worker")
_NUMBERS = ("iteration", "ticket", "slot", "policy_version", "seed", "steps", "attempt")
_REALS = ("reward", "time", "seconds")
_FLAGS = ("success", "truncated")
_WORDS = ("worker", "task", "instruction", "purpose", "trouble")


class ViewedRun:
    """A run folder and its index, which one thread follows while others answer requests."""

    def __init__(self, folder: Path, name: str = "", trust: bool = False, most_bytes: int = _LINE_BYTES) -> None:
        """``name`` is the folder's unless given; ``most_bytes`` of the newest lines of its files are kept for pages."""
        self.folder = folder
        self.name = name or as_unicode(folder.resolve().name)
        self.trust = trust
        self.index = EpisodeIndex(folder)
        metrics, each = folder / "metrics.jsonl", most_bytes // 4
        self._figures = Followed(metrics, _figures_of, each)
        self._measured = Followed(folder / "evaluation.jsonl", clean, each)
        self._spent = Followed(metrics, _spent_of, each)
        self._events = Followed(
            folder / "events.jsonl", lambda one: None if one.get("event") in _USUAL_EVENTS else clean(one), each
        )
        self._lock = threading.Lock()
        self._unread = 1
        self._id = run_id_of(folder)
        """The folder may be deleted, and another run begin in it, while it is viewed."""
        self._recent: OrderedDict[str, Trajectory] = OrderedDict()

    def follow(self, everything: bool = False) -> int:
        """Reads what has been added to the folder, of many files a part of them; all of it if another run is there.

        Returns how many files remain to be read.
        """
        with self._lock:
            if (now := run_id_of(self.folder)) not in ("", self._id):
                self.index, self._recent, self._id = EpisodeIndex(self.folder), OrderedDict(), now
            self._unread = self.index.refresh(None if everything else _FILES_AT_ONCE)
            return self._unread

    def progress(self) -> dict[str, Json]:
        """Returns what changes while the run goes on: a page asks for the rest when this does."""
        size = sum(json_lines.JsonLines(self.folder / f"{name}.jsonl").size() for name in ("metrics", "evaluation"))
        stands = run_state(self.folder)
        since = stands.doing_since if stands.state == "running" else stands.since
        return {
            "name": self.name,
            "episodes": len(self.index),
            "unread": self._unread,
            "metrics": size,
            "id": self._id,
            "gone": not os.path.exists(self.folder / "config.yaml"),  # Path's own raises where looking is refused
            "state": stands.state,
            "words": _short(str(stands), _LONGEST),
            "since": None if since is None else int(since),
            "doing": _short(stands.doing, _LONGEST),
        }

    def news(self, figures: str, measured: str, stamp: str) -> str:
        """Returns, as JSON, the run's state, and of its figures and measurements what a page lacks.

        ``figures`` and ``measured`` are the places up to which the page has them, ``stamp`` that of its configuration.
        """
        notes, progress = list(self.index.notes), self.progress()
        if progress["gone"]:
            notes.append(f"{self.folder} is no run folder any more: was it moved or deleted?")
        now = _stamp(self.folder / "config.yaml")
        content = {} if now == stamp else _noted(notes, config_of, self.folder) or {}
        config = None if now == stamp else {"config": dict(flat(content)), "given": _given(content)}
        lines = [_noted(notes, file.news, at) for file, at in ((self._figures, figures), (self._measured, measured))]
        kept = Checkpoints(self.folder / "checkpoints").iterations()
        there = {"folder": str(self.folder), "notes": notes, "checkpoints": kept, "settings": config, "stamp": now}
        parts = (json.dumps(clean({**progress, **there})), *(each or _NOTHING for each in lines))
        return '{{"state":{},"figures":{},"measured":{}}}'.format(*parts)

    def timeline_news(self, iterations: str, events: str) -> str:
        """Returns, as JSON, of the slots' seconds by worker and of what happened to workers what a page lacks."""
        asked = ((self._spent, iterations), (self._events, events))
        spent, happened = (_noted([], file.news, at) or _NOTHING for file, at in asked)
        return f'{{"iterations":{spent},"events":{happened}}}'

    def status(self) -> Json:
        """Returns what each worker and slot does, as ``status.json`` has it; {} where that cannot be read."""
        try:
            return clean(json.loads(regular_file.content(self.folder / "status.json")))
        except (OSError, ValueError, RecursionError):
            return {}

    def log(self, worker: str, slot: int | None) -> str:
        """Returns, as JSON, the end of a localhost worker's log, or of a slot's; empty where none is in the folder."""
        job = JobFolder(self.folder / "dry_run" / "jobs" / f"{self._id}-{Path(worker).name}")
        path, text = job.log if slot is None else job.slot_log(slot), b""
        with suppress(OSError, ValueError):
            if path.resolve().is_relative_to(self.folder.resolve()):
                with regular_file.opened(path) as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                    text = file.read(_LOG_BYTES)
        return json.dumps(text.decode(errors="replace"))

    def rows(self, first: int, most: int | None = None) -> dict[str, Json]:
        """Returns the index from row ``first`` on, by columns; texts are numbers into a list of ``words``."""
        with self._lock:
            table, unread, known = self.index.table(first, most), self._unread, len(self.index)
        columns: dict[str, Json] = {name: table[name].to_pylist() for name in (*_NUMBERS, *_FLAGS)}
        columns |= {name: _finite(table[name]) for name in _REALS}
        columns |= {name: _coded(table[name]) for name in _WORDS}
        more = first + table.num_rows < known
        return {"first": first, "count": table.num_rows, "unread": unread, "more": more, "columns": columns}

    def episode(self, key: str) -> dict[str, Json]:
        """Returns an episode without its pictures. Raises KeyError, TrajectoryError."""
        one = self.read(key)
        steps, seen = [_step(step) for step in one.steps], [_seen(each) for each in one.observations]
        shown: dict[str, Json] = clean({"id": one.episode_id, "steps": steps, "seen": seen})
        return shown

    def image(self, key: str, place: int) -> tuple[bytes, str] | None:
        """Returns the screenshot before step ``place`` with its MIME type; None for what is no screenshot.

        Raises KeyError, TrajectoryError.
        """
        seen = self.read(key).observations
        return screenshot(seen[place].image) if 0 <= place < len(seen) else None

    def read(self, key: str) -> Trajectory:
        """Raises KeyError, TrajectoryError."""
        with self._lock:
            if key not in self._recent:
                self._recent[key] = self.index.read(self.index.find(key))
                if len(self._recent) > _REMEMBERED:
                    self._recent.popitem(last=False)
            return self._recent[key]


def named(folders: Sequence[Path], trust: bool = False, most_bytes: int = _LINE_BYTES) -> dict[str, ViewedRun]:
    """Returns run folders by names that tell them apart."""
    found: dict[str, ViewedRun] = {}
    share = min(most_bytes, _ALL_LINE_BYTES // max(1, len(folders)))
    for folder in folders:
        first = name = as_unicode(folder.resolve().name)  # an address cannot hold half a surrogate pair
        number = 2
        while name in found:
            name, number = f"{first}~{number}", number + 1
        found[name] = ViewedRun(folder, name, trust, share)
    return found


def caption(action: Json) -> str:
    """Describes an action in a few words."""
    try:
        found = DeviceAction.from_json(action)
    except (ActionError, TypeError):
        return f"action {_short(json.dumps(action), 60)}"
    if isinstance(action, dict) and UNREAD in action:
        return f"unread: {_short(str(action[UNREAD]), 60)}"
    text = f"“{_short(found.text, 40)}”"
    match found.type:
        case "tap" | "select":
            return f"{found.type} {found.x:.2f}, {found.y:.2f}"
        case "swipe" | "drag":
            return f"{found.type} {found.x:.2f}, {found.y:.2f} → {found.to_x:.2f}, {found.to_y:.2f}"
        case "type":
            return f"type {text}"
        case "type_at":
            return f"type {text} at {found.x:.2f}, {found.y:.2f}"
        case "done" if found.text:
            return f"done, {text}"
        case key:
            return key


def _short(text: str, most: int) -> str:
    line = " ".join(text[: 4 * most].replace("\0", " ").split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _noted(notes: list[str], read: Callable[..., T], *where: Any) -> T | None:
    """Returns what ``read`` returns; of a file that cannot be read a note is made, and nothing returned."""
    try:
        return read(*where)
    except RunFolderError as error:
        notes.append(str(error))
        return None


def _figures_of(line: dict[str, Json]) -> Json:
    if type(line.get("iteration")) is not int:
        return None
    return clean({key: line[key] for key in line if key not in _BULKY})


def _spent_of(line: dict[str, Json]) -> Json:
    if type(line.get("iteration")) is not int or not isinstance(line.get("slot_seconds_by_worker"), dict):
        return None
    return clean({key: line.get(key) for key in _SPENT})


def _given(content: Mapping[str, Json]) -> list[str]:
    """Returns the keys of a configuration whose values somebody chose: those that are not the defaults."""
    usual = dict(flat(msgspec.to_builtins(Settings())))
    for group, options in options_of_groups().items():
        chosen = content.get(group)
        if isinstance(chosen, Mapping) and (kind := options.get(str(chosen.get("name")))) is not None:
            usual |= flat(msgspec.to_builtins(kind()), group)
    return [key for key, value in flat(content) if key not in usual or usual[key] != value]


def _stamp(path: Path) -> str:
    found = file_system.found_at(path)
    return "" if found is None else f"{found.st_ino}.{found.st_mtime_ns}.{found.st_size}"


def clean(value: Any, depth: int = 0) -> Any:
    """Returns JSON that browsers read: numbers that are not finite become null, what is nested without end a text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple) and depth > _DEEPEST:
        return "… nested too deeply to be shown"
    if isinstance(value, Mapping):
        return {str(key): clean(each, depth + 1) for key, each in value.items()}
    return [clean(each, depth + 1) for each in value] if isinstance(value, list | tuple) else value


def _step(step: Step) -> dict[str, Json]:
    action = step.action if isinstance(step.action, dict) else {}
    shown = {key: value for key, value in action.items() if key != TOKENS} if action else step.action
    ends = {"terminated": step.terminated, "truncated": step.truncated}
    said = {"said": action.get(SAID), "caption": caption(step.action), "touched": _touched(step)}
    return {"action": shown, **said, "log_prob": step.log_prob, "reward": step.reward, **ends}


def _touched(step: Step) -> str:
    """Names what the action touched; empty where the observation does not name what is on the screen."""
    try:
        at, labels = DeviceAction.from_json(step.action), recalled(step.observation.text).labels
    except (ActionError, TypeError, RecursionError):
        return ""
    found = touched(at, labels)
    return f"{found.role} “{_short(found.name, 40)}”".strip() if found else ""


def _seen(observation: Observation) -> dict[str, Json]:
    vector = None if observation.vector is None else observation.vector.tolist()
    return {"text": observation.text, "pictured": observation.image is not None, "vector": vector}


def _finite(column: pa.ChunkedArray) -> list[float | None]:
    found: list[float | None] = pc.if_else(pc.is_finite(column), column, None).to_pylist()
    return found


def _coded(column: pa.ChunkedArray) -> dict[str, Json]:
    coded = column.combine_chunks().dictionary_encode()
    return {"words": coded.dictionary.to_pylist(), "codes": coded.indices.to_pylist()}
