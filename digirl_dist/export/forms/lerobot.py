"""LeRobotDataset v3.0: frames in Parquet with screenshots, the episodes, tasks and statistics beside them.

https://huggingface.co/docs/lerobot/lerobot-dataset-v3. A frame is a step. Actions become vectors of numbers whose names
are in ``meta/info.json``: those of a device are ``type`` (its place in ``meta/action_types.json``) and each number that
an action has, 0 where it has none; ``action_json`` is the whole action. Time is counted in steps: a frame each second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from digirl_dist.export.lerobot_columns import FPS, Layout, Moments
from digirl_dist.export.source import Source
from digirl_dist.trajectory import Trajectory
from digirl_dist.types import Json

_FILE_MB, _FILES_OF_A_CHUNK = 100, 1000
_ROWS_AT_ONCE, _EPISODES_AT_ONCE = 256, 1000


def write(source: Source, folder: Path) -> None:
    """Reads the run twice: for the form of its frames, and for the frames. Raises TrajectoryError."""
    layout = Layout.of(source.all_episodes())
    frames, episodes, moments = _Files(folder, "data"), _Files(folder, "meta/episodes"), Moments(layout)
    tasks: dict[str, int] = {}
    first = 0
    for number, episode in enumerate(source.all_episodes()):
        task = tasks.setdefault(_words(episode), len(tasks))
        rows = layout.rows(episode, number, first, task)
        moments.add(rows, episode)
        place = frames.add(rows, layout.schema, _ROWS_AT_ONCE)
        episodes.add([_episode(episode, number, first, place)], _EPISODES, _EPISODES_AT_ONCE)
        first += len(rows)
    frames.close()
    episodes.close()
    _write_tasks(tasks, folder / "meta" / "tasks.parquet")
    (folder / "meta" / "stats.json").write_text(json.dumps(moments.statistics(), indent=4))
    (folder / "meta" / "action_types.json").write_text(json.dumps(layout.kinds))
    info = _info(layout, number + 1, first, len(tasks))
    (folder / "meta" / "info.json").write_text(json.dumps(info, indent=4))


_EPISODES = pa.schema(
    [
        ("episode_index", pa.int64()),
        ("tasks", pa.list_(pa.string())),
        ("length", pa.int64()),
        ("data/chunk_index", pa.int64()),
        ("data/file_index", pa.int64()),
        ("dataset_from_index", pa.int64()),
        ("dataset_to_index", pa.int64()),
        ("meta/episodes/chunk_index", pa.int64()),
        ("meta/episodes/file_index", pa.int64()),
        ("success", pa.bool_()),
    ]
)


def _episode(episode: Trajectory, number: int, first: int, place: tuple[int, int]) -> Mapping[str, Json]:
    return {
        "episode_index": number,
        "tasks": [_words(episode)],
        "length": len(episode.steps),
        "data/chunk_index": place[0],
        "data/file_index": place[1],
        "dataset_from_index": first,
        "dataset_to_index": first + len(episode.steps),
        "meta/episodes/chunk_index": 0,
        "meta/episodes/file_index": 0,
        "success": episode.success,
    }


def _words(episode: Trajectory) -> str:
    """Returns the task in words; tasks without an instruction are told apart by their names."""
    return episode.ticket.task.instruction or episode.ticket.task.id


class _Files:
    """Parquet files ``chunk-NNN/file-NNN.parquet`` of bounded size below a folder; an episode is never divided."""

    def __init__(self, folder: Path, name: str) -> None:
        self._root = folder / name
        self._number = 0
        self._is_split = name == "data"
        self._pending: list[Mapping[str, Json]] = []
        self._schema = pa.schema([])
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: list[Mapping[str, Json]], schema: pa.Schema, at_once: int) -> tuple[int, int]:
        """Returns chunk and file in which the rows are."""
        self._schema = schema
        self._pending += rows
        place = divmod(self._number, _FILES_OF_A_CHUNK)
        if len(self._pending) >= at_once:
            self._flush()
            if self._is_split and self._path().stat().st_size > _FILE_MB << 20:
                self.close()
                self._number += 1
        return place

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _flush(self) -> None:
        if self._pending and self._writer is None:
            self._path().parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._path(), self._schema)
        if self._pending and self._writer is not None:
            self._writer.write_table(pa.Table.from_pylist(self._pending, schema=self._schema))
        self._pending = []

    def _path(self) -> Path:
        chunk, file = divmod(self._number, _FILES_OF_A_CHUNK)
        return self._root / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"


def _write_tasks(tasks: Mapping[str, int], path: Path) -> None:
    """Writes the table that LeRobot reads by pandas, whose index are the tasks."""
    index = "__index_level_0__"
    named = {"name": None, "field_name": index, "pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    about = {"index_columns": [index], "column_indexes": [], "columns": [named], "pandas_version": "2.0.0"}
    table = pa.table({"task_index": pa.array(tasks.values(), pa.int64()), index: pa.array(tasks.keys(), pa.string())})
    pq.write_table(table.replace_schema_metadata({b"pandas": json.dumps(about).encode()}), path)


def _info(layout: Layout, episodes: int, frames: int, tasks: int) -> dict[str, Json]:
    return {
        "codebase_version": "v3.0",
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": _FILES_OF_A_CHUNK,
        "data_files_size_in_mb": _FILE_MB,
        "video_files_size_in_mb": 200,
        "fps": FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": None,
        "features": layout.features,
    }
