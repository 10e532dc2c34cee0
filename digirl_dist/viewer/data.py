"""What the pages of the viewer ask for, as JSON; everything is read through ``digirl_dist.Run``."""

from __future__ import annotations

import io
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from digirl_dist.api.run import Run
from digirl_dist.emulator.touch_actions import SAID, TOKENS
from digirl_dist.report.episodes import caption
from digirl_dist.report.picture import SHOWN_FORMATS, UNREADABLE, is_screen
from digirl_dist.report.record import noted
from digirl_dist.settings.keys import flat
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.storage import json_lines
from digirl_dist.storage.episode_index import EpisodeIndex
from digirl_dist.trajectory import Observation, Step, Trajectory
from digirl_dist.types import Json
from digirl_dist.viewer.followed import Followed

STATIC = files("digirl_dist.viewer").joinpath("static")
"""The page, its style and its scripts."""

_FILES_AT_ONCE = 10
_REMEMBERED = 8
"""Episodes that were read last: their screenshots are asked for one by one."""
_LINE_BYTES, _ALL_LINE_BYTES = 2**25, 2**27
"""What is kept of the lines of a run, and of all."""
_NOTHING = '{"fresh":true,"next":"","lines":[]}'
_DEEPEST = 100
_SHOWN_EVENTS = ("worker_joined", "worker_lost", "pushed", "slot", "bsize", "worker_added", "worker_left")
_BULKY = ("slot_seconds", "slot_seconds_by_worker", "episodes_by_worker")
_SPENT = ("iteration", "time", "iteration_s", "slot_seconds_by_worker")
_NUMBERS = ("iteration", "ticket", "slot", "policy_version", "seed", "steps", "attempt")
_REALS = ("reward", "time")
_FLAGS = ("success", "truncated")
_WORDS = ("worker", "task", "instruction", "purpose", "trouble")


class ViewedRun:
    """A run and its index, which one thread follows while others answer requests."""

    def __init__(self, run: Run, name: str, most_bytes: int = _LINE_BYTES) -> None:
        """``most_bytes`` of the newest lines of each of its files are kept for pages."""
        self.run = run
        self.name = name
        metrics, each = run.folder / "metrics.jsonl", most_bytes // 4
        self._figures = Followed(metrics, _figures_of, each)
        self._measured = Followed(run.folder / "evaluation.jsonl", clean, each)
        self._spent = Followed(metrics, _spent_of, each)
        self._events = Followed(run.folder / "events.jsonl", _shown_event, each)
        self._lock = threading.Lock()
        self._unread = 1
        self._id = _id(run)
        """The folder may be deleted, and another run begin in it, while it is viewed."""
        self._recent: OrderedDict[str, Trajectory] = OrderedDict()

    def follow(self, everything: bool = False) -> None:
        """Reads what has been added to the folder, of many files a part of them; all of it if another run is there."""
        with self._lock:
            if (now := _id(self.run)) not in (None, self._id):
                self.run.index, self._recent, self._id = EpisodeIndex(self.run.folder), OrderedDict(), now
            self._unread = self.run.index.refresh(None if everything else _FILES_AT_ONCE)

    def progress(self) -> dict[str, Json]:
        """Returns what changes while the run goes on: a page asks for the rest when this does."""
        files = (self.run.folder / f"{name}.jsonl" for name in ("metrics", "evaluation"))
        size = sum(json_lines.JsonLines(file).size() for file in files)
        there: dict[str, Json] = {"id": self._id, "gone": not (self.run.folder / "config.yaml").exists()}
        stands = self.run.state
        there |= {"running": stands.state == "running", "failed": stands.state == "failed", "state": str(stands)}
        return {"name": self.name, "episodes": len(self.run.index), "unread": self._unread, "metrics": size, **there}

    def summary(self) -> dict[str, Json]:
        """Returns the run's configuration, flat, its figures, evaluations and kept checkpoints."""
        notes = list(self.run.index.notes)
        progress = self.progress()
        about: dict[str, Json] = {"config": {}, "metrics": [], "evaluations": [], "checkpoints": []}
        if progress["gone"]:
            notes.append(f"{self.run.folder} is no run folder any more: was it moved or deleted?")
        else:
            about |= self._about(notes)
        there = {"folder": str(self.run.folder), "notes": notes}
        cleaned: dict[str, Json] = clean({**progress, **about, **there})
        return cleaned

    def news(self, figures: str, measured: str, stamp: str) -> str:
        """Returns, as JSON, the run's state, and of the rest what a page lacks that has been sent so far.

        ``stamp`` is that of the configuration that the page has.
        """
        notes, progress = list(self.run.index.notes), self.progress()
        now = _stamp(self.run.folder / "config.yaml")
        config = None if now == stamp else dict(flat(noted(notes, self.run.config) or {}))
        lines = [noted(notes, file.news, at) for file, at in ((self._figures, figures), (self._measured, measured))]
        there = {"folder": str(self.run.folder), "notes": notes}
        state = {**progress, **there, "checkpoints": self.run.checkpoints(), "config": config, "stamp": now}
        parts = (json.dumps(clean(state)), *(each or _NOTHING for each in lines))
        return '{{"state":{},"figures":{},"measured":{}}}'.format(*parts)

    def timeline_news(self, iterations: str, events: str) -> str:
        """Returns, as JSON, of ``timeline`` what a page lacks."""
        return f'{{"iterations":{self._spent.news(iterations)},"events":{self._events.news(events)}}}'

    def _about(self, notes: list[str]) -> dict[str, Json]:
        run = self.run
        config = dict(flat(noted(notes, run.config) or {}))
        lines = noted(notes, run.figures) or []
        figures = [_figures_of(line) for line in lines]
        measured = noted(notes, json_lines.read, run.folder / "evaluation.jsonl") or []
        return {"config": config, "metrics": figures, "evaluations": measured, "checkpoints": run.checkpoints()}

    def rows(self, first: int, most: int | None = None) -> dict[str, Json]:
        """Returns the index from row ``first`` on, by columns; texts are numbers into a list of ``words``."""
        with self._lock:
            table, unread, known = self.run.index.table(first, most), self._unread, len(self.run.index)
        columns: dict[str, Json] = {name: table[name].to_pylist() for name in (*_NUMBERS, *_FLAGS)}
        columns |= {name: _finite(table[name]) for name in _REALS}
        columns |= {name: _coded(table[name]) for name in _WORDS}
        more = first + table.num_rows < known
        return {"first": first, "count": table.num_rows, "unread": unread, "more": more, "columns": columns}

    def episode(self, key: str) -> dict[str, Json]:
        """Returns an episode without its pictures. Raises KeyError, TrajectoryError."""
        one = self._read(key)
        steps, seen = [_step(step) for step in one.steps], [_seen(each) for each in observations(one)]
        shown: dict[str, Json] = clean({"id": one.episode_id, "steps": steps, "seen": seen})
        return shown

    def image(self, key: str, place: int) -> tuple[bytes, str] | None:
        """Returns the screenshot before step ``place`` with its MIME type; None for what is no screenshot.

        Raises KeyError, TrajectoryError.
        """
        seen = observations(self._read(key))
        return screenshot(seen[place].image) if 0 <= place < len(seen) else None

    def _read(self, key: str) -> Trajectory:
        with self._lock:
            if key not in self._recent:
                self._recent[key] = self.run.index.read(self.run.index.find(key))
                if len(self._recent) > _REMEMBERED:
                    self._recent.popitem(last=False)
            return self._recent[key]

    def timeline(self) -> dict[str, Json]:
        """Returns the slots' seconds of each iteration by worker and activity, and what happened to workers when."""
        found = json.loads(self.timeline_news("", ""))
        last = {line["iteration"]: line for line in found["iterations"]["lines"]}
        return {"iterations": [last[each] for each in sorted(last)], "events": found["events"]["lines"]}


