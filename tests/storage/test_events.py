"""``events.jsonl`` while the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

from digirl_dist.storage.events import Events


def test_events_go_on_in_a_new_file_once_somebody_has_deleted_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    events.emit("one")
    path.unlink()
    events.emit("two")
    events.close()
    events.emit("three")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["two"]
