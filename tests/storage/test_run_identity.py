"""A run keeps its id wherever its folder goes, and no two folders have the same one."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from digirl_dist.errors import RunFolderError
from digirl_dist.storage.run_folder import RunFolder


def started(folder: Path) -> RunFolder:
    """Returns the folder after a start of its run."""
    found = RunFolder(folder, "")
    found.close()
    return found


def noted(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return content


@pytest.fixture
def original(tmp_path: Path) -> Path:
    started(tmp_path / "original")
    return tmp_path / "original"


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder on another file system."""
    if os.stat("/dev/shm").st_dev == os.stat(tempfile.gettempdir()).st_dev:
        pytest.skip("/dev/shm is no file system of its own")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def copied(source: Path, target: Path) -> Path:
    return Path(shutil.copytree(source, target))


def test_a_run_keeps_its_id(original: Path) -> None:
    first = started(original)
    assert first.copy_of == "" and started(original).run_id == first.run_id == noted(original)["run_id"]


@pytest.mark.parametrize("copy_first", [True, False])
def test_a_copy_becomes_a_run_of_its_own_and_the_original_stays_one(
    copy_first: bool, original: Path, tmp_path: Path
) -> None:
    run_id, copy = noted(original)["run_id"], copied(original, tmp_path / "copy")
    order = (copy, original) if copy_first else (original, copy)
    found = {folder.name: started(folder) for folder in order}
    assert found["original"].run_id == run_id and found["original"].copy_of == ""
    assert found["copy"].run_id != run_id and found["copy"].copy_of.endswith(f":{original}")
    again = started(copy)
    assert again.run_id == found["copy"].run_id and again.copy_of == ""


def test_a_copy_is_noticed_while_its_original_runs(original: Path, tmp_path: Path) -> None:
    with RunFolder(original, "") as running:
        assert started(copied(original, tmp_path / "copy")).run_id != running.run_id


def test_a_folder_that_was_renamed_is_the_same_run(original: Path) -> None:
    run_id = noted(original)["run_id"]
    other = original.rename(original.with_name("other"))
    assert started(other).run_id == run_id
    assert noted(other)["place"]["path"] == str(other)


def test_a_folder_that_was_moved_to_another_file_system_is_the_same_run(original: Path, elsewhere: Path) -> None:
    run_id = noted(original)["run_id"]
    shutil.move(original, elsewhere / "run")
    assert started(elsewhere / "run").run_id == run_id


def test_a_folder_that_was_restored_from_a_backup_is_the_same_run(original: Path, tmp_path: Path) -> None:
    run_id = noted(original)["run_id"]
    backup = copied(original, tmp_path / "backup")
    shutil.rmtree(original)
    copied(backup, original)
    assert started(original).run_id == run_id


def test_a_copy_and_its_renamed_original_have_two_ids(original: Path, tmp_path: Path) -> None:
    copy = copied(original, tmp_path / "copy")
    moved = original.rename(tmp_path / "moved")
    assert started(copy).run_id != started(moved).run_id == noted(moved)["run_id"]


def test_a_link_to_a_run_is_that_run(original: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(original)
    assert started(tmp_path / "link").run_id == noted(original)["run_id"] == started(original).run_id


@pytest.mark.parametrize("same_file_system", [True, False])
def test_a_folder_from_another_machine_is_the_same_run_only_on_a_shared_file_system(
    same_file_system: bool, original: Path
) -> None:
    content = noted(original)
    content["place"] |= {"machine": "elsewhere", "path": "/mnt/there", "device": 1}
    content["place"]["inode"] += not same_file_system
    (original / "run.json").write_text(json.dumps(content))
    found = started(original)
    assert (found.run_id == content["run_id"]) is same_file_system
    assert found.copy_of == ("" if same_file_system else "elsewhere:/mnt/there")


@pytest.mark.parametrize("path", ["\0", "x" * 5000, "/proc/self/mem", "/dev/null"])
def test_a_place_that_cannot_be_looked_at_holds_no_run(path: str, original: Path) -> None:
    content = noted(original)
    content["place"]["path"] = path
    (original / "run.json").write_text(json.dumps(content))
    assert started(original).run_id == content["run_id"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run_id": 5}', '{"run_id": "a", "place": 5}', "[" * 100_000])
def test_a_damaged_identity_is_named(content: str, original: Path) -> None:
    (original / "run.json").write_text(content)
    with pytest.raises(RunFolderError, match="run.json is damaged; restore it, or remove it to go on with a new id"):
        RunFolder(original, "")
    (original / "run.json").unlink()
    with RunFolder(original, ""):
        assert noted(original)["run_id"]
