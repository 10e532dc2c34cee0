"""A run folder tells what its run was made of, and a run is not continued as another one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from digirl_dist.errors import SettingsError
from digirl_dist.settings import configuration
from digirl_dist.settings.places import HERE
from digirl_dist.storage import provenance


def started(folder: Path, *overrides: str) -> None:
    (folder / "config.yaml").write_text(configuration.to_yaml(configuration.load(HERE, "host", overrides)))


@pytest.mark.parametrize(
    ("word", "before"),
    [("seed=1", "0"), ("rollout_size=64", "128"), ("agent.width=32", "64"), ("emulator=miniwob", "phone")],
)
def test_what_may_not_change_is_refused_with_both_values(word: str, before: str, tmp_path: Path) -> None:
    started(tmp_path)
    now = configuration.as_mapping(configuration.load(HERE, "host", [word]))
    with pytest.raises(SettingsError) as refusal:
        provenance.refuse_changes(tmp_path, now)
    key, _, value = word.partition("=")
    assert key in str(refusal.value) and value in str(refusal.value) and f"={before}" in str(refusal.value)


@pytest.mark.component
def test_what_may_change_is_recorded(tmp_path: Path) -> None:
    started(tmp_path)
    now = configuration.as_mapping(configuration.load(HERE, "host", ["train_iterations=99", "limits.boot_s=7"]))
    provenance.refuse_changes(tmp_path, now)
    changes = provenance.changes_of(tmp_path, now)
    assert changes == {"train_iterations": [14, 99], "limits.boot_s": [180.0, 7.0]}
    provenance.record_start(tmp_path, changes)
    provenance.record_start(tmp_path, {})
    first, second = map(json.loads, (tmp_path / "provenance.jsonl").read_text().splitlines())
    assert first["changes"] == changes and second["changes"] == {}
    assert first["packages"]["numpy"] and first["host"]["cores"] and first["command"] == list(sys.argv)


@pytest.mark.component
def test_a_commit_and_its_uncommitted_difference_are_kept_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, run = tmp_path / "work", tmp_path / "run"
    work.mkdir()
    run.mkdir()
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    (work / "mine.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "mine.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (work / "mine.py").write_text("x = 2\npassword = 'hunter2'\n")
    monkeypatch.chdir(work)
    provenance.record_start(run, {})
    line = json.loads((run / "provenance.jsonl").read_text())
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert line["working_directory"]["commit"] == head
    difference = (run / line["working_directory"]["uncommitted"]).read_text()
    assert "+x = 2" in difference and "hunter2" not in difference
