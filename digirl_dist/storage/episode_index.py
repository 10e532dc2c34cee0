"""An index of a run's episodes: one row each, without screenshots, so that 100,000 of them are at hand.

Only the small columns of the trajectory files are read, and each file once. A run that is still going on is followed:
``refresh`` adds what has landed since, together with what ``events.jsonl`` says of it.
"""

from __future__ import annotations

import glob
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from digirl_dist.errors import RunFolderError, TrajectoryError
from digirl_dist.plain_text import as_unicode
from digirl_dist.settings.safe_yaml import read_mapping
from digirl_dist.storage import episode_file, file_system, parquet
from digirl_dist.storage.json_lines import JsonLines
from digirl_dist.storage.parquet_bounds import BoundedFile
from digirl_dist.tasks import Key, Purpose
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json, is_index

_PER_EPISODE = (
    *("iteration", "ticket", "worker", "slot", "purpose", "policy_version", "task", "instruction", "seed", "success"),
)
_PER_STEP = ("step", "reward", "truncated")
_ROWS_AT_ONCE = 64
_EVENT_BYTES = 2**22
"""How much of the events is read beside a part of the files."""
_MOST_ARRIVALS, _MOST_TROUBLED = 1_000_000, 20_000
"""Episodes of which it is known when they landed, and those of which it is known why they ran again: the newest, as a
stranger's events may tell of any number."""
_REASONS, _LONGEST_REASON = 4, 500
"""Of one episode: the newest, and of each the last characters."""
_KEY = re.compile(r"[tem](\d{1,9})\.", re.ASCII)
_LANDING = f"trajectories/.landing/{{}}/*{episode_file.SUFFIX}"
"""First those of episodes that have just landed: what becomes part of its round's file meanwhile is found there."""
_WHOLE = ("trajectories/{}.parquet", "evaluation/{}/*.parquet")
_TRIES = 5
"""How often an episode is looked for whose file changes at that moment."""
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
_FROM_EVENTS = {"time": pa.float64(), "attempt": pa.int32(), "trouble": pa.string(), "seconds": pa.float64()}

Columns = dict[str, pa.Array]