def named(runs: Sequence[Run]) -> dict[str, ViewedRun]:
    """Returns runs by names that tell them apart."""
    found: dict[str, ViewedRun] = {}
    share = min(_LINE_BYTES, _ALL_LINE_BYTES // max(1, len(runs)))
    for run in runs:
        first = name = run.name.encode("utf-8", "replace").decode()  # an address cannot hold half a surrogate pair
        number = 2
        while name in found:
            name, number = f"{first}~{number}", number + 1
        found[name] = ViewedRun(run, name, share)
    return found


def _figures_of(line: dict[str, Json]) -> dict[str, Json] | None:
    if type(line.get("iteration")) is not int:
        return None
    found: dict[str, Json] = clean({key: line[key] for key in line if key not in _BULKY})
    return found


def _spent_of(line: dict[str, Json]) -> dict[str, Json] | None:
    if type(line.get("iteration")) is not int or not isinstance(line.get("slot_seconds_by_worker"), dict):
        return None
    found: dict[str, Json] = clean({key: line.get(key) for key in _SPENT})
    return found


def _shown_event(event: dict[str, Json]) -> dict[str, Json] | None:
    if event.get("event") not in _SHOWN_EVENTS:
        return None
    found: dict[str, Json] = clean(event)
    return found


def _stamp(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_ino}.{found.st_mtime_ns}.{found.st_size}"


def _id(run: Run) -> Json:
    path = run.folder / "run.json"
    return read_mapping(path).get("run_id") if path.is_file() else None


def observations(one: Trajectory) -> list[Observation]:
    """Returns what was seen before each step, and after the last one."""
    return [*(step.observation for step in one.steps), one.final_observation]


def screenshot(image: bytes | None) -> tuple[bytes, str] | None:
    """Returns PNG or JPEG bytes as they are, with their MIME type; None for anything else that a worker may send."""
    try:
        with Image.open(io.BytesIO(image or b""), formats=SHOWN_FORMATS) as opened:
            return (image or b"", Image.MIME[opened.format or "PNG"]) if is_screen(opened) else None
    except UNREADABLE:
        return None


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
    said = {"said": action.get(SAID), "caption": caption(step.action)}
    return {"action": shown, **said, "log_prob": step.log_prob, "reward": step.reward, **ends}


def _seen(observation: Observation) -> dict[str, Json]:
    vector = None if observation.vector is None else observation.vector.tolist()
    return {"text": observation.text, "pictured": observation.image is not None, "vector": vector}


def _finite(column: pa.ChunkedArray) -> list[float | None]:
    found: list[float | None] = pc.if_else(pc.is_finite(column), column, None).to_pylist()
    return found


def _coded(column: pa.ChunkedArray) -> dict[str, Json]:
    coded = column.combine_chunks().dictionary_encode()
    return {"words": coded.dictionary.to_pylist(), "codes": coded.indices.to_pylist()}
