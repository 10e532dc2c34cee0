"""A folder that another user of the worker prepared, or could exchange, is not used: what lies in it is run."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.storage import file_system
from digirl_dist.worker_program import attach, bootstrap

ANOTHER = 4242


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user: as root it is given away, and otherwise it is us who are another."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, ANOTHER, ANOTHER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    return folder


def test_a_folder_of_another_user_is_refused_and_one_below_it_if_all_may_write_there(theirs: Path) -> None:
    theirs.chmod(0o755)
    file_system.refuse_squatted(theirs / "run")
    with pytest.raises(PermissionError, match="belongs to another user"):
        file_system.refuse_squatted(theirs)
    for mode in (0o777, 0o1777):
        theirs.chmod(mode)
        with pytest.raises(PermissionError, match=f"belongs to another user.*{theirs}"):
            file_system.refuse_squatted(theirs / "run" / "w1")


def test_a_link_of_another_user_is_refused(theirs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    file_system.refuse_squatted(link / "run") if os.geteuid() == 0 else None
    os.chown(link, ANOTHER, ANOTHER, follow_symlinks=False) if os.geteuid() == 0 else None
    with pytest.raises(PermissionError, match="belongs to another user"):
        file_system.refuse_squatted(link / "run")


def test_neither_a_program_starts_nor_is_anything_installed_there(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    theirs.chmod(0o777)
    monkeypatch.setattr(sys, "argv", ["attach", "--folder", str(theirs / "run"), "--orphan-s", "1"])
    assert attach.main() == 1
    said: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
    assert said["type"] == "broken" and "belongs to another user" in said["reason"]
    order = dict.fromkeys(bootstrap.InstallRequest.__annotations__, "")
    bootstrap.main(io.BytesIO(json.dumps({**order, "folder": str(theirs), "limit_s": 1.0}).encode()))
    answer = json.loads(capfdbinary.readouterr().out)
    assert "belongs to another user" in answer["error"] and "one that its user can write" in answer["remedy"]
    assert not list(theirs.iterdir())