class EpisodeIndex:
    """The episodes of a run folder, in the order in which they were found; a row never changes its place.

    ``key`` identifies an episode in its run (see ``tasks.Key.name``). Safe to use from any thread, beside a host that
    writes: an episode that was seen once can be read at every moment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._is_judged = read_mapping(folder / "config.yaml").get("success") not in (None, "environment")
        """Whether episodes that have just landed are to be judged: what the emulator said of them does not count."""
        self._events = JsonLines(folder / "events.jsonl")
        self._troubles: dict[str, deque[str]] = {}
        """Why episodes ran again, by key."""
        self._chunks = [_ROWS.empty_table()]
        self._row_of: dict[str, int] = {}
        self._place: list[tuple[str, int]] = []
        """The file of each row, and the episode's first row in it."""
        self._keys: list[str] = []
        """Of each row."""
        self._read_at: dict[str, int] = {}
        """When each file that has been read was written; not those of single episodes whose round has ended."""
        self._waiting: list[str] = []
        """Files that were found and not read yet."""
        self._arrivals: dict[str, tuple[float, int, float | None]] = {}
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
        return [*(f"{name} is not a trajectory file: {why}" for name, why in defects), *filter(None, [self._untold])]

    def refresh(self, most_files: int | None = None) -> int:
        """Adds new episodes, of at most so many more files; returns how many files remain to be read."""
        with self._lock:
            if most_files is None or not self._waiting:
                self._waiting = self._found()
            now, self._waiting = self._waiting[:most_files], self._waiting[len(self._waiting[:most_files]) :]
            gone = [path for path in now if not self._add(path)]
            if gone:  # a round has ended since they were listed, and its file has them
                self._waiting = self._found()
                return self.refresh(most_files)
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
        return [*again, *(path for path in self._files() if path not in self._read_at)]

    def _files(self, number: str = "[0-9]*") -> Iterator[str]:
        """Yields the files of finished iterations, of evaluations, and of single episodes that have just landed; of one
        round or all."""
        landing = [_LANDING.format(of) for of in ("{}", "evaluate/{}", "measure/{}-*")]
        for pattern in (*(() if self._is_judged else landing), *_WHOLE):
            yield from sorted(glob.iglob(f"{glob.escape(str(self._folder))}/{pattern.format(number)}"))

    def table(self, first: int = 0, most: int | None = None) -> pa.Table:
        """Returns ``most`` rows from ``first`` on. ``time`` (Unix seconds), ``attempt``, ``trouble`` and ``seconds``
        are from the events: when the episode landed, how often its ticket was leased before, why, and how long it took.
        """
        with self._lock:
            rows = pa.concat_tables(self._chunks).slice(first, most).combine_chunks()
            arrivals = [
                (time, attempt, "; ".join(dict.fromkeys(self._troubles.get(key, ()))), took_s)
                for key in rows["key"].to_pylist()
                for time, attempt, took_s in [self._arrivals.get(key, (None, None, None))]
            ]
        for place, (name, kind) in enumerate(_FROM_EVENTS.items()):
            rows = rows.append_column(name, pa.array([arrival[place] for arrival in arrivals], kind))
        return rows

    def find(self, key: str) -> int:
        """Returns the row of an episode; reads no files but those of its round. Raises KeyError."""
        with self._lock:
            if key not in self._row_of:
                self._look_at_round(key)
            return self._row_of[key]

    def _look_at_round(self, key: str) -> None:
        number = _KEY.match(key)
        for path in self._files(f"{int(number[1]):06d}") if number else ():
            if path not in self._read_at:
                self._add(path)

    def read(self, row: int) -> Trajectory:
        """Returns the whole episode. Reads no more than a part of its file at once. Raises TrajectoryError."""
        defect: TrajectoryError | None = None
        for _ in range(_TRIES):
            name, first = self._place_of(row)
            if first < 0:
                break
            try:
                episode = _read(Path(name), first)
            except TrajectoryError as error:
                if _written(name) == self._read_at.get(name):
                    raise
                defect = error
            else:
                if episode.ticket.key.name == self._keys[row]:
                    return episode
                defect = None  # the file was replaced before it was opened
        raise defect or TrajectoryError(f"{name} does not hold this episode any more")

    def _place_of(self, row: int) -> tuple[str, int]:
        """Returns the file and first row of an episode as they are now."""
        with self._lock:
            name, _ = self._place[row]
            if (written := _written(name)) == 0:  # its round has ended since, or it was carried over to another
                self._look_at_round(self._keys[row])
                if self._place[row][0] == name:
                    self.refresh()
            elif written != self._read_at.get(name):  # an episode was refused since: others are where it was
                self._add(name)
            return self._place[row]

    def _add(self, name: str) -> bool:
        """Adds the episodes of a file; returns False if it is not there any more."""
        self._unreadable.pop(name, None)
        written = _written(name)
        if name in self._read_at:
            self._place = [(at, -1 if at == name else first) for at, first in self._place]
        self._read_at[name] = written
        try:
            rows, firsts = _summary(Path(name))
        except (TrajectoryError, KeyError, pa.ArrowException, OverflowError) as error:
            if _written(name) == 0:
                return False
            self._unreadable[name] = written, str(error).removeprefix(f"{name} is not a trajectory file: ")
            return True
        fresh = []
        for number, (key, first) in enumerate(zip(rows["key"].to_pylist(), firsts, strict=True)):
            if key not in self._row_of:
                self._row_of[key] = len(self._place)
                self._place.append((name, first))
                self._keys.append(key)
                fresh.append(number)
            elif not name.endswith(episode_file.SUFFIX) or not self._is_in_its_rounds_file(key):
                before, _ = self._place[self._row_of[key]]
                self._place[self._row_of[key]] = (name, first)
                if before.endswith(episode_file.SUFFIX) and before != name:  # its round has ended
                    self._read_at.pop(before, None)
        if fresh:
            self._chunks.append(rows.take(pa.array(fresh)))
        while len(self._chunks) > 1 and len(self._chunks[-2]) <= len(self._chunks[-1]):  # each costs kilobytes
            self._chunks[-2:] = [pa.concat_tables(self._chunks[-2:]).combine_chunks()]
        return True

    def _is_in_its_rounds_file(self, key: str) -> bool:
        """Returns whether the episode has its last place; the file in which it landed is about to be removed then."""
        name, first = self._place[self._row_of[key]]
        return first >= 0 and not name.endswith(episode_file.SUFFIX)

    def _tell(self, events: Iterable[Mapping[str, Json]]) -> None:
        for event in events:
            key = _key_of(event) if event.get("event") in ("episode", "episode_retried") else ""
            if key and event["event"] == "episode_retried":
                reason = as_unicode(str(event.get("reason", ""))[-_LONGEST_REASON:])
                self._troubles.setdefault(key, deque(maxlen=_REASONS)).append(reason)
                self._troubles = _newest(self._troubles, _MOST_TROUBLED)
            elif key:
                attempt, time, took_s = event.get("attempt", 0), event.get("time"), event.get("seconds")
                if isinstance(time, float) and is_index(attempt):
                    self._arrivals[key] = (time, attempt, took_s if isinstance(took_s, float) else None)
                    self._arrivals = _newest(self._arrivals, _MOST_ARRIVALS)


