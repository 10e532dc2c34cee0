"""The folder of a run."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from digirl_dist.errors import NoRunError, RunFolderError
from digirl_dist.report.why import is_running
from digirl_dist.storage.run_folder import RunFolder, existing_run, runs_in


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


def test_a_folder_that_could_not_be_used_is_free_while_the_error_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"run\.json is damaged") as looked_at:
        RunFolder(tmp_path, "")
    (tmp_path / "run.json").unlink()
    RunFolder(tmp_path, "").close()
    assert looked_at.tb is not None, "a notebook keeps it too"


def test_who_asks_whether_a_run_goes_on_writes_nothing_and_keeps_no_host_out(tmp_path: Path) -> None:
    assert not is_running(tmp_path) and not list(tmp_path.iterdir())
    RunFolder(tmp_path, "").close()
    with (tmp_path / ".lock").open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.01, fcntl.flock, [asking, fcntl.LOCK_UN]).start()
        host = RunFolder(tmp_path, "")
    assert is_running(tmp_path)
    host.close()
    assert not is_running(tmp_path)


def test_what_is_no_run_folder_is_named_with_the_runs_that_are_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # else runs/ of the checkout is near, too
    with pytest.raises(NoRunError, match="demo is no run folder: .*; name the save_path of a run"):
        existing_run(tmp_path / "demo")
    for name in ("demo", "host"):
        RunFolder(tmp_path / name, "").close()
    assert existing_run(tmp_path / "demo") == tmp_path / "demo"
    assert runs_in(tmp_path) == [tmp_path / "demo", tmp_path / "host"]
    for folder, hint in {tmp_path / "dmo": "did you mean '.*/demo'", tmp_path: "there are .*/demo, .*/host"}.items():
        with pytest.raises(NoRunError, match=f"no config.yaml; {hint}"):
            existing_run(folder)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_folder_was_moved_away_writes_nothing_more_and_ends_with_that_reason(
    replaced: bool, tmp_path: Path
) -> None:
    gone = pytest.raises(RunFolderError, match="was moved or deleted while the run used it")
    with gone, RunFolder(tmp_path / "run", "") as folder:
        folder.refuse_if_gone()
        (tmp_path / "run").rename(tmp_path / "elsewhere")
        if replaced:
            RunFolder(tmp_path / "run", "").close()
        with pytest.raises(RunFolderError, match="put it back"):
            folder.refuse_if_gone()
        raise FileNotFoundError("whatever failed because of that")


def test_an_error_of_a_run_whose_folder_is_there_stays_what_it_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mine"), RunFolder(tmp_path / "run", ""):
        raise ValueError("mine")
    RunFolder(tmp_path / "run", "").close()
