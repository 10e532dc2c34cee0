"""What others say must not steer the terminal."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from digirl_dist.errors import UnreachableError
from digirl_dist.exit_status import exit_status
from digirl_dist.plain_text import HIDDEN, hide, one_line, printable, secrets_of, without_secrets, without_secrets_in
from digirl_dist.report.output import Lines
from digirl_dist.report.progress import Progress
from digirl_dist.report.why import explain
from digirl_dist.storage.status import Status

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


def test_a_file_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_status(lambda: len((tmp_path / HOSTILE).read_bytes())) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}/{SHOWN}: No such file or directory\n"


def test_progress_and_why_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"worker": "w1", "reason": HOSTILE, "remedy": ""}
    Progress(Status(), Lines(sys.stdout)).listen("worker_lost", lost)
    said = capsys.readouterr().out
    assert SHOWN in said and "\x1b" not in said
    status = {"time": 0.0, "since": 0.0, "pid": 1, "state": "running", "doing": "collect", "workers": {}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    event = {"time": time.time(), "event": "worker_lost", **lost, "reason": f"{HOSTILE}\nhost: all is well"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    told = explain(tmp_path)
    assert SHOWN in told and "\x1b" not in told and "\nhost: all is well" not in told


@pytest.mark.parametrize(
    "text",
    [
        "https://ann:SECRETVALUE@pip.example/simple",
        "https://SECRETVALUE@pip.example/simple",
        "postgres://ann:SECRETVALUE@db/x",
        "https://a.example/?token=SECRETVALUE&b=1",
        "Authorization: Bearer SECRETVALUE",
        '{"apiKey": "SECRETVALUE"}',
        "pwd=SECRETVALUE",
        "--password=SECRETVALUE --pre",
        "X-Api-Key: SECRETVALUE",
        "AWS_SECRET_ACCESS_KEY=SECRETVALUE",
        "client_secret: SECRETVALUE",
        "Bearer SECRETVALUE",
        "passphrase = 'SECRETVALUE'",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nSECRETVALUE\n-----END OPENSSH PRIVATE KEY-----",
    ],
)
def test_secrets_are_hidden_by_their_shape(text: str) -> None:
    assert "SECRETVALUE" not in without_secrets(text) and HIDDEN in printable(text)


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Authorization",
        "apiKey",
        "api_key",
        "API-KEY",
        "pwd",
        "passwd",
        "client_secret",
        "auth",
        "accessToken",
        "HF_TOKEN",
        "credentials",
        "cookie",
        "x-api-key",
        "private_key",
        "passphrase",
    ],
)
def test_secrets_are_hidden_by_their_keys_wherever_they_are(key: str) -> None:
    hidden = without_secrets_in({"a": [{"b": {key: "SECRETVALUE"}}], "c": 1})
    assert hidden == {"a": [{"b": {key: HIDDEN}}], "c": 1}


def test_what_is_no_secret_stays() -> None:
    harmless = {
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "pad_token": "<pad>",
        "key": "~/.ssh/id",
        "author": "ann",
        "task": ["enter-password", "click-button"],
        "url": "ssh://ann@machine/x",
        "key_variable": "OPENAI_API_KEY",
        "args": ["--token-count", "5"],
        "said": "max_tokens=256",
    }
    assert without_secrets_in(harmless) == harmless


def test_a_value_that_is_known_is_hidden_wherever_it_occurs() -> None:
    hide(["swordfish-of-mine"])
    assert without_secrets("it said swordfish-of-mine twice") == f"it said {HIDDEN} twice"
    assert secrets_of({"a": [{"token": "x" * 9}], "b": {"pwd": "y" * 9, "c": "z"}}) == {"x" * 9, "y" * 9}
