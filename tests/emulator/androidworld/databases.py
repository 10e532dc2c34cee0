"""The databases of AndroidWorld's apps on the stand-in device: empty, with the columns that its tasks read and write.

The apps themselves, which would make them, are not there. Needs the real package.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emulator.androidworld.android_files import Storage

_APPS = "/data/data"
_SMS = f"{_APPS}/com.android.providers.telephony/databases/mmssms.db"
_MUSIC = f"{_APPS}/code.name.monkey.retromusic/databases"
_VLC = f"{_APPS}/org.videolan.vlc/app_db/vlc_media.db"
_PLAIN: Mapping[tuple[str, str], str] = {
    (_SMS, "sms"): "_id INTEGER PRIMARY KEY, address, body, date, type",
    (_SMS, "threads"): "_id INTEGER PRIMARY KEY, snippet",
    (f"{_MUSIC}/playlist.db", "PlaylistEntity"): "playlist_id INTEGER PRIMARY KEY, playlist_name",
    (f"{_MUSIC}/playlist.db", "SongEntity"): "song_key INTEGER PRIMARY KEY, playlist_creator_id, title, duration",
    (f"{_MUSIC}/music_playback_state.db", "playing_queue"): "_id INTEGER PRIMARY KEY, title",
    (_VLC, "Playlist"): "id_playlist INTEGER PRIMARY KEY, name",
    (_VLC, "Media"): "id_media INTEGER PRIMARY KEY, filename",
    (_VLC, "PlaylistMediaRelation"): "media_id, playlist_id, position",
}


def make_databases(storage: Storage, suite: Mapping[str, Any]) -> None:
    """Makes those that the tasks of a suite name themselves, and those of apps to be asked about."""
    from android_world.task_evals.information_retrieval import activity_app_utils, joplin_app_utils, task_app_utils
    from android_world.task_evals.single.calendar import calendar_utils
    from android_world.task_evals.utils import sqlite_schema_utils as rows

    tables = {
        (calendar_utils.DB_PATH, calendar_utils.EVENTS_TABLE): rows.CalendarEvent,
        (task_app_utils._DB_PATH, task_app_utils._TASK_TABLE): rows.Task,
        (activity_app_utils._DB_PATH, activity_app_utils._TABLE): rows.SportsActivity,
        (joplin_app_utils._DB_PATH, joplin_app_utils._NOTES_TABLE): rows.JoplinNote,
        (joplin_app_utils._DB_PATH, joplin_app_utils._NOTES_NORMALIZED_TABLE): rows.JoplinNormalizedNote,
        (joplin_app_utils._DB_PATH, joplin_app_utils._FOLDER_TABLE): rows.JoplinFolder,
    }
    for task in suite.values():
        if hasattr(task, "row_type"):
            tables[task.db_path, task.table_name] = task.row_type
    columns = {place: ", ".join(_columns(row)) for place, row in tables.items()}
    for (path, table), described in {**_PLAIN, **columns}.items():
        with _connected(storage, path) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({described})")


def insert(storage: Storage, task: Any, rows: Sequence[Any]) -> None:
    """Does what the app would have done for an agent that entered these rows."""
    with _connected(storage, task.db_path) as connection:
        for row in rows:
            values = {name: value for name, value in dataclasses.asdict(row).items() if value != -1}
            names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
            connection.execute(f"INSERT INTO {task.table_name} ({names}) VALUES ({marks})", list(values.values()))


def _columns(row: type) -> list[str]:
    fields = dataclasses.fields(row)
    number = next((each.name for each in fields if each.default == -1 and each.name.lower().endswith("id")), None)
    return [f'"{each.name}"' + (" INTEGER PRIMARY KEY" if each.name == number else "") for each in fields]


def _connected(storage: Storage, path: str) -> sqlite3.Connection:
    place: Path = storage.place(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    return sqlite3.connect(place)
