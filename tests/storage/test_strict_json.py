"""What is written is JSON, whatever numbers it has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.storage import json_lines, strict_json
from digirl_dist.storage.events import Events


def no_json(name: str) -> Any:
    pytest.fail(f"{name} is no JSON")


def test_numbers_that_are_not_finite_become_null() -> None:
    value = {"a": math.nan, "b": [1.5, -math.inf, {"c": (math.inf, "x")}], "d": True, "e": None}
    found = json.loads(strict_json.dumps(value), parse_constant=no_json)
    assert found == {"a": None, "b": [1.5, None, {"c": [None, "x"]}], "d": True, "e": None}
    assert json.loads(strict_json.dumps({math.nan: math.nan}), parse_constant=no_json) == {"nan": None}


def test_an_event_is_a_line_of_json(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl")
    events.emit("odd", reward=math.nan, reason="\x1b[2J\ud800")
    events.close()
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=no_json)["reward"] is None


def test_of_a_growing_file_lines_are_read_once_and_one_that_never_ends_costs_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, "_LONGEST", 16)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"[" * 16 * 5 + b'{"b": 2}\n\xff\n{"c": 3}\n{"d": ')
    lines = json_lines.JsonLines(path)
    assert list(lines.news(lines.size())) == [{"a": 1}, {"c": 3}]
    with path.open("ab") as file:
        file.write(b"4}\n")
    assert list(lines.news(lines.size())) == [{"d": 4}]