def _newest(told: dict[str, Any], most: int) -> dict[str, Any]:
    """Returns ``told``; the newer half of it if there are more than ``most``."""
    return told if len(told) <= most else dict(islice(told.items(), most // 2, None))


def _key_of(event: Mapping[str, Json]) -> str:
    """Returns the key of the ticket that an event is about; empty if it names none, as in a stranger's file."""
    numbers: list[Json] = [event.get("iteration"), event.get("ticket"), event.get("measured", 0)]
    purpose: Json = event.get("purpose")
    if all(map(is_index, numbers)) and purpose in get_args(Purpose):
        return Key(numbers[0], numbers[1], purpose, numbers[2]).name
    return ""


def _read(path: Path, first: int) -> Trajectory:
    """Returns the episode of a file that begins with row ``first``. Raises TrajectoryError."""
    if path.suffix == episode_file.SUFFIX:
        return episode_file.read(path)
    with parquet.opened(path) as file:
        return parquet.from_table(_episode(file, first))[0]


def summarise(episodes: Sequence[Trajectory]) -> pa.Table:
    """Returns the rows of episodes that are in memory, as ``EpisodeIndex.table`` has them without the events."""
    if not episodes:
        return pa.schema([*_ROWS, *pa.schema(_FROM_EVENTS.items())]).empty_table()
    return _summarised(pa.concat_tables([parquet.to_table(one) for one in episodes]))[0]


def _written(path: str) -> int:
    found = file_system.found_at(path)
    return 0 if found is None else found.st_mtime_ns


def _summary(path: Path) -> tuple[pa.Table, list[int]]:
    """Returns one row per episode of a file, and where each begins."""
    if path.suffix == episode_file.SUFFIX:
        return _summarised(parquet.to_table(episode_file.read(path)))
    with parquet.opened(path) as file:
        rows = file.read([name for name in (*_PER_EPISODE, *_PER_STEP) if name in file.columns])
        rows.validate(full=True)  # texts of a stranger's file may be no UTF-8
        if any(column.null_count for column in rows.columns):
            raise TrajectoryError("it has nulls")
        return _summarised(rows)


def _summarised(rows: pa.Table) -> tuple[pa.Table, list[int]]:
    firsts = np.flatnonzero(rows["step"].to_numpy() == 0)
    if rows.num_rows == 0:
        return _ROWS.empty_table(), []
    if len(firsts) == 0 or firsts[0] != 0:
        raise ValueError("its rows are not in order")
    starts = pa.array(firsts)
    columns = {name: rows[name].combine_chunks().take(starts) for name in _PER_EPISODE}
    columns["steps"] = pa.array(np.diff([*firsts, rows.num_rows]), pa.int32())
    columns["reward"] = pa.array(np.add.reduceat(rows["reward"].to_numpy().astype(np.float64), firsts))
    columns["truncated"] = rows["truncated"].combine_chunks().take(pa.array([*(firsts[1:] - 1), rows.num_rows - 1]))
    columns["key"] = pa.array(list(_keys(columns)), pa.string())
    return pa.table(columns).select(_ROWS.names).cast(_ROWS), firsts.tolist()


def _keys(columns: Columns) -> Iterator[str]:
    names = ("iteration", "ticket", "purpose", "policy_version")
    for iteration, ticket, purpose, version in zip(*(columns[name].to_pylist() for name in names), strict=True):
        yield Key(iteration, ticket, purpose, version).name


def _episode(file: BoundedFile, first: int) -> pa.Table:
    """Returns the rows of the episode that begins with this row."""
    found: list[pa.RecordBatch] = []
    for rows in file.batches(_ROWS_AT_ONCE, first):
        starts = [int(each) for each in np.flatnonzero(rows["step"].to_numpy() == 0) if found or each > 0]
        found.append(rows.slice(0, starts[0] if starts else rows.num_rows))
        if starts:
            break
    return pa.Table.from_batches(found)
