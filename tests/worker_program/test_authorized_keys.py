"""What is done to a user's authorized_keys: one line comes and goes, and nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from digirl_dist.worker_program import relay_source as authorized_keys

KEY = "ssh-ed25519 " + "A" * 68
USERS = b"# mine\nssh-rsa AAAA me@home\n\nrestrict ssh-rsa BBBB  two words"
"""What a user has; the last line has no end."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    yield authorized_keys.default_file()


def allow(file: Path, owner: str = "one", lifetime_s: float = 600.0) -> None:
    authorized_keys.allow(file, owner, KEY, "python -m serve '--folder' \"a b\"", lifetime_s)


def test_a_key_may_run_one_command_and_nothing_else_for_a_while(file: Path) -> None:
    allow(file)
    (line,) = file.read_text().splitlines()
    assert line.startswith('restrict,expiry-time="20')
    assert line.endswith(f'",command="python -m serve \'--folder\' \\"a b\\"" {KEY} digirl-dist-relay one')
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700


def test_what_the_user_has_stays_as_it_is(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(USERS)
    file.chmod(0o640)
    allow(file)
    assert file.read_bytes().startswith(USERS + b"\n")
    authorized_keys.withdraw(file, "one")
    assert file.read_bytes() == USERS + b"\n"
    assert file.stat().st_mode & 0o777 == 0o640 and [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_that_was_not_there_goes_again(file: Path) -> None:
    allow(file)
    authorized_keys.withdraw(file, "one")
    assert not file.exists()
    authorized_keys.withdraw(file, "one")


def test_two_runs_leave_each_other_alone(file: Path) -> None:
    allow(file, "one")
    allow(file, "two")
    allow(file, "one")
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["two", "one"]
    authorized_keys.withdraw(file, "one")
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["two"]


def test_a_line_that_a_killed_run_left_is_swept_once_it_has_expired(file: Path) -> None:
    allow(file, "killed", lifetime_s=-1.0)
    allow(file, "alive")
    allow(file, "next")
    assert [line.split()[-1] for line in file.read_text().splitlines()] == ["alive", "next"]


def test_the_time_is_the_machines_whatever_the_session_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(file)
    monkeypatch.setenv("TZ", "UTC-14")
    allow(file, "two")
    first, second = (line.split('"')[1][:11] for line in file.read_text().splitlines())
    assert first == second and os.environ["TZ"] == "UTC-14"


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    (tmp_path / "kept_elsewhere").write_bytes(USERS)
    file.symlink_to(tmp_path / "kept_elsewhere")
    allow(file)
    authorized_keys.withdraw(file, "one")
    assert file.is_symlink() and (tmp_path / "kept_elsewhere").read_bytes() == USERS + b"\n"


def test_a_change_by_another_program_is_not_lost(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.parent.mkdir()
    file.write_bytes(USERS)
    flush = os.fsync

    def meanwhile(number: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        with file.open("ab") as other:
            other.write(b"\nssh-rsa CCCC\n")

    monkeypatch.setattr(os, "fsync", meanwhile)
    allow(file)
    assert b"ssh-rsa CCCC\n" in file.read_bytes() and b"digirl-dist-relay one\n" in file.read_bytes()


def test_a_file_in_a_folder_that_is_none_is_an_error_and_leaves_nothing(file: Path) -> None:
    file.parent.write_text("no folder")
    with pytest.raises(OSError):
        allow(file)
    assert file.parent.read_text() == "no folder"


def test_a_command_of_several_lines_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        authorized_keys.allow(file, "one", KEY, "true\nssh-rsa mine", 60.0)
    assert not file.exists()
