"""An index of a run's episodes: one row each, without screenshots, so that 100,000 of them are at hand.

Only the small columns of the trajectory files are read, and each file once. A run that is still going on is followed:
``refresh`` adds what has landed since, together with what ``events.jsonl`` says of it.
"""

from __future__ import annotations

import glob
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path

import numpy as np
import pyarrow as pa

from digirl_dist.errors import RunFolderError, TrajectoryError
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.storage import episode_file, parquet
from digirl_dist.storage.json_lines import JsonLines
from digirl_dist.storage.parquet_bounds import BoundedFile
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_PER_EPISODE = ("iteration", "ticket", "worker", "slot", "policy_version", "task", "instruction", "seed", "success")
_PER_STEP = ("step", "reward", "truncated")
_ROWS_AT_ONCE = 64
_EVENT_BYTES = 2**22
"""How much of the events is read beside a part of the files."""
_KEY = re.compile(r"[tem](\d{1,9})\.", re.ASCII)
_PREFIX = {"train": "t", "evaluate": "e", "measure": "m"}
_ROWS = pa.schema(
    {
        "iteration": pa.int32(),
        "ticket": pa.int32(),
        "slot": pa.int32(),
        "steps": pa.int32(),
        "seed": pa.int64(),
        "policy_version": pa.int64(),
        "reward": pa.float64(),
        **dict.fromkeys(("success", "truncated"), pa.bool_()),
        **dict.fromkeys(("worker", "task", "instruction", "purpose", "key"), pa.string()),
    }.items()
)
_FROM_EVENTS = {"time": pa.float64(), "attempt": pa.int32(), "trouble": pa.string()}

Columns = dict[str, pa.Array]


