"""Files of one JSON object per line, whose last line a crash may have cut off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from digirl_dist.collect.lease_ledger import LeaseLedger
from digirl_dist.collect.leases import Grant
from digirl_dist.judge import Verdict
from digirl_dist.judge.verdicts import Verdicts
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
