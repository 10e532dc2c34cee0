"""Files of one JSON object per line, whose last line a crash may have cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.collect.leases import Grant, LeaseLedger
from digirl_dist.errors import SettingsError
from digirl_dist.judge import Verdict
from digirl_dist.judge.model import Verdicts
from digirl_dist.storage import json_lines
from digirl_dist.storage.events import Events
from digirl_dist.tasks import Key


@pytest.mark.parametrize("length", [1, 5000])
def test_what_is_appended_to_a_file_that_was_cut_off_anywhere_is_a_line_of_its_own(tmp_path: Path, length: int) -> None:
    path = tmp_path / "lines.jsonl"
    whole = b"".join(json.dumps({"number": number, "text": "x" * length}).encode() + b"\n" for number in range(3))
    for cut in {*range(0, len(whole), 1 + length // 40), len(whole) - 1, len(whole)}:
        path.write_bytes(whole[:cut])
        json_lines.append(path, b'{"number": 3}\n{"number": 4}\n')
        kept = list(range(whole[:cut].count(b"\n")))
        assert [line["number"] for line in json_lines.read(path)] == [*kept, 3, 4], cut


def test_events_leases_and_verdicts_after_a_crash_are_all_read(tmp_path: Path) -> None:
    for name in ("events", "leases", "judge"):
        (tmp_path / name).write_bytes(b'{"event": "cut o')
    Events(tmp_path / "events").emit("run_started")
    assert [event["event"] for event in json_lines.read(tmp_path / "events")] == ["run_started"]
    grant = Grant("w", Key(0, 1), 0, 0, "ab")
    LeaseLedger(tmp_path / "leases").add([grant])
    assert LeaseLedger(tmp_path / "leases").known() == [grant]
    Verdicts(tmp_path / "judge").add("q", Verdict(True), "model", "e", (1, 1))
    assert Verdicts(tmp_path / "judge").get("q") == Verdict(True)


@pytest.mark.parametrize("line", [
    b"", b"{}", b' {"a": 1} \r', b'{"a": 1}x', b'{"a": 1} {}', b"[1]", b"{", b'{"a": "\xff"}', b'{"a": NaN}',
    b'{"a": "\xed\xa0\x80"}', b"[" * 200_000, b'{"a": ' + b"1" * 5000 + b"}", b'{"a": "\xc2\xa0"}\xc2\xa0',
])  # fmt: skip
def test_a_line_is_what_json_says_or_left_out(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"first": 1}\n' + line + b'\n{"last": 1}\n')
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        said = None
    between = [said] if isinstance(said, dict) else []
    assert repr(json_lines.read(path)) == repr([{"first": 1}, *between, {"last": 1}])


def test_a_change_looks_at_no_other_key_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each of half a million rollouts would cost a look at all that were asked for before."""

    class Unlisted(dict[str, Any]):
        def keys(self) -> Any:
            raise AssertionError("all keys are listed")

    monkeypatch.setattr(json_lines, "MOST_KEYS", 2)
    kept = json_lines.DurableMap(tmp_path / "kept.jsonl")
    kept.values = Unlisted()
    kept.write({"a": 1, "b": 2})
    kept.write({"a": 3, "b": None})
    kept.write({"c": 4, "a": 5})
    with pytest.raises(SettingsError, match="has 2 keys"):
        kept.write({"a": 1, "d": 2})
    assert json_lines.DurableMap(tmp_path / "kept.jsonl").values == {"c": 4, "a": 5}