class EpisodeIndex:
    """The episodes of a run folder, in the order in which they were found; a row never changes its place.

    ``key`` identifies an episode in its run: t, e or m for training, evaluation while training, and measurements of
    ``--config-name eval``, then iteration and ticket (of a measurement: checkpoint, round and ticket). Safe to use from
    any thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._is_judged = read_mapping(folder / "config.yaml").get("success") not in (None, "environment")
        """Whether episodes that have just landed are to be judged: what the emulator said of them does not count."""
        self._events = JsonLines(folder / "events.jsonl")
        self._pending: defaultdict[str, list[str]] = defaultdict(list)
        self._chunks: list[pa.Table] = []
        self._row_of: dict[str, int] = {}
        self._place: list[tuple[Path, int]] = []
        """The file of each row, and the episode's first row in it."""
        self._read_at: dict[Path, int] = {}
        """When each file that has been read was written."""
        self._seen: set[str] = set()
        self._waiting: list[str] = []
        """Files that were found and not read yet."""
        self._arrivals: dict[str, tuple[float, int, str]] = {}
        """What the events say of episodes, by key; of some before their file has been read."""
        self._unreadable: dict[str, tuple[int, str]] = {}
        """When they were written last, and why: one that is still being copied is tried again."""
        self._untold = ""
        """Why the events cannot be read."""

    def __len__(self) -> int:
        return len(self._place)

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            return {name: copy(value) for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    @property
    def notes(self) -> list[str]:
        """Files that could not be read, with the reason."""
        with self._lock:
            defects = [(Path(path).name, why) for path, (_, why) in self._unreadable.items()]
        files = [f"{name} is not a trajectory file: {why}" for name, why in defects]
        return [*files, *([self._untold] if self._untold else [])]

    def refresh(self, most_files: int | None = None) -> int:
        """Adds new episodes, of at most so many more files; returns how many files remain to be read."""
        with self._lock:
            if most_files is None or not self._waiting:
                self._waiting = self._found()
            now, self._waiting = self._waiting[:most_files], self._waiting[len(self._waiting[:most_files]) :]
            for path in now:
                self._add(path)
            self._look_at_events(None if most_files is None else _EVENT_BYTES)
            return len(self._waiting)

    def _look_at_events(self, most_bytes: int | None) -> None:
        end = self._events.size()
        self._untold = ""
        try:
            self._tell(self._events.news(end if most_bytes is None else min(end, self._events.place + most_bytes)))
        except RunFolderError as error:
            self._untold = str(error)

    def _found(self) -> list[str]:
        again = [path for path, (written, _) in self._unreadable.items() if _written(path) != written]
        return [*again, *(path for path in self._files() if path not in self._seen)]

    def _files(self, number: str = "[0-9]*") -> Iterator[str]:
        """Yields the files of finished iterations, of evaluations, and of single episodes that have just landed; of one
        round or all."""
        single = f"trajectories/.landing/{{}}/*{episode_file.SUFFIX}"
        patterns = ["trajectories/{}.parquet", "evaluation/{}/*.parquet"]
        if not self._is_judged:
            patterns += [single, single.replace("{}", "evaluation/{}")]
        for pattern in patterns:
            yield from sorted(glob.iglob(f"{glob.escape(str(self._folder))}/{pattern.format(number)}"))

    def table(self, first: int = 0, most: int | None = None) -> pa.Table:
        """Returns ``most`` rows from ``first`` on. ``time`` (Unix seconds), ``attempt`` and ``trouble`` are from the
        events: when the episode landed, how often its ticket was leased before, and why."""
        with self._lock:
            if not self._chunks:
                return _empty()
            rows = pa.concat_tables(self._chunks).slice(first, most).combine_chunks()
            arrivals = [self._arrivals.get(key, (None, None, "")) for key in rows["key"].to_pylist()]
        for place, (name, kind) in enumerate(_FROM_EVENTS.items()):
            rows = rows.append_column(name, pa.array([arrival[place] for arrival in arrivals], kind))
        return rows

    def row(self, key: str) -> int:
        """Returns the row of an episode. Raises KeyError."""
        return self._row_of[key]

    def find(self, key: str) -> int:
        """Returns the row of an episode; reads no files but those of its round. Raises KeyError."""
        number = _KEY.match(key)
        with self._lock:
            if key not in self._row_of and number is not None:
                for path in self._files(f"{int(number[1]):06d}"):
                    if path not in self._seen:
                        self._add(path)
            return self._row_of[key]

    def read(self, row: int) -> Trajectory:
        """Returns the whole episode. Reads no more than a part of its file at once. Raises TrajectoryError."""
        path, first = self._place_of(row)
        if first < 0:
            raise TrajectoryError(f"{path} does not hold this episode any more")
        if path.suffix == episode_file.SUFFIX:
            return episode_file.read(path)
        with parquet.opened(path) as file:
            return parquet.from_table(_episode(file, first))[0]

    def _place_of(self, row: int) -> tuple[Path, int]:
        """Returns the file and first row of an episode as they are now."""
        with self._lock:
            path, _ = self._place[row]
            if (written := _written(str(path))) == 0:  # its iteration has ended since
                self.refresh()
            elif written != self._read_at[path]:  # an episode was refused since: others are where it was
                self._add(str(path))
            return self._place[row]

    def _add(self, name: str) -> None:
        self._seen.add(name)
        self._unreadable.pop(name, None)
        written, path = _written(name), Path(name)
        if path in self._read_at:
            self._place = [(at, -1 if at == path else first) for at, first in self._place]
        self._read_at[path] = written
        try:
            rows, firsts = _summary(path)
        except (TrajectoryError, KeyError, pa.ArrowException, OverflowError) as error:
            if path.suffix != episode_file.SUFFIX:  # that one has become part of its iteration's file
                self._unreadable[name] = written, str(error).removeprefix(f"{path} is not a trajectory file: ")
            return
        keys = rows["key"].to_pylist()
        fresh = []
        for number, (key, first) in enumerate(zip(keys, firsts, strict=True)):
            if key in self._row_of:
                self._place[self._row_of[key]] = (path, first)
            else:
                self._row_of[key] = len(self._place)
                self._place.append((path, first))
                fresh.append(number)
        if fresh:
            self._chunks.append(rows.take(pa.array(fresh)))

    def _tell(self, events: Iterable[Mapping[str, Json]]) -> None:
        for event in events:
            ticket = event.get("ticket")
            if event.get("event") == "episode_retried" and type(ticket) is int:
                self._pending[_ticket_of(event)].append(str(event.get("reason", "")))
            elif event.get("event") == "episode" and type(ticket) is int:
                key = f"{_PREFIX.get(str(event.get('purpose')), 't')}{event.get('iteration')}.{ticket}"
                reasons = [*self._pending.pop(_ticket_of(event), []), *self._pending.pop(f"{ticket}", [])]
                trouble = "; ".join(dict.fromkeys(reasons))
                attempt, time = event.get("attempt", 0), event.get("time")
                if isinstance(time, float) and type(attempt) is int:
                    self._arrivals[key] = (time, attempt, trouble)


def _ticket_of(event: Mapping[str, Json]) -> str:
    """Returns the ticket of an event in a word; earlier versions told only the number of one that ran again."""
    if "iteration" not in event:
        return f"{event['ticket']}"
    return f"{event.get('purpose', 'train')} {event['iteration']} {event['ticket']}"


def summarise(episodes: Sequence[Trajectory]) -> pa.Table:
    """Returns the rows of episodes that are in memory, as ``EpisodeIndex.table`` has them without the events."""
    if not episodes:
        return _empty()
    return _summarised(pa.concat_tables([parquet.to_table(one) for one in episodes]), "")[0]


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _summary(path: Path) -> tuple[pa.Table, list[int]]:
    """Returns one row per episode of a file, and where each begins."""
    if path.suffix == episode_file.SUFFIX:
        return _summarised(parquet.to_table(episode_file.read(path)), "")
    is_measure = path.parent.parent.name == "evaluation" and path.name[0].isdigit()
    with parquet.opened(path) as file:
        wanted = [name for name in (*_PER_EPISODE, *_PER_STEP, "purpose") if name in file.columns]
        rows = file.read(wanted)
        rows.validate(full=True)  # texts of a stranger's file may be no UTF-8
        if any(column.null_count for column in rows.columns):
            raise TrajectoryError("it has nulls")
        return _summarised(rows, "measure" if is_measure else "")


def _summarised(rows: pa.Table, purpose: str) -> tuple[pa.Table, list[int]]:
    firsts = np.flatnonzero(rows["step"].to_numpy() == 0)
    if rows.num_rows == 0:
        return _ROWS.empty_table(), []
    if len(firsts) == 0 or firsts[0] != 0:
        raise ValueError("its rows are not in order")
    starts = pa.array(firsts)
    columns = {name: _one(rows[name]).take(starts) for name in _PER_EPISODE}
    columns["steps"] = pa.array(np.diff([*firsts, rows.num_rows]), pa.int32())
    columns["reward"] = pa.array(np.add.reduceat(rows["reward"].to_numpy().astype(np.float64), firsts))
    columns["truncated"] = _one(rows["truncated"]).take(pa.array([*(firsts[1:] - 1), rows.num_rows - 1]))
    known = (
        _one(rows["purpose"]).take(starts).to_pylist() if "purpose" in rows.schema.names else ["train"] * len(firsts)
    )
    columns["purpose"] = pa.array([purpose or each for each in known], pa.string())
    columns["key"] = pa.array(list(_keys(columns)), pa.string())
    return pa.table(columns).select(_ROWS.names).cast(_ROWS), firsts.tolist()


def _keys(columns: Columns) -> Iterator[str]:
    names = ("purpose", "iteration", "ticket", "policy_version")
    for purpose, iteration, ticket, version in zip(*(columns[name].to_pylist() for name in names), strict=True):
        of = f"{version}." if purpose == "measure" else ""
        yield f"{_PREFIX.get(purpose, 't')}{of}{iteration}.{ticket}"


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


def _episode(file: BoundedFile, first: int) -> pa.Table:
    """Returns the rows of the episode that begins with this row."""
    found: list[pa.RecordBatch] = []
    for rows in file.batches(_ROWS_AT_ONCE, first):
        starts = [int(each) for each in np.flatnonzero(rows["step"].to_numpy() == 0) if found or each > 0]
        found.append(rows.slice(0, starts[0] if starts else rows.num_rows))
        if starts:
            break
    return pa.Table.from_batches(found)


def _empty() -> pa.Table:
    return pa.schema([*_ROWS, *pa.schema(_FROM_EVENTS.items())]).empty_table()
