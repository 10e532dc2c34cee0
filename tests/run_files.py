"""What a run wrote, line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON lines file; none where there is no file yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def metrics(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / "metrics.jsonl")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(folder / "events.jsonl") if event["event"] == kind]
