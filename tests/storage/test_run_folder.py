"""The folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from digirl_dist.storage.run_folder import RunFolder


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_new_run_folder_is_for_its_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        RunFolder(tmp_path / "runs" / "mine", "").close()
    finally:
        os.umask(before)
    assert (tmp_path / "runs" / "mine").stat().st_mode & 0o777 == 0o700


def test_who_may_read_a_run_folder_that_is_there_stays_its_owners_choice(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o750)
    RunFolder(tmp_path / "mine", "").close()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o750
