"""A stranger's folder may hold pipes, devices and files without end where ours has files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from digirl_dist.errors import RunFolderError, SettingsError
from digirl_dist.report.why import explain
from digirl_dist.settings import regular_file
from digirl_dist.settings.safe_yaml import read_yaml
from digirl_dist.storage import json_lines

PLACED: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": os.mkdir,
    "a file of 1 TB": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
}


@pytest.mark.parametrize("kind", PLACED)
def test_what_is_no_file_of_a_run_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    for name in ("status.json", "config.yaml", "metrics.jsonl"):
        PLACED[kind](tmp_path / name)
    with pytest.raises(OSError):
        regular_file.content(tmp_path / "status.json")
    with pytest.raises(SettingsError, match="config.yaml cannot be read"):
        read_yaml(tmp_path / "config.yaml")
    with pytest.raises((SettingsError, RunFolderError), match="status.json"):
        explain(tmp_path)
    if kind != "a folder":
        assert json_lines.read(tmp_path / "metrics.jsonl", 1 << 20) == []
