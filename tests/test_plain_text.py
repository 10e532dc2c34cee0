"""What others say must not steer the terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from digirl_dist.errors import UnreachableError
from digirl_dist.exit_status import exit_status
from digirl_dist.plain_text import one_line, printable
from digirl_dist.report.progress import Progress
from digirl_dist.report.why import explain

HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\x9b31mc\r\x08d\u202ee"
SHOWN = "a\\x1b[2J\\x1b]0;owned\\x07b\\x9b31mc\\r\\x08d\\u202ee"


def test_escapes_are_shown_and_text_stays() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("Grüße 李 👩\u200d🚀\n\tx") == "Grüße 李 👩\u200d🚀\n\tx"
    assert one_line("a\nworker w2 lost\tb") == "a\\nworker w2 lost b"


def test_an_error_with_a_workers_words_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise UnreachableError("w1", HOSTILE)

    assert exit_status(fail) == 1
    said = capsys.readouterr().err
    assert SHOWN in said and "\x1b" not in said


def test_progress_and_why_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"worker": "w1", "reason": HOSTILE, "remedy": ""}
    Progress(1).listen("worker_lost", lost)
    said = capsys.readouterr().err
    assert SHOWN in said and "\x1b" not in said
    status = {"time": 0.0, "since": 0.0, "pid": 1, "doing": "collect", "workers": {}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    event = {"time": time.time(), "event": "worker_lost", **lost, "reason": f"{HOSTILE}\nhost: all is well"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    told = explain(tmp_path)
    assert SHOWN in told and "\x1b" not in told and "\nhost: all is well" not in told
